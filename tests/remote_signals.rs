//! A signal ends the program, and everything that it started and made: its folder,
//! ssh's shared connection, the command that should have reached the node.

mod remote_support;
mod weights_support;

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use remote_support::*;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Says that it is there, makes the socket of a shared connection, and is silent.
const SSH: &str = r#"#!/bin/sh
case "$*" in *"-O exit"*) echo "goodbye" >>"$FAKE/calls"; exit 0 ;; esac
for word in "$@"; do
  case "$word" in ControlPath=*) : >"${word#ControlPath=}" ;; esac
done
echo $$ >"$FAKE/pids.new" && mv "$FAKE/pids.new" "$FAKE/pid"
exec sleep 600
"#;

/// Bounded waiting for something that another process does.
fn soon(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn pid(path: &Path) -> Option<Pid> {
    Pid::from_raw(fs::read_to_string(path).ok()?.trim().parse().ok()?)
}

/// Running, and not only waited for.
fn alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|s| {
        !s.rsplit(')')
            .next()
            .unwrap_or("")
            .trim_start()
            .starts_with('Z')
    })
}

/// Ends what a failed test would leave.
struct Started(Child, Pid);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = kill_process_group(self.1, Signal::KILL);
    }
}

fn start(c: &Cluster, wrap: &[&str], args: &[&str]) -> Started {
    fs::create_dir_all(c.at("t")).unwrap();
    let verify = assert_cmd::cargo::cargo_bin!("verify");
    let mut words: Vec<&str> = wrap.to_vec();
    let verify = verify.to_str().unwrap();
    words.push(verify);
    words.extend(args);
    let child = Command::new(words[0])
        .args(&words[1..])
        .current_dir(c.f.dir.path())
        .env("FAKE", c.f.dir.path())
        .env("TMPDIR", c.at("t"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let id = Pid::from_child(&child);
    let mut started = Started(child, id);
    soon("the transport starts", || c.at("pid").exists());
    started.1 = pid(&c.at("pid")).unwrap();
    assert!(alive(started.1));
    started
}

fn left(c: &Cluster) -> Vec<String> {
    let names = fs::read_dir(c.at("t")).unwrap();
    names
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Whoever runs the tests in the background may have had signals ignored.
const DEFAULT: [&str; 2] = ["env", "--default-signal=INT,TERM,HUP"];

const SIGNALS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

#[test]
fn nothing_of_an_ssh_replica_outlives_a_signal() {
    for signal in SIGNALS {
        let c = Cluster::new();
        c.script("ssh", SSH);
        c.inventory(&["node"]);
        let ssh = c.at("ssh");
        let args = ["weights", "--inventory", "nodes.toml", "--ssh"];
        let mut s = start(
            &c,
            &DEFAULT,
            &[&args[..], &[ssh.to_str().unwrap()]].concat(),
        );
        soon("the folder is made", || !left(&c).is_empty());
        kill_process(Pid::from_child(&s.0), signal).unwrap();
        let status = s.0.wait().unwrap();
        // Its parent sees what really happened.
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status:?}");
        assert!(!alive(s.1), "ssh outlived it");
        assert_eq!(left(&c), [""; 0]);
        let calls = fs::read_to_string(c.at("calls")).unwrap();
        assert_eq!(calls, "goodbye\n");
        // What was not finished is not told as if it were a result.
        let mut said = String::new();
        std::io::Read::read_to_string(&mut s.0.stdout.take().unwrap(), &mut said).unwrap();
        assert_eq!(said, "");
    }
}

#[test]
fn nor_does_a_command_with_its_children() {
    for signal in SIGNALS {
        let c = Cluster::new();
        // Deaf to a polite request, and with a child of its own.
        c.script(
            "reach",
            "#!/bin/sh\ntrap '' TERM INT HUP\nsleep 600 &\necho $! >\"$FAKE/child\"\n\
             echo $$ >\"$FAKE/pid.new\"; mv \"$FAKE/pid.new\" \"$FAKE/pid\"\nwait\nsleep 600\n",
        );
        let path = c.at("m0");
        c.write(
            "nodes.toml",
            &format!(
                "format = \"runseal.cluster/v1\"\nmanifest = \"manifest.json\"\n[[replica]]\nname = \"r0\"\n\
                 transport = \"command\"\ncommand = [\"./reach\", \"{{agent}}\"]\npath = {path:?}\n"
            ),
        );
        let mut s = start(&c, &DEFAULT, &["weights", "--inventory", "nodes.toml"]);
        let child = pid(&c.at("child")).unwrap();
        kill_process(Pid::from_child(&s.0), signal).unwrap();
        let status = s.0.wait().unwrap();
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status:?}");
        soon("both are gone", || !alive(s.1) && !alive(child));
        assert_eq!(left(&c), [""; 0]);
    }
}

#[test]
fn a_hangup_that_was_to_be_ignored_is_ignored() {
    let c = Cluster::new();
    c.script("ssh", SSH);
    c.inventory(&["node"]);
    let ssh = c.at("ssh");
    let args = ["weights", "--inventory", "nodes.toml", "--ssh"];
    let args = [&args[..], &[ssh.to_str().unwrap()]].concat();
    let mut s = start(&c, &["nohup"], &args);
    kill_process(Pid::from_child(&s.0), Signal::HUP).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(s.0.try_wait().unwrap().is_none(), "it ended all the same");
    kill_process(Pid::from_child(&s.0), Signal::TERM).unwrap();
    assert_eq!(s.0.wait().unwrap().signal(), Some(15));
    assert!(!alive(s.1));
}

#[test]
fn a_file_that_may_not_grow_is_an_error_and_not_the_end() {
    let f = weights_support::Fixture::new();
    let verify = assert_cmd::cargo::cargo_bin!("verify");
    let script =
        "ulimit -f 1; exec \"$0\" weights model --manifest manifest.json --save-reports saved";
    let output = Command::new("sh")
        .args(["-c", script])
        .arg(verify)
        .current_dir(f.dir.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("could not write saved/model.json: File too large"),
        "{said}"
    );
    assert_eq!(fs::read_dir(f.dir.path().join("saved")).unwrap().count(), 0);
}

#[test]
fn a_program_that_a_signal_ended_is_not_a_node_that_is_not_there() {
    // Over ssh, where a shell on the node saw it; where nobody did; and a command.
    let c = Cluster::new();
    c.script("bin-killed/verify", "#!/bin/sh\nkill -SEGV $$\n");
    let (code, found, detail) = c.one("killed", &[]);
    assert_eq!((code, found), (1, vec!["agent-failed".to_owned()]));
    assert!(
        detail.contains("stands for signal 11 (SIGSEGV)"),
        "{detail}"
    );

    let log = "log=$(printf '%s\\n' \"$@\" | grep '\\.log$')\n";
    let silent = format!("#!/bin/sh\n{log}: >\"$log\"\nexit 255\n");
    c.script("ssh", silent);
    let (code, found, detail) = c.one("silent", &[]);
    assert_eq!((code, found), (1, vec!["agent-failed".to_owned()]));
    assert!(
        detail.contains("as when a signal ends the program"),
        "{detail}"
    );

    c.script("reach", "#!/bin/sh\nkill -KILL $$\n");
    let path = c.at("m0");
    let text = format!(
        "format = \"runseal.cluster/v1\"\nmanifest = \"manifest.json\"\n[[replica]]\nname = \"r0\"\n\
         transport = \"command\"\ncommand = [\"./reach\", \"{{agent}}\"]\npath = {path:?}\n"
    );
    c.write("nodes.toml", &text);
    let answer = c.json(&[]);
    assert_eq!(codes(&answer), ["agent-failed"]);
    let detail = answer.json()["findings"][0]["detail"].to_string();
    assert!(detail.contains("ended by signal 9 (SIGKILL)"), "{detail}");
    // Nor is it silence when the program was to be copied there.
    let answer = c.json(&["--push-agent"]);
    assert_eq!(codes(&answer), ["push-failed"]);
}

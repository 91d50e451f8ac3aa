//! Gathering the sources on the node itself. No shell: programs are started with
//! their words, files are read.
//!
//! Everything is asked at once and nothing is waited for longer than the limit; a
//! driver that hangs costs its own answer only.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::gpu::QUERY;
use super::{Output, Raw};

/// Longest output that is kept, in bytes.
pub const MAX_OUTPUT: usize = 256 * 1024;
/// Most GID entries looked at per port.
const MAX_GIDS: u32 = 32;

/// What is asked of a node beyond what every node has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// Interfaces whose speed matters.
    pub interfaces: Vec<String>,
    /// RDMA devices whose addresses matter.
    pub hcas: Vec<String>,
    /// Folders whose free space matters.
    pub folders: Vec<String>,
    /// Words that start the container engine; none when there is none to ask.
    pub docker: Vec<String>,
    /// The image to look for.
    pub image: Option<String>,
    /// Longest time for all of it, in milliseconds.
    pub limit_ms: u64,
}

/// Files that every node is asked for.
const FILES: [&str; 7] = [
    "/etc/os-release",
    "/etc/dgx-release",
    "/proc/meminfo",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/random/boot_id",
    "/proc/net/tcp",
    "/proc/net/tcp6",
];

/// Asks this machine.
pub fn collect(wanted: &Wanted) -> Raw {
    let mut raw = Raw::default();
    let mut put = |name: String, output: Output| {
        raw.0.insert(name, output);
    };
    let programs = programs(wanted);
    let deadline = Instant::now() + Duration::from_millis(wanted.limit_ms);
    std::thread::scope(|scope| {
        let running: Vec<_> = programs
            .into_iter()
            .map(|(name, words)| (name, scope.spawn(move || run(&words, deadline))))
            .collect();
        for file in FILES {
            put(file.to_owned(), read(Path::new(file)));
        }
        for kind in ["cpu", "memory", "io"] {
            let path = format!("/proc/pressure/{kind}");
            put(format!("pressure:{kind}"), read(Path::new(&path)));
        }
        for name in &wanted.hcas {
            put(format!("gids:{name}"), gids(name));
        }
        for folder in &wanted.folders {
            put(format!("disk:{folder}"), free(Path::new(folder)));
        }
        for (name, thread) in running {
            let output = thread.join();
            put(
                name,
                output.unwrap_or_else(|_| absent("asking for it failed")),
            );
        }
    });
    raw
}

fn programs(wanted: &Wanted) -> Vec<(String, Vec<String>)> {
    let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    let query = format!("--query-gpu={QUERY}");
    let mut out = vec![
        (
            "nvidia-smi".to_owned(),
            words(&["nvidia-smi", &query, "--format=csv,nounits"]),
        ),
        ("ibdev2netdev".to_owned(), words(&["ibdev2netdev"])),
        ("ip-addr".to_owned(), words(&["ip", "-j", "addr", "show"])),
        (
            "timedatectl".to_owned(),
            words(&["timedatectl", "show", "-p", "NTPSynchronized"]),
        ),
        ("chronyc".to_owned(), words(&["chronyc", "-c", "tracking"])),
    ];
    for name in &wanted.interfaces {
        out.push((format!("ethtool:{name}"), words(&["ethtool", name])));
    }
    if !wanted.docker.is_empty() {
        let with = |rest: &[&str]| {
            let rest = rest.iter().map(|w| (*w).to_owned());
            wanted
                .docker
                .iter()
                .cloned()
                .chain(rest)
                .collect::<Vec<_>>()
        };
        out.push((
            "docker-info".to_owned(),
            with(&["info", "--format", "{{json .}}"]),
        ));
        if let Some(image) = &wanted.image {
            out.push((
                "docker-image".to_owned(),
                with(&["image", "inspect", image]),
            ));
        }
    }
    out
}

fn absent(why: impl Into<String>) -> Output {
    Output::Absent(why.into())
}

fn read(path: &Path) -> Output {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path)?;
        file.take(MAX_OUTPUT as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => Output::Text(String::from_utf8_lossy(&bytes).into_owned()),
        Err(e) => absent(e.to_string()),
    }
}

/// Starts a program and keeps what it prints, if it ends well and in time.
fn run(words: &[String], deadline: Instant) -> Output {
    let Some((program, args)) = words.split_first() else {
        return absent("there is nothing to start");
    };
    let child = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(e) => return absent(format!("{program}: {e}")),
    };
    let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let code = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.code(),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                end(&mut child);
                return absent(format!("{program} did not answer in time"));
            }
        }
    };
    // What it left behind may hold the pipes open.
    let rest = Duration::from_secs(1);
    let said = |pipe: mpsc::Receiver<Vec<u8>>| pipe.recv_timeout(rest).unwrap_or_default();
    let (out, err) = (said(out), said(err));
    if code == Some(0) {
        return Output::Text(String::from_utf8_lossy(&out).into_owned());
    }
    // nvidia-smi complains on its standard output.
    let words = [err, out]
        .into_iter()
        .find(|w| !w.is_empty())
        .unwrap_or_default();
    let text = String::from_utf8_lossy(&words);
    let line: String = text
        .lines()
        .next()
        .unwrap_or_default()
        .chars()
        .take(200)
        .collect();
    let how = code.map_or("was ended by a signal".to_owned(), |c| {
        format!("ended with {c}")
    });
    absent(format!("{program} {how}: {line}"))
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (say, said) = mpsc::channel();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        if let Some(mut pipe) = pipe {
            let mut buffer = [0; 8192];
            // Read to the end, so that it never waits for us.
            while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                let room = MAX_OUTPUT - kept.len();
                kept.extend_from_slice(&buffer[..n.min(room)]);
            }
        }
        let _ = say.send(kept);
    });
    said
}

fn end(child: &mut std::process::Child) {
    // It has not been waited for, so its number is still its own.
    if let Some(pid) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
}

/// The GID table of a device's first port, one `INDEX GID TYPE` a line.
fn gids(name: &str) -> Output {
    let port = Path::new("/sys/class/infiniband")
        .join(name)
        .join("ports/1");
    gid_table(&port)
}

fn gid_table(port: &Path) -> Output {
    let word = |path: std::path::PathBuf| match read(&path) {
        Output::Text(text) => Some(text.trim().to_owned()),
        Output::Absent(_) => None,
    };
    if let Err(e) = std::fs::read_dir(port.join("gids")) {
        return absent(e.to_string());
    }
    let mut out = String::new();
    for index in 0..MAX_GIDS {
        let gid = word(port.join("gids").join(index.to_string()));
        // Reading the type of an unused entry fails.
        let kind = word(port.join("gid_attrs/types").join(index.to_string()));
        if let (Some(gid), Some(kind)) = (gid, kind) {
            out.push_str(&format!("{index} {gid} {kind}\n"));
        }
    }
    Output::Text(out)
}

/// Bytes that an ordinary user can still write beneath a folder.
fn free(folder: &Path) -> Output {
    match rustix::fs::statvfs(folder) {
        Ok(stat) => Output::Text(stat.f_bavail.saturating_mul(stat.f_frsize).to_string()),
        Err(e) => absent(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_facts::Facts;

    fn now_or_in(ms: u64) -> Instant {
        Instant::now() + Duration::from_millis(ms)
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|w| (*w).to_owned()).collect()
    }

    #[test]
    fn this_machine_answers_and_what_it_lacks_is_absent() {
        let wanted = Wanted {
            folders: vec!["/".to_owned(), "/no/such".to_owned()],
            hcas: vec!["nosuch0".to_owned()],
            docker: vec!["/no/such/docker".to_owned()],
            image: Some("x".to_owned()),
            limit_ms: 10_000,
            ..Wanted::default()
        };
        let raw = collect(&wanted);
        let facts = Facts::read(&raw);
        assert!(facts.memory.total > facts.memory.swap_free.map(|_| 0));
        assert_eq!(facts.boot_id.as_ref().map(String::len), Some(36));
        assert!(facts.disk_free.contains_key("/") && facts.disk_free.len() == 1);
        assert!(facts.listening.is_some());
        assert_eq!(facts.container_engine, None);
        assert!(raw.absent("docker-image").contains("/no/such/docker"));
        assert!(
            raw.absent("gids:nosuch0").contains("No such file"),
            "{raw:?}"
        );
    }

    #[test]
    fn programs_that_fail_or_hang_cost_their_own_answer() {
        let ok = run(&words(&["printf", "%s", "a $HOME b"]), now_or_in(10_000));
        assert_eq!(ok, Output::Text("a $HOME b".to_owned()));
        let failed = run(
            &words(&["sh", "-c", "echo why >&2; exit 9"]),
            now_or_in(10_000),
        );
        assert_eq!(failed, absent("sh ended with 9: why"));
        let hangs = run(&words(&["sleep", "600"]), now_or_in(50));
        assert_eq!(hangs, absent("sleep did not answer in time"));
        let Output::Text(long) = run(&words(&["seq", "100000"]), now_or_in(30_000)) else {
            panic!("seq")
        };
        assert_eq!(long.len(), MAX_OUTPUT);
    }

    #[test]
    fn gid_tables_are_joined() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(gid_table(dir.path()), Output::Absent(_)));
        for sub in ["gids", "gid_attrs/types"] {
            std::fs::create_dir_all(dir.path().join(sub)).unwrap();
        }
        let put = |sub: &str, text: &str| std::fs::write(dir.path().join(sub), text).unwrap();
        put("gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n");
        put("gid_attrs/types/0", "IB/RoCE v1\n");
        put("gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        put("gid_attrs/types/3", "RoCE v2\n");
        put("gids/4", "0000:0000:0000:0000:0000:0000:0000:0000\n");
        let Output::Text(text) = gid_table(dir.path()) else {
            panic!("no table")
        };
        let gids = super::super::network::gids(&text);
        assert_eq!(gids.len(), 2);
        assert!(gids[&3].v2 && !gids[&0].v2);
        assert_eq!(gids[&3].ipv4().unwrap().to_string(), "10.0.0.1");
    }
}

//! From a replica's transport to the words of a program to start.
//!
//! ssh hands its words to a shell on the node, so they are quoted. A command
//! template is a list of words and no shell is involved on this side.

use std::path::PathBuf;

use super::ssh;
use crate::weights::{Replica, Transport};

/// How replicas are reached from here.
#[derive(Debug, Clone)]
pub struct Reach {
    /// The ssh program.
    pub ssh: PathBuf,
    /// This program, for local replicas that need `sudo`.
    pub own: PathBuf,
    /// A private folder for ssh's control sockets and logs.
    pub private: PathBuf,
    /// The inventory's folder: relative paths of the transport's options start
    /// here.
    pub folder: PathBuf,
    /// How long a connection may take, in seconds.
    pub connect_timeout: u64,
}

/// A program to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spawn {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Where ssh writes what it has to say.
    pub log: Option<PathBuf>,
}

/// What to run on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// A program and its arguments. A program that begins with `~/` lies in the
    /// home folder.
    Words(Vec<String>),
    /// A POSIX shell script.
    Script(String),
}

impl Run {
    /// `verify weights --agent` on this replica's node. Over ssh a shell stays above
    /// it, which tells by which signal it was ended: ssh itself does not.
    pub fn agent(replica: &Replica, program: &str) -> Self {
        let mut words: Vec<String> = Vec::new();
        if replica.sudo {
            words.extend(["sudo", "-n", "--"].map(str::to_owned));
        }
        words.extend([program, "weights", "--agent"].map(str::to_owned));
        if let Some(key) = &replica.node_key {
            words.extend(["--node-key".to_owned(), key.clone()]);
        }
        if matches!(replica.transport, Transport::Ssh(_)) {
            return Self::Script(format!("{}; exit $?", shell_line(&words)));
        }
        if words.iter().any(|w| w.starts_with("~/")) {
            // Only a shell on the node knows where home is.
            return Self::Script(format!("exec {}", shell_line(&words)));
        }
        Self::Words(words)
    }

    fn words(&self) -> Vec<String> {
        match self {
            Self::Words(words) => words.clone(),
            Self::Script(script) => ["sh", "-c", script].map(str::to_owned).to_vec(),
        }
    }
}

impl Reach {
    /// The program to start here so that `run` runs on the replica's node.
    pub fn spawn(&self, replica: &Replica, run: &Run) -> Spawn {
        match &replica.transport {
            Transport::Local => {
                let mut words = run.words();
                let program = PathBuf::from(words.remove(0));
                Spawn {
                    program,
                    args: words,
                    log: None,
                }
            }
            Transport::Ssh(options) => {
                let log = self.private.join(format!("{}.log", replica.name));
                let mut args = ssh::arguments(options, self, &replica.name, &log);
                args.extend(["--".to_owned(), options.host.clone()]);
                args.push(shell_line(&run.words()));
                Spawn {
                    program: self.ssh.clone(),
                    args,
                    log: Some(log),
                }
            }
            Transport::Command(template) => {
                let host = template.host.as_deref().unwrap_or(&replica.name);
                let words = run.words();
                let mut out: Vec<String> = Vec::new();
                for word in &template.command {
                    if word == "{agent}" {
                        out.extend(words.iter().cloned());
                    } else {
                        let line = shell_line(&words);
                        out.push(fill(word, host, &line));
                    }
                }
                // The inventory was checked: a command has a program.
                let program = PathBuf::from(out.remove(0));
                let relative = program.components().count() > 1 && program.is_relative();
                Spawn {
                    program: if relative {
                        self.folder.join(program)
                    } else {
                        program
                    },
                    args: out,
                    log: None,
                }
            }
        }
    }

    /// A path of the inventory, seen from here.
    pub(super) fn path_here(&self, text: &str) -> String {
        match text.strip_prefix("~/") {
            // ssh itself knows what a leading tilde means.
            Some(_) => text.to_owned(),
            None => {
                let path = self.folder.join(text);
                let absolute = std::path::absolute(&path).unwrap_or(path);
                absolute.to_string_lossy().into_owned()
            }
        }
    }
}

/// Both placeholders at once: what one of them brings in is not searched again.
fn fill(word: &str, host: &str, agent: &str) -> String {
    let mut out = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("{host}") {
            out.push_str(host);
            rest = after;
        } else if let Some(after) = rest.strip_prefix("{agent}") {
            out.push_str(agent);
            rest = after;
        } else {
            out.push('{');
            rest = &rest[1..];
        }
    }
    out + rest
}

/// Words as one line for a POSIX shell; `~/` at the beginning of a word stays
/// the home folder.
pub fn shell_line(words: &[String]) -> String {
    let each = words.iter().map(|word| match word.strip_prefix("~/") {
        Some(rest) => format!("\"$HOME\"/{}", quoted(rest)),
        None => quoted(word),
    });
    each.collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"@%+=:,./_-".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::weights::Inventory;

    fn reach() -> Reach {
        Reach {
            ssh: "ssh".into(),
            own: "/opt/verify".into(),
            private: "/tmp/p".into(),
            folder: "/etc/inv".into(),
            connect_timeout: 7,
        }
    }

    fn replica(body: &str) -> Replica {
        let text = format!(
            "format = \"runseal.cluster/v1\"\nmanifest = \"m\"\n[[replica]]\nname = \"r\"\npath = \"/m\"\n{body}"
        );
        Inventory::parse(&text).unwrap().replicas()[0].clone()
    }

    #[test]
    fn words_reach_the_node_as_they_are() {
        let words = ["a b", "it's", "$HOME", "", "~/x y", "-n"].map(str::to_owned);
        assert_eq!(
            shell_line(&words),
            r#"'a b' 'it'\''s' '$HOME' '' "$HOME"/'x y' -n"#
        );
        let out = std::process::Command::new("sh")
            .args(["-c", &format!("printf '%s|' {}", shell_line(&words))])
            .env("HOME", "/h")
            .output()
            .unwrap();
        assert_eq!(out.stdout, b"a b|it's|$HOME||/h/x y|-n|");
    }

    #[test]
    fn templates_are_filled_without_a_shell() {
        let r = replica(
            "transport = \"command\"\ncommand = [\"srun\", \"--w={host}\", \"--\", \"{agent}\"]\nhost = \"{agent}\"",
        );
        let spawn = reach().spawn(&r, &Run::agent(&r, "/bin/my verify"));
        assert_eq!(spawn.program, Path::new("srun"));
        assert_eq!(
            spawn.args,
            ["--w={agent}", "--", "/bin/my verify", "weights", "--agent"]
        );
        let r = replica(
            "transport = \"command\"\ncommand = [\"./on\", \"{host}\", \"exec {agent}\"]\nsudo = true",
        );
        let spawn = reach().spawn(&r, &Run::agent(&r, "/bin/my verify"));
        assert_eq!(spawn.program, Path::new("/etc/inv/./on"));
        assert_eq!(
            spawn.args,
            ["r", "exec sudo -n -- '/bin/my verify' weights --agent"]
        );
    }

    #[test]
    fn ssh_is_told_everything_that_matters() {
        let r = replica(
            "transport = \"ssh\"\nhost = \"gx1\"\nuser = \"u\"\nport = 22\nidentity = \"id\"\nnode_key = \"~/k\"",
        );
        let spawn = reach().spawn(&r, &Run::agent(&r, "verify"));
        let line = spawn.args.join(" ");
        for part in [
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            "ControlMaster=auto",
            "ControlPath=/tmp/p/",
            "ConnectTimeout=7",
            "ServerAliveInterval=",
            "-l u",
            "-p 22",
            "-i /etc/inv/id",
            "-E /tmp/p/r.log",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        let tail = &spawn.args[spawn.args.len() - 3..];
        assert_eq!(
            tail,
            [
                "--",
                "gx1",
                r#"sh -c 'verify weights --agent --node-key "$HOME"/k; exit $?'"#
            ]
        );
    }
}

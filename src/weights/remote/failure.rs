//! Why a node gave no report, as one finding with its own hint.
//!
//! ssh ends with 255 for its own failures, and with the remote command's code
//! otherwise. Its reasons are only text. They are looked for in its log (`-E`),
//! where nothing that the node prints can be mistaken for them; programs that
//! ignore `-E` are read from their stderr.

use crate::codes::Code;

/// One failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The kind.
    pub code: Code,
    /// What happened, in words.
    pub detail: String,
}

/// How a started program ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum How {
    /// By itself, with this exit code.
    Code(i32),
    /// By a signal that was not ours.
    Signal(i32),
    /// It did not end in time, and was ended.
    #[default]
    Forced,
}

/// How a started program ended, and what it said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct End {
    /// How it ended.
    pub how: How,
    /// The beginning and end of its stderr.
    pub stderr: String,
    /// What ssh logged.
    pub log: String,
    /// ssh made its log, so what is in its stderr is the node's.
    pub logged: bool,
    /// It was ssh.
    pub ssh: bool,
    /// A host key was pinned.
    pub pinned: bool,
    /// The agent had introduced itself.
    pub greeted: bool,
}

impl Failure {
    /// A failure with its detail.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
        }
    }

    /// Tells apart why a program ended without what it was started for.
    pub fn classify(end: &End) -> Self {
        let code = if end.ssh_gave_up() {
            ssh_code(end)
        } else {
            remote_code(end)
        };
        Self::new(code, end.in_words())
    }
}

fn ssh_code(end: &End) -> Code {
    let said = end.said_by_ssh().to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|p| said.contains(p));
    if has(&["identification has changed", "host key has changed"]) {
        Code::NodeHostKeyChanged
    } else if has(&["host key verification failed", "host key is known for"]) {
        // With a pin, no other key is known by design.
        if end.pinned {
            Code::NodeHostKeyChanged
        } else {
            Code::NodeHostKeyUnknown
        }
    } else if has(&["permission denied", "too many authentication failures"]) {
        Code::NodeKeyRefused
    } else if has(&["timed out", "timeout, server"]) {
        Code::NodeTimeout
    } else if end.greeted {
        Code::ConnectionLost
    } else {
        Code::NodeUnreachable
    }
}

fn remote_code(end: &End) -> Code {
    let said = end.stderr.to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|p| said.contains(p));
    let sudo_refused = said.lines().any(|l| {
        l.contains("sudo")
            && [
                "password is required",
                "a terminal is required",
                "not allowed",
                "not in the sudoers",
                "sudo: not found",
                "sudo: command not found",
                "no new privileges",
            ]
            .iter()
            .any(|p| l.contains(p))
    });
    if sudo_refused {
        Code::SudoRefused
    } else if has(&["exec format error", "cannot execute"]) || end.how == How::Code(126) {
        Code::AgentExecFormat
    } else if end.how == How::Code(127) || has(&["command not found", "executable file not found"])
    {
        Code::AgentMissing
    } else {
        Code::AgentFailed
    }
}

impl End {
    /// ssh failed, and not the program on the node. It never does so without giving
    /// its reason; 255 without one is what it makes of a program there that a signal
    /// ended, and the code of one that ended with it.
    fn ssh_gave_up(&self) -> bool {
        let silent = self.said_by_ssh().trim().is_empty() && !self.greeted;
        self.ssh && self.how == How::Code(255) && !silent
    }

    fn said_by_ssh(&self) -> &str {
        if self.logged || !self.log.trim().is_empty() {
            &self.log
        } else {
            &self.stderr
        }
    }

    /// How it ended, and the last thing it said.
    fn in_words(&self) -> String {
        let said = if self.ssh_gave_up() {
            self.said_by_ssh()
        } else {
            &self.stderr
        };
        let said = telling_line(said);
        let how = match self.how {
            How::Code(255) if self.ssh && !self.ssh_gave_up() => {
                "ssh ended with exit code 255 and gave no reason, as when a signal ends the program on the node"
                    .to_owned()
            }
            // What a shell makes of a program that a signal ended.
            How::Code(code @ 129..=192) => format!(
                "it ended with exit code {code}, which stands for signal {}",
                signal(code - 128)
            ),
            How::Code(code) => format!("it ended with exit code {code}"),
            How::Signal(number) => format!("it was ended by signal {}", signal(number)),
            How::Forced => "it did not end by itself".to_owned(),
        };
        match said {
            Some(line) => format!("{line} ({how})"),
            None => how,
        }
    }
}

/// The number of a signal, and the name of those that are usual.
fn signal(number: i32) -> String {
    let name = match number {
        1 => "HUP",
        2 => "INT",
        4 => "ILL",
        6 => "ABRT",
        7 => "BUS",
        8 => "FPE",
        9 => "KILL",
        11 => "SEGV",
        13 => "PIPE",
        14 => "ALRM",
        15 => "TERM",
        24 => "XCPU",
        25 => "XFSZ",
        31 => "SYS",
        _ => return number.to_string(),
    };
    format!("{number} (SIG{name})")
}

/// The line that says most: the last one, unless an earlier one has the cause.
fn telling_line(text: &str) -> Option<String> {
    let lines: Vec<&str> = text
        .lines()
        // ssh frames its warnings in @ signs.
        .map(|l| l.trim_matches(['@', ' ', '\t', '\r']))
        .filter(|l| !l.is_empty())
        .collect();
    let telling = lines
        .iter()
        .find(|l| l.contains("IDENTIFICATION HAS CHANGED") || l.contains("host key is known for"))
        .or(lines.last())?;
    let mut line: String = telling.chars().take(300).collect();
    if line.len() < telling.len() {
        line.push('…');
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: i32, log: &str, stderr: &str) -> End {
        End {
            how: How::Code(code),
            log: log.to_owned(),
            stderr: stderr.to_owned(),
            ssh: true,
            ..End::default()
        }
    }

    #[test]
    fn what_openssh_says_is_told_apart() {
        const CHANGED: &str = "@@@@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@@@@@@@\n\
            IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\nHost key for gx1 has changed and you have requested strict checking.\n\
            Host key verification failed.";
        for (log, code) in [
            (
                "ssh: connect to host gx1 port 22: Connection refused",
                Code::NodeUnreachable,
            ),
            (
                "ssh: connect to host gx1 port 22: No route to host",
                Code::NodeUnreachable,
            ),
            (
                "ssh: Could not resolve hostname gx1: Name or service not known",
                Code::NodeUnreachable,
            ),
            (
                "kex_exchange_identification: Connection closed by remote host",
                Code::NodeUnreachable,
            ),
            (
                "ssh: connect to host gx1 port 22: Connection timed out",
                Code::NodeTimeout,
            ),
            (
                "Connection timed out during banner exchange",
                Code::NodeTimeout,
            ),
            ("Timeout, server gx1 not responding.", Code::NodeTimeout),
            (
                "root@gx1: Permission denied (publickey).",
                Code::NodeKeyRefused,
            ),
            (
                "Received disconnect from gx1 port 22:2: Too many authentication failures",
                Code::NodeKeyRefused,
            ),
            (CHANGED, Code::NodeHostKeyChanged),
            (
                "No ED25519 host key is known for gx1 and you have requested strict checking.\r\nHost key verification failed.",
                Code::NodeHostKeyUnknown,
            ),
        ] {
            assert_eq!(Failure::classify(&ended(255, log, "")).code, code, "{log}");
            assert_eq!(Failure::classify(&ended(255, "", log)).code, code, "{log}");
        }
        let mut pinned = ended(255, "Host key verification failed.", "");
        pinned.pinned = true;
        assert_eq!(Failure::classify(&pinned).code, Code::NodeHostKeyChanged);
        let mut lost = ended(255, "client_loop: send disconnect: Broken pipe", "");
        lost.greeted = true;
        assert_eq!(Failure::classify(&lost).code, Code::ConnectionLost);
    }

    #[test]
    fn what_the_node_says_is_told_apart() {
        for (code, stderr, expected) in [
            (
                127,
                "bash: line 1: verify: command not found",
                Code::AgentMissing,
            ),
            (127, "sh: 1: exec: verify: not found", Code::AgentMissing),
            (1, "sudo: verify: command not found", Code::AgentMissing),
            (
                126,
                "bash: verify: Permission denied",
                Code::AgentExecFormat,
            ),
            (
                126,
                "sh: 1: verify: Exec format error",
                Code::AgentExecFormat,
            ),
            (1, "sudo: a password is required", Code::SudoRefused),
            (127, "sh: 1: exec: sudo: not found", Code::SudoRefused),
            (
                1,
                "rs is not in the sudoers file.  This incident has been reported to sudo",
                Code::SudoRefused,
            ),
            (1, "Permission denied", Code::AgentFailed),
            (2, "error: unexpected argument '--agent'", Code::AgentFailed),
            (137, "Killed", Code::AgentFailed),
        ] {
            let failure = Failure::classify(&ended(code, "", stderr));
            assert_eq!(failure.code, expected, "{stderr}");
            assert!(failure.detail.contains(stderr), "{}", failure.detail);
        }
        // ssh says nothing when the program on the node is ended by a signal.
        let silent = Failure::classify(&ended(255, "", ""));
        assert_eq!(silent.code, Code::AgentFailed);
        assert!(silent.detail.contains("as when a signal ends"));
        // Words of the node's are not ssh's, once ssh made its log.
        let mut words = ended(255, "", "Killed");
        words.logged = true;
        let words = Failure::classify(&words);
        assert_eq!(words.code, Code::AgentFailed);
        assert!(
            words.detail.starts_with("Killed (ssh ended"),
            "{}",
            words.detail
        );
        let by_shell = Failure::classify(&ended(137, "", ""));
        assert_eq!(by_shell.code, Code::AgentFailed);
        assert!(by_shell.detail.contains("signal 9 (SIGKILL)"));
        let mut here = ended(0, "", "");
        here.how = How::Signal(11);
        let here = Failure::classify(&here);
        assert_eq!(here.code, Code::AgentFailed);
        assert_eq!(here.detail, "it was ended by signal 11 (SIGSEGV)");
        // The node cannot pass its own words off as ssh's.
        let spoof = ended(
            255,
            "ssh: connect to host: No route to host",
            "REMOTE HOST IDENTIFICATION HAS CHANGED",
        );
        assert_eq!(Failure::classify(&spoof).code, Code::NodeUnreachable);
    }
}

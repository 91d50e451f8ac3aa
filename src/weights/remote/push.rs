//! Copying `verify` to a node that lacks it.
//!
//! It lies in `~/.cache/runseal/agents/<sha256>/verify` there: a folder per
//! digest, so that nothing is ever overwritten. The copy is checked on the node
//! (length, and digest where the node has `sha256sum`) before it gets its name,
//! and again by what the running program says of its own file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::command::Run;
use super::elf::{self, Elf};
use super::failure::{End, Failure, How};
use super::session::{Node, collect, finish, is_pinned, start};
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::weights::Transport;

/// Largest program accepted, in bytes.
const MAX_PROGRAM: u64 = 256 << 20;
/// Slowest link on which a copy still succeeds, in bytes a second.
const SLOWEST: u64 = 100_000;

/// A `verify` to copy.
pub struct Program {
    /// Where it came from.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Their digest.
    pub sha256: Sha256Digest,
    /// What it needs to run.
    pub elf: Elf,
}

/// Why a file cannot be pushed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It could not be read.
    #[error("could not read the program {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It is no program for Linux.
    #[error(
        "{0} is not a 64-bit ELF program (hint: --push-agent takes a static `verify` for the node's architecture)"
    )]
    NotElf(PathBuf),
    /// It is too large.
    #[error("{0} is larger than {MAX_PROGRAM} bytes (hint: is it the right file?)")]
    TooLarge(PathBuf),
}

impl Program {
    /// Reads a program file.
    pub fn read(path: &Path) -> Result<Self, ProgramError> {
        let io = |source| ProgramError::Io {
            path: path.to_owned(),
            source,
        };
        let meta = std::fs::metadata(path).map_err(io)?;
        if !meta.is_file() {
            return Err(ProgramError::NotElf(path.to_owned()));
        }
        if meta.len() > MAX_PROGRAM {
            return Err(ProgramError::TooLarge(path.to_owned()));
        }
        let bytes = std::fs::read(path).map_err(io)?;
        let elf = elf::read(&bytes).ok_or_else(|| ProgramError::NotElf(path.to_owned()))?;
        Ok(Self {
            path: path.to_owned(),
            sha256: Sha256Digest::of(&bytes),
            bytes,
            elf,
        })
    }
}

/// Sees to it that the program lies on the node; its path there.
pub(super) fn ensure(node: &Node, program: &Program) -> Result<String, Failure> {
    let sha = program.sha256.hex();
    let folder = format!("$HOME/.cache/runseal/agents/{sha}");
    let look = format!(
        "f=\"{folder}/verify\"\n\
         echo \"runseal-machine $(uname -m)\"\n\
         if [ -e \"$f\" ] || [ -L \"$f\" ]; then\n\
         s=$(sha256sum <\"$f\" 2>/dev/null) || s=unknown\n\
         echo \"runseal-there ${{s%% *}}\"\n\
         else echo runseal-absent; fi"
    );
    let said = script(node, &look, &[])?;
    let word = |key: &str| {
        said.lines()
            .find_map(|l| l.strip_prefix(key))
            .map(|v| v.trim().to_owned())
    };
    let machine = word("runseal-machine").unwrap_or_default();
    if let Some(built_for) = program.elf.machine
        && canonical_machine(&machine) != built_for
    {
        let detail = format!(
            "{} is built for {built_for} and the node is {machine:?}",
            program.path.display()
        );
        return Err(Failure::new(Code::AgentExecFormat, detail));
    }
    if let Some(there) = word("runseal-there") {
        // "unknown": the program's own word decides later.
        if there != sha && there != "unknown" {
            let detail = format!(
                "~/.cache/runseal/agents/{sha}/verify on the node is {there}; it was left alone"
            );
            return Err(Failure::new(Code::AgentDigestMismatch, detail));
        }
    } else if word("runseal-absent").is_some() {
        copy(node, program, &folder)?;
    } else {
        let detail = format!("the node's shell answered {:?}", first_line(&said));
        return Err(Failure::new(Code::PushFailed, detail));
    }
    Ok(format!("~/.cache/runseal/agents/{sha}/verify"))
}

fn copy(node: &Node, program: &Program, folder: &str) -> Result<(), Failure> {
    let (sha, len) = (program.sha256.hex(), program.bytes.len());
    // Linked into place and not moved: linking fails when the name is taken.
    let script_text = format!(
        "umask 077\n\
         d=\"{folder}\"; t=\"$d/.part.$$\"\n\
         mkdir -p \"$d\" || exit 1\n\
         trap 'rm -f \"$t\"' EXIT\n\
         cat >\"$t\" || exit 1\n\
         n=$(wc -c <\"$t\")\n\
         [ \"$n\" -eq {len} ] || {{ echo \"$n of {len} bytes arrived\" >&2; exit 1; }}\n\
         if s=$(sha256sum <\"$t\" 2>/dev/null); then\n\
         [ \"${{s%% *}}\" = {sha} ] || {{ echo \"the copy is ${{s%% *}}\" >&2; exit 1; }}\n\
         fi\n\
         chmod 755 \"$t\" || exit 1\n\
         ln \"$t\" \"$d/verify\" 2>/dev/null || mv -n \"$t\" \"$d/verify\" || exit 1\n\
         echo runseal-pushed"
    );
    let said = script(node, &script_text, &program.bytes)?;
    if said.lines().any(|l| l == "runseal-pushed") {
        Ok(())
    } else {
        let detail = format!("the node's shell answered {:?}", first_line(&said));
        Err(Failure::new(Code::PushFailed, detail))
    }
}

/// Runs a script on the node; its stdout.
fn script(node: &Node, text: &str, input: &[u8]) -> Result<String, Failure> {
    let (mut child, spawn) = start(node, &Run::Script(text.to_owned()))?;
    let stdin = child.stdin.take();
    let input = input.to_vec();
    let bytes = input.len() as u64;
    std::thread::spawn(move || {
        if let Some(mut stdin) = stdin {
            // A node that stops reading ends with a code of its own.
            let _ = stdin.write_all(&input);
        }
    });
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let patience = node.silence + Duration::from_secs(bytes / SLOWEST);
    let end = finish(&mut child, &stderr, &spawn, patience);
    let end = End {
        ssh: matches!(node.replica.transport, Transport::Ssh(_)),
        pinned: is_pinned(node.replica),
        ..end
    };
    match end.how {
        How::Code(0) => Ok(stdout
            .recv_timeout(Duration::from_secs(1))
            .unwrap_or_default()),
        How::Forced => {
            let detail = format!("no answer for {} s", patience.as_secs());
            Err(Failure::new(Code::NodeTimeout, detail))
        }
        How::Code(_) | How::Signal(_) => {
            let mut failure = Failure::classify(&end);
            if matches!(failure.code, Code::AgentFailed | Code::AgentMissing) {
                failure.code = Code::PushFailed;
            }
            Err(failure)
        }
    }
}

fn canonical_machine(uname: &str) -> &str {
    match uname {
        "arm64" => "aarch64",
        "amd64" => "x86_64",
        other => other,
    }
}

fn first_line(text: &str) -> String {
    text.lines()
        .next()
        .unwrap_or("")
        .chars()
        .take(120)
        .collect()
}

//! The messages between caller and agent, one line of JSON each.

use std::io::{self, BufRead, Read, Write};
use std::num::{NonZeroU64, NonZeroUsize};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::lock::{Holder, LockRequest};
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::json;
use crate::node_facts::Raw;
use crate::node_facts::collect::Wanted;
use crate::relpath::RelPath;
use crate::weights::{Algorithm, Entry, ListFormat, Listing, ManifestError, ReplicaReport, Source};

/// Raised when a message changes its meaning.
pub const PROTOCOL: u32 = 1;
/// Longest message but a request or a report, in bytes.
pub const MAX_SMALL: usize = 64 * 1024;
/// Longest request or report: a million files.
pub const MAX_LARGE: usize = 512 * 1024 * 1024;

/// What the agent says first. Fields that a later version adds are passed over,
/// so that "another version" can be told from "not an agent".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the agent.
    pub protocol: u32,
    /// Version of its `verify`.
    pub version: String,
    /// SHA-256 of its own program file.
    pub binary_sha256: Sha256Digest,
    /// Boot id of the node.
    pub boot_id: String,
    /// Architecture it was built for, as Rust names it.
    pub arch: String,
}

/// What the caller asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The folder on the node.
    pub path: String,
    /// The revision to look at, in a hub cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// What the folder should hold.
    pub expected: Expected,
    /// Which digests to compute.
    pub algorithm: Algorithm,
    /// Threads to use; all cores when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<NonZeroUsize>,
    /// Bytes to read per second at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<NonZeroU64>,
    /// Name of the replica.
    pub replica: String,
    /// What the checkpoint is for.
    pub role: String,
    /// The run this belongs to, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// SHA-256 of the run's nonce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce_hash: Option<Sha256Digest>,
    /// Digest of the run's plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_digest: Option<Sha256Digest>,
    /// An earlier report; files that have not moved since are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<ReplicaReport>,
}

/// A [`Listing`] as it travels: whatever format it was read from, both sides
/// build the same one from its parts, under the same rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    format: ListFormat,
    files: Vec<Entry>,
    ignore: Vec<RelPath>,
    empty_folders: Vec<RelPath>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<Source>,
}

impl Expected {
    /// Takes a listing apart.
    pub fn of(listing: &Listing) -> Self {
        Self {
            format: listing.format(),
            files: listing.entries().cloned().collect(),
            ignore: listing.ignore().iter().cloned().collect(),
            empty_folders: listing.empty_folders().iter().cloned().collect(),
            source: listing.source().cloned(),
        }
    }

    /// Puts it together again. A caller is believed no more than a file.
    pub fn listing(self) -> Result<Listing, ManifestError> {
        let listing = match self.format {
            ListFormat::Absent if self.files.is_empty() => Listing::absent(),
            format => Listing::new(format, self.files)?,
        };
        Ok(listing
            .with_ignore(self.ignore)?
            .with_empty_folders(self.empty_folders)?
            .with_source(self.source))
    }
}

/// What either side says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "message", content = "is")]
pub enum Message {
    /// The agent introduces itself.
    Hello(Hello),
    /// The caller asks for a rehash.
    Rehash(Box<Request>),
    /// The caller's clock, in microseconds since the Unix epoch: what is the agent's?
    Clock {
        /// When this was sent, by the caller's clock.
        sent_us: u64,
    },
    /// The agent's clock.
    Time {
        /// The question's `sent_us`, repeated.
        sent_us: u64,
        /// When the question was read, by the agent's clock.
        received_us: u64,
        /// When this was written, by the agent's clock.
        answered_us: u64,
    },
    /// The caller wants the cluster for as long as it stays connected.
    Lock(LockRequest),
    /// It has it.
    Locked,
    /// Somebody else has it.
    Busy(Holder),
    /// The caller asks what the node is.
    Look(Box<Wanted>),
    /// What its programs and files say.
    Facts(Box<Raw>),
    /// So much is going to be read.
    Planned {
        /// Files.
        files: usize,
        /// Bytes.
        bytes: u64,
    },
    /// So much was read so far.
    Progress {
        /// Bytes.
        bytes: u64,
    },
    /// The rehash is done.
    Report {
        /// The report's canonical bytes, as text.
        report: String,
        /// The envelope's line, when the node signs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        envelope: Option<String>,
    },
    /// The folder could not be opened at all, or no snapshot in it settled on.
    Unreachable {
        /// Which finding that is.
        code: Code,
        /// Why.
        reason: String,
    },
    /// The request makes no sense to the agent.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Why a message could not be had.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// The other side is gone.
    #[error("the connection ended")]
    Ended,
    /// The other side is gone in the middle of a message.
    #[error("the connection ended in the middle of a message")]
    Cut,
    /// A line is longer than a message may be.
    #[error("a message is longer than {0} bytes")]
    TooLong(usize),
    /// A line is not a message.
    #[error("{line:?} is not a message: {why}")]
    Malformed {
        /// Its beginning.
        line: String,
        /// The parser's complaint.
        why: String,
    },
    /// The system refused.
    #[error("it could not be read: {0}")]
    Io(#[from] io::Error),
}

/// Writes one message and flushes.
pub fn write(out: &mut impl Write, message: &Message) -> io::Result<()> {
    let mut line = json::canonical(message);
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}

/// Reads one message of at most `max` bytes.
pub fn read(input: &mut impl BufRead, max: usize) -> Result<Message, MessageError> {
    let mut line = Vec::new();
    // One more than allowed, so that too long is told apart from just fitting.
    let mut limited = input.by_ref().take(max as u64 + 1);
    limited.read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Err(MessageError::Ended),
        Some(b'\n') => parse(&line),
        Some(_) if line.len() >= max => Err(MessageError::TooLong(max)),
        Some(last) => {
            line.push(last);
            // Text without an end is worth showing: it often is a complaint.
            match parse::<Message>(&line) {
                Err(e) if !line.starts_with(b"{") => Err(e),
                _ => Err(MessageError::Cut),
            }
        }
    }
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, MessageError> {
    json::from_slice(line).map_err(|e| MessageError::Malformed {
        line: String::from_utf8_lossy(&line[..line.len().min(120)]).into_owned(),
        why: e.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_and_nonsense_is_refused() {
        let said = [
            Message::Planned { files: 1, bytes: 2 },
            Message::Unreachable {
                code: Code::ReplicaUnreachable,
                reason: "a\nb".to_owned(),
            },
        ];
        let mut bytes = Vec::new();
        said.iter().for_each(|m| write(&mut bytes, m).unwrap());
        let mut input = &bytes[..];
        for message in &said {
            assert_eq!(read(&mut input, MAX_SMALL).unwrap(), *message);
        }
        let ended = read(&mut input, MAX_SMALL);
        assert!(matches!(ended, Err(MessageError::Ended)));

        let long = [vec![b'x'; 70_000], vec![b'\n']].concat();
        let whole = br#"{"message":"progress","is":{"bytes":1}}"#;
        type Is = fn(&MessageError) -> bool;
        let cases: [(&[u8], Is); 5] = [
            (&long, |e| matches!(e, MessageError::TooLong(_))),
            (b"Welcome to gx1!\n", |e| {
                e.to_string().contains("Welcome to gx1!")
            }),
            (b"sh: verify: not", |e| e.to_string().contains("sh: verify")),
            (&whole[..20], |e| matches!(e, MessageError::Cut)),
            (
                br#"{"message":"shutdown","is":{}}
"#,
                |e| matches!(e, MessageError::Malformed { .. }),
            ),
        ];
        for (bytes, is) in cases {
            let e = read(&mut &*bytes, MAX_SMALL).unwrap_err();
            assert!(is(&e), "{e}");
        }
        // Exactly as long as allowed is allowed.
        let line = [whole, &b"\n"[..]].concat();
        assert!(read(&mut &line[..], whole.len()).is_ok());
        assert!(matches!(
            read(&mut &line[..], whole.len() - 1),
            Err(MessageError::TooLong(_))
        ));
    }
}

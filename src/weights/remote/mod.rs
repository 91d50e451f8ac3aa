//! Rehashing on other machines, with the same code as on this one.
//!
//! Nothing here opens a socket. The system's ssh (or a command that the operator
//! names) is started, and `verify weights --agent` on the node talks over its
//! stdin and stdout:
//!
//! ```text
//! agent    hello     protocol, version, binary_sha256, boot_id, arch
//! caller   rehash    manifest, path, algorithm, context, earlier report
//! agent    planned, progress, progress, …
//! agent    report    the report's bytes, and their envelope when the node signs
//! caller   rehash    … the next checkpoint, or the end of its stdin
//! caller   clock     its time; the agent answers with its own (`time`)
//! caller   lock      the cluster it wants; the agent answers `locked` or `busy`
//! caller   look      which facts; the agent answers `progress`, …, `facts`
//! ```
//!
//! Each message is one line of JSON of bounded length ([`protocol`]). Version and
//! binary are looked at before anything is sent. While it hashes, the agent says
//! so every half second, read or not; silence therefore means that something is
//! wrong, and ends the session ([`session`]).
//!
//! What comes back is judged like a report from a stranger: it must be about the
//! manifest, path and run that were asked for, and follow from its own facts.
//! Whoever controls the node controls what it says of itself; see
//! docs/threat-model.md.

pub mod agent;
pub mod command;
pub mod elf;
pub mod failure;
mod lock;
mod look;
pub mod protocol;
pub mod push;
pub mod session;
pub mod ssh;

pub use agent::{AgentError, serve};
pub use command::{Reach, Spawn};
pub use failure::Failure;
pub use lock::{Holder, LockRequest};
pub use look::{NodeLook, look};
pub use push::Program;
pub use session::{Asked, Conversation, Node, Question, Told, ask};

//! The offline half of runseal: formats, digests, rehash, metrics, grading,
//! sealing and audit. No async runtime, no HTTP, no network socket.

pub mod codes;
pub mod digest;
pub mod durable;
pub mod event;
pub mod finding;
pub mod json;
pub mod metrics;
pub mod plan;
pub mod relpath;
pub mod response;
pub mod suite;
pub mod trace;
pub mod weights;
pub mod envelope;
pub mod finding;
pub mod json;
pub mod keys;
pub mod relpath;
pub mod scorer;
pub mod statement;

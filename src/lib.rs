//! The offline half of runseal: formats, digests, rehash, metrics, grading,
//! sealing and audit. No async runtime, no HTTP, no network socket.

pub mod answers;
pub mod audit;
pub mod bundle;
pub mod codes;
pub mod digest;
pub mod durable;
pub mod ecdsa_keys;
pub mod envelope;
pub mod event;
pub mod export;
pub mod finding;
pub mod grading;
pub mod json;
pub mod keys;
pub mod metrics;
pub mod node_facts;
pub mod oms;
pub mod plan;
pub mod record;
pub mod relpath;
pub mod response;
pub mod schedule;
pub mod schema;
pub mod scorer;
pub mod seal;
pub mod server_facts;
pub mod shipped;
pub mod statement;
pub mod suite;
pub mod suite_check;
pub mod trace;
pub mod weights;

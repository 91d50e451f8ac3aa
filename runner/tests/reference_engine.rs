//! The reference engine from outside: loading, bits, vectors and the server.

#[path = "reference_engine/synthetic.rs"]
mod synthetic;

#[path = "reference_engine/bits.rs"]
mod bits;
#[path = "reference_engine/client.rs"]
mod client;
#[path = "reference_engine/loading.rs"]
mod loading;
#[path = "reference_engine/overload.rs"]
mod overload;
#[path = "reference_engine/plain.rs"]
mod plain;
#[path = "reference_engine/protocol.rs"]
mod protocol;
#[path = "reference_engine/vectors.rs"]
mod vectors;

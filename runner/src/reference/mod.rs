//! The reference engine: a small deterministic Llama-architecture decoder behind an
//! OpenAI-compatible streaming server.
//!
//! It exists so that the first run on any laptop is a real one (real weights on disk, real
//! tokens over a real socket) and so that an auditor can *re-run* a reference record and
//! must get the same answers. For that it promises one thing above speed: **the same
//! checkpoint bytes and the same request give the same bits on every machine**.
//!
//! # Where the bits come from
//!
//! * All arithmetic is IEEE 754 binary32: additions, multiplications, divisions and square
//!   roots, which every conforming machine rounds alike. Multiply and add are never fused.
//!   `exp`, `sin`, `cos` and `pow` come from the `libm` crate, which is compiled from the
//!   same source everywhere, never from the system's mathematics library.
//! * Every sum in the engine (matrix product, attention score, weighted value, norm,
//!   softmax) has **one accumulator and runs in ascending index order**. The processor's
//!   vector units are filled *across* output elements, not along a sum, so the vector width
//!   of the machine cannot change a sum. See [`math`].
//! * One forward pass is one thread. Requests run beside each other on threads of their own
//!   and share nothing but the read-only weights.
//! * Splitting a prompt into blocks only groups rows; no sum crosses rows. Prefill in one
//!   piece, token by token or in odd pieces gives identical bits. See [`model`].
//!
//! # The layers
//!
//! [`safetensors`] reads and checks one file, [`checkpoint`] a directory in the Hugging Face
//! layout, [`config`] its `config.json`; [`model`] is the decoder over [`math`];
//! [`tokenizer`] maps messages to token ids and [`text`] tokens to text; [`sampler`] picks;
//! [`engine`] is the generation loop; [`api`] is the OpenAI dialect, [`sse`] its streamed
//! form, [`jobs`] the queue of running requests, [`metrics`] the counters, [`server`] the sockets and [`command`] the
//! process.

pub mod api;
pub mod checkpoint;
pub mod command;
pub mod config;
pub mod engine;
pub mod error;
pub mod jobs;
pub mod math;
pub mod metrics;
pub mod model;
pub mod safetensors;
pub mod sampler;
pub mod server;
pub mod sse;
pub mod text;
pub mod tokenizer;

pub use command::{EngineArgs, run_blocking};
pub use engine::{Engine, Finish, Generation, Outcome, Step};
pub use error::EngineError;
pub use server::{ServeOptions, serve};

/// What the engine calls itself in `system_fingerprint` and `/version`.
pub const FINGERPRINT: &str = concat!("runseal-reference-", env!("CARGO_PKG_VERSION"));

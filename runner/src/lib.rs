//! The live half of runseal: engines, load client, run. Everything that judges
//! is in the offline half, the crate `runseal`.

pub mod builtin;
pub mod client;
pub mod cluster;
pub mod engine_recipe;
mod event_line;
pub mod import;
pub mod plan_file;
pub mod recorder;
pub mod reference;
pub mod run;
pub mod selftest;

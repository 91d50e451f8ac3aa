//! The command line of `attest`: plans, keys, output, surroundings.

#[path = "../run_failures/support.rs"]
#[allow(dead_code)]
mod support;

mod cluster;
mod keys;
mod output;
mod plan;
mod surroundings;

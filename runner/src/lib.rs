//! The live half of runseal: everything that touches engines, the network and
//! the clock.

pub mod client;
pub mod recorder;

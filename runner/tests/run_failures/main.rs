//! Every way in which a run ends: a sealed record that names state and cause, or
//! a clear error; no process left; nothing half-written that reads as whole.

mod close;
mod evidence;
mod ranks;
mod scorer;
mod signals;
mod support;
mod weights;

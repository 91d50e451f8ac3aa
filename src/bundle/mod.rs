//! The evidence bundle (v1): its files, its index, and reading it from disk.

pub mod evidence;
pub mod files;
pub mod index;
pub mod names;
pub mod read;
pub mod servers;

pub use evidence::Evidence;
pub use index::{Files, Index};

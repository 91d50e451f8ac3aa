//! The one crate of the workspace in which `unsafe` is allowed, so that it can be
//! read in one sitting.
//!
//! Two things need it and nothing else is here:
//!
//! * [`sha256`]: SHA-256 with two independent streams taking turns on one core.
//!   A round of SHA-256 waits for the one before it, so a core that hashes one
//!   file leaves its SHA unit idle most of the time; a second file fills the gaps.
//! * [`pages`]: how many pages of a file are in the page cache already
//!   (`cachestat`), which neither the standard library nor rustix can ask.
//!
//! The interfaces are safe, for any arguments.

pub mod pages;
pub mod sha256;

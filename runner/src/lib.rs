//! Live half.

pub mod reference;

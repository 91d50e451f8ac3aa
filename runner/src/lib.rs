//! Live half.

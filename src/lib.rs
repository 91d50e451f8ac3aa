//! Offline half.

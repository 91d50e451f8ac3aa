//! Figures: exact arithmetic and the definitions of docs/metrics.md.

pub mod exact;

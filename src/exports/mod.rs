//! A record of ours in forms that other tools read. Each says less than the record: they
//! are exports, never the record itself.
//!
//! Everything comes from a derived record and no clock is read, so the same record gives
//! the same bytes; only a verdict ([`svr`]) has the time at which it was given.

mod csv;
mod eval;
pub mod svr;
mod test_result;
mod vllm;

use serde_json::Value;

use crate::record::RunRecord;

pub use csv::{cases as cases_csv, metrics as metrics_csv};
pub use eval::{Source, every_eval_ever};
pub use test_result::test_result;
pub use vllm::vllm_bench;

/// Why a record has no such form.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportsError {
    /// Nothing was measured that the form could hold.
    #[error("{0} (hint: --to csv takes every record)")]
    Nothing(&'static str),
}

/// Pretty JSON and a line end.
fn lines(value: &Value) -> Vec<u8> {
    let mut out = serde_json::to_vec_pretty(value).unwrap_or_default();
    out.push(b'\n');
    out
}

/// The nearest binary64 of a decimal text of ours.
fn number(text: &str) -> Option<f64> {
    text.parse().ok()
}

fn metric<'a>(record: &'a RunRecord, id: &str) -> Option<&'a str> {
    let m = record.metrics.iter().find(|m| m.name() == id)?;
    m.value.as_deref()
}

fn model(record: &RunRecord) -> &str {
    let target = record.model.checkpoints.iter().find(|c| c.role == "target");
    target.map_or("", |c| c.name.as_str())
}

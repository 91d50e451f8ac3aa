//! Figures: exact arithmetic and the definitions of docs/metrics.md.

pub mod exact;
pub mod rates;
pub mod recall;
pub mod serving;
pub mod sweep;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A derived figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Id of its definition in docs/metrics.md, with its version.
    pub id: String,
    /// Decimal string; absent when it cannot be measured.
    pub value: Option<String>,
    /// Unit.
    pub unit: String,
    /// Values that went in.
    pub n: u64,
    /// Estimator, for example `median (type 7)`.
    pub estimator: String,
    /// What it is out of.
    pub denominator: String,
    /// `recomputed` here; other labels come from imports.
    pub derivation: String,
    /// Who vouches for the events.
    pub witness: String,
    /// Why there is no value, or what to beware of.
    pub note: Option<String>,
    /// Stage of an open loop with several rates, from 1; absent where the figure is
    /// over the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<u32>,
    /// Batch of a sweep or card, from 1, in the order of suite.toml; absent elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// Repetition of that batch, from 0; absent where the figure is over all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rep: Option<u32>,
}

impl Metric {
    /// Its id, with the stage where there is one: unique within a record.
    pub fn name(&self) -> String {
        match (self.stage, self.batch, self.rep) {
            (Some(n), ..) => format!("{} @ stage {n}", self.id),
            (_, Some(n), Some(rep)) => format!("{} @ batch {n} rep {rep}", self.id),
            (_, Some(n), None) => format!("{} @ batch {n}", self.id),
            _ => self.id.clone(),
        }
    }
}

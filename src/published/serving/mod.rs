//! The serving-performance record: a few requests at one endpoint, each with its
//! outcome and duration, and figures over them.
//!
//! It is published as a page; the page's own JSON was not at hand. This is the form in
//! which such a page is transcribed: its groups, its names, and every figure as the
//! decimal text that the page shows, without separators between thousands.

mod bounds;
mod checks;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;

pub use checks::audit;

/// Value of [`ServingRecord::format`].
pub const FORMAT: &str = "serving-performance-record/v1";

/// The record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServingRecord {
    /// Always [`FORMAT`].
    pub format: String,
    /// Name of the run.
    pub id: String,
    /// Title.
    pub title: String,
    /// What was run, in a line.
    pub summary: String,
    /// `completed`, `failed` …
    pub status: String,
    /// Decimals that the page rounds its figures to; zeros at the end may be cut off.
    pub display_decimals: u32,
    /// When it began, RFC 3339, the seconds may be missing.
    pub started: String,
    /// When it ended.
    pub finished: String,
    /// Outcomes over all declared cases.
    pub outcomes: Outcomes,
    /// Completed transports out of the declared.
    pub transport: Transport,
    /// Figures by name.
    pub metrics: BTreeMap<MetricName, MetricValue>,
    /// Every declared case.
    pub cases: Vec<CaseLine>,
    /// What served, and how it was asked.
    pub deployment: Deployment,
    /// What the record does not show.
    pub limitations: Vec<String>,
    /// Digests of what judged; null where the page says that it is not recorded.
    pub provenance: BTreeMap<String, Option<Sha256Digest>>,
    /// Digest of the comparison conditions, where they were established.
    pub comparison_conditions: Option<Sha256Digest>,
}

/// Outcomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Outcomes {
    /// Declared cases.
    pub declared: u64,
    /// Passes, whoever answered.
    pub observed_passes: u64,
    /// Passes known to come from the model named.
    pub verified_passes: u64,
    /// Cases by outcome.
    pub counts: BTreeMap<Outcome, u64>,
}

/// Outcome of a case.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Graded right.
    Pass,
    /// Graded wrong.
    Fail,
    /// Not graded.
    Ungraded,
}

/// Transports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transport {
    /// Completed.
    pub completed: u64,
    /// Declared.
    pub declared: u64,
}

/// Figures that such a record has.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum MetricName {
    /// Completion tokens over the batch, tokens/s.
    CompletionThroughput,
    /// Median time to the first generated output, ms.
    FirstGeneratedMedian,
    /// Median time to the first final content, ms.
    FirstContentMedian,
    /// Median duration of a request, ms.
    RequestCompletionMedian,
    /// 95th percentile of the durations, linear interpolation, ms.
    RequestCompletionP95,
    /// Median time between two chunks of a stream, ms.
    ChunkIntervalMedian,
    /// Time of the whole batch, s.
    BatchDuration,
}

impl MetricName {
    /// As in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::CompletionThroughput => "completion_throughput",
            Self::FirstGeneratedMedian => "first_generated_median",
            Self::FirstContentMedian => "first_content_median",
            Self::RequestCompletionMedian => "request_completion_median",
            Self::RequestCompletionP95 => "request_completion_p95",
            Self::ChunkIntervalMedian => "chunk_interval_median",
            Self::BatchDuration => "batch_duration",
        }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::CompletionThroughput => "tokens/s",
            Self::BatchDuration => "s",
            _ => "ms",
        }
    }
}

/// A figure as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricValue {
    /// Decimal text.
    #[schemars(regex(pattern = r"^[0-9]+(\.[0-9]+)?$"))]
    pub value: String,
    /// Samples that the page says went in.
    pub samples: u64,
}

/// A case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaseLine {
    /// Its id.
    pub id: String,
    /// What was observed.
    pub outcome: Outcome,
    /// What is attributed to the model named.
    pub primary_outcome: Outcome,
    /// Stage of a failure, where it is recorded.
    pub failure_stage: Option<String>,
    /// Duration in ms, decimal text, where it is recorded.
    #[schemars(regex(pattern = r"^[0-9]+(\.[0-9]+)?$"))]
    pub duration_ms: Option<String>,
    /// Completion tokens, where they are recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<u64>,
}

/// What served, and how it was asked. Nothing here can be derived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Deployment {
    /// Requests at once that the client allows.
    pub client_concurrency: u64,
    /// Context limit in tokens.
    pub configured_context: Option<u64>,
    /// Request slots of the server.
    pub request_slots: Option<u64>,
    /// Tokens in the key-value pool.
    pub kv_pool_tokens: Option<u64>,
    /// Input tokens aimed at.
    pub input_target_tokens: Option<u64>,
    /// Smallest and largest input that the server counted.
    pub input_observed_tokens: Option<[u64; 2]>,
    /// Overlap of requests that was observed.
    pub peak_overlap: Option<u64>,
    /// Everything else, by name.
    pub stated: BTreeMap<String, String>,
}

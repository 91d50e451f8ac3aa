//! The inference-throughput record of schema version 3: cells of contexts and requests
//! at once, each the mean of the rates of a few batches.

mod checks;
mod source;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;

pub use checks::audit;

/// Value of [`ThroughputRecord::schema_version`].
pub const VERSION: u64 = 3;

/// A text in the languages of the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Texts {
    /// English.
    pub en: String,
    /// Turkish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tr: Option<String>,
}

/// The record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThroughputRecord {
    /// Always 3.
    pub schema_version: u64,
    /// `inference`.
    pub kind: String,
    /// The record's name.
    pub id: String,
    /// Title.
    pub title: Texts,
    /// Second line of the title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subtitle: Option<Texts>,
    /// Kind of work, for readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<Texts>,
    /// What was done, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<Texts>,
    /// `published`.
    pub status: String,
    /// Number of cells.
    pub item_count: u64,
    /// Number of measured requests.
    pub response_count: u64,
    /// Name of the run.
    pub run_id: String,
    /// When the run was over, RFC 3339.
    pub run_completed_at: String,
    /// When the record was made, RFC 3339.
    pub generated_at: String,
    /// Files that the record was made from.
    pub sources: Vec<Source>,
    /// How the figures came to be.
    pub method: Texts,
    /// What the record does not show.
    pub caveats: Vec<Texts>,
    /// What served.
    pub profile: Profile,
    /// The measurement.
    pub cells: Vec<Cell>,
    /// Sums over the cells.
    pub totals: Totals,
}

/// A file that the record was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Source {
    /// Its name, without a folder.
    pub name: String,
    /// Its digest.
    pub sha256: Sha256Digest,
}

/// What served, and how it was asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    /// Id of the model.
    pub model_id: String,
    /// Name of the model.
    pub model_name: String,
    /// Revision of the model.
    pub model_revision: Option<String>,
    /// Ranks of tensor parallelism.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor_parallel: Option<u64>,
    /// Most requests at once that the server takes, or that were sent.
    pub max_concurrency: u64,
    /// Context limit in tokens.
    pub context_limit_tokens: Option<u64>,
    /// Type of the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_dtype: Option<String>,
    /// Type of the key-value cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_dtype: Option<String>,
    /// Speculative decoding, where there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculative_method: Option<String>,
    /// Reasoning effort asked for.
    pub reasoning_effort: Option<String>,
    /// Sampling temperature.
    pub temperature: f64,
    /// Output tokens of every request.
    pub output_tokens: u64,
    /// Whether the end of an answer was ignored, so that every request gives them all.
    pub ignore_eos: bool,
}

/// One context length with one number of requests at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cell {
    /// Input tokens aimed at.
    pub context_tokens: u64,
    /// Requests at once.
    pub concurrency: u64,
    /// Batches.
    pub repetitions: u64,
    /// Mean of the batches' rates, tokens/s.
    pub aggregate_tokens_per_second: f64,
    /// Mean rate of one request, tokens/s.
    pub mean_request_tokens_per_second: f64,
    /// Mean time to a first token, seconds; which first is not said.
    pub mean_ttft_seconds: f64,
    /// Rate of each batch, tokens/s.
    pub run_tokens_per_second: Vec<f64>,
}

/// Sums over the cells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Batches.
    pub batches: u64,
    /// Measured requests.
    pub requests: u64,
    /// Output tokens of the measured requests.
    pub completion_tokens: u64,
    /// Warm-up requests that no figure has in it.
    pub excluded_warmup_requests: u64,
}

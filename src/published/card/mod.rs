//! The recipe card of version 1: one model on one kind of machine, in several
//! configurations, a few figures each.

mod checks;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use checks::audit;

/// The card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecipeCard {
    /// Always 1.
    pub version: u64,
    /// Name of the model.
    pub title: String,
    /// Which form of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// In a few sentences.
    pub summary: String,
    /// Where the checkpoint is published.
    pub model: String,
    /// Kind of machine.
    pub hardware: String,
    /// What it runs on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
    /// Id of the configuration to start from.
    pub default_config: String,
    /// The configurations.
    pub configs: Vec<Config>,
}

/// One configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Config {
    /// Its id.
    pub id: String,
    /// Its name.
    pub label: String,
    /// Machines.
    pub nodes: u64,
    /// Decode rates by kind of prompt, tokens/s; null where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<BTreeMap<String, Option<f64>>>,
    /// Prefill rates by context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<Vec<Prefill>>,
    /// Rates of several streams together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Vec<Streams>>,
    /// Context limit, tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_context: Option<u64>,
    /// Key-value pool, tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_pool_tokens: Option<u64>,
    /// Most requests at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u64>,
    /// Recall and the like.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quality: Vec<Quality>,
    /// What is special about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
    /// False when the card itself sets it apart from the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparable: Option<bool>,
    /// Why it does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_comparable: Vec<String>,
    /// Codes of limitations, in cards made from records of ours. Not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limitations: Option<serde_json::Value>,
    /// Figures that are missing, and why. Not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<serde_json::Value>,
    /// Run and metric of each figure, in cards made from records of ours. Not looked at: the
    /// record itself is what to audit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<serde_json::Value>,
}

/// Prefill at a context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prefill {
    /// Input tokens.
    pub context: u64,
    /// Tokens/s.
    pub tps: Option<f64>,
}

/// Several streams together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Streams {
    /// Streams at once.
    pub streams: u64,
    /// Tokens/s of all together.
    pub aggregate_tps: Option<f64>,
}

/// A figure in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Quality {
    /// What was looked at.
    pub name: String,
    /// For example `6/6 up to 128k`.
    pub value: String,
}

//! What a file is, told by its content and never by its name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A kind of record that is no bundle of our own.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Not strict JSON.
    Unreadable,
    /// A signed DSSE envelope, or several in one JSON Lines file.
    Envelope,
    /// The inference-throughput record of schema version 3.
    ThroughputV3,
    /// The serving-performance record, as transcribed here.
    ServingV1,
    /// The recipe card of version 1.
    RecipeCardV1,
    /// The result of `vllm bench serve`.
    VllmBench,
    /// The result of llama-benchy.
    LlamaBenchy,
    /// A GuideLLM report.
    Guidellm,
    /// AIPerf's `profile_export_aiperf.json`.
    Aiperf,
}

impl Kind {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "not strict JSON",
            Self::Envelope => "signed envelope",
            Self::ThroughputV3 => "inference-throughput record, schema version 3",
            Self::ServingV1 => "serving-performance record, version 1",
            Self::RecipeCardV1 => "recipe card, version 1",
            Self::VllmBench => "vllm bench serve result",
            Self::LlamaBenchy => "llama-benchy result",
            Self::Guidellm => "GuideLLM report",
            Self::Aiperf => "AIPerf export",
        }
    }
}

/// Why a file is of no kind that is known here.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnknownKind {
    /// Nothing in it says what it is.
    #[error(
        "it is JSON of no kind that is known here (hint: known are our bundles' folders, DSSE envelopes and *.intoto.jsonl, \
         records of schemaVersion 3, serving-performance records, recipe cards of version 1, and the results of \
         vllm bench serve, llama-benchy, GuideLLM and AIPerf)"
    )]
    Nothing,
    /// It says that it is of another version.
    #[error("it says {field} {value}, which is not known here (hint: {known})")]
    Version {
        /// The field.
        field: &'static str,
        /// What it says.
        value: String,
        /// What would be known.
        known: &'static str,
    },
}

/// Tells what a JSON document is.
pub fn of(value: &Value) -> Result<Kind, UnknownKind> {
    let has = |keys: &[&str]| keys.iter().all(|k| value.get(k).is_some());
    let version = |field, known| UnknownKind::Version {
        field,
        value: value.get(field).map(Value::to_string).unwrap_or_default(),
        known,
    };
    if has(&["payload", "payloadType", "signatures"]) || value.get("dsseEnvelope").is_some() {
        return Ok(Kind::Envelope);
    }
    if let Some(format) = value.get("format").and_then(Value::as_str) {
        if format == super::serving::FORMAT {
            return Ok(Kind::ServingV1);
        }
        if format.starts_with("serving-performance-record/") {
            return Err(version("format", super::serving::FORMAT));
        }
    }
    if value.get("schemaVersion").is_some() && has(&["cells"]) {
        return match value["schemaVersion"].as_u64() {
            Some(3) => Ok(Kind::ThroughputV3),
            _ => Err(version("schemaVersion", "3 is")),
        };
    }
    if has(&["version", "configs"]) {
        return match value["version"].as_u64() {
            Some(1) => Ok(Kind::RecipeCardV1),
            _ => Err(version("version", "1 is")),
        };
    }
    foreign(value).ok_or(UnknownKind::Nothing)
}

/// Results of other programs, by the fields that only they have together.
fn foreign(value: &Value) -> Option<Kind> {
    let has = |keys: &[&str]| keys.iter().all(|k| value.get(k).is_some());
    if has(&[
        "duration",
        "completed",
        "total_input_tokens",
        "output_throughput",
    ]) {
        return Some(Kind::VllmBench);
    }
    if has(&["latency_mode", "benchmarks"]) {
        return Some(Kind::LlamaBenchy);
    }
    if let Some(first) = value.get("benchmarks").and_then(|b| b.get(0))
        && first.get("metrics").is_some()
    {
        return Some(Kind::Guidellm);
    }
    let unit = |k: &str| value.get(k).is_some_and(|m| m.get("unit").is_some());
    (unit("request_throughput") && unit("request_latency")).then_some(Kind::Aiperf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn content_tells_the_kind() {
        for (value, want) in [
            (
                json!({"payload": "", "payloadType": "", "signatures": []}),
                Kind::Envelope,
            ),
            (json!({"schemaVersion": 3, "cells": []}), Kind::ThroughputV3),
            (json!({"version": 1, "configs": []}), Kind::RecipeCardV1),
            (
                json!({"format": "serving-performance-record/v1"}),
                Kind::ServingV1,
            ),
        ] {
            assert_eq!(of(&value), Ok(want), "{value}");
        }
        for value in [
            json!({}),
            json!([]),
            json!(null),
            json!({"schemaVersion": 4, "cells": []}),
            json!({"version": 2, "configs": []}),
            json!({"format": "serving-performance-record/v9"}),
        ] {
            let why = of(&value).unwrap_err().to_string();
            assert!(why.contains("hint:"), "{why}");
        }
    }
}

//! What servers say of themselves, read from the raw documents that a run kept.
//!
//! Pure: bytes in, typed facts out, so that whoever seals and whoever audits read
//! the same. One file per engine family lists where each fact stands; nothing is
//! guessed from a document that was not obtained, and an absent fact is absent,
//! never zero.

mod llamacpp;
pub mod prometheus;
mod reference;
mod sglang;
pub mod traffic;
mod vllm;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json;
use prometheus::Series;

/// A kind of server whose documents can be read.
pub struct Family {
    /// Engine recipe of the plan that starts such servers.
    pub recipe: &'static str,
    /// Paths of the documents that are kept.
    pub documents: &'static [&'static str],
    /// Facts in the order of the record: name, and places in order of preference.
    pub facts: &'static [(&'static str, &'static [Place])],
    /// The prompt-token counter leaves out tokens that came from a cache.
    pub prompt_excludes_cached: bool,
}

/// Where a fact stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A JSON pointer into a document.
    Json(&'static str, &'static str),
    /// Sum over the series of a metric of `/metrics`.
    Metric(&'static str),
    /// A label of the only series of a metric of `/metrics`.
    Label(&'static str, &'static str),
}

/// Path of the counters and gauges.
pub const METRICS: &str = "/metrics";

/// The families that this version reads.
pub const FAMILIES: [&Family; 4] = [
    &reference::FAMILY,
    &sglang::FAMILY,
    &vllm::FAMILY,
    &llamacpp::FAMILY,
];

/// The family of an engine recipe.
pub fn family(recipe: &str) -> Option<&'static Family> {
    // Several ways to start one kind of server.
    let recipe = match recipe {
        "llama-cpp" => "llama.cpp",
        "vllm-ray" | "vllm-mentat" => "vllm",
        other => other,
    };
    FAMILIES.into_iter().find(|f| f.recipe == recipe)
}

/// A value as a server states it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum FactValue {
    /// A whole number up to 2^53.
    Count(u64),
    /// Yes or no.
    Flag(bool),
    /// Any other number or text, as written.
    Text(String),
}

/// One fact, before and after the measurement. Absent: not obtained or not stated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerFact {
    /// Kebab-case name, docs/metrics.md.
    pub name: String,
    /// Document and place in it.
    pub source: String,
    /// Before the first measured request.
    pub before: Option<FactValue>,
    /// After the last one.
    pub after: Option<FactValue>,
}

impl ServerFact {
    /// Both values, where both are counts.
    pub fn counts(&self) -> Option<(u64, u64)> {
        match (&self.before, &self.after) {
            (Some(FactValue::Count(a)), Some(FactValue::Count(b))) => Some((*a, *b)),
            _ => None,
        }
    }
}

/// The documents of one moment that came with status 200, parsed as far as they can be.
pub struct Documents {
    json: BTreeMap<String, Value>,
    series: Vec<Series>,
}

impl Documents {
    /// Reads raw bytes by path; what cannot be read states nothing.
    pub fn read<'a>(raw: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut out = Documents {
            json: BTreeMap::new(),
            series: Vec::new(),
        };
        for (path, bytes) in raw {
            if path == METRICS {
                out.series = prometheus::parse(bytes).unwrap_or_default();
            } else if let Ok(value) = json::parse(bytes) {
                out.json.insert(path.to_owned(), value);
            }
        }
        out
    }

    fn value(&self, place: &Place) -> Option<FactValue> {
        match place {
            Place::Json(path, pointer) => of_json(self.json.get(*path)?.pointer(pointer)?),
            Place::Metric(name) => prometheus::total(&self.series, name),
            Place::Label(name, label) => prometheus::label(&self.series, name, label),
        }
    }
}

impl Place {
    /// As it stands in the record.
    pub fn text(&self) -> String {
        match self {
            Place::Json(path, pointer) => format!("{path}#{pointer}"),
            Place::Metric(name) => format!("{METRICS} {name}"),
            Place::Label(name, label) => format!("{METRICS} {name}{{{label}}}"),
        }
    }
}

fn of_json(value: &Value) -> Option<FactValue> {
    match value {
        Value::Bool(b) => Some(FactValue::Flag(*b)),
        Value::Number(n) => Some(match n.as_u64() {
            Some(n) if n <= json::MAX_INTEGER => FactValue::Count(n),
            _ => FactValue::Text(String::from_utf8_lossy(&json::canonical(value)).into_owned()),
        }),
        Value::String(s) => Some(FactValue::Text(s.clone())),
        _ => None,
    }
}

/// The facts of a family. One place serves both moments: the first that states
/// something at either.
pub fn facts(family: &Family, before: &Documents, after: &Documents) -> Vec<ServerFact> {
    let read = |(name, places): &(&str, &[Place])| {
        let states = |p: &&Place| before.value(p).is_some() || after.value(p).is_some();
        let place = places.iter().find(states).or(places.first())?;
        Some(ServerFact {
            name: (*name).to_owned(),
            source: place.text(),
            before: before.value(place),
            after: after.value(place),
        })
    };
    family.facts.iter().filter_map(read).collect()
}

/// True when a JSON document states a key or password of its server: such a document
/// is not kept. Text that is not JSON states none.
pub fn states_a_secret(bytes: &[u8]) -> bool {
    // Leniently: what only the strict reader refuses is kept all the same.
    serde_json::from_slice::<Value>(bytes).is_ok_and(|v| secret_in(&v))
}

fn secret_in(value: &Value) -> bool {
    const NAMES: [&str; 4] = ["api_key", "password", "secret", "hf_token"];
    match value {
        Value::Object(map) => map.iter().any(|(key, v)| {
            let key = key.to_ascii_lowercase();
            let named = NAMES.iter().any(|n| key.contains(n));
            let stated = match v {
                Value::String(s) => !s.is_empty(),
                Value::Array(items) => !items.is_empty(),
                _ => false,
            };
            (named && stated) || secret_in(v)
        }),
        Value::Array(items) => items.iter().any(secret_in),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_states_a_key_is_recognised() {
        let says = |text: &str| states_a_secret(text.as_bytes());
        assert!(says(r#"{"server_args":{"api_key":"sk-1"}}"#));
        assert!(says(r#"[{"ssl_keyfile_password":"x"}]"#));
        assert!(says(r#"{"api_key":["a"]}"#));
        assert!(!says(r#"{"api_key":null,"admin_api_key":"","x":1}"#));
        assert!(!says("api_key 1"));
    }

    #[test]
    fn families_are_told_apart_by_recipe() {
        for f in FAMILIES {
            assert_eq!(family(f.recipe).map(|g| g.documents), Some(f.documents));
            let names: std::collections::BTreeSet<_> = f.facts.iter().map(|x| x.0).collect();
            assert_eq!(names.len(), f.facts.len(), "{}", f.recipe);
            assert!(f.facts.iter().all(|(_, places)| !places.is_empty()));
        }
        assert!(family("unknown").is_none());
    }
}

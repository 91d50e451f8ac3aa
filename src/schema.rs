//! JSON Schemas of our formats, generated from the Rust types into `schemas/`.
//!
//! `schemas/` is committed and compiled in; a test regenerates it and fails when
//! it drifts from the types. Documents are validated when sealed and when audited.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use jsonschema::Validator;
use schemars::{JsonSchema, schema_for};
use serde_json::Value;

use crate::bundle::files::{
    AddressFile, EngineFile, GradeLine, ImageFile, NodeFile, ServerFile, TelemetryLine,
};
use crate::bundle::index::{Files, Index};
use crate::codes::Code;
use crate::event::{EventLine, Header};
use crate::finding::Finding;
use crate::plan::RunPlan;
use crate::record::RecordStatement;
use crate::response::{Response, RunHeader};
use crate::suite::{Case, SuiteToml};
use crate::weights::{InventoryFile, Manifest, ReplicaReport};

/// Title prefix and file name of every schema, with its generator.
type Generator = fn() -> Value;

/// All schemas: file stem and generator.
pub const ALL: &[(&str, Generator)] = &[
    ("record", generate::<RecordStatement>),
    ("plan", generate::<RunPlan>),
    ("index", generate::<Index>),
    ("manifest", generate::<Manifest>),
    ("replica", generate::<ReplicaReport>),
    ("node", generate::<NodeFile>),
    ("image", generate::<ImageFile>),
    ("engine", generate::<EngineFile>),
    ("server", generate::<ServerFile>),
    ("addresses", generate::<AddressFile>),
    ("suite", generate::<SuiteToml>),
    ("case", generate::<Case>),
    ("events-header", generate::<Header>),
    ("event", generate::<EventLine>),
    ("run-header", generate::<RunHeader>),
    ("response", generate::<Response>),
    ("grade", generate::<GradeLine>),
    ("telemetry", generate::<TelemetryLine>),
    ("verdict", generate::<crate::audit::AuditReport>),
    (
        "published-throughput",
        generate::<crate::published::throughput::ThroughputRecord>,
    ),
    (
        "published-serving",
        generate::<crate::published::serving::ServingRecord>,
    ),
    (
        "published-card",
        generate::<crate::published::card::RecipeCard>,
    ),
    (
        "published-verdict",
        generate::<crate::published::report::PublishedReport>,
    ),
    ("comparison", generate::<crate::comparison::Comparison>),
    ("policy", generate::<crate::policy::file::PolicyToml>),
    ("cluster", generate::<InventoryFile>),
];

fn generate<T: JsonSchema>() -> Value {
    schema_for!(T).to_value()
}

/// The text of a schema file: pretty JSON with sorted keys and a final newline.
pub fn text(schema: &Value) -> String {
    let sorted: Value =
        serde_json::from_slice(&crate::json::canonical(schema)).unwrap_or(Value::Null);
    let mut text = serde_json::to_string_pretty(&sorted).unwrap_or_default();
    text.push('\n');
    text
}

/// Compiled schemas; compiling one costs more than validating with it.
static VALIDATORS: LazyLock<BTreeMap<&str, Result<Validator, String>>> = LazyLock::new(|| {
    ALL.iter()
        .map(|(stem, generate)| {
            (
                *stem,
                jsonschema::validator_for(&generate()).map_err(|e| e.to_string()),
            )
        })
        .collect()
});

/// Validates a document; the first few things that do not match.
pub fn validate(stem: &str, document: &Value) -> Result<(), Vec<String>> {
    let validator = match VALIDATORS.get(stem) {
        Some(Ok(validator)) => validator,
        Some(Err(e)) => return Err(vec![format!("the schema itself is broken: {e}")]),
        None => return Err(vec![format!("there is no schema {stem}")]),
    };
    let errors: Vec<String> = validator
        .iter_errors(document)
        .take(8)
        .map(|e| format!("{}: {e}", e.instance_path()))
        .collect();
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

/// Schema of a JSON document in a bundle, by its path.
fn stem_of(path: &str) -> Option<&'static str> {
    match path.split_once('/') {
        None => match path {
            "plan.json" => Some("plan"),
            "image.json" => Some("image"),
            "addresses.json" => Some("addresses"),
            _ => None,
        },
        Some(("checkpoints", name)) if name.ends_with(".manifest.json") => Some("manifest"),
        Some(("replicas", name)) if name.ends_with(".json") => Some("replica"),
        Some(("nodes", name)) if name.ends_with(".json") => Some("node"),
        Some(("engine", name)) if name.ends_with(".json") => Some("engine"),
        Some(("server", name)) if name.ends_with(".json") => Some("server"),
        _ => None,
    }
}

/// Validates the JSON documents of a bundle (`schema-invalid`).
pub fn check_files(files: &Files) -> Vec<Finding> {
    let mut out = Vec::new();
    for (path, bytes) in files {
        let name = path.to_string();
        let Some(stem) = stem_of(&name) else {
            continue;
        };
        // Bytes that are no JSON are another finding, of the parser.
        let Ok(value) = crate::json::parse(bytes) else {
            continue;
        };
        for why in validate(stem, &value).err().unwrap_or_default() {
            out.push(Finding::new(Code::SchemaInvalid, &name, why));
        }
    }
    out
}

//! JSON Schemas of our formats, generated from the Rust types into `schemas/`.
//!
//! `schemas/` is committed and compiled in; a test regenerates it and fails when
//! it drifts from the types. Documents are validated when sealed and when audited.

use schemars::{JsonSchema, schema_for};
use serde_json::Value;

use crate::bundle::files::{EngineFile, GradeLine, ImageFile, NodeFile, TelemetryLine};
use crate::bundle::index::Index;
use crate::event::{EventLine, Header};
use crate::plan::RunPlan;
use crate::record::RecordStatement;
use crate::response::{Response, RunHeader};
use crate::suite::{Case, SuiteToml};
use crate::weights::{Manifest, ReplicaReport};

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
    ("suite", generate::<SuiteToml>),
    ("case", generate::<Case>),
    ("events-header", generate::<Header>),
    ("event", generate::<EventLine>),
    ("run-header", generate::<RunHeader>),
    ("response", generate::<Response>),
    ("grade", generate::<GradeLine>),
    ("telemetry", generate::<TelemetryLine>),
    ("verdict", generate::<crate::audit::AuditReport>),
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

/// Validates a document; the first few things that do not match.
pub fn validate(stem: &str, document: &Value) -> Result<(), Vec<String>> {
    let Some((_, generate)) = ALL.iter().find(|(s, _)| *s == stem) else {
        return Err(vec![format!("there is no schema {stem}")]);
    };
    let validator = jsonschema::validator_for(&generate())
        .map_err(|e| vec![format!("the schema itself is broken: {e}")])?;
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

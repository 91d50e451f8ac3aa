//! The signed record against the derived one, field by field.

use serde_json::Value;

use super::Figure;
use crate::bundle::Evidence;
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::event::Event;
use crate::finding::Finding;
use crate::record::subjects::{INDEX_SUBJECT, subjects};
use crate::record::{RecordStatement, RunRecord};

/// Codes that this comparison gives.
pub const CODES: &[Code] = &[
    Code::StatusNotReproduced,
    Code::TaintNotReproduced,
    Code::CountNotReproduced,
    Code::MetricNotReproduced,
    Code::CaseNotReproduced,
    Code::IntegrityNotReproduced,
    Code::LimitationNotReproduced,
    Code::SubjectNotReproduced,
    Code::FieldNotReproduced,
    Code::SignerUnexpected,
];

/// Compares a signed statement with the record derived from the evidence.
pub fn record(signed: &RecordStatement, derived: &RunRecord, index: Sha256Digest) -> Vec<Finding> {
    let mut out = Vec::new();
    // Another index than the one at hand has a finding of its own.
    let index = signed
        .subject
        .iter()
        .find(|s| s.name == INDEX_SUBJECT)
        .map_or(index, |s| s.digest.sha256);
    let want = serde_json::to_value(subjects(derived, index)).unwrap_or_default();
    let have = serde_json::to_value(&signed.subject).unwrap_or_default();
    differences("subject", &have, &want, &mut |path, have, want| {
        out.push(finding(Code::SubjectNotReproduced, path, have, want));
    });
    let want = serde_json::to_value(derived).unwrap_or_default();
    let have = serde_json::to_value(&signed.predicate).unwrap_or_default();
    differences("", &have, &want, &mut |path, have, want| {
        out.push(finding(code_of(path), path, have, want));
    });
    out
}

fn finding(code: Code, path: &str, have: &Value, want: &Value) -> Finding {
    let show = |v: &Value| match v {
        Value::Null => "(absent)".to_owned(),
        Value::String(s) => s.clone(),
        other => other.to_string(),
    };
    Finding::new(code, path, "the record says otherwise than the evidence")
        .values(show(want), show(have))
}

/// Which kind of claim a field is.
fn code_of(path: &str) -> Code {
    let starts = |p: &str| {
        path == p || path.starts_with(&format!("{p}.")) || path.starts_with(&format!("{p}["))
    };
    let table = [
        ("run.status", Code::StatusNotReproduced),
        ("run.state", Code::StatusNotReproduced),
        ("run.cause", Code::StatusNotReproduced),
        ("run.detail", Code::StatusNotReproduced),
        ("run.taints", Code::TaintNotReproduced),
        ("transport", Code::CountNotReproduced),
        ("grades", Code::CountNotReproduced),
        ("attribution", Code::CountNotReproduced),
        ("metrics", Code::MetricNotReproduced),
        ("cases", Code::CaseNotReproduced),
        ("integrity", Code::IntegrityNotReproduced),
        ("model.checkpoints", Code::IntegrityNotReproduced),
        ("limitations", Code::LimitationNotReproduced),
    ];
    table
        .iter()
        .find(|(p, _)| starts(p))
        .map_or(Code::FieldNotReproduced, |(_, code)| *code)
}

/// Calls `report` for every leaf at which two values differ. Arrays of different
/// lengths are compared element by element, the surplus against null.
fn differences(path: &str, a: &Value, b: &Value, report: &mut dyn FnMut(&str, &Value, &Value)) {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            let keys: std::collections::BTreeSet<&String> = x.keys().chain(y.keys()).collect();
            for key in keys {
                let next = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                let null = Value::Null;
                let (l, r) = (x.get(key), y.get(key));
                // A present null and an absent key are different documents.
                if l.is_some() != r.is_some() {
                    report(&next, l.unwrap_or(&null), r.unwrap_or(&null));
                } else {
                    differences(&next, l.unwrap_or(&null), r.unwrap_or(&null), report);
                }
            }
        }
        (Value::Array(x), Value::Array(y)) => {
            for i in 0..x.len().max(y.len()) {
                let next = format!("{path}[{i}]");
                match (x.get(i), y.get(i)) {
                    (Some(l), Some(r)) => differences(&next, l, r, report),
                    (l, r) => report(&next, l.unwrap_or(&Value::Null), r.unwrap_or(&Value::Null)),
                }
            }
        }
        _ if a == b => {}
        _ => report(path, a, b),
    }
}

/// The signer that the payload names is the key that the run declared before its
/// first request.
pub fn signer_of_log(signed: &RecordStatement, evidence: &Evidence) -> Option<Finding> {
    let declared = evidence.events.iter().find_map(|l| match &l.event {
        Event::Declare { keyid, .. } => Some(keyid.as_str()),
        _ => None,
    });
    let operators: Vec<&str> = signed
        .predicate
        .provenance
        .signers
        .iter()
        .filter(|s| s.role == "operator")
        .map(|s| s.keyid.as_str())
        .collect();
    (declared != operators.first().copied() || operators.len() != 1).then(|| {
        Finding::new(
            Code::SignerUnexpected,
            "provenance.signers",
            "the operator who signs is not the one that the run declared",
        )
        .values(declared.unwrap_or("(absent)"), operators.join(", "))
    })
}

/// Figures that rest on grades or on what is flagged about an answer.
const FROM_ANSWERS: [&str; 4] = [
    "goodput/v1",
    "first-content-median/v1",
    "recall/v1",
    "recall-lower-bound/v1",
];

/// Figures side by side. `regraded` is false when answers or cases were not
/// there to grade again: what rests on them is then only said.
pub fn figures(signed: &RunRecord, derived: &RunRecord, regraded: bool) -> Vec<Figure> {
    derived
        .metrics
        .iter()
        .map(|m| {
            let stated = signed.metrics.iter().find(|s| s.name() == m.name());
            let only_said = !regraded && FROM_ANSWERS.contains(&m.id.as_str());
            Figure {
                id: m.name(),
                stated: stated.and_then(|s| s.value.clone()),
                recomputed: m.value.clone().filter(|_| !only_said),
                unit: m.unit.clone(),
                n: m.n,
                derivation: match only_said {
                    true => "stated".to_owned(),
                    false => m.derivation.clone(),
                },
                witness: m.witness.clone(),
                note: m.note.clone(),
            }
        })
        .collect()
}

/// Figures when nothing could be derived: only said.
pub fn stated_figures(signed: &RunRecord) -> Vec<Figure> {
    signed
        .metrics
        .iter()
        .map(|m| Figure {
            id: m.name(),
            stated: m.value.clone(),
            recomputed: None,
            unit: m.unit.clone(),
            n: m.n,
            derivation: "stated".into(),
            witness: m.witness.clone(),
            note: m.note.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_kind_of_difference_is_reported_once() {
        let a = json!({"x": 1, "y": [1, 2], "z": {"k": null}});
        let b = json!({"x": 2, "y": [1], "z": {}});
        let mut paths = Vec::new();
        differences("", &a, &b, &mut |p, _, _| paths.push(p.to_owned()));
        assert_eq!(paths, ["x", "y[1]", "z.k"]);
        assert_eq!(code_of("grades.pass"), Code::CountNotReproduced);
        assert_eq!(code_of("run.cause"), Code::StatusNotReproduced);
        assert_eq!(code_of("run.started"), Code::FieldNotReproduced);
    }
}

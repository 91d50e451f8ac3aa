//! in-toto test-result v0.1. It has one axis, passed, warned or failed; a record has
//! three. Transport, attribution and integrity therefore stand in `configuration`, where
//! a reader of this form still finds them.

use serde_json::{Value, json};

use crate::json;
use crate::record::{RecordStatement, RunRecord, Status};
use crate::scorer::Grade;
use crate::statement::STATEMENT_TYPE;
use crate::trace::Transport;

/// Its predicate type.
pub const PREDICATE: &str = "https://in-toto.io/attestation/test-result/v0.1";

/// The statement's payload, to be signed or shown. The subjects are the record's own.
pub fn test_result(record: &RunRecord, signed: &RecordStatement) -> Vec<u8> {
    let mut lists: [Vec<String>; 3] = Default::default();
    for c in &record.cases {
        let name = match record.requests.repetitions {
            0 | 1 => c.case.clone(),
            _ => format!("{} rep {}", c.case, c.rep),
        };
        let list = match (&c.grade, c.transport) {
            (Grade::Pass, _) => 0,
            // Not answered is not passed, whatever the reason.
            (Grade::Fail { .. }, _) => 2,
            (_, t) if t != Transport::Completed => 2,
            (Grade::Ungraded { .. }, _) => 1,
        };
        lists[list].push(name);
    }
    let [passed, warned, failed] = lists;
    let ended = record.run.status == Status::Completed;
    let result = if !failed.is_empty() || !ended {
        "FAILED"
    } else if !warned.is_empty() || !record.run.taints.is_empty() {
        "WARNED"
    } else {
        "PASSED"
    };
    let digest = |name: &str, sha256: String| json!({"name": name, "digest": {"sha256": sha256}});
    let axis = |name: &str, value: Value| json!({"name": name, "annotations": value});
    let to_value = |v: Result<Value, serde_json::Error>| v.unwrap_or_default();
    let p = &record.provenance;
    json::canonical(&json!({
        "_type": STATEMENT_TYPE,
        "subject": signed.subject,
        "predicateType": PREDICATE,
        "predicate": {
            "result": result,
            "configuration": [
                digest("suite", p.suite.hex()),
                digest("dataset", p.dataset.hex()),
                digest("scorer", p.evaluator.hex()),
                digest("plan", record.run.plan_digest.hex()),
                axis("run", json!({"id": record.run.id, "status": record.run.status.name(), "taints": record.run.taints.len()})),
                axis("transport", to_value(serde_json::to_value(&record.transport))),
                axis("grades", to_value(serde_json::to_value(&record.grades))),
                axis("attribution", to_value(serde_json::to_value(&record.attribution))),
                axis("integrity", to_value(serde_json::to_value(&record.integrity))),
            ],
            "passedTests": passed,
            "warnedTests": warned,
            "failedTests": failed,
        },
    }))
}

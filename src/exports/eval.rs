//! Every Eval Ever, version 0.3.0: the aggregate record. Only what a scorer decided is an
//! evaluation there; latencies and rates are left to other forms.

use serde_json::{Value, json};

use super::{ExportsError, lines, metric, model, number};
use crate::record::RunRecord;

/// Version of the form.
pub const VERSION: &str = "0.3.0";

/// What the record does not know about its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Who provides the data.
    pub organization: String,
    /// `first_party`, `third_party`, `collaborative`, `other`.
    pub relationship: String,
}

/// The form.
pub fn every_eval_ever(record: &RunRecord, source: &Source) -> Result<Vec<u8>, ExportsError> {
    let declared = record.grades.declared;
    if declared == 0 {
        return Err(ExportsError::Nothing(
            "the record declares no cases to grade",
        ));
    }
    // Text, like all of its details.
    let text = |n: u64| Value::String(n.to_string());
    let finished = record.run.finished.parse::<jiff::Timestamp>();
    let finished = finished.map_or(0, jiff::Timestamp::as_second).to_string();
    let model = model(record);
    let rate = record.grades.pass as f64 / declared as f64;
    let source_data = json!({
        "dataset_name": record.run.suite,
        "source_type": "other",
        "additional_details": {
            "suite_sha256": record.provenance.suite,
            "dataset_sha256": record.provenance.dataset,
            "scorer_sha256": record.provenance.evaluator,
        },
    });
    let result = |name: &str, score: f64, interval: Value| {
        json!({
            "evaluation_name": name,
            "source_data": source_data,
            "evaluation_timestamp": record.run.started,
            "metric_config": {
                "evaluation_description": "grades pass over every declared attempt; attempts that were not answered count as not passed",
                "lower_is_better": false,
                "score_type": "continuous",
                "min_score": 0,
                "max_score": 1,
            },
            "score_details": {
                "score": score,
                "details": {
                    "pass": text(record.grades.pass),
                    "fail": text(record.grades.fail),
                    "ungraded": text(record.grades.ungraded),
                    "transport_completed": text(record.transport.completed),
                    "attribution_verified": text(record.attribution.verified),
                    "declared": text(declared),
                },
                "uncertainty": interval,
            },
            "generation_config": {
                "generation_args": {
                    "temperature": number(&record.requests.temperature),
                    "max_tokens": record.requests.max_tokens.max(1),
                    "reasoning": record.requests.reasoning_observed > 0,
                },
            },
        })
    };
    let samples = json!({"num_samples": declared});
    let mut results = vec![result("pass-rate", rate, samples)];
    let recall = metric(record, "recall/v1").and_then(number);
    let bound = metric(record, "recall-lower-bound/v1").and_then(number);
    if let (Some(recall), Some(bound)) = (recall, bound) {
        let interval = json!({
            "num_samples": declared,
            "confidence_interval": {
                "lower": bound,
                "upper": 1,
                "confidence_level": 0.95,
                "method": "Clopper-Pearson, one-sided",
            },
        });
        results.push(result("recall", recall, interval));
    }
    Ok(lines(&json!({
        "schema_version": VERSION,
        "evaluation_id": format!("{}/{}/{finished}", record.run.suite, model.replace('/', "_")),
        "evaluation_timestamp": record.run.started,
        "retrieved_timestamp": finished,
        "source_metadata": {
            "source_name": record.run.id,
            "source_type": "evaluation_run",
            "source_organization_name": source.organization,
            "evaluator_relationship": source.relationship,
        },
        "eval_library": {"name": "runseal", "version": record.provenance.tool.version},
        "model_info": {
            "name": model,
            "id": model,
            "inference_engine": {
                "name": record.runtime.engine,
                "version": record.runtime.version.as_deref().unwrap_or("unknown"),
            },
        },
        "evaluation_results": results,
    })))
}

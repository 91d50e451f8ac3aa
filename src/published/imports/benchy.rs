//! llama-benchy's report: runs with metrics, each `{mean, std, values}`.

use serde_json::Value;

use super::super::number::mean;
use super::{Line, between, number, numbers, say};
use crate::codes::Code;
use crate::published::report::Auditor;

const METRICS: [(&str, &str); 9] = [
    ("pp_throughput", "tokens/s"),
    ("pp_req_throughput", "tokens/s"),
    ("tg_throughput", "tokens/s"),
    ("tg_req_throughput", "tokens/s"),
    ("peak_throughput", "tokens/s"),
    ("peak_req_throughput", "tokens/s"),
    ("ttfr", "ms"),
    ("est_ppt", "ms"),
    ("e2e_ttft", "ms"),
];

/// Audits such a report.
pub fn audit(a: &mut Auditor, v: &Value) {
    a.id = ["model", "timestamp"]
        .iter()
        .filter_map(|k| v.get(*k)?.as_str())
        .map(str::to_owned)
        .reduce(|x, y| format!("{x} {y}"));
    let most = v.get("max_concurrency").and_then(Value::as_u64);
    for (i, run) in v["benchmarks"].as_array().into_iter().flatten().enumerate() {
        let at = format!("benchmarks[{i}]");
        let concurrency = run.get("concurrency").and_then(Value::as_u64);
        if concurrency == Some(0) || concurrency.zip(most).is_some_and(|(c, m)| c > m) {
            a.add(
                Code::FigureImpossible,
                format!("{at}.concurrency"),
                "it is not from 1 to max_concurrency",
            );
        }
        for (name, unit) in METRICS {
            let Some(metric) = run.get(name).filter(|m| !m.is_null()) else {
                continue;
            };
            let id = format!("{at}.{name}.mean");
            let values = numbers(metric, "values").filter(|v| !v.is_empty());
            let Some(stated) = number(metric, "mean") else {
                continue;
            };
            if stated < 0.0 {
                a.add(Code::FigureImpossible, &id, "it is below zero");
            }
            let ends = values.as_ref().map(|v| {
                let min = v.iter().copied().fold(f64::MAX, f64::min);
                (min, v.iter().copied().fold(f64::MIN, f64::max))
            });
            let follows = values.as_deref().and_then(mean);
            // A mean that does not follow has its finding already.
            if follows.is_none() {
                between(a, &id, Some(stated), ends.map(|e| e.0), ends.map(|e| e.1));
            }
            say(
                a,
                Line {
                    id,
                    stated,
                    follows,
                    unit,
                    n: values.as_ref().map(|v| v.len() as u64),
                    code: Code::MeanNotReproduced,
                    basis: match values.is_some() {
                        true => "arithmetic mean of values; what they divide by is not in the file",
                        false => "its values are not in the file",
                    },
                },
            );
        }
    }
}

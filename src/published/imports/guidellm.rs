//! A GuideLLM report: per benchmark, distributions of each metric by how requests ended.

use serde_json::Value;

use super::super::number::whole;
use super::{Line, between, number, quotient, rising, say};
use crate::codes::Code;
use crate::published::report::Auditor;

const ENDS: [&str; 4] = ["successful", "incomplete", "errored", "total"];
const PERCENTILES: [&str; 11] = [
    "p001", "p01", "p05", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p999",
];

/// Audits such a report.
pub fn audit(a: &mut Auditor, v: &Value) {
    a.id = v
        .pointer("/args/model")
        .or_else(|| v.pointer("/benchmarks/0/config/id"))
        .and_then(Value::as_str)
        .map(str::to_owned);
    for (i, run) in v["benchmarks"].as_array().into_iter().flatten().enumerate() {
        let at = format!("benchmarks[{i}]");
        totals(a, &at, run);
        for (name, metric) in run["metrics"].as_object().into_iter().flatten() {
            for end in ENDS {
                if let Some(d) = metric.get(end).filter(|d| d.get("count").is_some()) {
                    distribution(a, &format!("{at}.{name}.{end}"), d);
                }
            }
        }
    }
}

/// Requests by how they ended, and the lists where they are whole.
fn totals(a: &mut Auditor, at: &str, run: &Value) {
    let Some(totals) = run.pointer("/metrics/request_totals") else {
        return;
    };
    let of = |k: &str| totals.get(k).and_then(Value::as_u64);
    let parts: Option<Vec<u64>> = ENDS[..3].iter().map(|k| of(k)).collect();
    if let (Some(parts), Some(stated)) = (parts, number(totals, "total")) {
        say(
            a,
            Line {
                id: format!("{at}.request_totals.total"),
                stated,
                follows: parts
                    .iter()
                    .try_fold(0u64, |s, n| s.checked_add(*n))
                    .map(whole),
                unit: "requests",
                n: None,
                code: Code::TotalNotReproduced,
                basis: "successful, incomplete and errored together",
            },
        );
    }
}

fn distribution(a: &mut Auditor, id: &str, d: &Value) {
    let count = d.get("count").and_then(Value::as_u64);
    let (min, max) = (number(d, "min"), number(d, "max"));
    if count == Some(0) {
        return;
    }
    if let Some(stated) = number(d, "mean") {
        let follows = number(d, "total_sum")
            .zip(count)
            .and_then(|(sum, n)| quotient(sum, n as f64));
        if follows.is_none() {
            between(a, &format!("{id}.mean"), Some(stated), min, max);
        }
        // Rates and concurrency are weighted by time: their sum over their count is
        // another mean, and only said.
        let weighted = id.contains("per_second") || id.contains("concurrency");
        say(
            a,
            Line {
                id: format!("{id}.mean"),
                stated,
                follows: follows.filter(|_| !weighted),
                unit: "",
                n: count,
                code: Code::MeanNotReproduced,
                basis: match weighted {
                    true => "weighted by time; the timings are not looked at",
                    false => "total_sum / count",
                },
            },
        );
    }
    let percentiles = d.get("percentiles").unwrap_or(&Value::Null);
    let mut steps = vec![("min", min)];
    steps.extend(PERCENTILES.map(|p| (p, number(percentiles, p))));
    steps.push(("max", max));
    rising(a, id, &steps);
    if let Some(median) = number(d, "median") {
        a.stated(
            format!("{id}.median"),
            format!("{median}"),
            "",
            count,
            "the values are not looked at",
        );
    }
}

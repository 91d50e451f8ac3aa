//! AIPerf's `profile_export_aiperf.json`: metrics as `{unit, avg, p…, min, max, std}`.

use serde_json::Value;

use super::{Line, between, number, quotient, rising, say};
use crate::codes::Code;
use crate::published::report::Auditor;

const STEPS: [&str; 11] = [
    "min", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "max",
];

/// Audits such an export.
pub fn audit(a: &mut Auditor, v: &Value) {
    let models = v.pointer("/input_config/endpoint/model_names/0");
    a.id = models.and_then(Value::as_str).map(str::to_owned);
    let avg = |name: &str| number(v.get(name)?, "avg");
    let duration = avg("benchmark_duration").filter(|d| *d > 0.0);
    let requests = avg("request_count");
    let over = |count: Option<f64>| count.zip(duration).and_then(|(c, d)| quotient(c, d));
    for (name, metric) in v.as_object().into_iter().flatten() {
        let Some(stated) = metric.get("unit").and_then(|_| number(metric, "avg")) else {
            continue;
        };
        let rate = Code::RateNotReproduced;
        let (follows, code, basis) = match name.as_str() {
            "request_throughput" => (over(requests), rate, "request_count / benchmark_duration"),
            "output_token_throughput" => (
                over(avg("total_osl")),
                rate,
                "total_osl / benchmark_duration",
            ),
            "output_sequence_length" => (
                avg("total_osl")
                    .zip(requests)
                    .and_then(|(t, n)| quotient(t, n)),
                Code::MeanNotReproduced,
                "total_osl / request_count",
            ),
            "input_sequence_length" => (
                avg("total_isl")
                    .zip(requests)
                    .and_then(|(t, n)| quotient(t, n)),
                Code::MeanNotReproduced,
                "total_isl / request_count",
            ),
            _ => (
                None,
                rate,
                "the requests are in another file of the same run (profile_export.jsonl)",
            ),
        };
        let distribution = metric.get("min").is_some();
        say(
            a,
            Line {
                id: format!("{name}.avg"),
                stated,
                follows,
                // Units are the file's own; the figure's id tells them apart.
                unit: unit(metric),
                n: requests
                    .filter(|n| distribution && *n >= 0.0)
                    .map(|n| n as u64),
                code,
                basis,
            },
        );
        let steps = STEPS.map(|s| (s, number(metric, s)));
        rising(a, name, &steps);
        between(
            a,
            &format!("{name}.avg"),
            Some(stated),
            number(metric, "min"),
            number(metric, "max"),
        );
    }
    if v.get("was_cancelled").and_then(Value::as_bool) == Some(true) {
        a.add(
            Code::RunCutShort,
            "was_cancelled",
            "the run was stopped before it was complete",
        );
    }
}

fn unit(metric: &Value) -> &'static str {
    match metric["unit"].as_str().unwrap_or_default() {
        "ms" => "ms",
        "sec" => "s",
        "tokens" => "tokens",
        "requests" => "requests",
        "requests/sec" => "requests/s",
        "tokens/sec" => "tokens/s",
        _ => "",
    }
}

//! What `vllm bench serve --save-result --save-detailed` would have written, as far as a
//! record can say it. Its client takes the first chunk for the first token; `ttfts` here
//! are times to the first generated output. `itls` are not in a record and are left out.

use num_bigint::BigInt;
use num_rational::BigRational;
use serde_json::json;

use super::{ExportsError, lines, metric, model, number};
use crate::metrics::exact::{decimal, percentile};
use crate::record::RunRecord;
use crate::trace::Transport;

/// The form.
pub fn vllm_bench(record: &RunRecord) -> Result<Vec<u8>, ExportsError> {
    let lacking =
        ExportsError::Nothing("the record has no batch duration, which this form divides by");
    let duration = metric(record, "batch-duration/v1")
        .and_then(number)
        .filter(|d| *d > 0.0);
    let duration = duration.ok_or(lacking)?;
    let done = |c: &&crate::record::CaseRecord| c.transport == Transport::Completed;
    let completed = record.cases.iter().filter(done).count() as u64;
    let input: u64 = record
        .cases
        .iter()
        .filter(done)
        .filter_map(|c| c.prompt_tokens)
        .sum();
    let output: u64 = record
        .cases
        .iter()
        .filter_map(|c| c.completion_tokens)
        .sum();
    let over = |n: u64| exact_number(&(whole(n) / exact(duration)));
    let firsts: Vec<u64> = record
        .cases
        .iter()
        .filter(done)
        .filter_map(|c| c.first_generated_ns)
        .collect();
    let ends: Vec<u64> = record
        .cases
        .iter()
        .filter(done)
        .filter_map(|c| c.duration_ns)
        .collect();
    let mut out = json!({
        "date": record.run.started,
        "backend": record.runtime.engine,
        "label": record.run.id,
        "model_id": model(record),
        "tokenizer_id": null,
        "num_prompts": record.transport.declared,
        "max_concurrency": record.requests.concurrency,
        "duration": duration,
        "completed": completed,
        "failed": record.transport.declared - completed,
        "total_input_tokens": input,
        "total_output_tokens": output,
        "request_throughput": over(completed),
        "output_throughput": over(output),
        "total_token_throughput": over(input.saturating_add(output)),
        "input_lens": record.cases.iter().map(|c| c.prompt_tokens.unwrap_or(0)).collect::<Vec<_>>(),
        "output_lens": record.cases.iter().map(|c| c.completion_tokens.unwrap_or(0)).collect::<Vec<_>>(),
        "ttfts": record.cases.iter().map(|c| seconds(c.first_generated_ns.unwrap_or(0))).collect::<Vec<_>>(),
        "errors": record.cases.iter().map(|c| match c.transport {
            Transport::Completed => "",
            other => other.name(),
        }).collect::<Vec<_>>(),
    });
    for (name, values) in [("ttft", firsts), ("e2el", ends)] {
        let Some(map) = out.as_object_mut().filter(|_| !values.is_empty()) else {
            continue;
        };
        let n = values.len() as u64;
        let mean = values.iter().map(|v| whole(*v)).sum::<BigRational>() / whole(n);
        let ms = |v: Option<BigRational>| v.map(|v| exact_number(&(v / whole(1_000_000))));
        let at = |p| ms(percentile(&values, p, 100));
        map.insert(format!("mean_{name}_ms"), json!(ms(Some(mean))));
        map.insert(format!("median_{name}_ms"), json!(at(50)));
        map.insert(format!("p95_{name}_ms"), json!(at(95)));
        map.insert(format!("p99_{name}_ms"), json!(at(99)));
    }
    Ok(lines(&out))
}

fn whole(n: u64) -> BigRational {
    BigRational::from_integer(BigInt::from(n))
}

fn exact(v: f64) -> BigRational {
    BigRational::from_float(v).unwrap_or_else(|| whole(0))
}

fn exact_number(v: &BigRational) -> f64 {
    decimal(v, 60).parse().unwrap_or(0.0)
}

fn seconds(ns: u64) -> f64 {
    exact_number(&(whole(ns) / whole(1_000_000_000)))
}

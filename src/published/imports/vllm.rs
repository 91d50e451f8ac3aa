//! `vllm bench serve --save-result [--save-detailed]`: one JSON object. With details it
//! has a list per request; statistics are over successful requests only.

use serde_json::Value;

use super::super::number::{exact, mean, whole};
use super::{Line, number, numbers, percentile, quotient, say};
use crate::codes::Code;
use crate::published::report::Auditor;

/// Audits such a result.
pub fn audit(a: &mut Auditor, v: &Value) {
    a.id = ["model_id", "date"]
        .iter()
        .filter_map(|k| v.get(*k)?.as_str())
        .map(str::to_owned)
        .reduce(|x, y| format!("{x} {y}"));
    let good = successes(v);
    counts(a, v, good.as_deref());
    rates(a, v);
    let keep = |list: Vec<f64>| -> Option<Vec<f64>> {
        let good = good.as_ref()?;
        (list.len() == good.len()).then(|| {
            list.iter()
                .zip(good)
                .filter(|(_, ok)| **ok)
                .map(|(v, _)| *v)
                .collect()
        })
    };
    let ttfts = numbers(v, "ttfts").and_then(keep);
    statistics(
        a,
        v,
        "ttft",
        ttfts.as_deref(),
        "ttfts of the successful requests; which first is not said",
    );
    statistics(
        a,
        v,
        "itl",
        intervals(v, good.as_deref()).as_deref(),
        "itls of the successful requests: times between chunks, whatever their tokens",
    );
    for name in ["tpot", "e2el"] {
        statistics(
            a,
            v,
            name,
            None,
            "the ends of the requests are not in the file",
        );
    }
    if let (Some(duration), Some(all)) = (number(v, "duration"), numbers(v, "ttfts")) {
        for (i, t) in all
            .iter()
            .enumerate()
            .filter(|(_, t)| **t > duration || **t < 0.0)
        {
            let why = format!("{t} s is outside of the {duration} s that it all took");
            a.add(Code::FigureImpossible, format!("ttfts[{i}]"), why);
        }
    }
}

/// Which requests succeeded: those without an error text.
fn successes(v: &Value) -> Option<Vec<bool>> {
    let errors = v.get("errors")?.as_array()?;
    Some(
        errors
            .iter()
            .map(|e| e.as_str().is_none_or(str::is_empty))
            .collect(),
    )
}

fn counts(a: &mut Auditor, v: &Value, good: Option<&[bool]>) {
    let sum = |key: &str, only_good: bool| -> Option<u64> {
        let list = v.get(key)?.as_array()?;
        let good = good.filter(|g| g.len() == list.len());
        if only_good && good.is_none() {
            return None;
        }
        let mut total = 0u64;
        for (i, n) in list.iter().enumerate() {
            if !only_good || good.is_some_and(|g| g[i]) {
                total = total.checked_add(n.as_u64()?)?;
            }
        }
        Some(total)
    };
    let succeeded = good.map(|g| g.iter().filter(|ok| **ok).count() as u64);
    let rows = [
        (
            "completed",
            succeeded,
            "requests",
            "requests without an error text",
        ),
        (
            "failed",
            good.zip(succeeded).map(|(g, s)| g.len() as u64 - s),
            "requests",
            "requests with an error text",
        ),
        (
            "total_output_tokens",
            sum("output_lens", false),
            "tokens",
            "sum of output_lens",
        ),
        (
            "total_input_tokens",
            sum("input_lens", true),
            "tokens",
            "sum of input_lens of the successful requests, by the client's tokenizer",
        ),
    ];
    for (key, follows, unit, basis) in rows {
        if let Some(stated) = number(v, key) {
            let basis = if follows.is_some() {
                basis
            } else {
                "the requests are not listed (--save-detailed lists them)"
            };
            say(
                a,
                Line {
                    id: key.into(),
                    stated,
                    follows: follows.map(whole),
                    unit,
                    n: good.map(|g| g.len() as u64),
                    code: Code::TotalNotReproduced,
                    basis,
                },
            );
        }
    }
    let whole_of = |key| number(v, key);
    if let (Some(done), Some(failed), Some(all)) = (
        whole_of("completed"),
        whole_of("failed"),
        whole_of("num_prompts"),
    ) && done + failed != all
    {
        a.differ(
            Code::TotalNotReproduced,
            "num_prompts",
            "completed and failed requests are not all requests",
            done + failed,
            all,
        );
    }
}

fn rates(a: &mut Auditor, v: &Value) {
    let Some(duration) = number(v, "duration") else {
        return;
    };
    if duration <= 0.0 {
        return a.add(Code::FigureImpossible, "duration", "it is not above zero");
    }
    a.stated(
        "duration",
        format!("{duration}"),
        "s",
        Some(1),
        "first send and last end are not in the file",
    );
    let both = number(v, "total_input_tokens")
        .zip(number(v, "total_output_tokens"))
        .map(|(i, o)| i + o);
    for (key, count, unit, basis) in [
        (
            "request_throughput",
            number(v, "completed"),
            "requests/s",
            "completed / duration",
        ),
        (
            "output_throughput",
            number(v, "total_output_tokens"),
            "tokens/s",
            "total_output_tokens / duration",
        ),
        (
            "total_token_throughput",
            both,
            "tokens/s",
            "(total_input_tokens + total_output_tokens) / duration",
        ),
    ] {
        if let (Some(stated), Some(count)) = (number(v, key), count) {
            say(
                a,
                Line {
                    id: key.into(),
                    stated,
                    follows: quotient(count, duration),
                    unit,
                    n: None,
                    code: Code::RateNotReproduced,
                    basis,
                },
            );
        }
    }
}

/// Times between chunks, of all successful requests together.
fn intervals(v: &Value, good: Option<&[bool]>) -> Option<Vec<f64>> {
    let lists = v.get("itls")?.as_array()?;
    let good = good.filter(|g| g.len() == lists.len())?;
    let mut out = Vec::new();
    for (list, _) in lists.iter().zip(good).filter(|(_, ok)| **ok) {
        for n in list.as_array()? {
            out.push(n.as_f64()?);
        }
    }
    Some(out)
}

fn statistics(a: &mut Auditor, v: &Value, name: &str, values: Option<&[f64]>, basis: &str) {
    let thousand = exact(1000.0);
    let values = values.filter(|v| !v.is_empty());
    let n = values.map(|v| v.len() as u64);
    let ms = |r: Option<num_rational::BigRational>| r.map(|r| r * &thousand);
    for (key, follows, code) in [
        (
            format!("mean_{name}_ms"),
            values.and_then(mean),
            Code::MeanNotReproduced,
        ),
        (
            format!("median_{name}_ms"),
            values.and_then(|v| percentile(v, 1, 2)),
            Code::PercentileNotReproduced,
        ),
        (
            format!("p95_{name}_ms"),
            values.and_then(|v| percentile(v, 95, 100)),
            Code::PercentileNotReproduced,
        ),
        (
            format!("p99_{name}_ms"),
            values.and_then(|v| percentile(v, 99, 100)),
            Code::PercentileNotReproduced,
        ),
    ] {
        if let Some(stated) = number(v, &key) {
            let basis = if follows.is_some() || values.is_none() && basis.starts_with("the ends") {
                basis
            } else {
                "the requests are not listed (--save-detailed lists them)"
            };
            say(
                a,
                Line {
                    id: key,
                    stated,
                    follows: ms(follows),
                    unit: "ms",
                    n,
                    code,
                    basis,
                },
            );
        }
    }
}

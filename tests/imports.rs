//! Results of other benchmark programs: labels, and one finding for one changed figure.
//! The documents are made here, in the shape of each program's output.

use std::collections::BTreeSet;

use runseal::codes::Code;
use runseal::finding::Severity;
use runseal::published::kind::{self, Kind};
use runseal::published::report::{Derivation, PublishedReport};
use runseal::published::{self, Nothing};
use serde_json::{Value, json};

fn audit(value: &Value, want: Kind) -> PublishedReport {
    assert_eq!(kind::of(value), Ok(want), "{value}");
    let bytes = serde_json::to_vec(value).unwrap();
    published::audit("r.json", &bytes, value, want, &Nothing)
}

fn errors(r: &PublishedReport) -> BTreeSet<Code> {
    let errors = r.findings.iter().filter(|f| f.severity == Severity::Error);
    errors.map(|f| f.code).collect()
}

fn label(r: &PublishedReport, id: &str) -> Derivation {
    let f = r.figures.iter().find(|f| f.id == id);
    f.unwrap_or_else(|| panic!("no {id}: {:#?}", r.figures))
        .derivation
}

fn changed(base: &Value, kind: Kind, edits: &[(&str, Value, Code)]) {
    assert_eq!(
        errors(&audit(base, kind)),
        BTreeSet::new(),
        "{:#?}",
        audit(base, kind).findings
    );
    for (pointer, new, want) in edits {
        let mut value = base.clone();
        *value
            .pointer_mut(pointer)
            .unwrap_or_else(|| panic!("no {pointer}")) = new.clone();
        let r = audit(&value, kind);
        assert_eq!(
            errors(&r),
            [*want].into(),
            "{pointer} = {new}: {:#?}",
            r.findings
        );
    }
}

fn vllm() -> Value {
    json!({
        "date": "20261201-120000", "backend": "vllm", "model_id": "m", "tokenizer_id": "m",
        "num_prompts": 4, "request_rate": "inf", "max_concurrency": 2,
        "duration": 2.0, "completed": 3, "failed": 1,
        "total_input_tokens": 60, "total_output_tokens": 24,
        "request_throughput": 1.5, "output_throughput": 12.0, "total_token_throughput": 42.0,
        "mean_ttft_ms": 200.0, "median_ttft_ms": 200.0, "p99_ttft_ms": 298.0,
        "mean_tpot_ms": 20.0, "mean_itl_ms": 30.0, "median_itl_ms": 30.0,
        "input_lens": [10, 20, 30, 40], "output_lens": [8, 8, 8, 0],
        "ttfts": [0.1, 0.2, 0.3, 0.0],
        "itls": [[0.02, 0.04], [0.03], [0.03], []],
        "errors": ["", "", "", "timeout"],
    })
}

#[test]
fn vllm_results() {
    let r = audit(&vllm(), Kind::VllmBench);
    for (id, want) in [
        ("output_throughput", Derivation::Recomputed),
        ("total_output_tokens", Derivation::Recomputed),
        ("total_input_tokens", Derivation::Recomputed),
        ("completed", Derivation::Recomputed),
        ("median_ttft_ms", Derivation::Recomputed),
        ("p99_ttft_ms", Derivation::Recomputed),
        ("mean_tpot_ms", Derivation::Stated),
        ("duration", Derivation::Stated),
    ] {
        assert_eq!(label(&r, id), want, "{id}");
    }
    changed(
        &vllm(),
        Kind::VllmBench,
        &[
            ("/output_throughput", json!(12.5), Code::RateNotReproduced),
            (
                "/total_token_throughput",
                json!(41),
                Code::RateNotReproduced,
            ),
            ("/request_throughput", json!(2.0), Code::RateNotReproduced),
            ("/failed", json!(0), Code::TotalNotReproduced),
            ("/num_prompts", json!(3), Code::TotalNotReproduced),
            ("/output_lens/0", json!(9), Code::TotalNotReproduced),
            ("/mean_ttft_ms", json!(210.0), Code::MeanNotReproduced),
            ("/p99_ttft_ms", json!(299.0), Code::PercentileNotReproduced),
            ("/median_itl_ms", json!(25.0), Code::PercentileNotReproduced),
            ("/duration", json!(0), Code::FigureImpossible),
            ("/ttfts/3", json!(9.0), Code::FigureImpossible),
        ],
    );
    // Without the lists the statistics are only said, and rates still follow.
    let mut short = vllm();
    for key in ["input_lens", "output_lens", "ttfts", "itls", "errors"] {
        short.as_object_mut().unwrap().remove(key);
    }
    let r = audit(&short, Kind::VllmBench);
    assert_eq!(errors(&r), BTreeSet::new());
    assert_eq!(label(&r, "mean_ttft_ms"), Derivation::Stated);
    assert_eq!(label(&r, "output_throughput"), Derivation::Recomputed);
}

#[test]
fn llama_benchy_results() {
    let metric = |mean: f64, values: &[f64]| json!({"mean": mean, "std": 0.5, "values": values});
    let base = json!({
        "version": "0.4.0", "timestamp": "2026-12-01", "latency_mode": "api", "latency_ms": 1.0,
        "model": "m", "prefix_caching_enabled": false, "max_concurrency": 4,
        "benchmarks": [{
            "concurrency": 2, "context_size": 0, "prompt_size": 128, "response_size": 32,
            "is_context_prefill_phase": false,
            "tg_throughput": metric(20.5, &[20.0, 21.0]),
            "ttfr": metric(100.0, &[90.0, 110.0]),
            "pp_throughput": null,
        }],
    });
    let r = audit(&base, Kind::LlamaBenchy);
    assert_eq!(
        label(&r, "benchmarks[0].tg_throughput.mean"),
        Derivation::Recomputed
    );
    changed(
        &base,
        Kind::LlamaBenchy,
        &[
            (
                "/benchmarks/0/tg_throughput/mean",
                json!(21.6),
                Code::MeanNotReproduced,
            ),
            (
                "/benchmarks/0/ttfr/values/0",
                json!(95.0),
                Code::MeanNotReproduced,
            ),
            (
                "/benchmarks/0/concurrency",
                json!(8),
                Code::FigureImpossible,
            ),
        ],
    );
}

#[test]
fn guidellm_reports() {
    let base = json!({
        "args": {"model": "m"},
        "benchmarks": [{
            "metrics": {
                "request_totals": {"successful": 8, "incomplete": 1, "errored": 1, "total": 10},
                "request_latency": {"successful": {
                    "mean": 2.5, "median": 2.0, "min": 1.0, "max": 5.0, "count": 8, "total_sum": 20.0,
                    "percentiles": {"p50": 2.0, "p95": 4.5, "p99": 4.9},
                }},
                "output_tokens_per_second": {"total": {
                    "mean": 99.0, "median": 98.0, "min": 0.0, "max": 120.0, "count": 8, "total_sum": 20.0,
                    "percentiles": {"p50": 98.0},
                }},
            },
        }],
    });
    let r = audit(&base, Kind::Guidellm);
    let mean = "benchmarks[0].request_latency.successful.mean";
    assert_eq!(label(&r, mean), Derivation::Recomputed);
    let weighted = "benchmarks[0].output_tokens_per_second.total.mean";
    assert_eq!(label(&r, weighted), Derivation::Stated);
    changed(
        &base,
        Kind::Guidellm,
        &[
            (
                "/benchmarks/0/metrics/request_totals/total",
                json!(9),
                Code::TotalNotReproduced,
            ),
            (
                "/benchmarks/0/metrics/request_latency/successful/mean",
                json!(2.6),
                Code::MeanNotReproduced,
            ),
            (
                "/benchmarks/0/metrics/request_latency/successful/percentiles/p95",
                json!(5.5),
                Code::FigureImpossible,
            ),
            (
                "/benchmarks/0/metrics/request_latency/successful/min",
                json!(2.1),
                Code::FigureImpossible,
            ),
        ],
    );
}

/// The figures of the example in the program's own documentation.
#[test]
fn aiperf_exports() {
    let base = json!({
        "request_throughput": {"unit": "requests/sec", "avg": 13.16084556379392},
        "request_latency": {"unit": "ms", "avg": 6550.356151749999, "p1": 5523.63769363, "p50": 5799.897624499999,
            "p99": 9381.628943169999, "min": 4996.247445999999, "max": 9383.367922, "std": 1171.13614778278},
        "output_sequence_length": {"unit": "tokens", "avg": 96.85, "p50": 97.0, "min": 91.0, "max": 97.0},
        "benchmark_duration": {"unit": "sec", "avg": 15.196591969000002},
        "request_count": {"unit": "requests", "avg": 200.0},
        "total_osl": {"unit": "tokens", "avg": 19370.0},
        "was_cancelled": true,
    });
    let r = audit(&base, Kind::Aiperf);
    assert_ne!(label(&r, "request_throughput.avg"), Derivation::Stated);
    assert_eq!(
        label(&r, "output_sequence_length.avg"),
        Derivation::Recomputed
    );
    assert_eq!(label(&r, "request_latency.avg"), Derivation::Stated);
    assert!(r.findings.iter().any(|f| f.code == Code::RunCutShort));
    changed(
        &base,
        Kind::Aiperf,
        &[
            (
                "/request_throughput/avg",
                json!(13.5),
                Code::RateNotReproduced,
            ),
            (
                "/output_sequence_length/avg",
                json!(95.0),
                Code::MeanNotReproduced,
            ),
            (
                "/request_latency/p99",
                json!(5000.0),
                Code::FigureImpossible,
            ),
            (
                "/request_latency/avg",
                json!(9999.0),
                Code::FigureImpossible,
            ),
        ],
    );
}

/// Shapes that none of the programs writes: a report, never a panic.
#[test]
fn odd_shapes_end_in_a_report() {
    for (mut value, kind) in [
        (vllm(), Kind::VllmBench),
        (
            json!({"latency_mode": 1, "benchmarks": 7}),
            Kind::LlamaBenchy,
        ),
        (
            json!({"benchmarks": [{"metrics": [1, 2]}, 3]}),
            Kind::Guidellm,
        ),
        (
            json!({"request_throughput": {"unit": 1}, "request_latency": {"unit": "ms", "avg": -1}}),
            Kind::Aiperf,
        ),
    ] {
        audit(&value, kind);
        if kind == Kind::VllmBench {
            for key in [
                "errors",
                "output_lens",
                "itls",
                "ttfts",
                "completed",
                "duration",
            ] {
                for odd in [
                    json!(null),
                    json!([]),
                    json!({}),
                    json!("x"),
                    json!([[1]]),
                    json!([-1e300]),
                ] {
                    let before = value[key].clone();
                    value[key] = odd;
                    audit(&value, kind);
                    value[key] = before;
                }
            }
        }
    }
}

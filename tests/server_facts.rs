//! Typed facts from the bytes of real servers, and traffic that was not ours.
//!
//! The documents in tests/captures are as vLLM and llama.cpp gave them. SGLang cannot
//! be run without an accelerator: its documents here are written by hand after its
//! documentation.

mod support;

use std::collections::BTreeMap;

use runseal::codes::Code;
use runseal::finding::Outcome;
use runseal::server_facts::traffic::{self, Foreign};
use runseal::server_facts::{Documents, FactValue, ServerFact, facts, family};
use runseal::trace::{Trace, Usage};
use support::*;

fn capture(name: &str) -> Vec<u8> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::read(dir.join("tests/captures").join(name)).unwrap()
}

/// The same documents at both moments.
fn twice(recipe: &str, raw: &[(&str, Vec<u8>)]) -> Vec<ServerFact> {
    let read = || Documents::read(raw.iter().map(|(p, b)| (*p, b.as_slice())));
    facts(family(recipe).unwrap(), &read(), &read())
}

fn values(facts: &[ServerFact]) -> BTreeMap<&str, String> {
    let text = |v: &FactValue| match v {
        FactValue::Count(n) => n.to_string(),
        FactValue::Flag(b) => b.to_string(),
        FactValue::Text(t) => format!("{t:?}"),
    };
    facts
        .iter()
        .map(|f| (f.name.as_str(), f.before.as_ref().map_or("-".into(), text)))
        .collect()
}

fn want<'a>(pairs: &[(&'a str, &str)]) -> BTreeMap<&'a str, String> {
    pairs.iter().map(|(k, v)| (*k, (*v).to_owned())).collect()
}

fn vllm() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("/version", capture("vllm-0.32.0-cpu-version.json")),
        ("/v1/models", capture("vllm-0.32.0-cpu-v1_models.json")),
        ("/metrics", capture("vllm-0.32.0-cpu-metrics.prom")),
    ]
}

#[test]
fn vllm_says() {
    let facts = twice("vllm", &vllm());
    assert_eq!(
        values(&facts),
        want(&[
            ("version", "\"0.32.0\""),
            ("context-limit-tokens", "512"),
            ("kv-cache-size-tokens", "131072"),
            ("kv-blocks", "1024"),
            ("kv-block-tokens", "128"),
            ("prefix-cache", "\"True\""),
            ("running", "0"),
            ("waiting", "0"),
            ("prompt-tokens", "62"),
            ("generation-tokens", "64"),
            ("cached-tokens", "0"),
            ("prefix-cache-queries", "62"),
            ("prefix-cache-hits", "0"),
            ("spec-drafts", "-"),
            ("spec-draft-tokens", "-"),
            ("spec-accepted-tokens", "-"),
        ])
    );
    assert_eq!(traffic::before(&facts), Foreign::None);
}

#[test]
fn llama_cpp_says() {
    let facts = twice(
        "llama.cpp",
        &[
            ("/props", capture("llamacpp-b11434-rpc3-props.json")),
            ("/slots", capture("llamacpp-b11434-rpc3-slots.json")),
            ("/metrics", capture("llamacpp-b11434-rpc3-metrics.prom")),
        ],
    );
    assert_eq!(
        values(&facts),
        want(&[
            ("version", "\"b0-unknown\""),
            ("context-limit-tokens", "2048"),
            ("request-slots", "2"),
            ("speculation", "false"),
            ("running", "0"),
            ("waiting", "0"),
            ("prompt-tokens", "81"),
            ("generation-tokens", "168"),
            ("cached-tokens", "117"),
            ("spec-drafts", "0"),
            ("spec-draft-tokens", "0"),
            ("spec-accepted-tokens", "0"),
        ])
    );
}

/// By hand: the effective slots are not those asked for, two ranks report one gauge,
/// and cached tokens come by source.
#[test]
fn sglang_would_say() {
    let info = br#"{"context_length":null,"max_running_requests":32,"max_total_num_tokens":20481,"speculative_algorithm":"EAGLE",
        "speculative_num_draft_tokens":4,"version":"0.5.18","internal_states":[{"memory_usage":{"token_capacity":20480},
        "effective_max_running_requests_per_dp":9,"avg_spec_accept_length":3.25}]}"#;
    let metrics = b"sglang:num_running_reqs{tp_rank=\"0\"} 2.0\nsglang:num_running_reqs{tp_rank=\"1\"} 2.0\n\
        sglang:num_queue_reqs{tp_rank=\"0\"} 0.0\nsglang:prompt_tokens_total{m=\"a\"} 8.128902e+06\n\
        sglang:generation_tokens_total{m=\"a\",is_streaming=\"true\"} 5.0\nsglang:generation_tokens_total{m=\"a\",is_streaming=\"false\"} 2.0\n\
        sglang:cached_tokens_total{cache_source=\"device\"} 3.0\nsglang:cached_tokens_total{cache_source=\"host\"} 4.0\n";
    let facts = twice(
        "sglang",
        &[
            ("/get_server_info", info.to_vec()),
            ("/model_info", br#"{"weight_version":"default"}"#.to_vec()),
            ("/metrics", metrics.to_vec()),
        ],
    );
    assert_eq!(
        values(&facts),
        want(&[
            ("version", "\"0.5.18\""),
            ("weight-version", "\"default\""),
            ("context-limit-tokens", "-"),
            ("kv-pool-tokens", "20480"),
            ("request-slots", "9"),
            ("request-slots-asked", "32"),
            ("speculation", "\"EAGLE\""),
            ("spec-draft-length", "4"),
            ("spec-accept-length", "\"3.25\""),
            ("running", "2"),
            ("waiting", "0"),
            ("prompt-tokens", "8128902"),
            ("generation-tokens", "7"),
            ("cached-tokens", "7"),
        ])
    );
    let kv = facts.iter().find(|f| f.name == "kv-pool-tokens").unwrap();
    assert_eq!(
        kv.source,
        "/get_server_info#/internal_states/0/memory_usage/token_capacity"
    );
    assert!(matches!(traffic::before(&facts), Foreign::Found { .. }));
}

/// A server without counters is not one without foreign traffic.
#[test]
fn what_is_not_counted_is_not_judged() {
    let facts = twice("vllm", &vllm()[..2]);
    assert_eq!(values(&facts)["running"], "-");
    let family = family("vllm").unwrap();
    assert!(matches!(traffic::before(&facts), Foreign::NotJudged { .. }));
    assert!(matches!(
        traffic::during(family, &facts, &[]),
        Foreign::NotJudged { .. }
    ));
    // One torn line, and nothing can be said of what the rest leaves out.
    let mut torn = vllm();
    torn[2].1.extend(b"vllm:prompt_tokens");
    assert_eq!(values(&twice("vllm", &torn))["prompt-tokens"], "-");
}

/// Counters of a real server, moved on by what a request of ours reports, or more.
#[test]
fn tokens_beyond_our_own_are_foreign() {
    let family = family("vllm").unwrap();
    let before = vllm();
    let text = String::from_utf8(before[2].1.clone()).unwrap();
    let labels = "{engine=\"0\",model_name=\"tiny-llama\"}";
    let moved = |prompt: u64, generated: u64| {
        let mut after = before.clone();
        after[2].1 = text
            .replace(
                &format!("vllm:prompt_tokens_total{labels} 62.0"),
                &format!("vllm:prompt_tokens_total{labels} {prompt}.0"),
            )
            .replace(
                &format!("vllm:generation_tokens_total{labels} 64.0"),
                &format!("vllm:generation_tokens_total{labels} {generated}.0"),
            )
            .into_bytes();
        let read = |raw: &[(&'static str, Vec<u8>)]| {
            Documents::read(raw.iter().map(|(p, b)| (*p, b.as_slice())))
        };
        facts(family, &read(&before), &read(&after))
    };
    let ours = Trace {
        send: Some(1),
        usage: Some(Usage {
            prompt: Some(10),
            completion: Some(16),
            ..Usage::default()
        }),
        ..Trace::default()
    };
    let silent = Trace {
        send: Some(1),
        ..Trace::default()
    };
    let never = Trace::default();
    let judge = |prompt, generated, traces: &[&Trace]| match traffic::during(
        family,
        &moved(prompt, generated),
        traces,
    ) {
        Foreign::None => "none",
        Foreign::Found { .. } => "found",
        Foreign::NotJudged { .. } => "not judged",
    };
    assert_eq!(judge(72, 80, &[&ours, &never]), "none");
    assert_eq!(judge(72, 81, &[&ours]), "found", "one token is enough");
    assert_eq!(judge(73, 80, &[&ours]), "found");
    assert_eq!(
        judge(73, 79, &[&ours]),
        "found",
        "less of the other hides nothing"
    );
    assert_eq!(judge(72, 79, &[&ours]), "not judged");
    assert_eq!(judge(72, 80, &[&ours, &silent]), "not judged");
    assert_eq!(judge(10, 10, &[&ours]), "not judged", "they ran backwards");
}

fn outcome(report: &runseal::audit::AuditReport, name: &str) -> Outcome {
    let check = report.checks.iter().find(|c| c.name == name);
    check.unwrap().outcome.clone()
}

fn notes(report: &runseal::audit::AuditReport) -> Vec<Code> {
    let codes = report.findings.iter().map(|f| f.code);
    codes.filter(|c| *c != Code::ClientLag).collect()
}

/// Somebody really asked one of the servers for an answer: the record says so itself,
/// is true, and its run is tainted.
#[test]
fn a_run_with_foreign_traffic_says_so() {
    let report = check(&load(FOREIGN));
    assert_eq!(report.exit_code(), 0, "{:?}", report.findings);
    assert_eq!(outcome(&report, "foreign-traffic"), Outcome::Failed);
    assert_eq!(notes(&report), [Code::ForeignTrafficDuring]);
    let derived = report.derived.unwrap();
    let taints: Vec<&str> = derived
        .run
        .taints
        .iter()
        .map(|t| t.cause.as_str())
        .collect();
    assert_eq!(taints, ["foreign-traffic-during"]);
    assert_eq!(derived.attribution.verified, 0);
    let codes: Vec<&str> = derived
        .limitations
        .iter()
        .map(|l| l.code.as_str())
        .collect();
    assert!(codes.contains(&"run-tainted"), "{codes:?}");
}

#[test]
fn a_server_that_was_busy_before_is_noted_by_that_code_alone() {
    let mut raw = load(COMPLETED);
    let name = "server/r0/before/metrics";
    let text = String::from_utf8(file(&mut raw, name).clone()).unwrap();
    let bytes = text
        .replace("num_requests_running 0", "num_requests_running 3")
        .into_bytes();
    let digest = runseal::digest::Sha256Digest::of(&bytes);
    *file(&mut raw, name) = bytes;
    edit_json(&mut raw, "server/r0.json", |f| {
        f["before"]["/metrics"]["sha256"] = serde_json::json!(digest);
    });
    forge(&mut raw);
    let report = check(&raw);
    assert_eq!(report.exit_code(), 0, "{:?}", report.findings);
    assert_eq!(notes(&report), [Code::ForeignTrafficBefore]);
    assert_eq!(outcome(&report, "foreign-traffic"), Outcome::Failed);
}

/// Bundles from before there were such documents are still true, and nothing is
/// said of traffic in them.
#[test]
fn a_bundle_without_documents_is_not_judged() {
    let report = check(&load(BEFORE_SERVERS));
    assert_eq!(report.exit_code(), 0, "{:?}", report.findings);
    for name in ["servers", "foreign-traffic"] {
        assert!(
            matches!(outcome(&report, name), Outcome::NotPerformed { .. }),
            "{name}"
        );
    }
    assert_eq!(report.derived.unwrap().servers, None);
    // And a completed run of today passes.
    let report = check(&load(COMPLETED));
    assert_eq!(outcome(&report, "foreign-traffic"), Outcome::Passed);
    assert_eq!(outcome(&report, "servers"), Outcome::Passed);
}

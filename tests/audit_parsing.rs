//! Plans and suites that must be refused, and what a shipped suite is.

mod support;

use runseal::digest::Sha256Digest;
use runseal::json;
use runseal::plan::RunPlan;
use runseal::shipped;
use runseal::suite::{Suite, SuiteToml, digests, parse_cases};
use serde_json::{Value, json};
use support::*;

fn plan() -> Value {
    json::parse(&load(COMPLETED).files[&path("plan.json")]).unwrap()
}

#[test]
fn a_plan_that_makes_no_sense_is_refused() {
    let good = plan();
    let parse = |v: &Value| RunPlan::parse(&json::canonical(v));
    assert!(parse(&good).is_ok());
    let edits: Vec<(&str, Value)> = vec![
        ("/format", json!("runseal.plan/v9")),
        ("/suite/case_ids", json!([])),
        ("/suite/case_ids", json!(["a", "a"])),
        ("/suite/digest", json!("abc")),
        // Nothing to verify is not "all verified".
        ("/checkpoints", json!([])),
        ("/checkpoints/0/role", json!("tokenizer")),
        ("/checkpoints/0/role", json!("../target")),
        ("/replicas", json!([])),
        ("/replicas/1/name", json!("r0")),
        ("/replicas/0/name", json!("R0")),
        ("/replicas/0/name", json!("../r0")),
        ("/replicas/0/node", json!("")),
        ("/replicas/0/paths", json!({})),
        ("/endpoints", json!([])),
        ("/endpoints/0/replicas", json!([])),
        ("/endpoints/0/replicas", json!(["r9"])),
        ("/endpoints/0/replicas", json!(["r0", "r0"])),
        ("/endpoints/0/name", json!("r1")),
        ("/load/mode", json!("open")),
        ("/load/spread", json!("random")),
        ("/load/concurrency", json!(0)),
        ("/load/repetitions", json!(0)),
        ("/load/repetitions", json!(4_294_967_295u64)),
        ("/requests/temperature", json!("warm")),
        ("/requests/temperature", json!("-1")),
        ("/requests/temperature", json!("1e999")),
        ("/requests/temperature", json!("\"0\"")),
        ("/requests/extra", json!({"seed": 1})),
        ("/requests/extra", json!({"messages": []})),
        ("/cache/claim", json!("warm")),
        ("/withholdable", json!(["events.jsonl"])),
        (
            "/withholdable",
            json!(["responses.jsonl", "responses.jsonl"]),
        ),
    ];
    for (pointer, value) in edits {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value.clone();
        let error = parse(&bad).expect_err(&format!("{pointer} = {value}"));
        assert!(error.to_string().contains("hint"), "{error}");
    }
    let mut bad = good.clone();
    bad["surprise"] = json!(1);
    assert!(parse(&bad).is_err(), "an unknown field");
    let doubled = String::from_utf8(json::canonical(&good)).unwrap();
    let doubled = doubled.replacen('{', "{\"format\":\"x\",", 1);
    assert!(RunPlan::parse(doubled.as_bytes()).is_err(), "a field twice");
}

#[test]
fn a_suite_that_makes_no_sense_is_refused() {
    let toml = String::from_utf8(load(COMPLETED).files[&path("suite/suite.toml")].clone()).unwrap();
    assert!(SuiteToml::parse(toml.as_bytes()).is_ok());
    for (from, to) in [
        ("runseal.suite/v1", "runseal.suite/v9"),
        ("golden-v1", ""),
        ("golden-v1", "Golden"),
        ("\"cases.jsonl\"", "\"other.jsonl\""),
        ("\"scorer.toml\"", "\"other.toml\""),
        ("prefix_length = 16", "prefix_length = 7"),
        ("prefix_length = 16", "prefix_length = 257"),
        ("abcdefghijklmnopqrstuvwxyz234567", "a"),
        ("abcdefghijklmnopqrstuvwxyz234567", "abca"),
        ("{{prefix}}", "prefix"),
        ("{{prefix}}", "{{prefix}} {{prefix}}"),
        ("kind =", "kinds ="),
    ] {
        let bad = toml.replace(from, to);
        assert_ne!(bad, toml, "{from}");
        assert!(SuiteToml::parse(bad.as_bytes()).is_err(), "{to}");
    }
    assert!(SuiteToml::parse(b"\xff").is_err());
    let cases =
        String::from_utf8(load(COMPLETED).files[&path("suite/cases.jsonl")].clone()).unwrap();
    assert_eq!(parse_cases(cases.as_bytes()).unwrap().len(), 4);
    for (from, to) in [
        ("case-02", "case-04"),
        ("case-02", "warmup"),
        ("case-02", ""),
        ("{{prefix}}", ""),
        ("\"kind\"", "\"sort\""),
        ("}\n", "}\n\n"),
    ] {
        assert!(
            parse_cases(cases.replacen(from, to, 1).as_bytes()).is_err(),
            "{to:?}"
        );
    }
    assert!(parse_cases(b"").is_err());
    assert!(
        parse_cases(cases.trim_end().as_bytes()).is_err(),
        "the last line is not ended"
    );
}

/// The digests compiled into the auditor are those of the suites as they ship.
#[test]
fn the_shipped_suites_are_what_the_auditor_knows() {
    for name in [
        "serving-performance-v1",
        "needle-recall-v1",
        "context-sweep-v1",
        "recipe-card-v1",
    ] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("runner/suites")
            .join(name);
        let file = |name: &str| std::fs::read(folder.join(name)).unwrap();
        let (toml, cases, scorer) = (file("suite.toml"), file("cases.jsonl"), file("scorer.toml"));
        let want = shipped::digest(name).unwrap();
        let found = digests(&toml, &cases, &scorer);
        assert_eq!(want.suite, found.suite, "{name}");
        assert_eq!(want.toml, Sha256Digest::of(&toml));
        assert_eq!((want.dataset, want.scorer), (found.dataset, found.scorer));
        let ids: Vec<String> = parse_cases(&cases)
            .unwrap()
            .into_iter()
            .map(|c| c.id)
            .collect();
        assert_eq!(want.case_ids, shipped::case_ids(&ids));
        Suite::parse(&toml, &cases).unwrap();
    }
    assert_eq!(shipped::digest("golden-v1"), None);
}

/// Every haystack is bound by its cell, and every case has one.
#[test]
fn cells_that_do_not_fit_their_cases_are_refused() {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("runner/suites/needle-recall-v1");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let (toml, cases) = (read("suite.toml"), read("cases.jsonl"));
    let refused = |toml: &str, cases: &str, why: &str| {
        let e = Suite::parse(toml.as_bytes(), cases.as_bytes()).unwrap_err();
        assert!(e.why.contains(why), "{e}");
    };
    let first = toml.find("[[cell]]").unwrap();
    let second = first + 8 + toml[first + 8..].find("[[cell]]").unwrap();
    // One line of hay more or less, or in another place.
    let at = cases.find("\\n").unwrap();
    let more = format!("{}\\nzzzz: 1{}", &cases[..at], &cases[at..]);
    refused(&toml, &more, "not the one that its cell names");
    // The question is not part of it.
    assert!(Suite::parse(toml.as_bytes(), cases.replacen("Q: ", "Q:  ", 1).as_bytes()).is_ok());
    let fewer = format!("{}{}", &toml[..first], &toml[second..]);
    refused(&fewer, &cases, "14 cells for 15 cases");
    let twice = format!("{toml}\n{}", &toml[first..second]);
    refused(&twice, &cases, "twice");
    let other = toml.replacen("case = \"len192-depth0\"", "case = \"len9\"", 1);
    refused(&other, &cases, "has no case");
    refused(
        &toml.replacen("depth_percent = 0", "depth_percent = 101", 1),
        &cases,
        "out of range",
    );
}

/// Batches that say what they measure: as many cases as they say, needles with cells.
#[test]
fn batches_of_a_card_that_do_not_fit_are_refused() {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("runner/suites/recipe-card-v1");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let (toml, cases) = (read("suite.toml"), read("cases.jsonl"));
    let suite = Suite::parse(toml.as_bytes(), cases.as_bytes()).unwrap();
    let sizes: Vec<u32> = suite.toml.batches.iter().map(|b| b.size()).collect();
    assert_eq!(sizes, [2, 2, 2, 2, 2, 4, 8, 6]);
    assert_eq!(suite.toml.batch_numbers().filter(|n| *n == 7).count(), 6);
    let refused = |toml: &str, cases: &str, why: &str| {
        let e = Suite::parse(toml.as_bytes(), cases.as_bytes()).unwrap_err();
        assert!(e.why.contains(why), "{e}");
    };
    let with = |from: &str, to: &str| {
        assert!(toml.contains(from), "{from}");
        toml.replacen(from, to, 1)
    };
    let four = "concurrency = 4\nrequests = 4";
    refused(
        &with(four, "concurrency = 4\nrequests = 3"),
        &cases,
        "3 requests cannot have 4 at once",
    );
    refused(
        &with(four, "concurrency = 4\nrequests = 5"),
        &cases,
        "29 requests for 28 cases",
    );
    refused(&with("\"code\"", "\"\""), &cases, "prompts of a batch");
    refused(
        &with("\"aggregate\"", "\"speed\""),
        &cases,
        "unknown variant",
    );
    // A needle without its cell, and a cell of what is no needle.
    refused(
        &with("measures = \"recall\"", "measures = \"aggregate\""),
        &cases,
        "6 cells for 0 cases",
    );
    let first = toml.find("[[cell]]").unwrap();
    refused(&toml[..first], &cases, "0 cells for 6 cases");
    refused(
        &with("case = \"len192-depth0\"", "case = \"code-1\""),
        &cases,
        "has no case",
    );
    let own = cases.replacen("\"ignore_eos\":true", "\"max_tokens\":9", 1);
    refused(&toml, &own, "extra may not set \"max_tokens\"");
}

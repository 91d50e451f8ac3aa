//! Published records: the transcriptions get the right labels, and one changed figure
//! gives exactly its own finding.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use runseal::audit::Verdict;
use runseal::codes::Code;
use runseal::digest::Sha256Digest;
use runseal::finding::{Outcome, Severity};
use runseal::published::report::{Derivation, PublishedReport};
use runseal::published::{self, Beside, Nothing, kind};
use serde_json::{Value, json};

fn file(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("evidence/published")
        .join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn audit_with(value: &Value, beside: &dyn Beside) -> PublishedReport {
    let bytes = serde_json::to_vec(value).unwrap();
    let kind = kind::of(value).unwrap();
    published::audit("record.json", &bytes, value, kind, beside)
}

fn audit(value: &Value) -> PublishedReport {
    audit_with(value, &Nothing)
}

fn codes(report: &PublishedReport, severity: Severity) -> BTreeSet<Code> {
    report
        .findings
        .iter()
        .filter(|f| f.severity == severity)
        .map(|f| f.code)
        .collect()
}

fn labels(report: &PublishedReport) -> BTreeMap<&'static str, usize> {
    report
        .labels()
        .iter()
        .map(|(d, n)| (d.name(), *n))
        .collect()
}

fn figure<'a>(report: &'a PublishedReport, id: &str) -> (Derivation, Option<&'a str>) {
    let f = report
        .figures
        .iter()
        .find(|f| f.id == id)
        .unwrap_or_else(|| panic!("no figure {id}"));
    (f.derivation, f.recomputed.as_deref())
}

const SWEEP: &str = "throughput-v3.json";
const PILOT: &str = "serving-pilot.json";
const CARD: &str = "recipe-card.json";

#[test]
fn the_sweep_is_recomputed_as_far_as_it_goes() {
    let r = audit(&file(SWEEP));
    assert_eq!(
        codes(&r, Severity::Error),
        BTreeSet::new(),
        "{:#?}",
        r.findings
    );
    assert_eq!(
        codes(&r, Severity::Note),
        [Code::SpreadWide].into(),
        "{:#?}",
        r.findings
    );
    assert_eq!(r.verdict, Verdict::SelfConsistent);
    use Derivation::*;
    let all = labels(&r);
    // 15 means, 15 spreads, and itemCount, responseCount, batches and requests.
    assert_eq!(all["recomputed"], 34);
    // 30 implied wall times and the tokens.
    assert_eq!(all["consistent"], 31);
    // 30 rates, 15 request rates, 15 first tokens, the warm-ups.
    assert_eq!(all["stated"], 61);
    assert_eq!(
        figure(&r, "cells[1024/C2].aggregateTokensPerSecond"),
        (Recomputed, Some("66.01695830674277"))
    );
    assert_eq!(figure(&r, "cells[1024/C2].spread").1, Some("0.148046"));
    assert_eq!(figure(&r, "totals.requests"), (Recomputed, Some("186")));
    assert_eq!(figure(&r, "totals.batches"), (Recomputed, Some("30")));
    assert_eq!(
        figure(&r, "totals.completionTokens"),
        (Consistent, Some("190464"))
    );
    assert_eq!(figure(&r, "cells[1024/C1].meanTtftSeconds").0, Stated);
    // 1024 / 46.48148674453251 s, worked out apart.
    assert_eq!(
        figure(&r, "cells[1024/C1].wall[0]"),
        (Consistent, Some("22.030276"))
    );
    assert!(r.figures.iter().all(|f| f.witness == "none"));
    let sources = r.checks.iter().find(|c| c.name == "sources").unwrap();
    assert!(matches!(sources.outcome, Outcome::NotPerformed { .. }));
}

#[test]
fn the_pilot_is_recomputed_as_far_as_it_goes() {
    let r = audit(&file(PILOT));
    assert_eq!(
        codes(&r, Severity::Error),
        BTreeSet::new(),
        "{:#?}",
        r.findings
    );
    assert_eq!(
        codes(&r, Severity::Note),
        [Code::PoolSmallerThanSlots].into()
    );
    assert_eq!(r.verdict, Verdict::SelfConsistent);
    use Derivation::*;
    for (id, label, value) in [
        (
            "metrics.request_completion_median",
            Recomputed,
            Some("4155.302"),
        ),
        (
            "metrics.request_completion_p95",
            Recomputed,
            Some("6909.581"),
        ),
        ("outcomes.observed_passes", Recomputed, Some("6")),
        ("outcomes.verified_passes", Recomputed, Some("6")),
        ("outcomes.counts.fail", Recomputed, Some("2")),
        ("outcomes.declared", Recomputed, Some("8")),
        ("metrics.completion_throughput", Consistent, None),
        ("implied.completion_tokens", Consistent, Some("787")),
        ("implied.chunks", Consistent, Some("206")),
        ("implied.tokens_per_chunk", Consistent, Some("3.820")),
        ("implied.full_length_sessions", Consistent, Some("4")),
        ("metrics.batch_duration", Stated, None),
        ("metrics.first_generated_median", Stated, None),
        ("metrics.chunk_interval_median", Stated, None),
        ("deployment.peak_overlap", NotRecorded, None),
        ("cases.request-02.duration_ms", Stated, None),
    ] {
        assert_eq!(figure(&r, id), (label, value), "{id}");
    }
}

#[test]
fn the_card_is_stated_and_its_gaps_are_named() {
    let r = audit(&file(CARD));
    assert_eq!(
        codes(&r, Severity::Error),
        BTreeSet::new(),
        "{:#?}",
        r.findings
    );
    let notes = [
        Code::DenominatorMissing,
        Code::ConfigsNotComparable,
        Code::PoolSmallerThanSlots,
    ];
    assert_eq!(codes(&r, Severity::Note), notes.into());
    assert_eq!(labels(&r)["recomputed"], 0);
    assert_eq!(figure(&r, "tp4.decode.code").0, Derivation::Stated);
    assert_eq!(figure(&r, "tp6.decode.code").0, Derivation::NotRecorded);
    assert_eq!(figure(&r, "tp6.concurrency").0, Derivation::NotRecorded);
    assert_eq!(
        figure(&r, "tp4.quality.Needle recall.lower_bound").1,
        Some("0.779077")
    );
    assert_eq!(
        figure(&r, "tp2.quality.Needle recall.lower_bound").1,
        Some("0.606962")
    );
    let tp6 = r
        .findings
        .iter()
        .find(|f| f.code == Code::ConfigsNotComparable && f.subject == "tp6")
        .unwrap();
    assert!(tp6.detail.contains("other builds"), "{}", tp6.detail);
    assert!(tp6.detail.contains("no decode figures"), "{}", tp6.detail);
}

/// One changed value, and the only error code that it gives.
fn changed(name: &str, edits: &[(&str, Value, Code)]) {
    for (pointer, new, want) in edits {
        let mut value = file(name);
        let place = value
            .pointer_mut(pointer)
            .unwrap_or_else(|| panic!("{name} has no {pointer}"));
        assert_ne!(place, new, "{pointer}");
        *place = new.clone();
        let r = audit(&value);
        let found = codes(&r, Severity::Error);
        assert_eq!(
            found,
            [*want].into(),
            "{name} {pointer} = {new}: {:#?}",
            r.findings
        );
        assert_eq!(r.verdict, Verdict::NotVerified);
    }
}

#[test]
fn one_changed_figure_of_the_sweep_is_one_finding() {
    let next = f64::from_bits(66.01695830674277_f64.to_bits() + 1);
    changed(
        SWEEP,
        &[
            (
                "/cells/1/aggregateTokensPerSecond",
                json!(next),
                Code::MeanNotReproduced,
            ),
            (
                "/cells/0/aggregateTokensPerSecond",
                json!(47.0275),
                Code::MeanNotReproduced,
            ),
            (
                "/cells/3/runTokensPerSecond/1",
                json!(150.4813120205257),
                Code::MeanNotReproduced,
            ),
            ("/cells/3/repetitions", json!(3), Code::TotalNotReproduced),
            ("/itemCount", json!(16), Code::TotalNotReproduced),
            ("/responseCount", json!(180), Code::TotalNotReproduced),
            ("/totals/batches", json!(29), Code::TotalNotReproduced),
            ("/totals/requests", json!(187), Code::TotalNotReproduced),
            (
                "/totals/completionTokens",
                json!(190463),
                Code::TotalNotReproduced,
            ),
            (
                "/profile/outputTokens",
                json!(1000),
                Code::TotalNotReproduced,
            ),
            (
                "/cells/14/meanTtftSeconds",
                json!(180.5),
                Code::FigureImpossible,
            ),
            (
                "/cells/14/meanTtftSeconds",
                json!(0),
                Code::FigureImpossible,
            ),
            (
                "/cells/0/meanRequestTokensPerSecond",
                json!(46.5),
                Code::FigureImpossible,
            ),
            ("/profile/maxConcurrency", json!(8), Code::FigureImpossible),
            (
                "/profile/contextLimitTokens",
                json!(17000),
                Code::FigureImpossible,
            ),
            ("/cells/1/contextTokens", json!(4096), Code::EntryDuplicate),
            (
                "/generatedAt",
                json!("2026-09-04T00:00:00Z"),
                Code::TimeImpossible,
            ),
            (
                "/runCompletedAt",
                json!("2026-09-05T16:00:46Z"),
                Code::TimeImpossible,
            ),
            ("/generatedAt", json!("soon"), Code::TimeImpossible),
            (
                "/description/en",
                json!("NextN makes it 1.8x faster."),
                Code::ClaimContradicted,
            ),
            (
                "/title/en",
                json!("128K context at full speed"),
                Code::ClaimContradicted,
            ),
            (
                "/subtitle/en",
                json!("Accuracy kept"),
                Code::ClaimContradicted,
            ),
            (
                "/description/tr",
                json!("NextN ile daha hızlı."),
                Code::ClaimContradicted,
            ),
            (
                "/sources/0/name",
                json!("../throughput.csv"),
                Code::SourceMismatch,
            ),
            ("/totals/requests", json!("186"), Code::SchemaInvalid),
        ],
    );
}

#[test]
fn one_changed_figure_of_the_pilot_is_one_finding() {
    changed(
        PILOT,
        &[
            (
                "/metrics/request_completion_median/value",
                json!("4155.304"),
                Code::PercentileNotReproduced,
            ),
            (
                "/metrics/request_completion_p95/value",
                json!("6931.26"),
                Code::PercentileNotReproduced,
            ),
            (
                "/cases/4/duration_ms",
                json!("4388.226"),
                Code::PercentileNotReproduced,
            ),
            (
                "/metrics/completion_throughput/value",
                json!("21.197"),
                Code::RateNotReproduced,
            ),
            (
                "/metrics/batch_duration/value",
                json!("37.105"),
                Code::FigureImpossible,
            ),
            (
                "/metrics/batch_duration/value",
                json!("37.171"),
                Code::RateNotReproduced,
            ),
            (
                "/outcomes/observed_passes",
                json!(7),
                Code::OutcomeNotReproduced,
            ),
            (
                "/outcomes/verified_passes",
                json!(8),
                Code::OutcomeNotReproduced,
            ),
            (
                "/outcomes/counts/fail",
                json!(1),
                Code::OutcomeNotReproduced,
            ),
            (
                "/cases/0/failure_stage",
                json!("answer_checks"),
                Code::OutcomeNotReproduced,
            ),
            (
                "/cases/1/primary_outcome",
                json!("pass"),
                Code::OutcomeNotReproduced,
            ),
            ("/outcomes/declared", json!(6), Code::TotalNotReproduced),
            ("/transport/declared", json!(9), Code::TotalNotReproduced),
            (
                "/metrics/first_content_median/samples",
                json!(9),
                Code::TotalNotReproduced,
            ),
            (
                "/metrics/request_completion_median/samples",
                json!(6),
                Code::TotalNotReproduced,
            ),
            (
                "/metrics/first_generated_median/value",
                json!("3322.560"),
                Code::FigureImpossible,
            ),
            (
                "/metrics/first_content_median/value",
                json!("4155.310"),
                Code::FigureImpossible,
            ),
            (
                "/deployment/input_observed_tokens/1",
                json!(300000),
                Code::FigureImpossible,
            ),
            ("/deployment/peak_overlap", json!(2), Code::FigureImpossible),
            (
                "/finished",
                json!("2026-09-20T14:30Z"),
                Code::TimeImpossible,
            ),
            ("/cases/7/id", json!("request-01"), Code::EntryDuplicate),
            (
                "/summary",
                json!("Twice faster than before"),
                Code::ClaimContradicted,
            ),
            (
                "/metrics/batch_duration/value",
                json!("37,153"),
                Code::SchemaInvalid,
            ),
        ],
    );
}

#[test]
fn one_changed_figure_of_the_card_is_one_finding() {
    changed(
        CARD,
        &[
            (
                "/configs/2/quality/0/value",
                json!("13/12 up to 507k"),
                Code::FigureImpossible,
            ),
            (
                "/configs/2/quality/0/value",
                json!("12/12 up to 1000k"),
                Code::FigureImpossible,
            ),
            (
                "/configs/0/prefill/1/context",
                json!(200000),
                Code::FigureImpossible,
            ),
            (
                "/configs/0/prefill/1/context",
                json!(32768),
                Code::FigureImpossible,
            ),
            (
                "/configs/0/concurrency/1/streams",
                json!(32),
                Code::FigureImpossible,
            ),
            (
                "/configs/1/decode/code",
                json!(-88.0),
                Code::FigureImpossible,
            ),
            ("/configs/1/max_context", json!(0), Code::FigureImpossible),
            ("/configs/1/nodes", json!(0), Code::FigureImpossible),
            ("/default_config", json!("tp8"), Code::ConfigUnknown),
            ("/configs/1/id", json!("tp2"), Code::EntryDuplicate),
            (
                "/summary",
                json!("DFlash2 makes it faster."),
                Code::ClaimContradicted,
            ),
            ("/configs/0/nodes", json!("2"), Code::SchemaInvalid),
        ],
    );
}

/// Rounding is no finding, and is not called recomputed.
#[test]
fn rounded_figures_are_consistent() {
    let mut value = file(SWEEP);
    value["cells"][0]["aggregateTokensPerSecond"] = json!(46.93);
    let r = audit(&value);
    assert_eq!(codes(&r, Severity::Error), BTreeSet::new());
    let id = "cells[1024/C1].aggregateTokensPerSecond";
    assert_eq!(figure(&r, id).0, Derivation::Consistent);
    let mut value = file(PILOT);
    value["metrics"]["request_completion_median"]["value"] = json!("4155.301");
    let r = audit(&value);
    assert_eq!(
        codes(&r, Severity::Error),
        BTreeSet::new(),
        "{:#?}",
        r.findings
    );
    assert_eq!(
        figure(&r, "metrics.request_completion_median").0,
        Derivation::Consistent
    );
}

/// With token counts of the cases the rate itself is recomputed.
#[test]
fn token_counts_make_the_rate_recomputable() {
    let mut value = file(PILOT);
    let tokens = [90, 110, 88, 100, 102, 84, 95, 118];
    assert_eq!(tokens.iter().sum::<u64>(), 787);
    for (case, n) in value["cases"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .zip(tokens)
    {
        case["completion_tokens"] = json!(n);
    }
    let r = audit(&value);
    let rate = figure(&r, "metrics.completion_throughput");
    assert_eq!(rate, (Derivation::Recomputed, Some("21.183")));
    value["cases"][0]["completion_tokens"] = json!(91);
    let found = codes(&audit(&value), Severity::Error);
    assert_eq!(found, [Code::RateNotReproduced].into());
}

/// Fields that the format does not have are named and not judged.
#[test]
fn unknown_fields_are_named() {
    let mut value = file(CARD);
    value["configs"][0]["power_watts"] = json!(240);
    let r = audit(&value);
    let f = r
        .findings
        .iter()
        .find(|f| f.code == Code::FieldUnknown)
        .unwrap();
    assert_eq!(f.subject, "configs[0].power_watts");
    assert_eq!(r.verdict, Verdict::SelfConsistent);
}

/// A caveat that is left out is missed.
#[test]
fn missing_caveats_are_named() {
    let mut value = file(SWEEP);
    value["caveats"].as_array_mut().unwrap().pop();
    let r = audit(&value);
    assert!(codes(&r, Severity::Note).contains(&Code::CaveatMissing));
}

struct Files(BTreeMap<&'static str, Vec<u8>>);

impl Beside for Files {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        Ok(self.0.get(name).cloned())
    }
}

#[test]
fn sources_beside_the_record_are_looked_at() {
    let mut value = file(SWEEP);
    let mut csv = String::from(
        "context_tokens,concurrency,repetition,output_tokens_per_request,output_tokens_per_second\n",
    );
    for c in value["cells"].as_array().unwrap() {
        for (i, rate) in c["runTokensPerSecond"]
            .as_array()
            .unwrap()
            .iter()
            .enumerate()
        {
            let rate = rate.as_f64().unwrap();
            csv.push_str(&format!(
                "{},{},{},1024,{rate:.6}\n",
                c["contextTokens"],
                c["concurrency"],
                i + 1
            ));
        }
    }
    let named = |value: &mut Value, csv: &str| {
        value["sources"][0]["sha256"] = json!(Sha256Digest::of(csv.as_bytes()));
        Files([("throughput.csv", csv.as_bytes().to_vec())].into())
    };
    let beside = named(&mut value, &csv);
    let r = audit_with(&value, &beside);
    assert_eq!(
        codes(&r, Severity::Error),
        BTreeSet::new(),
        "{:#?}",
        r.findings
    );
    let id = "cells[1024/C1].runTokensPerSecond[0]";
    assert_eq!(figure(&r, id).0, Derivation::Consistent);
    assert_eq!(figure(&audit(&value), id).0, Derivation::Stated);
    // Another file under that name.
    let other = Files([("throughput.csv", b"x".to_vec())].into());
    let found = codes(&audit_with(&value, &other), Severity::Error);
    assert_eq!(found, [Code::SourceMismatch].into());
    // The named file, with another rate in it, a row too few, or no table at all.
    let edited = csv.replacen("46.481487", "46.481987", 1);
    assert_ne!(edited, csv);
    let short = csv
        .lines()
        .take(30)
        .map(|l| format!("{l}\n"))
        .collect::<String>();
    let mut lines: Vec<&str> = csv.lines().collect();
    lines[30] = lines[29];
    let doubled = lines.join("\n") + "\n";
    for text in [edited, short, doubled] {
        let beside = named(&mut value, &text);
        let found = codes(&audit_with(&value, &beside), Severity::Error);
        assert_eq!(found, [Code::SourceDisagrees].into());
    }
}

/// Through the real program: a tree, its exit code, and the policy that accepts it.
#[test]
fn the_program_says_the_same() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let run = |args: &[&str]| {
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_verify"))
            .args(args)
            .current_dir(&root)
            .output()
            .unwrap();
        let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
        (out.status.code(), text(out.stdout), text(out.stderr))
    };
    let (code, out, err) = run(&["record", "evidence/published"]);
    assert_eq!(code, Some(1), "{out}{err}");
    assert_eq!(
        out.lines()
            .filter(|l| l.starts_with("self-consistent"))
            .count(),
        3,
        "{out}"
    );
    assert!(out.contains("3 self-consistent and not signed"), "{out}");
    let (code, out, err) = run(&["record", "evidence/published", "--format", "json"]);
    assert_eq!(code, Some(1));
    assert!(err.starts_with("3 records: 0 verified"), "{err}");
    for line in out.lines() {
        let report: Value = serde_json::from_str(line).unwrap();
        runseal::schema::validate("published-verdict", &report).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.toml");
    std::fs::write(
        &policy,
        "format = \"runseal.policy/v1\"\n[require]\naccept_unsigned = true\n",
    )
    .unwrap();
    let policy = policy.to_str().unwrap();
    let (code, out, _) = run(&["record", "evidence/published", "--policy", policy]);
    assert_eq!(code, Some(0), "{out}");
}

/// A card may say that it lacks a figure, and that a configuration stands apart.
#[test]
fn cards_with_gaps_are_read() {
    let mut value = file(CARD);
    value["configs"][0]["decode"]["code"] = json!(null);
    value["configs"][0]["max_context"] = json!(null);
    value["configs"][0]["max_concurrent"] = json!(null);
    value["configs"][0]["concurrency"][0]["aggregate_tps"] = json!(null);
    value["configs"][1]["not_comparable"] = json!(["another kernel"]);
    value["configs"][1]["evidence"] = json!({"run": "x"});
    let r = audit(&value);
    assert_eq!(
        codes(&r, Severity::Error),
        BTreeSet::new(),
        "{:#?}",
        r.findings
    );
    assert!(!codes(&r, Severity::Note).contains(&Code::FieldUnknown));
    for id in ["tp2.decode.code", "tp2.concurrency[4]"] {
        assert_eq!(figure(&r, id).0, Derivation::NotRecorded, "{id}");
    }
    let of =
        |f: &&runseal::finding::Finding| f.code == Code::ConfigsNotComparable && f.subject == "tp3";
    let apart = r.findings.iter().find(of).unwrap();
    assert!(apart.detail.contains("another kernel"), "{}", apart.detail);
}

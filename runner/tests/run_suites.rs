//! The shipped suites on the reference engine, from plan to audit.

#[path = "run_failures/support.rs"]
#[allow(dead_code)]
mod support;

use std::fs;

use runseal::metrics::Metric;
use runseal::metrics::recall::lower_bound;
use runseal::record::{FixedOutput, RunRecord};
use runseal::scorer::Grade;
use support::{Plan, Work};

fn run(suite: &str) -> (Work, RunRecord) {
    let plan = Plan {
        replicas: 1,
        ..Plan::default()
    };
    let work = Work::new(&plan);
    let suite = format!("\"{suite}\"\nwithholdable = [\"responses.jsonl\"]");
    let text = plan.text().replace("\"tiny\"", &suite);
    fs::write(work.path("attest.toml"), text).unwrap();
    work.run().exits(0);
    // An audit that found nothing: every figure was recomputed.
    let record = work.record();
    (work, record)
}

fn metric<'a>(record: &'a RunRecord, id: &str) -> &'a Metric {
    record.metrics.iter().find(|m| m.id == id).unwrap()
}

#[test]
fn needle_recall_states_its_cells_and_its_bound() {
    let (work, record) = run("needle-recall-v1");
    assert_eq!(record.run.kind, "recall");
    assert_eq!(record.cases.len(), 15);
    for case in &record.cases {
        let cell = case.cell.as_ref().unwrap();
        let id = format!(
            "len{}-depth{}",
            cell.length_target_tokens, cell.depth_percent
        );
        assert_eq!(case.case, id);
        assert!(cell.needle_seed.ends_with(&id));
        // What the server counted stands beside the target, and is near it: a
        // target off by a tenth would be another length.
        let counted = case.prompt_tokens.unwrap();
        let off = counted.abs_diff(cell.length_target_tokens);
        assert!(off * 10 <= cell.length_target_tokens, "{id}: {counted}");
    }
    let passes = record
        .cases
        .iter()
        .filter(|c| c.grade == Grade::Pass)
        .count();
    assert!(passes > 0, "{:#?}", record.grades);
    let share = metric(&record, "recall/v1");
    assert_eq!(share.n, 15);
    let millionths = lower_bound(passes, 15).unwrap();
    let bound = metric(&record, "recall-lower-bound/v1");
    assert_eq!(bound.value, Some(format!("0.{millionths:06}")));

    // Without the answers nobody can grade again: both are then only said.
    fs::remove_file(work.bundle().join("responses.jsonl")).unwrap();
    let report = work.audit(true);
    for id in ["recall/v1", "recall-lower-bound/v1"] {
        let figure = report.figures.iter().find(|f| f.id == id).unwrap();
        assert_eq!(
            (figure.derivation.as_str(), &figure.recomputed),
            ("stated", &None)
        );
        assert!(figure.stated.is_some());
    }
}

#[test]
fn other_kinds_have_no_recall() {
    let work = Work::new(&Plan {
        replicas: 1,
        cases: 1,
        ..Plan::default()
    });
    work.run().exits(0);
    let record = work.record();
    assert!(!record.metrics.iter().any(|m| m.id.starts_with("recall")));
    assert!(record.cases[0].cell.is_none());
}

/// The shipped sweep, which the engine can be asked whatever its contexts.
fn swept() -> (Work, RunRecord) {
    let plan = Plan {
        replicas: 1,
        ..Plan::default()
    };
    let work = Work::new(&plan);
    let text = plan
        .text()
        .replace("\"tiny\"", "\"context-sweep-v1\"")
        .replace(
            "max_tokens = 256",
            "max_tokens = 32\nextra = { ignore_eos = true }",
        )
        .replace(
            "concurrency = 1\nrepetitions = 1",
            "concurrency = 2\nrepetitions = 2",
        );
    fs::write(work.path("attest.toml"), text).unwrap();
    work.run().exits(0);
    let record = work.record();
    (work, record)
}

#[test]
fn a_context_sweep_gives_every_batch_its_figures_and_exports_them() {
    let (work, record) = swept();
    assert_eq!(
        (record.run.kind.as_str(), record.cases.len()),
        ("sweep", 12)
    );
    assert_eq!((record.transport.completed, record.grades.pass), (12, 12));
    let sizes: Vec<u32> = record.input.batches.iter().map(|b| b.concurrency).collect();
    assert_eq!(sizes, [1, 2, 1, 2]);
    for (i, size) in sizes.iter().enumerate() {
        let batch = Some(i as u32 + 1);
        let of = |id: &str| -> Vec<&Metric> {
            let mine = |m: &&Metric| m.batch == batch && m.id == id;
            record.metrics.iter().filter(mine).collect()
        };
        let rates = of("batch-throughput/v1");
        assert_eq!(rates.len(), 2);
        assert_eq!((rates[0].rep, rates[1].rep), (Some(0), Some(1)));
        let number = |m: &Metric| m.value.as_ref().unwrap().parse::<f64>().unwrap();
        let mean = number(of("batch-throughput-mean/v1")[0]);
        assert!((mean - (number(rates[0]) + number(rates[1])) / 2.0).abs() < 2e-6);
        let fixed = of("fixed-output/v1")[0];
        assert_eq!(fixed.value, Some((2 * size).to_string()), "{fixed:?}");
    }
    // Every answer went on to its cap, by the server's own count.
    assert_eq!(
        record.requests.fixed_output,
        Some(FixedOutput::Proven { n: 12 })
    );
    // Three declared warm-ups, in no figure.
    let warm = record.limitations.iter().find(|l| l.code == "warm-engine");
    assert_eq!(warm.unwrap().params["n"], "3");

    let bundle = work.bundle();
    let export = |more: &[&str]| {
        let args = ["export", bundle.to_str().unwrap(), "-o", "out"];
        let command = work.command(&[&args[..], more].concat());
        work.start_command(command).end()
    };
    export(&[]).exits(0);
    let csv = fs::read_to_string(work.path("out/throughput.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 4 * 2);
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(work.path(name)).unwrap()).unwrap()
    };
    let published = json("out/inference.json");
    assert_eq!(published["schemaVersion"], 3);
    assert_eq!(published["totals"]["batches"], 8);
    assert_eq!(published["totals"]["requests"], 12);
    assert_eq!(published["totals"]["completionTokens"], 12 * 32);
    assert_eq!(published["totals"]["excludedWarmupRequests"], 3);
    assert_eq!(published["profile"]["ignoreEos"], true);
    for (source, file) in [(0, "throughput.csv"), (1, "verified-summary.json")] {
        let bytes = fs::read(work.path("out").join(file)).unwrap();
        let digest = runseal::digest::Sha256Digest::of(&bytes).hex();
        assert_eq!(published["sources"][source]["sha256"], digest);
    }
    for field in ["title", "method", "description", "category"] {
        let (tr, en) = (&published[field]["tr"], &published[field]["en"]);
        assert!(tr.is_string() && en.is_string() && tr != en, "{field}");
    }
    assert_eq!(
        json("out/verified-summary.json")["cells"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
    // Nothing is written over, and nothing that is not true to itself is exported.
    export(&[]).exits(2).says("left alone");
    export(&["--force"]).exits(0);
    let grades = fs::read_to_string(bundle.join("grades.jsonl")).unwrap();
    fs::write(
        bundle.join("grades.jsonl"),
        grades.replacen("pass", "fail", 1),
    )
    .unwrap();
    export(&["--force"]).exits(1).says("was not exported");
}

#[test]
fn a_sweep_decides_itself_how_many_are_open() {
    let work = Work::new(&Plan::default());
    let text = Plan::default()
        .text()
        .replace("\"tiny\"", "\"context-sweep-v1\"");
    fs::write(work.path("attest.toml"), text).unwrap();
    let command = work.command(&["plan", "show"]);
    work.start_command(command)
        .end()
        .exits(2)
        .says("load.concurrency = 2");
}

/// What an audit of the bundle says once its suite.toml is another, by the subjects of
/// the findings. The changed bytes are findings too, of their own.
fn audited_with(work: &Work, change: &[(&str, &str)], without_cases: bool) -> Vec<String> {
    let mut raw = runseal::bundle::read::read(&work.bundle()).unwrap();
    let path = |p| runseal::relpath::RelPath::parse(p).unwrap();
    let toml = path("suite/suite.toml");
    let mut text = String::from_utf8(raw.files[&toml].clone()).unwrap();
    for (from, to) in change {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    raw.files.insert(toml, text.into_bytes());
    if without_cases {
        raw.files.remove(&path("suite/cases.jsonl")).unwrap();
    }
    let reader = runseal::audit::Reader {
        trusted: &[],
        grader: &|_: &[u8], _: &[runseal::scorer::GradeItem]| Err("not asked".to_owned()),
        commitment: None,
    };
    let report = runseal::audit::audit("bundle", &raw, &reader);
    let planned = report.findings.iter();
    planned
        .filter(|f| f.code == runseal::codes::Code::RequestNotAsPlanned)
        .map(|f| format!("{}: {}", f.subject, f.detail))
        .collect()
}

#[test]
fn batches_that_overlap_or_leave_cases_out_are_found() {
    let (work, _) = swept();
    let first = "context_tokens = 128\nconcurrency = 1\n";
    let second = "context_tokens = 128\nconcurrency = 2\n";
    // As it was sent, there is nothing to say, whether the cases are there or not.
    assert_eq!(audited_with(&work, &[], false), [""; 0]);
    assert_eq!(audited_with(&work, &[], true), [""; 0]);
    // The second batch of two was open at once: as batches of two and one, it overlaps.
    let swapped = [
        (first, "context_tokens = 128\nconcurrency = 9\n"),
        (second, first),
        ("concurrency = 9", "concurrency = 2"),
    ];
    let overlap = "it began before the one before it had ended";
    assert_eq!(
        audited_with(&work, &swapped, false),
        [0, 1].map(|rep| format!("batch 2 of repetition {rep}: {overlap}"))
    );
    // Where the cases are withheld, their number is known all the same.
    let seven = audited_with(&work, &[(first, second)], true);
    let count = "suite/suite.toml: its batches have 7 requests for 6 declared cases".to_owned();
    assert!(seven.contains(&count), "{seven:?}");
}

/// A run of a shipped suite with its prompts filled, or with other requests.
fn with(suite: &str, edits: &[(&str, &str)], more: &str) -> RunRecord {
    let plan = Plan {
        replicas: 1,
        ..Plan::default()
    };
    let work = Work::new(&plan);
    let mut text = plan.text().replace("\"tiny\"", &format!("\"{suite}\""));
    for (from, to) in edits {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    fs::write(work.path("attest.toml"), format!("{text}\n{more}\n")).unwrap();
    work.run().exits(0);
    work.record()
}

#[test]
fn shipped_suites_reach_their_length_targets_when_prompts_are_filled() {
    let sweep = [
        (
            "max_tokens = 256",
            "max_tokens = 32\nextra = { ignore_eos = true }",
        ),
        ("concurrency = 1", "concurrency = 2"),
    ];
    let serving = "[input]\nlanguage = \"en\"\nlength_target_tokens = 600";
    let (en, tr) = ("[input]\nlanguage = \"en\"", "[input]\nlanguage = \"tr\"");
    for (suite, edits, input, targets) in [
        ("needle-recall-v1", &[][..], en, &[192, 256, 320][..]),
        ("context-sweep-v1", &sweep[..], tr, &[128, 256]),
        ("serving-performance-v1", &[], serving, &[600]),
    ] {
        let record = with(suite, edits, input);
        let found: Vec<u64> = record
            .input
            .lengths
            .iter()
            .map(|r| r.target_tokens)
            .collect();
        assert_eq!(found, targets, "{suite}");
        for range in &record.input.lengths {
            assert_eq!(range.within, range.declared, "{suite}: {range:?}");
        }
        let missed = |l: &runseal::record::Limitation| l.code == "length-target-missed";
        assert!(!record.limitations.iter().any(missed), "{suite}");
    }
}

#[test]
fn the_reference_engine_answers_completions_as_it_answers_chats() {
    let edits = [("temperature =", "api = \"completions\"\ntemperature =")];
    let completions = with("serving-performance-v1", &edits, "");
    assert_eq!(completions.transport.completed, 16);
    let api = &completions.conditions.values["api"];
    assert_eq!(api, "/v1/completions");
    // The same prompt to the token; only its random prefix differs.
    let chats = with("serving-performance-v1", &[], "");
    assert!(!chats.conditions.values.contains_key("api"));
    for (a, b) in completions.cases.iter().zip(&chats.cases) {
        assert_eq!(a.prompt_tokens, b.prompt_tokens, "{}", a.case);
    }
    assert!(completions.grades.pass > 8, "{:?}", completions.grades);
}

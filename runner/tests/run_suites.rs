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
    audited_in(&work.bundle(), change, without_cases)
}

fn audited_in(
    bundle: &std::path::Path,
    change: &[(&str, &str)],
    without_cases: bool,
) -> Vec<String> {
    let mut raw = runseal::bundle::read::read(bundle).unwrap();
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

/// The shipped card's suite in a plan of its own.
fn card_plan(more: &str) -> (Work, String) {
    let plan = Plan {
        replicas: 1,
        ..Plan::default()
    };
    let work = Work::new(&plan);
    let text = plan
        .text()
        .replace(
            "\"tiny\"",
            "\"recipe-card-v1\"\nwithholdable = [\"responses.jsonl\"]",
        )
        .replace("max_tokens = 256", &format!("max_tokens = 64\n{more}"))
        .replace("concurrency = 1\n", "concurrency = 8\n");
    (work, text)
}

fn card_run(work: &Work, text: &str, name: &str) {
    fs::write(work.path("attest.toml"), text).unwrap();
    work.start_command(work.command(&["run", "--out", name]))
        .end()
        .exits(0);
}

fn only(folder: std::path::PathBuf) -> std::path::PathBuf {
    let mut entries = fs::read_dir(folder).unwrap();
    entries.next().unwrap().unwrap().path()
}

#[test]
fn a_recipe_card_measures_each_batch_for_what_it_is_and_merges_configurations() {
    let (work, text) = card_plan("continuous_usage = true");
    card_run(&work, &text, "one");
    let one = only(work.path("one"));
    let report = support::audit_of(&one, Some(work.path("keys/attest.pub.pem")));
    // Every figure was recomputed, and equals what the record says.
    assert_eq!(
        report.verdict,
        runseal::audit::Verdict::Verified,
        "{:#?}",
        report.findings
    );
    for f in &report.figures {
        assert_eq!(f.derivation, "recomputed", "{}", f.id);
        assert_eq!(f.stated, f.recomputed, "{}", f.id);
        assert!(f.recomputed.is_some(), "{}: {:?}", f.id, f.note);
    }
    let record = *report.derived.unwrap();
    assert_eq!((record.run.kind.as_str(), record.cases.len()), ("card", 28));
    assert_eq!(record.transport.completed, 28);
    let fixed = record.cases.iter().take(22);
    assert!(
        fixed.clone().all(|c| c.grade == Grade::Pass),
        "{:#?}",
        record.cases
    );
    let celled = record.cases.iter().filter(|c| c.cell.is_some()).count();
    assert_eq!(celled, 6);
    let ids = |batch: u32| -> Vec<&str> {
        let mine = record.metrics.iter().filter(|m| m.batch == Some(batch));
        mine.map(|m| m.id.strip_suffix("/v1").unwrap()).collect()
    };
    let rest = ["first-generated-mean", "fixed-output"];
    for decode in 1..=3 {
        assert_eq!(ids(decode)[..2], ["decode-rate-mean", "request-rate-mean"]);
        assert_eq!(ids(decode)[2..], rest);
    }
    for prefill in 4..=5 {
        assert_eq!(ids(prefill)[..1], ["prefill-rate-mean"]);
        assert_eq!(ids(prefill)[1..], rest);
    }
    for streams in 6..=7 {
        let of = [
            "batch-throughput",
            "batch-throughput-mean",
            "request-rate-mean",
        ];
        assert_eq!(ids(streams)[..3], of);
    }
    assert_eq!(ids(8), ["recall", "recall-lower-bound"]);
    assert_eq!(
        record.metrics.iter().filter(|m| m.batch.is_none()).count(),
        0
    );

    // Its requests in turn, never more at once than the batch has.
    let first = "concurrency = 4\nrequests = 4\n";
    let found = audited_in(&one, &[(first, "concurrency = 1\nrequests = 4\n")], false);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("batch 6 of repetition 0: "), "{found:?}");
    assert!(found[0].ends_with("of its requests were open at once, 1 planned"));

    // Another configuration, of which something that matters differs.
    card_run(&work, &text.replace("seed = 1", "seed = 2"), "two");
    let two = only(work.path("two"));
    let named = [
        format!("a={}", one.display()),
        format!("b={}", two.display()),
    ];
    let export = |more: &[&str]| {
        let args = ["export", "--format", "recipe-card", "-o", "out"];
        let named: Vec<&str> = named.iter().map(String::as_str).collect();
        let command = work.command(&[&args[..], &named, more].concat());
        work.start_command(command).end()
    };
    export(&[]).exits(0);
    let card: serde_json::Value =
        serde_json::from_slice(&fs::read(work.path("out/recipe-card.json")).unwrap()).unwrap();
    assert_eq!(
        (&card["version"], &card["default_config"]),
        (&1.into(), &"a".into())
    );
    let (a, b) = (&card["configs"][0], &card["configs"][1]);
    for kind in ["code", "prose", "structured"] {
        assert!(a["decode"][kind].as_f64().unwrap() > 0.0);
    }
    assert_eq!(a["prefill"][1]["context"], 512);
    assert_eq!(a["concurrency"][1]["streams"], 8);
    // From the server's own documents, which state no pool.
    assert_eq!(a["max_context"], 1024);
    assert_eq!(a["max_concurrent"], 8);
    assert_eq!(a["kv_pool_tokens"], serde_json::Value::Null);
    assert_eq!(a["absent"][0]["figure"], "kv_pool_tokens");
    assert_eq!(a["evidence"]["run"], record.run.id);
    assert_eq!(
        (&a["comparable"], &b["comparable"]),
        (&true.into(), &false.into())
    );
    assert_eq!(b["not_comparable"][0], "seed differs: 2 here, 1 in a");
    assert_eq!(b["not_comparable"].as_array().unwrap().len(), 1);
    let recalled = a["quality"][0]["value"].as_str().unwrap();
    assert!(recalled.contains("/6 up to 2"), "{recalled}");
    export(&[]).exits(2).says("left alone");

    // Answers that are not there: recall is then only said, and the card says so.
    fs::remove_file(two.join("responses.jsonl")).unwrap();
    export(&["--force", "--default", "b"]).exits(0);
    let text = fs::read_to_string(work.path("out/recipe-card.json")).unwrap();
    assert!(text.contains("\"derivation\": \"stated\""), "{text}");
    export(&["--force", "--default", "c"])
        .exits(2)
        .says("\"c\" is none of the configurations");

    // A bundle that does not audit: nothing is written.
    let grades = fs::read_to_string(two.join("grades.jsonl")).unwrap();
    fs::write(two.join("grades.jsonl"), grades.replacen("pass", "fail", 1)).unwrap();
    fs::remove_file(work.path("out/recipe-card.json")).unwrap();
    export(&[]).exits(1).says("was not exported");
    assert!(!work.path("out/recipe-card.json").exists());
    // Nor is a card a sweep.
    let args = ["export", one.to_str().unwrap(), "-o", "out"];
    let sweep = work.start_command(work.command(&args)).end();
    sweep.exits(2).says("--format recipe-card");
}

#[test]
fn decode_is_not_measured_without_counts_on_every_chunk() {
    let (work, text) = card_plan("");
    card_run(&work, &text, "one");
    let record = *support::audit_of(&only(work.path("one")), None)
        .derived
        .unwrap();
    let decode = metric(&record, "decode-rate-mean/v1");
    assert_eq!((&decode.value, decode.n), (&None, 0));
    let why = "incomplete: 2 declared attempts have no such value";
    assert_eq!(decode.note.as_deref(), Some(why));
    assert!(metric(&record, "prefill-rate-mean/v1").value.is_some());
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

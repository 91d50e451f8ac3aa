//! The shipped suites on the reference engine, from plan to audit.

#[path = "run_failures/support.rs"]
#[allow(dead_code)]
mod support;

use std::fs;

use runseal::metrics::Metric;
use runseal::metrics::recall::lower_bound;
use runseal::record::RunRecord;
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

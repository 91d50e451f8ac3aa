//! Scorers that err and scorers that do not survive.

use std::fs;

use runseal::audit::Verdict;
use runseal::record::Status;
use runseal::scorer::Grade;

use crate::support::{Plan, Work, failed_with};

fn with_check(expr: &str) -> Work {
    let work = Work::new(&Plan::default());
    let scorer = format!(
        "format = \"runseal.scorer/v1\"\nname = \"mine-v1\"\ndialect = \"runseal-cel/1\"\n\n\
         [[check]]\nid = \"only\"\nexpr = '{expr}'\n"
    );
    fs::write(work.path("tiny/scorer.toml"), scorer).unwrap();
    work
}

#[test]
fn a_check_that_errs_leaves_cases_ungraded_and_the_run_completed() {
    let work = with_check("case.no_such_field == answer.content");
    work.run().exits(0);
    let record = work.record();
    assert_eq!(record.run.status, Status::Completed);
    assert_eq!(record.grades.ungraded, 4, "{:?}", record.grades);
    assert_eq!((record.grades.pass, record.grades.fail), (0, 0));
}

#[test]
fn a_scorer_whose_child_dies_fails_the_run_in_grade() {
    let bomb = format!("size([answer.content]{}) == 0", ".map(x, x + x)".repeat(40));
    let work = with_check(&bomb);
    work.run().exits(1).says("FAILED in grade: scorer-failed");
    // Nobody can grade this again, so nobody says verified: not performed.
    let report = work.audit(true);
    assert_eq!(report.verdict, Verdict::NotVerified);
    assert!(
        report.grades.starts_with("not recomputed"),
        "{}",
        report.grades
    );
    let record = *report.derived.unwrap();
    failed_with(&record, "grade", "scorer-failed");
    assert_eq!(record.grades.ungraded, 4);
    assert!(record.cases.iter().all(
        |c| matches!(&c.grade, Grade::Ungraded { reason } if reason.contains("memory limit"))
    ));
}

#[test]
fn a_scorer_that_is_refused_never_runs_anything() {
    let work = with_check("no_such_function(answer)");
    work.run().exits(2).says("no_such_function");
    assert!(work.bundles().is_empty(), "nothing was declared");
}

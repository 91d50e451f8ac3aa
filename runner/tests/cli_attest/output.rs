//! What `attest run` prints, and its exit code.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Plan, Work};

#[test]
fn the_last_line_is_one_object_and_out_is_obeyed() {
    let work = Work::new(&Plan::default());
    let run = work.command(&["run", "--format", "json", "--out", "else/where"]);
    let ended = work.start_command(run).end().exits(0);
    let line: Value = serde_json::from_str(ended.out.lines().last().unwrap()).unwrap();
    let text = |key: &str| line[key].as_str().unwrap().to_owned();
    assert!(text("bundle").starts_with("else/where/20"), "{line}");
    assert_eq!(
        text("record"),
        format!("{}/record.intoto.jsonl", text("bundle"))
    );
    assert!(work.path(&text("record")).is_file());
    assert!(work.path(&text("public_key")).is_file());
    assert_eq!(text("status"), "completed");
    assert_eq!(line["transport"]["completed"], 4);
    assert_eq!(line["grades"]["declared"], 4);
    assert_eq!(line["integrity"]["verified"], 2);
    assert!(!work.path("evidence").exists());
    assert!(!ended.out.contains("preflight"), "stdout is data");
}

#[test]
fn grades_become_the_exit_code_only_when_asked() {
    // These answers are all wrong: every one is cut off.
    let plan = Plan::default();
    let work = Work::new(&plan);
    let text = plan.text().replace("max_tokens = 256", "max_tokens = 1");
    fs::write(work.path("attest.toml"), text).unwrap();
    let run = |args: &[&str]| work.start_command(work.command(args)).end();
    run(&["run"]).exits(0).says("0 / 4 pass");
    run(&["run", "--require-pass", "0"]).exits(0);
    run(&["run", "--require-pass", "1/4"])
        .exits(1)
        .says("1/4 of the cases must pass; 0 of 4 did");
    run(&["run", "--require-pass", "2"]).exits(2);
}

#[test]
fn a_reader_that_goes_away_changes_nothing() {
    let work = Work::new(&Plan::default());
    let mut child = work
        .command(&["run"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    work.record();
}

#[test]
fn output_that_cannot_be_written_is_an_error_that_names_the_sealed_bundle() {
    let work = Work::new(&Plan::default());
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let out = work.command(&["run"]).stdout(full).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(err.contains("the sealed bundle is"), "{err}");
    work.record();
}

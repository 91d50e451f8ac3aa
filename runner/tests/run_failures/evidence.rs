//! Evidence that cannot be written. A full disk is a step of its own
//! (tests/root/disk-full.sh); a limit on file sizes needs no privileges and hits
//! the same writes.

use std::fs;
use std::process::Command;

use runseal::record::Status;

use crate::support::{Plan, Work, attest, codes};

/// `attest run` that can write no file past `blocks` of 512 bytes.
fn limited(work: &Work, blocks: u64) -> Command {
    let mut sh = Command::new("sh");
    sh.arg("-c")
        .arg(format!("ulimit -f {blocks}; exec \"$0\" run"))
        .arg(attest())
        .current_dir(work.dir.path());
    sh
}

#[test]
fn a_file_that_cannot_grow_ends_the_run_with_a_clear_error() {
    let plan = Plan {
        replicas: 1,
        ..Plan::default()
    };
    let work = Work::new(&plan);
    // Copies and key are made without the limit.
    work.run().exits(0);
    let whole = work.bundle();
    let log = fs::metadata(whole.join("events.jsonl")).unwrap().len() / 512;
    fs::remove_dir_all(work.path("evidence")).unwrap();
    // From a limit that stops the declaration to one that stops the measurement.
    for blocks in [1, 2, 4, 8, 16, log / 2, log * 3 / 4] {
        let ended = work.start_command(limited(&work, blocks)).end();
        let code = ended.status.code();
        assert!(matches!(code, Some(1 | 2)), "{blocks} blocks: {ended:?}");
        assert!(
            ended.err.contains("hint: "),
            "{blocks} blocks: {}",
            ended.err
        );
        work.assert_no_process();
        let bundle = work.bundle();
        let report = crate::support::audit_of(&bundle, Some(work.path("keys/attest.pub.pem")));
        if bundle.join("record.intoto.jsonl").exists() {
            let status = report.derived.unwrap().run.status;
            assert!(
                matches!(status, Status::Failed { .. }),
                "{blocks}: {status:?}"
            );
        } else {
            assert_ne!(report.exit_code(), 0);
            assert!(codes(&report).contains(&"record-missing"));
            assert_eq!(code, Some(2), "{blocks} blocks: {}", ended.err);
        }
        // Whole lines only, and without the limit what was declared can be closed.
        if let Ok(log) = fs::read(bundle.join("events.jsonl")) {
            assert!(log.is_empty() || log.ends_with(b"\n"), "{blocks} blocks");
        }
        if !work.events().is_empty() && !bundle.join("record.intoto.jsonl").exists() {
            work.close().exits(1);
            work.record();
        }
        fs::remove_dir_all(work.path("evidence")).unwrap();
    }
}

#[test]
fn an_answer_file_that_cannot_grow_fails_the_run_in_a_sealed_record() {
    let work = Work::new(&Plan::slow());
    let mut run = work.start();
    run.wait_for_text();
    // The folder's other files still can be written: only this one is in the way.
    let answers = work.bundle().join("responses.jsonl");
    fs::remove_file(&answers).unwrap();
    fs::create_dir(&answers).unwrap();
    let ended = run.end();
    // The record cannot be sealed without that file; the error says so.
    assert_eq!(ended.status.code(), Some(2), "{}", ended.err);
    assert!(ended.err.contains("no record was sealed"), "{}", ended.err);
    assert!(!work.bundle().join("record.intoto.jsonl").exists());
    work.assert_no_process();
}

#[test]
fn evidence_that_cannot_be_collected_keeps_nothing_from_being_taken_down() {
    let work = Work::new(&Plan::slow());
    let mut run = work.start();
    run.wait_for_text();
    // Rewriting this file after the measurement now fails.
    let node = work.bundle().join("nodes/n0.json");
    let whole = fs::read(&node).unwrap();
    fs::remove_file(&node).unwrap();
    fs::create_dir(&node).unwrap();
    fs::write(node.join("x"), whole).unwrap();
    let ended = run.end().exits(2).says("FAILED in collect: evidence-write");
    assert!(
        ended.err.contains("teardown: 2 engines ended, 0 left"),
        "{}",
        ended.err
    );
    work.assert_no_process();
}

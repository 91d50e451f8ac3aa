//! Ctrl-C and SIGTERM in every state.

use std::fs;

use runseal::digest::Sha256Digest;
use runseal::event::{Event, State};
use runseal::relpath::RelPath;
use runseal::response::Response;
use runseal::weights::{Manifest, ManifestFile};
use rustix::process::Signal;

use crate::support::{Plan, Work, aborted_by};

/// A checkpoint with a file that takes seconds to hash and no space on disk.
pub fn with_a_long_rehash() -> Work {
    let plan = Plan {
        manifest: "big.manifest.json".into(),
        replicas: 1,
        ..Plan::default()
    };
    let work = Work::new(&plan);
    let size = 16u64 << 30;
    let file = ManifestFile {
        path: RelPath::parse("big.bin").unwrap(),
        size,
        sha256: Sha256Digest([0; 32]),
        blake3: None,
        mode: None,
    };
    let manifest = Manifest::new(vec![file], None).unwrap();
    fs::write(work.path("big.manifest.json"), manifest.to_bytes()).unwrap();
    fs::create_dir_all(work.path("replicas/r0")).unwrap();
    let file = fs::File::create(work.path("replicas/r0/big.bin")).unwrap();
    file.set_len(size).unwrap();
    work
}

#[test]
fn in_verify_nobody_waits_for_the_rehash() {
    let work = with_a_long_rehash();
    let mut run = work.start();
    run.wait_for_state(State::Verify);
    run.signal(Signal::INT);
    run.end().exits(1).says("SIGINT");
    let record = work.record();
    aborted_by(&record, "SIGINT");
    assert!(work.engines().is_empty());
    assert_eq!(record.transport.not_attempted, 4);
}

#[test]
fn while_engines_come_up_all_of_them_are_taken_down() {
    let work = Work::new(&Plan {
        replicas: 4,
        ..Plan::slow()
    });
    let mut run = work.start();
    run.wait_for_state(State::Launch);
    run.signal(Signal::TERM);
    run.end().exits(1);
    aborted_by(&work.record(), "SIGTERM");
    work.assert_no_process();
}

#[test]
fn in_warm_up() {
    let work = Work::new(&Plan {
        engine_args: vec!["--prefill-delay-ms".into(), "20000".into()],
        ..Plan::default()
    });
    let mut run = work.start();
    run.wait_for(|e| matches!(e, Event::Send { .. }));
    run.signal(Signal::INT);
    run.end().exits(1);
    let record = work.record();
    aborted_by(&record, "SIGINT");
    assert_eq!(record.transport.not_attempted, 4, "{:?}", record.transport);
}

#[test]
fn in_measure_the_text_so_far_is_kept_and_a_second_signal_does_no_harm() {
    let work = Work::new(&Plan::slow());
    let mut run = work.start();
    run.wait_for_text();
    run.signal(Signal::INT);
    run.wait_for(|e| matches!(e, Event::Signal { .. }));
    run.signal(Signal::INT);
    run.signal(Signal::TERM);
    run.end().exits(1).says("hint: what was measured is kept");
    let record = work.record();
    aborted_by(&record, "SIGINT");
    assert_eq!(record.transport.cancelled, 1, "{:?}", record.transport);
    assert_eq!(record.transport.declared, 4);
    assert_eq!(record.grades.declared, 4);
    let text = fs::read_to_string(work.bundle().join("responses.jsonl")).unwrap();
    let last: Response = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert!(!last.content.is_empty(), "the partial text is not there");
}

#[test]
fn in_teardown_the_run_is_aborted_although_all_was_measured() {
    let work = Work::new(&Plan {
        cases: 1,
        ..Plan::slow()
    });
    let mut run = work.start();
    run.wait_for_text();
    // The other engine hangs, so teardown has to insist and takes its time.
    work.signal_engine("r1", Signal::STOP);
    run.wait_for_state(State::Teardown);
    run.signal(Signal::TERM);
    run.end().exits(1);
    let record = work.record();
    aborted_by(&record, "SIGTERM");
    assert_eq!(record.transport.completed, 1);
    work.assert_no_process();
}

#[test]
fn a_terminal_that_goes_away_is_a_signal_too_unless_it_was_to_be_outlived() {
    let work = Work::new(&Plan::slow());
    let mut run = work.start();
    run.wait_for_text();
    run.signal(Signal::HUP);
    // A test runner that was itself started to outlive its terminal hands that
    // wish on to its children, and then the run must outlive it as well.
    if hangup_is_ignored() {
        run.end().exits(0);
    } else {
        run.end().exits(1);
        aborted_by(&work.record(), "SIGHUP");
    }

    let work = Work::new(&Plan::slow());
    let mut nohup = std::process::Command::new("nohup");
    nohup
        .arg(crate::support::attest())
        .arg("run")
        .current_dir(work.dir.path());
    let mut run = work.start_command(nohup);
    run.wait_for_text();
    run.signal(Signal::HUP);
    run.end().exits(0);
}

#[test]
fn engines_and_scorer_are_out_of_the_terminals_reach() {
    let work = Work::new(&Plan::slow());
    let mut run = work.start();
    run.wait_for_text();
    let group = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let after = &stat[stat.rfind(')').unwrap() + 2..];
        after.split(' ').nth(2).unwrap().parse::<u32>().unwrap()
    };
    let ours = group(run.child.id());
    for (replica, pid, _) in work.engines() {
        assert_ne!(group(pid), ours, "{replica}");
    }
    run.signal(Signal::INT);
    run.end().exits(1);
}

/// SIGHUP (signal 1) is in this process's set of ignored signals.
fn hangup_is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status
        .lines()
        .find_map(|l| l.strip_prefix("SigIgn:"))
        .unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
}

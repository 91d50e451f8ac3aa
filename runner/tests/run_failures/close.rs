//! Runs killed outright, and `attest close`.

use std::fs;
use std::io::Write;

use runseal::event::{Event, State};
use rustix::process::Signal;

use crate::signals::with_a_long_rehash;
use crate::support::{Plan, Work, aborted_by, because, codes};

fn killed_in_measure() -> Work {
    let work = Work::new(&Plan::slow());
    let mut run = work.start();
    // Not in the first attempt, so that there is an answer to keep.
    run.wait_for(
        |e| matches!(e, Event::Queued { warmup: false, endpoint, .. } if endpoint == "r1"),
    );
    run.signal(Signal::KILL);
    assert_eq!(run.end().status.code(), None);
    // The engines notice that nobody holds their standard input any more.
    work.assert_no_process();
    work
}

#[test]
fn a_killed_run_reads_as_nothing_and_closes_as_aborted() {
    let work = killed_in_measure();
    let report = work.audit(true);
    assert!(
        codes(&report).contains(&"record-missing"),
        "{:?}",
        codes(&report)
    );
    assert_ne!(report.exit_code(), 0);
    let events = fs::read(work.bundle().join("events.jsonl")).unwrap();

    work.close().exits(1).says("ABORTED");
    let record = work.record();
    aborted_by(&record, "closed-later");
    assert_eq!(record.transport.completed, 1, "{:?}", record.transport);
    assert_eq!(record.transport.not_attempted, 2, "{:?}", record.transport);
    assert!(record.cases.iter().all(|c| because(c).is_some()));
    let closed = fs::read(work.bundle().join("events.jsonl")).unwrap();
    let whole = events.iter().rposition(|b| *b == b'\n').unwrap() + 1;
    assert!(closed.starts_with(&events[..whole]), "evidence was changed");

    // Sealed is sealed.
    let before = fs::read(work.bundle().join("record.intoto.jsonl")).unwrap();
    work.close().exits(2).says("is sealed already");
    assert_eq!(
        before,
        fs::read(work.bundle().join("record.intoto.jsonl")).unwrap()
    );
}

#[test]
fn torn_lines_and_temporary_files_do_not_stand_in_the_way() {
    let work = killed_in_measure();
    for name in ["events.jsonl", "responses.jsonl", "telemetry.jsonl"] {
        let path = work.bundle().join(name);
        let mut file = fs::File::options().append(true).open(path).unwrap();
        file.write_all(b"{\"seq\":99").unwrap();
    }
    fs::write(work.bundle().join(".tmp-x"), "half").unwrap();
    fs::write(work.bundle().join("nodes/.tmp-y"), "half").unwrap();
    work.close().exits(1);
    aborted_by(&work.record(), "closed-later");
    assert!(!work.bundle().join(".tmp-x").exists());
}

#[test]
fn an_answer_whose_end_was_lost_is_left_out() {
    let work = killed_in_measure();
    // Cut the log as if the last 100 ms had not been written: right before the
    // end of the one finished attempt.
    let path = work.bundle().join("events.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let measured = text
        .lines()
        .filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok())
        .find(|v| v["e"] == "queued" && v["warmup"] == false)
        .unwrap()["req"]
        .clone();
    let kept: String = text
        .split_inclusive('\n')
        .take_while(|l| {
            let v: serde_json::Value = serde_json::from_str(l).unwrap_or_default();
            !(v["e"] == "finish" && v["req"] == measured)
        })
        .collect();
    assert_ne!(kept, text);
    fs::write(&path, kept).unwrap();
    work.close().exits(1);
    let record = work.record();
    aborted_by(&record, "closed-later");
    assert_eq!(record.transport.completed, 0, "{:?}", record.transport);
}

#[test]
fn a_run_killed_before_anything_was_measured() {
    let work = with_a_long_rehash();
    let mut run = work.start();
    run.wait_for_state(State::Verify);
    run.signal(Signal::KILL);
    run.end();
    work.close().exits(1);
    let record = work.record();
    aborted_by(&record, "closed-later");
    assert_eq!(record.transport.not_attempted, 4);
}

#[test]
fn a_log_that_looks_complete_closes_as_aborted_all_the_same() {
    let work = Work::new(&Plan::default());
    work.run().exits(0);
    // As if the run had been killed between the end of its log and the seal.
    for name in ["record.intoto.jsonl", "index.json"] {
        fs::remove_file(work.bundle().join(name)).unwrap();
    }
    work.close().exits(1);
    let record = work.record();
    aborted_by(&record, "closed-later");
    assert_eq!(record.transport.completed, 4);

    // And once more, after a closing that ended before its seal.
    for name in ["record.intoto.jsonl", "index.json"] {
        fs::remove_file(work.bundle().join(name)).unwrap();
    }
    work.close().exits(1);
    aborted_by(&work.record(), "closed-later");
}

#[test]
fn what_is_not_ours_to_close_is_left_alone() {
    let work = killed_in_measure();
    let before = fs::read(work.bundle().join("events.jsonl")).unwrap();
    // A foreign key.
    let keygen = work.command(&["keygen", "other/other.key.pem"]);
    work.start_command(keygen).end().exits(0);
    let bundle = work.bundle();
    let foreign = [
        "close",
        bundle.to_str().unwrap(),
        "--key",
        "other/other.key.pem",
    ];
    work.start_command(work.command(&foreign))
        .end()
        .exits(2)
        .says("the run declared key")
        .says("nothing was changed");
    assert_eq!(before, fs::read(bundle.join("events.jsonl")).unwrap());
    // No bundle, and nothing at all.
    for not_a_bundle in ["replicas", "nowhere"] {
        let close = work.command(&["close", not_a_bundle]);
        work.start_command(close)
            .end()
            .exits(2)
            .says("is no bundle");
    }
    // A bundle that was never declared.
    fs::create_dir(work.path("young")).unwrap();
    fs::copy(bundle.join("plan.json"), work.path("young/plan.json")).unwrap();
    let close = work.command(&["close", "young"]);
    work.start_command(close)
        .end()
        .exits(2)
        .says("nothing to close");
}

#[test]
fn a_run_that_goes_on_is_not_closed() {
    let work = Work::new(&Plan::slow());
    let mut run = work.start();
    run.wait_for_text();
    let bundle = work.bundle();
    let close = work
        .command(&["close", bundle.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(close.status.code(), Some(2));
    let words = String::from_utf8_lossy(&close.stderr).into_owned();
    assert!(words.contains("the run still goes on"), "{words}");
    run.end().exits(0);
    work.record();
}

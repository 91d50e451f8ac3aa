//! Engines that die, hang, or never come up.

use runseal::event::{Event, State};
use runseal::scorer::Grade;
use rustix::process::Signal;

use crate::support::{Plan, Work, because, failed_with};

#[test]
fn an_engine_killed_while_measuring_fails_the_run_and_keeps_what_was_finished() {
    let work = Work::new(&Plan::slow());
    let mut run = work.start();
    // The first measured attempt goes to r0; r1 dies in the second.
    run.wait_for(
        |e| matches!(e, Event::Queued { warmup: false, endpoint, .. } if endpoint == "r1"),
    );
    work.signal_engine("r1", Signal::KILL);
    run.end()
        .exits(1)
        .says("FAILED in measure: rank-died")
        .says("hint: see engine/<replica>.log");
    let record = work.record();
    let detail = failed_with(&record, "measure", "rank-died");
    assert_eq!(detail, "the engine of r1 ended by signal 9");
    assert_eq!(record.transport.completed, 1, "{:?}", record.transport);
    // The third may have been on its way to r0 when the death was noticed.
    assert!(
        record.transport.not_attempted >= 1,
        "{:?}",
        record.transport
    );
    let grades: Vec<_> = record.cases.iter().map(|c| &c.grade).collect();
    assert!(
        matches!(grades[0], Grade::Pass | Grade::Fail { .. }),
        "{grades:?}"
    );
    for grade in &grades[1..] {
        assert!(matches!(grade, Grade::Ungraded { .. }), "{grades:?}");
    }
    let reasons: Vec<_> = record.cases.iter().map(because).collect();
    assert_eq!(reasons[0], None, "r0 lived throughout");
    assert_eq!(reasons[1], Some("rank-did-not-live"));
    assert_eq!(reasons[3], Some("not-attempted"));
}

#[test]
fn an_engine_that_dies_over_the_last_answer_is_not_completed() {
    let work = Work::new(&Plan {
        cases: 2,
        ..Plan::slow()
    });
    let mut run = work.start();
    run.wait_for(
        |e| matches!(e, Event::Queued { warmup: false, endpoint, .. } if endpoint == "r1"),
    );
    work.signal_engine("r1", Signal::KILL);
    run.end().exits(1);
    let record = work.record();
    failed_with(&record, "measure", "rank-died");
    assert_eq!(record.transport.not_attempted, 0, "{:?}", record.transport);
}

#[test]
fn an_engine_killed_before_measuring_fails_the_run_in_that_state() {
    let work = Work::new(&Plan {
        engine_args: vec!["--prefill-delay-ms".into(), "20000".into()],
        ..Plan::default()
    });
    let mut run = work.start();
    run.wait_for(|e| matches!(e, Event::Send { .. }));
    // r0 is busy with its warm-up; r1 dies idle.
    work.signal_engine("r1", Signal::KILL);
    run.end().exits(1);
    let record = work.record();
    failed_with(&record, "warm", "rank-died");
    assert_eq!(record.transport.not_attempted, 4);
}

#[test]
fn an_engine_that_ends_at_launch() {
    let work = Work::new(&Plan {
        engine_args: vec!["--no-such-option".into()],
        ..Plan::default()
    });
    work.run().exits(1).says("FAILED in launch: launch-failed");
    let record = work.record();
    let detail = failed_with(&record, "launch", "launch-failed");
    assert!(
        detail.contains("r0") && detail.contains("ended without a word"),
        "{detail}"
    );
    let log = std::fs::read_to_string(work.bundle().join("engine/r0.log")).unwrap();
    assert!(log.contains("--no-such-option"), "{log}");
}

#[test]
fn a_partial_launch_is_taken_down() {
    // The third replica's name is no number, so only its engine refuses to start.
    let plan = Plan {
        engine_args: vec!["--max-running".into(), "{replica}".into()],
        replicas: 3,
        ..Plan::default()
    };
    let work = Work::new(&plan);
    let text = plan.text();
    let text = text
        .replace("\"r0\"", "\"4\"")
        .replace("\"r1\"", "\"5\"")
        .replace("\"r2\"", "\"third\"");
    std::fs::write(work.path("attest.toml"), text).unwrap();
    work.run()
        .exits(1)
        .says("teardown: 2 engines ended, 0 left");
    let detail = failed_with(&work.record(), "launch", "launch-failed");
    assert!(detail.contains("third"), "{detail}");
    assert_eq!(work.engines().len(), 2);
    let ended = |e: &Event| matches!(e, Event::RankExit { expected: true, .. });
    let ended = work.events().iter().filter(|l| ended(&l.event)).count();
    assert_eq!(ended, 2);
}

#[test]
fn an_engine_that_hangs_costs_timeouts_and_is_ended_all_the_same() {
    let work = Work::new(&Plan {
        request_ms: 1500,
        ..Plan::slow()
    });
    let mut run = work.start();
    run.wait_for_state(State::Measure);
    work.signal_engine("r1", Signal::STOP);
    run.end();
    let record = work.record();
    assert!(record.transport.timeout >= 1, "{:?}", record.transport);
    assert_eq!(record.transport.not_attempted, 0, "{:?}", record.transport);
    let killed = |e: &Event| matches!(e, Event::RankExit { replica, signal: Some(9), expected: true, .. } if replica == "r1");
    assert!(work.events().iter().any(|l| killed(&l.event)));
    work.assert_no_process();
}

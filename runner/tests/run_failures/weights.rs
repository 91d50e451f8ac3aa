//! Weights that are not as pinned, before the run and during it.

use std::fs;

use runseal::event::Event;
use runseal::record::Status;

use crate::support::{Plan, Work, because};

fn refused(work: &Work, with: &str) -> String {
    let record = work.record();
    assert!(work.engines().is_empty(), "something was launched");
    match record.run.status {
        Status::Refused { cause, detail } if cause == with => detail,
        other => panic!("not refused({with}): {other:?}"),
    }
}

#[test]
fn a_flipped_byte_refuses_the_launch() {
    let work = Work::new(&Plan::default());
    work.run().exits(0);
    fs::remove_dir_all(work.path("evidence")).unwrap();
    let shard = work.path("replicas/r1/model-00002-of-00004.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    bytes[1000] ^= 1;
    fs::write(&shard, bytes).unwrap();
    work.run().exits(1).says("REFUSED: weights-not-verified");
    let detail = refused(&work, "weights-not-verified");
    assert!(
        detail.contains("r1") && detail.contains("model-00002-of-00004.safetensors"),
        "{detail}"
    );
}

#[test]
fn a_missing_copy_of_a_checkpoint_that_is_not_ours_is_not_made() {
    let work = Work::new(&Plan {
        manifest: "mine.manifest.json".into(),
        ..Plan::default()
    });
    let other = Work::new(&Plan::default());
    other.run().exits(0);
    fs::copy(
        other.path("weights.manifest.json"),
        work.path("mine.manifest.json"),
    )
    .unwrap();
    work.run().exits(1);
    refused(&work, "weights-not-verified");
    assert!(!work.path("replicas").exists());
}

#[test]
fn two_names_for_one_copy_are_not_two_replicas() {
    // A link, then the same path.
    let work = Work::new(&Plan::default());
    work.run().exits(0);
    fs::remove_dir_all(work.path("evidence")).unwrap();
    fs::remove_dir_all(work.path("replicas/r1")).unwrap();
    std::os::unix::fs::symlink("r0", work.path("replicas/r1")).unwrap();
    work.run().exits(1).says("a folder of its own");
    refused(&work, "replica-duplicate");

    let work = Work::new(&Plan::default());
    let text = Plan::default().text().replace("replicas/r1", "replicas/r0");
    fs::write(work.path("attest.toml"), text).unwrap();
    work.run().exits(1);
    refused(&work, "replica-duplicate");
}

#[test]
fn weights_overwritten_while_measuring_taint_the_run() {
    let work = Work::new(&Plan::slow());
    let mut run = work.start();
    run.wait_for_text();
    let shard = work.path("replicas/r1/model-00003-of-00004.safetensors");
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, bytes).unwrap();
    run.end()
        .exits(1)
        .says("TAINTED: weights changed during the run");
    let record = work.record();
    assert_eq!(record.run.status, Status::Completed);
    let causes: Vec<_> = record.run.taints.iter().map(|t| t.cause.as_str()).collect();
    assert!(
        causes.iter().all(|c| *c == "weights-changed-during-run"),
        "{causes:?}"
    );
    assert!(!causes.is_empty());
    let because: Vec<_> = record.cases.iter().map(because).collect();
    assert_eq!(because[1], Some("weights-changed"), "{because:?}");
    assert!(because.iter().all(Option::is_some), "{because:?}");
    assert!(
        work.events()
            .iter()
            .any(|l| matches!(l.event, Event::Taint { .. }))
    );
}

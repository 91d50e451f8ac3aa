//! The operator's key.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::{Plan, Work};

const SECRET: &str = "keys/attest.key.pem";

fn mode(work: &Work, name: &str) -> u32 {
    fs::metadata(work.path(name)).unwrap().permissions().mode() & 0o777
}

#[test]
fn the_first_run_makes_a_key_and_says_so_the_second_uses_it() {
    let work = Work::new(&Plan::default());
    work.run()
        .exits(0)
        .says("made a signing key: keys/attest.key.pem");
    assert_eq!(mode(&work, SECRET), 0o600);
    assert_eq!(work.record().provenance.key_origin, "this_run");
    fs::remove_dir_all(work.path("evidence")).unwrap();
    let ended = work.run().exits(0);
    assert!(!ended.err.contains("made a signing key"), "{}", ended.err);
    assert_eq!(work.record().provenance.key_origin, "existing");
}

#[test]
fn a_key_of_ones_own() {
    let work = Work::new(&Plan::default());
    let keygen = |path: &str| work.start_command(work.command(&["keygen", path])).end();
    keygen("mine/op.key.pem").exits(0).says("fingerprint");
    assert_eq!(mode(&work, "mine/op.key.pem"), 0o600);
    let before = fs::read(work.path("mine/op.key.pem")).unwrap();
    keygen("mine/op.key.pem").exits(2).says("left alone");
    assert_eq!(before, fs::read(work.path("mine/op.key.pem")).unwrap());

    let run = work.command(&["run", "--key", "mine/op.key.pem"]);
    work.start_command(run)
        .end()
        .exits(0)
        .says("mine/op.pub.pem");
    assert!(!work.path("keys").exists());
    let trusted = Some(work.path("mine/op.pub.pem"));
    let report = crate::support::audit_of(&work.bundle(), trusted);
    assert_eq!(report.exit_code(), 0);
    assert_eq!(report.derived.unwrap().provenance.key_origin, "existing");

    let nowhere = work.command(&["run", "--key", "no.key.pem"]);
    work.start_command(nowhere)
        .end()
        .exits(2)
        .says("attest keygen");
}

#[test]
fn keys_that_may_be_known_to_others_are_refused() {
    let work = Work::new(&Plan::default());
    work.start_command(work.command(&["keygen"])).end().exits(0);
    let file = work.path(SECRET);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    work.run().exits(2).says("others can read it");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();

    // Tracked by git. (A machine without git cannot track anything.)
    let git = |args: &[&str]| {
        let done = Command::new("git")
            .args(args)
            .current_dir(work.dir.path())
            .output();
        done.is_ok_and(|o| o.status.success())
    };
    if git(&["init", "-q"]) {
        assert!(git(&["add", "-f", SECRET]));
        work.run().exits(2).says("tracked by git");
    }
    assert!(work.bundles().is_empty());
}

#[test]
fn a_public_key_of_somebody_else_beside_it_is_noticed() {
    let work = Work::new(&Plan::default());
    for path in ["keys/attest.key.pem", "keys/other.key.pem"] {
        work.start_command(work.command(&["keygen", path]))
            .end()
            .exits(0);
    }
    fs::copy(
        work.path("keys/other.pub.pem"),
        work.path("keys/attest.pub.pem"),
    )
    .unwrap();
    work.run().exits(2).says("is not the public half");
}

//! Strange surroundings: no environment, no permission, company.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::support::{Plan, Work, attest};

#[test]
fn an_empty_environment_and_closed_streams() {
    let work = Work::new(&Plan::default());
    let mut run = work.command(&["run"]);
    run.env_clear();
    work.start_command(run).end().exits(0);
    work.record();
    fs::remove_dir_all(work.path("evidence")).unwrap();

    let status = Command::new("sh")
        .arg("-c")
        .arg("exec \"$0\" run <&- >&- 2>&-")
        .arg(attest())
        .current_dir(work.dir.path())
        .env_remove("HOME")
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(0));
    work.record();
}

#[test]
fn a_folder_that_cannot_be_written_is_a_clear_error_unless_all_is_elsewhere() {
    // root writes everywhere, so this says something to ordinary users only; for
    // root the same run simply works.
    let work = Work::new(&Plan::default());
    let elsewhere = tempfile::tempdir().unwrap();
    work.start_command(work.command(&["keygen"])).end().exits(0);
    work.run().exits(0);
    fs::remove_dir_all(work.path("evidence")).unwrap();
    let read_only = |on: bool| {
        let mode = if on { 0o555 } else { 0o755 };
        fs::set_permissions(work.dir.path(), fs::Permissions::from_mode(mode)).unwrap();
    };
    read_only(true);
    let as_root = fs::File::create(work.path("probe")).is_ok();
    let out = work.command(&["run"]).output().unwrap();
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    if as_root {
        assert_eq!(out.status.code(), Some(0), "{err}");
    } else {
        assert_eq!(out.status.code(), Some(2), "{err}");
        assert!(err.contains("evidence") && err.contains("hint: "), "{err}");
    }
    // Key and copies are there; only the bundle needs a place.
    let out = work
        .command(&["run", "--out", elsewhere.path().to_str().unwrap()])
        .output()
        .unwrap();
    read_only(false);
    assert_eq!(
        out.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn a_second_run_in_the_same_folder_is_told_about_the_first() {
    let work = Work::new(&Plan::slow());
    let mut first = work.start();
    first.wait_for_text();
    let second = work.command(&["run"]).output().unwrap();
    assert_eq!(second.status.code(), Some(2));
    let err = String::from_utf8_lossy(&second.stderr).into_owned();
    let owner = format!("process {}, started 20", first.child.id());
    assert!(err.contains(&owner) && err.contains("s ago"), "{err}");
    first.end().exits(0);
    work.record();
    // Afterwards the folder is free again.
    fs::remove_dir_all(work.path("evidence")).unwrap();
    work.run().exits(0);
}

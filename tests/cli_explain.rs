//! `verify explain`, and docs/codes.md which is made from the same table.

mod weights_support;

use std::path::Path;

use runseal::codes::{Code, markdown};
use weights_support::verify_in;

fn explain(args: &[&str]) -> weights_support::Answer {
    verify_in(Path::new("."), &[&["explain"], args].concat())
}

#[test]
fn docs_follow_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/codes.md");
    if std::env::var_os("RUNSEAL_UPDATE").is_some_and(|v| v == "1") {
        std::fs::write(&path, markdown()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == markdown(),
        "docs/codes.md is not what src/codes.rs gives; make it again with\n    \
         RUNSEAL_UPDATE=1 cargo test -p runseal --test cli_explain"
    );
}

#[test]
fn every_code_is_explained() {
    let list = explain(&[]);
    assert_eq!((list.code, list.stderr.as_str()), (0, ""));
    assert_eq!(list.stdout.lines().count(), Code::ALL.len());
    for (line, code) in list.stdout.lines().zip(Code::ALL) {
        assert!(line.starts_with(&format!("{code} ")), "{line}");
    }
    let json = explain(&["--format", "json"]).json();
    assert_eq!(json.as_array().unwrap().len(), Code::ALL.len());
}

#[test]
fn one_code_in_full() {
    let page = explain(&["digest-mismatch"]);
    assert_eq!(page.code, 0);
    assert_eq!(
        page.stdout,
        "digest-mismatch (error)\n\
         \n\
         A file has the expected size but other bytes.\n\
         \n\
         Why it matters: Some other weights are on this replica: a bit flip, a half-finished sync, or another revision.\n\
         What to do: Copy the file again from a replica that agrees with the manifest (rsync needs --checksum), then rehash.\n"
    );
    assert_eq!(explain(&["Digest-Mismatch"]).stdout, page.stdout);
    let json = explain(&["mode-differs", "--format", "json"]).json();
    assert_eq!(
        (&json["code"], &json["severity"]),
        (&"mode-differs".into(), &"note".into())
    );
}

#[test]
fn an_unknown_code_is_exit_2_with_the_nearest_one() {
    let near = explain(&["digest-mismach"]);
    assert_eq!((near.code, near.stdout.as_str()), (2, ""));
    assert!(
        near.stderr.contains("did you mean digest-mismatch?"),
        "{}",
        near.stderr
    );
    let far = explain(&["zzzzzzzzzzzzzzzzzzzzzzzz"]);
    assert_eq!(far.code, 2);
    assert!(far.stderr.contains("lists them all"), "{}", far.stderr);
    // Nothing that was typed reaches the terminal raw.
    assert!(!explain(&["\x1b[2J"]).stderr.contains('\x1b'));
}

#[test]
fn wrong_usage_is_exit_2() {
    for args in [
        &[][..],
        &["nonsense"],
        &["explain", "a", "b"],
        &["weights", "--replicas", "0"],
    ] {
        let answer = verify_in(Path::new("."), args);
        assert_eq!((answer.code, answer.stdout.as_str()), (2, ""), "{args:?}");
    }
    assert_eq!(verify_in(Path::new("."), &["--help"]).code, 0);
    assert_eq!(verify_in(Path::new("."), &["--version"]).code, 0);
}

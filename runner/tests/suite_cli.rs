//! `attest suite` and `attest pin dataset`, the real program on real files.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

struct Said {
    code: i32,
    stdout: String,
    stderr: String,
}

fn attest(dir: &Path, args: &[&str]) -> Said {
    let output = assert_cmd::Command::cargo_bin("attest")
        .unwrap()
        .current_dir(dir)
        .timeout(Duration::from_secs(120))
        .args(args)
        .output()
        .unwrap();
    Said {
        code: output.status.code().expect("ended by a signal"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn made() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let said = attest(dir.path(), &["suite", "new", "mine-v1"]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    dir
}

fn check(dir: &Path) -> (i32, Value) {
    let said = attest(dir, &["suite", "check", "mine-v1", "--format", "json"]);
    let json = serde_json::from_str(&said.stdout).unwrap_or_default();
    assert!(said.code != 2 || json == Value::Null);
    (said.code, json)
}

fn edit(dir: &Path, file: &str, from: &str, to: &str) {
    let path = dir.join("mine-v1").join(file);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from}");
    fs::write(path, text.replace(from, to)).unwrap();
}

fn codes(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().unwrap();
    findings
        .iter()
        .map(|f| f["code"].as_str().unwrap())
        .collect()
}

#[test]
fn a_new_suite_holds_as_it_stands() {
    let dir = made();
    let (code, report) = check(dir.path());
    assert_eq!((code, codes(&report).len()), (0, 0), "{report:#}");
    assert_eq!(report["name"], "mine-v1");
    for c in report["checks"].as_array().unwrap() {
        assert_eq!(c["outcome"], "passed", "{c}");
    }
    let said = attest(dir.path(), &["suite", "check", "mine-v1"]);
    assert!(
        said.stdout.ends_with("the suite holds\n"),
        "{}",
        said.stdout
    );

    // A plan can name it.
    fs::write(
        dir.path().join("attest.toml"),
        runseal_runner::builtin::PLAN.replace("serving-performance-v1", "mine-v1"),
    )
    .unwrap();
    let said = attest(dir.path(), &["plan", "show"]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(said.stdout.contains("mine-v1"), "{}", said.stdout);
}

#[test]
fn nothing_is_overwritten_and_no_shipped_name_taken() {
    let dir = made();
    let before = fs::read(dir.path().join("mine-v1/suite.toml")).unwrap();
    let said = attest(dir.path(), &["suite", "new", "mine-v1"]);
    assert_eq!(said.code, 2);
    assert!(said.stderr.contains("left alone"), "{}", said.stderr);
    assert_eq!(
        before,
        fs::read(dir.path().join("mine-v1/suite.toml")).unwrap()
    );
    for name in ["Mine", "serving-performance-v1", "..", "a/b c"] {
        let said = attest(dir.path(), &["suite", "new", name]);
        assert_eq!(said.code, 2, "{name}");
    }
    edit(
        dir.path(),
        "suite.toml",
        "\"mine-v1\"",
        "\"serving-performance-v1\"",
    );
    let (code, report) = check(dir.path());
    assert_eq!((code, codes(&report)), (1, vec!["suite-not-as-shipped"]));
}

#[test]
fn a_scorer_that_passes_nothing_or_fails_its_tests_is_found() {
    let dir = made();
    edit(dir.path(), "scorer.toml", "answer.content != \"\"", "true");
    edit(
        dir.path(),
        "scorer.toml",
        "answer.json != null && answer.content.trim().startsWith(\"{\")",
        "true",
    );
    edit(
        dir.path(),
        "scorer.toml",
        "case.expect.all(k, k in answer.json && answer.json[k] == case.expect[k])",
        "true",
    );
    fs::remove_file(dir.path().join("mine-v1/scorer-tests.jsonl")).unwrap();
    let (code, report) = check(dir.path());
    assert_eq!(code, 1);
    assert_eq!(codes(&report), vec!["scorer-passes-nothing"; 2]);
    assert_eq!(report["checks"][3]["outcome"], "not_performed");

    let dir = made();
    edit(dir.path(), "scorer.toml", "== case.expect[k]", "!= \"\"");
    let (code, report) = check(dir.path());
    assert_eq!((code, codes(&report)), (1, vec!["scorer-test-differs"]));
    assert_eq!(report["findings"][0]["expected"], "fail at fields_exact");
    assert_eq!(report["findings"][0]["found"], "pass");
}

#[test]
fn without_tests_it_holds_and_says_so() {
    let dir = made();
    fs::remove_file(dir.path().join("mine-v1/scorer-tests.jsonl")).unwrap();
    let (code, report) = check(dir.path());
    assert_eq!(code, 0);
    let last = report["checks"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (&last["name"], &last["outcome"]),
        (&"scorer-tests".into(), &"not_performed".into())
    );
}

#[test]
fn files_that_are_not_of_their_form_are_exit_2() {
    for (file, from, to) in [
        ("suite.toml", "title", "titel"),
        ("cases.jsonl", "{{prefix}}", "x"),
        ("scorer.toml", "runseal-cel/1", "runseal-cel/9"),
        ("scorer-tests.jsonl", "\"case-02\"", "\"case-09\""),
        ("scorer-tests.jsonl", "\"want\"", "\"wants\""),
    ] {
        let dir = made();
        edit(dir.path(), file, from, to);
        let said = attest(dir.path(), &["suite", "check", "mine-v1"]);
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{file}: {to}");
        assert!(said.stderr.contains(file), "{}", said.stderr);
    }
}

/// An expression that only the scorer's child finds wrong.
#[test]
fn a_scorer_that_does_not_run_is_not_performed() {
    let dir = made();
    edit(
        dir.path(),
        "scorer.toml",
        "answer.json != null &&",
        "answer.json != null && &&",
    );
    let (code, report) = check(dir.path());
    assert_eq!(code, 1, "{report:#}");
    let runs = &report["checks"][1];
    assert_eq!(
        (&runs["name"], &runs["outcome"]),
        (&"scorer-runs".into(), &"not_performed".into())
    );
}

#[test]
fn a_pinned_data_set_is_what_verify_reads() {
    let dir = made();
    let said = attest(
        dir.path(),
        &["pin", "dataset", "mine-v1", "-o", "data.json"],
    );
    assert_eq!(said.code, 0, "{}", said.stderr);
    let manifest = fs::read(dir.path().join("data.json")).unwrap();
    let manifest = runseal::weights::Manifest::parse(&manifest).unwrap();
    assert_eq!(manifest.file_count(), 5);
    assert!(said.stdout.contains(&manifest.root().to_string()));

    // One file: the digest that a suite pins.
    let cases = fs::read(dir.path().join("mine-v1/cases.jsonl")).unwrap();
    let said = attest(
        dir.path(),
        &["pin", "dataset", "mine-v1/cases.jsonl", "-o", "one.json"],
    );
    let digest = runseal::digest::Sha256Digest::of(&cases).hex();
    assert!(
        said.stdout.contains(&format!("sha256    {digest}")),
        "{}",
        said.stdout
    );

    // Never over a file, never into the data set, never over it.
    for output in ["data.json", "mine-v1/new.json"] {
        let said = attest(dir.path(), &["pin", "dataset", "mine-v1", "-o", output]);
        assert_eq!(said.code, 2, "{output}");
    }
    let over = ["pin", "dataset", "data.json", "-o", "data.json", "--force"];
    assert_eq!(attest(dir.path(), &over).code, 2);

    // What is not a plain file is not pinned.
    std::os::unix::fs::symlink("cases.jsonl", dir.path().join("mine-v1/link")).unwrap();
    let said = attest(dir.path(), &["pin", "dataset", "mine-v1"]);
    assert_eq!((said.code, said.stdout.as_str()), (1, ""));
    assert!(
        said.stderr.contains("symlink-in-flat-folder"),
        "{}",
        said.stderr
    );
}

/// The shipped suites, by the same look that users' own get.
#[test]
fn the_shipped_suites_hold() {
    let suites = Path::new(env!("CARGO_MANIFEST_DIR")).join("suites");
    for name in runseal_runner::builtin::SUITES {
        let said = attest(&suites, &["suite", "check", name, "--format", "json"]);
        assert_eq!(said.code, 0, "{name}: {}{}", said.stdout, said.stderr);
        let report: Value = serde_json::from_str(&said.stdout).unwrap();
        let shipped = runseal::shipped::digest(name).unwrap();
        assert_eq!(report["suite"], shipped.suite.hex());
        let tests = fs::exists(suites.join(name).join("scorer-tests.jsonl")).unwrap();
        let last = report["checks"].as_array().unwrap().last().unwrap().clone();
        let want = if tests { "passed" } else { "not_performed" };
        assert_eq!(
            (&last["name"], &last["outcome"]),
            (&"scorer-tests".into(), &want.into())
        );
    }
}

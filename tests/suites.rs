//! `verify scorer` and `verify dataset`, the real program on real files.

mod weights_support;

use std::fs;
use std::path::Path;

use runseal::digest::Sha256Digest;
use weights_support::{Answer, verify_in};

const SUITE: &str = r#"format = "runseal.suite/v1"
name = "mine-v1"
title = "t"
kind = "serving"
dataset = "cases.jsonl"
scorer = "scorer.toml"
prefix_alphabet = "abcdefgh"
prefix_length = 16
"#;
const CASES: &str = r#"{"expect":{"a":"1"},"id":"c1","kind":"x","max_tokens":9,"messages":[{"content":"{{prefix}} a","role":"user"}]}
{"expect":{"a":"2"},"id":"c2","kind":"x","max_tokens":9,"messages":[{"content":"{{prefix}} b","role":"user"}]}
"#;
const SCORER: &str = r#"format = "runseal.scorer/v1"
name = "mine"
dialect = "runseal-cel/1"
[[check]]
id = "present"
expr = 'answer.content != ""'
[[check]]
id = "right"
expr = 'answer.json.a == case.expect.a'
"#;

fn suite(scorer: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("suite.toml"), SUITE).unwrap();
    fs::write(path.join("cases.jsonl"), CASES).unwrap();
    fs::write(path.join("scorer.toml"), scorer).unwrap();
    dir
}

fn line(case: &str, content: &str) -> String {
    let answer = serde_json::json!({"content": content});
    format!("{}\n", serde_json::json!({"case": case, "answer": answer}))
}

fn score(dir: &Path, answers: &str, more: &[&str]) -> Answer {
    fs::write(dir.join("answers.jsonl"), answers).unwrap();
    verify_in(dir, &[&["scorer", "s", "answers.jsonl"], more].concat())
}

#[test]
fn right_answers_are_exit_0_and_each_case_is_named() {
    let dir = suite(SCORER);
    let right = line("c1", "{\"a\":\"1\"}") + &line("c2", "{\"a\":\"2\"}");
    let said = score(dir.path(), &right, &[]);
    assert_eq!(said.code, 0, "{}{}", said.stdout, said.stderr);
    assert!(
        said.stdout.contains("c1  pass\nc2  pass\n"),
        "{}",
        said.stdout
    );
    assert!(
        said.stdout
            .ends_with("2 of 2 answers passed, 0 failed, 0 ungraded\n")
    );

    let json = score(dir.path(), &right, &["--format", "json"]).json();
    assert_eq!((&json["passed"], &json["declared"]), (&2.into(), &2.into()));
    assert_eq!(json["scorer"], Sha256Digest::of(SCORER.as_bytes()).hex());
    assert_eq!(json["dataset"], Sha256Digest::of(CASES.as_bytes()).hex());
    assert_eq!(json["cases"][0]["grade"], "pass");
}

#[test]
fn a_wrong_a_missing_and_an_odd_answer_are_exit_1() {
    let dir = suite(SCORER);
    let wrong = line("c1", "{\"a\":\"1\"}") + &line("c2", "{\"a\":\"3\"}");
    let said = score(dir.path(), &wrong, &[]);
    assert_eq!(said.code, 1);
    assert!(said.stdout.contains("c2  fail at right"), "{}", said.stdout);

    // A missing answer stays in the denominator.
    let json = score(
        dir.path(),
        &line("c1", "{\"a\":\"1\"}"),
        &["--format", "json"],
    );
    assert_eq!(json.code, 1);
    let json = json.json();
    assert_eq!(
        (&json["declared"], &json["ungraded"]),
        (&2.into(), &1.into())
    );
    assert_eq!(json["findings"][0]["code"], "answer-missing");

    let both = line("c1", "{\"a\":\"1\"}") + &line("c2", "{\"a\":\"2\"}");
    let json = score(
        dir.path(),
        &(both + &line("c9", "x")),
        &["--format", "json"],
    );
    assert_eq!(json.code, 1);
    let findings = json.json()["findings"].as_array().unwrap().clone();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0]["code"], "answer-unknown-case");

    // A check that errors leaves the case ungraded: neither pass nor fail.
    let odd = line("c1", "{\"a\":\"1\"}") + &line("c2", "no json");
    let said = score(dir.path(), &odd, &[]);
    assert_eq!(said.code, 1);
    assert!(said.stdout.contains("c2  ungraded: "), "{}", said.stdout);
}

#[test]
fn what_cannot_be_read_is_exit_2_and_a_later_dialect_is_not_performed() {
    let dir = suite(SCORER);
    let said = score(dir.path(), "{}\n", &[]);
    assert_eq!((said.code, said.stdout.as_str()), (2, ""));
    assert!(said.stderr.contains("line 1"), "{}", said.stderr);
    assert_eq!(verify_in(dir.path(), &["scorer", "s", "none"]).code, 2);
    assert_eq!(
        verify_in(dir.path(), &["scorer", "none", "answers.jsonl"]).code,
        2
    );

    let dir = suite(&SCORER.replace("answer.json.a == ", "answer.json.a == && "));
    assert_eq!(score(dir.path(), &line("c1", "x"), &[]).code, 2);
    let dir = suite(&SCORER.replace("runseal-cel/1", "runseal-cel/9"));
    let said = score(dir.path(), &line("c1", "x"), &[]);
    assert_eq!(said.code, 1, "{}", said.stderr);
    assert!(said.stdout.starts_with("not graded: "), "{}", said.stdout);
}

fn dataset(dir: &Path, args: &[&str]) -> Answer {
    verify_in(dir, &[&["dataset"], args].concat())
}

fn codes(answer: &Answer) -> Vec<String> {
    let findings = answer.json()["findings"].clone();
    let code = |f: &serde_json::Value| f["code"].as_str().unwrap().to_owned();
    findings.as_array().unwrap().iter().map(code).collect()
}

#[test]
fn one_file_is_compared_with_a_bare_digest() {
    let dir = suite(SCORER);
    let right = Sha256Digest::of(CASES.as_bytes()).hex();
    let said = dataset(dir.path(), &["s/cases.jsonl", "--sha256", &right]);
    assert_eq!(said.code, 0, "{}{}", said.stdout, said.stderr);
    // Its neighbours are no part of it.
    let wrong = "0".repeat(64);
    let json = ["s/cases.jsonl", "--sha256", &wrong, "--format", "json"];
    let said = dataset(dir.path(), &json);
    assert_eq!(said.code, 1);
    assert_eq!(codes(&said), ["digest-mismatch"]);
    assert_eq!(said.json()["verdict"], "not_verified");
    assert_eq!(dataset(dir.path(), &["s", "--sha256", &right]).code, 2);
    assert_eq!(dataset(dir.path(), &["s/none", "--sha256", &right]).code, 2);
    assert_eq!(dataset(dir.path(), &["s"]).code, 2);
}

#[test]
fn a_folder_is_compared_with_its_list() {
    let dir = suite(SCORER);
    let list = |names: &[&str]| -> String {
        let sum = |n: &&str| {
            let bytes = fs::read(dir.path().join("s").join(n)).unwrap();
            format!("{}  {n}\n", Sha256Digest::of(&bytes).hex())
        };
        names.iter().map(sum).collect()
    };
    let sums = dir.path().join("SUMS");
    let args = ["s", "--manifest", "SUMS", "--format", "json"];
    let all = list(&["cases.jsonl", "scorer.toml", "suite.toml"]);
    fs::write(&sums, &all).unwrap();
    assert_eq!(dataset(dir.path(), &args).code, 0);
    fs::write(&sums, list(&["cases.jsonl", "scorer.toml"])).unwrap();
    assert_eq!(codes(&dataset(dir.path(), &args)), ["file-extra"]);
    fs::write(&sums, &all).unwrap();
    fs::remove_file(dir.path().join("s/suite.toml")).unwrap();
    let said = dataset(dir.path(), &args);
    assert_eq!(
        (said.code, codes(&said)),
        (1, vec!["file-missing".to_owned()])
    );
}

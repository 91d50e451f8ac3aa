//! Plans as people write them.

use std::fs;

use assert_cmd::Command;
use predicates::str::contains;

use crate::support::{Plan, Work, attest};

fn in_folder(dir: &std::path::Path, args: &[&str]) -> Command {
    let mut command = Command::new(attest());
    command.current_dir(dir).args(args);
    command
}

fn digest(dir: &std::path::Path) -> String {
    let out = in_folder(dir, &["plan", "show"]).assert().success();
    let text = String::from_utf8(out.get_output().stdout.clone()).unwrap();
    let line = text.lines().find(|l| l.starts_with("plan digest")).unwrap();
    line.split_whitespace().last().unwrap().to_owned()
}

#[test]
fn init_writes_the_built_in_plan_and_never_over_something() {
    let dir = tempfile::tempdir().unwrap();
    let built_in = digest(dir.path());
    in_folder(dir.path(), &["init"])
        .assert()
        .success()
        .stdout(contains("fingerprint"));
    assert_eq!(digest(dir.path()), built_in);

    let file = dir.path().join("attest.toml");
    fs::write(&file, "mine").unwrap();
    in_folder(dir.path(), &["init"])
        .assert()
        .code(2)
        .stderr(contains("left alone"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    let key = fs::read(dir.path().join("keys/attest.key.pem")).unwrap();
    in_folder(dir.path(), &["init", "--force"])
        .assert()
        .success()
        .stdout(contains("was there"));
    assert_eq!(digest(dir.path()), built_in);
    assert_eq!(
        key,
        fs::read(dir.path().join("keys/attest.key.pem")).unwrap()
    );
}

#[test]
fn plan_show_runs_nothing_and_json_is_plan_json() {
    let dir = tempfile::tempdir().unwrap();
    let out = in_folder(dir.path(), &["plan", "show", "--format", "json"])
        .assert()
        .success();
    let plan = runseal::plan::RunPlan::parse(&out.get_output().stdout).unwrap();
    assert_eq!(plan.to_bytes(), out.get_output().stdout);
    assert_eq!(plan.digest().hex(), digest(dir.path()));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Every slip ends with 2 and words that help, before anything is made.
#[test]
fn slips_are_named_before_anything_is_made() {
    let good = Plan::default().text();
    let slips: &[(&str, &str, &[&str])] = &[
        (
            "concurrency = 1",
            "concurency = 1",
            &["concurency", "did you mean \"concurrency\""],
        ),
        ("[requests]", "[request]", &["did you mean \"requests\""]),
        ("ready = ", "redy = ", &["did you mean \"ready\""]),
        (
            "target = \"replicas/r1\"",
            "tarket = \"replicas/r1\"",
            &["did you mean \"target\""],
        ),
        ("seed = 1\n", "", &["missing field `seed`"]),
        (
            "seed = 1\n",
            "seed = 1\ncolour = 1\n",
            &["unknown field `colour`"],
        ),
        (
            "concurrency = 1",
            "concurrency = 0",
            &["concurrency", "at least 1"],
        ),
        ("concurrency = 1", "concurrency = 100000", &["at most 4096"]),
        ("repetitions = 1", "repetitions = 0", &["at least 1"]),
        (
            "repetitions = 1",
            "repetitions = 4000000000",
            &["at most 1000000"],
        ),
        (
            "suite = \"tiny\"",
            "suite = \"nosuch\"",
            &["nosuch", "serving-performance-v1"],
        ),
        (
            "recipe = \"reference\"",
            "recipe = \"referense\"",
            &["referense", "reference"],
        ),
        (
            "temperature = \"0\"",
            "temperature = \"hot\"",
            &["hot", "not a number"],
        ),
        (
            "temperature = \"0\"",
            "temperature = \"-1\"",
            &["not a number"],
        ),
        (
            "temperature = \"0\"",
            "temperature = \"1e999\"",
            &["not a number"],
        ),
        ("name = \"r1\"", "name = \"r0\"", &["\"r0\" stands twice"]),
        ("name = \"r1\"", "name = \"r/1\"", &["r/1", "a-z"]),
        ("name = \"r1\"", "name = \"../r1\"", &["../r1", "a-z"]),
        (
            "node = \"n0\"",
            "node = \"host.example\"",
            &["host.example", "a-z"],
        ),
        ("role = \"target\"", "role = \"../target\"", &["../target"]),
        ("role = \"target\"", "role = \"targets\"", &["targets"]),
        (
            "\"replicas/r1\"",
            "\"../elsewhere\"",
            &["../elsewhere", "r1"],
        ),
        ("\"replicas/r1\"", "\"\"", &["r1", "folder's path"]),
        ("ready = 20000", "ready = 0", &["timeouts_ms.ready = 0"]),
        ("ready = 20000", "ready = 18446744073709551615", &["ready"]),
        ("max_tokens = 256", "max_tokens = 0", &["max_tokens = 0"]),
        ("seed = 1\n", "seed = 9007199254740993\n", &["2^53"]),
        ("claim = \"none\"", "claim = \"warm\"", &["cache.claim"]),
        (
            "builtin:reference",
            "no.manifest.json",
            &["no.manifest.json"],
        ),
        ("runseal.attest/v1", "runseal.attest/v9", &["v9", "hint"]),
        ("[load]", "[load", &["line"]),
    ];
    let work = Work::new(&Plan::default());
    for (from, to, words) in slips {
        assert!(good.contains(from), "{from}");
        fs::write(work.path("attest.toml"), good.replacen(from, to, 1)).unwrap();
        for args in [&["plan", "show"][..], &["run"]] {
            let mut assert = in_folder(work.dir.path(), args).assert().code(2);
            for word in *words {
                assert = assert.stderr(contains(*word));
            }
            assert.stderr(contains("error: "));
        }
        for made in ["keys", "replicas", "evidence"] {
            assert!(!work.path(made).exists(), "{to} made {made}");
        }
    }
}

#[test]
fn a_named_plan_must_be_there() {
    let dir = tempfile::tempdir().unwrap();
    in_folder(dir.path(), &["run", "other.toml"])
        .assert()
        .code(2)
        .stderr(contains("other.toml"));
}

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

/// Nobody waits for a whole run to learn that every audit would refuse it.
#[test]
fn a_shipped_name_on_other_bytes_is_refused_before_anything_runs() {
    let work = Work::new(&Plan::default());
    let toml = fs::read_to_string(work.path("tiny/suite.toml")).unwrap();
    let borrowed = toml.replace("tiny-v1", "serving-performance-v1");
    assert_ne!(toml, borrowed);
    fs::write(work.path("tiny/suite.toml"), borrowed).unwrap();
    in_folder(work.dir.path(), &["run"])
        .assert()
        .code(2)
        .stderr(contains("name of a shipped suite"));
    assert!(work.bundles().is_empty() && !work.path("keys").exists());
}

/// The inventory that init writes is the one that a run writes, with comments; and
/// the settings in the comments are settings.
#[test]
fn init_writes_an_inventory_whose_comments_are_true() {
    let dir = tempfile::tempdir().unwrap();
    in_folder(dir.path(), &["init"]).assert().success();
    let file = dir.path().join("cluster.toml");
    let text = fs::read_to_string(&file).unwrap();
    let inventory = runseal::weights::Inventory::parse(&text).unwrap();
    assert_eq!(inventory.replicas().len(), 4);
    assert!(inventory.ranks().is_empty());
    // A run finds what it wants in it and says nothing.
    let out = in_folder(dir.path(), &["run"]).assert().success();
    let err = String::from_utf8_lossy(&out.get_output().stderr).into_owned();
    assert!(!err.contains("left alone"), "{err}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);

    let start = text.find("\n[[replica]]").unwrap();
    let uncommented: String = text[..start]
        .lines()
        .map(|l| match l.strip_prefix('#') {
            Some(rest) if !rest.is_empty() && !rest.starts_with(' ') => format!("{rest}\n"),
            _ => format!("{l}\n"),
        })
        .collect();
    let cluster = runseal::weights::Inventory::parse(&uncommented).unwrap();
    assert_eq!(cluster.ranks().len(), 2);
    let schema = serde_json::to_value(toml::from_str::<toml::Value>(&uncommented).unwrap());
    runseal::schema::validate("cluster", &schema.unwrap()).unwrap();

    // Mine stays mine.
    fs::remove_file(dir.path().join("attest.toml")).unwrap();
    fs::write(&file, "mine").unwrap();
    in_folder(dir.path(), &["init"])
        .assert()
        .success()
        .stdout(contains("cluster.toml (was there)"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn init_imports_what_people_already_have() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    put(
        ".env",
        "CLUSTER_NODES=10.0.0.1,10.0.0.2\nETH_IF=enp1s0f1np1\nIB_IF=rocep1s0f1\nCONTAINER_HF_TOKEN=abc\n",
    );
    put(
        "recipe.yaml",
        "model: o/Big\nruntime: sglang\ncontainer: sg:1\ncommand: python3 -m sglang.launch_server --x 1\n",
    );
    put("bad.yaml", "model: [\n");
    let from = ["--from", "spark-vllm-docker", ".env", "--from", "sparkrun"];
    let with = |last: &str| {
        let args: Vec<&str> = ["init"].into_iter().chain(from).chain([last]).collect();
        in_folder(dir.path(), &args)
    };
    with("bad.yaml")
        .assert()
        .code(2)
        .stderr(contains("bad.yaml: line 2"));
    with("absent.yaml")
        .assert()
        .code(2)
        .stderr(contains("absent.yaml"));
    in_folder(dir.path(), &["init", "--from", "compose", ".env"])
        .assert()
        .code(2)
        .stderr(contains("spark-vllm-docker, sparkrun"));
    assert!(!dir.path().join("cluster.toml").exists() && !dir.path().join("keys").exists());

    let out = with("recipe.yaml")
        .assert()
        .success()
        .stdout(contains("FILL IN"))
        .stderr(contains("CONTAINER_HF_TOKEN looks like a secret"));
    assert!(!String::from_utf8_lossy(&out.get_output().stderr).contains("abc"));
    let text = fs::read_to_string(dir.path().join("cluster.toml")).unwrap();
    let inventory = runseal::weights::Inventory::parse(&text).unwrap();
    assert_eq!(inventory.ranks().len(), 2);
    assert!(
        fs::read_to_string(dir.path().join("attest.toml"))
            .unwrap()
            .contains("inventory = ")
    );
    // Never over something.
    with("recipe.yaml")
        .assert()
        .code(2)
        .stderr(contains("left alone"));
}

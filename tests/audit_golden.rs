//! Every golden bundle through the real program: verdict, exit code, axes, and
//! the whole report in both forms.
//!
//! Renew the snapshots with `RUNSEAL_UPDATE=1 cargo test -p runseal --test audit_golden`.

mod support;

use serde_json::{Value, json};
use support::*;

const KEY: [&str; 2] = ["--trusted-key", "keys/test-only.pub.pem"];

fn json_report(name: &str) -> (i32, Value) {
    let said = verify(&["record", name, KEY[0], KEY[1], "--format", "json"]);
    assert_eq!(said.stderr, "", "{name}");
    (said.code, serde_json::from_str(&said.stdout).unwrap())
}

/// What a run came to, for each golden bundle: status, taints, completed
/// transports, passes, verified attributions, verified and unchanged replicas.
#[test]
fn the_axes_stand_side_by_side() {
    let of = |name: &str| {
        let (code, report) = json_report(name);
        assert_eq!(
            (code, &report["verdict"]),
            (0, &json!("verified")),
            "{name}"
        );
        let r = &report["derived"];
        let taints = r["run"]["taints"].as_array().unwrap().len();
        let counts: Vec<u64> = [
            "/transport/declared",
            "/transport/completed",
            "/grades/pass",
            "/attribution/verified",
            "/integrity/verified",
            "/integrity/unchanged_after",
        ]
        .iter()
        .map(|p| r.pointer(p).unwrap().as_u64().unwrap())
        .collect();
        (
            r["run"]["status"].as_str().unwrap().to_owned(),
            taints,
            counts,
        )
    };
    let want = |status: &str, taints: usize, counts: [u64; 6]| {
        (status.to_owned(), taints, counts.to_vec())
    };
    assert_eq!(of(COMPLETED), want("completed", 0, [4, 4, 3, 4, 2, 2]));
    assert_eq!(of(REFUSED), want("refused", 0, [4, 0, 0, 0, 1, 1]));
    assert_eq!(of(FAILED), want("failed", 0, [4, 1, 1, 2, 2, 2]));
    assert_eq!(of(TAINTED), want("completed", 1, [4, 4, 3, 0, 2, 1]));
    assert_eq!(of(KILLED), want("aborted", 0, [4, 0, 0, 0, 2, 0]));
    assert_eq!(of(WITHHELD), want("completed", 0, [4, 4, 3, 4, 2, 2]));
    assert_eq!(of(PUBLISHED), want("completed", 0, [4, 4, 3, 4, 2, 2]));
}

#[test]
fn reports_are_as_they_were() {
    for name in ALL {
        for (form, args) in [
            ("txt", &["--full"][..]),
            ("json", &["--format", "json"][..]),
        ] {
            let said = verify(&[&["record", name, KEY[0], KEY[1]], args].concat());
            let mut text = said.stdout;
            if form == "json" {
                // One line is no text to read differences in.
                let value: Value = serde_json::from_str(&text).unwrap();
                text = serde_json::to_string_pretty(&value).unwrap() + "\n";
            }
            let path = golden().join(format!("reports/{name}.{form}"));
            if std::env::var_os("RUNSEAL_UPDATE").is_some() {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, &text).unwrap();
            }
            let kept = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                kept == text,
                "the report on {name} changed; see tests/golden/reports/{name}.{form}, renew with\n    \
                 RUNSEAL_UPDATE=1 cargo test -p runseal --test audit_golden"
            );
        }
    }
}

/// The run ended this way whether or not a reader wants another end.
#[test]
fn a_required_status_counts() {
    let ask = |name, status| {
        let said = verify(&["record", name, KEY[0], KEY[1], "--require-status", status]);
        (said.code, said.stdout.contains("REQUIRED STATUS NOT MET"))
    };
    assert_eq!(ask(COMPLETED, "completed"), (0, false));
    assert_eq!(ask(REFUSED, "refused"), (0, false));
    assert_eq!(ask(REFUSED, "completed"), (1, true));
    assert_eq!(ask(FAILED, "completed"), (1, true));
    let said = verify(&["record", FAILED, "--require-status", "succeeded"]);
    assert_eq!(said.code, 2);
    let said = verify(&[
        "record",
        FAILED,
        KEY[0],
        KEY[1],
        "--require-status",
        "completed",
        "--format",
        "json",
    ]);
    assert_eq!(said.code, 1);
    assert_eq!(said.stdout.lines().count(), 1, "stdout is one object");
    assert!(
        said.stderr.contains("REQUIRED STATUS NOT MET"),
        "{}",
        said.stderr
    );
}

/// Without a trusted key a true record is no more than consistent with itself.
#[test]
fn trust_comes_from_the_reader() {
    for args in [
        &["record", COMPLETED][..],
        &[
            "record",
            COMPLETED,
            "--trusted-key",
            "keys/other-test-only.pub.pem",
        ][..],
    ] {
        let said = verify(args);
        assert_eq!(said.code, 1);
        assert!(
            said.stdout.contains("signer not trusted"),
            "{}",
            said.stdout
        );
        assert!(said.stdout.contains("SELF-CONSISTENT"), "{}", said.stdout);
    }
}

#[test]
fn several_records_end_in_one_line() {
    let said = verify(&["record", COMPLETED, FAILED, REFUSED, KEY[0], KEY[1]]);
    assert_eq!(said.code, 0);
    assert_eq!(
        said.stdout.lines().last().unwrap(),
        "3 records: 3 verified, 0 self-consistent with a signer not trusted, 0 not verified"
    );
    let said = verify(&[
        "record", COMPLETED, FAILED, KEY[0], KEY[1], "--format", "json",
    ]);
    assert_eq!(said.code, 0);
    let paths: Vec<String> = said
        .stdout
        .lines()
        .map(|l| {
            serde_json::from_str::<Value>(l).unwrap()["path"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(paths, [COMPLETED, FAILED], "one object per line");
    assert!(
        said.stderr.starts_with("2 records: 2 verified"),
        "{}",
        said.stderr
    );
    // One that cannot be read leaves the others audited, and is no pass.
    let said = verify(&["record", "no-such", COMPLETED, KEY[0], KEY[1]]);
    assert_eq!(said.code, 2);
    assert!(said.stdout.contains("COMPLETED"), "{}", said.stdout);
    assert!(said.stdout.ends_with("1 not readable\n"), "{}", said.stdout);
    let said = verify(&[
        "record",
        COMPLETED,
        FAILED,
        KEY[0],
        KEY[1],
        "--require-status",
        "completed",
    ]);
    assert_eq!(said.code, 1);
    assert!(
        said.stdout.ends_with("1 without the required status\n"),
        "{}",
        said.stdout
    );
}

/// Withheld parts are named, and what rests on them is only said.
#[test]
fn withheld_parts_leave_their_figures_stated() {
    let label = |name, id: &str| {
        let (_, report) = json_report(name);
        let figures = report["figures"].as_array().unwrap().clone();
        let figure = figures.iter().find(|f| f["id"] == id).unwrap().clone();
        figure["derivation"].as_str().unwrap().to_owned()
    };
    assert_eq!(label(WITHHELD, "goodput/v1"), "recomputed");
    assert_eq!(label(PUBLISHED, "goodput/v1"), "stated");
    assert_eq!(label(PUBLISHED, "first-content-median/v1"), "stated");
    assert_eq!(label(PUBLISHED, "completion-throughput/v1"), "recomputed");
    let (_, report) = json_report(PUBLISHED);
    assert_eq!(
        report["grades"],
        "not recomputed (suite/cases.jsonl is withheld)"
    );
}

/// A commitment handed over before the run ties a reader to that one run.
#[test]
fn a_commitment_handed_over_before_is_checked() {
    let report = json_report(COMPLETED).1;
    let run = &report["derived"]["run"];
    let digest = |v: &Value| v.as_str().unwrap().parse().unwrap();
    let handed = runseal::event::run_commitment(
        digest(&run["plan_digest"]),
        digest(&run["nonce_hash"]),
        digest(&report["derived"]["input"]["dataset"]),
        report["derived"]["provenance"]["signers"][0]["keyid"]
            .as_str()
            .unwrap(),
    )
    .to_string();
    let args = |c: &str| verify(&["record", COMPLETED, KEY[0], KEY[1], "--commitment", c]);
    assert_eq!(args(&handed).code, 0);
    let other = args(&"0".repeat(64));
    assert_eq!(other.code, 1);
    assert!(
        other.stdout.contains("commitment-mismatch"),
        "{}",
        other.stdout
    );
    assert_eq!(args("xyz").code, 2);
}

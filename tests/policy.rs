//! Trust policies: roles, thresholds of unique keys, windows, levels, suites.

mod support;

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use runseal::codes::Code;
use runseal::envelope::{pae, sign};
use runseal::finding::Severity;
use runseal::json;
use runseal::keys::SigningKey;
use runseal::policy::{AnyKey, Role, Trust, TrustedKey, file};
use runseal::published::report::PublishedReport;
use runseal::published::{Nothing, envelope};
use runseal::statement::PAYLOAD_TYPE;
use serde_json::{Value, json};
use support::*;

/// A key entry of a policy.
fn entry(name: &str, role: &str, key: &SigningKey) -> String {
    format!(
        "[[key]]\nname = {name:?}\nrole = {role:?}\npublic_key = {:?}\n",
        key.public().to_pem()
    )
}

fn policy(parts: &[&str]) -> String {
    let mut text = "format = \"runseal.policy/v1\"\n".to_owned();
    parts.iter().for_each(|p| text.push_str(p));
    text
}

/// The program on a golden bundle with this policy: exit code, codes of errors, report.
fn on(name: &str, text: &str, more: &[&str]) -> (i32, Vec<String>, Value) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.toml");
    std::fs::write(&path, text).unwrap();
    let mut args = vec![
        "record",
        name,
        "--format",
        "json",
        "--policy",
        path.to_str().unwrap(),
    ];
    args.extend(more);
    let said = verify(&args);
    let report: Value = serde_json::from_str(&said.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}\n{text}", said.stderr));
    let codes = report["findings"].as_array().unwrap().iter();
    let codes = codes
        .filter(|f| f["severity"] == "error")
        .map(|f| f["code"].as_str().unwrap().to_owned())
        .collect();
    (said.code, codes, report)
}

const SUITE: &str =
    "[require]\nderivation = \"recomputed\"\ngrades = true\nstatus = \"completed\"\n";

#[test]
fn a_policy_that_is_met_is_a_pass() {
    let keys = entry("us", "operator", &operator());
    let threshold = "[threshold]\noperator = 1\n";
    let (code, codes, report) = on(COMPLETED, &policy(&[&keys, threshold, SUITE]), &[]);
    assert_eq!((code, codes), (0, vec![]), "{report:#}");
    let names: Vec<&str> = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    for name in ["threshold", "evidence-level", "grades-recomputed", "status"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let suite = report["derived"]["run"]["suite"].as_str().unwrap();
    let digest = report["derived"]["provenance"]["suite"].as_str().unwrap();
    for (wanted, want) in [
        (format!("[require.suites]\n{suite} = \"any\"\n"), 0),
        (format!("[require.suites]\n{suite} = {digest:?}\n"), 0),
        (
            format!("[require.suites]\n{suite} = {:?}\n", "0".repeat(64)),
            1,
        ),
        ("[require.suites]\nother = \"any\"\n".to_owned(), 1),
    ] {
        let (code, codes, _) = on(COMPLETED, &policy(&[&keys, &wanted]), &[]);
        assert_eq!(code, want, "{wanted}");
        let expected: &[&str] = if want == 0 {
            &[]
        } else {
            &["suite-not-allowed"]
        };
        assert_eq!(codes, expected, "{wanted}");
    }
}

/// What the policy wants and the record does not have, one by one.
#[test]
fn a_policy_that_is_not_met_is_one_finding() {
    let keys = entry("us", "operator", &operator());
    let withheld = on(PUBLISHED, &policy(&[&keys]), &[]);
    assert_eq!(withheld.0, 0, "withheld parts alone are allowed");
    for (name, wanted, code) in [
        (PUBLISHED, "[require]\ngrades = true\n", "evidence-too-weak"),
        (
            PUBLISHED,
            "[require.figures]\n\"goodput/v1\" = \"recomputed\"\n",
            "evidence-too-weak",
        ),
        (
            COMPLETED,
            "[require.figures]\n\"no-such/v1\" = \"stated\"\n",
            "evidence-too-weak",
        ),
        (
            FAILED,
            "[require]\nstatus = \"completed\"\n",
            "status-not-required",
        ),
    ] {
        let (exit, codes, report) = on(name, &policy(&[&keys, wanted]), &[]);
        assert_eq!(exit, 1, "{wanted}");
        assert_eq!(codes, [code], "{wanted}");
        assert_eq!(report["verdict"], "not_verified", "{wanted}");
    }
}

/// A key counts for its role only, and never twice.
#[test]
fn roles_and_thresholds() {
    let auditor = entry("them", "auditor", &operator());
    let (code, codes, report) = on(COMPLETED, &policy(&[&auditor]), &[]);
    assert_eq!((code, codes), (1, vec!["signer-not-trusted".to_owned()]));
    assert_eq!(report["verdict"], "self_consistent");
    let two = [
        entry("us", "operator", &operator()),
        entry("others", "operator", &other()),
    ]
    .concat();
    let (code, codes, report) = on(
        COMPLETED,
        &policy(&[&two, "[threshold]\noperator = 2\n"]),
        &[],
    );
    assert_eq!((code, codes), (1, vec!["threshold-not-met".to_owned()]));
    assert_eq!(report["verdict"], "self_consistent");
    let with_auditor = [
        entry("us", "operator", &operator()),
        entry("others", "auditor", &other()),
    ]
    .concat();
    let wanted = "[threshold]\noperator = 1\nauditor = 1\n";
    let (code, codes, _) = on(COMPLETED, &policy(&[&with_auditor, wanted]), &[]);
    assert_eq!((code, codes), (1, vec!["threshold-not-met".to_owned()]));
}

#[test]
fn windows_need_a_time_that_somebody_vouches_for() {
    let mut key = entry("us", "operator", &operator());
    key.push_str("not_before = \"2026-01-01T00:00:00Z\"\nnot_after = \"2026-12-31T23:59:59Z\"\n");
    let outcome = |report: &Value| {
        let check = report["checks"]
            .as_array()
            .unwrap()
            .iter()
            .find(|c| c["name"] == "key-validity");
        check.unwrap()["outcome"].as_str().unwrap().to_owned()
    };
    let (code, _, report) = on(COMPLETED, &policy(&[&key]), &[]);
    assert_eq!((code, outcome(&report).as_str()), (0, "not_performed"));
    let strict = policy(&[&key, "[require]\nvalidity = true\n"]);
    let (code, codes, report) = on(COMPLETED, &strict, &[]);
    assert_eq!(
        (code, codes, outcome(&report).as_str()),
        (1, vec![], "not_performed")
    );
    let (code, _, report) = on(COMPLETED, &strict, &["--at", "2026-06-01T00:00:00Z"]);
    assert_eq!((code, outcome(&report).as_str()), (0, "passed"));
    for at in ["2025-12-31T23:59:59Z", "2027-01-01T00:00:00Z"] {
        let (code, codes, _) = on(COMPLETED, &policy(&[&key]), &["--at", at]);
        assert_eq!(
            (code, codes),
            (1, vec!["key-outside-window".to_owned()]),
            "{at}"
        );
    }
    assert_eq!(verify(&["record", COMPLETED, "--at", "noon"]).code, 2);
}

#[test]
fn policies_that_make_no_sense_are_refused() {
    let us = entry("us", "operator", &operator());
    for (text, why) in [
        ("format = \"runseal.policy/v2\"\n".to_owned(), "format"),
        (policy(&["surprise = 1\n"]), "surprise"),
        (
            policy(&[&us, &entry("us", "auditor", &other())]),
            "two keys",
        ),
        (
            policy(&[&us, &entry("again", "auditor", &operator())]),
            "one key",
        ),
        (policy(&[&us, "[threshold]\noperator = 2\n"]), "wants 2"),
        (policy(&[&us, "[threshold]\nking = 1\n"]), "king"),
        (
            policy(&["[[key]]\nname = \"x\"\nrole = \"operator\"\n"]),
            "one of file",
        ),
        (
            policy(&["[[key]]\nname = \"x\"\nrole = \"operator\"\nfile = \"absent.pem\"\n"]),
            "absent.pem",
        ),
        (
            policy(&[&us, "fingerprint = \"SHA256:other\"\n"]),
            "and not SHA256:other",
        ),
        (policy(&[&us, "not_before = \"soon\"\n"]), "RFC 3339"),
        (
            policy(&[
                &us,
                "not_before = \"2027-01-01T00:00:00Z\"\nnot_after = \"2026-01-01T00:00:00Z\"\n",
            ]),
            "no moment",
        ),
        (policy(&["[require]\nstatus = \"great\"\n"]), "status"),
        (
            policy(&["[require]\nderivation = \"guessed\"\n"]),
            "guessed",
        ),
        (policy(&["[require.suites]\nx = \"abc\"\n"]), "SHA-256"),
        ("format = [".to_owned(), "policy"),
    ] {
        let e = file::parse(text.as_bytes(), Path::new("/nonexistent"))
            .unwrap_err()
            .to_string();
        assert!(e.contains(why), "{text}: {e}");
    }
    assert!(file::parse(b"\xff", Path::new(".")).is_err());
}

/// Keys beside the policy, in OpenSSH form, held to their fingerprint.
#[test]
fn keys_in_files_beside_the_policy() {
    let dir = tempfile::tempdir().unwrap();
    let mut blob = vec![0, 0, 0, 11];
    blob.extend(b"ssh-ed25519\0\0\0 ");
    blob.extend(operator().public().to_bytes());
    let line = format!("ssh-ed25519 {} lab\n", STANDARD.encode(blob));
    std::fs::write(dir.path().join("lab.pub"), &line).unwrap();
    let text = policy(&[&format!(
        "[[key]]\nname = \"lab\"\nrole = \"operator\"\nfile = \"lab.pub\"\nfingerprint = {:?}\n",
        operator().public().fingerprint()
    )]);
    let path = dir.path().join("policy.toml");
    std::fs::write(&path, text).unwrap();
    let said = verify(&["record", COMPLETED, "--policy", path.to_str().unwrap()]);
    assert_eq!(said.code, 0, "{}{}", said.stdout, said.stderr);
    let key = dir.path().join("lab.pub");
    let said = verify(&["record", COMPLETED, "--trusted-key", key.to_str().unwrap()]);
    assert_eq!(said.code, 0, "{}{}", said.stdout, said.stderr);
    // A secret key is not taken for a public one.
    let secret = golden().join("keys/test-only.key.pem");
    let said = verify(&[
        "record",
        COMPLETED,
        "--trusted-key",
        secret.to_str().unwrap(),
    ]);
    assert_eq!(said.code, 2);
    assert!(said.stderr.contains("secret key"), "{}", said.stderr);
}

// Negative vectors of envelopes under a threshold of two.

fn payload() -> Vec<u8> {
    json::canonical(&json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "x", "digest": {"sha256": "0".repeat(64)}}],
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {"result": "PASSED", "configuration": []},
    }))
}

fn seed(n: u8) -> SigningKey {
    SigningKey::from_seed(&[n; 32])
}

fn trust(keys: &[&SigningKey]) -> Trust {
    let mut trust = Trust::default();
    for (i, k) in keys.iter().enumerate() {
        let key = AnyKey::from_text(&k.public().to_pem()).unwrap();
        trust.add(TrustedKey {
            role: Some(Role::Operator),
            ..TrustedKey::plain(format!("k{i}"), key)
        });
    }
    trust.policy = Some(
        file::parse(
            policy(&[
                &entry("a", "operator", &seed(1)),
                &entry("b", "operator", &seed(2)),
                "[threshold]\noperator = 2\n",
            ])
            .as_bytes(),
            Path::new("."),
        )
        .unwrap()
        .0,
    );
    trust
}

fn signature(key: &SigningKey, keyid: &str) -> Value {
    let sig = STANDARD.encode(key.sign(&pae(PAYLOAD_TYPE, &payload())));
    json!({"keyid": keyid, "sig": sig})
}

fn judged(signatures: &[Value]) -> (Vec<Code>, PublishedReport) {
    let bytes = json::canonical(&json!({
        "payload": STANDARD.encode(payload()),
        "payloadType": PAYLOAD_TYPE,
        "signatures": signatures,
    }));
    let trust = trust(&[&seed(1), &seed(2)]);
    let mut report = envelope::audit("e.json", &bytes, &trust, &Nothing);
    runseal::policy::to_published(&mut report, &trust);
    let errors = report
        .findings
        .iter()
        .filter(|f| f.severity == Severity::Error);
    (errors.map(|f| f.code).collect(), report)
}

#[test]
fn a_threshold_counts_different_keys() {
    let (a, b) = (seed(1), seed(2));
    let (one, two) = (signature(&a, &a.keyid()), signature(&b, &b.keyid()));
    assert_eq!(judged(&[one.clone(), two.clone()]).0, []);
    let unmet = [Code::ThresholdNotMet];
    assert_eq!(judged(std::slice::from_ref(&one)).0, unmet);
    // The same signature again, under other ids, and a stranger's.
    assert_eq!(judged(&[one.clone(), one.clone()]).0, unmet);
    for id in ["", "elsewhere", &seed(9).keyid()] {
        assert_eq!(judged(&[one.clone(), signature(&a, id)]).0, unmet, "{id:?}");
    }
    assert_eq!(
        judged(&[one.clone(), signature(&seed(9), &seed(9).keyid())]).0,
        unmet
    );
    // b's id on a's signature selects b, and b did not sign that.
    let found = judged(&[one.clone(), signature(&a, &b.keyid())]).0;
    assert_eq!(found, [Code::SignatureInvalid, Code::ThresholdNotMet]);
    // Ids empty on both: every trusted key is tried.
    assert_eq!(judged(&[signature(&a, ""), signature(&b, "")]).0, []);
}

/// A key speaks for its role: an auditor's verdict, an operator's record, and no other.
#[test]
fn a_role_covers_what_it_may_sign() {
    let key = seed(1);
    let verdict = |predicate: &str, role: Option<Role>| {
        let mut value: Value = json::parse(&payload()).unwrap();
        value["predicateType"] = predicate.into();
        let bytes = sign(&json::canonical(&value), PAYLOAD_TYPE, &[&key]);
        let mut trust = Trust::default();
        let public = AnyKey::from_text(&key.public().to_pem()).unwrap();
        trust.add(TrustedKey {
            role,
            ..TrustedKey::plain("k".into(), public)
        });
        let report = envelope::audit("e.json", &bytes, &trust, &Nothing);
        report.findings.iter().map(|f| f.code).collect::<Vec<_>>()
    };
    let svr = "https://in-toto.io/attestation/svr/v0.2";
    let tests = "https://in-toto.io/attestation/test-result/v0.1";
    let refused = vec![Code::SignerNotTrusted];
    for (predicate, role, want) in [
        (svr, None, vec![]),
        (svr, Some(Role::Auditor), vec![]),
        (svr, Some(Role::Operator), refused.clone()),
        (svr, Some(Role::Replica), refused.clone()),
        (tests, Some(Role::Operator), vec![]),
        (tests, Some(Role::Auditor), vec![]),
        (tests, Some(Role::Replica), refused),
    ] {
        assert_eq!(verdict(predicate, role), want, "{predicate} {role:?}");
    }
}

/// Envelopes on several lines count together when their payload is one.
#[test]
fn lines_of_one_payload_count_together() {
    let (a, b) = (seed(1), seed(2));
    let trust = trust(&[&a, &b]);
    let both = sign(&payload(), PAYLOAD_TYPE, &[&a, &b]);
    let judge = |bytes: &[u8]| {
        let mut report = envelope::audit("e.intoto.jsonl", bytes, &trust, &Nothing);
        runseal::policy::to_published(&mut report, &trust);
        report
    };
    assert!(
        judge(&both).findings.is_empty(),
        "{:#?}",
        judge(&both).findings
    );
    // b signed something else.
    let mut other: Value = json::parse(&payload()).unwrap();
    other["predicate"]["result"] = "FAILED".into();
    let lines = [
        sign(&payload(), PAYLOAD_TYPE, &[&a]),
        sign(&json::canonical(&other), PAYLOAD_TYPE, &[&b]),
    ]
    .concat();
    let codes: Vec<Code> = judge(&lines).findings.iter().map(|f| f.code).collect();
    assert_eq!(codes, [Code::ThresholdNotMet]);
}

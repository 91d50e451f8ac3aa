//! Exports and signed verdicts, through the real program.

mod support;

use runseal::codes::Code;
use runseal::ecdsa_keys::{Curve, EcdsaSigningKey};
use runseal::finding::Severity;
use runseal::published::kind::{self, Kind};
use runseal::published::{self, Nothing};
use serde_json::{Value, json};
use support::*;

fn export(form: &str) -> String {
    let said = verify(&["export", COMPLETED, "--to", form]);
    assert_eq!((said.code, said.stderr.as_str()), (0, ""), "{form}");
    said.stdout
}

/// Three axes in, and three axes still to be found.
#[test]
fn a_test_result_keeps_the_other_axes() {
    let v: Value = serde_json::from_str(&export("test-result")).unwrap();
    assert_eq!(
        v["predicateType"],
        "https://in-toto.io/attestation/test-result/v0.1"
    );
    assert_eq!(v["subject"], statement(&load(COMPLETED))["subject"]);
    let p = &v["predicate"];
    assert_eq!(p["result"], "FAILED", "one of the four cases fails");
    assert_eq!(p["passedTests"].as_array().unwrap().len(), 3);
    assert_eq!(p["failedTests"].as_array().unwrap().len(), 1);
    let axis = |name: &str| {
        let all = p["configuration"].as_array().unwrap();
        all.iter().find(|c| c["name"] == name).unwrap()["annotations"].clone()
    };
    assert_eq!(axis("transport")["completed"], 4);
    assert_eq!(axis("attribution")["verified"], 4);
    assert_eq!(axis("run")["status"], "completed");
}

/// What we write as another program's result passes our own audit of such results.
#[test]
fn the_vllm_form_audits_clean() {
    let v: Value = serde_json::from_str(&export("vllm-bench")).unwrap();
    assert_eq!(kind::of(&v), Ok(Kind::VllmBench));
    let bytes = serde_json::to_vec(&v).unwrap();
    let r = published::audit("x", &bytes, &v, Kind::VllmBench, &Nothing);
    let errors: Vec<Code> = r
        .findings
        .iter()
        .filter(|f| f.severity == Severity::Error)
        .map(|f| f.code)
        .collect();
    assert!(errors.is_empty(), "{:#?}", r.findings);
    assert_eq!(
        (&v["num_prompts"], &v["completed"], &v["failed"]),
        (&json!(4), &json!(4), &json!(0))
    );
}

#[test]
fn tables_have_one_row_each() {
    let metrics = export("csv");
    assert!(metrics.starts_with("run,metric,value,unit,n,"), "{metrics}");
    assert!(metrics.contains(",completion-throughput/v1,"), "{metrics}");
    let cases = export("cases-csv");
    assert_eq!(cases.lines().count(), 5);
    assert_eq!(cases.matches(",completed,pass,").count(), 3, "{cases}");
}

#[test]
fn every_eval_ever_has_what_its_schema_requires() {
    let v: Value = serde_json::from_str(&export("every-eval-ever")).unwrap();
    for key in [
        "schema_version",
        "evaluation_id",
        "retrieved_timestamp",
        "source_metadata",
        "model_info",
        "eval_library",
        "evaluation_results",
    ] {
        assert!(v.get(key).is_some(), "{key}");
    }
    assert_eq!(v["schema_version"], "0.3.0");
    let first = &v["evaluation_results"][0];
    assert_eq!(first["score_details"]["score"], 0.75);
    assert_eq!(first["score_details"]["uncertainty"]["num_samples"], 4);
    assert_eq!(
        first["score_details"]["details"]["transport_completed"],
        "4"
    );
}

#[test]
fn what_does_not_hold_is_not_exported() {
    let dir = copy_of(COMPLETED);
    std::fs::write(dir.path().join("grades.jsonl"), "x").unwrap();
    let said = verify(&["export", dir.path().to_str().unwrap(), "--to", "csv"]);
    assert_eq!((said.code, said.stdout.as_str()), (1, ""));
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("m.csv");
    let file = file.to_str().unwrap();
    assert_eq!(
        verify(&["export", COMPLETED, "--to", "csv", "-o", file]).code,
        0
    );
    assert_eq!(
        verify(&["export", COMPLETED, "--to", "csv", "-o", file]).code,
        2,
        "it is there"
    );
    assert_eq!(
        verify(&["export", COMPLETED, "--to", "csv", "-o", file, "--force"]).code,
        0
    );
    assert_eq!(
        verify(&["export", REFUSED, "--to", "vllm-bench"]).code,
        2,
        "nothing was measured"
    );
}

/// A verdict is an envelope that `verify record` takes in turn, and names what it is about.
#[test]
fn verdicts_are_signed_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("run");
    std::fs::rename(copy_of(COMPLETED).keep(), &bundle).unwrap();
    let bundle = bundle.to_str().unwrap();
    let key = EcdsaSigningKey::generate(Curve::P256).unwrap();
    let secret = dir.path().join("auditor.pem");
    let public = dir.path().join("auditor.pub.pem");
    runseal::ecdsa_keys::save_pair(&key, &secret, &public).unwrap();
    let (secret, public) = (secret.to_str().unwrap(), public.to_str().unwrap());
    let trusted = ["record", bundle, "--trusted-key", "keys/test-only.pub.pem"];
    let said = verify(&[&trusted[..], &["--sign-verdict", secret]].concat());
    assert_eq!(said.code, 0, "{}", said.stderr);
    let svr = format!("{bundle}.svr.intoto.jsonl");
    let said = verify(&["record", &svr, "--trusted-key", public]);
    assert_eq!(said.code, 0, "{}", said.stdout);
    assert_eq!(
        verify(&["record", &svr]).code,
        1,
        "nobody trusts the auditor"
    );
    let envelope = runseal::envelope::parse_foreign(&std::fs::read(&svr).unwrap()).unwrap();
    let payload: Value = serde_json::from_slice(&envelope.payload).unwrap();
    let record = std::fs::read(format!("{bundle}/record.intoto.jsonl")).unwrap();
    let digest = runseal::digest::Sha256Digest::of(&record).hex();
    assert_eq!(payload["subject"][0]["digest"]["sha256"], digest);
    let properties = payload["predicate"]["properties"].as_array().unwrap();
    for p in [
        "RUNSEAL_VERIFIED",
        "RUNSEAL_GRADES_RECOMPUTED",
        "RUNSEAL_CHECK_RECORD",
    ] {
        assert!(properties.contains(&json!(p)), "{p}: {properties:?}");
    }
    // It is not written twice unasked, and a bad record gets no good word.
    assert_eq!(
        verify(&[&trusted[..], &["--sign-verdict", secret]].concat()).code,
        2
    );
    std::fs::write(format!("{bundle}/grades.jsonl"), "x").unwrap();
    let said = verify(&[&trusted[..], &["--sign-verdict", secret, "--force"]].concat());
    assert_eq!(said.code, 1);
    let envelope = runseal::envelope::parse_foreign(&std::fs::read(&svr).unwrap()).unwrap();
    let text = String::from_utf8(envelope.payload).unwrap();
    assert!(
        !text.contains("RUNSEAL_VERIFIED") && !text.contains("SELF_CONSISTENT"),
        "{text}"
    );
    assert!(!text.contains("RUNSEAL_CHECK_INDEX"), "{text}");
}

//! What `verify record` takes: bundles, envelopes, published records, trees of them.

mod support;

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use runseal::ecdsa_keys::{Curve, EcdsaSigningKey};
use runseal::envelope::{pae, sign};
use runseal::json;
use runseal::statement::PAYLOAD_TYPE;
use serde_json::{Value, json};
use support::*;

const KEY: &str = "keys/test-only.pub.pem";

fn statement_of(predicate: &str, subject: Value) -> Vec<u8> {
    json::canonical(&json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [subject],
        "predicateType": predicate,
        "predicate": {"result": "PASSED"},
    }))
}

const TEST_RESULT: &str = "https://in-toto.io/attestation/test-result/v0.1";

fn subject(name: &str, bytes: &[u8]) -> Value {
    json!({"name": name, "digest": {"sha256": runseal::digest::Sha256Digest::of(bytes)}})
}

/// Runs the program on one file with our key trusted: exit code and report.
fn of_file(dir: &Path, name: &str, bytes: &[u8], keys: &[&str]) -> (i32, Value) {
    std::fs::write(dir.join(name), bytes).unwrap();
    let path = dir.join(name);
    let mut args = vec!["record", path.to_str().unwrap(), "--format", "json"];
    for k in keys {
        args.extend(["--trusted-key", k]);
    }
    let said = verify(&args);
    let report =
        serde_json::from_str(&said.stdout).unwrap_or_else(|e| panic!("{e}: {}", said.stderr));
    (said.code, report)
}

fn codes_of(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().unwrap();
    findings
        .iter()
        .map(|f| f["code"].as_str().unwrap())
        .collect()
}

#[test]
fn a_lone_envelope_of_a_record_is_signed_and_not_recomputed() {
    let dir = tempfile::tempdir().unwrap();
    let record = load(COMPLETED).record.unwrap();
    let (code, r) = of_file(dir.path(), "lone.intoto.jsonl", &record, &[KEY]);
    assert_eq!((code, &r["verdict"]), (1, &json!("not_verified")));
    assert_eq!(codes_of(&r), [""; 0]);
    assert_eq!(r["kind"], "envelope");
    assert_eq!(r["signers"].as_array().unwrap().len(), 1);
    let figures = r["figures"].as_array().unwrap();
    assert!(!figures.is_empty());
    assert!(figures.iter().all(|f| f["derivation"] == "stated"));
    let evidence = r["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["name"] == "evidence");
    assert_eq!(evidence.unwrap()["outcome"], "not_performed");
    // Nobody's key, another's key, and a changed payload.
    let (_, r) = of_file(dir.path(), "lone.intoto.jsonl", &record, &[]);
    assert_eq!(codes_of(&r), ["signer-not-trusted"]);
    let (_, r) = of_file(
        dir.path(),
        "lone.intoto.jsonl",
        &record,
        &["keys/other-test-only.pub.pem"],
    );
    assert_eq!(codes_of(&r), ["signer-not-trusted"]);
    let mut value: Value = serde_json::from_slice(&record).unwrap();
    let payload = STANDARD.decode(value["payload"].as_str().unwrap()).unwrap();
    let text = String::from_utf8(payload)
        .unwrap()
        .replacen("\"completed\"", "\"completes\"", 1);
    value["payload"] = STANDARD.encode(text).into();
    let (code, r) = of_file(
        dir.path(),
        "lone.intoto.jsonl",
        &json::canonical(&value),
        &[KEY],
    );
    assert_eq!(code, 1);
    assert!(codes_of(&r).contains(&"signature-invalid"), "{r:#}");
}

#[test]
fn envelopes_of_other_tools_are_their_signers_word() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.txt"), "bytes").unwrap();
    let payload = statement_of(TEST_RESULT, subject("model.txt", b"bytes"));
    let ours = sign(&payload, PAYLOAD_TYPE, &[&operator()]);
    let (code, r) = of_file(dir.path(), "a.json", &ours, &[KEY]);
    assert_eq!((code, &r["verdict"]), (0, &json!("verified")), "{r:#}");
    // Another file under the subject's name.
    std::fs::write(dir.path().join("model.txt"), "other").unwrap();
    let (code, r) = of_file(dir.path(), "a.json", &ours, &[KEY]);
    assert_eq!((code, codes_of(&r)), (1, vec!["subject-mismatch"]));
    // A link instead of the file.
    std::fs::remove_file(dir.path().join("model.txt")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", dir.path().join("model.txt")).unwrap();
    let (code, r) = of_file(dir.path(), "a.json", &ours, &[KEY]);
    assert_eq!((code, codes_of(&r)), (1, vec!["subject-mismatch"]));
    std::fs::remove_file(dir.path().join("model.txt")).unwrap();
    // A predicate that nothing is known of is not verified, whoever signed.
    let payload = statement_of("https://example.org/unknown/v1", subject("x", b""));
    let unknown = sign(&payload, PAYLOAD_TYPE, &[&operator()]);
    let (code, r) = of_file(dir.path(), "b.json", &unknown, &[KEY]);
    assert_eq!((code, codes_of(&r)), (1, vec![]));
    // Two lines: one good, one changed after signing.
    let good = sign(
        &statement_of(TEST_RESULT, subject("x", b"")),
        PAYLOAD_TYPE,
        &[&operator()],
    );
    let mut bad: Value = serde_json::from_slice(&good).unwrap();
    bad["payload"] = STANDARD
        .encode(statement_of(TEST_RESULT, subject("y", b"")))
        .into();
    let lines = [good, json::canonical(&bad)].concat();
    let (code, r) = of_file(dir.path(), "c.intoto.jsonl", &lines, &[KEY]);
    assert_eq!(code, 1);
    assert!(codes_of(&r).contains(&"signature-invalid"), "{r:#}");
    assert_eq!(
        r["signers"].as_array().unwrap().len(),
        0,
        "who signed half signed nothing"
    );
}

/// ECDSA P-256, as cosign signs, in DSSE and in a sigstore bundle with a public key.
#[test]
fn p256_keys_sign_for_other_tools() {
    let dir = tempfile::tempdir().unwrap();
    let key = EcdsaSigningKey::generate(Curve::P256).unwrap();
    let public = dir.path().join("p256.pub.pem");
    std::fs::write(&public, key.public().to_pem()).unwrap();
    let public = public.to_str().unwrap();
    let payload = statement_of(TEST_RESULT, subject("x", b""));
    let signature = key.sign(&pae(PAYLOAD_TYPE, &payload));
    let envelope = json!({
        "payload": URL_SAFE.encode(&payload),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"sig": STANDARD.encode(&signature)}],
    });
    let bytes = serde_json::to_vec_pretty(&envelope).unwrap();
    let (code, r) = of_file(dir.path(), "a.json", &bytes, &[public]);
    assert_eq!((code, &r["verdict"]), (0, &json!("verified")), "{r:#}");
    let (code, r) = of_file(dir.path(), "a.json", &bytes, &[KEY]);
    assert_eq!((code, codes_of(&r)), (1, vec!["signer-not-trusted"]));
    let bundle = |material: Value| {
        let b = json!({
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": material,
            "dsseEnvelope": envelope,
        });
        serde_json::to_vec(&b).unwrap()
    };
    let with_key = bundle(json!({"publicKey": {"hint": key.public().keyid()}}));
    assert_eq!(of_file(dir.path(), "b.json", &with_key, &[public]).0, 0);
    let with_cert = bundle(json!({"certificate": {"rawBytes": ""}}));
    let (code, r) = of_file(dir.path(), "c.json", &with_cert, &[public]);
    assert_eq!((code, codes_of(&r)), (1, vec!["envelope-malformed"]));
}

#[test]
fn what_is_no_record_is_one_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let said = verify(&["record", &path("")]);
    assert_eq!((said.code, said.stdout.as_str()), (2, ""));
    assert_eq!(said.stderr.lines().count(), 1, "{}", said.stderr);
    assert!(
        said.stderr.contains("is no bundle and holds no records"),
        "{}",
        said.stderr
    );
    for (name, text, why) in [
        ("a.json", "{}", "no kind that is known"),
        (
            "b.json",
            "{\"schemaVersion\":4,\"cells\":[]}",
            "schemaVersion 4",
        ),
        ("c.txt", "hello", "is no record"),
    ] {
        std::fs::write(dir.path().join(name), text).unwrap();
        let said = verify(&["record", &path(name)]);
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{name}");
        assert!(
            said.stderr.contains(why) && said.stderr.contains("hint:"),
            "{}",
            said.stderr
        );
    }
    // A tree of files none of which is a record.
    let said = verify(&["record", &path("")]);
    assert_eq!(said.code, 2, "{}", said.stdout);
    // A pipe is not waited for.
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        dir.path().join("pipe"),
        rustix::fs::Mode::RUSR,
    )
    .unwrap();
    assert_eq!(verify(&["record", &path("pipe")]).code, 2);
    // Far too large: a line of 1 GiB (a hole in the file) is not read.
    let file = std::fs::File::create(dir.path().join("long.intoto.jsonl")).unwrap();
    file.set_len(1 << 30).unwrap();
    let said = verify(&["record", &path("long.intoto.jsonl")]);
    assert_eq!(said.code, 2);
    assert!(said.stderr.contains("larger than"), "{}", said.stderr);
}

/// A record or index of 1 GiB in one line (a hole in the file) is not read into memory.
#[test]
fn a_bundle_with_an_endless_line_is_not_read() {
    for name in ["record.intoto.jsonl", "index.json"] {
        let dir = copy_of(COMPLETED);
        let file = std::fs::File::create(dir.path().join(name)).unwrap();
        file.set_len(1 << 30).unwrap();
        let said = verify(&["record", dir.path().to_str().unwrap()]);
        assert_eq!(said.code, 2, "{name}");
        assert!(
            said.stderr.contains("larger than 64 MiB"),
            "{}",
            said.stderr
        );
    }
}

/// JSON that parsers disagree about, in a file that is named as a record.
#[test]
fn json_that_can_be_read_in_two_ways_is_a_finding() {
    let dir = tempfile::tempdir().unwrap();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let past = "{\"schemaVersion\":3,\"itemCount\":9007199254740993,\"cells\":[]}";
    let twice = "{\"schemaVersion\":3,\"cells\":[],\"cells\":[]}";
    for text in [deep.as_str(), past, twice, "{", ""] {
        let (code, r) = of_file(dir.path(), "a.json", text.as_bytes(), &[]);
        assert_eq!(
            (code, codes_of(&r)),
            (1, vec!["record-malformed"]),
            "{text:.40}"
        );
        assert_eq!(r["verdict"], "not_verified");
        let (code, r) = of_file(dir.path(), "a.intoto.jsonl", text.as_bytes(), &[]);
        assert_eq!(
            (code, codes_of(&r)[0]),
            (1, "envelope-malformed"),
            "{text:.40}"
        );
    }
}

/// A tree: bundles, envelopes, published records, other files, links, something broken.
#[test]
fn a_tree_is_audited_whole() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for (name, golden) in [("x/one", COMPLETED), ("x/two", FAILED), ("three", REFUSED)] {
        std::fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        let copy = copy_of(golden);
        std::fs::rename(copy.path(), root.join(name)).unwrap();
        std::mem::forget(copy);
    }
    let published = Path::new(env!("CARGO_MANIFEST_DIR")).join("evidence/published");
    std::fs::copy(published.join("recipe-card.json"), root.join("card.json")).unwrap();
    std::fs::write(root.join("notes.txt"), "x").unwrap();
    std::fs::write(root.join("package.json"), "{}").unwrap();
    std::os::unix::fs::symlink("card.json", root.join("link.json")).unwrap();
    std::os::unix::fs::symlink("/etc", root.join("x/etc")).unwrap();
    let tree = root.to_str().unwrap();
    let said = verify(&["record", tree, "--trusted-key", KEY]);
    assert_eq!(said.code, 1, "{}", said.stderr);
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert_eq!(lines.len(), 5, "{}", said.stdout);
    assert!(
        lines[0].starts_with("self-consistent") && lines[0].contains("card.json"),
        "{}",
        lines[0]
    );
    for (line, name) in lines[1..4].iter().zip(["/three", "/x/one", "/x/two"]) {
        assert!(
            line.starts_with("verified") && line.contains(name),
            "{line}"
        );
    }
    assert_eq!(
        lines[4],
        "4 records: 3 verified, 0 self-consistent with a signer not trusted, 0 not verified, \
         1 self-consistent and not signed, 2 other files passed over, 2 links not followed"
    );
    // One object per record in the same order, and the summary aside.
    let said = verify(&["record", tree, "--trusted-key", KEY, "--format", "json"]);
    let verdicts: Vec<String> = said
        .stdout
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).unwrap()["verdict"].to_string())
        .collect();
    assert_eq!(
        verdicts,
        [
            "\"self_consistent\"",
            "\"verified\"",
            "\"verified\"",
            "\"verified\""
        ]
    );
    assert!(
        said.stderr.starts_with("4 records: 3 verified"),
        "{}",
        said.stderr
    );
    // A broken one is seen among the others.
    std::fs::write(root.join("x/two/grades.jsonl"), "x").unwrap();
    std::fs::write(root.join("y.json"), "{\"a\":1,\"a\":2}").unwrap();
    let said = verify(&["record", tree, "--trusted-key", KEY]);
    assert_eq!(said.code, 1);
    assert!(said.stdout.contains("2 not verified"), "{}", said.stdout);
    assert!(said.stdout.contains("record-malformed"), "{}", said.stdout);
    // A commitment belongs to one run.
    let zero = "0".repeat(64);
    assert_eq!(verify(&["record", tree, "--commitment", &zero]).code, 2);
}

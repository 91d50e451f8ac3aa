//! A bundle given to `--manifest`: compared with every replica like any other
//! manifest, and only with a key more than that.

mod weights_support;

use std::fs;
use std::path::Path;

use runseal::ecdsa_keys::{Curve, EcdsaSigningKey};
use runseal::oms::{Bundle, Method, SignOptions, sign_folder};
use runseal::weights::{NoProgress, PieceHash};
use serde_json::{Value, json};
use weights_support::hub::Cache;
use weights_support::{Answer, SHARDS, checkpoint, pin, verify_in};

struct Fixture {
    dir: tempfile::TempDir,
    key: EcdsaSigningKey,
}

const WAYS: [(Method, PieceHash); 3] = [
    (Method::Files, PieceHash::Sha256),
    (Method::Files, PieceHash::Blake3),
    (Method::Shards(1999), PieceHash::Sha256),
];

impl Fixture {
    fn new(method: Method, hash: PieceHash) -> Self {
        let dir = tempfile::tempdir().unwrap();
        checkpoint(&dir.path().join("model"));
        let key = EcdsaSigningKey::generate(Curve::P256).unwrap();
        let options = SignOptions {
            method,
            hash,
            ignore_paths: vec![".git".to_owned()],
            name: "model".to_owned(),
            revision: None,
        };
        let signed = sign_folder(&dir.path().join("model"), &key, options, &NoProgress).unwrap();
        fs::write(dir.path().join("model.sig"), signed.bundle.to_bytes()).unwrap();
        fs::write(dir.path().join("key.pub.pem"), key.public().to_pem()).unwrap();
        let other = EcdsaSigningKey::generate(Curve::P256).unwrap().public();
        fs::write(dir.path().join("other.pub.pem"), other.to_pem()).unwrap();
        Self { dir, key }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn verify(&self, path: &str, more: &[&str]) -> Answer {
        let args = ["weights", path, "--manifest", "model.sig"];
        let args = [&args[..], &["--format", "json"], more].concat();
        verify_in(self.path(), &args)
    }
}

fn check<'a>(json: &'a Value, name: &str) -> &'a Value {
    let checks = json["checks"].as_array().unwrap();
    checks.iter().find(|c| c["name"] == name).unwrap()
}

fn pair(code: &str, subject: &str) -> (String, String) {
    (code.to_owned(), subject.to_owned())
}

#[test]
fn without_a_key_the_report_says_that_nobody_checked_the_signature() {
    for (method, hash) in WAYS {
        let f = Fixture::new(method, hash);
        let answer = f.verify("model", &[]);
        assert_eq!(answer.code, 0, "{answer:?}");
        let json = answer.json();
        assert_eq!(json["manifests"][0]["format"], "oms");
        let signature = check(&json, "manifest-signature");
        assert_eq!(signature["outcome"], "not_performed");
        assert!(
            signature["reason"]
                .as_str()
                .unwrap()
                .contains("no public key")
        );
        assert!(json["manifests"][0].get("signer").is_none());
        // The root of what was found is the one a manifest of ours would pin.
        let root = pin(&f.path().join("model")).root().hex();
        assert_eq!(json["replicas"][0]["report"]["observed_root"], root);
        let args = ["weights", "model", "--manifest", "model.sig"];
        let human = verify_in(f.path(), &args).stdout;
        assert!(human.contains("NOT ESTABLISHED"), "{human}");
        assert!(human.contains("signature was not checked"), "{human}");
    }
}

#[test]
fn with_a_key_the_signature_is_checked_and_must_hold() {
    let f = Fixture::new(Method::Files, PieceHash::Sha256);
    let answer = f.verify("model", &["--key", "key.pub.pem"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let json = answer.json();
    assert_eq!(check(&json, "manifest-signature")["outcome"], "passed");
    assert_eq!(check(&json, "manifest-signature")["required"], true);
    assert_eq!(json["manifests"][0]["signer"], f.key.public().fingerprint());

    let answer = f.verify("model", &["--key", "other.pub.pem"]);
    assert_eq!(answer.code, 1, "{answer:?}");
    let expected = ["oms-key-mismatch", "signature-invalid"].map(|c| pair(c, "bundle"));
    assert_eq!(answer.findings(), expected);
    assert_eq!(answer.json()["replicas"], json!([]));
    let args = ["weights", "model", "--manifest", "model.sig", "--key"];
    let human = verify_in(f.path(), &[&args[..], &["other.pub.pem"]].concat());
    assert!(
        human.stdout.contains("not verified: 2 findings"),
        "{human:?}"
    );
}

#[test]
fn a_changed_bundle_is_refused_with_the_key_only() {
    let f = Fixture::new(Method::Files, PieceHash::Sha256);
    let path = f.path().join("model.sig");
    let bundle = Bundle::parse(&fs::read(&path).unwrap()).unwrap();
    let payload = String::from_utf8(bundle.payload().to_vec()).unwrap();
    let altered = payload.replace("\"model\"", "\"modem\"");
    assert_ne!(payload, altered);
    let text = fs::read_to_string(&path).unwrap();
    let encode = |t: &str| base64::Engine::encode(&base64::prelude::BASE64_STANDARD, t);
    fs::write(&path, text.replace(&encode(&payload), &encode(&altered))).unwrap();
    assert_eq!(f.verify("model", &[]).code, 0);
    let answer = f.verify("model", &["--key", "key.pub.pem"]);
    assert_eq!(answer.findings(), [pair("signature-invalid", "bundle")]);
    assert_eq!(answer.code, 1);
}

#[test]
fn damage_is_named_per_replica_and_shard() {
    for (method, hash) in WAYS {
        let f = Fixture::new(method, hash);
        let path = f.path().join("model").join(SHARDS[2]);
        let mut bytes = fs::read(&path).unwrap();
        bytes[4999] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let answer = f.verify("model", &[]);
        let subject = format!("model/{}", SHARDS[2]);
        assert_eq!(answer.findings(), [pair("digest-mismatch", &subject)]);
        assert_eq!(answer.code, 1);
        if let Method::Shards(_) = method {
            let detail = answer.json()["findings"][0]["detail"].clone();
            assert_eq!(detail, "shard 3 of 3 differs");
            // Lengths follow from the shards, and what has another length is not cut.
            bytes.push(0);
            fs::write(&path, &bytes).unwrap();
            let found = f.verify("model", &[]).findings();
            assert!(
                found.contains(&pair("size-mismatch", &subject)),
                "{found:?}"
            );
        }
        fs::write(f.path().join("model/.stray"), b"x").unwrap();
        let found = f.verify("model", &[]).findings();
        assert!(found.contains(&pair("file-extra", "model/.stray")));
        fs::remove_file(&path).unwrap();
        let found = f.verify("model", &[]).findings();
        assert!(found.contains(&pair("file-missing", &subject)), "{found:?}");
    }
}

#[test]
fn several_replicas_and_a_cache_are_compared_with_one_bundle() {
    for (method, hash) in WAYS {
        let f = Fixture::new(method, hash);
        checkpoint(&f.path().join("copy"));
        Cache::new(f.path());
        fs::create_dir(f.path().join("model/.git")).unwrap();
        fs::write(f.path().join("model/.git/HEAD"), b"x").unwrap();
        let inventory = "format = \"runseal.cluster/v1\"\nmanifest = \"model.sig\"\n".to_owned()
            + &["model", "copy", "models--org--tiny"]
                .map(|p| {
                    format!("[[replica]]\nname = \"{p}\"\ntransport = \"local\"\npath = \"{p}\"\n")
                })
                .concat();
        fs::write(f.path().join("cluster.toml"), inventory).unwrap();
        let args = [
            "weights",
            "--replicas",
            "3",
            "--key",
            "key.pub.pem",
            "--format",
            "json",
        ];
        let answer = verify_in(f.path(), &args);
        assert_eq!(answer.code, 0, "{answer:?}");
        assert_eq!(
            answer.findings(),
            [pair("ignored-by-manifest", "model/.git")]
        );
        assert_eq!(answer.json()["agreement"]["replicas"], 3);
    }
}

#[test]
fn the_holes_of_the_format_are_findings_here_too() {
    let f = Fixture::new(Method::Files, PieceHash::Sha256);
    for (name, code) in [
        (None, "oms-empty"),
        (Some("../x"), "oms-name-escapes"),
        (Some("a//b"), "oms-name-ambiguous"),
    ] {
        let digest = runseal::digest::Sha256Digest::of(b"x").0;
        let resources: Vec<_> = name
            .map(|n| json!({"name": n, "algorithm": "sha256", "digest": hex::encode(digest)}))
            .into_iter()
            .collect();
        let raw: Vec<u8> = resources.iter().flat_map(|_| digest).collect();
        let root = runseal::digest::Sha256Digest::of(&raw).hex();
        let statement = json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": "model", "digest": {"sha256": root}}],
            "predicateType": "https://model_signing/signature/v1.0",
            "predicate": {"resources": resources, "serialization": {
                "method": "files", "hash_type": "sha256", "allow_symlinks": false,
            }},
        });
        let bundle = Bundle::sign(statement.to_string().into_bytes(), &f.key);
        fs::write(f.path().join("model.sig"), bundle.to_bytes()).unwrap();
        for more in [&[][..], &["--key", "key.pub.pem"]] {
            let answer = f.verify("model", more);
            let codes: Vec<_> = answer.findings().into_iter().map(|(c, _)| c).collect();
            assert_eq!(codes, [code]);
            assert_eq!(answer.code, 1);
            assert_eq!(check(&answer.json(), "manifest-given")["outcome"], "failed");
        }
    }
}

#[test]
fn a_key_for_another_manifest_is_wrong_usage() {
    let f = Fixture::new(Method::Files, PieceHash::Sha256);
    let manifest = pin(&f.path().join("model"));
    fs::write(f.path().join("own.json"), manifest.to_bytes()).unwrap();
    let args = ["weights", "model", "--manifest", "own.json"];
    let answer = verify_in(f.path(), &[&args[..], &["--key", "key.pub.pem"]].concat());
    assert_eq!(answer.code, 2);
    assert!(answer.stderr.contains("hint"), "{answer:?}");
    assert_eq!(f.verify("model", &["--key", "missing.pem"]).code, 2);
    assert_eq!(f.verify("model", &["--manifest-format", "oms"]).code, 0);
    assert_eq!(f.verify("model", &["--manifest-format", "runseal"]).code, 2);
    assert_eq!(f.verify("model", &["--algorithm", "blake3"]).code, 2);
    // A demand that the check of a bundle does not know is not dropped in silence.
    let oms = [
        "weights",
        "model",
        "--oms",
        "model.sig",
        "--key",
        "key.pub.pem",
    ];
    assert_eq!(verify_in(f.path(), &oms).code, 0);
    for more in [
        &["--node-key", "n=key.pub.pem"],
        &["--save-reports", "saved"],
        &["--changed-since", "old"],
        &["--timeout", "5"],
        &["--ssh", "ssh"],
    ] {
        let answer = verify_in(f.path(), &[&oms[..], &more[..]].concat());
        assert_eq!(answer.code, 2, "{more:?}");
        assert!(answer.stderr.contains("cannot be used with"), "{answer:?}");
    }
}

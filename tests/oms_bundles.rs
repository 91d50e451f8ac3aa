//! Bundles as bytes: those of the reference implementation are read, every altered
//! byte is found, and what a hostile signer could write is refused before anything
//! is opened.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use runseal::codes::Code;
use runseal::digest::Sha256Digest;
use runseal::ecdsa_keys::{Curve, EcdsaPublicKey, EcdsaSigningKey};
use runseal::finding::{Outcome, Severity};
use runseal::oms::{
    Bundle, Listing, Method, OmsReport, Resource, Serialization, SignOptions, SignatureState,
    Statement, Where, check_folder, sign_folder,
};
use runseal::weights::{NoProgress, PieceHash};
use serde_json::{Value, json};

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/oms")
}

fn vector(name: &str) -> (Vec<u8>, EcdsaPublicKey) {
    let read = |file: String| std::fs::read(vectors().join(file)).unwrap();
    let key = String::from_utf8(read(format!("{name}.pub.pem"))).unwrap();
    (
        read(format!("{name}.sig")),
        EcdsaPublicKey::from_pem(&key).unwrap(),
    )
}

fn key() -> EcdsaSigningKey {
    EcdsaSigningKey::generate(Curve::P256).unwrap()
}

fn check(root: &Path, bundle: &[u8], key: &EcdsaPublicKey) -> OmsReport {
    check_folder(Where::at(root), bundle, Some(key), &NoProgress)
}

/// The codes of the errors, in order.
fn errors(report: &OmsReport) -> Vec<Code> {
    let errors = report.findings.iter();
    errors
        .filter(|f| f.severity == Severity::Error)
        .map(|f| f.code)
        .collect()
}

/// Signature and files are as they should be. What the reference implementation
/// signed here is no model: a signature alone does not make it one.
fn signed_as_it_lies(report: &OmsReport) -> bool {
    let required = report.checks.iter().filter(|c| c.required);
    let passed = required.filter(|c| c.outcome == Outcome::Passed).count() == 4;
    passed && errors(report) == [Code::SafetensorsMalformed] && !report.verified
}

const VECTORS: [&str; 5] = [
    "files-sha256-p256",
    "files-blake3-p384",
    "shards-sha256-p384",
    "shards-sha256-p521",
    "rawbytes",
];

#[test]
fn bundles_of_the_reference_implementation_verify() {
    for name in VECTORS {
        let (bundle, key) = vector(name);
        let report = check(&vectors().join("model"), &bundle, &key);
        assert!(signed_as_it_lies(&report), "{name}: {report:?}");
        assert_eq!(report.files_verified, 4, "{name}");
        assert_eq!(report.bytes_verified, 2532, "{name}");
        assert_eq!(report.signer, Some(key.fingerprint()), "{name}");
        // Another key of the same kind is another signer.
        let other = EcdsaSigningKey::generate(key.curve()).unwrap().public();
        let report = check(&vectors().join("model"), &bundle, &other);
        assert!(!report.verified && report.signer.is_none(), "{name}");
        assert_eq!(
            errors(&report),
            [Code::OmsKeyMismatch, Code::SignatureInvalid],
            "{name}"
        );
        assert_eq!(
            report.files_verified, 0,
            "nothing is read for an unknown signer"
        );
    }
}

#[test]
fn without_a_key_nothing_is_verified() {
    let (bundle, _) = vector("files-sha256-p256");
    let model = vectors().join("model");
    let report = check_folder(Where::at(&model), &bundle, None, &NoProgress);
    assert!(!report.verified);
    assert!(report.signer.is_none());
    assert_eq!(report.files_verified, 4);
}

#[test]
fn unsupported_digests_are_called_that() {
    let (bundle, key) = vector("blake2b");
    let report = check(&vectors().join("model"), &bundle, &key);
    assert_eq!(errors(&report), [Code::OmsUnsupported]);
}

/// Every byte of a bundle means something: the reader finds a flip in any. Within the
/// payload, which the signature covers as a whole, one bit of each byte is tried, and
/// elsewhere all eight.
#[test]
fn a_flip_in_any_byte_of_a_bundle_is_found() {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..8 {
        std::fs::write(folder.path().join(format!("{i}.bin")), [i]).unwrap();
    }
    let options = SignOptions {
        method: Method::Files,
        hash: PieceHash::Sha256,
        ignore_paths: Vec::new(),
        name: "model".to_owned(),
        revision: None,
    };
    let own = key();
    let signed = sign_folder(folder.path(), &own, options, &NoProgress).unwrap();
    let own = (signed.bundle.to_bytes(), own.public());
    assert!(check(folder.path(), &own.0, &own.1).verified);
    let mut all = vec![own];
    for name in ["files-sha256-p256", "rawbytes"] {
        let (bundle, key) = vector(name);
        let report = check(&vectors().join("model"), &bundle, &key);
        assert!(signed_as_it_lies(&report), "{report:?}");
        all.push((bundle, key));
    }
    for (bundle, key) in all {
        let json: Value = serde_json::from_slice(&bundle).unwrap();
        let payload = json["dsseEnvelope"]["payload"].as_str().unwrap();
        let text = std::str::from_utf8(&bundle).unwrap();
        let start = text.find(payload).unwrap();
        let payload = start..start + payload.len();
        assert!(payload.len() > 1000);
        for byte in 0..bundle.len() {
            let bits = match payload.contains(&byte) {
                true => byte % 8..byte % 8 + 1,
                false => 0..8,
            };
            for bit in bits {
                let mut altered = bundle.clone();
                altered[byte] ^= 1 << bit;
                // The folder is the same, so only bundle and signature can tell.
                let good = Bundle::parse(&altered)
                    .is_ok_and(|b| b.check_signature(Some(&key)).0 == SignatureState::Valid);
                assert!(!good, "bit {bit} of byte {byte} of {}", bundle.len());
            }
        }
    }
}

/// A signed statement with these resources and parameters.
fn hostile(key: &EcdsaSigningKey, resources: Value, serialization: Value) -> Vec<u8> {
    let digests = resources.as_array().unwrap().iter();
    let digests = digests.filter_map(|r| hex::decode(r["digest"].as_str()?).ok());
    let root = Sha256Digest::of(&digests.collect::<Vec<_>>().concat());
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "model", "digest": {"sha256": root.hex()}}],
        "predicateType": "https://model_signing/signature/v1.0",
        "predicate": {"resources": resources, "serialization": serialization},
    });
    Bundle::sign(statement.to_string().into_bytes(), key).to_bytes()
}

fn files() -> Value {
    json!({"method": "files", "hash_type": "sha256", "allow_symlinks": false})
}

fn shards(size: Value) -> Value {
    json!({"method": "shards", "hash_type": "sha256", "shard_size": size, "allow_symlinks": false})
}

fn named(names: &[&str], algorithm: &str, content: &[u8]) -> Value {
    let digest = Sha256Digest::of(content).hex();
    let resources = names
        .iter()
        .map(|n| json!({"name": n, "algorithm": algorithm, "digest": digest}));
    Value::Array(resources.collect())
}

#[test]
fn what_a_hostile_signer_can_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("model");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("a"), b"x").unwrap();
    std::fs::write(dir.path().join("outside"), b"x").unwrap();
    let outside = dir.path().join("outside");
    let outside = outside.to_str().unwrap();
    let key = key();
    let file = |names: &[&str]| hostile(&key, named(names, "sha256", b"x"), files());
    let shard = |names: &[&str]| {
        let resources = named(names, "sha256-sharded-4", b"x");
        hostile(&key, resources, shards(json!(4)))
    };
    let cases = [
        (file(&[]), Code::OmsEmpty),
        (shard(&[]), Code::OmsEmpty),
        (file(&["a", "../outside"]), Code::OmsNameEscapes),
        (file(&["a", "b/../../outside"]), Code::OmsNameEscapes),
        (file(&["a", outside]), Code::OmsNameEscapes),
        (shard(&["a:0:1", "../outside:0:1"]), Code::OmsNameEscapes),
        (shard(&["a:b:0:1"]), Code::OmsNameAmbiguous),
        (file(&["a", "a"]), Code::OmsNameAmbiguous),
        (file(&["a", "A"]), Code::OmsNameAmbiguous),
        (file(&["a", "a/b"]), Code::OmsNameAmbiguous),
        (file(&["./a"]), Code::OmsNameAmbiguous),
        (file(&["b//a"]), Code::OmsNameAmbiguous),
        (file(&["a\0"]), Code::OmsNameAmbiguous),
        (shard(&["a"]), Code::OmsMalformed),
        (shard(&["a:0:01"]), Code::OmsMalformed),
        (shard(&["a:1:1"]), Code::OmsMalformed),
        (shard(&["a:0:-1"]), Code::OmsMalformed),
        (shard(&["a:1:2"]), Code::OmsShardsIncomplete),
        (shard(&["a:0:4", "a:5:6"]), Code::OmsShardsIncomplete),
        (shard(&["a:0:4", "a:0:4"]), Code::OmsShardsIncomplete),
        (shard(&["a:0:5"]), Code::OmsShardsIncomplete),
        (shard(&["a:0:3", "a:3:4"]), Code::OmsShardsIncomplete),
        (
            hostile(&key, named(&["a:0:1"], "sha256", b"x"), shards(json!(0))),
            Code::OmsMalformed,
        ),
        (
            hostile(&key, named(&["a:0:1"], "sha256", b"x"), shards(json!(1.5))),
            Code::OmsMalformed,
        ),
        (
            hostile(&key, named(&["a"], "blake3", b"x"), files()),
            Code::OmsMalformed,
        ),
        (
            hostile(
                &key,
                named(&["a:0:1"], "sha256-sharded-5", b"x"),
                shards(json!(4)),
            ),
            Code::OmsMalformed,
        ),
        (
            Bundle::sign(b"{}".to_vec(), &key).to_bytes(),
            Code::OmsUnsupported,
        ),
        (b"{}".to_vec(), Code::OmsMalformed),
        (Vec::new(), Code::OmsMalformed),
    ];
    for (i, (bundle, code)) in cases.iter().enumerate() {
        let report = check(&root, bundle, &key.public());
        assert!(!report.verified, "case {i}");
        assert_eq!(errors(&report), [*code], "case {i}: {report:?}");
        assert_eq!(report.files_verified, 0, "case {i}: nothing was opened");
    }
    // The same maker makes good ones.
    assert!(check(&root, &file(&["a"]), &key.public()).verified);
    assert!(check(&root, &shard(&["a:0:1"]), &key.public()).verified);
}

/// A folder and a bundle in which only what this code is about is wrong.
fn mutation(code: Code, root: &Path, key: &EcdsaSigningKey) -> Vec<u8> {
    let file = |names: &[&str]| hostile(key, named(names, "sha256", b"x"), files());
    let shard = |names: &[&str]| hostile(key, named(names, "sha256", b"x"), shards(json!(4)));
    let edited = |edit: &dyn Fn(&mut Value)| {
        let mut json = serde_json::from_slice(&file(&["a"])).unwrap();
        edit(&mut json);
        json.to_string().into_bytes()
    };
    std::fs::write(root.join("a"), b"x").unwrap();
    match code {
        Code::OmsMalformed => edited(&|b| b["dsseEnvelope"]["signatures"] = json!([])),
        Code::OmsUnsupported => edited(&|b| b["mediaType"] = json!("another")),
        Code::OmsKeyMismatch => {
            edited(&|b| b["verificationMaterial"]["publicKey"]["hint"] = json!("another"))
        }
        Code::OmsRootMismatch => {
            let bundle = Bundle::parse(&file(&["a"])).unwrap();
            let mut statement: Value = serde_json::from_slice(bundle.payload()).unwrap();
            statement["subject"][0]["digest"]["sha256"] = json!("00".repeat(32));
            Bundle::sign(statement.to_string().into_bytes(), key).to_bytes()
        }
        Code::OmsEmpty => file(&[]),
        Code::OmsNameEscapes => file(&["a", "../a"]),
        Code::OmsNameAmbiguous => shard(&["a:b:0:1"]),
        Code::OmsShardsIncomplete => shard(&["a:0:4", "a:5:6"]),
        Code::OmsEmptyFile => {
            std::fs::write(root.join("empty"), b"").unwrap();
            shard(&["a:0:1"])
        }
        Code::OmsPathIgnored => {
            std::fs::write(root.join(".gitignore"), b"x").unwrap();
            file(&["a"])
        }
        Code::OmsRootWithoutNames => file(&["a"]),
        other => panic!("{other} has no mutation here"),
    }
}

#[test]
fn every_code_has_a_mutation_that_yields_exactly_it_and_a_place_in_the_docs() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/oms.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let key = key();
    let codes = Code::ALL.iter().filter(|c| c.name().starts_with("oms-"));
    for code in codes.copied() {
        assert!(docs.contains(&format!("`{code}`")), "{code} in docs/oms.md");
        let dir = tempfile::tempdir().unwrap();
        let bundle = mutation(code, dir.path(), &key);
        let report = check(dir.path(), &bundle, &key.public());
        let mut found: Vec<_> = report.findings.iter().map(|f| f.code).collect();
        // The note that every statement has is exact only by itself.
        found.retain(|c| *c != Code::OmsRootWithoutNames || *c == code);
        assert_eq!(found, [code], "{report:?}");
        assert_eq!(report.verified, code.severity() == Severity::Note, "{code}");
    }
}

#[test]
fn a_root_that_does_not_follow_is_found() {
    let key = key();
    let good = hostile(&key, named(&["a"], "sha256", b"x"), files());
    let payload = Bundle::parse(&good).unwrap().payload().to_vec();
    let mut statement: Value = serde_json::from_slice(&payload).unwrap();
    statement["subject"][0]["digest"]["sha256"] = json!("00".repeat(32));
    let bundle = Bundle::sign(statement.to_string().into_bytes(), &key).to_bytes();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), b"x").unwrap();
    let report = check(dir.path(), &bundle, &key.public());
    assert_eq!(errors(&report), [Code::OmsRootMismatch]);
}

#[test]
fn shard_sizes_and_algorithms_in_every_spelling_are_read() {
    let key = key();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), b"x").unwrap();
    for size in [json!(4), json!(4.0)] {
        for algorithm in ["sha256", "sha256-sharded-4", "sha256-sharded-4.0"] {
            let resources = named(&["a:0:1"], algorithm, b"x");
            let bundle = hostile(&key, resources, shards(size.clone()));
            assert!(
                check(dir.path(), &bundle, &key.public()).verified,
                "{size} {algorithm}"
            );
        }
    }
}

#[test]
fn key_ids_of_all_kinds_are_read_and_others_found() {
    let (bundle, key) = vector("files-sha256-p256");
    let mut json: Value = serde_json::from_slice(&bundle).unwrap();
    let hint = json["verificationMaterial"]["publicKey"]["hint"].clone();
    for keyid in [Value::Null, json!(""), hint, json!(key.keyid())] {
        json["dsseEnvelope"]["signatures"][0]["keyid"] = keyid;
        let bundle = Bundle::parse(json.to_string().as_bytes()).unwrap();
        assert_eq!(bundle.check_signature(Some(&key)).0, SignatureState::Valid);
    }
    json["dsseEnvelope"]["signatures"][0]["keyid"] = json!("another");
    let other = Bundle::parse(json.to_string().as_bytes()).unwrap();
    assert_eq!(other.check_signature(Some(&key)).0, SignatureState::Invalid);
    let signature = json["dsseEnvelope"]["signatures"][0]
        .as_object_mut()
        .unwrap();
    signature.remove("keyid");
    let absent = Bundle::parse(json.to_string().as_bytes()).unwrap();
    assert_eq!(absent.check_signature(Some(&key)).0, SignatureState::Valid);
    // Two signatures would be two claims.
    let twice = json["dsseEnvelope"]["signatures"][0].clone();
    json["dsseEnvelope"]["signatures"]
        .as_array_mut()
        .unwrap()
        .push(twice);
    assert_eq!(
        Bundle::parse(json.to_string().as_bytes()).unwrap_err().code,
        Code::OmsMalformed
    );
}

#[test]
fn certificates_and_logs_are_not_mistaken_for_keys() {
    let (bundle, _) = vector("files-sha256-p256");
    let base: Value = serde_json::from_slice(&bundle).unwrap();
    for (field, value) in [
        ("certificate", json!({"rawBytes": ""})),
        ("x509CertificateChain", json!({"certificates": []})),
        ("tlogEntries", json!([{}])),
    ] {
        let mut json = base.clone();
        json["verificationMaterial"][field] = value;
        let finding = Bundle::parse(json.to_string().as_bytes()).unwrap_err();
        assert_eq!(finding.code, Code::OmsUnsupported, "{field}");
    }
}

#[test]
fn equal_contents_under_other_names_share_the_root_of_the_format_and_not_ours() {
    let key = key();
    let roots = [["a", "b"], ["c", "d"]].map(|names| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(names[0]), b"one").unwrap();
        std::fs::write(dir.path().join(names[1]), b"two").unwrap();
        let options = SignOptions {
            method: Method::Files,
            hash: PieceHash::Sha256,
            ignore_paths: Vec::new(),
            name: "model".to_owned(),
            revision: None,
        };
        let signed = sign_folder(dir.path(), &key, options, &NoProgress).unwrap();
        let report = check(dir.path(), &signed.bundle.to_bytes(), &key.public());
        assert!(report.verified);
        assert!(
            report
                .findings
                .iter()
                .any(|f| f.code == Code::OmsRootWithoutNames)
        );
        assert_eq!(report.tree_root, signed.tree_root);
        (signed.statement.root, signed.tree_root.unwrap())
    });
    assert_eq!(roots[0].0, roots[1].0);
    assert_ne!(roots[0].1, roots[1].1);
}

#[test]
fn statements_come_back_as_written() {
    for (method, hash) in [
        (Method::Files, PieceHash::Blake3),
        (Method::Shards(7), PieceHash::Sha256),
    ] {
        let serialization = Serialization {
            method,
            hash,
            allow_symlinks: false,
            ignore_paths: vec![".git".to_owned()],
        };
        let resource = Resource {
            name: "a:0:1".to_owned(),
            digest: [7; 32],
        };
        let statement = Statement::new("m".to_owned(), serialization, vec![resource]);
        assert_eq!(
            Statement::parse(&statement.to_payload()).unwrap(),
            statement
        );
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Bundle::parse(&bytes);
        let _ = Statement::parse(&bytes);
        let _ = EcdsaPublicKey::from_der(&bytes);
        let text = String::from_utf8_lossy(&bytes);
        let _ = EcdsaPublicKey::from_pem(&text);
        let _ = EcdsaSigningKey::from_pem(&text);
    }

    #[test]
    fn arbitrary_names_and_numbers_never_panic(
        names in prop::collection::vec("(\\PC|[:/.0-9]){0,12}", 0..6),
        size in any::<f64>(),
        sharded in any::<bool>(),
    ) {
        let serialization = if sharded { shards(json!(size)) } else { files() };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let key = EcdsaSigningKey::from_pem(SECRET).unwrap();
        let bundle = hostile(&key, named(&names, "sha256", b"x"), serialization);
        if let Ok(statement) = Statement::parse(Bundle::parse(&bundle).unwrap().payload())
            && let Ok(listing) = Listing::of(&statement)
        {
            prop_assert!(!listing.files.is_empty());
            for path in listing.files.keys() {
                prop_assert!(!path.as_bytes().split(|b| *b == b'/').any(|p| p == b".."));
            }
        }
    }

    #[test]
    fn altered_bundles_never_verify(
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let (mut bundle, key) = vector("shards-sha256-p521");
        let place = place.index(bundle.len());
        let before = bundle[place];
        bundle[place] = byte;
        let good = Bundle::parse(&bundle)
            .is_ok_and(|b| b.check_signature(Some(&key)).0 == SignatureState::Valid);
        prop_assert_eq!(good, byte == before);
    }
}

/// A throw-away key of SEC 1 form, for speed.
const SECRET: &str = "-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIAXHsis1VYpgPLpmej8G0WBmSkmBfVIaA/uVZ9pOCgLgoAoGCCqGSM49
AwEHoUQDQgAEoUBwNMwVNJLusJDie43n8OvPue/DFg2DPcqFFKvus4O55h97X64W
mHHcbyGIyzjuQIIpPFSGX/Cvo3jpO8ElsA==
-----END EC PRIVATE KEY-----
";

//! A signature says who signed, not that what was signed is a model: layout and
//! structure are looked at beside it, by the same rules as with a manifest.

mod weights_support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use runseal::codes::Code;
use runseal::digest::Sha256Digest;
use runseal::ecdsa_keys::{Curve, EcdsaSigningKey};
use runseal::oms::{
    Bundle, MAX_BUNDLE, Method, Resource, Serialization, SignError, SignOptions, Statement, Where,
    check_folder, sign_folder,
};
use runseal::relpath::RelPath;
use runseal::weights::{NoProgress, PieceHash, Progress};
use weights_support::hub::{COMMIT, Cache, metadata, pointer};
use weights_support::{Answer, SHARDS, checkpoint, content, verify_in};

#[test]
fn what_changes_while_a_signed_folder_is_read_is_seen() {
    type Change = fn(&Path);
    let changes: [(Change, &str); 3] = [
        (
            |m| fs::write(m.join("new.bin"), b"x").unwrap(),
            "it appeared",
        ),
        (
            |m| symlink("/etc/passwd", m.join("link")).unwrap(),
            "it appeared",
        ),
        (
            |m| {
                fs::rename(m, m.with_extension("old")).unwrap();
                checkpoint(m);
            },
            "it is another folder",
        ),
    ];
    for (change, says) in changes {
        let signed = Signed::new();
        let model = signed.at("model");
        checkpoint(&model);
        signed.sign(&model, WAYS[0]);
        let bundle = fs::read(signed.at("model.sig")).unwrap();
        // The first byte read is the sign that everything was listed.
        let moment = Moment {
            once: std::sync::Once::new(),
            change: Box::new({
                let model = model.clone();
                move || change(&model)
            }),
        };
        let key = signed.key.public();
        let report = check_folder(Where::at(&model), &bundle, Some(&key), &moment);
        assert!(!report.verified, "{says}");
        let found: Vec<_> = report
            .findings
            .iter()
            .filter(|f| f.code == Code::ChangedDuringRead)
            .collect();
        assert!(
            found.iter().any(|f| f.detail.starts_with(says)),
            "{says}: {:?}",
            report.findings
        );
    }
}

/// Does something when the first byte is read.
struct Moment {
    once: std::sync::Once,
    change: Box<dyn Fn() + Sync>,
}

impl Progress for Moment {
    fn planned(&self, _: usize, _: u64) {}
    fn read(&self, _: &RelPath, _: u64) {
        self.once.call_once(|| (self.change)());
    }
}

const WAYS: [(Method, PieceHash); 3] = [
    (Method::Files, PieceHash::Sha256),
    (Method::Files, PieceHash::Blake3),
    (Method::Shards(1999), PieceHash::Sha256),
];

fn digest(hash: PieceHash, bytes: &[u8]) -> [u8; 32] {
    match hash {
        PieceHash::Sha256 => Sha256Digest::of(bytes).0,
        PieceHash::Blake3 => *blake3::hash(bytes).as_bytes(),
    }
}

/// A model in `model`, or elsewhere, that a signer signed who looks at nothing.
struct Signed {
    dir: tempfile::TempDir,
    key: EcdsaSigningKey,
}

impl Signed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = EcdsaSigningKey::generate(Curve::P256).unwrap();
        fs::write(dir.path().join("key.pub.pem"), key.public().to_pem()).unwrap();
        Self { dir, key }
    }

    fn at(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join(path)
    }

    /// Signs what lies in the folder, links followed, but for names with a dot first.
    fn sign(&self, folder: &Path, (method, hash): (Method, PieceHash)) {
        let mut resources = Vec::new();
        let walk = walkdir::WalkDir::new(folder)
            .min_depth(1)
            .sort_by_file_name();
        for entry in walk.follow_links(true) {
            let entry = entry.unwrap();
            let name = entry.path().strip_prefix(folder).unwrap();
            let name = name.to_str().unwrap();
            if !entry.file_type().is_file() || name.starts_with('.') {
                continue;
            }
            let bytes = fs::read(entry.path()).unwrap();
            match method {
                Method::Files => resources.push(Resource {
                    name: name.to_owned(),
                    digest: digest(hash, &bytes),
                }),
                Method::Shards(size) => {
                    let mut start = 0;
                    for piece in bytes.chunks(size as usize) {
                        let end = start + piece.len();
                        resources.push(Resource {
                            name: format!("{name}:{start}:{end}"),
                            digest: digest(hash, piece),
                        });
                        start = end;
                    }
                }
            }
        }
        let serialization = Serialization {
            method,
            hash,
            allow_symlinks: true,
            ignore_paths: vec![".store".to_owned(), ".cache".to_owned()],
        };
        let statement = Statement::new("model".to_owned(), serialization, resources);
        let bundle = Bundle::sign(statement.to_payload(), &self.key);
        fs::write(self.at("model.sig"), bundle.to_bytes()).unwrap();
    }

    fn check(&self, path: &str) -> Answer {
        let args = ["weights", path, "--oms", "model.sig"];
        let more = ["--key", "key.pub.pem", "--format", "json"];
        verify_in(self.dir.path(), &[&args[..], &more[..]].concat())
    }

    /// The errors found, whatever notes there are.
    fn errors(&self, path: &str) -> Vec<(String, String)> {
        let answer = self.check(path);
        let json = answer.json();
        let findings = json["findings"].as_array().unwrap().iter();
        let errors = findings.filter(|f| f["severity"] == "error");
        let text = |v: &serde_json::Value| v.as_str().unwrap().to_owned();
        let found: Vec<_> = errors
            .map(|f| (text(&f["code"]), text(&f["subject"])))
            .collect();
        assert_eq!(answer.code, i32::from(!found.is_empty()), "{answer:?}");
        // The signature is good, and every file is as it was signed.
        for check in &json["checks"].as_array().unwrap()[..4] {
            assert_eq!(check["outcome"], "passed", "{check}");
        }
        found
    }

    fn refused(&self, path: &Path) -> String {
        let options = |(method, hash)| SignOptions {
            method,
            hash,
            ignore_paths: vec![".store".to_owned()],
            name: "model".to_owned(),
            revision: None,
        };
        let sign = |way| sign_folder(path, &self.key, options(way), &NoProgress);
        let said = WAYS.map(|way| sign(way).map(|_| ()).unwrap_err().to_string());
        assert!(said.iter().all(|s| *s == said[0]), "{said:?}");
        said[0].clone()
    }
}

fn pair(code: &str, subject: &str) -> (String, String) {
    (code.to_owned(), subject.to_owned())
}

#[test]
fn signed_pointers_and_cut_files_are_no_model() {
    let gguf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/foreign/single.gguf");
    let gguf = fs::read(gguf).unwrap();
    let shard = content(SHARDS[0]);
    let index = r#"{"weight_map":{}}"#;
    let cases = [
        (SHARDS[0], pointer(&shard).into_bytes(), "lfs-pointer"),
        (SHARDS[0], shard[..4000].to_vec(), "shard-truncated"),
        (SHARDS[0], [&shard[..], b"x"].concat(), "shard-overlong"),
        (SHARDS[0], vec![255; 5000], "safetensors-malformed"),
        ("x.gguf", gguf[..gguf.len() - 40].to_vec(), "gguf-truncated"),
        ("x.GGUF", gguf[..gguf.len() - 40].to_vec(), "gguf-truncated"),
        (
            "model.safetensors.index.json",
            index.into(),
            "index-mismatch",
        ),
    ];
    for (name, bytes, code) in cases {
        let s = Signed::new();
        checkpoint(&s.at("model"));
        for way in WAYS {
            s.sign(&s.at("model"), way);
            assert_eq!(s.errors("model"), []);
        }
        fs::write(s.at("model").join(name), bytes).unwrap();
        for way in WAYS {
            s.sign(&s.at("model"), way);
            assert_eq!(s.errors("model"), [pair(code, name)], "{way:?}");
        }
        assert_eq!(s.check("model").json()["checks"][4]["outcome"], "failed");
        // Nor do we sign it.
        let said = s.refused(&s.at("model"));
        assert!(said.contains(code) && said.contains(name), "{said}");
    }
}

#[test]
fn what_an_allowed_link_leads_to_is_looked_at_by_the_name_of_the_link() {
    let s = Signed::new();
    checkpoint(&s.at("model"));
    fs::create_dir(s.at("model/.store")).unwrap();
    let blob = s.at("model/.store/1");
    fs::rename(s.at("model").join(SHARDS[1]), &blob).unwrap();
    symlink(".store/1", s.at("model").join(SHARDS[1])).unwrap();
    s.sign(&s.at("model"), WAYS[0]);
    assert_eq!(s.errors("model"), []);
    fs::write(&blob, pointer(&content(SHARDS[1]))).unwrap();
    s.sign(&s.at("model"), WAYS[0]);
    assert_eq!(s.errors("model"), [pair("lfs-pointer", SHARDS[1])]);
}

#[test]
fn what_a_cache_claims_is_compared_with_what_was_signed() {
    let s = Signed::new();
    let cache = Cache::new(s.dir.path());
    let snapshot = cache.root.join("snapshots").join(COMMIT);
    for way in WAYS {
        s.sign(&snapshot, way);
        assert_eq!(s.errors("models--org--tiny"), []);
    }
    fs::write(cache.root.join("blobs/77.incomplete"), b"x").unwrap();
    for way in WAYS {
        s.sign(&snapshot, way);
        let found = s.errors("models--org--tiny");
        assert_eq!(found, [pair("download-incomplete", "77.incomplete")]);
    }
    fs::remove_file(cache.root.join("blobs/77.incomplete")).unwrap();
    // Other content under the old names, of a SHA-256 and of a git blob id.
    for name in [SHARDS[0], "config.json"] {
        let mut bytes = fs::read(cache.blob(name)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(cache.blob(name), bytes).unwrap();
    }
    for way in WAYS {
        s.sign(&snapshot, way);
        let found = s.errors("models--org--tiny");
        let code = "blob-name-mismatch";
        assert_eq!(found, [pair(code, "config.json"), pair(code, SHARDS[0])]);
    }
    for way in WAYS {
        let options = SignOptions {
            method: way.0,
            hash: way.1,
            ignore_paths: Vec::new(),
            name: "model".to_owned(),
            revision: None,
        };
        let e = sign_folder(&cache.root, &s.key, options, &NoProgress).unwrap_err();
        assert!(e.to_string().contains("blob"), "{e}");
    }
}

#[test]
fn what_the_metadata_of_a_local_dir_claim_is_compared_too() {
    let s = Signed::new();
    checkpoint(&s.at("model"));
    let sha256 = Sha256Digest::of(&content(SHARDS[0])).hex();
    metadata(&s.at("model"), SHARDS[0], COMMIT, &sha256);
    for way in WAYS {
        s.sign(&s.at("model"), way);
        assert_eq!(s.errors("model"), []);
    }
    metadata(&s.at("model"), SHARDS[0], COMMIT, &"0".repeat(64));
    for way in WAYS {
        s.sign(&s.at("model"), way);
        assert_eq!(s.errors("model"), [pair("etag-mismatch", SHARDS[0])]);
    }
    metadata(&s.at("model"), SHARDS[0], COMMIT, &sha256);
    let part = s.at("model/.cache/huggingface/download/x.incomplete");
    fs::write(part, b"x").unwrap();
    s.sign(&s.at("model"), WAYS[0]);
    let subject = ".cache/huggingface/download/x.incomplete";
    assert_eq!(s.errors("model"), [pair("download-incomplete", subject)]);
}

#[test]
fn a_bundle_that_no_reader_takes_is_not_made() {
    let s = Signed::new();
    fs::create_dir(s.at("model")).unwrap();
    let file = fs::File::create(s.at("model/weights.bin")).unwrap();
    // Reading it would take long, and its shards of a byte all memory.
    file.set_len(1 << 40).unwrap();
    let options = |method| SignOptions {
        method,
        hash: PieceHash::Sha256,
        ignore_paths: Vec::new(),
        name: "model".to_owned(),
        revision: None,
    };
    for size in [1, 100_000] {
        let options = options(Method::Shards(size));
        let e = sign_folder(&s.at("model"), &s.key, options, &NoProgress).unwrap_err();
        let SignError::TooLarge { bytes } = &e else {
            panic!("{e}")
        };
        assert!(*bytes > MAX_BUNDLE);
        assert!(e.to_string().contains("hint: a larger --shard-size"), "{e}");
    }
    // One that fits is made.
    file.set_len(5000).unwrap();
    sign_folder(
        &s.at("model"),
        &s.key,
        options(Method::Shards(1)),
        &NoProgress,
    )
    .unwrap();
}

//! Bundles on the layouts that models really lie in: a signed model is downloaded
//! into a hub cache or a local-dir, and what lies there can be signed.

mod weights_support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use runseal::ecdsa_keys::{Curve, EcdsaSigningKey};
use runseal::oms::{Method, SignError, SignOptions, Signed, Statement, sign_folder};
use runseal::weights::{LayoutKind, NoProgress, PieceHash};
use weights_support::hub::{COMMIT, Cache, OTHER, etag, files, metadata};
use weights_support::{Answer, SHARDS, checkpoint, content, verify_in};

const ROOT: &str = "models--org--tiny";

struct Fixture {
    dir: tempfile::TempDir,
    key: EcdsaSigningKey,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = EcdsaSigningKey::generate(Curve::P256).unwrap();
        fs::write(dir.path().join("key.pub.pem"), key.public().to_pem()).unwrap();
        Self { dir, key }
    }

    fn sign(&self, path: &str, method: Method, hash: PieceHash) -> Result<Signed, SignError> {
        let options = SignOptions {
            method,
            hash,
            ignore_paths: Vec::new(),
            name: "given".to_owned(),
            revision: None,
        };
        let signed = sign_folder(&self.dir.path().join(path), &self.key, options, &NoProgress)?;
        fs::write(self.dir.path().join("model.sig"), signed.bundle.to_bytes()).unwrap();
        Ok(signed)
    }

    fn verify(&self, path: &str, more: &[&str]) -> Answer {
        let args = [
            "weights",
            path,
            "--oms",
            "model.sig",
            "--key",
            "key.pub.pem",
        ];
        let args = [&args[..], &["--format", "json"], more].concat();
        verify_in(self.dir.path(), &args)
    }

    /// Errors and notes, other than the note that every check has.
    fn findings(&self, path: &str, more: &[&str]) -> Vec<(String, String)> {
        let answer = self.verify(path, more);
        let mut found = answer.findings();
        found.retain(|(code, _)| code != "oms-root-without-names");
        let notes = ["oms-path-ignored", "structure-not-checked", "ref-elsewhere"];
        let bad = found
            .iter()
            .any(|(code, _)| !notes.contains(&code.as_str()));
        assert_eq!(answer.code, i32::from(bad), "{answer:?}");
        found
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

fn pair(code: &str, subject: &str) -> (String, String) {
    (code.to_owned(), subject.to_owned())
}

fn ways() -> [(Method, PieceHash); 3] {
    [
        (Method::Files, PieceHash::Sha256),
        (Method::Files, PieceHash::Blake3),
        (Method::Shards(1999), PieceHash::Sha256),
    ]
}

#[test]
fn what_was_signed_flat_verifies_in_a_cache_and_the_reverse() {
    let f = Fixture::new();
    let flat = f.path().join("flat");
    checkpoint(&flat);
    Cache::new(f.path());
    let snapshot = format!("{ROOT}/snapshots/{COMMIT}");
    let places = ["flat", ROOT, snapshot.as_str()];
    for (method, hash) in ways() {
        let mut roots = Vec::new();
        for signed_in in places {
            let signed = f.sign(signed_in, method, hash).unwrap();
            roots.push((signed.tree_root, signed.statement.root));
            let cached = signed.layout == LayoutKind::HfCache;
            assert_eq!(cached, signed_in != "flat");
            // Other readers see links in a cache.
            assert_eq!(signed.statement.serialization.allow_symlinks, cached);
            let name = if cached { "org/tiny" } else { "given" };
            assert_eq!(signed.statement.name, name);
            for place in places {
                assert_eq!(f.findings(place, &[]), [], "{signed_in} {place}");
                let answer = f.verify(place, &[]);
                assert_eq!(answer.json()["files_verified"], 5);
                let root = answer.json()["tree_root"].clone();
                assert_eq!(
                    root.as_str().map(str::to_owned),
                    signed.tree_root.map(|r| r.hex())
                );
            }
        }
        assert!(roots.windows(2).all(|w| w[0] == w[1]), "{roots:?}");
    }
}

#[test]
fn damage_in_a_cache_is_found_through_its_links() {
    for (method, hash) in ways() {
        let f = Fixture::new();
        let cache = Cache::new(f.path());
        f.sign(ROOT, method, hash).unwrap();
        let blob = cache.blob(SHARDS[1]);
        let good = fs::read(&blob).unwrap();
        let mut bad = good.clone();
        bad[4999] ^= 1;
        fs::write(&blob, bad).unwrap();
        let both = ["digest-mismatch", "blob-name-mismatch"].map(|c| pair(c, SHARDS[1]));
        assert_eq!(f.findings(ROOT, &[]), both);
        fs::remove_file(&blob).unwrap();
        assert_eq!(f.findings(ROOT, &[]), [pair("link-dangling", SHARDS[1])]);
        fs::write(f.path().join("elsewhere"), &good).unwrap();
        symlink("../../elsewhere", &blob).unwrap();
        assert_eq!(f.findings(ROOT, &[]), [pair("symlink-escapes", SHARDS[1])]);
        fs::remove_file(&blob).unwrap();
        fs::write(&blob, &good).unwrap();
        assert_eq!(f.findings(ROOT, &[]), []);
        // Out of the cache, to the same bytes.
        let link = cache.at(COMMIT, SHARDS[1]);
        fs::remove_file(&link).unwrap();
        symlink("../../../elsewhere", &link).unwrap();
        assert_eq!(f.findings(ROOT, &[]), [pair("symlink-escapes", SHARDS[1])]);
        fs::remove_file(&link).unwrap();
        assert_eq!(f.findings(ROOT, &[]), [pair("file-missing", SHARDS[1])]);
    }
}

#[test]
fn the_snapshot_that_was_asked_for_is_the_one_checked() {
    let f = Fixture::new();
    let cache = Cache::new(f.path());
    let mut other = files();
    other.insert("config.json".to_owned(), b"other".to_vec());
    cache.snapshot(OTHER, &other);
    f.sign(ROOT, Method::Files, PieceHash::Sha256).unwrap();
    assert_eq!(f.findings(ROOT, &["--revision", COMMIT]), []);
    assert_eq!(
        f.findings(ROOT, &["--revision", OTHER]),
        [
            pair("ref-elsewhere", "refs/main"),
            pair("digest-mismatch", "config.json")
        ]
    );
    assert_eq!(
        f.findings(ROOT, &["--revision", "missing"]),
        [pair("snapshot-not-found", "folder")]
    );
}

#[test]
fn a_cache_that_contradicts_itself_is_not_signed() {
    let f = Fixture::new();
    let cache = Cache::new(f.path());
    let why = |f: &Fixture| {
        let signed = f.sign(ROOT, Method::Files, PieceHash::Sha256);
        signed.unwrap_err().to_string()
    };
    let blob = cache.blob(SHARDS[0]);
    let good = fs::read(&blob).unwrap();
    fs::write(&blob, b"other bytes").unwrap();
    assert!(why(&f).contains("names its blob by another SHA-256"));
    fs::remove_file(&blob).unwrap();
    assert!(why(&f).contains("the cache has no blob"));
    fs::write(&blob, good).unwrap();
    fs::write(cache.root.join("blobs/x.incomplete"), b"").unwrap();
    assert!(why(&f).contains("not finished"));
    fs::remove_file(cache.root.join("blobs/x.incomplete")).unwrap();
    f.sign(ROOT, Method::Files, PieceHash::Sha256).unwrap();
}

#[test]
fn the_notes_of_the_hub_client_are_no_part_of_the_model() {
    let f = Fixture::new();
    checkpoint(&f.path().join("flat"));
    checkpoint(&f.path().join("local"));
    let claim = etag("config.json", &content("config.json"));
    metadata(&f.path().join("local"), "config.json", COMMIT, &claim);
    let notes = ".cache/huggingface/download/config.json.metadata";
    // Signed before the download, the bundle knows nothing of them.
    f.sign("flat", Method::Files, PieceHash::Sha256).unwrap();
    assert_eq!(f.findings("local", &[]), [pair("file-extra", notes)]);
    let ignored = f.findings("local", &["--ignore", ".cache/huggingface"]);
    assert_eq!(ignored, [pair("oms-path-ignored", notes)]);
    // What is listed cannot be ignored away.
    fs::write(f.path().join("local/config.json"), b"x").unwrap();
    let both = f.findings("local", &["--ignore", ".cache", "--ignore", "config.json"]);
    assert_eq!(
        both,
        [
            pair("oms-path-ignored", notes),
            pair("digest-mismatch", "config.json"),
            pair("etag-mismatch", "config.json")
        ]
    );
    checkpoint(&f.path().join("local"));
    let signed = f.sign("local", Method::Files, PieceHash::Sha256).unwrap();
    let statement = Statement::parse(signed.bundle.payload()).unwrap();
    assert_eq!(statement.serialization.ignore_paths, [".cache/huggingface"]);
    assert_eq!(f.findings("local", &[]), [pair("oms-path-ignored", notes)]);
    assert_eq!(f.findings("flat", &[]), []);
}

#[test]
fn a_gguf_file_is_signed_and_checked_by_itself() {
    let f = Fixture::new();
    fs::write(f.path().join("m.gguf"), b"GGUF and so on").unwrap();
    fs::write(f.path().join("other.gguf"), b"not its business").unwrap();
    let signed = f.sign("m.gguf", Method::Files, PieceHash::Sha256).unwrap();
    assert_eq!(signed.files, 1);
    // Of a version that nobody knows, which is a note.
    let unknown = pair("structure-not-checked", "m.gguf");
    assert_eq!(f.findings("m.gguf", &[]), std::slice::from_ref(&unknown));
    fs::write(f.path().join("m.gguf"), b"GGUF and so on.").unwrap();
    assert_eq!(
        f.findings("m.gguf", &[]),
        [pair("digest-mismatch", "m.gguf"), unknown]
    );
}

//! The real `verify` on real folders: each thing that can be wrong with one is named.

mod weights_support;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use runseal::ecdsa_keys::{Curve, EcdsaSigningKey};
use runseal::oms::{Bundle, Method, SignOptions, Statement, sign_folder};
use runseal::weights::{NoProgress, PieceHash};
use weights_support::{Answer, SHARDS, checkpoint, verify_in};

/// A signed checkpoint in `model/`, `model.sig` and `key.pub.pem` beside it.
struct Fixture {
    dir: tempfile::TempDir,
    key: EcdsaSigningKey,
}

impl Fixture {
    fn new(method: Method, hash: PieceHash) -> Self {
        let dir = tempfile::tempdir().unwrap();
        checkpoint(&dir.path().join("model"));
        let key = EcdsaSigningKey::generate(Curve::P256).unwrap();
        let fixture = Self { dir, key };
        let options = SignOptions {
            method,
            hash,
            ignore_paths: vec![".git".to_owned(), ".gitattributes".to_owned()],
            name: "model".to_owned(),
            revision: None,
        };
        let signed = sign_folder(&fixture.at(""), &fixture.key, options, &NoProgress).unwrap();
        fixture.write(&signed.bundle.to_bytes());
        let public = fixture.key.public().to_pem();
        std::fs::write(fixture.dir.path().join("key.pub.pem"), public).unwrap();
        fixture
    }

    fn files() -> Self {
        Self::new(Method::Files, PieceHash::Sha256)
    }

    fn all() -> [Self; 3] {
        [
            Self::files(),
            Self::new(Method::Files, PieceHash::Blake3),
            Self::new(Method::Shards(1999), PieceHash::Sha256),
        ]
    }

    fn write(&self, bundle: &[u8]) {
        std::fs::write(self.dir.path().join("model.sig"), bundle).unwrap();
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join("model").join(name)
    }

    fn verify(&self, more: &[&str]) -> Answer {
        let mut args = vec!["weights", "model", "--oms", "model.sig", "--format", "json"];
        args.extend(more);
        verify_in(self.dir.path(), &args)
    }

    /// Findings other than the note that every check has.
    fn findings(&self) -> Vec<(String, String)> {
        let answer = self.verify(&["--key", "key.pub.pem"]);
        let mut found = answer.findings();
        found.retain(|(code, _)| code != "oms-root-without-names");
        let bad = found.iter().any(|(code, _)| code != "oms-path-ignored");
        assert_eq!(answer.code, i32::from(bad), "{answer:?}");
        assert_eq!(answer.json()["verified"], !bad);
        found
    }

    fn only(&self) -> (String, String) {
        let found = self.findings();
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].clone()
    }
}

fn pair(code: &str, subject: &str) -> (String, String) {
    (code.to_owned(), subject.to_owned())
}

fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_clean_folder_verifies_and_only_with_the_key() {
    for fixture in Fixture::all() {
        assert_eq!(fixture.findings(), []);
        let answer = fixture.verify(&[]);
        assert_eq!(answer.code, 1);
        let checks = answer.json()["checks"].clone();
        assert_eq!(checks[1]["name"], "oms-signature");
        assert_eq!(checks[1]["outcome"], "not_performed");
        assert_eq!(answer.json()["files_verified"], 5);
    }
    let fixture = Fixture::files();
    let args = ["weights", "model", "--oms", "model.sig"];
    let answer = verify_in(fixture.dir.path(), &args);
    assert_eq!(answer.code, 1);
    assert!(
        answer.stdout.contains("signature not checked"),
        "{answer:?}"
    );
}

#[test]
fn the_root_is_that_of_a_manifest_of_the_same_files() {
    let fixture = Fixture::files();
    let answer = fixture.verify(&["--key", "key.pub.pem"]);
    let root = weights_support::pin(&fixture.at("")).root();
    assert_eq!(answer.json()["tree_root"], root.hex());
}

#[test]
fn every_kind_of_damage_names_the_file() {
    for fixture in Fixture::all() {
        flip(&fixture.at(SHARDS[1]));
        assert_eq!(fixture.only(), pair("digest-mismatch", SHARDS[1]));
    }
    for fixture in Fixture::all() {
        std::fs::remove_file(fixture.at("original/params.json")).unwrap();
        assert_eq!(fixture.only(), pair("file-missing", "original/params.json"));
    }
    for fixture in Fixture::all() {
        std::fs::rename(fixture.at(SHARDS[0]), fixture.at("x")).unwrap();
        std::fs::rename(fixture.at(SHARDS[1]), fixture.at(SHARDS[0])).unwrap();
        std::fs::rename(fixture.at("x"), fixture.at(SHARDS[1])).unwrap();
        let swapped = [
            pair("digest-mismatch", SHARDS[0]),
            pair("digest-mismatch", SHARDS[1]),
        ];
        assert_eq!(fixture.findings(), swapped);
    }
    for fixture in Fixture::all() {
        std::fs::write(fixture.at(".stray"), b"x").unwrap();
        assert_eq!(fixture.only(), pair("file-extra", ".stray"));
    }
    for fixture in Fixture::all() {
        std::fs::remove_file(fixture.at("config.json")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            fixture.at("config.json"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        assert_eq!(fixture.only(), pair("file-type", "config.json"));
    }
    for fixture in Fixture::all() {
        std::fs::write(fixture.dir.path().join("outside"), b"x").unwrap();
        symlink("../outside", fixture.at("link")).unwrap();
        assert_eq!(fixture.only(), pair("symlink-escapes", "link"));
    }
    for fixture in Fixture::all() {
        std::fs::rename(fixture.at("config.json"), fixture.at("other.json")).unwrap();
        symlink("other.json", fixture.at("config.json")).unwrap();
        let found = [
            pair("symlink-in-flat-folder", "config.json"),
            pair("file-extra", "other.json"),
        ];
        assert_eq!(fixture.findings(), found);
    }
}

#[test]
fn shards_tell_lengths_and_which_one_differs() {
    let fixture = Fixture::new(Method::Shards(1999), PieceHash::Sha256);
    flip(&fixture.at(SHARDS[2]));
    let answer = fixture.verify(&["--key", "key.pub.pem"]);
    assert!(answer.stdout.contains("shard 3 of 3 differs"), "{answer:?}");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(fixture.at(SHARDS[2]))
        .unwrap();
    file.set_len(3998).unwrap();
    let found = ["size-mismatch", "shard-truncated"].map(|code| pair(code, SHARDS[2]));
    assert_eq!(fixture.findings(), found);
}

#[test]
fn an_empty_file_is_beyond_what_shards_can_sign() {
    let fixture = Fixture::new(Method::Shards(1999), PieceHash::Sha256);
    std::fs::write(fixture.at("added.py"), b"").unwrap();
    assert_eq!(fixture.only(), pair("oms-empty-file", "added.py"));
}

#[test]
fn what_the_signer_left_out_is_shown() {
    let fixture = Fixture::files();
    std::fs::create_dir(fixture.at(".git")).unwrap();
    std::fs::write(fixture.at(".git/hook"), b"x").unwrap();
    std::fs::write(fixture.at(".gitattributes"), b"x").unwrap();
    let ignored = [".git/hook", ".gitattributes"].map(|p| pair("oms-path-ignored", p));
    assert_eq!(fixture.findings(), ignored);
    // Only the top level, and only whole names.
    std::fs::write(fixture.at("original/.gitattributes"), b"x").unwrap();
    std::fs::write(fixture.at(".gitignore"), b"x").unwrap();
    let extra = [".gitignore", "original/.gitattributes"].map(|p| pair("file-extra", p));
    let mut found = fixture.findings();
    found.retain(|f| f.0 != "oms-path-ignored");
    assert_eq!(found, extra);
}

#[test]
fn a_bundle_inside_the_folder_is_no_stray_file() {
    let fixture = Fixture::files();
    let inside = fixture.at("model.sig");
    std::fs::rename(fixture.dir.path().join("model.sig"), inside).unwrap();
    let args = ["weights", "model", "--oms", "model/model.sig"];
    let more = ["--key", "key.pub.pem", "--format", "json"];
    let answer = verify_in(fixture.dir.path(), &[&args[..], &more[..]].concat());
    assert_eq!(answer.code, 0, "{answer:?}");
    // A copy of it is one.
    std::fs::copy(fixture.at("model.sig"), fixture.at("copy.sig")).unwrap();
    let answer = verify_in(fixture.dir.path(), &[&args[..], &more[..]].concat());
    assert_eq!(answer.code, 1);
    assert!(answer.findings().contains(&pair("file-extra", "copy.sig")));
}

#[test]
fn links_count_only_where_the_signer_allowed_them_and_inside() {
    let fixture = Fixture::files();
    let bytes = std::fs::read(fixture.dir.path().join("model.sig")).unwrap();
    let mut statement = Statement::parse(Bundle::parse(&bytes).unwrap().payload()).unwrap();
    statement.serialization.allow_symlinks = true;
    statement.serialization.ignore_paths = vec!["blobs".to_owned()];
    fixture.write(&Bundle::sign(statement.to_payload(), &fixture.key).to_bytes());
    std::fs::create_dir(fixture.at("blobs")).unwrap();
    std::fs::rename(fixture.at("config.json"), fixture.at("blobs/1")).unwrap();
    symlink("blobs/1", fixture.at("config.json")).unwrap();
    // Where a listed link leads is read although the place itself is left out.
    assert_eq!(fixture.findings(), [pair("oms-path-ignored", "blobs/1")]);
    flip(&fixture.at("blobs/1"));
    assert!(
        fixture
            .findings()
            .contains(&pair("digest-mismatch", "config.json"))
    );
    std::fs::rename(fixture.at("blobs/1"), fixture.dir.path().join("1")).unwrap();
    assert_eq!(fixture.only(), pair("file-missing", "config.json"));
    std::fs::remove_file(fixture.at("config.json")).unwrap();
    symlink("../1", fixture.at("config.json")).unwrap();
    assert_eq!(fixture.only(), pair("symlink-escapes", "config.json"));
}

#[test]
fn wrong_usage_is_not_an_answer() {
    let fixture = Fixture::files();
    for more in [
        &["--key", "model.sig"][..],
        &["--key", "missing.pem"],
        &["--key", "key.pub.pem", "--replicas", "1"],
        &["--key", "key.pub.pem", "--manifest", "model.sig"],
    ] {
        assert_eq!(fixture.verify(more).code, 2, "{more:?}");
    }
    let args = [
        "weights",
        "missing",
        "--oms",
        "model.sig",
        "--format",
        "json",
    ];
    let answer = verify_in(fixture.dir.path(), &args);
    assert_eq!(answer.code, 1);
    assert!(
        answer
            .findings()
            .contains(&pair("replica-unreachable", "folder"))
    );
}

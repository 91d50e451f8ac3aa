//! Manifests: what is refused, what is accepted, and that the root is what
//! docs and vectors say it is.

mod weights_support;

use std::collections::BTreeMap;

use proptest::prelude::*;
use runseal::digest::Sha256Digest;
use runseal::json;
use runseal::relpath::RelPath;
use runseal::weights::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use weights_support::{Fixture, verify_in};

fn file(path: &[u8], content: &[u8]) -> ManifestFile {
    ManifestFile {
        path: RelPath::from_bytes(path).unwrap(),
        size: content.len() as u64,
        sha256: Sha256Digest::of(content),
        blake3: None,
        mode: None,
    }
}

fn manifest() -> Manifest {
    Manifest::new([file(b"a", b"1"), file(b"b/c", b"22")], None).unwrap()
}

fn edited(edit: impl FnOnce(&mut Value)) -> Result<Manifest, ManifestError> {
    let mut value = json::parse(&manifest().to_bytes()).unwrap();
    edit(&mut value);
    Manifest::parse(&serde_json::to_vec_pretty(&value).unwrap())
}

/// The root by hand: every field preceded by its length, no code shared with the
/// library.
fn root_by_hand(files: &BTreeMap<Vec<u8>, Vec<u8>>) -> String {
    fn field(out: &mut Vec<u8>, bytes: &[u8]) {
        out.extend((bytes.len() as u64).to_be_bytes());
        out.extend(bytes);
    }
    let mut out = Vec::new();
    field(&mut out, b"runseal-enc/v1");
    field(&mut out, b"runseal-tree/v1");
    field(&mut out, &(files.len() as u64).to_be_bytes());
    for (path, content) in files {
        field(&mut out, path);
        field(&mut out, &(content.len() as u64).to_be_bytes());
        field(&mut out, &Sha256::digest(content));
    }
    hex::encode(Sha256::digest(out))
}

fn unescape(path: &str) -> Vec<u8> {
    RelPath::parse(path).unwrap().as_bytes().to_vec()
}

#[test]
fn the_root_matches_the_vectors() {
    let text = include_str!("vectors/tree.json");
    let vectors: Value = serde_json::from_str(text).unwrap();
    let vectors = vectors["vectors"].as_array().unwrap();
    assert!(vectors.len() >= 7);
    for vector in vectors {
        let files: BTreeMap<Vec<u8>, Vec<u8>> = vector["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| {
                let content = hex::decode(f["content"].as_str().unwrap()).unwrap();
                (unescape(f["path"].as_str().unwrap()), content)
            })
            .collect();
        let made = Manifest::new(files.iter().map(|(p, c)| file(p, c)), None).unwrap();
        assert_eq!(made.root().hex(), vector["root"], "{}", vector["name"]);
        assert_eq!(root_by_hand(&files), vector["root"], "{}", vector["name"]);
    }
}

#[test]
fn the_file_is_canonical_json_and_a_newline() {
    let bytes = manifest().to_bytes();
    let (json, newline) = bytes.split_at(bytes.len() - 1);
    assert_eq!(newline, b"\n");
    assert!(json::is_canonical(json));
    assert_eq!(Manifest::parse(&bytes).unwrap(), manifest());
}

#[test]
fn harmless_variations_are_read() {
    let bytes = manifest().to_bytes();
    let text = String::from_utf8(bytes).unwrap();
    let crlf = text.replace(',', ",\r\n");
    assert_eq!(Manifest::parse(crlf.as_bytes()).unwrap(), manifest());
    let upper = edited(|v| {
        v["root"] = v["root"].as_str().unwrap().to_uppercase().into();
        let sha = v["files"][0]["sha256"].as_str().unwrap().to_uppercase();
        v["files"][0]["sha256"] = sha.into();
    });
    assert_eq!(upper.unwrap(), manifest());
    let reordered = edited(|v| v["files"].as_array_mut().unwrap().reverse());
    assert_eq!(reordered.unwrap(), manifest());
    let with_more = edited(|v| {
        v["files"][0]["blake3"] = "AB".repeat(32).into();
        v["files"][0]["mode"] = "0755".into();
        v["source"] = json!({"repository": "org/name", "revision": "abc", "binding": "asserted"});
    })
    .unwrap();
    assert_eq!(with_more.root(), manifest().root());
    assert_eq!(Manifest::parse(&with_more.to_bytes()).unwrap(), with_more);
}

#[test]
fn what_could_be_read_in_two_ways_is_refused_with_a_hint() {
    let path = |v: &mut Value, i: usize, p: &str| v["files"][i]["path"] = p.into();
    let both = |v: &mut Value, a: &str, b: &str| {
        path(v, 0, a);
        path(v, 1, b);
    };
    type Edit<'a> = &'a dyn Fn(&mut Value);
    let cases: &[(&str, Edit, &str)] = &[
        ("no files", &|v| v["files"] = json!([]), "lists no files"),
        ("parent", &|v| path(v, 0, "../a"), "'..' component"),
        ("inner parent", &|v| path(v, 0, "b/../a"), "'..' component"),
        ("absolute", &|v| path(v, 0, "/a"), "absolute"),
        ("empty path", &|v| path(v, 0, ""), "empty"),
        ("not canonical", &|v| path(v, 0, "\\x61"), "canonical"),
        ("conflict", &|v| both(v, "a", "a"), "contradict"),
        (
            "case",
            &|v| both(v, "Config.json", "config.JSON"),
            "one file where case",
        ),
        (
            "unicode case",
            &|v| both(v, "ÜBER", "über"),
            "one file where case",
        ),
        (
            "file and folder",
            &|v| both(v, "a", "a/b"),
            "as a file and a/b below",
        ),
        ("deeply", &|v| both(v, "a/b", "a/b/c/d"), "as a file"),
        ("case and folder", &|v| both(v, "A", "a/b"), "as a file"),
        (
            "root",
            &|v| v["root"] = "00".repeat(32).into(),
            "states root",
        ),
        ("size", &|v| v["files"][0]["size"] = 2.into(), "states root"),
        (
            "digest",
            &|v| v["files"][0]["sha256"] = "00".repeat(32).into(),
            "states root",
        ),
        (
            "short digest",
            &|v| v["files"][0]["sha256"] = "00".into(),
            "64 hexadecimal",
        ),
        (
            "format",
            &|v| v["format"] = "runseal.manifest/v2".into(),
            "v2",
        ),
        (
            "no format",
            &|v| drop(v.as_object_mut().unwrap().remove("format")),
            "not given",
        ),
        ("not an object", &|v| *v = json!([]), "not given"),
        (
            "unknown field",
            &|v| v["more"] = 1.into(),
            "unknown field `more`",
        ),
        (
            "unknown file field",
            &|v| v["files"][0]["md5"] = "x".into(),
            "unknown field `md5`",
        ),
        (
            "missing field",
            &|v| drop(v["files"][0].as_object_mut().unwrap().remove("size")),
            "size",
        ),
        (
            "negative size",
            &|v| v["files"][0]["size"] = (-1).into(),
            "invalid value",
        ),
        (
            "fraction",
            &|v| v["files"][0]["size"] = 1.5.into(),
            "invalid type",
        ),
        (
            "huge",
            &|v| v["files"][0]["size"] = (1u64 << 53).into(),
            "2^53",
        ),
        (
            "past json",
            &|v| v["files"][0]["size"] = ((1u64 << 53) + 1).into(),
            "2^53",
        ),
        ("mode", &|v| v["files"][0]["mode"] = "644".into(), "octal"),
        (
            "blake3",
            &|v| v["files"][0]["blake3"] = "x".into(),
            "BLAKE3",
        ),
        (
            "binding",
            &|v| v["source"] = json!({"binding": "proven"}),
            "proven",
        ),
    ];
    for (name, edit, says) in cases {
        let error = edited(edit).expect_err(name).to_string();
        assert!(error.contains(says), "{name}: {error}");
        assert!(error.contains("hint:"), "{name}: {error}");
    }
    let twice = edited(|v| {
        let again = v["files"][0].clone();
        v["files"].as_array_mut().unwrap().push(again);
    });
    assert!(matches!(twice, Err(ManifestError::Duplicate(_))));
}

#[test]
fn a_damaged_manifest_file_is_exit_2_and_never_verifies() {
    let f = Fixture::new();
    let whole = f.manifest.to_bytes();
    let mut damaged: Vec<Vec<u8>> = vec![
        vec![],
        b"\n".to_vec(),
        b"{}".to_vec(),
        b"null".to_vec(),
        whole[..whole.len() / 2].to_vec(),
        [whole.clone(), whole.clone()].concat(),
        [&b"\xef\xbb\xbf"[..], &whole].concat(),
    ];
    for at in [1, whole.len() / 3, whole.len() / 2, whole.len() - 3] {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x01;
        damaged.push(bytes);
    }
    for bytes in damaged {
        std::fs::write(f.dir.path().join("manifest.json"), &bytes).unwrap();
        let answer = f.verify(&[]);
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        assert_eq!((answer.code, answer.stdout.as_str()), (2, ""), "{shown}");
        assert!(answer.stderr.contains("manifest"), "{}", answer.stderr);
    }
    // Duplicate keys, which most readers would resolve silently.
    let text = String::from_utf8(whole).unwrap();
    let doubled = text.replacen("\"format\"", "\"format\":\"x\",\"format\"", 1);
    std::fs::write(f.dir.path().join("manifest.json"), doubled).unwrap();
    assert_eq!(f.verify(&[]).code, 2);
}

#[test]
fn a_manifest_that_is_no_file_is_exit_2_and_does_not_hang() {
    let f = Fixture::new();
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let pipe = f.dir.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    for manifest in ["pipe", "/dev/zero", "model", "nowhere"] {
        let answer = verify_in(f.dir.path(), &["weights", "model", "--manifest", manifest]);
        assert_eq!((answer.code, answer.stdout.as_str()), (2, ""), "{manifest}");
    }
}

#[test]
fn only_plain_readable_folders_can_be_pinned() {
    let f = Fixture::new();
    let pin = || {
        let scan = scan_folder(&f.root(), Algorithm::Both, &NoProgress).unwrap();
        Manifest::from_scan(&scan, None)
    };
    let pinned = pin().unwrap();
    assert!(
        pinned
            .files()
            .all(|f| f.blake3.is_some() && f.mode.is_some())
    );
    std::os::unix::fs::symlink("config.json", f.at("link")).unwrap();
    let error = pin().unwrap_err().to_string();
    assert!(
        error.contains("link cannot be pinned: it is a symbolic link"),
        "{error}"
    );
    std::fs::remove_file(f.at("link")).unwrap();
    // Without SHA-256 there is no root.
    let scan = scan_folder(&f.root(), Algorithm::Blake3, &NoProgress).unwrap();
    assert!(Manifest::from_scan(&scan, None).is_err());
    std::fs::remove_dir_all(f.root()).unwrap();
    std::fs::create_dir(f.root()).unwrap();
    assert!(matches!(
        pin(),
        Err(PinError::Manifest(ManifestError::Empty))
    ));
}

prop_compose! {
    /// Distinct names that no file system confuses: the folder is the index.
    fn some_files()(
        names in prop::collection::vec(prop::collection::vec(1u8..=255, 1..12), 1..12),
        contents in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 12),
    ) -> BTreeMap<Vec<u8>, Vec<u8>> {
        names.iter().zip(contents).enumerate().map(|(i, (name, content))| {
            let name: Vec<u8> = name.iter().map(|b| if *b == b'/' { b'_' } else { *b }).collect();
            let mut path = format!("{i}/x").into_bytes();
            path.extend(name);
            (path, content)
        }).collect()
    }
}

proptest! {
    #[test]
    fn manifests_round_trip_and_commit_to_everything(files in some_files()) {
        let made = Manifest::new(files.iter().map(|(p, c)| file(p, c)), None).unwrap();
        prop_assert_eq!(made.root().hex(), root_by_hand(&files));
        prop_assert_eq!(&Manifest::parse(&made.to_bytes()).unwrap(), &made);
        let backwards = files.iter().rev().map(|(p, c)| file(p, c));
        prop_assert_eq!(&Manifest::new(backwards, None).unwrap(), &made);
        // One entry less is another checkpoint.
        if files.len() > 1 {
            let fewer = files.iter().skip(1).map(|(p, c)| file(p, c));
            prop_assert_ne!(Manifest::new(fewer, None).unwrap().root(), made.root());
        }
    }

    #[test]
    fn a_changed_byte_never_gives_another_manifest_of_the_same_root(
        files in some_files(), at in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        let made = Manifest::new(files.iter().map(|(p, c)| file(p, c)), None).unwrap();
        let mut bytes = made.to_bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        // Either refused, or it reads the same (the case of a hex digit).
        if let Ok(read) = Manifest::parse(&bytes) {
            prop_assert_eq!(read, made);
        }
    }

    #[test]
    fn garbage_is_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Manifest::parse(&bytes).is_err());
    }
}

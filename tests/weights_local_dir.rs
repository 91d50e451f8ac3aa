//! Folders that the hub client downloaded into, and single GGUF files, on real file
//! trees, through the real binary.

mod weights_support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use runseal::relpath::RelPath;
use runseal::weights::*;
use rustix::fs::{CWD, FileType, Mode as Bits, mknodat};
use weights_support::hub::{self, COMMIT, OTHER, files, metadata};
use weights_support::*;

fn codes(answer: &Answer) -> Vec<String> {
    let findings = answer.findings().into_iter();
    findings.map(|(code, _)| code).collect()
}

fn with_metadata() -> Fixture {
    let f = Fixture::new();
    for (name, bytes) in files() {
        metadata(&f.root(), &name, COMMIT, &hub::etag(&name, &bytes));
        fs::write(
            f.at(&format!(".cache/huggingface/download/{name}.lock")),
            "",
        )
        .unwrap();
    }
    let ignore = [RelPath::parse(".cache/huggingface").unwrap()];
    let manifest = f.manifest.clone().with_ignore(ignore).unwrap();
    fs::write(f.dir.path().join("ignoring.json"), manifest.to_bytes()).unwrap();
    f
}

fn local_dir(f: &Fixture, more: &[&str]) -> Answer {
    let args = [
        "weights",
        "model",
        "--manifest",
        "ignoring.json",
        "--format",
        "json",
    ];
    verify_in(f.dir.path(), &[&args[..], more].concat())
}

#[test]
fn a_local_dir_needs_its_ignore_declared() {
    let f = with_metadata();
    let undeclared = f.verify(&[]);
    assert_eq!(undeclared.code, 1);
    assert_eq!(codes(&undeclared), vec!["file-extra"; 10]);
    let answer = local_dir(&f, &[]);
    assert_eq!(
        (answer.code, codes(&answer)),
        (0, vec!["ignored-by-manifest".to_owned()])
    );
    let json = answer.json();
    assert_eq!(
        json["manifests"][0]["ignore"],
        serde_json::json!([".cache/huggingface"])
    );
    let layout = &json["replicas"][0]["report"]["layout"];
    assert_eq!(layout["kind"], "hf_local_dir");
    assert_eq!(layout["claims"].as_array().unwrap().len(), 5);
    // The caller may declare it too, and the report shows it just the same.
    let answer = f.verify(&["--ignore", ".cache/huggingface/"]);
    assert_eq!(
        (answer.code, codes(&answer)),
        (0, vec!["ignored-by-manifest".to_owned()])
    );
    // What is ignored does not hide its neighbours, nor a file of similar name.
    fs::write(f.at(".cache/other"), "x").unwrap();
    fs::write(f.at(".cache/huggingfaces"), "x").unwrap();
    assert_eq!(
        codes(&local_dir(&f, &[])),
        ["ignored-by-manifest", "file-extra", "file-extra"]
    );
    // A listed file cannot be ignored.
    assert_eq!(f.verify(&["--ignore", "config.json"]).code, 2);
    assert_eq!(f.verify(&["--ignore", "original"]).code, 2);
    assert_eq!(f.verify(&["--ignore", "../x"]).code, 2);
}

#[test]
fn a_git_folder_is_an_extra_unless_declared_and_never_entered() {
    let f = Fixture::new();
    fs::create_dir_all(f.at(".git/objects")).unwrap();
    fs::write(f.at(".git/objects/x"), "x").unwrap();
    mknodat(
        CWD,
        f.at(".git/pipe"),
        FileType::Fifo,
        Bits::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    assert_eq!(codes(&f.verify(&[])), ["file-extra", "file-type"]);
    let answer = f.verify(&["--ignore", ".git"]);
    assert_eq!(
        (answer.code, codes(&answer)),
        (0, vec!["ignored-by-manifest".to_owned()])
    );
    let report = &answer.json()["replicas"][0]["report"];
    assert_eq!(report["observed_root"], f.manifest.root().hex());
    let human = verify_in(
        f.dir.path(),
        &[
            "weights",
            "model",
            "--manifest",
            "manifest.json",
            "--ignore",
            ".git",
        ],
    );
    assert!(
        human.stdout.contains("ignored   .git\n"),
        "{}",
        human.stdout
    );
}

#[test]
fn metadata_are_claims_that_are_compared() {
    // A file that was edited after its download, pinned or not.
    for name in [SHARDS[1], "original/params.json"] {
        let f = with_metadata();
        metadata(
            &f.root(),
            name,
            COMMIT,
            &"ab".repeat(if name == SHARDS[1] { 32 } else { 20 }),
        );
        let answer = local_dir(&f, &[]);
        assert_eq!(
            (answer.code, codes(&answer)),
            (
                1,
                vec!["ignored-by-manifest".into(), "etag-mismatch".into()]
            )
        );
        assert_eq!(
            answer.json()["replicas"][0]["integrity"]["state"],
            "verified"
        );
    }
    let f = with_metadata();
    metadata(&f.root(), "config.json", COMMIT, "W/\"not a digest\"");
    fs::write(
        f.at(".cache/huggingface/download/original/params.json.metadata"),
        "cut",
    )
    .unwrap();
    let answer = local_dir(&f, &[]);
    assert_eq!(answer.code, 0);
    assert_eq!(
        codes(&answer)[1..],
        ["claim-not-comparable", "claim-not-comparable"]
    );
    // About a file that is not there: nothing to compare.
    metadata(&f.root(), "gone.json", COMMIT, &"ab".repeat(20));
    assert_eq!(local_dir(&f, &[]).code, 0);
}

#[test]
fn metadata_of_another_revision_and_of_several() {
    let f = with_metadata();
    let bytes = content("config.json");
    metadata(
        &f.root(),
        "config.json",
        OTHER,
        &hub::etag("config.json", &bytes),
    );
    let answer = local_dir(&f, &[]);
    assert_eq!(
        (answer.code, codes(&answer)),
        (
            0,
            vec!["revisions-mixed".into(), "ignored-by-manifest".into()]
        )
    );
    let answer = local_dir(&f, &["--revision", COMMIT]);
    assert_eq!(
        (answer.code, codes(&answer)[0].as_str()),
        (1, "revision-mismatch")
    );
    let finding = &answer.json()["findings"][0];
    assert_eq!(
        (&finding["expected"], &finding["found"]),
        (&COMMIT.into(), &OTHER.into())
    );
}

#[test]
fn an_unfinished_download_into_a_folder() {
    let f = with_metadata();
    fs::write(f.at(".cache/huggingface/download/abc.incomplete"), "half").unwrap();
    let answer = local_dir(&f, &[]);
    assert_eq!(
        (answer.code, codes(&answer)[0].as_str()),
        (1, "download-incomplete")
    );
}

#[test]
fn an_ignored_pipe_or_link_is_not_opened_either() {
    let f = with_metadata();
    fs::remove_dir_all(f.at(".cache/huggingface/download")).unwrap();
    let pipe = f.at(".cache/huggingface/download");
    mknodat(CWD, &pipe, FileType::Fifo, Bits::from_raw_mode(0o644), 0).unwrap();
    // The folder of metadata is not one; nothing hangs, and it is said.
    assert_eq!(codes(&local_dir(&f, &[])), ["replica-unreachable"]);
    fs::remove_file(&pipe).unwrap();
    fs::create_dir(&pipe).unwrap();
    let meta = f.at(".cache/huggingface/download/config.json.metadata");
    mknodat(CWD, &meta, FileType::Fifo, Bits::from_raw_mode(0o644), 0).unwrap();
    assert_eq!(local_dir(&f, &[]).code, 0);
    fs::remove_file(&meta).unwrap();
    symlink("/dev/zero", &meta).unwrap();
    assert_eq!(local_dir(&f, &[]).code, 0);
}

// ---- single GGUF files ----

const PARTS: [&str; 2] = ["split-00001-of-00002.gguf", "split-00002-of-00002.gguf"];

fn gguf_folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("models")).unwrap();
    for name in ["single.gguf", PARTS[0], PARTS[1]] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/vectors/foreign")
            .join(name);
        fs::copy(from, dir.path().join("models").join(name)).unwrap();
    }
    // Other models lie in the same folder.
    fs::write(dir.path().join("models/unrelated.gguf"), "GGUF").unwrap();
    dir
}

#[test]
fn a_gguf_path_is_one_file_or_all_parts_of_its_split() {
    let dir = gguf_folder();
    let models = dir.path().join("models");
    for (path, count) in [("single.gguf", 1), (PARTS[0], 2), (PARTS[1], 2)] {
        let scan = scan_folder(&models.join(path), Algorithm::Both, &NoProgress).unwrap();
        let manifest = Manifest::from_scan(&scan, None).unwrap();
        assert_eq!(manifest.file_count(), count);
        fs::write(dir.path().join("m.json"), manifest.to_bytes()).unwrap();
        let run = || {
            let path = format!("models/{path}");
            verify_in(
                dir.path(),
                &["weights", &path, "--manifest", "m.json", "--format", "json"],
            )
        };
        let answer = run();
        assert_eq!(answer.code, 0, "{answer:?}");
        let report = &answer.json()["replicas"][0]["report"];
        assert_eq!(report["layout"]["kind"], "gguf_file");
        assert_eq!(report["structure"]["gguf"], count);
        if count == 2 && path == PARTS[0] {
            let held = fs::read(models.join(PARTS[1])).unwrap();
            fs::remove_file(models.join(PARTS[1])).unwrap();
            assert_eq!(codes(&run()), ["gguf-split", "file-missing"]);
            fs::write(models.join(PARTS[1]), held).unwrap();
        }
    }
    // A file that is not GGUF by name is no place for a checkpoint.
    fs::write(dir.path().join("m.bin"), "x").unwrap();
    let answer = verify_in(dir.path(), &["weights", "m.bin", "--format", "json"]);
    assert_eq!(codes(&answer), ["replica-unreachable"]);
}

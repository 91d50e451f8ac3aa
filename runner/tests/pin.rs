//! `attest pin weights`, and that what it writes is what `verify weights` reads.

mod pin_support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use runseal::weights::{Algorithm, Binding, Listing, Manifest, NoProgress, rehash};

use pin_support as support;
use support::hub::{self, COMMIT, Cache, OTHER, etag, files, metadata};

struct Said {
    code: i32,
    stdout: Vec<u8>,
    stderr: String,
}

fn pin(dir: &Path, args: &[&str]) -> Said {
    let output = assert_cmd::Command::cargo_bin("attest")
        .unwrap()
        .current_dir(dir)
        .timeout(Duration::from_secs(120))
        .args(["pin", "weights"])
        .args(args)
        .output()
        .unwrap();
    Said {
        code: output
            .status
            .code()
            .expect("ended by a signal (did it hang?)"),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    support::checkpoint(&dir.path().join("model"));
    dir
}

fn pinned(said: &Said) -> Manifest {
    assert_eq!(said.code, 0, "{}", said.stderr);
    Manifest::parse(&said.stdout).unwrap()
}

fn revision(manifest: &Manifest) -> (Option<&str>, Binding) {
    let source = manifest.source().unwrap();
    (source.revision.as_deref(), source.binding)
}

#[test]
fn a_folder_is_pinned_with_both_digests_in_either_format() {
    let dir = folder();
    let said = pin(dir.path(), &["model"]);
    let manifest = pinned(&said);
    assert_eq!(manifest.file_count(), 4);
    assert!(
        manifest
            .files()
            .all(|f| f.blake3.is_some() && f.mode.is_some())
    );
    assert!(
        said.stderr.contains(&manifest.root().hex()),
        "{}",
        said.stderr
    );
    for algorithm in [Algorithm::Sha256, Algorithm::Blake3] {
        let scan = rehash(&dir.path().join("model"), &manifest, algorithm, &NoProgress).unwrap();
        assert_eq!(scan.files.len(), 4);
    }
    let lines = pin(dir.path(), &["model", "--manifest-format", "sha256sums"]);
    assert_eq!(lines.stdout, manifest.to_sha256sums());
    let listing = Listing::read(&lines.stdout, None).unwrap();
    assert_eq!((listing.file_count(), listing.root()), (4, None));
}

#[test]
fn a_file_is_written_once_and_never_into_the_checkpoint() {
    let dir = folder();
    let said = pin(dir.path(), &["model", "-o", "m.json"]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    let manifest = Manifest::parse(&fs::read(dir.path().join("m.json")).unwrap()).unwrap();
    let summary = String::from_utf8(said.stdout).unwrap();
    assert!(
        summary.contains(&format!("root      {}\n", manifest.root())),
        "{summary}"
    );
    fs::write(dir.path().join("model/config.json"), "other").unwrap();
    let again = pin(dir.path(), &["model", "-o", "m.json"]);
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("already exists"), "{}", again.stderr);
    assert_eq!(
        pin(dir.path(), &["model", "-o", "m.json", "--force"]).code,
        0
    );
    for output in ["model/m.json", "model/original/m.json"] {
        let inside = pin(dir.path(), &["model", "-o", output]);
        assert_eq!(inside.code, 2, "{output}");
        assert!(inside.stderr.contains("lies inside"), "{}", inside.stderr);
        assert!(!dir.path().join(output).exists());
    }
    let ignored = pin(
        dir.path(),
        &["model", "-o", "model/m.json", "--ignore", "m.json"],
    );
    assert_eq!(ignored.code, 0, "{}", ignored.stderr);
    // Still the same checkpoint with the file there.
    let manifest = Manifest::parse(&fs::read(dir.path().join("model/m.json")).unwrap()).unwrap();
    assert_eq!(
        pinned(&pin(dir.path(), &["model", "--ignore", "m.json"])),
        manifest
    );
}

#[test]
fn a_cache_is_pinned_under_the_names_of_its_snapshot() {
    let dir = folder();
    let flat = pinned(&pin(dir.path(), &["model"]));
    let cache = Cache::new(dir.path());
    for path in [
        "models--org--tiny".to_owned(),
        format!("models--org--tiny/snapshots/{COMMIT}"),
    ] {
        let manifest = pinned(&pin(dir.path(), &[&path]));
        assert_eq!(manifest.root(), flat.root());
        assert_eq!(revision(&manifest), (Some(COMMIT), Binding::Asserted));
        let repository = manifest.source().unwrap().repository.as_deref();
        assert_eq!(repository, Some("org/tiny"));
    }
    cache.snapshot(OTHER, &files());
    fs::remove_file(cache.root.join("refs/main")).unwrap();
    let said = pin(dir.path(), &["models--org--tiny"]);
    assert_eq!(said.code, 2);
    assert!(
        said.stderr.contains("--revision") && said.stderr.contains(OTHER),
        "{}",
        said.stderr
    );
    let chosen = pinned(&pin(
        dir.path(),
        &["models--org--tiny", "--revision", OTHER],
    ));
    assert_eq!(revision(&chosen).0, Some(OTHER));
}

#[test]
fn a_local_dir_and_a_clone_are_pinned_without_what_is_not_theirs() {
    let dir = folder();
    let flat = pinned(&pin(dir.path(), &["model"]));
    let model = dir.path().join("model");
    for (name, bytes) in files() {
        metadata(&model, &name, COMMIT, &etag(&name, &bytes));
    }
    fs::create_dir(model.join(".git")).unwrap();
    fs::write(model.join(".git/config"), "x").unwrap();
    let said = pin(dir.path(), &["model"]);
    let manifest = pinned(&said);
    assert_eq!(manifest.root(), flat.root());
    assert_eq!(revision(&manifest).0, Some(COMMIT));
    let ignore: Vec<_> = AsRef::<Listing>::as_ref(&manifest)
        .ignore()
        .iter()
        .map(|p| p.to_string())
        .collect();
    assert_eq!(ignore, [".cache/huggingface", ".git"]);
    assert!(said.stderr.contains("ignored   .git"), "{}", said.stderr);
    let differs = pin(dir.path(), &["model", "--revision", OTHER]);
    assert_eq!(differs.code, 2);
}

#[test]
fn what_has_findings_is_not_pinned() {
    let refused = |spoil: &dyn Fn(&Path), says: &str| {
        let dir = folder();
        let cache = Cache::new(dir.path());
        spoil(dir.path());
        let path = if says == "blob-name-mismatch" || says == "download-incomplete" {
            cache.root.to_str().unwrap().to_owned()
        } else {
            "model".to_owned()
        };
        let said = pin(dir.path(), &[&path, "-o", "m.json"]);
        assert_eq!(
            (said.code, said.stdout.len()),
            (1, 0),
            "{says}: {}",
            said.stderr
        );
        assert!(said.stderr.contains(says), "{says}: {}", said.stderr);
        assert!(!dir.path().join("m.json").exists());
    };
    let shard = format!("model/{}", support::SHARDS[0]);
    refused(
        &|d| {
            let bytes = fs::read(d.join(&shard)).unwrap();
            fs::write(d.join(&shard), &bytes[..bytes.len() - 1]).unwrap();
        },
        "shard-truncated",
    );
    refused(
        &|d| fs::write(d.join(&shard), hub::pointer(b"weights")).unwrap(),
        "lfs-pointer",
    );
    refused(
        &|d| symlink("config.json", d.join("model/link")).unwrap(),
        "symlink-in-flat-folder",
    );
    refused(
        &|d| symlink("/etc/passwd", d.join("model/link")).unwrap(),
        "symlink-escapes",
    );
    let blobs = "models--org--tiny/blobs";
    refused(
        &|d| {
            let blob = etag("config.json", &support::content("config.json"));
            fs::write(d.join(blobs).join(blob), "edited").unwrap();
        },
        "blob-name-mismatch",
    );
    refused(
        &|d| fs::write(d.join(blobs).join("x.incomplete"), "").unwrap(),
        "download-incomplete",
    );
    // Nothing there is nothing to pin.
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    assert_eq!(pin(dir.path(), &["empty"]).code, 2);
    assert_eq!(pin(dir.path(), &["nowhere"]).code, 2);
}

#[test]
fn the_revision_is_shown_from_git_objects_or_nothing_is_pinned() {
    let dir = tempfile::tempdir().unwrap();
    let commit = hub::repository(&dir.path().join("repo"));
    hub::checked_out(&dir.path().join("model"));
    let args = [
        "model",
        "--revision",
        commit.as_str(),
        "--git-objects",
        "repo",
    ];
    let said = pin(dir.path(), &args);
    let manifest = pinned(&said);
    assert_eq!(
        revision(&manifest),
        (Some(commit.as_str()), Binding::GitObjects)
    );
    assert!(
        said.stderr.contains("shown from its git objects"),
        "{}",
        said.stderr
    );
    // Without them only the word of whoever pins.
    let asserted = pinned(&pin(dir.path(), &args[..3]));
    assert_eq!(revision(&asserted).1, Binding::Asserted);
    assert_eq!(asserted.root(), manifest.root());

    let unknown = pin(dir.path(), &["model", "--git-objects", "repo"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("--revision"), "{}", unknown.stderr);
    let absent = pin(
        dir.path(),
        &["model", "--revision", OTHER, "--git-objects", "repo"],
    );
    assert_eq!(absent.code, 2);
    fs::write(dir.path().join("model/config.json"), "edited").unwrap();
    let other = pin(dir.path(), &args);
    assert_eq!((other.code, other.stdout.len()), (1, 0));
    assert!(
        other.stderr.contains("revision-not-bound"),
        "{}",
        other.stderr
    );
}

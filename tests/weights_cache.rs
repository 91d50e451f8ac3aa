//! Hub caches on real file trees, through the real binary.

mod weights_support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use runseal::codes::Code;
use runseal::weights::*;
use rustix::fs::{CWD, FileType, Mode as Bits, mknodat};
use weights_support::hub::{COMMIT, Cache, OTHER, files};
use weights_support::*;

/// A flat copy that was pinned, and a cache beside it.
fn with_cache() -> (Fixture, Cache) {
    let f = Fixture::new();
    let cache = Cache::new(f.dir.path());
    (f, cache)
}

fn verify(f: &Fixture, path: &str, more: &[&str]) -> Answer {
    let args = [
        "weights",
        path,
        "--manifest",
        "manifest.json",
        "--format",
        "json",
    ];
    verify_in(f.dir.path(), &[&args[..], more].concat())
}

fn codes(answer: &Answer) -> Vec<String> {
    answer
        .findings()
        .into_iter()
        .map(|(code, _)| code)
        .collect()
}

const ROOT: &str = "models--org--tiny";

fn snapshot() -> String {
    format!("{ROOT}/snapshots/{COMMIT}")
}

/// Writes the manifest again, saying that it is of a revision.
fn name_revision(f: &Fixture, revision: &str) {
    let source = Source {
        repository: Some("org/tiny".to_owned()),
        revision: Some(revision.to_owned()),
        binding: Binding::Asserted,
    };
    let manifest = Manifest::new(f.manifest.files().cloned(), Some(source)).unwrap();
    fs::write(f.dir.path().join("manifest.json"), manifest.to_bytes()).unwrap();
}

#[test]
fn a_cache_verifies_by_its_root_and_by_its_snapshot() {
    let (f, _cache) = with_cache();
    for path in [ROOT, &snapshot()] {
        let answer = verify(&f, path, &["--replicas", "1"]);
        assert_eq!(answer.code, 0, "{answer:?}");
        let report = &answer.json()["replicas"][0]["report"];
        assert_eq!(report["layout"]["kind"], "hf_cache");
        assert_eq!(report["layout"]["repository"], "org/tiny");
        assert_eq!(report["layout"]["revision"], COMMIT);
        // The same identity as the flat copy: names are those of the snapshot.
        assert_eq!(report["observed_root"], f.manifest.root().hex());
        let files = report["files"].as_array().unwrap();
        assert!(
            files
                .iter()
                .all(|f| f["kind"] == "file" && f["blob"].is_string())
        );
        let human = verify_in(
            f.dir.path(),
            &["weights", path, "--manifest", "manifest.json"],
        );
        assert!(
            human
                .stdout
                .contains("hub cache of org/tiny, snapshot 0123"),
            "{human:?}"
        );
    }
    // A link to the snapshot is what was declared.
    symlink(snapshot(), f.dir.path().join("latest")).unwrap();
    assert_eq!(verify(&f, "latest", &[]).code, 0);
}

#[test]
fn which_snapshot_is_said_or_nothing_is_looked_at() {
    let (f, cache) = with_cache();
    let mut changed = files();
    changed.insert("config.json".into(), b"another".to_vec());
    cache.snapshot(OTHER, &changed);
    // refs/main decides, as for a loader.
    let answer = verify(&f, ROOT, &[]);
    assert_eq!(answer.code, 0);
    assert_eq!(
        answer.json()["replicas"][0]["report"]["layout"]["chosen"],
        "by_main"
    );
    assert_eq!(
        codes(&verify(&f, ROOT, &["--revision", OTHER])),
        ["ref-elsewhere", "size-mismatch"]
    );
    assert_eq!(verify(&f, ROOT, &["--revision", "main"]).code, 0);

    // Without it nobody chooses, and the choices are named.
    fs::remove_file(cache.root.join("refs/main")).unwrap();
    let answer = verify(&f, ROOT, &[]);
    assert_eq!(
        (answer.code, codes(&answer)),
        (1, vec!["snapshot-not-found".to_owned()])
    );
    let detail = answer.json()["findings"][0]["detail"].to_string();
    assert!(detail.contains(COMMIT) && detail.contains(OTHER) && detail.contains("--revision"));
    assert_eq!(verify(&f, ROOT, &["--revision", COMMIT]).code, 0);
    assert_eq!(
        codes(&verify(&f, ROOT, &["--revision", &"f".repeat(40)])),
        ["snapshot-not-found"]
    );
    // The manifest may name it.
    name_revision(&f, COMMIT);
    let answer = verify(&f, ROOT, &[]);
    assert_eq!(answer.code, 0);
    assert_eq!(
        answer.json()["replicas"][0]["report"]["layout"]["chosen"],
        "by_manifest"
    );
    // A ref to a snapshot that is not there is no choice either.
    cache.point("main", &"f".repeat(40));
    name_revision(&f, &"e".repeat(40));
    assert_eq!(codes(&verify(&f, ROOT, &[])), ["snapshot-not-found"]);
    fs::remove_dir_all(cache.root.join("snapshots")).unwrap();
    fs::create_dir(cache.root.join("snapshots")).unwrap();
    assert_eq!(codes(&verify(&f, ROOT, &[])), ["snapshot-not-found"]);
    // A folder of caches is not one.
    assert_eq!(codes(&verify(&f, ".", &[])), ["snapshot-not-found"]);
}

#[test]
fn a_revision_other_than_the_pinned_one_is_found() {
    let (f, cache) = with_cache();
    name_revision(&f, OTHER);
    let answer = verify(&f, ROOT, &[]);
    assert_eq!(
        (answer.code, codes(&answer)),
        (1, vec!["revision-mismatch".to_owned()])
    );
    let finding = &answer.json()["findings"][0];
    assert_eq!(
        (&finding["expected"], &finding["found"]),
        (&OTHER.into(), &COMMIT.into())
    );
    // The right snapshot by its path, while loaders would get another one.
    name_revision(&f, COMMIT);
    cache.point("main", OTHER);
    let answer = verify(&f, &snapshot(), &[]);
    assert_eq!(
        (answer.code, codes(&answer)),
        (0, vec!["ref-elsewhere".to_owned()])
    );
    // By its root, main is followed only when its snapshot is there.
    assert_eq!(verify(&f, ROOT, &[]).code, 0);
}

#[test]
fn a_blob_that_is_not_what_it_is_named_for() {
    for name in [SHARDS[0], "config.json"] {
        let (f, cache) = with_cache();
        let blob = cache.blob(name);
        let mut bytes = fs::read(&blob).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&blob, &bytes).unwrap();
        let answer = verify(&f, ROOT, &[]);
        assert_eq!(
            codes(&answer),
            ["digest-mismatch", "blob-name-mismatch"],
            "{name}"
        );
        let claim = &answer.json()["findings"][1];
        assert_eq!(
            claim["expected"].as_str(),
            blob.file_name().unwrap().to_str()
        );
        // Seen without any manifest too, because the name is the claim.
        let answer = verify_in(f.dir.path(), &["weights", ROOT, "--format", "json"]);
        assert_eq!(codes(&answer), ["not-compared", "blob-name-mismatch"]);
    }
    // A name that is no digest claims nothing.
    let (f, cache) = with_cache();
    let link = cache.at(COMMIT, "config.json");
    fs::rename(
        cache.blob("config.json"),
        cache.root.join("blobs/mirror-etag"),
    )
    .unwrap();
    fs::remove_file(&link).unwrap();
    symlink("../../blobs/mirror-etag", &link).unwrap();
    let answer = verify(&f, ROOT, &[]);
    assert_eq!(
        (answer.code, codes(&answer)),
        (0, vec!["claim-not-comparable".to_owned()])
    );
}

#[test]
fn two_links_exchanged_are_two_swapped_shards() {
    let (f, cache) = with_cache();
    let [a, b] = [SHARDS[0], SHARDS[1]].map(|s| cache.at(COMMIT, s));
    let hold = cache.at(COMMIT, "hold");
    fs::rename(&a, &hold).unwrap();
    fs::rename(&b, &a).unwrap();
    fs::rename(&hold, &b).unwrap();
    let expected = ["digest-mismatch", "shard-swapped"].repeat(2);
    assert_eq!(codes(&verify(&f, ROOT, &[])), expected);
}

#[test]
fn unfinished_downloads_and_links_to_nothing() {
    let (f, cache) = with_cache();
    let blob = cache.blob(SHARDS[2]);
    let mut partial = blob.clone().into_os_string();
    partial.push(".incomplete");
    fs::rename(&blob, &partial).unwrap();
    let answer = verify(&f, ROOT, &[]);
    assert_eq!(
        answer.findings(),
        [
            (
                "download-incomplete".to_owned(),
                format!(
                    "{ROOT}/{}",
                    Path::new(&partial).file_name().unwrap().to_str().unwrap()
                )
            ),
            ("link-dangling".to_owned(), format!("{ROOT}/{}", SHARDS[2])),
        ]
    );
    assert_eq!(
        answer.json()["replicas"][0]["integrity"]["state"],
        "mismatch"
    );
    // The whole folder of blobs gone.
    fs::remove_dir_all(cache.root.join("blobs")).unwrap();
    assert_eq!(codes(&verify(&f, ROOT, &[])), ["link-dangling"; 5]);
}

#[test]
fn only_links_to_blobs_are_followed() {
    let outside = "outside the cache";
    for (target, code) in [
        ("/etc/passwd", "symlink-escapes"),
        ("/dev/zero", "symlink-escapes"),
        ("../../../outside", "symlink-escapes"),
        ("../../blobs", "symlink-escapes"),
        ("../../refs/main", "symlink-escapes"),
        ("config.json", "symlink-in-flat-folder"),
        ("model", "symlink-in-flat-folder"),
    ] {
        let (f, cache) = with_cache();
        fs::write(f.dir.path().join("outside"), outside).unwrap();
        let link = cache.at(COMMIT, SHARDS[0]);
        fs::remove_file(&link).unwrap();
        symlink(target, &link).unwrap();
        let answer = verify(&f, ROOT, &[]);
        assert_eq!(codes(&answer), [code], "{target}");
        assert!(!answer.stdout.contains("\"sha256\":null"));
    }
    // Absolute, though it leads to the right blob: what it leads to depends on
    // where the cache lies.
    let (f, cache) = with_cache();
    let link = cache.at(COMMIT, SHARDS[0]);
    let blob = cache.blob(SHARDS[0]);
    fs::remove_file(&link).unwrap();
    symlink(blob, &link).unwrap();
    assert_eq!(codes(&verify(&f, ROOT, &[])), ["symlink-escapes"]);
}

#[test]
fn a_blob_that_is_no_file_is_never_opened() {
    let put = |make: &dyn Fn(&Path)| {
        let (f, cache) = with_cache();
        let blob = cache.blob(SHARDS[0]);
        let real = f.dir.path().join("real");
        fs::rename(&blob, &real).unwrap();
        make(&blob);
        codes(&verify(&f, ROOT, &[]))
    };
    let pipe = put(&|b| mknodat(CWD, b, FileType::Fifo, Bits::from_raw_mode(0o644), 0).unwrap());
    assert_eq!(pipe, ["file-type"]);
    assert_eq!(put(&|b| fs::create_dir(b).unwrap()), ["file-type"]);
    // The same bytes, but through a link out of the cache.
    assert_eq!(
        put(&|b| symlink("../../real", b).unwrap()),
        ["symlink-escapes"]
    );
    // The folder of blobs itself may not lead elsewhere.
    let (f, cache) = with_cache();
    fs::rename(cache.root.join("blobs"), f.dir.path().join("elsewhere")).unwrap();
    symlink("../elsewhere", cache.root.join("blobs")).unwrap();
    assert_eq!(codes(&verify(&f, ROOT, &[])), ["replica-unreachable"]);
}

#[test]
fn extra_and_missing_files_of_a_snapshot() {
    let (f, cache) = with_cache();
    fs::remove_file(cache.at(COMMIT, "config.json")).unwrap();
    symlink("../../blobs/none", cache.at(COMMIT, "extra")).unwrap();
    fs::write(cache.at(COMMIT, "plain"), "a real file").unwrap();
    fs::create_dir(cache.at(COMMIT, "loop")).unwrap();
    symlink("..", cache.at(COMMIT, "loop/up")).unwrap();
    assert_eq!(
        codes(&verify(&f, ROOT, &[])),
        ["file-missing", "link-dangling", "file-extra", "file-extra"]
    );
}

#[test]
fn real_files_in_a_snapshot_are_what_they_are() {
    // As caches are on file systems without links.
    let (f, cache) = with_cache();
    for name in files().keys() {
        let (link, blob) = (cache.at(COMMIT, name), cache.blob(name));
        fs::remove_file(&link).unwrap();
        fs::rename(blob, link).unwrap();
    }
    assert_eq!(verify(&f, ROOT, &[]).code, 0);
}

#[test]
fn blobs_that_may_not_be_read_are_not_verified() {
    let (f, cache) = with_cache();
    let args = [
        "weights",
        ROOT,
        "--manifest",
        "manifest.json",
        "--format",
        "json",
    ];
    for path in [f.dir.path().to_owned(), cache.root.join("blobs")] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(cache.blob(SHARDS[1]), PermissionsExt::from_mode(0o000)).unwrap();
    let answer = verify_unprivileged(f.dir.path(), &args);
    assert_eq!(
        (answer.code, codes(&answer)),
        (1, vec!["could-not-read".to_owned()])
    );
}

#[test]
fn snapshots_that_share_blobs_are_one_copy() {
    let (f, cache) = with_cache();
    cache.snapshot(OTHER, &files());
    let replicas =
        [COMMIT, OTHER].map(|c| Replica::local(c[..4].to_owned(), format!("{ROOT}/snapshots/{c}")));
    let inventory = Inventory::new("manifest.json", replicas.to_vec()).unwrap();
    fs::write(f.dir.path().join("cluster.toml"), inventory.render()).unwrap();
    let answer = verify_in(
        f.dir.path(),
        &["weights", "--replicas", "2", "--format", "json"],
    );
    assert!(codes(&answer).contains(&"replica-duplicate".to_owned()));
    assert_eq!(answer.json()["agreement"]["replicas"], 1);
}

#[test]
fn a_report_of_a_cache_is_checked_again_from_its_facts() {
    let (f, cache) = with_cache();
    fs::write(cache.blob("config.json"), "other").unwrap();
    fs::write(cache.root.join("blobs/x.incomplete"), "").unwrap();
    let honest = report(&cache.root, &f.manifest, "r0");
    assert_eq!(check_report(&f.manifest, &honest), []);
    assert!(
        honest
            .findings
            .iter()
            .any(|f| f.code == Code::BlobNameMismatch)
    );
    let mut denied = honest.clone();
    denied.layout.as_mut().unwrap().incomplete.clear();
    assert_eq!(check_report(&f.manifest, &denied).len(), 1);
    let mut denied = honest.clone();
    denied.files[0].blob = None;
    assert_eq!(check_report(&f.manifest, &denied).len(), 1);
    // The second look sees a link that leads to another blob.
    let again = || restat(&cache.root, &honest, honest.finished.clone()).changed;
    assert_eq!(again(), []);
    let link = cache.at(COMMIT, SHARDS[0]);
    let other = cache.blob(SHARDS[1]);
    fs::remove_file(&link).unwrap();
    let name = other.file_name().unwrap().to_str().unwrap();
    symlink(format!("../../blobs/{name}"), &link).unwrap();
    let what = again()
        .into_iter()
        .map(|c| (c.path, c.what))
        .collect::<Vec<_>>();
    let link = (
        SHARDS[0].to_owned(),
        "its link leads to another blob".to_owned(),
    );
    assert!(what.contains(&link), "{what:?}");
}

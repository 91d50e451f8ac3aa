//! Does a manifest belong to its revision? With repositories made by git itself.

mod weights_support;

use std::fs;
use std::path::{Path, PathBuf};

use runseal::weights::git::{GitError, ObjectDir, Revision};
use runseal::weights::*;
use weights_support::hub::{checked_out, git, head, repository};
use weights_support::*;

/// A repository in `repo/`, the checkpoint in `model/`, and its manifest, which
/// names the commit.
struct Bound {
    dir: tempfile::TempDir,
    commit: String,
}

impl Bound {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let commit = repository(&dir.path().join("repo"));
        checked_out(&dir.path().join("model"));
        let this = Self { dir, commit };
        this.pin();
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Pins whatever lies in `model/` as of the commit.
    fn pin(&self) {
        let source = Source {
            repository: None,
            revision: Some(self.commit.clone()),
            binding: Binding::Asserted,
        };
        let scan = scan_folder(&self.path("model"), Algorithm::Both, &NoProgress).unwrap();
        let manifest = Manifest::from_scan(&scan, Some(source)).unwrap();
        fs::write(self.path("m.json"), manifest.to_bytes()).unwrap();
    }

    fn verify(&self, more: &[&str]) -> Answer {
        let args = [
            "weights",
            "model",
            "--manifest",
            "m.json",
            "--format",
            "json",
        ];
        verify_in(self.dir.path(), &[&args[..], more].concat())
    }

    fn with_objects(&self) -> Answer {
        self.verify(&["--git-objects", "repo"])
    }

    /// The commit and its trees as `git cat-file` prints them.
    fn raw_objects(&self, to: &str) {
        let (repo, to) = (self.path("repo"), self.path(to));
        fs::create_dir(&to).unwrap();
        let trees = git(
            &repo,
            &["ls-tree", "-r", "-d", "--object-only", &self.commit],
        );
        let root = git(&repo, &["rev-parse", &format!("{}^{{tree}}", self.commit)]);
        let trees = String::from_utf8([trees, root].concat()).unwrap();
        let commit = [("commit", self.commit.as_str())];
        for (kind, id) in commit.into_iter().chain(trees.lines().map(|t| ("tree", t))) {
            fs::write(to.join(id), git(&repo, &["cat-file", kind, id])).unwrap();
        }
    }
}

/// Outcome of the check `revision-bound`, and its reason.
fn outcome(answer: &Answer) -> (String, String) {
    let json = answer.json();
    let checks = json["checks"].as_array().unwrap();
    let check = checks
        .iter()
        .find(|c| c["name"] == "revision-bound")
        .unwrap();
    let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
    (text("outcome"), text("reason"))
}

fn codes(answer: &Answer) -> Vec<String> {
    answer
        .findings()
        .into_iter()
        .map(|(code, _)| code)
        .collect()
}

#[test]
fn asserted_without_the_objects_and_shown_with_them() {
    let b = Bound::new();
    let answer = b.verify(&[]);
    assert_eq!(answer.code, 0, "{answer:?}");
    let (state, reason) = outcome(&answer);
    assert_eq!(state, "not_performed");
    assert!(reason.contains("asserted"), "{reason}");
    let args = ["weights", "model", "--manifest", "m.json"];
    let human = verify_in(b.dir.path(), &args);
    let line = format!("revision  {}: asserted, not shown\n", b.commit);
    assert!(human.stdout.contains(&line), "{}", human.stdout);

    // That it was shown when the manifest was made is another assertion.
    let pinned = fs::read_to_string(b.path("m.json")).unwrap();
    let stated = pinned.replace("\"asserted\"", "\"git_objects\"");
    assert_ne!(pinned, stated);
    fs::write(b.path("m.json"), stated).unwrap();
    let (state, reason) = outcome(&b.verify(&[]));
    assert_eq!(state, "not_performed");
    assert!(reason.contains("not at hand"), "{reason}");

    b.raw_objects("raw");
    for objects in ["repo", "repo/.git", "repo/.git/objects", "raw"] {
        let answer = b.verify(&["--git-objects", objects]);
        assert_eq!(answer.code, 0, "{objects}: {answer:?}");
        assert_eq!(outcome(&answer).0, "passed");
        assert_eq!(codes(&answer), [""; 0]);
        // Large files by their pointers, small ones by their content.
        let json = answer.json();
        for file in json["replicas"][0]["report"]["files"].as_array().unwrap() {
            let large = file["path"].as_str().unwrap().ends_with("safetensors");
            let by = if large { "git_pointer" } else { "git_blob" };
            assert_eq!(file["compared"], serde_json::json!(["sha256", by]));
        }
    }
    let human = verify_in(
        b.dir.path(),
        &[&args[..], &["--git-objects", "raw"]].concat(),
    );
    let line = format!("revision  {}: shown from its git objects\n", b.commit);
    assert!(human.stdout.contains(&line), "{}", human.stdout);
}

#[test]
fn a_manifest_of_other_files_is_not_of_the_revision() {
    // Each pinned as it is, so that all digests of the manifest match.
    for name in [
        SHARDS[1],
        "config.json",
        "original/params.json",
        "original/deeper/note.txt",
    ] {
        let b = Bound::new();
        let path = b.path("model").join(name);
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        b.pin();
        assert_eq!(b.verify(&[]).code, 0);
        let answer = b.with_objects();
        assert_eq!(
            (answer.code, codes(&answer)),
            (1, vec!["revision-not-bound".to_owned()]),
            "{name}"
        );
        assert_eq!(answer.findings()[0].1, format!("model/{name}"));
        assert_eq!(outcome(&answer).0, "failed");
    }
    // A file that the revision does not have.
    let b = Bound::new();
    fs::write(b.path("model/extra.json"), "{}").unwrap();
    b.pin();
    let answer = b.with_objects();
    assert_eq!(
        (answer.code, answer.findings()),
        (
            1,
            vec![(
                "revision-not-bound".to_owned(),
                "manifest/extra.json".to_owned()
            )]
        )
    );
    // A part of the revision is a part of it, and that is said.
    let b = Bound::new();
    fs::remove_dir_all(b.path("model/original")).unwrap();
    b.pin();
    let answer = b.with_objects();
    assert_eq!(
        (answer.code, codes(&answer)),
        (0, vec!["revision-files-absent".to_owned()])
    );
    assert_eq!(outcome(&answer).0, "passed");
}

#[test]
fn another_commit_of_the_same_repository_is_another_revision() {
    let mut b = Bound::new();
    let first = b.commit.clone();
    fs::write(b.path("repo/config.json"), "second").unwrap();
    git(&b.path("repo"), &["commit", "-q", "-a", "-m", "second"]);
    b.commit = head(&b.path("repo"));
    assert_ne!(first, b.commit);
    b.pin();
    assert_eq!(codes(&b.with_objects()), ["revision-not-bound"]);
    b.commit = first;
    b.pin();
    assert_eq!(b.with_objects().code, 0);
}

#[test]
fn a_wrong_replica_shows_nothing_about_the_manifest() {
    let b = Bound::new();
    fs::write(b.path("model/config.json"), content("original/params.json")).unwrap();
    let answer = b.with_objects();
    assert_eq!(answer.code, 1);
    let (state, reason) = outcome(&answer);
    assert_eq!(state, "not_performed", "{reason}");
}

#[test]
fn objects_that_are_missing_packed_or_forged_show_nothing() {
    let b = Bound::new();
    b.raw_objects("raw");
    let names: Vec<_> = fs::read_dir(b.path("raw"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    // The commit, its tree, two folders.
    assert_eq!(names.len(), 4);
    for name in &names {
        let path = b.path("raw").join(name);
        let good = fs::read(&path).unwrap();
        let mut forged = good.clone();
        forged[10] ^= 1;
        let cut = good[..good.len() - 1].to_vec();
        for (bytes, says) in [
            (Some(forged), "another id"),
            (Some(cut), "another id"),
            (None, "cat-file"),
        ] {
            match bytes {
                Some(bytes) => fs::write(&path, bytes).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let answer = b.verify(&["--git-objects", "raw"]);
            assert_eq!(answer.code, 1, "{name}");
            let (state, reason) = outcome(&answer);
            assert_eq!(state, "not_performed");
            assert!(reason.contains(says), "{reason}");
            // The files themselves are as pinned.
            assert_eq!(
                answer.json()["replicas"][0]["integrity"]["state"],
                "verified"
            );
        }
        fs::write(&path, good).unwrap();
    }
    assert_eq!(b.verify(&["--git-objects", "raw"]).code, 0);
    git(&b.path("repo"), &["gc", "-q"]);
    let answer = b.with_objects();
    assert_eq!(answer.code, 1);
    assert!(
        outcome(&answer).1.contains("packed"),
        "{}",
        outcome(&answer).1
    );
}

#[test]
fn a_commit_cannot_stand_for_a_tree_nor_a_tree_for_a_commit() {
    let b = Bound::new();
    let tree = git(&b.path("repo"), &["rev-parse", "HEAD^{tree}"]);
    let tree: GitId = String::from_utf8(tree).unwrap().trim().parse().unwrap();
    let objects = ObjectDir::new(&b.path("repo"));
    assert!(matches!(
        Revision::read(&objects, tree),
        Err(GitError::OtherId { kind: "commit", .. })
    ));
}

#[test]
fn links_in_the_repository_are_no_files() {
    let b = Bound::new();
    let repo = b.path("repo");
    std::os::unix::fs::symlink("config.json", repo.join("link")).unwrap();
    git(&repo, &["add", "link"]);
    git(&repo, &["commit", "-q", "-m", "link"]);
    let commit: GitId = head(&repo).parse().unwrap();
    let revision = Revision::read(&ObjectDir::new(&repo), commit).unwrap();
    assert_eq!(revision.not_files.len(), 1);
    // Listed as a file with the link's own text as content: still no file.
    fs::write(b.path("model/link"), "config.json").unwrap();
    let b = Bound {
        commit: commit.to_string(),
        ..b
    };
    b.pin();
    assert_eq!(codes(&b.with_objects()), ["revision-not-bound"]);
}

#[test]
fn foreign_lists_are_bound_by_a_revision_that_the_caller_names() {
    let b = Bound::new();
    let manifest = Manifest::parse(&fs::read(b.path("m.json")).unwrap()).unwrap();
    fs::write(b.path("m.json"), manifest.to_sha256sums()).unwrap();
    let none = b.with_objects();
    assert_eq!((none.code, none.stdout.as_str()), (2, ""));
    assert!(none.stderr.contains("--revision"), "{}", none.stderr);
    let more = ["--git-objects", "repo", "--revision", b.commit.as_str()];
    let answer = b.verify(&more);
    assert_eq!(
        (answer.code, outcome(&answer).0.as_str()),
        (0, "passed"),
        "{answer:?}"
    );
    // Not a commit, not a folder, nothing to bind.
    assert_eq!(
        b.verify(&["--git-objects", "repo", "--revision", "main"])
            .code,
        2
    );
    assert_eq!(
        b.verify(&["--git-objects", "m.json", "--revision", &b.commit])
            .code,
        2
    );
    let args = [
        "weights",
        "model",
        "--git-objects",
        "repo",
        "--revision",
        &b.commit,
    ];
    assert_eq!(verify_in(b.dir.path(), &args).code, 2);
}

#[test]
fn hostile_trees_end() {
    // A tree that names itself cannot be made, but deep and odd ones can: written
    // by hand, with ids worked out here.
    use sha1::Digest;
    fn put(dir: &Path, kind: &str, body: &[u8]) -> [u8; 20] {
        let id: [u8; 20] = sha1::Sha1::new()
            .chain_update(format!("{kind} {}\0", body.len()))
            .chain_update(body)
            .finalize()
            .into();
        fs::write(dir.join(hex::encode(id)), body).unwrap();
        id
    }
    let entry = |mode: &str, name: &str, id: [u8; 20]| {
        [format!("{mode} {name}\0").as_bytes(), &id].concat()
    };
    let dir = tempfile::tempdir().unwrap();
    let leaf = put(dir.path(), "tree", &entry("100644", "f", [1; 20]));
    let mut deep = leaf;
    for _ in 0..100 {
        deep = put(dir.path(), "tree", &entry("40000", "d", deep));
    }
    let up = put(dir.path(), "tree", &entry("100644", "..", [1; 20]));
    let twice = [entry("100644", "f", [1; 20]), entry("100644", "f", [2; 20])].concat();
    let twice = put(dir.path(), "tree", &twice);
    for tree in [deep, up, twice] {
        let body = format!("tree {}\nauthor x\n\nm\n", hex::encode(tree));
        let commit = GitId(put(dir.path(), "commit", body.as_bytes()));
        let read = Revision::read(&ObjectDir::new(dir.path()), commit);
        assert!(matches!(read, Err(GitError::Malformed { .. })), "{read:?}");
    }
}

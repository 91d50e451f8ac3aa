//! A hub cache, as the client lays it out, and repositories made with git.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use runseal::digest::Sha256Digest;
use runseal::weights::git::blob_id;

use super::{SHARDS, content};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub const OTHER: &str = "89abcdef0123456789abcdef0123456789abcdef";

/// The files of the test checkpoint with their contents.
pub fn files() -> BTreeMap<String, Vec<u8>> {
    let names = SHARDS
        .iter()
        .chain(&["config.json", "original/params.json"]);
    names.map(|n| ((*n).to_owned(), content(n))).collect()
}

/// The etag that the hub gives a file: shards are in LFS.
pub fn etag(name: &str, bytes: &[u8]) -> String {
    if name.ends_with(".safetensors") {
        Sha256Digest::of(bytes).hex()
    } else {
        blob_id(bytes).to_string()
    }
}

/// A cache of one repository with one snapshot and `refs/main`.
pub struct Cache {
    pub root: PathBuf,
}

impl Cache {
    pub fn new(parent: &Path) -> Self {
        let root = parent.join("models--org--tiny");
        for folder in ["refs", "blobs", "snapshots"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let this = Self { root };
        this.snapshot(COMMIT, &files());
        this.point("main", COMMIT);
        this
    }

    pub fn snapshot(&self, commit: &str, files: &BTreeMap<String, Vec<u8>>) {
        for (name, bytes) in files {
            let etag = etag(name, bytes);
            fs::write(self.root.join("blobs").join(&etag), bytes).unwrap();
            let link = self.at(commit, name);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            let up = "../".repeat(2 + name.matches('/').count());
            symlink(format!("{up}blobs/{etag}"), link).unwrap();
        }
    }

    pub fn point(&self, reference: &str, commit: &str) {
        fs::write(self.root.join("refs").join(reference), commit).unwrap();
    }

    pub fn at(&self, commit: &str, name: &str) -> PathBuf {
        self.root.join("snapshots").join(commit).join(name)
    }

    /// The blob that a file of the snapshot leads to.
    pub fn blob(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.at(COMMIT, name)).unwrap()
    }
}

/// Writes the client's metadata beside files of a local-dir.
pub fn metadata(folder: &Path, name: &str, commit: &str, etag: &str) {
    let path = folder.join(format!(".cache/huggingface/download/{name}.metadata"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{commit}\n{etag}\n1700000000.5\n")).unwrap();
}

/// Runs git with nothing of the user's own settings.
pub fn git(dir: &Path, args: &[&str]) -> Vec<u8> {
    let output = Command::new("git")
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
        .args(["-c", "commit.gpgsign=false", "-c", "core.autocrlf=false"])
        .args(args)
        .output()
        .expect("git is needed for this test");
    assert!(
        output.status.success(),
        "git {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// The text of a git-lfs pointer.
pub fn pointer(bytes: &[u8]) -> String {
    format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n",
        Sha256Digest::of(bytes),
        bytes.len()
    )
}

/// A repository of the test checkpoint, shards as git-lfs pointers; gives the
/// commit. Objects stay loose.
pub fn repository(dir: &Path) -> String {
    fs::create_dir_all(dir).unwrap();
    git(dir, &["init", "-q"]);
    let mut all = files();
    all.insert(
        ".gitattributes".into(),
        b"*.safetensors filter=lfs\n".to_vec(),
    );
    all.insert("original/deeper/note.txt".into(), b"deep\n".to_vec());
    for (name, bytes) in &all {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if name.ends_with(".safetensors") {
            fs::write(path, pointer(bytes)).unwrap();
        } else {
            fs::write(path, bytes).unwrap();
        }
    }
    // Stored as they are: no filter is set up here, as in a clone without git-lfs.
    git(dir, &["-c", "filter.lfs.required=false", "add", "-A"]);
    git(dir, &["commit", "-q", "-m", "first"]);
    head(dir)
}

pub fn head(dir: &Path) -> String {
    String::from_utf8(git(dir, &["rev-parse", "HEAD"]))
        .unwrap()
        .trim()
        .to_owned()
}

/// The checkpoint that this repository describes, with its large files.
pub fn checked_out(folder: &Path) {
    super::checkpoint(folder);
    fs::write(folder.join(".gitattributes"), "*.safetensors filter=lfs\n").unwrap();
    fs::create_dir_all(folder.join("original/deeper")).unwrap();
    fs::write(folder.join("original/deeper/note.txt"), "deep\n").unwrap();
}

//! A checkout with git-lfs pointers as a manifest: the repository as it is cloned
//! without the large files. A pointer gives SHA-256 and size of the file that
//! belongs in its place; any other file is its own content.

use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::beneath::Folder;
use super::git::blob_id;
use super::git::pointer::{MAX_LEN, Pointer, resembles};
use super::manifest::{Entry, ListFormat, Listing, ManifestError};
use super::report::Kind;
use crate::digest::Sha256Digest;

/// Reads a checkout as a manifest. `.git` at its top is passed over. There must
/// be at least one pointer: a folder of plain files says nothing about another.
pub fn pointer_tree(root: &Path) -> Result<Listing, ManifestError> {
    let unreadable = |what: &str, e: std::io::Error| ManifestError::Unknown(format!("{what}: {e}"));
    let here = root.display().to_string();
    let folder = Folder::open(root).map_err(|e| unreadable(&here, e))?;
    let outside = |path: &[u8]| path == b".git" || path.starts_with(b".git/");
    let files = folder
        .list_into(&|path| !outside(path.as_bytes()))
        .map_err(|e| unreadable(&here, e))?;
    let mut entries = Vec::new();
    let mut pointers = 0;
    for file in files {
        if outside(file.path.as_bytes()) || (file.kind == Kind::Folder && file.problem.is_none()) {
            continue;
        }
        let name = file.path.to_string();
        if file.kind != Kind::File || file.problem.is_some() {
            let why = file
                .problem
                .map_or(format!("it is a {}", file.kind), |p| p.detail);
            return Err(ManifestError::Unknown(format!("{name}: {why}")));
        }
        let opened = folder
            .open_file(&file.path)
            .map_err(|e| unreadable(&name, e))?;
        let size = file.stat.map_or(0, |s| s.size);
        let mut entry = Entry::of(file.path);
        // One byte more than listed is enough to see that it grew.
        let mut reader = opened.take(size + 1);
        let mut start = Vec::new();
        let read = reader.by_ref().take(MAX_LEN + 1).read_to_end(&mut start);
        read.map_err(|e| unreadable(&name, e))?;
        if let Some(pointer) = Pointer::parse(&start) {
            pointers += 1;
            entry.sha256 = Some(pointer.sha256);
            entry.size = Some(pointer.size);
            // One with extensions does not follow from the content.
            let plain = pointer.text().as_bytes() == start;
            entry.git_blob = plain.then(|| blob_id(&start));
        } else if resembles(&start) {
            let why = "it is a damaged git-lfs pointer (hint: check it out again without changing line ends)";
            return Err(ManifestError::Unknown(format!("{name}: {why}")));
        } else {
            let mut hasher = Sha256::new();
            hasher.update(&start);
            let mut length = start.len() as u64;
            let mut buffer = vec![0; 1 << 16];
            loop {
                let n = reader.read(&mut buffer).map_err(|e| unreadable(&name, e))?;
                if n == 0 {
                    break;
                }
                hasher.update(&buffer[..n]);
                length += n as u64;
            }
            if length != size {
                return Err(ManifestError::Unknown(format!(
                    "{name}: it is being changed"
                )));
            }
            entry.sha256 = Some(Sha256Digest(hasher.finalize().into()));
            entry.size = Some(size);
        }
        entries.push(entry);
    }
    if pointers == 0 && !entries.is_empty() {
        return Err(ManifestError::Unknown(format!(
            "{here}: there is no git-lfs pointer in this folder; clone with GIT_LFS_SKIP_SMUDGE=1"
        )));
    }
    Listing::new(ListFormat::GitLfs, entries)
}

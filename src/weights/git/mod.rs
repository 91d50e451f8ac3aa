//! Does a manifest belong to the revision it names? Answered offline, from the
//! raw git objects of the model's repository.
//!
//! A commit names its root tree, a tree names blobs and further trees, each by
//! the SHA-1 of its bytes. Given those objects, the ids are worked out again from
//! the bytes up to the commit, which must be the pinned revision. What remains is
//! a list of paths and blob ids. A large file's blob is its git-lfs pointer, a
//! text that SHA-256 and size determine; a small file's blob is its content. So
//! every file can be compared without the repository's contents at hand.
//!
//! The link is as strong as SHA-1: enough against accident and against anyone who
//! could not prepare both contents beforehand.

mod object;
pub(crate) mod pointer;
mod store;

use std::collections::{BTreeMap, BTreeSet};

use super::manifest::Listing;
use super::values::GitId;
use crate::codes::Code;
use crate::finding::Finding;
use crate::relpath::RelPath;

pub use object::blob_id;
pub(crate) use object::{BlobHasher, pointer_blob_id};
pub use store::{GitError, ObjectDir};

/// The files of one commit, worked out from its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// The commit's id.
    pub commit: GitId,
    /// Blob id of every file, symbolic links included.
    pub blobs: BTreeMap<RelPath, GitId>,
    /// Paths that are symbolic links or other repositories.
    pub not_files: BTreeSet<RelPath>,
}

impl Revision {
    /// Reads the commit and all its trees. Nothing is believed by its name: each
    /// object's id is worked out from its bytes.
    pub fn read(objects: &ObjectDir, commit: GitId) -> Result<Self, GitError> {
        let body = objects.get(commit, "commit")?;
        let root = object::tree_of(&body).map_err(|why| GitError::Malformed { id: commit, why })?;
        let mut revision = Self {
            commit,
            blobs: BTreeMap::new(),
            not_files: BTreeSet::new(),
        };
        revision.walk(objects, root, &[], 0)?;
        Ok(revision)
    }

    fn walk(
        &mut self,
        objects: &ObjectDir,
        tree: GitId,
        prefix: &[u8],
        depth: usize,
    ) -> Result<(), GitError> {
        const DEEPEST: usize = 64;
        const MOST: usize = 1_000_000;
        let malformed = |why: String| GitError::Malformed { id: tree, why };
        if depth > DEEPEST || self.blobs.len() > MOST {
            return Err(malformed("deeper or larger than any repository".to_owned()));
        }
        let body = objects.get(tree, "tree")?;
        for entry in object::tree_entries(&body).map_err(malformed)? {
            let path = [prefix, entry.name].concat();
            match entry.kind {
                object::EntryKind::Folder => {
                    self.walk(objects, entry.id, &[&path[..], b"/"].concat(), depth + 1)?;
                }
                kind => {
                    let path = RelPath::from_bytes(&path).map_err(|e| malformed(e.to_string()))?;
                    if kind == object::EntryKind::Other {
                        self.not_files.insert(path.clone());
                    }
                    if self.blobs.insert(path, entry.id).is_some() {
                        return Err(malformed("a name stands in it twice".to_owned()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Expects of every listed file that it is the revision's file of that path,
    /// on top of what the listing expects. The findings say which files cannot be.
    pub fn bind(&self, listing: Listing) -> Bound {
        let mut findings = Vec::new();
        let commit = self.commit;
        for entry in listing.entries() {
            let subject = format!("manifest/{}", entry.path);
            let stranger = |why: &str| {
                Finding::new(
                    Code::RevisionNotBound,
                    &subject,
                    format!("{why} {commit}, which the manifest names"),
                )
            };
            match self.blobs.get(&entry.path) {
                None => findings.push(stranger("there is no such file in revision")),
                Some(_) if self.not_files.contains(&entry.path) => {
                    findings.push(stranger("it is no plain file in revision"));
                }
                Some(id) => {
                    // Known without looking at any replica.
                    if let Some(said) = entry.git_blob.filter(|said| said != id) {
                        let other = stranger("the manifest gives another git blob than revision");
                        findings.push(other.values(id, said));
                    }
                }
            }
        }
        let listed = |path: &&RelPath| listing.get(path).is_some();
        let absent: Vec<_> = self.blobs.keys().filter(|p| !listed(p)).collect();
        if let Some(first) = absent.first() {
            let detail = format!(
                "{} file(s) of revision {commit} are not in the manifest, for example {first}",
                absent.len()
            );
            findings.push(Finding::new(Code::RevisionFilesAbsent, "manifest", detail));
        }
        Bound {
            commit,
            listing: listing.with_git_blobs(&self.blobs),
            findings,
        }
    }
}

/// A listing that also expects the files to be those of a revision.
#[derive(Debug, Clone)]
pub struct Bound {
    /// The revision.
    pub commit: GitId,
    /// Its entries carry the revision's blob ids.
    pub listing: Listing,
    /// What is known to be wrong before any replica was looked at.
    pub findings: Vec<Finding>,
}

//! What a folder is expected to hold, whatever file said so.
//!
//! Our own manifests give path, size and SHA-256 of every file. Foreign ones
//! give less: `sha256sum` no sizes, `b3sum` no SHA-256, a repository's tree
//! listing only a git blob id for small files. A [`Listing`] keeps exactly what
//! was given. It has a root only when everything the root commits to was given,
//! so a root that was worked out from the files found is never taken for a
//! pinned one.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ManifestError, Source};
use crate::digest::{Sha256Digest, tree_root};
use crate::json::MAX_INTEGER;
use crate::relpath::RelPath;
use crate::weights::pieces::PieceDigests;
use crate::weights::values::{Algorithm, Blake3Digest, GitId, Mode};

/// The file formats that a [`Listing`] can come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ListFormat {
    /// Nothing was given to compare with.
    Absent,
    /// Our own JSON.
    Runseal,
    /// `sha256sum`: digest and name, text or binary, escaped or not.
    Sha256sum,
    /// `sha256sum --tag`, `b3sum --tag` and the BSD tools.
    BsdTag,
    /// `b3sum`: looks exactly like `sha256sum`.
    B3sum,
    /// `hashdeep` with a SHA-256 column.
    Hashdeep,
    /// JSON of a model hub's tree listing.
    HfTree,
    /// A checkout that holds git-lfs pointers.
    GitLfs,
    /// An OpenSSF Model Signing bundle; read by [`crate::oms`].
    Oms,
}

impl ListFormat {
    /// In words.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Absent => "none",
            Self::Runseal => "runseal.manifest/v1",
            Self::Sha256sum => "sha256sum lines",
            Self::BsdTag => "BSD --tag lines",
            Self::B3sum => "b3sum lines",
            Self::Hashdeep => "hashdeep",
            Self::HfTree => "hub tree listing",
            Self::GitLfs => "git-lfs pointers",
            Self::Oms => "OpenSSF Model Signing bundle",
        }
    }
}

/// What is expected of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Where it lies.
    pub path: RelPath,
    /// Its length in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// SHA-256 of its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Sha256Digest>,
    /// BLAKE3 of its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<Blake3Digest>,
    /// Id of its git blob: of the content, or of the git-lfs pointer to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_blob: Option<GitId>,
    /// Permission bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Digests of its pieces, where it is listed in shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pieces: Option<PieceDigests>,
}

impl Entry {
    /// An entry of which nothing but the path is known.
    pub fn of(path: RelPath) -> Self {
        Self {
            path,
            size: None,
            sha256: None,
            blake3: None,
            git_blob: None,
            mode: None,
            pieces: None,
        }
    }

    /// The strongest digest given, for reports: SHA-256 as bare digits.
    pub(crate) fn digest_text(&self) -> Option<String> {
        let sha256 = self.sha256.map(|d| d.hex());
        sha256
            .or_else(|| self.blake3.map(|d| format!("blake3:{d}")))
            .or_else(|| self.git_blob.map(|d| format!("git-blob:{d}")))
            .or_else(|| self.pieces.as_ref().map(PieceDigests::to_string))
    }

    /// Adds what another line says of the same file. None when the two contradict
    /// each other or the second says nothing new.
    fn merge(mut self, other: &Self) -> Option<Self> {
        fn one<T: PartialEq + Copy>(a: &mut Option<T>, b: Option<T>) -> Option<bool> {
            match (*a, b) {
                (Some(x), Some(y)) if x != y => None,
                (None, Some(_)) => {
                    *a = b;
                    Some(true)
                }
                _ => Some(false),
            }
        }
        let news = [
            one(&mut self.size, other.size)?,
            one(&mut self.sha256, other.sha256)?,
            one(&mut self.blake3, other.blake3)?,
            one(&mut self.git_blob, other.git_blob)?,
        ];
        news.contains(&true).then_some(self)
    }
}

/// The files that a folder is expected to hold, and what it may hold besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    format: ListFormat,
    root: Option<Sha256Digest>,
    files: BTreeMap<RelPath, Entry>,
    ignore: BTreeSet<RelPath>,
    empty_folders: BTreeSet<RelPath>,
    source: Option<Source>,
}

impl Listing {
    /// Makes a listing of these entries, in any order. Two entries of one path
    /// are put together when they give different kinds of digests, as `--tag`
    /// lines of two algorithms do; otherwise they are refused.
    pub fn new(
        format: ListFormat,
        entries: impl IntoIterator<Item = Entry>,
    ) -> Result<Self, ManifestError> {
        let mut files: BTreeMap<RelPath, Entry> = BTreeMap::new();
        for entry in entries {
            let path = entry.path.clone();
            let whole = entry.sha256.is_some() || entry.blake3.is_some();
            if !whole && entry.git_blob.is_none() && entry.pieces.is_none() {
                return Err(ManifestError::NoDigest(path));
            }
            let entry = match files.remove(&path) {
                None => entry,
                Some(old) if old == entry => return Err(ManifestError::Duplicate(path)),
                Some(old) => old
                    .merge(&entry)
                    .ok_or(ManifestError::Conflict(path.clone()))?,
            };
            files.insert(path, entry);
        }
        refuse_ambiguity(&files)?;
        Ok(Self {
            format,
            root: root_of(&files),
            files,
            ignore: BTreeSet::new(),
            empty_folders: BTreeSet::new(),
            source: None,
        })
    }

    /// No expectation at all: a folder compared with it is never verified.
    pub fn absent() -> Self {
        Self {
            format: ListFormat::Absent,
            root: None,
            files: BTreeMap::new(),
            ignore: BTreeSet::new(),
            empty_folders: BTreeSet::new(),
            source: None,
        }
    }

    /// Declares paths that are not part of the checkpoint: each stands for itself
    /// and everything below it. A listed file cannot be ignored.
    pub fn with_ignore(
        mut self,
        ignore: impl IntoIterator<Item = RelPath>,
    ) -> Result<Self, ManifestError> {
        self.ignore.extend(ignore);
        match self.files.keys().find(|path| self.ignores(path)) {
            Some(path) => Err(ManifestError::ListedAndIgnored(path.clone())),
            None => Ok(self),
        }
    }

    /// Records folders that held nothing. No list of files can show that one is
    /// gone, and some loaders mind. The root does not commit to them.
    pub fn with_empty_folders(
        mut self,
        folders: impl IntoIterator<Item = RelPath>,
    ) -> Result<Self, ManifestError> {
        self.empty_folders.extend(folders);
        match self.files.keys().find(|p| covers(&self.empty_folders, p)) {
            Some(path) => Err(ManifestError::NotEmpty(path.clone())),
            None => Ok(self),
        }
    }

    /// Says where the files come from.
    pub fn with_source(mut self, source: Option<Source>) -> Self {
        self.source = source;
        self
    }

    /// Sets the git blob id of each listed file that `blobs` names.
    pub(crate) fn with_git_blobs(mut self, blobs: &BTreeMap<RelPath, GitId>) -> Self {
        for (path, entry) in &mut self.files {
            if let Some(id) = blobs.get(path) {
                entry.git_blob = Some(*id);
            }
        }
        self
    }

    /// The file format it was read from.
    pub fn format(&self) -> ListFormat {
        self.format
    }

    /// Nothing is expected; see [`Listing::absent`].
    pub fn is_absent(&self) -> bool {
        self.format == ListFormat::Absent
    }

    /// The checkpoint's identity, when sizes and SHA-256 of all files are given.
    pub fn root(&self) -> Option<Sha256Digest> {
        self.root
    }

    /// The entries in byte order of their paths.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.files.values()
    }

    /// The entry of one path.
    pub fn get(&self, path: &RelPath) -> Option<&Entry> {
        self.files.get(path)
    }

    /// Number of files.
    pub fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Sum of the sizes given.
    pub fn total_size(&self) -> u64 {
        self.files.values().filter_map(|f| f.size).sum()
    }

    /// Paths that are not part of the checkpoint.
    pub fn ignore(&self) -> &BTreeSet<RelPath> {
        &self.ignore
    }

    /// Folders that held nothing when the manifest was made.
    pub fn empty_folders(&self) -> &BTreeSet<RelPath> {
        &self.empty_folders
    }

    /// The path, or a folder above it, is declared as not part of the checkpoint.
    pub fn ignores(&self, path: &RelPath) -> bool {
        covers(&self.ignore, path)
    }

    /// Where the files are said to come from.
    pub fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }

    /// The revision that the files are said to belong to.
    pub fn revision(&self) -> Option<&str> {
        self.source.as_ref()?.revision.as_deref()
    }

    /// What must be computed beyond what was asked for, so that every entry can
    /// be compared and the identity of what was found is known.
    pub(crate) fn needs(&self, asked: Algorithm) -> Algorithm {
        let blobs = self.files.values().any(|f| f.git_blob.is_some());
        let sha256 = asked.sha256() || self.root.is_none() || blobs;
        let only_blake3 = |f: &Entry| f.sha256.is_none() && f.blake3.is_some();
        let blake3 = asked.blake3() || self.files.values().any(only_blake3);
        match (sha256, blake3) {
            (true, true) => Algorithm::Both,
            (false, true) => Algorithm::Blake3,
            _ => Algorithm::Sha256,
        }
    }
}

impl AsRef<Listing> for Listing {
    fn as_ref(&self) -> &Listing {
        self
    }
}

/// `path` is one of `prefixes` or lies below one.
pub(crate) fn covers(prefixes: &BTreeSet<RelPath>, path: &RelPath) -> bool {
    let bytes = path.as_bytes();
    prefixes.iter().any(|p| {
        let p = p.as_bytes();
        bytes.starts_with(p) && matches!(bytes.get(p.len()), None | Some(b'/'))
    })
}

fn root_of(files: &BTreeMap<RelPath, Entry>) -> Option<Sha256Digest> {
    let entries: Option<Vec<_>> = files
        .values()
        .map(|f| Some((&f.path, f.size?, f.sha256?)))
        .collect();
    entries.map(tree_root)
}

fn refuse_ambiguity(files: &BTreeMap<RelPath, Entry>) -> Result<(), ManifestError> {
    if files.is_empty() {
        return Err(ManifestError::Empty);
    }
    let mut total = 0u64;
    let mut folded = BTreeMap::new();
    for (path, file) in files {
        total = total
            .checked_add(file.size.unwrap_or(0))
            .filter(|sum| *sum <= MAX_INTEGER)
            .ok_or_else(|| ManifestError::TooLarge(path.clone()))?;
        if let Some(other) = folded.insert(fold(path), path) {
            return Err(ManifestError::CaseFold(other.clone(), path.clone()));
        }
    }
    // Folders are compared in folded form too: `A` and `a/b` cannot both exist
    // where case does not matter.
    for (name, path) in &folded {
        for (end, _) in name.match_indices('/') {
            if let Some(file) = folded.get(&name[..end]) {
                return Err(ManifestError::FileAndFolder {
                    file: (*file).clone(),
                    below: (*path).clone(),
                });
            }
        }
    }
    Ok(())
}

/// The path as a file system that ignores case would compare it. The escaped
/// form is injective and its escapes are lower-case, so only case can collide.
fn fold(path: &RelPath) -> String {
    path.to_string().to_lowercase()
}

//! What a checkpoint consists of.
//!
//! A [`Manifest`] can only be had whole: [`Manifest::new`] refuses every list of
//! files that two readers, or two file systems, could understand in two ways.
//! Readers and writers of file formats stand beside it, one module each. Foreign
//! formats give a [`Listing`], which may know less of each file; the same rules
//! guard it.

mod checksums;
mod hashdeep;
mod hf_tree;
mod listing;
mod own;
mod read;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rehash::ReplicaScan;
use super::report::{FileReport, Kind};
use super::values::{Blake3Digest, Mode};
use crate::digest::Sha256Digest;
use crate::json::JsonError;
use crate::relpath::{BadPath, RelPath};

pub(crate) use listing::covers;
pub use listing::{Entry, ListFormat, Listing};
pub use own::MANIFEST_FORMAT;

/// Longest manifest read, in bytes; a longer one is not written either.
pub const MAX_MANIFEST: u64 = 1 << 28;

/// A list of files and the root digest that commits to it.
///
/// The root is `runseal-tree/v1` over path, size and SHA-256. BLAKE3 digests,
/// modes, ignored paths, empty folders and the source are carried beside it and are *not*
/// committed to; a report shows every ignored path that exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "own::Raw", into = "own::Raw")]
pub struct Manifest {
    root: Sha256Digest,
    files: BTreeMap<RelPath, ManifestFile>,
    listing: Listing,
}

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    /// Where it lies below the checkpoint's folder.
    pub path: RelPath,
    /// Its length in bytes.
    pub size: u64,
    /// SHA-256 of its content.
    pub sha256: Sha256Digest,
    /// BLAKE3 of its content, for faster checks on trusted manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<Blake3Digest>,
    /// Permission bits when it was pinned; a changed execute bit is a note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

impl ManifestFile {
    fn entry(&self) -> Entry {
        Entry {
            size: Some(self.size),
            sha256: Some(self.sha256),
            blake3: self.blake3,
            mode: self.mode,
            ..Entry::of(self.path.clone())
        }
    }
}

/// Where the checkpoint is said to come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// A repository, for example an organisation and model name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// The revision within it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// What ties the files to that revision.
    pub binding: Binding,
}

/// What ties a manifest to the revision it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Binding {
    /// Only the word of whoever made the manifest.
    Asserted,
    /// When the manifest was made, the files were tied to the revision by its git
    /// objects. For a reader who does not have them, that too is asserted.
    GitObjects,
}

/// Why a manifest was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// The bytes are not strict JSON.
    #[error("the manifest is {0}")]
    Json(#[from] JsonError),
    /// It is in no format that is known.
    #[error(
        "this is no manifest in a known format: {0} (hint: own JSON, sha256sum, --tag, b3sum, hashdeep, a hub's tree listing, or a folder with git-lfs pointers)"
    )]
    Unknown(String),
    /// A line cannot be read in exactly one way.
    #[error("line {line} of the manifest: {why} (hint: make the list again, or fix the line)")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// A path leads elsewhere or is no path.
    #[error("{0}")]
    Path(#[from] BadPath),
    /// A file is named, but nothing that its content could be compared with.
    #[error("the manifest gives no usable digest for {0} (hint: SHA-256, BLAKE3 or a git blob id)")]
    NoDigest(RelPath),
    /// A file lies in a folder that is recorded as empty.
    #[error("{0} lies in a folder that the manifest calls empty")]
    NotEmpty(RelPath),
    /// A file is listed and declared as ignored.
    #[error("the manifest lists {0} and also says to ignore it (hint: one of the two is wrong)")]
    ListedAndIgnored(RelPath),
    /// It names another format, or none.
    #[error(
        "the manifest's format is {found}, not {MANIFEST_FORMAT:?} (hint: docs/formats.md describes it; `attest run` writes one)"
    )]
    Format {
        /// What stood there.
        found: String,
    },
    /// A field is missing, unknown or of the wrong shape.
    #[error(
        "the manifest cannot be read: {0} (hint: get the original again; nothing is verified against a damaged manifest)"
    )]
    Shape(serde_json::Error),
    /// It lists nothing.
    #[error(
        "the manifest lists no files, so nothing could ever be verified (hint: was it cut short?)"
    )]
    Empty,
    /// A path stands twice with the same content.
    #[error("the manifest lists {0} twice (hint: remove one of the entries)")]
    Duplicate(RelPath),
    /// A path stands twice with different content.
    #[error(
        "the manifest lists {0} twice, and the entries contradict each other (hint: find out which one is meant)"
    )]
    Conflict(RelPath),
    /// Two paths are one on a file system that ignores case.
    #[error(
        "the manifest lists both {0} and {1}, which are one file where case does not matter (hint: rename one)"
    )]
    CaseFold(RelPath, RelPath),
    /// A path is both a file and a folder.
    #[error(
        "the manifest lists {file} as a file and {below} below it (hint: one of the two is wrong)"
    )]
    FileAndFolder {
        /// The entry that is a file.
        file: RelPath,
        /// The entry that needs it to be a folder.
        below: RelPath,
    },
    /// A size, or their sum, cannot be written exactly as a JSON number.
    #[error("the sizes in the manifest pass 2^53 bytes at {0} (hint: no checkpoint is that large)")]
    TooLarge(RelPath),
    /// The stated root is not that of the listed files.
    #[error(
        "the manifest states root {stated}, but its files give {computed} (hint: it was edited or damaged; get the original)"
    )]
    Root {
        /// What the manifest says.
        stated: Sha256Digest,
        /// What its files give.
        computed: Sha256Digest,
    },
}

/// Why a folder cannot be pinned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// Something in the folder has no digest that could be pinned.
    #[error(
        "{path} cannot be pinned: {why} (hint: a pinned folder holds plain readable files and nothing that changes)"
    )]
    Entry {
        /// Where it lies.
        path: RelPath,
        /// What is wrong with it.
        why: String,
    },
    /// The files as a whole make no manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

impl Manifest {
    /// Makes a manifest of these files, in any order, and computes its root.
    pub fn new(
        files: impl IntoIterator<Item = ManifestFile>,
        source: Option<Source>,
    ) -> Result<Self, ManifestError> {
        let mut map = BTreeMap::new();
        for file in files {
            if let Some(old) = map.insert(file.path.clone(), file.clone()) {
                return Err(if old == file {
                    ManifestError::Duplicate(file.path)
                } else {
                    ManifestError::Conflict(file.path)
                });
            }
        }
        let entries = map.values().map(ManifestFile::entry);
        let listing = Listing::new(ListFormat::Runseal, entries)?.with_source(source);
        // Every size and SHA-256 is there, so there is a root.
        let root = listing.root().ok_or(ManifestError::Empty)?;
        Ok(Self {
            root,
            files: map,
            listing,
        })
    }

    /// Declares paths that are not part of the checkpoint, see
    /// [`Listing::with_ignore`].
    pub fn with_ignore(
        self,
        ignore: impl IntoIterator<Item = RelPath>,
    ) -> Result<Self, ManifestError> {
        Ok(Self {
            listing: self.listing.with_ignore(ignore)?,
            ..self
        })
    }

    /// Records folders that held nothing, see [`Listing::with_empty_folders`].
    pub fn with_empty_folders(
        self,
        folders: impl IntoIterator<Item = RelPath>,
    ) -> Result<Self, ManifestError> {
        Ok(Self {
            listing: self.listing.with_empty_folders(folders)?,
            ..self
        })
    }

    /// Makes a manifest of what a scan with SHA-256 saw in a folder, with the
    /// paths that it was told to ignore. Anything but plain, readable files that
    /// held still is refused.
    pub fn from_scan(scan: &ReplicaScan, source: Option<Source>) -> Result<Self, PinError> {
        let part = |f: &&FileReport| !covers(&scan.ignore, &f.path);
        let files: Result<Vec<_>, _> = scan.files.iter().filter(part).map(pinned).collect();
        let empty = scan.folders.iter().filter(|(path, is_empty)| {
            // What is ignored was not looked into.
            **is_empty && !covers(&scan.ignore, path)
        });
        Ok(Self::new(files?, source)?
            .with_ignore(scan.ignore.iter().cloned())?
            .with_empty_folders(empty.map(|(path, _)| path.clone()))?)
    }

    /// The checkpoint's identity.
    pub fn root(&self) -> Sha256Digest {
        self.root
    }

    /// The files in byte order of their paths.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &ManifestFile> {
        self.files.values()
    }

    /// The entry of one path.
    pub fn get(&self, path: &RelPath) -> Option<&ManifestFile> {
        self.files.get(path)
    }

    /// Number of files; never zero.
    pub fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Sum of the sizes.
    pub fn total_size(&self) -> u64 {
        self.listing.total_size()
    }

    /// Where the files are said to come from.
    pub fn source(&self) -> Option<&Source> {
        self.listing.source()
    }
}

impl AsRef<Listing> for Manifest {
    fn as_ref(&self) -> &Listing {
        &self.listing
    }
}

fn pinned(file: &FileReport) -> Result<ManifestFile, PinError> {
    let refuse = |why: String| PinError::Entry {
        path: file.path.clone(),
        why,
    };
    if let Some(problem) = &file.problem {
        return Err(refuse(problem.detail.clone()));
    }
    if file.kind != Kind::File {
        return Err(refuse(format!("it is a {}", file.kind)));
    }
    match (file.stat, file.sha256) {
        (Some(stat), Some(sha256)) => Ok(ManifestFile {
            path: file.path.clone(),
            size: stat.size,
            sha256,
            blake3: file.blake3,
            mode: Some(stat.mode),
        }),
        _ => Err(refuse("no SHA-256 was computed".to_owned())),
    }
}

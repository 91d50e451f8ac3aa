//! How a checkpoint lies on a node.
//!
//! | layout | on disk |
//! |---|---|
//! | flat | plain files in a folder |
//! | local-dir | the same, and `.cache/huggingface/download/<path>.metadata` with commit, etag and time |
//! | cache | `models--ORG--NAME/{refs, snapshots/<commit>/… → ../../blobs/<etag>, blobs}` |
//! | gguf file | one `.gguf` file, or all parts of its split |
//!
//! [`Place::locate`] looks at the path once and fixes the layout and, in a cache,
//! the snapshot. A link is followed in one case only: in a snapshot, to a blob of
//! the same cache, and that by name, never by the kernel. What the cache and the
//! download metadata say about content are claims; they are kept in [`Layout`] as
//! facts and compared with the digests by the judge.

mod cache;
mod local_dir;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::beneath::Folder;
use super::manifest::covers;
use super::report::{FileReport, RootIdentity};
use super::structure::split_name;
use super::values::GitId;
use crate::codes::Code;
use crate::relpath::{RelPath, escape};

/// The layouts that are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LayoutKind {
    /// Plain files in a folder.
    #[default]
    Flat,
    /// A snapshot in a hub cache, its links leading to blobs.
    HfCache,
    /// Plain files, with the hub client's download metadata beside them.
    HfLocalDir,
    /// One GGUF file, or the parts of one split.
    GgufFile,
}

impl LayoutKind {
    /// In words.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Flat => "flat folder",
            Self::HfCache => "hub cache",
            Self::HfLocalDir => "hub local-dir",
            Self::GgufFile => "GGUF file",
        }
    }
}

/// The layout of a replica and what it claims.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Which one.
    pub kind: LayoutKind,
    /// The repository that the cache folder is named for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// The commit that the snapshot folder is named for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// How the snapshot was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<Chosen>,
    /// Commits that the cache's refs name, by ref.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refs: BTreeMap<String, String>,
    /// Downloads that were begun and not finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<String>,
    /// What the download metadata say of files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<Claim>,
}

/// How a snapshot of a cache was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Chosen {
    /// The path is the snapshot's own.
    ByPath,
    /// Its revision was asked for.
    ByRevision,
    /// `refs/main` names it, as a loader would find it.
    ByMain,
    /// It is the only one.
    Only,
    /// Of several, it is the one that the manifest names.
    ByManifest,
}

/// What a `.metadata` file says about the file beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The file.
    pub path: RelPath,
    /// The commit it was downloaded from; absent when the metadata are malformed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The etag: 64 hex digits are the content's SHA-256, 40 its git blob id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
}

/// Why no snapshot or folder could be settled on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocateError {
    /// A ref was asked for where there are none.
    #[error("only a hub cache has refs to look up {0:?} in (hint: give the full commit id)")]
    NoRefs(String),
    /// The system refused.
    #[error("the folder could not be opened: {0} (hint: check the path and that you may read it)")]
    Io(#[from] io::Error),
    /// It is something else than a folder or a GGUF file.
    #[error(
        "the path is that of {0} and not of a checkpoint (hint: give the folder that holds the checkpoint's files, or a .gguf file)"
    )]
    NotAFolder(&'static str),
    /// Several snapshots, and nothing says which.
    #[error(
        "the cache holds {} snapshots and refs/main names none of them: {} (hint: choose with --revision, or give the snapshot's path)",
        .0.len(), .0.join(", ")
    )]
    Ambiguous(Vec<String>),
    /// No snapshot at all.
    #[error("the cache holds no snapshot (hint: nothing was downloaded, or it was removed)")]
    Empty,
    /// The revision asked for is not there.
    #[error("revision {wanted:?} is not in the cache, which holds: {} (hint: refs/main or a full commit id)", .held.join(", "))]
    NoRevision {
        /// What was asked for.
        wanted: String,
        /// The snapshots there are.
        held: Vec<String>,
    },
    /// A folder of caches, not one.
    #[error("the folder holds the caches of several repositories: {} (hint: give the path of one of them)", .0.join(", "))]
    Hub(Vec<String>),
}

impl LocateError {
    /// What this is called where it is a finding.
    pub fn code(&self) -> Code {
        match self {
            Self::Io(_) | Self::NotAFolder(_) => Code::ReplicaUnreachable,
            _ => Code::SnapshotNotFound,
        }
    }

    /// The code is one that [`LocateError::code`] gives.
    pub(super) fn may_be(code: Code) -> bool {
        matches!(code, Code::ReplicaUnreachable | Code::SnapshotNotFound)
    }
}

/// Which snapshot is wanted, in a hub cache; other layouts have no choice.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// Asked for by the caller: must be there.
    pub asked: Option<&'a str>,
    /// Named by the manifest: settles a choice that nothing else does.
    pub pinned: Option<&'a str>,
}

/// A replica that was found: an open folder, its layout, and how its files are
/// opened.
pub struct Place {
    folder: Folder,
    blobs: Option<Folder>,
    layout: Layout,
    part: Part,
    /// Blob of each linked path.
    links: BTreeMap<RelPath, RelPath>,
}

/// Which entries of the folder belong to the replica.
enum Part {
    All,
    /// The parts of a split: prefix and count.
    Split(Vec<u8>, u64),
    One(Vec<u8>),
}

impl Place {
    /// Looks at a path and settles on a layout.
    pub fn locate(path: &Path, wanted: Wanted) -> Result<Self, LocateError> {
        // The path itself may be a link: it is what was declared.
        let path = std::fs::canonicalize(path)?;
        let name = path.file_name().map_or(&b""[..], OsStrExt::as_bytes);
        let no_refs = || match wanted.asked {
            Some(asked) if asked.parse::<GitId>().is_err() => {
                Err(LocateError::NoRefs(asked.to_owned()))
            }
            _ => Ok(()),
        };
        let meta = std::fs::metadata(&path)?;
        // As everywhere, the case of the ending does not matter.
        if name.to_ascii_lowercase().ends_with(b".gguf") && meta.is_file() {
            no_refs()?;
            return Self::gguf(&path, name);
        }
        if !meta.is_dir() {
            return Err(LocateError::NotAFolder(in_words(meta.file_type())));
        }
        if let Some((root, snapshot)) = cache::snapshot_of(&path) {
            return cache::open(root, wanted, Some(snapshot));
        }
        if cache::is_root(&path) {
            return cache::open(&path, wanted, None);
        }
        let folder = Folder::open(&path)?;
        let caches = cache::caches_in(&path)?;
        if !caches.is_empty() {
            return Err(LocateError::Hub(caches));
        }
        no_refs()?;
        let mut place = Self::new(folder, LayoutKind::Flat);
        if local_dir::is_one(&path) {
            place.layout.kind = LayoutKind::HfLocalDir;
            local_dir::read(&place.folder, &mut place.layout)?;
        }
        Ok(place)
    }

    /// A data set: one file of any name, or a folder in which no layout is looked
    /// for. Either way nothing outside it is opened.
    pub fn dataset(path: &Path) -> Result<Self, LocateError> {
        // The path itself may be a link: it is what was declared.
        let path = std::fs::canonicalize(path)?;
        if path.is_dir() {
            return Ok(Self::new(Folder::open(&path)?, LayoutKind::Flat));
        }
        let parent = path.parent().unwrap_or(Path::new("/"));
        let name = path.file_name().map_or(&b""[..], OsStrExt::as_bytes);
        let mut place = Self::new(Folder::open(parent)?, LayoutKind::Flat);
        place.part = Part::One(name.to_vec());
        Ok(place)
    }

    fn new(folder: Folder, kind: LayoutKind) -> Self {
        Self {
            folder,
            blobs: None,
            part: Part::All,
            links: BTreeMap::new(),
            layout: Layout {
                kind,
                ..Layout::default()
            },
        }
    }

    fn gguf(path: &Path, name: &[u8]) -> Result<Self, LocateError> {
        let parent = path.parent().unwrap_or(Path::new("/"));
        let mut place = Self::new(Folder::open(parent)?, LayoutKind::GgufFile);
        place.part = match split_name(name) {
            Some((prefix, _, count)) => Part::Split(prefix.to_vec(), count),
            None => Part::One(name.to_vec()),
        };
        Ok(place)
    }

    /// The layout and its claims.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The folder itself.
    pub(super) fn identity(&self) -> RootIdentity {
        self.folder.identity
    }

    /// Everything in the replica, in byte order of the paths, folders included.
    /// What `ignore` covers is listed and not looked into. Links of a snapshot
    /// are replaced by the blobs they lead to.
    pub(super) fn list(&mut self, ignore: &BTreeSet<RelPath>) -> io::Result<Vec<FileReport>> {
        let enter = |path: &RelPath| matches!(self.part, Part::All) && !covers(ignore, path);
        let mut files = self.folder.list_into(&enter)?;
        files.retain(|f| match &self.part {
            Part::All => true,
            Part::One(name) => f.path.as_bytes() == name,
            Part::Split(prefix, count) => {
                split_name(f.path.as_bytes()).is_some_and(|(p, _, c)| p == prefix && c == *count)
            }
        });
        if self.layout.kind == LayoutKind::HfCache {
            for file in &mut files {
                if !covers(ignore, &file.path) {
                    let blob = cache::follow(self.blobs.as_ref(), &self.layout, file);
                    self.links.extend(blob.map(|b| (file.path.clone(), b)));
                }
            }
        }
        Ok(files)
    }

    /// Opens what was listed as a regular file.
    pub(super) fn open_file(&self, path: &RelPath) -> io::Result<File> {
        match (self.links.get(path), &self.blobs) {
            (Some(blob), Some(blobs)) => blobs.open_file(blob),
            _ => self.folder.open_file(path),
        }
    }
}

/// What a path that is no folder leads to.
fn in_words(kind: std::fs::FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    if kind.is_file() {
        "a single file"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

/// A small text file of the hub client, whole.
fn small_text(folder: &Folder, path: &RelPath) -> io::Result<String> {
    const MOST: u64 = 4096;
    let file = folder.open_file(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes)?;
    Ok(escape_lines(&bytes))
}

/// Text as it may be shown, its lines kept.
fn escape_lines(bytes: &[u8]) -> String {
    let lines: Vec<_> = bytes.split(|b| *b == b'\n').map(escape).collect();
    lines.join("\n")
}

/// A commit id as the hub writes it.
fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

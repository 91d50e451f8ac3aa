//! Reading files in pieces, for formats that sign ranges of files.
//!
//! [`PieceDigests`] is what a manifest lists or a rehash found of one file;
//! [`scan_pieces`] reads a whole folder in pieces.
//!
//! Same listing, same opening, same readers and same rule that a file must hold
//! still, as in [`super::rehash`]: only the digests differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Mutex;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::claims;
use super::hashing::{Batch, Cut, GitBlob, Job, Pace, hash_batches, lock};
use super::layout::{LayoutKind, Place};
use super::rehash::{Progress, Unreachable};
use super::report::{FileReport, Kind, StatChange};
use super::restat;
use super::structure::{self, Structure};
use super::values::Algorithm;
use crate::digest::Sha256Digest;
use crate::finding::Finding;
use crate::relpath::RelPath;

/// The digest of a piece: 32 bytes by either function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PieceHash {
    /// SHA-256.
    Sha256,
    /// BLAKE3.
    Blake3,
}

impl PieceHash {
    /// Its name in manifests and statements.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Blake3 => "blake3",
        }
    }
}

/// The digests of a file's pieces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PieceDigests {
    /// By which function.
    pub hash: PieceHash,
    /// Bytes per piece; the last one may have fewer.
    pub length: u64,
    /// In order from the first byte, as lower-case hex digits.
    pub digests: Vec<String>,
}

impl PieceDigests {
    /// These digests.
    pub fn new(hash: PieceHash, length: u64, digests: &[[u8; 32]]) -> Self {
        Self {
            hash,
            length,
            digests: digests.iter().map(hex::encode).collect(),
        }
    }

    /// Where `found` first differs from this, in words, and the two values.
    pub(super) fn difference(&self, found: &Self) -> Option<(String, String, String)> {
        let n = self.digests.len();
        let none = || "none".to_owned();
        if (self.hash, self.length) != (found.hash, found.length) {
            let why = "it was cut into other pieces".to_owned();
            return Some((why, self.to_string(), found.to_string()));
        }
        (0..n.max(found.digests.len())).find_map(|i| {
            let (want, have) = (self.digests.get(i), found.digests.get(i));
            (want != have).then(|| {
                let why = format!("shard {} of {n} differs", i + 1);
                let text = |d: Option<&String>| d.cloned().unwrap_or_else(none);
                (why, text(want), text(have))
            })
        })
    }
}

impl fmt::Display for PieceDigests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, length, hash) = (self.digests.len(), self.length, self.hash.name());
        write!(f, "{n} shards of {length} bytes by {hash}")
    }
}

/// One entry of the folder, with the digests of its pieces.
#[derive(Debug, Clone)]
pub struct PieceFile {
    /// What it is; a problem when it could not be read. Its own digests are only set
    /// where the layout claims something about them.
    pub entry: FileReport,
    /// In order from the first byte. None when it was not read.
    pub digests: Option<Vec<[u8; 32]>>,
}

/// A replica that was read in pieces.
pub struct PieceScan {
    /// Everything in it, in byte order of the paths.
    pub files: Vec<PieceFile>,
    place: Place,
}

impl PieceScan {
    /// What moved below `path` since it was listed, but for files of which it is known
    /// already that they changed while they were read.
    pub(crate) fn moved(&self, path: &Path) -> Vec<StatChange> {
        let revision = self.place.layout().revision.as_deref();
        let before = self.files.iter().map(|f| &f.entry);
        let identity = self.place.identity();
        let moved = restat::moved(path, revision, identity, &BTreeSet::new(), before);
        let mut moved = moved.unwrap_or_else(|e| {
            vec![StatChange {
                path: ".".to_owned(),
                what: format!("it can no longer be listed: {e}"),
            }]
        });
        let troubled = self.files.iter().filter(|f| f.entry.problem.is_some());
        let known: BTreeSet<String> = troubled.map(|f| f.entry.path.to_string()).collect();
        moved.retain(|change| !known.contains(&change.path));
        moved
    }

    /// What the digests do not tell, as with a manifest: what the weight files say
    /// about themselves, and whether the layout and its claims hold. `part` are the
    /// files that belong to the checkpoint, and `links` where those lie that are
    /// links which may be followed. `pinned` is the commit that they should be of.
    pub(crate) fn beside(
        &self,
        part: &[FileReport],
        links: &BTreeMap<RelPath, RelPath>,
        pinned: Option<&str>,
    ) -> (Structure, Vec<(Option<RelPath>, Finding)>) {
        const HERE: &str = "folder";
        let all: Vec<_> = part.iter().collect();
        let open = |path: &RelPath| self.place.open_file(links.get(path).unwrap_or(path));
        let structure = structure::inspect(&all, &open);
        let layout = self.place.layout();
        let whole = claims::of_replica(HERE, layout, pinned).into_iter();
        let whole = whole.map(|mut finding| {
            let below = finding.subject.strip_prefix("folder/").map(str::to_owned);
            finding.subject = below.unwrap_or(finding.subject);
            (None, finding)
        });
        let claimed = part.iter().flat_map(|file| {
            let found = claims::of_file(&file.path.to_string(), file, layout).into_iter();
            found.map(|finding| (Some(file.path.clone()), finding))
        });
        let problems = structure.problems.iter().map(|problem| {
            let finding = problem.finding(problem.path.to_string());
            (Some(problem.path.clone()), finding)
        });
        let findings = whole.chain(claimed).chain(problems).collect();
        (structure, findings)
    }
}

/// Lists a replica that was found and hashes those of its regular files that `choose`
/// names when it sees the list, whole or in pieces of `length` bytes. An empty file
/// has one digest as a whole and none in pieces. In a hub cache the files of the
/// snapshot are the blobs that its links lead to.
pub fn scan_pieces(
    mut place: Place,
    hash: PieceHash,
    length: Option<u64>,
    choose: &dyn Fn(&[PieceFile]) -> BTreeSet<RelPath>,
    pace: Pace,
    progress: &dyn Progress,
) -> Result<PieceScan, Unreachable> {
    let mut files: Vec<PieceFile> = place
        .list(&BTreeSet::new())?
        .into_iter()
        .map(|entry| PieceFile {
            entry,
            digests: None,
        })
        .collect();
    let chosen = choose(&files);
    let is_chosen = |f: &PieceFile| {
        let there = f.entry.kind == Kind::File && f.entry.problem.is_none();
        there && chosen.contains(&f.entry.path)
    };
    let job = |f: &PieceFile| {
        Some(Job {
            path: f.entry.path.clone(),
            listed: f.entry.stat.filter(|_| is_chosen(f))?,
            git_blob: match claims::needs_git_blob(&f.entry, place.layout()) {
                true => GitBlob::Needed,
                false => GitBlob::NotNeeded,
            },
            cut: Some(Cut { hash, length }),
        })
    };
    let at: Vec<usize> = (0..files.len())
        .filter(|i| job(&files[*i]).is_some())
        .collect();
    // Names of blobs and etags are SHA-256 of the whole; one that is cut into itself
    // is hashed once.
    let layout = place.layout();
    let claimed = layout.kind == LayoutKind::HfCache || !layout.claims.is_empty();
    let whole = hash == PieceHash::Sha256 && length.is_none();
    let batch = Batch {
        open: &|path| place.open_file(path),
        algorithm: (claimed && !whole).then_some(Algorithm::Sha256),
        progress,
        files: files.iter().filter_map(job).collect(),
    };
    let outcomes = Mutex::new(Vec::new());
    hash_batches(vec![batch], pace, &|_, hashed| {
        *lock(&outcomes) = hashed.outcomes;
    });
    let outcomes = std::mem::take(&mut *lock(&outcomes));
    for (i, outcome) in at.into_iter().zip(outcomes) {
        match outcome {
            Ok(digests) => {
                let file = &mut files[i];
                let first = digests.pieces.as_ref().and_then(|p| p.first());
                let cut = first.filter(|_| claimed && whole).map(|d| Sha256Digest(*d));
                file.entry.sha256 = digests.sha256.or(cut);
                file.entry.git_blob = digests.git_blob;
                file.digests = digests.pieces;
            }
            Err(problem) => files[i].entry.problem = Some(problem),
        }
    }
    Ok(PieceScan { files, place })
}

enum Hasher {
    Sha256(Sha256),
    // Two kilobytes; the other one has a hundred bytes.
    Blake3(Box<blake3::Hasher>),
}

impl Hasher {
    fn new(hash: PieceHash) -> Self {
        match hash {
            PieceHash::Sha256 => Self::Sha256(Sha256::new()),
            PieceHash::Blake3 => Self::Blake3(Box::default()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(h) => h.update(bytes),
            Self::Blake3(h) => _ = h.update(bytes),
        }
    }

    fn take(&mut self) -> [u8; 32] {
        match self {
            Self::Sha256(h) => h.finalize_reset().into(),
            Self::Blake3(h) => {
                let digest = h.finalize().into();
                h.reset();
                digest
            }
        }
    }
}

/// Hashes a file that comes in reads of any size.
pub(super) struct Pieces {
    hasher: Hasher,
    length: Option<u64>,
    in_piece: u64,
    done: Vec<[u8; 32]>,
}

impl Pieces {
    pub(super) fn new(hash: PieceHash, length: Option<u64>) -> Self {
        Self {
            hasher: Hasher::new(hash),
            length,
            in_piece: 0,
            done: Vec::new(),
        }
    }

    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.length.map_or(u64::MAX, |l| l - self.in_piece);
            let take = room.min(bytes.len() as u64) as usize;
            let (now, later) = bytes.split_at(take);
            self.hasher.update(now);
            self.in_piece += take as u64;
            if Some(self.in_piece) == self.length {
                self.done.push(self.hasher.take());
                self.in_piece = 0;
            }
            bytes = later;
        }
    }

    pub(super) fn finish(mut self) -> Vec<[u8; 32]> {
        if self.length.is_none() || self.in_piece > 0 {
            self.done.push(self.hasher.take());
        }
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_do_not_depend_on_the_reads(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            length in 1u64..50,
            read in 1usize..70,
        ) {
            for hash in [PieceHash::Sha256, PieceHash::Blake3] {
                let one = |bytes: &[u8]| match hash {
                    PieceHash::Sha256 => Sha256::digest(bytes).into(),
                    PieceHash::Blake3 => *blake3::hash(bytes).as_bytes(),
                };
                let of = |length| {
                    let mut pieces = Pieces::new(hash, length);
                    bytes.chunks(read).for_each(|c| pieces.update(c));
                    pieces.finish()
                };
                let expected: Vec<[u8; 32]> = bytes.chunks(length as usize).map(one).collect();
                prop_assert_eq!(of(Some(length)), expected);
                prop_assert_eq!(of(None), vec![one(&bytes)]);
            }
        }
    }
}

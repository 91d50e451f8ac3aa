//! Reading a folder's files in pieces, for formats that sign ranges of files.
//!
//! Same listing, same opening, same rule that a file must hold still, as in
//! [`super::rehash`]: only the digests differ. Each file is read once, from the
//! beginning, by one thread; the largest start first.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::beneath::Folder;
use super::rehash::{BUFFER, Progress, SteadyFile, Unreachable};
use super::report::{FileReport, FileStat, Kind, Problem};
use crate::relpath::RelPath;

/// The digest of a piece: 32 bytes by either function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// One entry of the folder, with the digests of its pieces.
#[derive(Debug, Clone)]
pub struct PieceFile {
    /// What it is; a problem when it could not be read. Its own digests are unset.
    pub entry: FileReport,
    /// In order from the first byte. None when it was not read.
    pub digests: Option<Vec<[u8; 32]>>,
}

/// Lists a folder and hashes those of its regular files that `choose` names when it
/// sees the list, whole or in pieces of `length` bytes. An empty file has one digest
/// as a whole and none in pieces.
pub fn scan_pieces(
    root: &Path,
    hash: PieceHash,
    length: Option<u64>,
    choose: &dyn Fn(&[PieceFile]) -> BTreeSet<RelPath>,
    progress: &dyn Progress,
) -> Result<Vec<PieceFile>, Unreachable> {
    let folder = Folder::open(root)?;
    let mut files: Vec<PieceFile> = folder
        .list()?
        .into_iter()
        .map(|entry| PieceFile {
            entry,
            digests: None,
        })
        .collect();
    let chosen = choose(&files);
    let mut jobs: Vec<(&mut PieceFile, FileStat)> = files
        .iter_mut()
        .filter(|f| f.entry.kind == Kind::File && f.entry.problem.is_none())
        .filter(|f| chosen.contains(&f.entry.path))
        .filter_map(|f| f.entry.stat.map(|stat| (f, stat)))
        .collect();
    jobs.sort_by_key(|(_, stat)| std::cmp::Reverse(stat.size));
    progress.planned(jobs.len(), jobs.iter().map(|(_, stat)| stat.size).sum());
    jobs.into_iter().par_bridge().for_each(|(file, stat)| {
        match hash_file(&folder, &file.entry.path, stat, hash, length, progress) {
            Ok(digests) => file.digests = Some(digests),
            Err(problem) => file.entry.problem = Some(problem),
        }
    });
    Ok(files)
}

thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

fn hash_file(
    folder: &Folder,
    path: &RelPath,
    listed: FileStat,
    hash: PieceHash,
    length: Option<u64>,
    progress: &dyn Progress,
) -> Result<Vec<[u8; 32]>, Problem> {
    let mut reader = SteadyFile::open(folder, path, listed)?;
    let mut pieces = Pieces::new(hash, length);
    READ_BUFFER.with_borrow_mut(|buffer| {
        loop {
            let chunk = reader.next_chunk(buffer)?;
            if chunk.is_empty() {
                break Ok(());
            }
            pieces.update(chunk);
            progress.read(path, chunk.len() as u64);
        }
    })?;
    reader.finish()?;
    Ok(pieces.finish())
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

struct Pieces {
    hasher: Hasher,
    length: Option<u64>,
    in_piece: u64,
    done: Vec<[u8; 32]>,
}

impl Pieces {
    fn new(hash: PieceHash, length: Option<u64>) -> Self {
        Self {
            hasher: Hasher::new(hash),
            length,
            in_piece: 0,
            done: Vec::new(),
        }
    }

    fn update(&mut self, mut bytes: &[u8]) {
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

    fn finish(mut self) -> Vec<[u8; 32]> {
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

//! Reading and hashing one folder.
//!
//! The folder is listed first. Then its regular files are hashed on all cores,
//! largest first, each in 256 KiB reads into a buffer that the thread keeps.
//! Files are read and never mapped: a mapped file that is truncated meanwhile
//! kills the process.
//!
//! A digest counts only if the file held still: size, times and identity are
//! compared when it is listed, when it is opened and after the last read. At most
//! the size at the first look is read, so a growing file ends. Files that cannot
//! match anyway (unlisted, or of another size) are hashed too, because it matters
//! which replicas share them, but only within a budget: a sparse file can claim
//! to be larger than anyone can read.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::beneath::{could_not_read, file_stat, kind};
use super::claims;
use super::git::{BlobHasher, pointer_blob_id};
use super::layout::{Layout, LocateError, Place, Wanted};
use super::manifest::{Listing, covers};
use super::pieces::{PieceDigests, Pieces};
use super::report::{FileReport, FileStat, Kind, Problem, ProblemKind, RootIdentity};
use super::structure::{self, Structure};
use super::values::{Algorithm, Blake3Digest, GitId};
use crate::digest::Sha256Digest;
use crate::relpath::RelPath;

pub(super) const BUFFER: usize = 256 * 1024;
/// Bytes of files that cannot match which are read beyond the manifest's own size.
const SPARE: u64 = 1 << 30;

/// Hears how far a rehash is. Called from several threads.
pub trait Progress: Sync {
    /// This many bytes in this many files are going to be read.
    fn planned(&self, files: usize, bytes: u64);
    /// So many more bytes of a file were read and hashed.
    fn read(&self, path: &RelPath, bytes: u64);
}

/// Nobody listens.
pub struct NoProgress;

impl Progress for NoProgress {
    fn planned(&self, _: usize, _: u64) {}
    fn read(&self, _: &RelPath, _: u64) {}
}

/// What was found in a folder: facts without a judgement (every state in `files`
/// is still "not checked").
#[derive(Debug, Clone)]
pub struct ReplicaScan {
    /// Which digests were computed.
    pub algorithm: Algorithm,
    /// The folder itself.
    pub root_identity: RootIdentity,
    /// How the checkpoint lies in it.
    pub layout: Layout,
    /// What the weight files say about themselves.
    pub structure: Structure,
    /// Paths that were not looked into, because they are not part of the checkpoint.
    pub ignore: BTreeSet<RelPath>,
    /// Everything in it, in byte order of the paths.
    pub files: Vec<FileReport>,
}

/// The folder could not be opened or listed at all, or no snapshot in it could be
/// settled on.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Unreachable(#[from] pub LocateError);

impl From<io::Error> for Unreachable {
    fn from(e: io::Error) -> Self {
        Self(e.into())
    }
}

/// Rehashes one replica of the checkpoint that `manifest` describes.
pub fn rehash(
    root: &Path,
    manifest: &impl AsRef<Listing>,
    algorithm: Algorithm,
    progress: &dyn Progress,
) -> Result<ReplicaScan, Unreachable> {
    let manifest = manifest.as_ref();
    let wanted = Wanted {
        asked: None,
        pinned: manifest.revision(),
    };
    let place = Place::locate(root, wanted)?;
    rehash_place(place, manifest, algorithm, progress)
}

/// Rehashes a replica that was found already.
pub fn rehash_place(
    place: Place,
    manifest: &impl AsRef<Listing>,
    algorithm: Algorithm,
    progress: &dyn Progress,
) -> Result<ReplicaScan, Unreachable> {
    let manifest = manifest.as_ref();
    let algorithm = manifest.needs(algorithm);
    let ids = manifest
        .entries()
        .filter_map(|e| Some((e.path.clone(), e.git_blob?)));
    let what = What {
        ignore: manifest.ignore().clone(),
        git_blobs: ids.collect(),
    };
    scan(place, Some(manifest), what, algorithm, progress)
}

/// What is done beside hashing everything.
#[derive(Debug, Clone, Default)]
pub struct What {
    /// Paths that are not looked into, each for itself and all below it.
    pub ignore: BTreeSet<RelPath>,
    /// Git blob ids that files have to be compared with; where a git-lfs pointer
    /// does not explain the id, the content's is worked out.
    pub git_blobs: BTreeMap<RelPath, GitId>,
}

/// Hashes whatever a folder holds, for pinning.
pub fn scan_folder(
    root: &Path,
    algorithm: Algorithm,
    progress: &dyn Progress,
) -> Result<ReplicaScan, Unreachable> {
    let place = Place::locate(root, Wanted::default())?;
    scan_place(place, What::default(), algorithm, progress)
}

/// Hashes what a replica that was found holds, for pinning.
pub fn scan_place(
    place: Place,
    what: What,
    algorithm: Algorithm,
    progress: &dyn Progress,
) -> Result<ReplicaScan, Unreachable> {
    scan(place, None, what, algorithm, progress)
}

fn scan(
    mut place: Place,
    manifest: Option<&Listing>,
    what: What,
    algorithm: Algorithm,
    progress: &dyn Progress,
) -> Result<ReplicaScan, Unreachable> {
    let ignore = what.ignore;
    let mut files = place.list(&ignore)?;
    files.retain(|f| {
        let wanted_here = manifest.is_some_and(|m| m.get(&f.path).is_some());
        let declared = ignore.contains(&f.path);
        f.kind != Kind::Folder || f.problem.is_some() || wanted_here || declared
    });
    if let Some(manifest) = manifest.filter(|m| !m.is_absent()) {
        spend_budget(&mut files, manifest);
    }

    let mut jobs: Vec<(&mut FileReport, FileStat)> = files
        .iter_mut()
        .filter(|f| f.kind == Kind::File && f.problem.is_none())
        .filter(|f| !covers(&ignore, &f.path))
        .filter_map(|f| f.stat.map(|stat| (f, stat)))
        .collect();
    jobs.sort_by_key(|(_, stat)| std::cmp::Reverse(stat.size));
    progress.planned(jobs.len(), jobs.iter().map(|(_, stat)| stat.size).sum());

    // Bridged and not split in halves: the largest files start first, and no
    // core is left with a run of large ones at the end.
    jobs.into_iter().par_bridge().for_each(|(file, listed)| {
        // Only where the length is right is it known how many pieces there are.
        let entry = manifest.and_then(|m| m.get(&file.path));
        let entry = entry.filter(|e| e.size == Some(listed.size));
        let cut = entry.and_then(|e| e.pieces.as_ref());
        match hash_file(&place, &file.path, listed, algorithm, cut, progress) {
            Ok(digests) => (file.sha256, file.blake3, file.pieces) = digests,
            Err(problem) => file.problem = Some(problem),
        }
    });
    work_out_git_blobs(&mut files, &place, &what.git_blobs);
    let hashed: Vec<_> = files
        .iter()
        .filter(|f| !covers(&ignore, &f.path))
        .cloned()
        .collect();
    let structure = structure::inspect(&hashed, &|path| place.open_file(path));
    Ok(ReplicaScan {
        algorithm,
        root_identity: place.identity(),
        layout: place.layout().clone(),
        structure,
        ignore,
        files,
    })
}

/// Works out git blob ids where only they can be compared. Those files are small:
/// large ones are known to git by their git-lfs pointer, which follows from what
/// was hashed already.
fn work_out_git_blobs(files: &mut [FileReport], place: &Place, ids: &BTreeMap<RelPath, GitId>) {
    let wanted = |file: &FileReport| {
        let by_content = ids.get(&file.path).is_some_and(|id| {
            let pointer = file.sha256.zip(file.stat);
            pointer.is_none_or(|(sha256, stat)| pointer_blob_id(sha256, stat.size) != *id)
        });
        by_content || claims::needs_git_blob(file, place.layout())
    };
    let hashed = |f: &&mut FileReport| f.sha256.is_some() || f.blake3.is_some();
    let jobs: Vec<_> = files
        .iter_mut()
        .filter(hashed)
        .filter(|f| wanted(f))
        .collect();
    jobs.into_par_iter().for_each(|file| {
        let Some(listed) = file.stat else { return };
        match git_blob(place, &file.path, listed) {
            Ok(id) => file.git_blob = Some(id),
            Err(problem) => {
                (file.sha256, file.blake3, file.pieces) = (None, None, None);
                file.problem = Some(problem);
            }
        }
    });
}

fn git_blob(place: &Place, path: &RelPath, listed: FileStat) -> Result<GitId, Problem> {
    let mut reader = SteadyFile::open(place, path, listed)?;
    let mut hasher = BlobHasher::new(listed.size);
    READ_BUFFER.with_borrow_mut(|buffer| {
        loop {
            let chunk = reader.next_chunk(buffer)?;
            if chunk.is_empty() {
                break Ok(());
            }
            hasher.update(chunk);
        }
    })?;
    reader.finish()?;
    Ok(hasher.finish())
}

fn spend_budget(files: &mut [FileReport], manifest: &Listing) {
    let mut left = manifest.total_size().saturating_add(SPARE);
    for file in files.iter_mut().filter(|f| f.kind == Kind::File) {
        let Some(size) = file.stat.map(|s| s.size) else {
            continue;
        };
        let may_match = |size_listed: Option<u64>| size_listed.is_none_or(|s| s == size);
        if manifest.get(&file.path).is_some_and(|m| may_match(m.size)) {
            continue;
        }
        match left.checked_sub(size) {
            Some(rest) => left = rest,
            None => {
                file.problem = Some(Problem {
                    kind: ProblemKind::TooLarge,
                    detail: format!("{size} bytes that the manifest does not expect were not read"),
                });
            }
        }
    }
}

thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

type Digests = (
    Option<Sha256Digest>,
    Option<Blake3Digest>,
    Option<PieceDigests>,
);

fn hash_file(
    place: &Place,
    path: &RelPath,
    listed: FileStat,
    algorithm: Algorithm,
    cut: Option<&PieceDigests>,
    progress: &dyn Progress,
) -> Result<Digests, Problem> {
    let mut reader = SteadyFile::open(place, path, listed)?;
    let mut sha256 = algorithm.sha256().then(Sha256::new);
    let mut blake3 = algorithm.blake3().then(blake3::Hasher::new);
    let mut pieces = cut.map(|c| Pieces::new(c.hash, Some(c.length)));
    READ_BUFFER.with_borrow_mut(|buffer| {
        loop {
            let chunk = reader.next_chunk(buffer)?;
            if chunk.is_empty() {
                break Ok(());
            }
            if let Some(h) = &mut sha256 {
                h.update(chunk);
            }
            if let Some(h) = &mut blake3 {
                h.update(chunk);
            }
            if let Some(p) = &mut pieces {
                p.update(chunk);
            }
            progress.read(path, chunk.len() as u64);
        }
    })?;
    reader.finish()?;
    let pieces = cut.zip(pieces);
    Ok((
        sha256.map(|h| Sha256Digest(h.finalize().into())),
        blake3.map(|h| Blake3Digest(h.finalize().into())),
        pieces.map(|(c, p)| PieceDigests::new(c.hash, c.length, &p.finish())),
    ))
}

/// A file being read, and the state that it must still be in at the end. Pull
/// style, so that a hasher can take turns between several of them.
pub(super) struct SteadyFile {
    file: std::fs::File,
    listed: FileStat,
    left: u64,
}

impl SteadyFile {
    pub(super) fn open(place: &Place, path: &RelPath, listed: FileStat) -> Result<Self, Problem> {
        let file = place.open_file(path).map_err(|e| not_opened(&e))?;
        let this = Self {
            file,
            listed,
            left: listed.size,
        };
        this.compare()?;
        Ok(this)
    }

    pub(super) fn next_chunk<'b>(&mut self, buffer: &'b mut [u8]) -> Result<&'b [u8], Problem> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let most = self.left.min(buffer.len() as u64) as usize;
        let n = loop {
            match self.file.read(&mut buffer[..most]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other.map_err(|e| could_not_read(&e))?,
            }
        };
        if n == 0 {
            return Err(changed("it became shorter"));
        }
        self.left -= n as u64;
        Ok(&buffer[..n])
    }

    pub(super) fn finish(self) -> Result<(), Problem> {
        self.compare()
    }

    fn compare(&self) -> Result<(), Problem> {
        let now = rustix::fs::fstat(&self.file).map_err(|e| could_not_read(&e.into()))?;
        if kind(&now) != Kind::File {
            return Err(changed("it is no longer a file"));
        }
        let what = differences(&self.listed, &file_stat(&now));
        if what.is_empty() {
            Ok(())
        } else {
            Err(changed(&format!("{} changed", what.join(", "))))
        }
    }
}

/// It was a file when it was listed. Gone, or a link, or a socket by now: that is
/// a change and not a matter of permissions.
fn not_opened(e: &io::Error) -> Problem {
    use rustix::io::Errno;
    let gone = [Errno::NOENT, Errno::LOOP, Errno::NXIO, Errno::NOTDIR];
    match e.raw_os_error().map(Errno::from_raw_os_error) {
        Some(errno) if gone.contains(&errno) => changed(&format!("it was replaced: {e}")),
        _ => could_not_read(e),
    }
}

fn changed(what: &str) -> Problem {
    Problem {
        kind: ProblemKind::ChangedDuringRead,
        detail: what.to_owned(),
    }
}

/// What differs between two looks at one file. The change time covers whatever
/// the others miss, and cannot be set back by a program.
pub(super) fn differences(before: &FileStat, after: &FileStat) -> Vec<&'static str> {
    [
        ("size", before.size != after.size),
        (
            "identity",
            (before.dev, before.ino) != (after.dev, after.ino),
        ),
        ("mtime", before.mtime_ns != after.mtime_ns),
        ("ctime", before.ctime_ns != after.ctime_ns),
    ]
    .into_iter()
    .filter_map(|(name, differs)| differs.then_some(name))
    .collect()
}

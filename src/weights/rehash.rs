//! Rehashing folders.
//!
//! All folders are listed first, then the regular files of all of them are hashed
//! together ([`super::hashing`]).
//!
//! Files that cannot match anyway (unlisted, or of another size) are hashed too,
//! because it matters which replicas share them, but only within a budget: a sparse
//! file can claim to be larger than anyone can read.

use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::beneath::Folder;
use super::hashing::{Batch, Hashed, Pace, PageCache, hash_batches, lock};
use super::manifest::Manifest;
use super::report::{FileReport, FileStat, Kind, Problem, ProblemKind, RootIdentity};
use super::values::Algorithm;
use crate::relpath::RelPath;

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
    /// What reading did to the page cache: the worst of all files.
    pub page_cache: PageCache,
    /// Everything in it, in byte order of the paths.
    pub files: Vec<FileReport>,
}

/// The folder could not be opened or listed at all.
#[derive(Debug, thiserror::Error)]
#[error("the folder could not be opened: {0} (hint: check the path and that you may read it)")]
pub struct Unreachable(#[from] io::Error);

/// One folder to look at.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The folder.
    pub root: &'a Path,
    /// What it should hold; without one, whatever is there is hashed.
    pub manifest: Option<&'a Manifest>,
    /// Which digests to compute.
    pub algorithm: Algorithm,
    /// Hears how far it is.
    pub progress: &'a dyn Progress,
}

/// Rehashes one replica of the checkpoint that `manifest` describes.
pub fn rehash(
    root: &Path,
    manifest: &Manifest,
    algorithm: Algorithm,
    progress: &dyn Progress,
) -> Result<ReplicaScan, Unreachable> {
    scan(root, Some(manifest), algorithm, progress)
}

/// Hashes whatever a folder holds, for pinning.
pub fn scan_folder(
    root: &Path,
    algorithm: Algorithm,
    progress: &dyn Progress,
) -> Result<ReplicaScan, Unreachable> {
    scan(root, None, algorithm, progress)
}

fn scan(
    root: &Path,
    manifest: Option<&Manifest>,
    algorithm: Algorithm,
    progress: &dyn Progress,
) -> Result<ReplicaScan, Unreachable> {
    let request = Request {
        root,
        manifest,
        algorithm,
        progress,
    };
    let mut scans = rehash_each(&[request], Pace::default(), |_, scan| scan);
    // One request, one answer.
    scans.remove(0)
}

/// Rehashes several folders at once. All their files share one queue, so every
/// core is busy until the last of them is done, however few files a folder has.
///
/// `finish` turns each folder's scan into the result, with the request's index. It
/// is called as soon as the folder's last file was hashed, on whichever thread did.
/// The results come in the order of the requests.
pub fn rehash_each<R: Send>(
    requests: &[Request<'_>],
    pace: Pace,
    finish: impl Fn(usize, Result<ReplicaScan, Unreachable>) -> R + Sync,
) -> Vec<R> {
    let results: Vec<Mutex<Option<R>>> = requests.iter().map(|_| Mutex::new(None)).collect();
    let answer = |index: usize, scan| *lock(&results[index]) = Some(finish(index, scan));

    let mut listed = Vec::new();
    for (index, listing) in list_all(requests).into_iter().enumerate() {
        match listing {
            Ok((folder, files)) => listed.push((index, folder, Mutex::new(files))),
            Err(e) => answer(index, Err(Unreachable(e))),
        }
    }
    let openers: Vec<_> = listed
        .iter()
        .map(|(_, folder, _)| |path: &RelPath| folder.open_file(path))
        .collect();
    let batches = listed
        .iter()
        .zip(&openers)
        .map(|((index, _, files), open)| Batch {
            open,
            algorithm: requests[*index].algorithm,
            progress: requests[*index].progress,
            files: to_hash(&mut lock(files))
                .map(|(f, stat)| (f.path.clone(), stat))
                .collect(),
        });
    hash_batches(batches.collect(), pace, &|batch, hashed| {
        let (index, folder, files) = &listed[batch];
        let mut files = std::mem::take(&mut *lock(files));
        let page_cache = keep(&mut files, hashed);
        let scan = ReplicaScan {
            algorithm: requests[*index].algorithm,
            root_identity: folder.identity,
            page_cache,
            files,
        };
        answer(*index, Ok(scan));
    });
    // Every request was answered: it could not be listed, or its files were hashed.
    let answered =
        |slot: Mutex<Option<R>>| slot.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().filter_map(answered).collect()
}

/// The files to hash, in order.
fn to_hash(files: &mut [FileReport]) -> impl Iterator<Item = (&mut FileReport, FileStat)> {
    files
        .iter_mut()
        .filter(|f| f.kind == Kind::File && f.problem.is_none())
        .filter_map(|f| f.stat.map(|stat| (f, stat)))
}

/// Puts what hashing found where it belongs.
fn keep(files: &mut [FileReport], hashed: Hashed) -> PageCache {
    for ((file, _), outcome) in to_hash(files).zip(hashed.outcomes) {
        match outcome {
            Ok((sha256, blake3)) => (file.sha256, file.blake3) = (sha256, blake3),
            Err(problem) => file.problem = Some(problem),
        }
    }
    hashed.page_cache
}

type Listing = io::Result<(Folder, Vec<FileReport>)>;

/// Lists the folders side by side: one may be on a slow disk.
fn list_all(requests: &[Request<'_>]) -> Vec<Listing> {
    let one = |request: &Request<'_>| {
        let folder = Folder::open(request.root)?;
        let mut files = folder.list()?;
        files.retain(|f| {
            let wanted_here = request.manifest.is_some_and(|m| m.get(&f.path).is_some());
            f.kind != Kind::Folder || f.problem.is_some() || wanted_here
        });
        if let Some(manifest) = request.manifest {
            spend_budget(&mut files, manifest);
        }
        Ok((folder, files))
    };
    let Some((first, others)) = requests.split_first() else {
        return Vec::new();
    };
    thread::scope(|scope| {
        let threads: Vec<_> = others.iter().map(|r| scope.spawn(|| one(r))).collect();
        let first = one(first);
        let others = threads.into_iter().map(|t| match t.join() {
            Ok(listing) => listing,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        std::iter::once(first).chain(others).collect()
    })
}

fn spend_budget(files: &mut [FileReport], manifest: &Manifest) {
    let mut left = manifest.total_size().saturating_add(SPARE);
    for file in files.iter_mut().filter(|f| f.kind == Kind::File) {
        let Some(size) = file.stat.map(|s| s.size) else {
            continue;
        };
        if manifest.get(&file.path).is_some_and(|m| m.size == size) {
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

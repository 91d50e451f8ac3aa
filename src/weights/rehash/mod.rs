//! Reading and hashing folders.
//!
//! All folders are listed first. Then the regular files of all of them go into one
//! queue, largest first, and one worker per core takes from it ([`queue`]). A worker
//! hashes two files at a time where the processor gains from that ([`worker`]): a
//! round of SHA-256 waits for the one before it, and a second file fills the gaps.
//! Files are read into buffers that a worker keeps, and never mapped: a mapped file
//! that is truncated meanwhile kills the process. What others keep in the page
//! cache stays there, and nothing is added to it ([`cache`]).
//!
//! A digest counts only if the file held still: size, times and identity are
//! compared when it is listed, when it is opened and after the last read
//! ([`steady`]). At most the size at the first look is read, so a growing file ends.
//! Files that cannot match anyway (unlisted, or of another size) are hashed too,
//! because it matters which replicas share them, but only within a budget: a sparse
//! file can claim to be larger than anyone can read.

mod cache;
mod pace;
mod queue;
mod steady;
mod worker;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

pub use cache::PageCache;
pub use pace::Pace;

use super::beneath::Folder;
use super::manifest::Manifest;
use super::report::{FileReport, FileStat, Kind, Problem, ProblemKind, RootIdentity};
use super::values::{Algorithm, Blake3Digest};
use crate::digest::Sha256Digest;
use crate::relpath::RelPath;
use pace::Throttle;
use queue::Queue;

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
    let done = |index: usize, scan| {
        let result = finish(index, scan);
        *lock(&results[index]) = Some(result);
    };

    let mut replicas = Vec::new();
    let mut jobs = Vec::new();
    for (index, listing) in list_all(requests).into_iter().enumerate() {
        let (folder, files) = match listing {
            Ok(listing) => listing,
            Err(e) => {
                done(index, Err(Unreachable(e)));
                continue;
            }
        };
        let replica = Replica::new(index, requests[index], folder, files);
        let own = replica.jobs(replicas.len());
        replica.left.store(own.len(), Ordering::Relaxed);
        let bytes = own.iter().map(|job| job.listed.size).sum();
        requests[index].progress.planned(own.len(), bytes);
        if own.is_empty() {
            done(index, Ok(replica.take_scan()));
        }
        jobs.extend(own);
        replicas.push(replica);
    }

    let workers = pace.workers().min(jobs.len());
    let queue = Queue::new(jobs, workers);
    let pool = worker::Pool {
        replicas: &replicas,
        queue: &queue,
        throttle: Throttle::new(pace.bytes_per_second),
        done: &|replica: &Replica<'_>| done(replica.index, Ok(replica.take_scan())),
    };
    thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(|| pool.work());
        }
        if workers > 0 {
            pool.work();
        }
    });
    // Every request was answered above: it could not be listed, it had no files,
    // or its last file was hashed.
    let answered =
        |slot: Mutex<Option<R>>| slot.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().filter_map(answered).collect()
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

/// A folder whose files are being hashed.
struct Replica<'a> {
    /// Which request it answers.
    index: usize,
    request: Request<'a>,
    folder: Folder,
    files: Mutex<Vec<FileReport>>,
    /// Files not done yet.
    left: AtomicUsize,
    cache: Mutex<PageCache>,
}

/// A file to hash.
struct Job {
    /// Index among the replicas.
    replica: usize,
    /// Index among the replica's files.
    file: usize,
    path: RelPath,
    listed: FileStat,
}

type Digests = (Option<Sha256Digest>, Option<Blake3Digest>);

impl<'a> Replica<'a> {
    fn new(index: usize, request: Request<'a>, folder: Folder, files: Vec<FileReport>) -> Self {
        Self {
            index,
            request,
            folder,
            files: Mutex::new(files),
            left: AtomicUsize::new(0),
            cache: Mutex::new(PageCache::default()),
        }
    }

    fn jobs(&self, replica: usize) -> Vec<Job> {
        let files = lock(&self.files);
        let readable = |f: &FileReport| f.kind == Kind::File && f.problem.is_none();
        let job = |(file, f): (usize, &FileReport)| {
            let listed = f.stat.filter(|_| readable(f))?;
            Some(Job {
                replica,
                file,
                path: f.path.clone(),
                listed,
            })
        };
        files.iter().enumerate().filter_map(job).collect()
    }

    /// Keeps the outcome of one file. True for the last one.
    fn keep(&self, job: &Job, outcome: Result<Digests, Problem>, cache: Option<PageCache>) -> bool {
        let mut files = lock(&self.files);
        let file = &mut files[job.file];
        match outcome {
            Ok((sha256, blake3)) => (file.sha256, file.blake3) = (sha256, blake3),
            Err(problem) => file.problem = Some(problem),
        }
        drop(files);
        if let Some(cache) = cache {
            let mut worst = lock(&self.cache);
            *worst = cache.max(*worst);
        }
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    fn take_scan(&self) -> ReplicaScan {
        ReplicaScan {
            algorithm: self.request.algorithm,
            root_identity: self.folder.identity,
            page_cache: *lock(&self.cache),
            files: std::mem::take(&mut *lock(&self.files)),
        }
    }
}

/// What a lock guards here is whole at all times, also after a panic elsewhere,
/// which ends the rehash anyway.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

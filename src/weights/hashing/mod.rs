//! Reading and hashing files at the speed of the machine.
//!
//! The files of all folders go into one queue, largest first, and one worker per
//! core takes from it ([`queue`]). A worker hashes two files at a time where the
//! processor gains from that ([`worker`]): a round of SHA-256 waits for the one
//! before it, and a second file fills the gaps. Files are read into buffers that a
//! worker keeps, and never mapped: a mapped file that is truncated meanwhile kills
//! the process. What others keep in the page cache stays there, and nothing is
//! added to it ([`cache`]).
//!
//! A digest counts only if the file held still: size, times and identity are
//! compared when it is listed, when it is opened and after the last read
//! ([`steady`]). At most the size at the first look is read, so a growing file ends.

mod cache;
mod pace;
mod queue;
mod steady;
mod worker;

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

pub use cache::PageCache;
pub use pace::Pace;
pub(super) use steady::differences;

use super::rehash::Progress;
use super::report::{FileStat, Problem};
use super::values::{Algorithm, Blake3Digest};
use crate::digest::Sha256Digest;
use crate::relpath::RelPath;
use pace::Throttle;
use queue::Queue;
use worker::Pool;

/// The digests of a file, those that were asked for.
pub(super) type Digests = (Option<Sha256Digest>, Option<Blake3Digest>);

/// Files to hash that belong together: a folder's.
pub(super) struct Batch<'a> {
    /// Opens one of them.
    pub(super) open: &'a (dyn Fn(&RelPath) -> io::Result<File> + Sync),
    pub(super) algorithm: Algorithm,
    pub(super) progress: &'a dyn Progress,
    /// The files, as they were when they were listed.
    pub(super) files: Vec<(RelPath, FileStat)>,
}

/// What became of a batch.
pub(super) struct Hashed {
    /// In the order of the files.
    pub(super) outcomes: Vec<Result<Digests, Problem>>,
    /// What reading did to the page cache: the worst of all files.
    pub(super) page_cache: PageCache,
}

/// Hashes all files of all batches. `done` is called for each batch, with its index,
/// once its last file is hashed, on whichever thread did that.
pub(super) fn hash_batches(
    batches: Vec<Batch<'_>>,
    pace: Pace,
    done: &(dyn Fn(usize, Hashed) + Sync),
) {
    let mut jobs = Vec::new();
    let mut running = Vec::new();
    for (index, batch) in batches.into_iter().enumerate() {
        let bytes = batch.files.iter().map(|(_, stat)| stat.size).sum();
        batch.progress.planned(batch.files.len(), bytes);
        if batch.files.is_empty() {
            let hashed = Hashed {
                outcomes: Vec::new(),
                page_cache: PageCache::default(),
            };
            done(index, hashed);
        }
        running.push(Running {
            open: batch.open,
            algorithm: batch.algorithm,
            progress: batch.progress,
            left: AtomicUsize::new(batch.files.len()),
            page_cache: Mutex::new(PageCache::default()),
            outcomes: Mutex::new(batch.files.iter().map(|_| None).collect()),
        });
        let job = |(file, (path, listed))| Job {
            batch: index,
            file,
            path,
            listed,
        };
        jobs.extend(batch.files.into_iter().enumerate().map(job));
    }

    let workers = pace.workers().min(jobs.len());
    let queue = Queue::new(jobs, workers);
    let pool = Pool {
        batches: &running,
        queue: &queue,
        throttle: Throttle::new(pace.bytes_per_second),
        done,
    };
    thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(|| pool.work());
        }
        if workers > 0 {
            pool.work();
        }
    });
}

/// A file to hash.
struct Job {
    /// Index of its batch.
    batch: usize,
    /// Index among the batch's files.
    file: usize,
    path: RelPath,
    listed: FileStat,
}

/// A batch whose files are being hashed.
struct Running<'a> {
    open: &'a (dyn Fn(&RelPath) -> io::Result<File> + Sync),
    algorithm: Algorithm,
    progress: &'a dyn Progress,
    /// Files not done yet.
    left: AtomicUsize,
    page_cache: Mutex<PageCache>,
    outcomes: Mutex<Vec<Option<Result<Digests, Problem>>>>,
}

impl Running<'_> {
    /// Keeps the outcome of one file. With the last one, returns all of them.
    fn keep(
        &self,
        job: &Job,
        outcome: Result<Digests, Problem>,
        page_cache: PageCache,
    ) -> Option<Hashed> {
        lock(&self.outcomes)[job.file] = Some(outcome);
        {
            let mut worst = lock(&self.page_cache);
            *worst = page_cache.max(*worst);
        }
        (self.left.fetch_sub(1, Ordering::AcqRel) == 1).then(|| Hashed {
            outcomes: lock(&self.outcomes).drain(..).flatten().collect(),
            page_cache: *lock(&self.page_cache),
        })
    }
}

/// What a lock guards here is whole at all times, also after a panic elsewhere,
/// which ends the rehash anyway.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

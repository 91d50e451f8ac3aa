//! Reading and hashing files at the speed of the machine.
//!
//! The files of all folders go into one queue, largest first, and one worker per
//! core takes from it ([`queue`]). A worker hashes two files at a time where the
//! processor gains from that ([`worker`]): a round of SHA-256 waits for the one
//! before it, and a second file fills the gaps. Files are read into buffers that a
//! worker keeps, and never mapped: a mapped file that is truncated meanwhile kills
//! the process. What others keep in the page cache stays there, and nothing is
//! added to it ([`cache`], [`direct`]); the scan says by which way ([`Reading`]).
//!
//! A digest counts only if the file held still: size, times and identity are
//! compared when it is listed, when it is opened and after the last read
//! ([`steady`]). At most the size at the first look is read, so a growing file ends.

mod buffer;
mod cache;
mod direct;
mod pace;
mod queue;
mod reading;
mod steady;
mod worker;

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

pub use cache::PageCache;
pub(super) use cache::Unkept;
pub use pace::Pace;
pub use reading::Reading;
pub(super) use steady::differences;

use super::git::pointer_blob_id;
use super::pieces::PieceHash;
use super::rehash::Progress;
use super::report::{FileStat, Problem};
use super::values::{Algorithm, Blake3Digest, GitId};
use crate::digest::Sha256Digest;
use crate::relpath::RelPath;
use pace::Throttle;
use queue::Queue;
use worker::Pool;

/// The digests of a file, those that were asked for.
#[derive(Debug, Clone, Default)]
pub(super) struct Digests {
    pub(super) sha256: Option<Sha256Digest>,
    pub(super) blake3: Option<Blake3Digest>,
    pub(super) git_blob: Option<GitId>,
    /// Of the pieces, or of the whole, as [`Cut`] says.
    pub(super) pieces: Option<Vec<[u8; 32]>>,
}

/// Files to hash that belong together: a replica's.
pub(super) struct Batch<'a> {
    /// Opens one of them.
    pub(super) open: &'a (dyn Fn(&RelPath) -> io::Result<File> + Sync),
    /// Whole digests; none where only pieces are wanted.
    pub(super) algorithm: Option<Algorithm>,
    pub(super) progress: &'a dyn Progress,
    pub(super) files: Vec<Job>,
}

/// A file to hash.
pub(super) struct Job {
    pub(super) path: RelPath,
    /// As it was when it was listed.
    pub(super) listed: FileStat,
    pub(super) git_blob: GitBlob,
    /// How it is hashed in pieces beside that.
    pub(super) cut: Option<Cut>,
}

/// A file in pieces of so many bytes; without a length, in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) hash: PieceHash,
    pub(super) length: Option<u64>,
}

/// Whether a file's git blob id is worked out too, in a second reading: such files
/// are small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GitBlob {
    NotNeeded,
    Needed,
    /// Not when this is the id of the git-lfs pointer to the content.
    UnlessPointer(GitId),
}

/// What became of a batch.
pub(super) struct Hashed {
    /// In the order of the files.
    pub(super) outcomes: Vec<Result<Digests, Problem>>,
    pub(super) reading: Reading,
}

/// Hashes all files of all batches. `done` is called for each batch, with its index,
/// once its last file is hashed, on whichever thread did that.
pub(super) fn hash_batches(
    batches: Vec<Batch<'_>>,
    pace: Pace,
    done: &(dyn Fn(usize, Hashed) + Sync),
) {
    let mut tasks = Vec::new();
    let mut running = Vec::new();
    for (index, batch) in batches.into_iter().enumerate() {
        let bytes = batch.files.iter().map(|job| job.listed.size).sum();
        batch.progress.planned(batch.files.len(), bytes);
        if batch.files.is_empty() {
            let hashed = Hashed {
                outcomes: Vec::new(),
                reading: Reading::default(),
            };
            done(index, hashed);
        }
        running.push(Running {
            open: batch.open,
            algorithm: batch.algorithm,
            progress: batch.progress,
            left: AtomicUsize::new(batch.files.len()),
            reading: Mutex::new(Reading::default()),
            outcomes: Mutex::new(batch.files.iter().map(|_| None).collect()),
        });
        let task = |(file, job)| Task {
            batch: index,
            file,
            job,
            first: None,
        };
        tasks.extend(batch.files.into_iter().enumerate().map(task));
    }

    let workers = pace.workers().min(tasks.len());
    let queue = Queue::new(tasks, workers);
    let pool = Pool {
        batches: &running,
        queue: &queue,
        throttle: Throttle::new(pace.bytes_per_second),
        depth: direct::depth(2 * workers),
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

/// A reading of a file that is to be done.
struct Task {
    /// Index of its batch.
    batch: usize,
    /// Index among the batch's files.
    file: usize,
    job: Job,
    /// What the first reading gave, when this is the second.
    first: Option<Digests>,
}

impl Task {
    /// Whether the file has to be read once more, after the first reading gave
    /// `digests`.
    fn needs_git_blob(&self, digests: &Digests) -> bool {
        let size = self.job.listed.size;
        match self.job.git_blob {
            GitBlob::NotNeeded => false,
            GitBlob::Needed => true,
            GitBlob::UnlessPointer(id) => {
                let pointer = digests.sha256.map(|sha256| pointer_blob_id(sha256, size));
                pointer != Some(id)
            }
        }
    }
}

/// A batch whose files are being hashed.
struct Running<'a> {
    open: &'a (dyn Fn(&RelPath) -> io::Result<File> + Sync),
    algorithm: Option<Algorithm>,
    progress: &'a dyn Progress,
    /// Files not done yet.
    left: AtomicUsize,
    reading: Mutex<Reading>,
    outcomes: Mutex<Vec<Option<Result<Digests, Problem>>>>,
}

impl Running<'_> {
    /// Keeps the outcome of one file, and by which way it was read if it was. With
    /// the last one, returns all of them.
    fn keep(
        &self,
        task: &Task,
        outcome: Result<Digests, Problem>,
        way: Option<PageCache>,
    ) -> Option<Hashed> {
        lock(&self.outcomes)[task.file] = Some(outcome);
        if let Some(way) = way {
            lock(&self.reading).count(way);
        }
        (self.left.fetch_sub(1, Ordering::AcqRel) == 1).then(|| Hashed {
            outcomes: lock(&self.outcomes).drain(..).flatten().collect(),
            reading: *lock(&self.reading),
        })
    }
}

/// What a lock guards here is whole at all times, also after a panic elsewhere,
/// which ends the rehash anyway.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

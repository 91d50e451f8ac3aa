//! One core's work: two files in turn.

use std::thread;

use runseal_kernel::sha256::{self, Interleaving, Sha256, update2};

use super::buffer::Buffer;
use super::pace::Throttle;
use super::queue::{Queue, Work};
use super::steady::SteadyFile;
use super::{Digests, Hashed, PageCache, Running, Task};
use crate::digest::Sha256Digest;
use crate::weights::git::BlobHasher;
use crate::weights::pieces::Pieces;
use crate::weights::report::Problem;
use crate::weights::values::{Algorithm, Blake3Digest};

/// Bytes of one read. Two of them fit a core's second-level cache, and a larger
/// one is not faster.
const CHUNK: usize = 128 * 1024;
/// With less than this to go, handing a file over is not worth it.
const WORTH_MOVING: u64 = 8 * CHUNK as u64;

/// What all workers share.
pub(super) struct Pool<'a> {
    pub(super) batches: &'a [Running<'a>],
    pub(super) queue: &'a Queue,
    pub(super) throttle: Throttle,
    /// Reads in flight per file, where that matters.
    pub(super) depth: usize,
    /// Hears of a batch whose last file is done.
    pub(super) done: &'a (dyn Fn(usize, Hashed) + Sync),
}

/// A file being hashed.
pub(super) struct Lane {
    task: Task,
    file: SteadyFile,
    sha256: Option<Sha256>,
    blake3: Option<Box<blake3::Hasher>>,
    pieces: Option<Pieces>,
    /// In the second reading alone.
    git_blob: Option<BlobHasher>,
}

/// A place for a file, and what was read of it and is not hashed yet.
struct Slot {
    lane: Option<Lane>,
    buffer: Buffer,
    start: usize,
    end: usize,
}

impl Slot {
    fn new() -> Self {
        Self {
            lane: None,
            buffer: Buffer::new(CHUNK),
            start: 0,
            end: 0,
        }
    }

    fn bytes(&self) -> usize {
        self.end - self.start
    }
}

impl Pool<'_> {
    /// Hashes until nothing is left for anyone.
    pub(super) fn work(&self) {
        let _guard = GiveUp(self.queue);
        let mut a = Slot::new();
        let mut b = self.pairs_pay().then(Slot::new);
        while let Some(work) = self.queue.first() {
            self.begin(&mut a, work);
            self.hash_all(&mut a, b.as_mut());
            self.queue.idle();
        }
    }

    /// Two files at a time are faster than one after the other. BLAKE3 uses vectors
    /// within one file already.
    fn pairs_pay(&self) -> bool {
        sha256::interleaving() != Interleaving::None
            && self
                .batches
                .iter()
                .any(|b| b.algorithm.is_some_and(Algorithm::sha256))
    }

    /// Until both slots are empty and no file is left to fill them with.
    fn hash_all(&self, a: &mut Slot, mut b: Option<&mut Slot>) {
        loop {
            if let Some(b) = &mut b {
                self.hand_over(a, b);
                self.fill(b);
            }
            self.fill(a);
            match &mut b {
                Some(b) if a.lane.is_some() && b.lane.is_some() => self.hash_two(a, b),
                Some(b) if b.lane.is_some() => self.hash_one(b),
                _ if a.lane.is_some() => self.hash_one(a),
                _ => return,
            }
        }
    }

    /// Makes sure that there are bytes to hash in a slot, if there are files: reads
    /// on, and when a file is at its end, opens the next one. Many small files pass
    /// through here without an allocation for the bytes.
    fn fill(&self, slot: &mut Slot) {
        while slot.bytes() == 0 {
            let Some(lane) = &mut slot.lane else {
                match self.queue.second() {
                    Some(task) => self.begin(slot, Work::Fresh(Box::new(task))),
                    None => return,
                }
                continue;
            };
            let more = lane.file.left().min(CHUNK as u64) as usize;
            if more == 0 {
                self.end(slot);
                continue;
            }
            self.throttle.wait(more);
            match lane.file.next_chunk(&mut slot.buffer) {
                Ok(n) => (slot.start, slot.end) = (0, n),
                Err(problem) => self.fail(slot, problem),
            }
        }
    }

    fn begin(&self, slot: &mut Slot, work: Work) {
        (slot.start, slot.end) = (0, 0);
        match work {
            Work::Begun(lane) => slot.lane = Some(*lane),
            Work::Fresh(task) => slot.lane = self.open(*task),
        }
    }

    /// Opens a file for its first reading or its second.
    fn open(&self, task: Task) -> Option<Lane> {
        let batch = &self.batches[task.batch];
        let (path, listed) = (&task.job.path, task.job.listed);
        match SteadyFile::new((batch.open)(path), listed, self.depth) {
            Ok(file) => {
                let first = task.first.is_none();
                let whole = |has: fn(Algorithm) -> bool| first && batch.algorithm.is_some_and(has);
                let cut = task.job.cut.filter(|_| first);
                Some(Lane {
                    file,
                    sha256: whole(Algorithm::sha256).then(Sha256::new),
                    blake3: whole(Algorithm::blake3).then(Box::default),
                    pieces: cut.map(|c| Pieces::new(c.hash, c.length)),
                    git_blob: (!first).then(|| BlobHasher::new(listed.size)),
                    task,
                })
            }
            Err(problem) => {
                self.keep(&task, Err(problem), None);
                None
            }
        }
    }

    /// The last byte of a slot's file is hashed.
    fn end(&self, slot: &mut Slot) {
        let Some(lane) = slot.lane.take() else {
            return;
        };
        let Lane {
            mut task,
            file,
            sha256,
            blake3,
            pieces,
            git_blob,
        } = lane;
        let way = file.page_cache();
        let held_still = file.finish();
        let digests = task.first.take().unwrap_or_else(|| Digests {
            sha256: sha256.map(|h| Sha256Digest(h.finalize())),
            blake3: blake3.map(|h| Blake3Digest(h.finalize().into())),
            git_blob: None,
            pieces: pieces.map(Pieces::finish),
        });
        if held_still.is_ok() && git_blob.is_none() && task.needs_git_blob(&digests) {
            task.first = Some(digests);
            slot.lane = self.open(task);
            return;
        }
        let outcome = held_still.map(|()| Digests {
            git_blob: git_blob.map(BlobHasher::finish),
            ..digests
        });
        self.keep(&task, outcome, Some(way));
    }

    fn fail(&self, slot: &mut Slot, problem: Problem) {
        if let Some(lane) = slot.lane.take() {
            self.keep(&lane.task, Err(problem), Some(lane.file.page_cache()));
        }
    }

    fn keep(&self, task: &Task, outcome: Result<Digests, Problem>, way: Option<PageCache>) {
        if let Some(hashed) = self.batches[task.batch].keep(task, outcome, way) {
            (self.done)(task.batch, hashed);
        }
    }

    fn hash_one(&self, slot: &mut Slot) {
        self.hash_bytes(slot, slot.bytes());
    }

    /// As many bytes of both as both have.
    fn hash_two(&self, a: &mut Slot, b: &mut Slot) {
        let n = a.bytes().min(b.bytes());
        let (Some(x), Some(y)) = (&mut a.lane, &mut b.lane) else {
            return;
        };
        match (&mut x.sha256, &mut y.sha256) {
            (Some(x), Some(y)) => {
                let from_a = &a.buffer[a.start..a.start + n];
                let from_b = &b.buffer[b.start..b.start + n];
                update2(x, from_a, y, from_b);
                self.hashed(a, n);
                self.hashed(b, n);
            }
            // Folders with different algorithms in one rehash, or a second reading.
            _ => {
                self.hash_bytes(a, n);
                self.hash_bytes(b, n);
            }
        }
    }

    fn hash_bytes(&self, slot: &mut Slot, n: usize) {
        if let Some(Lane {
            sha256: Some(h), ..
        }) = &mut slot.lane
        {
            h.update(&slot.buffer[slot.start..slot.start + n]);
        }
        self.hashed(slot, n);
    }

    /// SHA-256 has seen `n` bytes of a slot; BLAKE3 follows while they are in the
    /// core's cache.
    fn hashed(&self, slot: &mut Slot, n: usize) {
        let Some(lane) = &mut slot.lane else {
            return;
        };
        let bytes = &slot.buffer[slot.start..slot.start + n];
        if let Some(h) = &mut lane.blake3 {
            h.update(bytes);
        }
        if let Some(p) = &mut lane.pieces {
            p.update(bytes);
        }
        slot.start += n;
        match &mut lane.git_blob {
            Some(h) => h.update(bytes),
            // The second reading was not planned for.
            None => self.batches[lane.task.batch]
                .progress
                .read(&lane.task.job.path, n as u64),
        }
    }

    /// Gives one of two files to a core that has none. Only a file of which nothing
    /// is read and not hashed yet: the buffer stays here.
    fn hand_over(&self, a: &mut Slot, b: &mut Slot) {
        if !self.queue.hungry() || a.lane.is_none() || b.lane.is_none() {
            return;
        }
        for slot in [a, b] {
            let movable = |lane: &mut Lane| lane.file.left() >= WORTH_MOVING;
            if slot.bytes() == 0
                && let Some(lane) = slot.lane.take_if(movable)
            {
                slot.lane = self.queue.hand_over(lane);
                return;
            }
        }
    }
}

/// Nobody waits for a worker that is gone.
struct GiveUp<'a>(&'a Queue);

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.give_up();
        }
    }
}

//! One core's work: two files in turn.

use std::thread;

use runseal_kernel::sha256::{self, Interleaving, Sha256, update2};

use super::pace::Throttle;
use super::queue::{Queue, Work};
use super::steady::SteadyFile;
use super::{Digests, Hashed, Job, PageCache, Running};
use crate::digest::Sha256Digest;
use crate::weights::report::Problem;
use crate::weights::values::Blake3Digest;

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
    /// Hears of a batch whose last file is done.
    pub(super) done: &'a (dyn Fn(usize, Hashed) + Sync),
}

/// A file being hashed.
pub(super) struct Lane {
    job: Job,
    file: SteadyFile,
    sha256: Option<Sha256>,
    blake3: Option<Box<blake3::Hasher>>,
}

/// A place for a file, and what was read of it and is not hashed yet.
struct Slot {
    lane: Option<Lane>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Slot {
    fn new() -> Self {
        Self {
            lane: None,
            buffer: vec![0; CHUNK],
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
            && self.batches.iter().any(|b| b.algorithm.sha256())
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
                    Some(job) => self.begin(slot, Work::Fresh(job)),
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
        let job = match work {
            Work::Begun(lane) => {
                slot.lane = Some(*lane);
                return;
            }
            Work::Fresh(job) => job,
        };
        let batch = &self.batches[job.batch];
        match SteadyFile::new((batch.open)(&job.path), job.listed) {
            Ok(file) => {
                let algorithm = batch.algorithm;
                slot.lane = Some(Lane {
                    job,
                    file,
                    sha256: algorithm.sha256().then(Sha256::new),
                    blake3: algorithm.blake3().then(Box::default),
                });
            }
            Err(problem) => self.keep(&job, Err(problem), PageCache::default()),
        }
    }

    /// The last byte of a slot's file is hashed.
    fn end(&self, slot: &mut Slot) {
        let Some(lane) = slot.lane.take() else {
            return;
        };
        let Lane {
            job,
            file,
            sha256,
            blake3,
        } = lane;
        let page_cache = file.page_cache();
        let outcome = file.finish().map(|()| {
            (
                sha256.map(|h| Sha256Digest(h.finalize())),
                blake3.map(|h| Blake3Digest(h.finalize().into())),
            )
        });
        self.keep(&job, outcome, page_cache);
    }

    fn fail(&self, slot: &mut Slot, problem: Problem) {
        if let Some(lane) = slot.lane.take() {
            self.keep(&lane.job, Err(problem), lane.file.page_cache());
        }
    }

    fn keep(&self, job: &Job, outcome: Result<Digests, Problem>, page_cache: PageCache) {
        if let Some(hashed) = self.batches[job.batch].keep(job, outcome, page_cache) {
            (self.done)(job.batch, hashed);
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
            // Folders with different algorithms in one rehash.
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
        if let Some(h) = &mut lane.blake3 {
            h.update(&slot.buffer[slot.start..slot.start + n]);
        }
        slot.start += n;
        self.batches[lane.job.batch]
            .progress
            .read(&lane.job.path, n as u64);
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

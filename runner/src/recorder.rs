//! Writer of the event log: many tasks emit, one thread writes.
//!
//! Emitting appends encoded lines to one shared buffer under a short lock, which
//! is also where `seq` is given out, so the order in the file is the order of
//! emission. The writing thread sleeps until the buffer has waited
//! [`FLUSH_AFTER`], is large, or holds an event that must not wait (a state, a
//! failure, a signal); then it swaps the buffer for its spare and writes it.
//! An emitting task therefore never waits for the disk, and a stream of small
//! events does not wake a thread for each of them.
//!
//! Two things make the log fail, for good: a write that the system refuses, and
//! more than [`MAX_WAITING`] bytes waiting for a disk that does not keep up.
//! Slowing the client down instead would change what is measured. After a failed
//! write the file is cut back to its last whole line, so what is left never ends
//! in a torn line, and lacks the closing event that says it is complete.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use runseal::durable;
use runseal::event::{DeltaKind, Event, Header};
use serde::Serialize;

use crate::event_line;

/// Longest time that an emitted event stays in memory.
pub const FLUSH_AFTER: Duration = Duration::from_millis(100);
/// Waiting bytes that wake the writer early.
const BIG: usize = 256 << 10;
/// Waiting bytes at which the log has failed.
pub const MAX_WAITING: usize = 256 << 20;

/// The run's monotonic clock: nanoseconds since the epoch.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    epoch: Instant,
}

impl Clock {
    /// A clock that shows 0 at `epoch`.
    pub fn new(epoch: Instant) -> Self {
        Self { epoch }
    }

    /// Nanoseconds since the epoch.
    pub fn now(self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The instant at which the clock shows `t`.
    pub fn instant(self, t: u64) -> Instant {
        self.epoch + Duration::from_nanos(t)
    }
}

/// The log could not be created or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It could not be created.
    #[error(transparent)]
    Create(#[from] durable::WriteError),
    /// It could not be written to its end.
    #[error("the event log {path} is incomplete: {why} (hint: is the disk full?)")]
    Write {
        /// The log.
        path: PathBuf,
        /// The first thing that went wrong.
        why: String,
    },
}

/// Encoded events of one task, waiting to be appended together.
#[derive(Debug, Default)]
pub struct Batch {
    /// Everything of each line after `seq`, each ended by a newline.
    tails: Vec<u8>,
    urgent: bool,
    /// Beginning of the latest delta's line and what it was made of: all deltas of one
    /// read begin alike.
    head: Vec<u8>,
    head_of: Option<(u64, u32, u32)>,
}

/// A line without its `seq`, which is known only when it is appended.
#[derive(Serialize)]
struct Unnumbered<'a> {
    t: u64,
    #[serde(flatten)]
    event: &'a Event,
}

impl Batch {
    /// Adds an event.
    pub fn push(&mut self, t: u64, event: &Event) {
        if event_line::push_tail(&mut self.tails, t, event) {
            return;
        }
        let start = self.tails.len();
        // Cannot fail: memory is the destination and the type always serialises.
        if serde_json::to_writer(&mut self.tails, &Unnumbered { t, event }).is_err() {
            self.tails.truncate(start);
            return;
        }
        // The opening brace becomes the comma after `{"seq":1`.
        self.tails[start] = b',';
        self.tails.push(b'\n');
        self.urgent |= matches!(
            event,
            Event::State { .. }
                | Event::Declare { .. }
                | Event::Failure { .. }
                | Event::Refusal { .. }
                | Event::Signal { .. }
        );
    }

    /// Adds an [`Event::Delta`] whose digest is still bytes
    /// ([`runseal::event::DeltaHasher::digest`]). `req_read_ev` are its numbers.
    pub fn push_delta(
        &mut self,
        t: u64,
        req_read_ev: [u32; 3],
        kind: DeltaKind,
        len: u64,
        digest: [u8; 16],
    ) {
        let [req, read, ev] = req_read_ev;
        if self.head_of.replace((t, req, read)) != Some((t, req, read)) {
            self.head.clear();
            event_line::delta_start(&mut self.head, t, req, read);
        }
        event_line::delta_rest(&mut self.tails, &self.head, ev, kind, len, digest);
    }

    /// True when there is nothing to submit.
    pub fn is_empty(&self) -> bool {
        self.tails.is_empty()
    }
}

/// Where the lines go: a file, or a stand-in that fails on purpose.
trait Sink: Send {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    fn cut(&mut self, len: u64) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
}

impl Sink for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(self, bytes)
    }
    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

#[derive(Default)]
struct State {
    waiting: Vec<u8>,
    /// Last `seq` given out.
    seq: u64,
    urgent: bool,
    closing: bool,
    /// Bytes ever appended and bytes written so far, for [`Recorder::flush`].
    appended: u64,
    written: u64,
    failure: Option<String>,
}

impl State {
    /// Appends a batch and empties it; true when the writer needs waking.
    fn append(&mut self, batch: &mut Batch) -> bool {
        let urgent = std::mem::take(&mut batch.urgent);
        if self.closing || self.failure.is_some() {
            // Nothing may follow a hole, or the event that closes the log.
            batch.tails.clear();
            return false;
        }
        let before = self.waiting.len();
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', &batch.tails) {
            let tail = &batch.tails[start..=end];
            start = end + 1;
            self.seq += 1;
            self.waiting.extend_from_slice(b"{\"seq\":");
            event_line::number(&mut self.waiting, self.seq);
            self.waiting.extend_from_slice(tail);
        }
        batch.tails.clear();
        let after = self.waiting.len();
        self.appended += (after - before) as u64;
        self.urgent |= urgent;
        if after > MAX_WAITING {
            self.failure = Some(format!(
                "{MAX_WAITING} bytes of events were waiting for the disk"
            ));
        }
        // The writer counts its deadline from the first waiting event, so it
        // needs waking only then or when it must not wait that long.
        before == 0 || urgent || (before < BIG && after >= BIG)
    }
}

struct Shared {
    state: Mutex<State>,
    /// Wakes the writer.
    work: Condvar,
    /// Wakes those who wait for the writer.
    progress: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Handle on the event log; clones share it.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
    writer: Arc<Writer>,
    clock: Clock,
    path: PathBuf,
}

/// The writing thread, ended when the last handle goes away.
struct Writer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Writer {
    /// Without [`Recorder::finish`] everything emitted still reaches the file,
    /// but not the event that says the log is complete.
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_one();
        let thread = self
            .thread
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
    }
}

impl Recorder {
    /// Creates the log, which must not exist, and writes its header line.
    /// `epoch` is the instant of `header.epoch`.
    pub fn create(path: &Path, header: &Header, epoch: Instant) -> Result<Self, RecordError> {
        let file = durable::create_new(path)?;
        Self::over(Box::new(file), path, header, epoch)
    }

    fn over(
        sink: Box<dyn Sink>,
        path: &Path,
        header: &Header,
        epoch: Instant,
    ) -> Result<Self, RecordError> {
        let failed = |e: &dyn std::fmt::Display| RecordError::Write {
            path: path.to_owned(),
            why: e.to_string(),
        };
        let mut waiting = serde_json::to_vec(header).map_err(|e| failed(&e))?;
        waiting.push(b'\n');
        let state = State {
            appended: waiting.len() as u64,
            waiting,
            urgent: true,
            ..State::default()
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            progress: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("event-log".into())
            .spawn(move || write_loop(&theirs, sink))
            .map_err(|e| failed(&e))?;
        let writer = Arc::new(Writer {
            shared: Arc::clone(&shared),
            thread: Mutex::new(Some(thread)),
        });
        Ok(Self {
            shared,
            writer,
            clock: Clock::new(epoch),
            path: path.to_owned(),
        })
    }

    /// The run's clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Nanoseconds since the epoch.
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Appends one event.
    pub fn emit(&self, t: u64, event: &Event) {
        let mut batch = Batch::default();
        batch.push(t, event);
        self.submit(&mut batch);
    }

    /// Appends the events of a batch, in order and next to each other, and
    /// empties it.
    pub fn submit(&self, batch: &mut Batch) {
        if batch.is_empty() {
            return;
        }
        if self.shared.lock().append(batch) {
            self.shared.work.notify_one();
        }
    }

    /// The first thing that went wrong, when something did. A run that sees this
    /// must end as failed.
    pub fn failed(&self) -> Option<String> {
        self.shared.lock().failure.clone()
    }

    /// Waits until everything emitted so far was handed to the system.
    pub fn flush(&self) -> Result<(), RecordError> {
        let mut state = self.shared.lock();
        let target = state.appended;
        state.urgent = true;
        self.shared.work.notify_one();
        while state.failure.is_none() && state.written < target {
            state = self
                .shared
                .progress
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        self.verdict()
    }

    /// Writes [`Event::EndOfLog`], flushes and syncs. Events emitted by other
    /// handles after this are dropped. The first error of the whole life of the
    /// log is returned, again on every further call.
    pub fn finish(&self) -> Result<(), RecordError> {
        let thread = self
            .writer
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            let mut last = Batch::default();
            last.push(self.now(), &Event::EndOfLog {});
            {
                // One lock for both, so that nothing gets in behind the end.
                let mut state = self.shared.lock();
                state.append(&mut last);
                state.closing = true;
            }
            self.shared.work.notify_one();
            if thread.join().is_err() {
                let mut state = self.shared.lock();
                state
                    .failure
                    .get_or_insert_with(|| "the writing thread died".into());
            }
            let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty());
            if let Err(e) = durable::sync_dir(folder.unwrap_or(Path::new("."))) {
                let mut state = self.shared.lock();
                state.failure.get_or_insert_with(|| e.to_string());
            }
        }
        self.verdict()
    }

    fn verdict(&self) -> Result<(), RecordError> {
        match self.failed() {
            None => Ok(()),
            Some(why) => Err(RecordError::Write {
                path: self.path.clone(),
                why,
            }),
        }
    }
}

/// Body of the writing thread.
fn write_loop(shared: &Shared, mut sink: Box<dyn Sink>) {
    let mut spare = Vec::new();
    let mut len = 0u64;
    loop {
        let mut state = shared.lock();
        while state.waiting.is_empty() && !state.closing {
            state = shared
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let deadline = Instant::now() + FLUSH_AFTER;
        while !state.closing && !state.urgent && state.waiting.len() < BIG {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                break;
            };
            state = shared
                .work
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.urgent = false;
        let closing = state.closing;
        std::mem::swap(&mut state.waiting, &mut spare);
        let overrun = state.failure.is_some();
        drop(state);

        let mut result = write_whole_lines(&mut *sink, &spare, &mut len);
        if closing && result.is_ok() {
            result = sink.sync();
        }
        let mut state = shared.lock();
        state.written += spare.len() as u64;
        if let Err(e) = &result {
            state.failure.get_or_insert_with(|| e.to_string());
        }
        shared.progress.notify_all();
        drop(state);
        if closing || result.is_err() || overrun {
            // Sync what is there: it is the evidence of a failed run.
            let _ = sink.sync();
            return;
        }
        spare.clear();
        // One burst must not hold its memory for the rest of the run.
        spare.shrink_to(4 * BIG);
    }
}

/// Writes `bytes`, which are whole lines, after `len` bytes of whole lines. On
/// failure the file is cut back to the last line that got through whole.
fn write_whole_lines(sink: &mut dyn Sink, bytes: &[u8], len: &mut u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let error = match sink.write(&bytes[done..]) {
            Ok(0) => io::ErrorKind::WriteZero.into(),
            Ok(n) => {
                done += n;
                continue;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => e,
        };
        let whole = memchr::memrchr(b'\n', &bytes[..done]).map_or(0, |i| i + 1);
        sink.cut(*len + whole as u64)?;
        return Err(error);
    }
    *len += bytes.len() as u64;
    Ok(())
}

#[cfg(test)]
#[path = "recorder_tests.rs"]
mod tests;

//! Open loop: requests become due by a schedule, whatever becomes of the earlier
//! ones.
//!
//! A thread of its own waits for each due time, because the runtime's timers
//! count in whole milliseconds and a request due between two of them would leave
//! late. The attempt is queued with the stamp of its due time, so waiting for
//! anything at all (this thread, a client slot, a connection) is queue time in
//! the log, and latency by schedule can be told from latency by send.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use runseal::response::Response;
use runseal::schedule::Arrivals;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

use super::source::{Feed, Source};
use super::{Cancel, Client};

/// One stage of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// How requests arrive.
    pub arrivals: Arrivals,
    /// How many.
    pub requests: u32,
    /// Most requests at a time; those above it wait, which is queue time.
    pub most_open: Option<usize>,
}

/// Runs one stage to the end of its last attempt and hands over each answer as it
/// ends. On cancellation nothing more is queued and what is open ends. The stage
/// ends early when the source has no more.
///
/// Cancel through `cancel`: dropping this future stops the schedule, but leaves
/// the open attempts to their time limits.
pub async fn run_open_loop_with(
    client: &Client,
    source: impl Source + 'static,
    stage: Stage,
    cancel: &Cancel,
    on_response: impl Fn(Response) + Send + Sync + 'static,
) {
    let feed = Feed::new(client, source, cancel, on_response);
    run_stage(client, &feed, stage, cancel).await;
}

/// Runs stages one after the other. Each ends with its last attempt before the
/// next begins, so the backlog of one rate is not charged to another.
pub async fn run_rate_sweep_with(
    client: &Client,
    source: impl Source + 'static,
    stages: &[Stage],
    cancel: &Cancel,
    on_response: impl Fn(Response) + Send + Sync + 'static,
) {
    let feed = Feed::new(client, source, cancel, on_response);
    for stage in stages {
        run_stage(client, &feed, *stage, cancel).await;
    }
}

async fn run_stage<S: Source + 'static>(
    client: &Client,
    feed: &Arc<Feed<S>>,
    stage: Stage,
    cancel: &Cancel,
) {
    let (stop, stopped) = channel::<()>();
    let (ended, mut ends) = mpsc::unbounded_channel();
    let dispatcher = Dispatcher {
        feed: Arc::clone(feed),
        runtime: Handle::current(),
        slots: Arc::new(Semaphore::new(
            stage
                .most_open
                .unwrap_or(usize::MAX)
                .clamp(1, Semaphore::MAX_PERMITS),
        )),
        ended,
    };
    let clock = client.recorder().clock();
    let start = clock.now();
    let thread = std::thread::Builder::new()
        .name("dispatch".into())
        .spawn(move || {
            for offset in stage.arrivals.offsets().take(stage.requests as usize) {
                let due = start.saturating_add(offset);
                loop {
                    let left = due.saturating_sub(clock.now());
                    match stopped.recv_timeout(Duration::from_nanos(left)) {
                        Err(RecvTimeoutError::Timeout) if clock.now() >= due => break,
                        Err(RecvTimeoutError::Timeout) => {}
                        Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
                if !dispatcher.dispatch(due) {
                    return;
                }
            }
        });
    // Without threads there is no client; nothing was queued.
    if let Err(e) = thread {
        panic!("no thread could be started for the schedule: {e}");
    }
    let mut stop: Option<Sender<()>> = Some(stop);
    let mut cancel = cancel.clone();
    loop {
        tokio::select! {
            end = ends.recv() => match end {
                Some(End { panicked: false }) => {}
                // A bug here or in the caller's source; the attempt was logged as
                // cancelled when its task unwound.
                Some(End { panicked: true }) => panic!("an attempt of the open loop panicked"),
                None => return,
            },
            () = cancel.cancelled(), if stop.is_some() => stop = None,
        }
    }
}

struct Dispatcher<S> {
    feed: Arc<Feed<S>>,
    runtime: Handle,
    slots: Arc<Semaphore>,
    ended: mpsc::UnboundedSender<End>,
}

impl<S: Source + 'static> Dispatcher<S> {
    /// Queues and starts the attempt due at `due`; false when there is none.
    fn dispatch(&self, due: u64) -> bool {
        let Some(ticket) = self.feed.next(Some(due)) else {
            return false;
        };
        let (feed, slots) = (Arc::clone(&self.feed), Arc::clone(&self.slots));
        let end = Report(self.ended.clone());
        self.runtime.spawn(async move {
            let _end = end;
            // Never closed.
            let _slot = slots.acquire_owned().await;
            feed.run(ticket).await;
        });
        true
    }
}

/// A task has ended.
struct End {
    panicked: bool,
}

/// Says so when dropped; the loop is over when the last one is gone.
struct Report(mpsc::UnboundedSender<End>);

impl Drop for Report {
    fn drop(&mut self) {
        let panicked = std::thread::panicking();
        let _ = self.0.send(End { panicked });
    }
}

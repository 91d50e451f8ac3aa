//! The requests in flight: a bounded number run, each on a blocking thread, others wait.
//!
//! A job speaks to its connection over a channel only. When the client goes away the
//! receiving end is dropped, and the job, which looks before every block of prompt and every
//! token, ends; there is no other cancellation path to forget.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};

use super::api::{ChatRequest, Usage};
use super::engine::{Engine, Finish, Step};
use super::metrics::{Metrics, RequestState};
use super::text::{Assembled, TextAssembler};

/// What a job tells its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The request has a slot; the prompt is processed next.
    Started(Usage),
    /// A token was generated; its text may be empty.
    Delta {
        /// Text that became sendable.
        text: String,
        /// Counts so far.
        usage: Usage,
    },
    /// The answer is complete.
    Finished {
        /// Text that was held back.
        text: String,
        /// `stop` or `length`.
        reason: &'static str,
        /// Final counts.
        usage: Usage,
    },
    /// The engine failed; nothing follows.
    Failed(String),
}

/// Slots, counters and the engine they belong to.
#[derive(Debug)]
pub struct Jobs {
    engine: Arc<Engine>,
    slots: Arc<Semaphore>,
    metrics: Metrics,
    prefill_delay: Duration,
    token_delay: Duration,
}

/// Events a slow reader may lag behind before the job waits for it.
const BACKLOG: usize = 64;

/// Longest time a delayed job does not look whether its client is still there.
const NAP: Duration = Duration::from_millis(10);

impl Jobs {
    /// An idle queue with `slots` slots (at least one).
    pub fn new(
        engine: Arc<Engine>,
        slots: usize,
        prefill_delay: Duration,
        token_delay: Duration,
    ) -> Self {
        Self {
            engine,
            slots: Arc::new(Semaphore::new(slots.clamp(1, Semaphore::MAX_PERMITS))),
            metrics: Metrics::default(),
            prefill_delay,
            token_delay,
        }
    }

    /// The engine that runs the jobs.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The counters.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Queues a request; dropping the receiver cancels it. Needs a tokio runtime.
    pub fn submit(self: &Arc<Self>, request: ChatRequest) -> mpsc::Receiver<Event> {
        let (events, receiver) = mpsc::channel(BACKLOG);
        let jobs = Arc::clone(self);
        tokio::spawn(async move {
            let waiting = jobs.metrics.waiting.enter();
            let slot = tokio::select! {
                slot = Arc::clone(&jobs.slots).acquire_owned() => slot,
                () = events.closed() => return jobs.metrics.ended(RequestState::Cancelled),
            };
            drop(waiting);
            tokio::task::spawn_blocking({
                let jobs = Arc::clone(&jobs);
                move || {
                    let _running = jobs.metrics.running.enter();
                    let state = jobs.run(&request, &events);
                    jobs.metrics.ended(state);
                    drop(slot);
                }
            });
        });
        receiver
    }

    fn run(&self, request: &ChatRequest, events: &mpsc::Sender<Event>) -> RequestState {
        let generation = &request.generation;
        let usage = |completion| Usage {
            prompt: generation.prompt.len(),
            completion,
        };
        let send = |event| match events.blocking_send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        };
        if send(Event::Started(usage(0))).is_break() || pause(self.prefill_delay, events).is_break()
        {
            return RequestState::Cancelled;
        }

        let mut text = TextAssembler::new(request.stop.clone());
        let mut stopped = None;
        let (mut prompt_done, mut generated) = (0, 0);
        let outcome = self.engine.generate(generation, |step| match step {
            Step::Prompt(done) => {
                self.metrics.prompt_tokens(done - prompt_done);
                prompt_done = done;
                pause(Duration::ZERO, events)
            }
            Step::Token(token) => {
                generated += 1;
                self.metrics.generation_tokens(1);
                pause(self.token_delay, events)?;
                let byte = self.engine.tokenizer().byte(token);
                match text.push(byte, generated >= generation.min_tokens) {
                    Assembled::Text(text) => send(Event::Delta {
                        text,
                        usage: usage(generated),
                    }),
                    Assembled::Stopped(before) => {
                        stopped = Some(before);
                        ControlFlow::Break(())
                    }
                }
            }
        });

        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                // Whether anybody still hears it does not change what happened.
                let _ = send(Event::Failed(error.to_string()));
                return RequestState::Failed;
            }
        };
        // The end token is generated and counted although it is no step of its own.
        self.metrics
            .generation_tokens(outcome.tokens.len() - generated);
        let (text, reason) = match (outcome.finish, stopped) {
            (Finish::Eos, _) => (text.finish(), "stop"),
            (Finish::Length, _) => (text.finish(), "length"),
            (Finish::Caller, Some(before)) => (before, "stop"),
            (Finish::Caller, None) => return RequestState::Cancelled,
        };
        let usage = usage(outcome.tokens.len());
        match send(Event::Finished {
            text,
            reason,
            usage,
        }) {
            ControlFlow::Continue(()) => RequestState::Completed,
            ControlFlow::Break(()) => RequestState::Cancelled,
        }
    }
}

/// Sleeps unless and until the client is gone.
fn pause(mut left: Duration, events: &mpsc::Sender<Event>) -> ControlFlow<()> {
    loop {
        if events.is_closed() {
            return ControlFlow::Break(());
        }
        if left.is_zero() {
            return ControlFlow::Continue(());
        }
        let nap = left.min(NAP);
        thread::sleep(nap);
        left -= nap;
    }
}

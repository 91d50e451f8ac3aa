//! Where attempts come from, and the rule that a further attempt is declared.
//!
//! A loop takes attempts from a [`Source`] and queues them under one lock,
//! because the log counts attempts in the order in which they are queued. When an
//! attempt has ended, the source is asked for another at the same case. There is
//! no other kind of retry: each has its own number, body and events, and figures
//! see that it was not the first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use runseal::response::Response;
use runseal::trace::Transport;

use super::{AttemptSpec, Cancel, Client, Ticket};

/// An attempt that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Case id.
    pub case: String,
    /// Repetition.
    pub rep: u32,
    /// Attempt at this case and repetition.
    pub attempt: u32,
    /// Name of its endpoint.
    pub endpoint: String,
    /// Its transport state, by the rules that judge the log.
    pub transport: Transport,
    /// Its answer.
    pub response: Response,
}

/// Gives out attempts, numbered in the order in which it gives them.
pub trait Source: Send {
    /// The next attempt; `None` when there are no more.
    fn next(&mut self) -> Option<AttemptSpec>;

    /// A further attempt at the same case, with `attempt` one higher and a number
    /// of its own; `None` to leave it at that.
    fn retry(&mut self, _ended: &Ended) -> Option<AttemptSpec> {
        None
    }
}

impl<I: Iterator<Item = AttemptSpec> + Send> Source for I {
    fn next(&mut self) -> Option<AttemptSpec> {
        Iterator::next(self)
    }
}

/// Bounded retries over an iterator of first attempts.
///
/// `again` builds the further attempt; it gets the number to use. Numbers of the
/// first attempts are overwritten, because retries come between them.
pub struct Retrying<I, F> {
    first: I,
    again: F,
    /// Most attempts at one case and repetition, the first included.
    most: u32,
    /// Transport states that are worth another attempt.
    on: Vec<Transport>,
    next_req: u32,
}

impl<I, F> Retrying<I, F>
where
    I: Iterator<Item = AttemptSpec> + Send,
    F: FnMut(u32, &Ended) -> Option<AttemptSpec> + Send,
{
    /// At most `most` attempts at each case, a further one only after an end in
    /// `on`. The first attempt gets the number `next_req`.
    pub fn new(first: I, next_req: u32, most: u32, on: Vec<Transport>, again: F) -> Self {
        Self {
            first,
            again,
            most,
            on,
            next_req,
        }
    }

    fn numbered(&mut self, mut spec: AttemptSpec) -> AttemptSpec {
        spec.req = self.next_req;
        self.next_req += 1;
        spec
    }
}

impl<I, F> Source for Retrying<I, F>
where
    I: Iterator<Item = AttemptSpec> + Send,
    F: FnMut(u32, &Ended) -> Option<AttemptSpec> + Send,
{
    fn next(&mut self) -> Option<AttemptSpec> {
        let spec = self.first.next()?;
        Some(self.numbered(spec))
    }

    fn retry(&mut self, ended: &Ended) -> Option<AttemptSpec> {
        if ended.attempt + 1 >= self.most || !self.on.contains(&ended.transport) {
            return None;
        }
        let mut spec = (self.again)(self.next_req, ended)?;
        // Whatever the builder says: it is the same case, and not the first try.
        spec.case.clone_from(&ended.case);
        (spec.rep, spec.attempt) = (ended.rep, ended.attempt + 1);
        Some(self.numbered(spec))
    }
}

/// A source shared by the workers of a loop.
pub(super) struct Feed<S> {
    client: Client,
    cancel: Cancel,
    source: Mutex<S>,
    on_response: Box<dyn Fn(Response) + Send + Sync>,
}

impl<S: Source> Feed<S> {
    pub fn new(
        client: &Client,
        source: S,
        cancel: &Cancel,
        on_response: impl Fn(Response) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            client: client.clone(),
            cancel: cancel.clone(),
            source: Mutex::new(source),
            on_response: Box::new(on_response),
        })
    }

    fn lock(&self) -> MutexGuard<'_, S> {
        // A source that panicked ends the loop through its worker's panic.
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is not logged must not be measured.
    fn over(&self) -> bool {
        self.cancel.is_cancelled() || self.client.recorder().failed().is_some()
    }

    /// Takes and queues the next attempt, as due at `due` or now.
    pub fn next(&self, due: Option<u64>) -> Option<Ticket> {
        let mut source = self.lock();
        if self.over() {
            return None;
        }
        let spec = source.next()?;
        Some(match due {
            Some(t) => self.client.enqueue_at(spec, t),
            None => self.client.enqueue(spec),
        })
    }

    /// Runs an attempt and the further ones that the source wants after it.
    pub async fn run(&self, ticket: Ticket) {
        let mut next = Some(ticket);
        while let Some(ticket) = next {
            let ended = ticket.run_to_end(&self.cancel).await;
            next = {
                let mut source = self.lock();
                let again = if self.over() {
                    None
                } else {
                    source.retry(&ended)
                };
                again.map(|spec| self.client.enqueue(spec))
            };
            (self.on_response)(ended.response);
        }
    }
}

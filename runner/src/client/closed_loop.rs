//! Closed loop: a fixed number of workers, each taking the next attempt as soon
//! as its last one has ended.
//!
//! An attempt of a closed loop becomes due when a worker asks for it, so it is
//! queued at that moment and its queue time is the time between being taken and
//! being sent (digesting the body, connecting). There is no schedule that it
//! could be late for. Taking and queueing happen under one lock, because numbers
//! must be queued in order.
//!
//! Workers stop taking attempts when the run is cancelled or the log has failed:
//! what is not logged must not be measured. Attempts never taken are not queued,
//! and count as not attempted.

use std::sync::{Arc, Mutex, PoisonError};

use runseal::response::Response;
use tokio::task::JoinSet;

use super::source::{Feed, Source};
use super::{AttemptSpec, Cancel, Client};

/// Runs all attempts, `concurrency` at a time, and returns the answers in order
/// of their numbers.
pub async fn run_closed_loop<I>(
    client: &Client,
    specs: I,
    concurrency: usize,
    cancel: &Cancel,
) -> Vec<Response>
where
    I: IntoIterator<Item = AttemptSpec>,
    I::IntoIter: Send + 'static,
{
    let all = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&all);
    run_closed_loop_with(client, specs, concurrency, cancel, move |response| {
        sink.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(response);
    })
    .await;
    let mut all = std::mem::take(&mut *all.lock().unwrap_or_else(PoisonError::into_inner));
    all.sort_by_key(|r| r.req);
    all
}

/// Like [`run_closed_loop`], but hands over each answer as it ends, in any
/// order, so that memory does not grow with the number of attempts.
pub async fn run_closed_loop_with<I>(
    client: &Client,
    specs: I,
    concurrency: usize,
    cancel: &Cancel,
    on_response: impl Fn(Response) + Send + Sync + 'static,
) where
    I: IntoIterator<Item = AttemptSpec>,
    I::IntoIter: Send + 'static,
{
    run_closed_loop_from(client, specs.into_iter(), concurrency, cancel, on_response).await;
}

/// Like [`run_closed_loop_with`], for a source that may want further attempts.
pub async fn run_closed_loop_from(
    client: &Client,
    source: impl Source + 'static,
    concurrency: usize,
    cancel: &Cancel,
    on_response: impl Fn(Response) + Send + Sync + 'static,
) {
    let feed = Feed::new(client, source, cancel, on_response);
    let mut workers = JoinSet::new();
    for _ in 0..concurrency.max(1) {
        let feed = Arc::clone(&feed);
        workers.spawn(async move {
            while let Some(ticket) = feed.next(None) {
                feed.run(ticket).await;
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        // A worker only dies of a panic, which is a bug here or in the caller's
        // source; its attempt was logged as cancelled when its task unwound.
        if let Err(e) = worker
            && e.is_panic()
        {
            std::panic::resume_unwind(e.into_panic());
        }
    }
}

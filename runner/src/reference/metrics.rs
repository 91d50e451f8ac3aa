//! Counters of a server, in the Prometheus text format.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestState {
    /// The answer is complete.
    Completed,
    /// The client left before that.
    Cancelled,
    /// The engine failed.
    Failed,
    /// The request was refused before it was queued.
    Rejected,
}

/// Counters since the server's start, and how many requests run and wait.
#[derive(Debug, Default)]
pub struct Metrics {
    ended: [AtomicU64; 4],
    /// Requests in a slot.
    pub running: Gauge,
    /// Requests that wait for a slot.
    pub waiting: Gauge,
    prompt_tokens: AtomicU64,
    generation_tokens: AtomicU64,
}

impl Metrics {
    /// Counts a request's end.
    pub fn ended(&self, state: RequestState) {
        self.ended[state as usize].fetch_add(1, Relaxed);
    }

    /// Counts processed prompt tokens.
    pub fn prompt_tokens(&self, count: usize) {
        self.prompt_tokens.fetch_add(count as u64, Relaxed);
    }

    /// Counts generated tokens.
    pub fn generation_tokens(&self, count: usize) {
        self.generation_tokens.fetch_add(count as u64, Relaxed);
    }

    /// The text a scraper reads.
    pub fn render(&self) -> String {
        let mut text = String::from("# TYPE runseal_reference_requests_total counter\n");
        for (state, count) in ["completed", "cancelled", "failed", "rejected"]
            .iter()
            .zip(&self.ended)
        {
            let count = count.load(Relaxed);
            text += &format!("runseal_reference_requests_total{{state=\"{state}\"}} {count}\n");
        }
        for (name, kind, value) in [
            ("num_requests_running", "gauge", &self.running.0),
            ("num_requests_waiting", "gauge", &self.waiting.0),
            ("prompt_tokens_total", "counter", &self.prompt_tokens),
            (
                "generation_tokens_total",
                "counter",
                &self.generation_tokens,
            ),
        ] {
            let name = format!("runseal_reference_{name}");
            text += &format!("# TYPE {name} {kind}\n{name} {}\n", value.load(Relaxed));
        }
        // Every prompt is computed whole: there is no cache to serve from.
        text + "# TYPE runseal_reference_cached_tokens_total counter\nrunseal_reference_cached_tokens_total 0\n"
    }
}

/// A number of things that exist right now.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Counts one until the guard is dropped.
    pub fn enter(&self) -> Entered<'_> {
        self.0.fetch_add(1, Relaxed);
        Entered(self)
    }
}

/// One counted thing.
#[derive(Debug)]
pub struct Entered<'g>(&'g Gauge);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

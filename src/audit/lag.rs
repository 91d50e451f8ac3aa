//! How late the client itself was: sampled throughout, summed up once, and held
//! against the figures.

use super::Audit;
use super::life::{odd, torn};
use crate::bundle::Evidence;
use crate::codes::Code;
use crate::event::{Event, State};
use crate::record::RunRecord;
use crate::record::lag::lagging;

/// The client watched its own lateness all through the measurement, and only then.
pub fn client_lag(a: &mut Audit, e: &Evidence) {
    let mut now = State::Declare;
    let mut found = 0;
    let measured = || e.traces.requests.iter().filter(|t| !t.warmup);
    let first = measured().map(|t| t.queued).min();
    let last = measured().filter_map(|t| t.end).max();
    for line in &e.events {
        match &line.event {
            Event::State { state } => now = *state,
            Event::ClientLag {
                state,
                n,
                every,
                p50,
                p99,
                max,
            } => {
                found += 1;
                if (*state, now) != (State::Measure, State::Measure) {
                    odd(a, line, "the client's lag is sampled in measure only");
                }
                if p50 > p99 || p99 > max || *every == 0 || (*n == 0 && *max > 0) {
                    odd(a, line, "no samples can be spread like this");
                }
                if last.is_some_and(|end| line.t < end) {
                    odd(a, line, "it was written before the last attempt ended");
                }
                let spanned = match (first, last) {
                    (Some(from), Some(to)) => to.saturating_sub(from),
                    _ => 0,
                };
                // Samples are due every so often from before the first attempt to
                // after the last, and none is given up.
                if n.saturating_mul(*every).saturating_add(*every) <= spanned {
                    odd(a, line, "there are too few samples for the time measured");
                }
            }
            _ => {}
        }
    }
    if found > 1 {
        a.add(
            Code::EventInconsistent,
            "events.jsonl",
            "the client's lag was summed up more than once",
        );
    }
    // Whoever closes a run cannot know it any more.
    if found == 0 && first.is_some() && !torn(e) {
        a.add(
            Code::EventInconsistent,
            "events.jsonl",
            "there was a measurement and the client did not watch its own lag",
        );
    }
}

/// Notes the figures that the client's own lag may have touched.
pub fn lagging_figures(a: &mut Audit, record: &RunRecord) {
    let Some((lag, ids)) = lagging(record) else {
        return;
    };
    a.add(
        Code::ClientLag,
        "metrics",
        format!(
            "the client was late by {} ns at the 99th percentile, over 1 % of {}",
            lag.p99_ns,
            ids.join(", ")
        ),
    );
}

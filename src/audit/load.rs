//! How the load was sent, against the plan: further attempts only where it declares
//! them, and in an open loop each request due when its schedule says.

use std::collections::BTreeMap;

use super::Audit;
use super::requests::{most_open, subject};
use crate::bundle::Evidence;
use crate::codes::Code;
use crate::event::Event;
use crate::plan::RetryPlan;
use crate::trace::Trace;

/// A retry follows an attempt at the same case and endpoint that ended in a state
/// worth a retry, within the bound; and where one was due, there is one.
pub fn retries(a: &mut Audit, e: &Evidence) {
    let Some(retry) = &e.plan.load.retry else {
        return;
    };
    let mut latest: BTreeMap<(&str, u32), &Trace> = BTreeMap::new();
    for t in e.traces.requests.iter().filter(|t| !t.warmup) {
        let before = latest.insert((t.case.as_str(), t.rep), t);
        let follows = match before {
            None => t.attempt == 0,
            Some(b) => {
                t.attempt == b.attempt + 1
                    && t.endpoint == b.endpoint
                    && wants_another(retry, b)
                    && b.end.is_some_and(|end| end <= t.queued)
            }
        };
        if !follows {
            a.add(
                Code::RequestNotAsPlanned,
                &subject(t),
                "the plan declares no such retry",
            );
        }
    }
    let ended_early = e.events.iter().any(|l| {
        matches!(
            l.event,
            Event::Failure { .. } | Event::Signal { .. } | Event::Refusal { .. }
        )
    });
    if ended_early {
        return;
    }
    for t in latest.values().filter(|t| wants_another(retry, t)) {
        a.add(
            Code::RequestNotAsPlanned,
            &subject(t),
            "the plan declares a retry after it and there is none",
        );
    }
}

fn wants_another(retry: &RetryPlan, t: &Trace) -> bool {
    t.attempt + 1 < retry.attempts && retry.on.contains(&t.transport())
}

/// The first attempts of each stage are queued when they are due: the distance from
/// the first one is that of the schedule, to the nanosecond. A stage begins when
/// the one before it is over.
pub fn due(a: &mut Audit, e: &Evidence) {
    let mut over = 0;
    for (i, stage) in e.plan.load.stages.iter().enumerate() {
        let Some(schedule) = stage.schedule() else {
            return; // Such a plan is not parsed.
        };
        let of_stage = |t: &&Trace| !t.warmup && e.plan.load.stage_of(t.rep) == i;
        let all = || e.traces.requests.iter().filter(of_stage);
        let mut start = None;
        for (t, offset) in all().filter(|t| t.attempt == 0).zip(schedule.offsets()) {
            // What the first one says is the start: before it stands no other stamp.
            let start = *start.get_or_insert(t.queued.saturating_sub(offset));
            if start.checked_add(offset) != Some(t.queued) {
                a.add(
                    Code::RequestNotAsPlanned,
                    &subject(t),
                    "it was not queued when its schedule says",
                );
            }
        }
        if start.is_some_and(|start| start < over) {
            a.add(
                Code::RequestNotAsPlanned,
                &format!("stage {}", i + 1),
                "it began before the one before it had ended",
            );
        }
        over = all().filter_map(|t| t.end).max().unwrap_or(over);
    }
}

/// A batch begins when the one before it is over, and never has more requests open than
/// it says. Its size is the number of its cases.
pub fn batches(a: &mut Audit, e: &Evidence) {
    let declared = e.plan.suite.case_ids.len();
    let in_batches = e.suite_toml.batch_numbers().count();
    if !e.suite_toml.batches.is_empty() && in_batches != declared {
        a.add(
            Code::RequestNotAsPlanned,
            "suite/suite.toml",
            format!("its batches have {in_batches} requests for {declared} declared cases"),
        );
    }
    let cases = e.plan.suite.case_ids.iter();
    let batch_of: BTreeMap<&str, usize> = cases
        .map(String::as_str)
        .zip(e.suite_toml.batch_numbers())
        .collect();
    let mut spans: BTreeMap<(u32, usize), (u64, u64)> = BTreeMap::new();
    let mut of: BTreeMap<(u32, usize), Vec<&Trace>> = BTreeMap::new();
    for t in e.traces.requests.iter().filter(|t| !t.warmup) {
        let Some(batch) = batch_of.get(t.case.as_str()) else {
            continue;
        };
        let end = t.end.unwrap_or(u64::MAX);
        let span = spans.entry((t.rep, *batch)).or_insert((t.queued, end));
        *span = (span.0.min(t.queued), span.1.max(end));
        of.entry((t.rep, *batch)).or_default().push(t);
    }
    for ((rep, batch), traces) in of {
        let most = most_open(traces.into_iter());
        let planned = e.suite_toml.batches[batch].concurrency;
        if most > i64::from(planned) {
            a.add(
                Code::RequestNotAsPlanned,
                &format!("batch {} of repetition {rep}", batch + 1),
                format!("{most} of its requests were open at once, {planned} planned"),
            );
        }
    }
    let mut over = 0;
    for ((rep, batch), (start, end)) in spans {
        if start < over {
            a.add(
                Code::RequestNotAsPlanned,
                &format!("batch {} of repetition {rep}", batch + 1),
                "it began before the one before it had ended",
            );
        }
        over = end;
    }
}

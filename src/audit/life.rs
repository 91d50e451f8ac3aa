//! The life of the run in its log: states in order, processes that start in
//! launch and end in teardown, requests that are sent while their state lasts,
//! samples without silent gaps.
//!
//! A log that breaks these rules was not written by a run, whoever signed it.
//! Runs that failed, were refused or cut short have fewer states, never other ones.

use std::collections::{BTreeMap, BTreeSet};

use super::{Audit, lag};
use crate::bundle::Evidence;
use crate::codes::Code;
use crate::event::{Event, EventLine, State};
use crate::record::status::PATH;

/// Longest pause between samples that needs no gap event, in nanoseconds.
const GAP_NS: u64 = 2_000_000_000;

/// Name of the signal event by which whoever closes a run says that it ended
/// without sealing.
const CLOSED_LATER: &str = "closed-later";

/// True when the run ended before its log did and was closed afterwards: the log
/// may stop anywhere, up to a tenth of a second before what other files show.
pub fn cut_short(e: &Evidence) -> bool {
    let signals = || {
        e.events.iter().filter_map(|l| match &l.event {
            Event::Signal { name } => Some(name.as_str()),
            _ => None,
        })
    };
    let graded = |l: &EventLine| {
        matches!(
            l.event,
            Event::State {
                state: State::Grade
            }
        )
    };
    signals().any(|n| n == CLOSED_LATER)
        || (signals().next().is_some() && !e.events.iter().any(graded))
}

/// True when not all that the run saw was written: it was cut short, or it failed
/// because of that. Other files than the log may lack lines.
pub fn torn(e: &Evidence) -> bool {
    cut_short(e)
        || e.events
            .iter()
            .any(|l| matches!(&l.event, Event::Failure { cause, .. } if cause == "evidence-write"))
}

/// Checks the log's run events.
pub fn run_life(a: &mut Audit, e: &Evidence) {
    declared_first(a, e);
    states(a, e);
    ends(a, e);
    ranks(a, e);
    requests(a, e);
    processes(a, e);
    telemetry(a, e);
    lag::client_lag(a, e);
    a.close(
        "run-life",
        &[
            Code::EventInconsistent,
            Code::PlanMismatch,
            Code::EvidenceMissing,
        ],
    );
}

pub(super) fn odd(a: &mut Audit, line: &EventLine, why: impl Into<String>) {
    let subject = format!("events.jsonl event {}", line.seq);
    a.add(Code::EventInconsistent, &subject, why);
}

/// The log begins with entering `declare` and the declaration: the first request
/// must not be older than what it was declared by.
fn declared_first(a: &mut Audit, e: &Evidence) {
    let first: Vec<&Event> = e.events.iter().take(2).map(|l| &l.event).collect();
    let right = matches!(
        first[..],
        [
            Event::State {
                state: State::Declare
            },
            Event::Declare { .. }
        ]
    );
    if !right {
        a.add(
            Code::EventInconsistent,
            "events.jsonl",
            "it does not begin with the declaration",
        );
    }
}

/// States in order: from declare on without a hole, then collect, teardown and
/// grade. Only a run that was cut short lacks the last three.
fn states(a: &mut Audit, e: &Evidence) {
    let entered: Vec<(&EventLine, usize)> = e
        .events
        .iter()
        .filter_map(|l| match l.event {
            Event::State { state } => Some((l, PATH.iter().position(|s| *s == state)?)),
            _ => None,
        })
        .collect();
    let tail = PATH
        .iter()
        .position(|s| *s == State::Collect)
        .unwrap_or(PATH.len());
    for pair in entered.windows(2) {
        let ((before, from), (line, to)) = (pair[0], pair[1]);
        let follows = to == from + 1 || (from < tail && to == tail);
        if !follows {
            odd(
                a,
                line,
                format!("{} does not follow {}", PATH[to].name(), PATH[from].name()),
            );
        }
        if line.t < before.t {
            odd(a, line, "the state was entered before the one it follows");
        }
    }
    let last = entered.last().map(|(_, i)| *i);
    if last != Some(PATH.len() - 1) && !cut_short(e) {
        a.add(
            Code::EventInconsistent,
            "events.jsonl",
            "a run that was not cut short collects, tears down and grades",
        );
    }
    let closed = e.events.last().map_or(0, |l| l.t);
    // Whoever closes a run knows only the last line's stamp.
    if entered.last().is_some_and(|(l, _)| l.t > closed) && !cut_short(e) {
        a.add(
            Code::EventInconsistent,
            "events.jsonl",
            "it ends before its last state was entered",
        );
    }
}

/// Failures, refusals and signals: in the state that they name, and with their
/// consequences.
fn ends(a: &mut Audit, e: &Evidence) {
    let mut now = State::Declare;
    for (i, line) in e.events.iter().enumerate() {
        match &line.event {
            Event::State { state } => now = *state,
            Event::Failure { state, .. } if *state != now => {
                odd(
                    a,
                    line,
                    format!("a failure in {} noted in {}", state.name(), now.name()),
                );
            }
            Event::Refusal { .. } if now >= State::Launch => {
                odd(a, line, "a refusal after the launch");
            }
            Event::Signal { name } => match name.as_str() {
                "SIGINT" | "SIGTERM" | "SIGHUP" => {}
                // Whoever closes a run adds this and the end, nothing else.
                CLOSED_LATER if i + 2 == e.events.len() => {}
                CLOSED_LATER => odd(a, line, "the log goes on after it was closed"),
                _ => odd(a, line, format!("{name:?} is no signal that ends a run")),
            },
            _ => {}
        }
    }
}

/// Serving processes: one per replica, up in launch, distinct, asked to end only
/// by teardown.
fn ranks(a: &mut Audit, e: &Evidence) {
    let mut now = State::Declare;
    let mut up: BTreeMap<&str, &EventLine> = BTreeMap::new();
    let mut gone: BTreeSet<&str> = BTreeSet::new();
    let (mut pids, mut listening) = (BTreeSet::new(), BTreeSet::new());
    for line in &e.events {
        match &line.event {
            Event::State { state } => now = *state,
            Event::RankUp {
                replica,
                pid,
                start_ticks,
                listen,
            } => {
                let planned = e.plan.replicas.iter().find(|r| r.name == *replica);
                let node = planned.map_or("", |r| r.node.as_str());
                if planned.is_none() {
                    odd(a, line, "the plan has no such replica");
                }
                if now != State::Launch {
                    odd(a, line, "a process was started outside launch");
                }
                if up.insert(replica, line).is_some() {
                    odd(a, line, "a second process for one replica");
                }
                if !pids.insert((node, *pid, *start_ticks)) || !listening.insert((node, listen)) {
                    odd(a, line, "one process stands for two replicas");
                }
            }
            Event::RankAlive { replica, .. } => {
                if now != State::Collect {
                    odd(a, line, "a look at a process outside collect");
                }
                if !up.contains_key(replica.as_str()) {
                    odd(a, line, "a process lives that was not up");
                }
            }
            Event::RankExit {
                replica, expected, ..
            } => {
                let began = up.get(replica.as_str()).map(|l| l.t);
                if began.is_none_or(|t| line.t < t) || !gone.insert(replica) {
                    odd(a, line, "a process ended that was not up");
                }
                if *expected && now < State::Teardown {
                    odd(a, line, "nobody asks a process to end before teardown");
                }
            }
            _ => {}
        }
    }
}

/// Requests happen while their state lasts: warm-ups in warm, the measured ones
/// in measure, and all have ended before collect.
fn requests(a: &mut Audit, e: &Evidence) {
    let mut now = (State::Declare, 0);
    for line in &e.events {
        let Some(req) = line.event.req() else {
            match line.event {
                Event::State { state } => now = (state, line.t),
                Event::Filled { .. } if now.0 != State::Warm => {
                    odd(
                        a,
                        line,
                        "prompts are brought to their length before the measurement",
                    );
                }
                _ => {}
            }
            continue;
        };
        let Some(trace) = e.traces.requests.get(req as usize) else {
            continue;
        };
        let want = match trace.warmup {
            true => State::Warm,
            false => State::Measure,
        };
        if now.0 != want {
            odd(
                a,
                line,
                format!("attempt {req} is not of state {}", now.0.name()),
            );
        } else if line.t < now.1 {
            odd(a, line, "it is older than the state it happened in");
        }
    }
    let collect = e.events.iter().find(|l| {
        matches!(
            l.event,
            Event::State {
                state: State::Collect
            }
        )
    });
    for t in &e.traces.requests {
        let subject = format!("attempt {}", t.req);
        match (t.end, collect) {
            (None, _) if !cut_short(e) => {
                a.add(Code::EventInconsistent, &subject, "it never ended");
            }
            (Some(end), Some(collect)) if end > collect.t => a.add(
                Code::EventInconsistent,
                &subject,
                "it ended after the measurement was over",
            ),
            _ => {}
        }
    }
}

/// image.json and engine/ are about the processes of the log, and complete.
fn processes(a: &mut Audit, e: &Evidence) {
    if e.image.pinned != e.plan.engine.executable || e.image.kind != e.plan.engine.launch {
        a.add(
            Code::PlanMismatch,
            "image.json",
            "it names another program than the plan",
        );
    }
    let ups: BTreeMap<&str, (u32, u64, &str)> = e
        .events
        .iter()
        .filter_map(|l| match &l.event {
            Event::RankUp {
                replica,
                pid,
                start_ticks,
                listen,
            } => Some((replica.as_str(), (*pid, *start_ticks, listen.as_str()))),
            _ => None,
        })
        .collect();
    for replica in e.image.observed.keys() {
        if !ups.contains_key(replica.as_str()) {
            a.add(
                Code::EventInconsistent,
                "image.json",
                format!("it saw a program for {replica}, which was never up"),
            );
        }
    }
    for (replica, engine) in &e.engines {
        let up = ups.get(replica.as_str());
        if up.is_none() && cut_short(e) {
            continue; // Its event was lost with the end of the log.
        }
        if up != Some(&(engine.pid, engine.start_ticks, engine.listen.as_str())) {
            a.add(
                Code::EventInconsistent,
                &format!("engine/{replica}.json"),
                "it is about another process than the log",
            );
        }
    }
    let entered = |want: State| {
        let hit = |l: &EventLine| matches!(l.event, Event::State { state } if state == want);
        e.events.iter().any(hit)
    };
    for replica in e.plan.replicas.iter().map(|r| r.name.as_str()) {
        // Which files a run leaves is fixed by how far it got, so that none can
        // be left out of a bundle unnoticed.
        let json = format!("engine/{replica}.json");
        if entered(State::Ready) && !e.engines.contains_key(replica) {
            a.add(
                Code::EvidenceMissing,
                &json,
                "the run got as far as to have it",
            );
        }
        let log = format!("engine/{replica}.log");
        if ups.contains_key(replica) && !e.logs.contains(&log) {
            a.add(
                Code::EvidenceMissing,
                &log,
                "the run got as far as to have it",
            );
        }
        for checkpoint in &e.plan.checkpoints {
            let name = crate::bundle::evidence::replica_file(replica, &checkpoint.role);
            let key = (replica.to_owned(), checkpoint.role.clone());
            if entered(State::Launch) && !e.replicas.contains_key(&key) {
                a.add(
                    Code::EvidenceMissing,
                    &name,
                    "nothing is launched before it",
                );
            }
        }
    }
}

/// Samples run forwards, on machines of the plan, and cover the measurement but
/// for the gaps that the log admits.
fn telemetry(a: &mut Audit, e: &Evidence) {
    const FILE: &str = "telemetry.jsonl";
    let mut by_node: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut busy: BTreeMap<&str, u64> = BTreeMap::new();
    for s in &e.telemetry {
        let times = by_node.entry(s.node.as_str()).or_default();
        if times.last().is_some_and(|last| s.t < *last) {
            a.add(Code::EventInconsistent, FILE, "its time runs backwards");
        }
        times.push(s.t);
        if let Some(now) = s.cpu_busy_ticks
            && busy.insert(&s.node, now).is_some_and(|last| now < last)
        {
            a.add(
                Code::EventInconsistent,
                FILE,
                "processor time runs backwards",
            );
        }
    }
    let known: BTreeSet<&str> = e.plan.replicas.iter().map(|r| r.node.as_str()).collect();
    for node in by_node.keys().filter(|n| !known.contains(*n)) {
        a.add(
            Code::EventInconsistent,
            FILE,
            format!("{node:?} is no machine of the plan"),
        );
    }
    let measured = || e.traces.requests.iter().filter(|t| !t.warmup);
    let first = measured().map(|t| t.queued).min();
    let last = measured().filter_map(|t| t.end).max();
    let (Some(first), Some(last)) = (first, last) else {
        return;
    };
    if torn(e) {
        return;
    }
    // Of machines that somebody else runs there are no samples.
    if by_node.is_empty() && !known.is_empty() {
        a.add(
            Code::EventInconsistent,
            FILE,
            "there was a measurement and no sample",
        );
    }
    for (node, times) in &by_node {
        let mut edges = vec![first];
        edges.extend(times.iter().filter(|t| **t > first));
        edges.push(last.max(edges.last().copied().unwrap_or(first)));
        for pair in edges.windows(2) {
            let silent = pair[1].saturating_sub(pair[0]) > GAP_NS;
            let admitted = |l: &EventLine| matches!(&l.event, Event::Gap { node: n, .. } if n == node && l.t == pair[1]);
            if silent && !e.events.iter().any(admitted) {
                a.add(
                    Code::EventInconsistent,
                    FILE,
                    format!("a gap from {} to {} is not in the log", pair[0], pair[1]),
                );
            }
        }
    }
}

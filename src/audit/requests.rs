//! Attempts against the plan: which were sent, in what order, where to, how many
//! at once, and with which bytes.

use super::{Audit, life, load};
use crate::bundle::Evidence;
use crate::codes::Code;
use crate::event::{Event, State, is_hidden_address};
use crate::filler::{Filling, MAX_CHARS};
use crate::finding::Finding;
use crate::grading::declared;
use crate::length::{CALIBRATION_TRIES, missed};
use crate::plan::ADDRESSES;
use crate::record::attribution::Listening;
use crate::record::{FixedOutput, RunRecord};
use crate::suite::{AttemptKey, CALIBRATION, WARMUP};
use crate::trace::{Trace, Transport};

/// Attempts against the plan; bodies against plan, case and nonce.
pub fn requests(a: &mut Audit, e: &Evidence) {
    const CODES: &[Code] = &[
        Code::RequestNotAsPlanned,
        Code::EventInconsistent,
        Code::ResponseMissing,
        Code::PeerNotTheEndpoint,
        Code::AddressPublished,
    ];
    measured(a, e);
    load::retries(a, e);
    load::due(a, e);
    load::batches(a, e);
    warmups(a, e);
    calibrations(a, e);
    peers(a, e);
    at_once(a, e);
    missing_answers(a, e);
    let missing = a
        .absent("suite/cases.jsonl")
        .or_else(|| a.absent("responses.jsonl"));
    if let Some((required, why)) = missing {
        // What could be checked without them still counts.
        if a.findings.iter().any(|f| CODES.contains(&f.code)) {
            return a.close("requests", CODES);
        }
        return a.skip("requests", required, &why);
    }
    bodies(a, e);
    a.close("requests", CODES);
}

pub(super) fn subject(t: &Trace) -> String {
    format!("attempt {}", t.req)
}

/// The first measured attempts at each case are the declared ones, in their order,
/// each once, each at the endpoint that the plan gives it. A run that ended early
/// has fewer. Further attempts are the plan's retries.
fn measured(a: &mut Audit, e: &Evidence) {
    let order = declared(&e.plan, &e.traces);
    let first = |t: &&Trace| !t.warmup && (t.attempt == 0 || e.plan.load.retry.is_none());
    for (i, t) in e.traces.requests.iter().filter(first).enumerate() {
        match order.get(i) {
            Some(d) if (d.case, d.rep, 0) == (t.case.as_str(), t.rep, t.attempt) => {
                if e.plan.endpoint_of(i).name != t.endpoint {
                    a.add(
                        Code::RequestNotAsPlanned,
                        &subject(t),
                        "it went to another endpoint than planned",
                    );
                }
            }
            _ => a.add(
                Code::EventInconsistent,
                &subject(t),
                "the plan declares another attempt here, or none",
            ),
        }
    }
}

/// The declared warm-ups of each endpoint, in turn, and nothing else before the measurement, each
/// completed: it is also the endpoint's canary.
fn warmups(a: &mut Audit, e: &Evidence) {
    let of_suite = |t: &&Trace| t.warmup && t.case == WARMUP;
    let found: Vec<&Trace> = e.traces.requests.iter().filter(of_suite).collect();
    for (i, t) in found.iter().enumerate() {
        let planned = e.plan.endpoints.get(i % e.plan.endpoints.len().max(1));
        let count = e.suite_toml.warmup.as_ref().map_or(0, |w| w.count as usize);
        let right = i < count * e.plan.endpoints.len()
            && (t.case.as_str(), t.rep as usize, t.attempt) == (WARMUP, i, 0)
            && planned.is_some_and(|p| p.name == t.endpoint);
        if !right {
            a.add(
                Code::EventInconsistent,
                &subject(t),
                "no such warm-up is declared",
            );
        }
    }
    let measures = e.events.iter().any(|l| {
        matches!(
            l.event,
            Event::State {
                state: State::Measure
            }
        )
    });
    let want = match &e.suite_toml.warmup {
        Some(w) => e.plan.endpoints.len() * w.count as usize,
        None => 0,
    };
    let good = found
        .iter()
        .filter(|t| t.transport() == Transport::Completed)
        .count();
    if measures && good != want {
        a.add(
            Code::EventInconsistent,
            "events.jsonl",
            format!("{good} of {want} warm-ups completed, and yet it went on to measure"),
        );
    }
}

/// Calibration requests come after the other warm-ups, only where the plan has prompts
/// filled, each at the endpoint of its case's first attempt, its tries counted up, and
/// behind a word on how its prompt is filled. Each completed, or nothing was measured.
fn calibrations(a: &mut Audit, e: &Evidence) {
    let mut tries: std::collections::BTreeMap<&str, u32> = Default::default();
    let measured = e.traces.requests.iter().any(|t| !t.warmup);
    for line in &e.events {
        let Event::Filled { case, chars } = &line.event else {
            continue;
        };
        let known = e.plan.suite.case_ids.contains(case);
        if e.plan.input.is_none() || !known || *chars > MAX_CHARS {
            let why = "the plan fills no such prompt, or with less text";
            super::life::odd(a, line, why);
        }
    }
    let mut after = false;
    for t in e.traces.requests.iter().filter(|t| t.warmup) {
        if t.case == WARMUP {
            if after {
                let why = "the warm-ups of the suite come before calibration";
                a.add(Code::EventInconsistent, &subject(t), why);
            }
            continue;
        }
        after = true;
        let tried = tries.entry(&t.case).or_default();
        let index = e.plan.suite.case_ids.iter().position(|c| *c == t.case);
        let right = e.plan.input.is_some()
            && (t.rep, t.attempt) == (*tried, 0)
            && t.rep < CALIBRATION_TRIES
            && index.is_some_and(|i| e.plan.endpoint_of(i).name == t.endpoint);
        *tried += 1;
        if !right {
            let why = "no such calibration request is declared";
            a.add(Code::EventInconsistent, &subject(t), why);
        }
        if measured && t.transport() != Transport::Completed {
            let why = "its calibration did not complete, and yet the run went on to measure";
            a.add(Code::EventInconsistent, &subject(t), why);
        }
    }
}

/// Claims of the plan that the evidence does not bear out, for people; the record has
/// them as limitations.
pub fn claims(a: &mut Audit, record: &RunRecord) {
    if let Some(FixedOutput::Refused { reason }) = &record.requests.fixed_output {
        a.add(Code::FixedOutputRefused, "requests", reason.as_str());
    }
    if let Some((declared, n, ranges)) = missed(&record.input.lengths) {
        let detail = format!(
            "{n} of {declared} declared attempts missed their length target by more than 2 % or were not counted; \
             counted: {ranges}"
        );
        a.add(Code::LengthTargetMissed, "input", detail);
    }
}

/// An endpoint that somebody else runs has no address in the log, and one only; where
/// the address is in hand, it is the one that stands for it.
fn remote_peers(a: &mut Audit, e: &Evidence) {
    let mut seen: std::collections::BTreeMap<&str, &str> = Default::default();
    for t in &e.traces.requests {
        let Some(peer) = &t.peer else { continue };
        if !is_hidden_address(peer) {
            let why = "its connection shows the address of an endpoint that somebody else runs";
            a.add(Code::AddressPublished, &subject(t), why);
            continue;
        }
        let want = match &e.addresses {
            Some(file) => file.hidden(&t.endpoint).unwrap_or_default(),
            None => (*seen.entry(&t.endpoint).or_insert(peer)).to_owned(),
        };
        if *peer != want {
            let why = format!("its connection did not lead to endpoint {}", t.endpoint);
            a.findings
                .push(Finding::new(Code::PeerNotTheEndpoint, subject(t), why).values(want, peer));
        }
    }
    match a.absent(ADDRESSES) {
        Some((required, why)) => a.skip("addresses", required, &why),
        None => a.close(
            "addresses",
            &[Code::PeerNotTheEndpoint, Code::AddressPublished],
        ),
    }
}

/// Every connection led to a process that this run launched for the endpoint
/// that the attempt names.
fn peers(a: &mut Audit, e: &Evidence) {
    if e.plan.is_remote() {
        return remote_peers(a, e);
    }
    let listening = Listening::of(e);
    for t in &e.traces.requests {
        let Some(peer) = &t.peer else { continue };
        if !listening.leads_to(&t.endpoint, peer) {
            let want = listening.at(&t.endpoint);
            a.findings.push(
                Finding::new(
                    Code::PeerNotTheEndpoint,
                    subject(t),
                    format!("its connection did not lead to endpoint {}", t.endpoint),
                )
                .values(if want.is_empty() { "nothing" } else { &want }, peer),
            );
        }
    }
}

/// Most requests of these that were open at once.
pub(super) fn most_open<'a>(traces: impl Iterator<Item = &'a Trace>) -> i64 {
    let mut edges: Vec<(u64, i64)> = Vec::new();
    for t in traces {
        let Some(send) = t.send else { continue };
        // A span of no length opens nothing, and half-open spans that touch do
        // not overlap: ends sort before starts.
        let end = t.end.unwrap_or(u64::MAX);
        if end > send {
            edges.extend([(send, 1), (end, -1)]);
        }
    }
    edges.sort_unstable();
    let (mut open, mut most) = (0i64, 0i64);
    for (_, step) in edges {
        open += step;
        most = most.max(open);
    }
    most
}

/// A closed loop never has more requests open than it has clients.
fn at_once(a: &mut Audit, e: &Evidence) {
    let most = most_open(e.traces.requests.iter().filter(|t| !t.warmup));
    let clients = i64::from(e.plan.load.concurrency);
    if most > clients {
        a.add(
            Code::RequestNotAsPlanned,
            "events.jsonl",
            format!("{most} requests were open at once, with {clients} client(s) planned"),
        );
    }
}

/// Every attempt that ended left its answer, even an empty one.
fn missing_answers(a: &mut Audit, e: &Evidence) {
    let Some(responses) = &e.responses else {
        return;
    };
    if life::torn(e) {
        return;
    }
    for t in e.traces.requests.iter().filter(|t| t.end.is_some()) {
        if !responses.contains_key(&t.req) {
            a.add(
                Code::ResponseMissing,
                &subject(t),
                "it ended and has no line in responses.jsonl",
            );
        }
    }
}

fn bodies(a: &mut Audit, e: &Evidence) {
    let (Some(suite), Some(responses), Some(nonce)) =
        (&e.suite, &e.responses, super::evidence::nonce(e))
    else {
        return a.add(
            Code::EvidenceMissing,
            "suite/cases.jsonl, responses.jsonl",
            "request bodies cannot be built again without cases, answers and nonce",
        );
    };
    let chars = filled(e);
    for t in e.traces.requests.iter().filter(|t| t.body.is_some()) {
        let Some(response) = responses.get(&t.req) else {
            continue;
        };
        let key = AttemptKey {
            case: t.case.clone(),
            rep: t.rep,
            attempt: match t.warmup && t.case != WARMUP {
                true => CALIBRATION,
                false => t.attempt,
            },
        };
        let chars = chars.get(t.req as usize).copied().unwrap_or(0);
        let filling = e.plan.input.as_ref().map(|input| Filling {
            language: input.language,
            chars,
        });
        // A body holds at least its text: more of it need not be built to be wrong.
        let room = t.body.map_or(0, |(len, _)| len).min(MAX_CHARS);
        let body = match chars <= room {
            true => suite.filled_body(&e.plan.requests, &nonce, &key, filling),
            false => None,
        };
        if body.is_none_or(|b| !response.check_body(t, &b)) {
            a.add(
                Code::RequestNotAsPlanned,
                &subject(t),
                "plan, case and nonce give another request body",
            );
        }
    }
}

/// How much text each attempt's prompt was filled with, by number: what the log said of
/// its case when it was queued.
fn filled(e: &Evidence) -> Vec<u64> {
    let mut now: std::collections::BTreeMap<&str, u64> = Default::default();
    let mut out = Vec::new();
    for line in &e.events {
        match &line.event {
            Event::Filled { case, chars } => {
                now.insert(case, *chars);
            }
            Event::Queued { case, .. } => out.push(now.get(case.as_str()).copied().unwrap_or(0)),
            _ => {}
        }
    }
    out
}

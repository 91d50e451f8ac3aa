//! Attempts against the plan: which were sent, in what order, where to, how many
//! at once, and with which bytes.

use super::{Audit, life, load};
use crate::bundle::Evidence;
use crate::codes::Code;
use crate::event::{Event, State};
use crate::finding::Finding;
use crate::grading::declared;
use crate::record::attribution::Listening;
use crate::suite::{AttemptKey, WARMUP};
use crate::trace::{Trace, Transport};

/// Attempts against the plan; bodies against plan, case and nonce.
pub fn requests(a: &mut Audit, e: &Evidence) {
    const CODES: &[Code] = &[
        Code::RequestNotAsPlanned,
        Code::EventInconsistent,
        Code::ResponseMissing,
        Code::PeerNotTheEndpoint,
    ];
    measured(a, e);
    load::retries(a, e);
    load::due(a, e);
    load::batches(a, e);
    warmups(a, e);
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
    let found: Vec<&Trace> = e.traces.requests.iter().filter(|t| t.warmup).collect();
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

/// Every connection led to a process that this run launched for the endpoint
/// that the attempt names.
fn peers(a: &mut Audit, e: &Evidence) {
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
    for t in e.traces.requests.iter().filter(|t| t.body.is_some()) {
        let Some(response) = responses.get(&t.req) else {
            continue;
        };
        let key = AttemptKey {
            case: t.case.clone(),
            rep: t.rep,
            attempt: t.attempt,
        };
        let body = suite.body(&e.plan.requests, &nonce, &key);
        if body.is_none_or(|b| !response.check_body(t, &b)) {
            a.add(
                Code::RequestNotAsPlanned,
                &subject(t),
                "plan, case and nonce give another request body",
            );
        }
    }
}

//! Edits of how the load was sent: where connections led, when requests were due,
//! what was tried again, and how late the client was.

use runseal::event::body_digest;
use runseal::plan::RunPlan;
use runseal::response::Response;
use runseal::suite::{AttemptKey, Suite};

use super::*;

fn connected(e: &Event) -> bool {
    matches!(e, Event::Connected { .. })
}

fn lag(e: &Event) -> bool {
    matches!(e, Event::ClientLag { .. })
}

/// Edits the summary of the client's lag.
fn on_lag(raw: &mut RawBundle, edit: impl FnOnce(&mut u64, &mut u64, &mut u64, &mut u64)) {
    edit_events(raw, |l| {
        let i = at(l, |l| lag(&l.event));
        if let Event::ClientLag {
            n, p50, p99, max, ..
        } = &mut l[i].event
        {
            edit(n, p50, p99, max);
        }
    });
}

/// Shifts the whole of one attempt.
fn shifted(raw: &mut RawBundle, req: u32, ns: u64) {
    edit_events(raw, |lines| {
        for l in lines.iter_mut().filter(|l| is(req, l)) {
            l.t += ns;
        }
    });
}

/// Number of the last attempt of the open bundle: two warm-ups, two stages of four.
const LAST: u32 = 9;

/// Turns the last attempt into a declared retry of one that found no connection, as
/// the client would have logged it.
fn retried(raw: &mut RawBundle) {
    for name in ["events.jsonl", "responses.jsonl"] {
        let bytes = file(raw, name);
        let text = String::from_utf8(bytes.clone()).unwrap();
        let text = text.replace("\"req\":9,", "\"req\":10,");
        *bytes = text.replace("\"req\":9}", "\"req\":10}").into();
    }
    let plan = RunPlan::parse(&raw.files[&path("plan.json")]).unwrap();
    let suite = Suite::parse(
        &raw.files[&path("suite/suite.toml")],
        &raw.files[&path("suite/cases.jsonl")],
    )
    .unwrap();
    let mut salt = [0u8; 32];
    edit_lines(raw, "responses.jsonl", |lines| {
        let second = lines.iter().find(|l| l["req"] == 10).unwrap().clone();
        hex::decode_to_slice(second["salt"].as_str().unwrap(), &mut salt).unwrap();
        let first = Response {
            req: LAST,
            salt: hex::encode(salt),
            ..Response::default()
        };
        lines.push(serde_json::to_value(first).unwrap());
    });
    edit_events(raw, |lines| {
        let nonce = lines.iter().find_map(|l| match &l.event {
            Event::Declare { nonce, .. } => Some(nonce.clone()),
            _ => None,
        });
        let mut key = [0u8; 32];
        hex::decode_to_slice(nonce.unwrap(), &mut key).unwrap();
        let i = at(lines, |l| is(10, l));
        let j = nth(lines, 10, 0, |e| matches!(e, Event::Body { .. }));
        let (mut queued, mut body) = (lines[i].clone(), lines[j].clone());
        let t = queued.t;
        if let Event::Queued { attempt, .. } = &mut lines[i].event {
            *attempt = 1;
        }
        lines[i].t = t + 3;
        let (case, rep) = match &mut queued.event {
            Event::Queued { req, case, rep, .. } => {
                *req = LAST;
                (case.clone(), *rep)
            }
            _ => panic!("queued"),
        };
        if let Event::Body { req, .. } = &mut body.event {
            *req = LAST;
        }
        body.t = t + 1;
        if let Event::Body { len, digest, .. } = &mut lines[j].event {
            let again = AttemptKey {
                case,
                rep,
                attempt: 1,
            };
            let bytes = suite.body(&plan.requests, &key, &again).unwrap();
            (*len, *digest) = (bytes.len() as u64, body_digest(&salt, &bytes));
        }
        let (req, cause) = (LAST, EndCause::ConnectError);
        let more = [
            (t + 2, Event::ConnectStart { req }),
            (t + 3, Event::End { req, cause }),
        ];
        let more = more.map(|(t, event)| EventLine { seq: 0, t, event });
        lines.splice(i..i, [queued, body].into_iter().chain(more));
    });
}

pub fn edits() -> Vec<Edit> {
    vec![
        says!(
            "retry-as-the-plan-declares-it",
            OPEN,
            "/cases/7/flags/0",
            "retried",
            retried
        ),
        edit!(
            "retry-while-the-first-attempt-still-went-on",
            OPEN,
            [RequestNotAsPlanned],
            |raw| {
                retried(raw);
                edit_events(raw, |l| {
                    let i = nth(l, LAST, 0, |e| matches!(e, Event::End { .. }));
                    l[i].t += 1;
                })
            }
        ),
        edit!(
            "retry-that-the-plan-does-not-declare",
            OPEN,
            [RequestNotAsPlanned],
            |raw| {
                retried(raw);
                edit_events(raw, |l| {
                    let i = nth(l, LAST, 0, |e| matches!(e, Event::End { .. }));
                    if let Event::End { cause, .. } = &mut l[i].event {
                        *cause = EndCause::FirstTokenTimeout;
                    }
                })
            }
        ),
        edit!(
            "connection-led-elsewhere",
            COMPLETED,
            [PeerNotTheEndpoint],
            |raw| one(raw, 0, connected, |l| {
                if let Event::Connected { peer, .. } = &mut l.event {
                    *peer = "192.0.2.1:443".into();
                }
            })
        ),
        edit!(
            "connection-led-to-another-port",
            COMPLETED,
            [PeerNotTheEndpoint],
            |raw| one(raw, 0, connected, |l| {
                if let Event::Connected { peer, .. } = &mut l.event {
                    *peer = "127.0.0.1:1".into();
                }
            })
        ),
        edit!(
            "connection-led-to-another-replica",
            COMPLETED,
            [PeerNotTheEndpoint],
            |raw| edit_events(raw, |l| {
                let other = nth(l, FIRST + 1, 0, connected);
                let Event::Connected { peer: theirs, .. } = l[other].event.clone() else {
                    panic!("a connection");
                };
                let i = nth(l, FIRST, 0, connected);
                if let Event::Connected { peer, .. } = &mut l[i].event {
                    *peer = theirs;
                }
            })
        ),
        edit!(
            "peer-is-no-address",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                one(raw, 0, connected, |l| {
                    if let Event::Connected { peer, .. } = &mut l.event {
                        *peer = "localhost:80".into();
                    }
                })
            }
        ),
        edit!(
            "peer-of-all-attempts-and-where-the-engine-listens-edited",
            COMPLETED,
            [],
            |raw| {
                let mut old = String::new();
                edit_events(raw, |l| {
                    let up = at(l, |l| matches!(l.event, Event::RankUp { .. }));
                    if let Event::RankUp { listen, .. } = &mut l[up].event {
                        old = std::mem::replace(listen, "192.0.2.1:443".into());
                    }
                    for line in l {
                        if let Event::Connected { peer, .. } = &mut line.event
                            && *peer == old
                        {
                            *peer = "192.0.2.1:443".into();
                        }
                    }
                });
                set(raw, "engine/r0.json", "/listen", json!("192.0.2.1:443"));
            }
        ),
        // --- lag ---
        edit!("lag-dropped", COMPLETED, [EventInconsistent], |raw| {
            edit_events(raw, |l| l.retain(|l| !lag(&l.event)))
        }),
        edit!("lag-twice", COMPLETED, [EventInconsistent], |raw| {
            edit_events(raw, |l| {
                let i = at(l, |l| lag(&l.event));
                l.insert(i, l[i].clone());
            })
        }),
        edit!(
            "lag-of-few-samples",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                on_lag(raw, |n, _, _, _| *n /= 2);
            }
        ),
        edit!("lag-unordered", COMPLETED, [EventInconsistent], |raw| {
            on_lag(raw, |_, _, p99, max| *p99 = *max + 1);
        }),
        edit!(
            "lag-of-another-state",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                edit_events(raw, |l| {
                    let i = at(l, |l| lag(&l.event));
                    if let Event::ClientLag { state, .. } = &mut l[i].event {
                        *state = State::Warm;
                    }
                })
            }
        ),
        edit!(
            "lag-before-the-last-end",
            COMPLETED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                let i = at(l, |l| lag(&l.event));
                let line = l.remove(i);
                let to = at(l, measured);
                l.insert(to, EventLine { t: l[to].t, ..line });
            })
        ),
        edit!("lag-made-small", COMPLETED, [], |raw| {
            on_lag(raw, |_, p50, p99, max| (*p50, *p99, *max) = (1, 2, 3));
        }),
        // --- schedule ---
        edit!("due-later", OPEN, [RequestNotAsPlanned], |raw| {
            edit_events(raw, |l| {
                let i = nth(l, FIRST + 1, 0, |e| matches!(e, Event::Queued { .. }));
                l[i].t += 1;
            })
        }),
        edit!(
            "sent-another-time-than-due",
            OPEN,
            [RequestNotAsPlanned],
            |raw| {
                shifted(raw, LAST, 1_000);
            }
        ),
        edit!(
            "another-seed-than-planned",
            OPEN,
            [PlanMismatch, ReplicaReportMismatch, RequestNotAsPlanned],
            |raw| set(raw, "plan.json", "/load/stages/1/seed", json!(8))
        ),
        // --- retries ---
        edit!(
            "retry-left-out",
            OPEN,
            [RequestNotAsPlanned, GradeNotReproduced],
            |raw| edit_events(raw, |l| {
                let i = nth(l, LAST, 0, |e| matches!(e, Event::Headers { .. }));
                if let Event::Headers { status, .. } = &mut l[i].event {
                    *status = 500;
                }
            })
        ),
        edit!(
            "first-attempt-made-a-retry",
            OPEN,
            [RequestNotAsPlanned],
            |raw| edit_events(raw, |l| {
                let i = nth(l, LAST, 0, |e| matches!(e, Event::Queued { .. }));
                if let Event::Queued { attempt, .. } = &mut l[i].event {
                    *attempt = 1;
                }
            })
        ),
    ]
}

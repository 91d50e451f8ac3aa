//! Edits of how the load was sent: where connections led, when requests were due,
//! what was tried again, and how late the client was.

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

pub fn edits() -> Vec<Edit> {
    vec![
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

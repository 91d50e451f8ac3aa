//! Edits of how requests ended, of what servers say, and of times.

use super::*;

pub fn edits() -> Vec<Edit> {
    vec![
        edit!(
            "finish-reason-dropped",
            COMPLETED,
            [GradeNotReproduced],
            |raw| {
                without(raw, 0, |e| matches!(e, Event::Finish { .. }));
            }
        ),
        edit!(
            "finish-reason-edited",
            COMPLETED,
            [GradeNotReproduced],
            |raw| {
                one(
                    raw,
                    0,
                    |e| matches!(e, Event::Finish { .. }),
                    |l| {
                        if let Event::Finish { reason, .. } = &mut l.event {
                            *reason = "length".into();
                        }
                    },
                );
            }
        ),
        edit!(
            "finish-reason-made-an-abort",
            COMPLETED,
            [GradeNotReproduced],
            |raw| {
                one(
                    raw,
                    0,
                    |e| matches!(e, Event::Finish { .. }),
                    |l| {
                        if let Event::Finish { reason, .. } = &mut l.event {
                            *reason = "abort".into();
                        }
                    },
                );
            }
        ),
        edit!(
            "finish-reason-of-a-failed-case-edited",
            COMPLETED,
            [],
            |raw| edit_events(raw, |l| {
                // case-05, whose answer is wrong anyway.
                let i = nth(l, 4, 0, |e| matches!(e, Event::Finish { .. }));
                if let Event::Finish { reason, .. } = &mut l[i].event {
                    *reason = "length".into();
                }
            })
        ),
        edit!("status-edited", COMPLETED, [GradeNotReproduced], |raw| {
            one(
                raw,
                0,
                |e| matches!(e, Event::Headers { .. }),
                |l| {
                    if let Event::Headers { status, .. } = &mut l.event {
                        *status = 503;
                    }
                },
            );
        }),
        edit!(
            "truncated-attempt-made-complete",
            FAILED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                let i = nth(l, 3, 0, |e| matches!(e, Event::End { .. }));
                if let Event::End { cause, .. } = &mut l[i].event {
                    *cause = EndCause::Done;
                }
            })
        ),
        edit!(
            "truncated-attempt-made-a-time-out",
            FAILED,
            [GradeNotReproduced],
            |raw| edit_events(raw, |l| {
                let i = nth(l, 3, 0, |e| matches!(e, Event::End { .. }));
                if let Event::End { cause, .. } = &mut l[i].event {
                    *cause = EndCause::StallTimeout;
                }
            })
        ),
        edit!(
            "requests-made-to-overlap",
            COMPLETED,
            [RequestNotAsPlanned],
            |raw| edit_events(raw, |l| {
                // The second measured attempt begins while the first is open.
                let open = l[nth(l, FIRST, 0, delta)].t;
                for line in l.iter_mut().filter(|l| is(FIRST + 1, l)) {
                    if matches!(
                        line.event,
                        Event::Queued { .. }
                            | Event::Body { .. }
                            | Event::ConnectStart { .. }
                            | Event::Connected { .. }
                            | Event::Send { .. }
                    ) {
                        line.t = open;
                    }
                }
            })
        ),
        edit!("usage-edited", COMPLETED, [], |raw| one(
            raw,
            0,
            usage,
            |l| {
                if let Event::Usage { completion, .. } = &mut l.event {
                    *completion = completion.map(|n| n * 2);
                }
            }
        )),
        says!(
            "usage-dropped",
            COMPLETED,
            "/metrics/0/note",
            "incomplete: 1 completed attempts without a token count",
            |raw| without(raw, 0, usage)
        ),
        says!(
            "cached-tokens-edited",
            COMPLETED,
            "/cache/proof",
            "refused",
            |raw| one(raw, 0, usage, |l| {
                if let Event::Usage { cached, .. } = &mut l.event {
                    *cached = Some(40);
                }
            })
        ),
        edit!("all-later-times-shifted", COMPLETED, [], |raw| later(
            raw,
            FIRST + 1,
            5_000
        )),
        edit!(
            "later-times-shifted-past-the-clock",
            COMPLETED,
            [EventInconsistent, ReplicaReportMismatch],
            |raw| {
                later(raw, FIRST + 1, 60_000_000_000);
            }
        ),
        edit!(
            "epoch-shifted-alone",
            COMPLETED,
            [EventInconsistent, ReplicaReportMismatch],
            |raw| {
                shift_epoch(raw);
            }
        ),
        edit!("epoch-not-in-utc", COMPLETED, [EventMalformed], |raw| {
            let text = String::from_utf8(file(raw, "events.jsonl").clone()).unwrap();
            *file(raw, "events.jsonl") = text
                .replacen("Z\",\"format\"", "+00:00\",\"format\"", 1)
                .into();
        }),
        edit!(
            "stamp-of-one-read-and-all-in-it-edited",
            COMPLETED,
            [],
            |raw| edit_events(raw, |l| {
                // The read of the third chunk and all that it held, one nanosecond later.
                let i = nth(l, FIRST, 2, read);
                let (Event::Read { read: n, .. }, t) = (l[i].event.clone(), l[i].t) else {
                    panic!("a read");
                };
                for line in l
                    .iter_mut()
                    .filter(|l| is(FIRST, l) && l.event.read() == Some(n))
                {
                    line.t = t + 1;
                }
            })
        ),
    ]
}

fn shift_epoch(raw: &mut RawBundle) {
    let bytes = file(raw, "events.jsonl");
    let end = bytes.iter().position(|b| *b == b'\n').unwrap();
    let mut head: Value = json::parse(&bytes[..end]).unwrap();
    let epoch: jiff::Timestamp = head["epoch"].as_str().unwrap().parse().unwrap();
    let to = epoch + jiff::SignedDuration::from_hours(1);
    head["epoch"] = json!(to.to_string());
    let mut new = json::canonical(&head);
    new.extend_from_slice(&bytes[end..]);
    *bytes = new;
}

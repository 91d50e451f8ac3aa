//! Edits of the requests in the log.

use super::*;

pub fn edits() -> Vec<Edit> {
    vec![
        edit!("delta-dropped", COMPLETED, [ResponseMismatch], |raw| {
            without(raw, 3, delta)
        }),
        edit!("delta-twice", COMPLETED, [ResponseMismatch], |raw| {
            edit_events(raw, |l| {
                let i = nth(l, FIRST, 3, delta);
                l.insert(i, l[i].clone());
            })
        }),
        edit!("deltas-swapped", COMPLETED, [EventInconsistent], |raw| {
            edit_events(raw, |l| {
                let (i, j) = (nth(l, FIRST, 3, delta), nth(l, FIRST, 8, delta));
                l.swap(i, j);
            })
        }),
        edit!(
            "delta-digest-edited",
            COMPLETED,
            [ResponseMismatch],
            |raw| one(raw, 3, delta, |l| {
                if let Event::Delta { digest, .. } = &mut l.event {
                    *digest = "ab".repeat(16);
                }
            })
        ),
        edit!(
            "delta-length-edited",
            COMPLETED,
            [ResponseMismatch],
            |raw| one(raw, 3, delta, |l| {
                if let Event::Delta { len, .. } = &mut l.event {
                    *len += 1;
                }
            })
        ),
        edit!(
            "delta-made-reasoning",
            COMPLETED,
            [ResponseMismatch],
            |raw| one(raw, 3, delta, |l| {
                if let Event::Delta { kind, .. } = &mut l.event {
                    *kind = runseal::event::DeltaKind::Reasoning;
                }
            })
        ),
        edit!(
            "delta-earlier-than-its-read",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                one(raw, 0, delta, |l| l.t -= 1);
            }
        ),
        edit!(
            "delta-later-than-its-read",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                one(raw, 0, delta, |l| l.t += 1);
            }
        ),
        edit!(
            "delta-of-a-read-that-never-was",
            COMPLETED,
            [EventInconsistent],
            |raw| one(raw, 0, delta, |l| {
                if let Event::Delta { read, .. } = &mut l.event {
                    *read += 1;
                }
            })
        ),
        edit!("read-dropped", COMPLETED, [EventInconsistent], |raw| {
            without(raw, 0, read)
        }),
        edit!(
            "read-shrunk-under-its-text",
            COMPLETED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                for line in l.iter_mut().filter(|l| is(FIRST, l)) {
                    if let Event::Read { bytes, .. } = &mut line.event {
                        *bytes = 1;
                    }
                }
            })
        ),
        edit!("number-past-2-53", COMPLETED, [EventInconsistent], |raw| {
            one(raw, 0, read, |l| {
                if let Event::Read { bytes, .. } = &mut l.event {
                    *bytes = u64::MAX;
                }
            })
        }),
        edit!("send-dropped", COMPLETED, [EventInconsistent], |raw| {
            without(raw, 0, |e| matches!(e, Event::Send { .. }));
        }),
        edit!(
            "send-after-the-answer",
            COMPLETED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                let i = nth(l, FIRST, 0, |e| matches!(e, Event::Send { .. }));
                let line = l.remove(i);
                let j = nth(l, FIRST, 0, delta);
                l.insert(j, line);
            })
        ),
        edit!("send-later", COMPLETED, [EventInconsistent], |raw| {
            one(
                raw,
                0,
                |e| matches!(e, Event::Send { .. }),
                |l| l.t += 10_000_000_000,
            );
        }),
        edit!("send-a-little-later", COMPLETED, [], |raw| {
            one(raw, 0, |e| matches!(e, Event::Send { .. }), |l| l.t += 1);
        }),
        edit!("sent-twice", COMPLETED, [EventInconsistent], |raw| {
            edit_events(raw, |l| {
                let i = nth(l, FIRST, 0, |e| matches!(e, Event::Send { .. }));
                l.insert(i, l[i].clone());
            })
        }),
        edit!(
            "body-digest-edited",
            COMPLETED,
            [RequestNotAsPlanned],
            |raw| {
                one(
                    raw,
                    0,
                    |e| matches!(e, Event::Body { .. }),
                    |l| {
                        if let Event::Body { digest, .. } = &mut l.event {
                            *digest = Sha256Digest([1; 32]);
                        }
                    },
                );
            }
        ),
        edit!("body-dropped", COMPLETED, [EventInconsistent], |raw| {
            without(raw, 0, |e| matches!(e, Event::Body { .. }));
        }),
        edit!(
            "kept-alive-and-made",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                one(
                    raw,
                    0,
                    |e| matches!(e, Event::Connected { .. }),
                    |l| {
                        if let Event::Connected { reused, .. } = &mut l.event {
                            *reused = !*reused;
                        }
                    },
                );
            }
        ),
        edit!(
            "end-dropped",
            COMPLETED,
            [EventInconsistent, RequestNotAsPlanned, GradeNotReproduced],
            |raw| {
                without(raw, 0, |e| matches!(e, Event::End { .. }));
            }
        ),
        edit!("end-without-done", COMPLETED, [EventInconsistent], |raw| {
            without(raw, 0, |e| matches!(e, Event::Done { .. }));
        }),
        edit!(
            "end-moved-to-the-end",
            COMPLETED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                let i = nth(l, FIRST, 0, |e| matches!(e, Event::End { .. }));
                let line = l.remove(i);
                let to = l.len() - 1;
                l.insert(to, line);
            })
        ),
        edit!("queued-dropped", COMPLETED, [EventInconsistent], |raw| {
            edit_events(raw, |l| {
                let i = at(l, measured);
                l.remove(i);
            })
        }),
        edit!("attempt-dropped", COMPLETED, [EventInconsistent], |raw| {
            edit_events(raw, |l| {
                l.retain(|l| !is(FIRST, l));
            })
        }),
        edit!(
            "last-attempt-dropped",
            COMPLETED,
            [ResponseMissing, GradeNotReproduced],
            |raw| {
                edit_events(raw, |l| l.retain(|l| !is(5, l)));
            }
        ),
        says!(
            "last-attempt-dropped-with-answer-and-grade",
            COMPLETED,
            "/run/cause",
            "cases-not-attempted",
            |raw| {
                edit_events(raw, |l| l.retain(|l| !is(5, l)));
                edit_lines(raw, "responses.jsonl", |l| {
                    l.pop();
                });
                edit_lines(raw, "grades.jsonl", |l| {
                    let last = l.last_mut().unwrap();
                    last.as_object_mut().unwrap().remove("check");
                    last["grade"] = json!("ungraded");
                    last["reason"] = json!("transport not_attempted");
                });
            }
        ),
        edit!(
            "attempt-made-a-retry",
            COMPLETED,
            [EventInconsistent, RequestNotAsPlanned],
            |raw| {
                edit_events(raw, |l| {
                    let i = at(l, measured);
                    if let Event::Queued { attempt, .. } = &mut l[i].event {
                        *attempt = 1;
                    }
                });
            }
        ),
        edit!(
            "attempt-made-a-warm-up",
            COMPLETED,
            [EventInconsistent, GradeNotReproduced, RequestNotAsPlanned],
            |raw| {
                edit_events(raw, |l| {
                    let i = at(l, measured);
                    if let Event::Queued { warmup, case, .. } = &mut l[i].event {
                        (*warmup, *case) = (true, "warmup".into());
                    }
                });
            }
        ),
        edit!(
            "attempt-of-another-case",
            COMPLETED,
            [EventInconsistent, GradeNotReproduced, RequestNotAsPlanned],
            |raw| {
                edit_events(raw, |l| {
                    let i = at(l, measured);
                    if let Event::Queued { case, .. } = &mut l[i].event {
                        *case = "case-99".into();
                    }
                });
            }
        ),
        edit!(
            "attempt-at-another-endpoint",
            COMPLETED,
            [RequestNotAsPlanned, PeerNotTheEndpoint],
            |raw| {
                edit_events(raw, |l| {
                    let i = at(l, measured);
                    if let Event::Queued { endpoint, .. } = &mut l[i].event {
                        *endpoint = if endpoint == "r0" {
                            "r1".into()
                        } else {
                            "r0".into()
                        };
                    }
                });
            }
        ),
        edit!(
            "warm-up-dropped-and-renumbered",
            COMPLETED,
            [
                EventInconsistent,
                RequestNotAsPlanned,
                ResponseMismatch,
                ResponseMissing,
                GradeNotReproduced
            ],
            |raw| {
                edit_events(raw, |l| l.retain(|l| !is(0, l)));
                let bytes = file(raw, "events.jsonl");
                let text = String::from_utf8(bytes.clone()).unwrap();
                let text = (1..6).fold(text, |t, n| {
                    t.replace(&format!("\"req\":{n}"), &format!("\"req\":{}", n - 1))
                });
                *bytes = text.into();
            }
        ),
    ]
}

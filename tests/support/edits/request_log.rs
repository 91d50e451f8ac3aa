//! Edits of the requests in the log.

use super::*;

/// Edits the n-th event of the first measured attempt that `want` holds for.
fn one(raw: &mut RawBundle, n: usize, want: fn(&Event) -> bool, edit: fn(&mut EventLine)) {
    edit_events(raw, |l| {
        let i = nth(l, FIRST, n, want);
        edit(&mut l[i]);
    });
}

/// Drops it.
fn without(raw: &mut RawBundle, n: usize, want: fn(&Event) -> bool) {
    edit_events(raw, |l| {
        let i = nth(l, FIRST, n, want);
        l.remove(i);
    });
}

fn usage(e: &Event) -> bool {
    matches!(e, Event::Usage { .. })
}

fn read(e: &Event) -> bool {
    matches!(e, Event::Read { .. })
}

/// Shifts every stamp of attempts from `req` on.
fn later(raw: &mut RawBundle, from: u32, ns: u64) {
    edit_events(raw, |lines| {
        for l in lines {
            if l.event.req().is_some_and(|r| r >= from)
                || matches!(l.event, Event::State { state } if state >= State::Collect)
                || matches!(
                    l.event,
                    Event::RankAlive { .. } | Event::RankExit { .. } | Event::EndOfLog {}
                )
            {
                l.t += ns;
            }
        }
    });
}

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
            [RequestNotAsPlanned],
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
            "cancelled-attempt-made-complete",
            FAILED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                let i = nth(l, FIRST, 0, |e| matches!(e, Event::End { .. }));
                if let Event::End { cause, .. } = &mut l[i].event {
                    *cause = EndCause::Done;
                }
            })
        ),
        edit!(
            "cancelled-attempt-made-a-time-out",
            FAILED,
            [GradeNotReproduced],
            |raw| edit_events(raw, |l| {
                let i = nth(l, FIRST, 0, |e| matches!(e, Event::End { .. }));
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

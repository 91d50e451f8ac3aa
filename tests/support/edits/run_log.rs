//! Edits of the run's own events and of its samples.

use super::*;

pub fn edits() -> Vec<Edit> {
    vec![
        edit!(
            "event-that-is-none",
            COMPLETED,
            [EventMalformed, EventSequence],
            |raw| {
                let text = String::from_utf8(file(raw, "events.jsonl").clone()).unwrap();
                *file(raw, "events.jsonl") =
                    text.replacen("\"teardown\"", "\"breakfast\"", 1).into();
            }
        ),
        edit!("event-number-edited", COMPLETED, [EventSequence], |raw| {
            let text = String::from_utf8(file(raw, "events.jsonl").clone()).unwrap();
            *file(raw, "events.jsonl") = text.replacen("{\"seq\":9,", "{\"seq\":10,", 1).into();
        }),
        edit!("end-of-log-dropped", COMPLETED, [EventSequence], |raw| {
            edit_events(raw, |l| {
                l.pop();
            })
        }),
        edit!(
            "log-goes-on-after-its-end",
            COMPLETED,
            [EventSequence],
            |raw| edit_events(raw, |l| {
                l.push(l[0].clone());
            })
        ),
        edit!("state-dropped", COMPLETED, [EventInconsistent], |raw| {
            edit_events(raw, |l| {
                let i = at(l, state(State::Ready));
                l.remove(i);
            })
        }),
        edit!("state-twice", COMPLETED, [EventInconsistent], |raw| {
            edit_events(raw, |l| {
                let i = at(l, state(State::Ready));
                l.insert(i, l[i].clone());
            })
        }),
        edit!("states-swapped", COMPLETED, [EventInconsistent], |raw| {
            edit_events(raw, |l| {
                let (i, j) = (at(l, state(State::Preflight)), at(l, state(State::Verify)));
                l.swap(i, j);
            })
        }),
        edit!(
            "measure-after-its-requests",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                edit_events(raw, |l| {
                    let i = at(l, state(State::Measure));
                    let line = l.remove(i);
                    let to = at(l, state(State::Collect));
                    l.insert(to, line);
                });
            }
        ),
        edit!(
            "measure-stamped-later",
            COMPLETED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                let i = at(l, state(State::Measure));
                l[i].t = l[at(l, |l| is(FIRST, l) && matches!(l.event, Event::End { .. }))].t;
            })
        ),
        edit!(
            "collect-stamped-earlier",
            COMPLETED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                let i = at(l, state(State::Collect));
                l[i].t = l[at(l, state(State::Measure))].t;
            })
        ),
        edit!(
            "run-finished-earlier",
            COMPLETED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                l.last_mut().unwrap().t = 1;
            })
        ),
        says!(
            "refusal-dropped",
            REFUSED,
            "/run/cause",
            "states-incomplete",
            |raw| edit_events(raw, |l| {
                l.retain(|l| !matches!(l.event, Event::Refusal { .. }));
            })
        ),
        says!(
            "failure-dropped",
            FAILED,
            "/run/cause",
            "cases-not-attempted",
            |raw| edit_events(raw, |l| {
                l.retain(|l| !matches!(l.event, Event::Failure { .. }));
            })
        ),
        says!(
            "scorer-said-to-have-failed",
            COMPLETED,
            "/run/cause",
            "scorer-failed",
            |raw| {
                // A scorer that failed there leaves no grades, and that is no lie.
                fail_scorer(raw);
                edit_lines(raw, "grades.jsonl", |l| {
                    for line in &mut l[1..] {
                        line.as_object_mut().unwrap().remove("check");
                        line["grade"] = json!("ungraded");
                        line["reason"] = json!("the scorer gave no result");
                    }
                });
            }
        ),
        edit!(
            "scorer-said-to-have-failed-with-another-grade",
            COMPLETED,
            [GradeNotReproduced],
            |raw| {
                fail_scorer(raw);
                edit_lines(raw, "grades.jsonl", |l| {
                    l[3].as_object_mut().unwrap().remove("check");
                    l[3]["grade"] = json!("pass");
                });
            }
        ),
        edit!("failure-retold", FAILED, [], |raw| edit_events(raw, |l| {
            let i = at(l, |l| matches!(l.event, Event::Failure { .. }));
            if let Event::Failure { cause, detail, .. } = &mut l[i].event {
                (*cause, *detail) = ("power-cut".into(), "it was the weather".into());
            }
        })),
        edit!(
            "failure-of-another-state",
            FAILED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                let i = at(l, |l| matches!(l.event, Event::Failure { .. }));
                if let Event::Failure { state, .. } = &mut l[i].event {
                    *state = State::Teardown;
                }
            })
        ),
        edit!("failure-made-a-signal", FAILED, [], |raw| edit_events(
            raw,
            |l| {
                let i = at(l, |l| matches!(l.event, Event::Failure { .. }));
                l[i].event = Event::Signal {
                    name: "SIGINT".into(),
                };
            }
        )),
        edit!(
            "signal-of-no-such-name",
            FAILED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                let i = at(l, |l| matches!(l.event, Event::Failure { .. }));
                l[i].event = Event::Signal {
                    name: "SIGHUGE".into(),
                };
            })
        ),
        edit!(
            "closed-and-yet-it-went-on",
            FAILED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                let i = at(l, |l| matches!(l.event, Event::Failure { .. }));
                l[i].event = Event::Signal {
                    name: "closed-later".into(),
                };
            })
        ),
        edit!(
            "closing-dropped-from-a-killed-run",
            KILLED,
            [EventInconsistent],
            |raw| {
                edit_events(raw, |l| {
                    l.retain(|l| !matches!(l.event, Event::Signal { .. }))
                });
            }
        ),
        edit!(
            "refusal-after-the-launch",
            FAILED,
            [EventInconsistent],
            |raw| edit_events(raw, |l| {
                let i = at(l, |l| matches!(l.event, Event::Failure { .. }));
                l[i].event = Event::Refusal {
                    cause: "x".into(),
                    detail: "x".into(),
                };
            })
        ),
        edit!("taint-dropped", TAINTED, [TaintNotReproduced], |raw| {
            edit_events(raw, |l| {
                l.retain(|l| !matches!(l.event, Event::Taint { .. }));
            })
        }),
        edit!(
            "taint-made-to-touch-one-attempt",
            TAINTED,
            [TaintNotReproduced],
            |raw| {
                edit_events(raw, |l| {
                    let i = at(l, |l| matches!(l.event, Event::Taint { .. }));
                    if let Event::Taint { reqs, .. } = &mut l[i].event {
                        reqs.push(FIRST);
                    }
                });
            }
        ),
        edit!("taint-dropped-and-second-look-mended", TAINTED, [], |raw| {
            edit_events(raw, |l| {
                l.retain(|l| !matches!(l.event, Event::Taint { .. }))
            });
            edit_json(raw, "replicas/r0.json", |r| {
                r["after"]["changed"] = json!([]);
                r["after"]["unchanged"] = json!(true);
            });
        }),
        edit!(
            "telemetry-reordered",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                edit_lines(raw, "telemetry.jsonl", |l| l.swap(1, 2));
            }
        ),
        edit!("telemetry-emptied", COMPLETED, [EventInconsistent], |raw| {
            edit_lines(raw, "telemetry.jsonl", |l| l.truncate(1));
        }),
        edit!(
            "telemetry-of-a-long-run-thinned",
            TAINTED,
            [EventInconsistent],
            |raw| {
                edit_lines(raw, "telemetry.jsonl", |l| l.truncate(2));
            }
        ),
        edit!(
            "telemetry-of-an-unknown-node",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                edit_lines(raw, "telemetry.jsonl", |l| l[1]["node"] = json!("n9"));
            }
        ),
        edit!("telemetry-line-dropped", COMPLETED, [], |raw| edit_lines(
            raw,
            "telemetry.jsonl",
            |l| {
                l.remove(2);
            }
        )),
        edit!("telemetry-line-doubled", COMPLETED, [], |raw| edit_lines(
            raw,
            "telemetry.jsonl",
            |l| {
                l.insert(2, l[2].clone());
            }
        )),
        edit!("telemetry-invented", COMPLETED, [], |raw| edit_lines(
            raw,
            "telemetry.jsonl",
            |l| {
                l[1]["mem_available"] = json!(1);
            }
        )),
    ]
}

fn fail_scorer(raw: &mut RawBundle) {
    edit_events(raw, |l| {
        let i = l.len() - 1;
        let failure = Event::Failure {
            state: State::Grade,
            cause: "scorer-failed".into(),
            detail: "the scorer did not answer in time".into(),
        };
        let line = EventLine {
            event: failure,
            ..l[i].clone()
        };
        l.insert(i, line);
    });
}

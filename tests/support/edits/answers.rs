//! Edits of answers and grades, whole and withheld.

use super::*;

fn answer(raw: &mut RawBundle, line: usize, edit: fn(&mut Value)) {
    edit_lines(raw, "responses.jsonl", |l| edit(&mut l[line]));
}

fn grade(raw: &mut RawBundle, line: usize, edit: fn(&mut Value)) {
    edit_lines(raw, "grades.jsonl", |l| edit(&mut l[line]));
}

/// Makes a grade line a pass.
fn pass(line: &mut Value) {
    let line = line.as_object_mut().unwrap();
    line.remove("check");
    line.remove("reason");
    line.insert("grade".into(), json!("pass"));
}

pub fn edits() -> Vec<Edit> {
    vec![
        edit!(
            "answer-edited",
            COMPLETED,
            [ResponseMismatch, GradeNotReproduced],
            |raw| answer(raw, 3, |a| {
                let text = a["content"].as_str().unwrap().replace('"', "'");
                a["content"] = json!(text);
            })
        ),
        edit!("answer-lengthened", COMPLETED, [ResponseMismatch], |raw| {
            answer(raw, 3, |a| {
                let text = format!("{}\n", a["content"].as_str().unwrap());
                a["content"] = json!(text);
            })
        }),
        edit!(
            "answer-salt-edited",
            COMPLETED,
            [ResponseMismatch, RequestNotAsPlanned],
            |raw| {
                answer(raw, 3, |a| a["salt"] = json!("0".repeat(64)));
            }
        ),
        edit!(
            "answer-given-reasoning",
            COMPLETED,
            [ResponseMismatch],
            |raw| {
                answer(raw, 3, |a| a["reasoning"] = json!("hm"));
            }
        ),
        edit!(
            "answer-given-an-error",
            COMPLETED,
            [ResponseMismatch],
            |raw| {
                answer(raw, 3, |a| a["errors"] = json!(["hm"]));
            }
        ),
        edit!(
            "answer-given-a-tool-call",
            COMPLETED,
            [ResponseMismatch],
            |raw| {
                answer(raw, 3, |a| a["tool_deltas"] = json!(["[]"]));
            }
        ),
        edit!("answer-model-echo-edited", COMPLETED, [], |raw| {
            answer(raw, 3, |a| a["model"] = json!("a-larger-model"));
        }),
        edit!(
            "answers-swapped-between-attempts",
            COMPLETED,
            [RequestNotAsPlanned, ResponseMismatch, GradeNotReproduced],
            |raw| {
                edit_lines(raw, "responses.jsonl", |l| {
                    (l[3]["req"], l[4]["req"]) = (l[4]["req"].clone(), l[3]["req"].clone());
                });
            }
        ),
        edit!("answers-reordered", COMPLETED, [], |raw| {
            edit_lines(raw, "responses.jsonl", |l| l.swap(3, 4));
        }),
        edit!(
            "answer-dropped",
            COMPLETED,
            [ResponseMissing, GradeNotReproduced],
            |raw| {
                edit_lines(raw, "responses.jsonl", |l| {
                    l.remove(3);
                });
            }
        ),
        edit!(
            "answer-of-a-warm-up-dropped",
            COMPLETED,
            [ResponseMissing],
            |raw| {
                edit_lines(raw, "responses.jsonl", |l| {
                    l.remove(1);
                });
            }
        ),
        edit!("answer-twice", COMPLETED, [ResponseMissing], |raw| {
            edit_lines(raw, "responses.jsonl", |l| l.push(l[3].clone()));
        }),
        edit!(
            "answer-to-no-attempt",
            COMPLETED,
            [ResponseMissing],
            |raw| {
                edit_lines(raw, "responses.jsonl", |l| {
                    let mut one = l[3].clone();
                    one["req"] = json!(99);
                    l.push(one);
                });
            }
        ),
        edit!("fail-made-pass", COMPLETED, [GradeNotReproduced], |raw| {
            grade(raw, 3, pass)
        }),
        edit!("pass-made-fail", COMPLETED, [GradeNotReproduced], |raw| {
            grade(raw, 1, |g| {
                g["grade"] = json!("fail");
                g["check"] = json!("stopped");
            })
        }),
        edit!(
            "fail-at-another-check",
            COMPLETED,
            [GradeNotReproduced],
            |raw| {
                grade(raw, 3, |g| g["check"] = json!("stopped"));
            }
        ),
        edit!("flag-added", COMPLETED, [GradeNotReproduced], |raw| {
            grade(raw, 1, |g| g["flags"] = json!(["think-tags"]));
        }),
        edit!(
            "truncated-attempt-passed",
            FAILED,
            [GradeNotReproduced],
            |raw| grade(raw, 2, pass)
        ),
        edit!(
            "unsent-attempt-passed",
            FAILED,
            [GradeNotReproduced],
            |raw| grade(raw, 4, pass)
        ),
        edit!("refused-run-passed", REFUSED, [GradeNotReproduced], |raw| {
            grade(raw, 1, pass)
        }),
        edit!("killed-run-passed", KILLED, [GradeNotReproduced], |raw| {
            grade(raw, 1, pass)
        }),
        edit!("grade-dropped", COMPLETED, [GradeMissing], |raw| {
            edit_lines(raw, "grades.jsonl", |l| {
                l.remove(3);
            });
        }),
        edit!("grade-twice", COMPLETED, [GradeMissing], |raw| {
            edit_lines(raw, "grades.jsonl", |l| l.push(l[1].clone()));
        }),
        edit!("grades-reordered", COMPLETED, [GradeMissing], |raw| {
            edit_lines(raw, "grades.jsonl", |l| l.swap(1, 2));
        }),
        edit!("grade-of-no-case", COMPLETED, [GradeMissing], |raw| {
            edit_lines(raw, "grades.jsonl", |l| {
                let mut one = l[1].clone();
                one["case"] = json!("case-99");
                l.push(one);
            });
        }),
        // Cases and answers withheld: only what the log rules out can be found.
        edit!("withheld-and-edited", WITHHELD, [ResponseMismatch], |raw| {
            answer(raw, 3, |a| {
                a["reasoning"] = json!("hm");
            })
        }),
        as_is!(
            "withheld-and-another-answer-disclosed",
            WITHHELD,
            [EvidenceAltered, ResponseMismatch],
            |raw| {
                answer(raw, 3, |a| a["reasoning"] = json!("hm"));
            }
        ),
        as_is!("withheld-grade-made-pass", PUBLISHED, [], |raw| {
            grade(raw, 3, pass);
            forge_withheld(raw);
        }),
        as_is!(
            "withheld-grade-of-reasoning-alone",
            PUBLISHED,
            [GradeNotReproduced],
            |raw| {
                grade(raw, 3, |g| g["flags"] = json!(["reasoning-only"]));
                forge_withheld(raw);
            }
        ),
        as_is!(
            "withheld-attempt-cut-short-and-passed",
            PUBLISHED,
            [GradeNotReproduced],
            |raw| {
                edit_events(raw, |l| {
                    let i = nth(l, FIRST, 0, |e| matches!(e, Event::Finish { .. }));
                    l.remove(i);
                });
                forge_withheld(raw);
            }
        ),
        as_is!(
            "more-said-to-be-withholdable",
            COMPLETED,
            [PlanMismatch, FieldNotReproduced],
            |raw| {
                edit_index(raw, |i| {
                    let files = i["files"].as_array_mut().unwrap();
                    let log = files
                        .iter_mut()
                        .find(|f| f["path"] == "engine/r1.log")
                        .unwrap();
                    *log = json!({"path": "engine/r1.log", "commitment": "ab".repeat(32)});
                });
                // Present, and tied to nothing: the audit does not accept that either.
            }
        ),
    ]
}

/// Seals a published bundle again: the commitments of withheld files stay.
fn forge_withheld(raw: &mut RawBundle) {
    let whole = load(WITHHELD);
    let names = ["suite/cases.jsonl", "responses.jsonl"];
    for name in names {
        raw.files
            .insert(path(name), whole.files[&path(name)].clone());
    }
    raw.salts = whole.salts;
    forge(raw);
    for name in names {
        raw.files.remove(&path(name));
    }
    raw.salts.clear();
}

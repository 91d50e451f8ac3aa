//! Edits of the declaration, the plan and the suite.

use super::*;

pub fn edits() -> Vec<Edit> {
    fn declare(raw: &mut RawBundle, edit: impl FnOnce(&mut Event)) {
        edit_events(raw, |lines| edit(&mut lines[1].event));
    }
    vec![
        edit!(
            "nonce-edited",
            COMPLETED,
            [NonceMismatch, RequestNotAsPlanned],
            |raw| declare(raw, |e| {
                if let Event::Declare { nonce, .. } = e {
                    *nonce = "ab".repeat(32);
                }
            })
        ),
        edit!(
            "nonce-edited-before-any-request",
            REFUSED,
            [NonceMismatch],
            |raw| declare(raw, |e| {
                if let Event::Declare { nonce, .. } = e {
                    *nonce = "ab".repeat(32);
                }
            })
        ),
        edit!("declared-plan-edited", COMPLETED, [PlanMismatch], |raw| {
            declare(raw, |e| {
                if let Event::Declare { plan_digest, .. } = e {
                    *plan_digest = Sha256Digest([1; 32]);
                }
            })
        }),
        edit!("declared-cases-edited", COMPLETED, [PlanMismatch], |raw| {
            declare(raw, |e| {
                if let Event::Declare {
                    case_set_digest, ..
                } = e
                {
                    *case_set_digest = Sha256Digest([1; 32]);
                }
            })
        }),
        edit!(
            "declared-key-edited",
            COMPLETED,
            [SignerUnexpected],
            |raw| declare(raw, |e| {
                if let Event::Declare { keyid, .. } = e {
                    *keyid = other().keyid();
                }
            })
        ),
        edit!("key-said-to-be-older-or-newer", COMPLETED, [], |raw| {
            declare(raw, |e| {
                if let Event::Declare {
                    key_made_by_run, ..
                } = e
                {
                    *key_made_by_run = !*key_made_by_run;
                }
            })
        }),
        edit!("declared-twice", COMPLETED, [EventInconsistent], |raw| {
            edit_events(raw, |l| {
                l.insert(2, l[1].clone());
            })
        }),
        edit!(
            "declared-after-the-requests",
            COMPLETED,
            [EventInconsistent],
            |raw| {
                edit_events(raw, |l| {
                    let declare = l.remove(1);
                    let end = l.len() - 1;
                    l.insert(end, declare);
                });
            }
        ),
        edit!(
            "plan-edited",
            COMPLETED,
            [PlanMismatch, ReplicaReportMismatch, RequestNotAsPlanned],
            |raw| {
                set(raw, "plan.json", "/requests/seed", json!(7));
            }
        ),
        edit!(
            "plan-with-fewer-cases",
            COMPLETED,
            [
                PlanMismatch,
                ReplicaReportMismatch,
                SuiteMismatch,
                EventInconsistent,
                GradeMissing
            ],
            |raw| {
                edit_json(raw, "plan.json", |p| {
                    p["suite"]["case_ids"].as_array_mut().unwrap().remove(2);
                });
            }
        ),
        edit!(
            "case-edited",
            COMPLETED,
            [SuiteMismatch, GradeNotReproduced],
            |raw| {
                edit_lines(raw, "suite/cases.jsonl", |l| l[2]["expect"] = json!({}));
            }
        ),
        edit!(
            "case-edited-without-effect-on-grades",
            COMPLETED,
            [SuiteMismatch],
            |raw| {
                edit_lines(raw, "suite/cases.jsonl", |l| l[0]["kind"] = json!("other"));
            }
        ),
        edit!("scorer-edited", COMPLETED, [SuiteMismatch], |raw| {
            file(raw, "suite/scorer.toml").extend(b"# harmless\n");
        }),
        edit!("suite-title-edited", COMPLETED, [SuiteMismatch], |raw| {
            let text = String::from_utf8(file(raw, "suite/suite.toml").clone()).unwrap();
            *file(raw, "suite/suite.toml") = text.replace("Four cases", "Five cases").into();
        }),
        // Renaming needs the whole plan redone; everything else then follows.
        edit!(
            "own-suite-under-a-shipped-name",
            REFUSED,
            [SuiteNotAsShipped],
            rename_suite
        ),
    ]
}

/// Carries another suite name through plan, run id, log, reports and headers, as
/// the program would have written it.
fn rename_suite(raw: &mut RawBundle) {
    let name = "serving-performance-v1";
    let text = String::from_utf8(file(raw, "suite/suite.toml").clone()).unwrap();
    let text = text.replace("golden-v1", name);
    *file(raw, "suite/suite.toml") = text.clone().into();
    let digests = runseal::suite::digests(
        text.as_bytes(),
        &file(raw, "suite/cases.jsonl").clone(),
        &file(raw, "suite/scorer.toml").clone(),
    );
    let old_plan = Sha256Digest::of(file(raw, "plan.json"));
    edit_json(raw, "plan.json", |p| {
        p["suite"]["name"] = json!(name);
        p["suite"]["digest"] = json!(digests.suite.hex());
    });
    let plan = Sha256Digest::of(file(raw, "plan.json"));
    let old_id = statement(raw)["predicate"]["run"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let stamp = old_id.split('-').next().unwrap();
    let id = format!("{stamp}-{name}-{}", &plan.hex()[..6]);
    for (_, bytes) in raw.files.iter_mut() {
        if let Ok(text) = String::from_utf8(bytes.clone()) {
            *bytes = text
                .replace(&old_id, &id)
                .replace(&old_plan.hex(), &plan.hex())
                .into();
        }
    }
}

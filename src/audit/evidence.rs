//! Checks of the evidence against itself: plan, nonce, suite, weights, requests,
//! answers, grades.

use std::collections::BTreeSet;

use super::{Audit, Grader};
use crate::bundle::Evidence;
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::event::{Event, nonce_hash};
use crate::finding::Finding;
use crate::grading::{declared, items, lines};
use crate::shipped;
use crate::suite::{AttemptKey, WARMUP, suite_digest};
use crate::weights::check_report;

/// Declaration: plan digest, nonce, case set, run id.
pub fn run_identity(a: &mut Audit, e: &Evidence) {
    let declares: Vec<&Event> = e
        .events
        .iter()
        .map(|l| &l.event)
        .filter(|ev| matches!(ev, Event::Declare { .. }))
        .collect();
    let first = declares.first();
    if let (
        1,
        Some(Event::Declare {
            plan_digest,
            nonce,
            case_set_digest,
            ..
        }),
    ) = (declares.len(), first)
    {
        if *plan_digest != e.plan_digest {
            a.findings.push(
                Finding::new(
                    Code::PlanMismatch,
                    "plan.json",
                    "it is not the plan that the run declared",
                )
                .values(plan_digest, e.plan_digest),
            );
        }
        if *case_set_digest != e.plan.suite.dataset {
            a.add(
                Code::PlanMismatch,
                "plan.json",
                "it pins other cases than the run declared",
            );
        }
        if nonce_bytes(nonce).is_none_or(|n| nonce_hash(&n) != e.header.nonce_hash) {
            a.add(
                Code::NonceMismatch,
                "events.jsonl",
                "the nonce does not give the nonce hash",
            );
        }
    } else {
        a.add(
            Code::EventInconsistent,
            "events.jsonl",
            "a run declares itself exactly once",
        );
    }
    let id = &e.header.run_id;
    let tail = format!("-{}-{}", e.suite_toml.name, &e.plan_digest.hex()[..6]);
    let stamp = id.strip_suffix(&tail).unwrap_or_default();
    let digits: String = stamp.chars().filter(char::is_ascii_digit).collect();
    let well_formed = digits.len() == 14 && stamp == format!("{}T{}Z", &digits[..8], &digits[8..]);
    if !well_formed {
        a.add(
            Code::PlanMismatch,
            id,
            "the run id is not made of time, suite and plan digest",
        );
    } else if !same_second(&digits, &e.header.epoch) {
        a.add(
            Code::EventInconsistent,
            id,
            "the run id names another time than the log's epoch",
        );
    }
    a.close(
        "run-identity",
        &[
            Code::PlanMismatch,
            Code::NonceMismatch,
            Code::EventInconsistent,
        ],
    );
}

fn same_second(digits: &str, epoch: &str) -> bool {
    let of_epoch: String = epoch
        .chars()
        .filter(char::is_ascii_digit)
        .take(14)
        .collect();
    of_epoch == digits
}

fn nonce_bytes(text: &str) -> Option<[u8; 32]> {
    let mut nonce = [0u8; 32];
    hex::decode_to_slice(text, &mut nonce).ok()?;
    Some(nonce)
}

/// The revealed nonce of the run.
fn nonce(e: &Evidence) -> Option<[u8; 32]> {
    e.events.iter().find_map(|l| match &l.event {
        Event::Declare { nonce, .. } => nonce_bytes(nonce),
        _ => None,
    })
}

/// Suite, cases and scorer against the pins and the shipped digests.
pub fn suite(a: &mut Audit, e: &Evidence) {
    let pin = &e.plan.suite;
    let scorer = (e.scorer.len() as u64, Sha256Digest::of(&e.scorer));
    let toml = (
        e.suite_toml_bytes.len() as u64,
        Sha256Digest::of(&e.suite_toml_bytes),
    );
    if pin.name != e.suite_toml.name {
        a.add(
            Code::SuiteMismatch,
            "suite/suite.toml",
            "the plan names another suite",
        );
    }
    if scorer.1 != pin.scorer {
        a.findings.push(
            Finding::new(
                Code::SuiteMismatch,
                "suite/scorer.toml",
                "it is not the pinned scorer",
            )
            .values(pin.scorer, scorer.1),
        );
    }
    if let Some(want) = shipped::digest(&pin.name)
        && want != pin.digest
    {
        a.findings.push(
            Finding::new(
                Code::SuiteNotAsShipped,
                &pin.name,
                "the shipped suite of this name has another digest",
            )
            .values(want, pin.digest),
        );
    }
    const CODES: &[Code] = &[Code::SuiteMismatch, Code::SuiteNotAsShipped];
    if let Some(cases) = e.cases {
        if cases.1 != pin.dataset {
            a.findings.push(
                Finding::new(
                    Code::SuiteMismatch,
                    "suite/cases.jsonl",
                    "they are not the pinned cases",
                )
                .values(pin.dataset, cases.1),
            );
        }
        let found = suite_digest(toml, cases, scorer);
        if found != pin.digest {
            a.findings.push(
                Finding::new(
                    Code::SuiteMismatch,
                    "suite",
                    "its three files do not give the pinned digest",
                )
                .values(pin.digest, found),
            );
        }
        let ids: Option<Vec<&str>> = e
            .suite
            .as_ref()
            .map(|s| s.cases.iter().map(|c| c.id.as_str()).collect());
        if ids.is_none_or(|ids| ids != pin.case_ids.iter().map(String::as_str).collect::<Vec<_>>())
        {
            a.add(
                Code::SuiteMismatch,
                "plan.json",
                "it declares other cases than the suite holds",
            );
        }
    }
    a.close("suite", CODES);
}

/// Manifests against the pins, reports against the manifests.
pub fn weights(a: &mut Audit, e: &Evidence) {
    for pin in &e.plan.checkpoints {
        let name = format!("checkpoints/{}.manifest.json", pin.role);
        if let Some(m) = e.manifests.get(&pin.role)
            && m.root() != pin.manifest_root
        {
            a.findings.push(
                Finding::new(
                    Code::ManifestMismatch,
                    name,
                    "its root is not the one that the plan pins",
                )
                .values(pin.manifest_root, m.root()),
            );
        }
    }
    for ((replica, role), report) in &e.replicas {
        let file = crate::bundle::evidence::replica_file(replica, role);
        let Some(manifest) = e.manifests.get(role) else {
            continue;
        };
        a.findings.extend(check_report(manifest, report));
        if report.plan_digest != Some(e.plan_digest) {
            a.add(
                Code::ReplicaReportMismatch,
                &file,
                "it was made for another plan",
            );
        }
        let node = e
            .plan
            .replicas
            .iter()
            .find(|r| r.name == *replica)
            .and_then(|r| e.nodes.get(&r.node));
        let boot = node.and_then(|n| n.before.boot_id.as_deref());
        if boot != Some(report.boot_id.as_str()) {
            a.add(
                Code::ReplicaReportMismatch,
                &file,
                "it names another boot than the facts of its node",
            );
        }
    }
    a.close(
        "weights",
        &[Code::ManifestMismatch, Code::ReplicaReportMismatch],
    );
}

/// Attempts against the plan; bodies against plan, case and nonce.
pub fn requests(a: &mut Audit, e: &Evidence) {
    let mut seen = BTreeSet::new();
    let order: Vec<(&str, u32)> = declared(&e.plan, &e.traces)
        .iter()
        .map(|d| (d.case, d.rep))
        .collect();
    for t in &e.traces.requests {
        let subject = format!("attempt {}", t.req);
        if !seen.insert((t.case.as_str(), t.rep, t.attempt, t.warmup)) {
            a.add(
                Code::EventInconsistent,
                &subject,
                "the same attempt stands twice in the log",
            );
        }
        if t.warmup != (t.case == WARMUP) || t.attempt != 0 {
            a.add(
                Code::EventInconsistent,
                &subject,
                "warm-ups and retries must be declared",
            );
        }
        if t.warmup {
            continue;
        }
        let position = order.iter().position(|k| *k == (t.case.as_str(), t.rep));
        match position {
            None => a.add(
                Code::EventInconsistent,
                &subject,
                "the plan declares no such case",
            ),
            Some(i) if e.plan.endpoint_of(i).name != t.endpoint => {
                a.add(
                    Code::RequestNotAsPlanned,
                    &subject,
                    "it went to another endpoint than planned",
                );
            }
            Some(_) => {}
        }
    }
    let missing = a
        .absent("suite/cases.jsonl")
        .or_else(|| a.absent("responses.jsonl"));
    if let Some((required, why)) = missing {
        return a.skip("requests", required, &why);
    }
    let (Some(suite), Some(responses), Some(nonce)) = (&e.suite, &e.responses, nonce(e)) else {
        return a.skip("requests", true, "cases, answers or nonce are not here");
    };
    for t in e.traces.requests.iter().filter(|t| t.send.is_some()) {
        let subject = format!("attempt {}", t.req);
        let key = AttemptKey {
            case: t.case.clone(),
            rep: t.rep,
            attempt: t.attempt,
        };
        let Some(response) = responses.get(&t.req) else {
            // A run that was killed outright never saw these answers end.
            if t.end.is_none() {
                continue;
            }
            a.add(
                Code::ResponseMissing,
                &subject,
                "it was sent and has no line in responses.jsonl",
            );
            continue;
        };
        let body = suite.body(&e.plan.requests, &nonce, &key);
        if body.is_none_or(|b| !response.check_body(t, &b)) {
            a.add(
                Code::RequestNotAsPlanned,
                &subject,
                "plan, case and nonce give another request body",
            );
        }
    }
    a.close(
        "requests",
        &[
            Code::RequestNotAsPlanned,
            Code::EventInconsistent,
            Code::ResponseMissing,
        ],
    );
}

/// Answers against the digests in the event log.
pub fn responses(a: &mut Audit, e: &Evidence) {
    if let Some((required, why)) = a.absent("responses.jsonl") {
        return a.skip("responses", required, &why);
    }
    let Some(responses) = &e.responses else {
        return a.skip("responses", true, "there are no answers");
    };
    for (req, response) in responses {
        let subject = format!("attempt {req}");
        match e.traces.requests.get(*req as usize) {
            None => a.add(
                Code::ResponseMissing,
                &subject,
                "the answer belongs to no attempt",
            ),
            Some(trace) => {
                if let Err(why) = response.check(trace) {
                    a.add(Code::ResponseMismatch, &subject, why);
                }
            }
        }
    }
    a.close(
        "responses",
        &[Code::ResponseMismatch, Code::ResponseMissing],
    );
}

/// Grade lines are complete, and the frozen scorer gives the same grades again.
pub fn grades(a: &mut Audit, e: &Evidence, grader: Grader) {
    const CODES: &[Code] = &[Code::GradeMissing, Code::GradeNotReproduced];
    let attempts = declared(&e.plan, &e.traces);
    let want: Vec<(&str, u32)> = attempts.iter().map(|d| (d.case, d.rep)).collect();
    let have: Vec<(&str, u32)> = e.grades.iter().map(|g| (g.case.as_str(), g.rep)).collect();
    for key in want
        .iter()
        .filter(|k| have.iter().filter(|h| h == k).count() != 1)
    {
        a.add(
            Code::GradeMissing,
            &format!("{} repetition {}", key.0, key.1),
            "it needs exactly one line in grades.jsonl",
        );
    }
    if have.iter().any(|k| !want.contains(k)) {
        a.add(
            Code::GradeMissing,
            "grades.jsonl",
            "it grades a case that was not declared",
        );
    }
    let missing = a
        .absent("suite/cases.jsonl")
        .or_else(|| a.absent("responses.jsonl"));
    if let Some((required, why)) = missing {
        a.grades = format!("not recomputed ({why})");
        return a.skip("grades", required, &why);
    }
    let (Some(suite), Some(responses)) = (&e.suite, &e.responses) else {
        a.grades = "not recomputed (cases or answers are not here)".into();
        return a.skip("grades", true, "cases or answers are not here");
    };
    let (items, slots) = items(suite, &attempts, responses);
    let results = match grader(&e.scorer, &items) {
        Ok(results) => results,
        Err(why) => {
            a.grades = format!("not recomputed ({why})");
            return a.skip("grades", true, &why);
        }
    };
    if let Some(dead) = results.iter().find(|r| !r.performed) {
        // Limits of time depend on the machine, so a grade that a dead child
        // left behind proves nothing either way.
        let why = format!("the scorer did not survive case {}", dead.key);
        a.grades = format!("not recomputed ({why})");
        return a.skip("grades", true, &why);
    }
    for line in lines(&attempts, &slots, &results, responses) {
        let stated = e
            .grades
            .iter()
            .find(|g| g.case == line.case && g.rep == line.rep);
        let Some(stated) = stated else { continue };
        if *stated != line {
            let show = |g: &crate::bundle::files::GradeLine| {
                serde_json::to_string(&(&g.grade, &g.flags)).unwrap_or_default()
            };
            a.findings.push(
                Finding::new(
                    Code::GradeNotReproduced,
                    format!("{} repetition {}", line.case, line.rep),
                    "the frozen scorer gives another grade",
                )
                .values(show(&line), show(stated)),
            );
        }
    }
    a.grades = "recomputed".into();
    a.close("grades", CODES);
}

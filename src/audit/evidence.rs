//! Checks of the evidence against itself: plan, nonce, suite, weights, answers.

use std::collections::BTreeSet;

use super::{Audit, life};
use crate::bundle::Evidence;
use crate::bundle::index::{INDEX_FILE, Index};
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::event::{Event, State, nonce_hash, run_commitment};
use crate::finding::Finding;
use crate::shipped;
use crate::suite::suite_digest;
use crate::weights::{Integrity, ReplicaReport, agree, check_report, derive_integrity};

/// Index and files against the plan: of this run, of this plan, nothing beside.
fn files(a: &mut Audit, e: &Evidence, index: Option<&Index>) {
    for name in &e.strangers {
        // Named apart from the index, which an operator can write anew.
        let known = a
            .findings
            .iter()
            .any(|f| f.code == Code::EvidenceExtra && f.subject == *name);
        if !known {
            a.add(
                Code::EvidenceExtra,
                name,
                "a bundle of this plan has no such file",
            );
        }
    }
    let Some(index) = index else { return };
    if index.run_id != e.header.run_id || index.nonce_hash != e.header.nonce_hash {
        a.findings.push(
            Finding::new(Code::WrongRun, INDEX_FILE, "it belongs to another run")
                .values(&e.header.run_id, &index.run_id),
        );
    }
    let found: BTreeSet<String> = index.withholdable().into_keys().collect();
    let planned: BTreeSet<String> = e.plan.withholdable.iter().cloned().collect();
    if found != planned {
        a.findings.push(
            Finding::new(
                Code::PlanMismatch,
                INDEX_FILE,
                "the plan lets other files be withheld",
            )
            .values(list(&planned), list(&found)),
        );
    }
}

fn list(names: &BTreeSet<String>) -> String {
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.iter().cloned().collect::<Vec<_>>().join(", "),
    }
}

/// Declaration: plan digest, nonce, case set, run id.
pub fn run_identity(a: &mut Audit, e: &Evidence, index: Option<&Index>) {
    files(a, e, index);
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
            Code::EvidenceExtra,
            Code::WrongRun,
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
pub fn nonce(e: &Evidence) -> Option<[u8; 32]> {
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
        && want.suite != pin.digest
    {
        a.findings.push(
            Finding::new(
                Code::SuiteNotAsShipped,
                &pin.name,
                "the shipped suite of this name has another digest",
            )
            .values(want.suite, pin.digest),
        );
    }
    // Whoever withholds the cases must not get away with other ones, or fewer,
    // under a familiar digest.
    if let Some(want) = shipped::digest(&pin.name)
        && want.suite == pin.digest
    {
        let found = [
            ("suite/suite.toml", want.toml, toml.1),
            ("suite/cases.jsonl", want.dataset, pin.dataset),
            ("suite/scorer.toml", want.scorer, pin.scorer),
            ("case ids", want.case_ids, shipped::case_ids(&pin.case_ids)),
        ];
        for (what, want, found) in found.into_iter().filter(|(_, w, f)| w != f) {
            a.findings.push(
                Finding::new(
                    Code::SuiteNotAsShipped,
                    what,
                    "the shipped suite of this name has another digest",
                )
                .values(want, found),
            );
        }
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
        fixed_output(a, e);
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

/// The caps that a plan with `ignore_eos` states are those that the requests had.
fn fixed_output(a: &mut Audit, e: &Evidence) {
    let Some(suite) = e.suite.as_ref().filter(|_| e.plan.requests.ignores_eos()) else {
        return;
    };
    let caps = suite
        .cases
        .iter()
        .map(|c| c.max_tokens.min(e.plan.requests.max_tokens));
    if !caps.eq(e.plan.suite.fixed_output.iter().copied()) {
        a.add(
            Code::SuiteMismatch,
            "plan.json",
            "its fixed numbers of output tokens are not the caps of the cases",
        );
    }
}

/// Manifests against the pins, reports against the manifests.
pub fn weights(a: &mut Audit, e: &Evidence) {
    if e.plan.is_remote() {
        let why = "somebody else runs the endpoints: no weights were looked at";
        return a.skip("weights", false, why);
    }
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
        times(a, e, &file, report);
        if !life::cut_short(e) {
            changes(a, e, replica, &file, report);
        }
    }
    refusal(a, e);
    a.close(
        "weights",
        &[
            Code::ManifestMismatch,
            Code::ReplicaReportMismatch,
            Code::TaintNotReproduced,
            Code::EventInconsistent,
        ],
    );
}

/// Slack for comparing wall clocks with the run's own, in nanoseconds: they are
/// written to the millisecond, and a clock may be set while a run goes on.
const CLOCK_SLACK_NS: i128 = 2_000_000_000;

/// The rehash lies between the declaration and the launch, the second look in
/// collect: a report from before the run is about other hours.
fn times(a: &mut Audit, e: &Evidence, file: &str, report: &ReplicaReport) {
    let Ok(epoch) = e.header.epoch.parse::<jiff::Timestamp>() else {
        return;
    };
    let entered = |want: State| {
        e.events
            .iter()
            .find(|l| matches!(l.event, Event::State { state } if state == want))
            .map(|l| i128::from(l.t))
    };
    let last = e.events.iter().map(|l| l.t).max().map_or(0, i128::from);
    let rehash = (
        entered(State::Verify).unwrap_or(0),
        entered(State::Launch)
            .or_else(|| entered(State::Collect))
            .unwrap_or(last),
    );
    let second = (
        entered(State::Collect).unwrap_or(0),
        entered(State::Teardown).unwrap_or(last),
    );
    let mut stamps = vec![(&report.started, rehash), (&report.finished, rehash)];
    if let Some(after) = &report.after {
        stamps.push((&after.finished, second));
    }
    for (text, (from, to)) in stamps {
        let since = |t: jiff::Timestamp| t.as_nanosecond() - epoch.as_nanosecond();
        let inside = text.parse().is_ok_and(|t| {
            let t = since(t);
            from - CLOCK_SLACK_NS <= t && t <= to + CLOCK_SLACK_NS
        });
        if !inside {
            a.add(
                Code::ReplicaReportMismatch,
                file,
                format!("{text} is not a time of its state in this run"),
            );
        }
    }
}

/// A refusal because of the weights has a replica that is not verified, or two
/// names for one.
fn refusal(a: &mut Audit, e: &Evidence) {
    let refused = e.events.iter().find(
        |l| matches!(&l.event, Event::Refusal { cause, .. } if cause == "weights-not-verified"),
    );
    let Some(line) = refused else { return };
    let all_good = e.plan.checkpoints.iter().all(|c| {
        let reports: Vec<&ReplicaReport> = e
            .plan
            .replicas
            .iter()
            .filter_map(|r| e.replicas.get(&(r.name.clone(), c.role.clone())))
            .collect();
        let verified = |r: &&ReplicaReport| {
            let manifest = e.manifests.get(&c.role);
            manifest.is_some_and(|m| derive_integrity(m, r) == Integrity::Verified)
        };
        reports.iter().filter(|r| verified(r)).count() == e.plan.replicas.len()
            && agree(&reports).replicas == e.plan.replicas.len()
    });
    if all_good {
        a.add(
            Code::EventInconsistent,
            &format!("events.jsonl event {}", line.seq),
            "it refuses weights that every report calls verified",
        );
    }
}

/// What a second look found changed is a taint of the run, so the log has it.
fn changes(a: &mut Audit, e: &Evidence, replica: &str, file: &str, report: &ReplicaReport) {
    for c in report.after.iter().flat_map(|after| &after.changed) {
        let want = format!("{replica}/{}: {}", c.path, c.what);
        let noted = |ev: &Event| matches!(ev, Event::Taint { detail, reqs, .. } if *detail == want && reqs.is_empty());
        if !e.events.iter().any(|l| noted(&l.event)) {
            a.add(
                Code::TaintNotReproduced,
                file,
                format!("{want}: the log has no such taint"),
            );
        }
    }
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

/// The commitment that a reader was handed before the run, against the run's.
pub fn commitment(a: &mut Audit, e: &Evidence, wanted: Sha256Digest) {
    let keyid = e.events.iter().find_map(|l| match &l.event {
        Event::Declare { keyid, .. } => Some(keyid.as_str()),
        _ => None,
    });
    let found = run_commitment(
        e.plan_digest,
        e.header.nonce_hash,
        e.plan.suite.dataset,
        keyid.unwrap_or_default(),
    );
    if found != wanted {
        a.findings.push(
            Finding::new(
                Code::CommitmentMismatch,
                "events.jsonl",
                "this is not the run that was announced to you",
            )
            .values(wanted, found),
        );
    }
    a.close("commitment", &[Code::CommitmentMismatch]);
}

//! The strongest forger short of redoing everything: evidence is edited, index
//! and record are derived again by the library's own seal and signed with the
//! operator's key. Each edit is found by exactly the codes given, or stands in
//! tests/golden/out-of-reach.md and is asserted to be unseen.

mod support;

#[path = "support/edits/mod.rs"]
mod edits;

use std::collections::{BTreeMap, BTreeSet};

use edits::{Edit, Made, all};
use runseal::audit::AuditReport;
use runseal::codes::Code;
use serde_json::Value;
use support::*;

fn audited(edit: &Edit) -> AuditReport {
    let mut raw = load(edit.base);
    match (edit.make)(&mut raw) {
        Made::Sealed => {
            forge(&mut raw);
        }
        Made::AsIs => {}
    }
    check(&raw)
}

/// What the record that follows from the evidence says at a place.
fn says(report: &AuditReport, pointer: &str) -> String {
    let record = serde_json::to_value(report.derived.as_ref().unwrap()).unwrap();
    match record.pointer(pointer) {
        Some(Value::String(s)) => s.clone(),
        Some(other) => other.to_string(),
        None => "nothing".into(),
    }
}

#[test]
fn every_forgery_is_found_or_listed() {
    let mut wrong = Vec::new();
    let (mut seen, mut told, mut unseen) = (0, 0, Vec::new());
    let mut by_code: BTreeMap<Code, usize> = BTreeMap::new();
    for edit in all() {
        let report = audited(&edit);
        let found = errors(&report);
        let want: BTreeSet<Code> = edit.want.iter().copied().collect();
        if found != want || (report.exit_code() == 0) != want.is_empty() {
            wrong.push(format!("{}: {found:?} instead of {want:?}", edit.name));
            continue;
        }
        match (edit.want, edit.says) {
            ([], Some((pointer, text))) => {
                told += 1;
                let said = says(&report, pointer);
                if said != text {
                    wrong.push(format!("{}: {pointer} is {said}", edit.name));
                }
            }
            ([], None) => unseen.push(edit.name),
            (codes, _) => {
                seen += 1;
                for code in codes {
                    *by_code.entry(*code).or_default() += 1;
                }
            }
        }
    }
    println!(
        "{seen} forgeries found, {told} told by the record itself, {} out of reach",
        unseen.len()
    );
    for (code, n) in &by_code {
        println!("  {n:>3}  {code}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // What cannot be found is said in so many words, and nothing else is.
    let text = std::fs::read_to_string(golden().join("out-of-reach.md")).unwrap();
    let listed: BTreeSet<&str> = text
        .lines()
        .filter_map(|l| l.strip_prefix("- `")?.split('`').next())
        .collect();
    let unseen: BTreeSet<&str> = unseen.into_iter().collect();
    assert_eq!(listed, unseen, "tests/golden/out-of-reach.md");
}

/// (d) Each code of the audit comes alone from at least one edit, so none is dead
/// and none only ever rides along with another.
#[test]
fn every_code_is_given_alone() {
    let alone: BTreeSet<Code> = all()
        .iter()
        .map(|edit| errors(&audited(edit)))
        .filter(|codes| codes.len() == 1)
        .flatten()
        .collect();
    let first = Code::ALL
        .iter()
        .position(|c| *c == Code::RecordMissing)
        .unwrap();
    // Nodes of a cluster are looked at before there is a bundle.
    let last = Code::ALL
        .iter()
        .position(|c| *c == Code::ClusterBusy)
        .unwrap();
    let of_audit = Code::ALL[first..last]
        .iter()
        .copied()
        .filter(|c| c.severity() == runseal::finding::Severity::Error)
        // Of suites and of answers without a bundle: no audit gives them.
        .filter(|c| {
            let suites = [
                Code::ScorerPassesNothing,
                Code::ScorerTestDiffers,
                Code::AnswerMissing,
                Code::AnswerUnknownCase,
            ];
            !suites.contains(c)
        })
        // It needs a reader who was handed a commitment; see audit_golden.rs.
        .filter(|c| *c != Code::CommitmentMismatch)
        // It needs an endpoint that somebody else runs; runner/tests/run_remote.rs has it
        // alone.
        .filter(|c| *c != Code::AddressPublished);
    let missing: Vec<Code> = of_audit.filter(|c| !alone.contains(c)).collect();
    assert!(missing.is_empty(), "never given alone: {missing:?}");
}

//! A policy held against a finished audit: further checks, and the verdict again.

use std::collections::BTreeSet;

use super::{Policy, Trust, TrustedKey};
use crate::audit::{AuditReport, Figure};
use crate::codes::Code;
use crate::finding::{Check, Finding, Outcome};
use crate::published::report::{Derivation, PublishedReport, verdict};

/// What the checks of a policy add to.
struct Sheet<'a> {
    checks: &'a mut Vec<Check>,
    findings: &'a mut Vec<Finding>,
}

impl Sheet<'_> {
    fn push(&mut self, name: &str, required: bool, outcome: Outcome) {
        self.checks.push(Check {
            name: name.to_owned(),
            required,
            outcome,
        });
    }

    /// Adds what a check found, and its outcome.
    fn close(&mut self, name: &str, found: Vec<Finding>) {
        let outcome = match found.is_empty() {
            true => Outcome::Passed,
            false => Outcome::Failed,
        };
        self.findings.extend(found);
        self.push(name, true, outcome);
    }

    /// Windows of the keys that signed, at the moment that the reader vouches for.
    fn windows(&mut self, trust: &Trust, signed: &[&TrustedKey], path: &str) {
        if !signed.iter().any(|k| k.has_window()) {
            return;
        }
        let Some(at) = trust.at else {
            let required = trust.policy.as_ref().is_some_and(|p| p.require.validity);
            let reason = "no trusted time is known (--at TIME takes your word for one)".to_owned();
            return self.push("key-validity", required, Outcome::NotPerformed { reason });
        };
        let bad = signed.iter().filter(|k| !k.good_at(at)).map(|k| {
            let detail = format!("key {:?} is not good at {at}", k.name);
            Finding::new(Code::KeyOutsideWindow, path, detail)
        });
        self.close("key-validity", bad.collect());
    }

    /// Different keys of each role that signed.
    fn thresholds(&mut self, trust: &Trust, policy: &Policy, signed: &[&TrustedKey], path: &str) {
        let mut found = Vec::new();
        for (role, least) in policy.threshold.iter().filter(|(_, least)| **least > 0) {
            let good =
                |k: &&&TrustedKey| k.role == Some(*role) && trust.at.is_none_or(|at| k.good_at(at));
            let unique: BTreeSet<String> =
                signed.iter().filter(good).map(|k| k.key.keyid()).collect();
            if unique.len() < *least as usize {
                found.push(
                    Finding::new(
                        Code::ThresholdNotMet,
                        path,
                        format!("too few different {} keys signed", role.name()),
                    )
                    .values(least, unique.len()),
                );
            }
        }
        if policy.threshold.values().any(|least| *least > 0) {
            self.close("threshold", found);
        }
    }

    /// Least labels. `figures`: id, label, whether it has a value at all.
    fn levels(&mut self, policy: &Policy, figures: &[(String, Derivation, bool)]) {
        let r = &policy.require;
        if r.derivation.is_none() && r.figures.is_empty() {
            return;
        }
        let mut found = Vec::new();
        for (id, label, has_value) in figures {
            let least = match (r.figures.get(id), r.derivation) {
                (Some(own), _) => *own,
                (None, Some(all)) if *has_value => all,
                _ => continue,
            };
            if *label < least {
                found.push(
                    Finding::new(
                        Code::EvidenceTooWeak,
                        id,
                        "your policy wants more evidence for it",
                    )
                    .values(least.name(), label.name()),
                );
            }
        }
        for id in r.figures.keys() {
            if !figures.iter().any(|(have, ..)| have == id) {
                found.push(
                    Finding::new(Code::EvidenceTooWeak, id, "the record does not have it")
                        .values(r.figures[id].name(), Derivation::NotRecorded.name()),
                );
            }
        }
        self.close("evidence-level", found);
    }
}

/// Holds a bundle's audit against what the reader trusts and requires.
pub fn to_audit(report: &mut AuditReport, trust: &Trust) {
    let path = report.path.clone();
    let signed: Vec<&TrustedKey> = trust
        .keys
        .iter()
        .filter(|k| report.signers.contains(&k.key.fingerprint()))
        .collect();
    let mut sheet = Sheet {
        checks: &mut report.checks,
        findings: &mut report.findings,
    };
    sheet.windows(trust, &signed, &path);
    if let Some(policy) = &trust.policy {
        sheet.thresholds(trust, policy, &signed, &path);
        let figures: Vec<(String, Derivation, bool)> = report.figures.iter().map(label).collect();
        sheet.levels(policy, &figures);
        let r = &policy.require;
        if r.grades {
            let mut found = Vec::new();
            if report.grades != "recomputed" {
                let detail = format!("grades: {}", report.grades);
                found.push(Finding::new(Code::EvidenceTooWeak, "grades", detail));
            }
            sheet.close("grades-recomputed", found);
        }
        let record = report.derived.as_deref();
        if let Some(want) = &r.status {
            let is = record.map_or("unknown", |d| d.run.status.name());
            let found = (is != want).then(|| {
                Finding::new(Code::StatusNotRequired, &path, "the run ended another way")
                    .values(want, is)
            });
            sheet.close("status", found.into_iter().collect());
        }
        if !r.suites.is_empty() {
            let suite = record.map(|d| (d.run.suite.clone(), d.provenance.suite.hex()));
            sheet.close("suite-allowed", suites(policy, suite, &path));
        }
    }
    report
        .findings
        .sort_by_key(|f| std::cmp::Reverse(f.severity));
    // A check that nothing requires says what it found and counts for nothing.
    let counted: Vec<Check> = report
        .checks
        .iter()
        .filter(|c| c.required || c.outcome != Outcome::Failed)
        .cloned()
        .collect();
    report.verdict = verdict(&counted, &report.findings);
}

fn label(f: &Figure) -> (String, Derivation, bool) {
    let label = Derivation::from_name(&f.derivation).unwrap_or(Derivation::NotRecorded);
    let has_value = f.stated.is_some() || f.recomputed.is_some();
    (f.id.clone(), label, has_value)
}

fn suites(policy: &Policy, suite: Option<(String, String)>, path: &str) -> Vec<Finding> {
    let why = match suite {
        None => "which suite it is of could not be derived".to_owned(),
        Some((name, digest)) => match policy.require.suites.get(&name) {
            Some(want) if want == "any" || want.eq_ignore_ascii_case(&digest) => return Vec::new(),
            Some(_) => format!("suite {name:?} has other bytes than your policy wants"),
            None => format!("suite {name:?} is none of those that your policy names"),
        },
    };
    vec![Finding::new(Code::SuiteNotAllowed, path, why)]
}

/// Holds the audit of a published record against what the reader trusts and requires.
pub fn to_published(report: &mut PublishedReport, trust: &Trust) {
    let path = report.path.clone();
    let signed: Vec<&TrustedKey> = trust
        .keys
        .iter()
        .filter(|k| report.signers.contains(&k.key.fingerprint()))
        .collect();
    let mut sheet = Sheet {
        checks: &mut report.checks,
        findings: &mut report.findings,
    };
    sheet.windows(trust, &signed, &path);
    if let Some(policy) = &trust.policy {
        if policy.require.accept_unsigned {
            for c in sheet
                .checks
                .iter_mut()
                .filter(|c| c.name == "signature-present")
            {
                c.required = false;
            }
        } else {
            sheet.thresholds(trust, policy, &signed, &path);
        }
        let figures: Vec<(String, Derivation, bool)> = report
            .figures
            .iter()
            .map(|f| {
                let has_value = f.stated.is_some() || f.recomputed.is_some();
                (f.id.clone(), f.derivation, has_value)
            })
            .collect();
        sheet.levels(policy, &figures);
        // A record that says nothing of grades, status or suite meets no wish for them.
        let r = &policy.require;
        for (wanted, name) in [
            (r.grades, "grades-recomputed"),
            (r.status.is_some(), "status"),
            (!r.suites.is_empty(), "suite-allowed"),
        ] {
            if wanted {
                let reason = "nothing in such a record proves it".to_owned();
                sheet.push(name, true, Outcome::NotPerformed { reason });
            }
        }
    }
    report
        .findings
        .sort_by_key(|f| std::cmp::Reverse(f.severity));
    report.verdict = verdict(&report.checks, &report.findings);
}

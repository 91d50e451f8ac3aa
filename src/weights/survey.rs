//! All replicas of a checkpoint at once: rehash, compare, conclude.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::agree::{Agreement, agree};
use super::hashing::Pace;
use super::manifest::Manifest;
use super::rehash::{Progress, ReplicaScan, Request, Unreachable, rehash_each};
use super::report::{Integrity, ReplicaReport, ReportContext, integrity_of_files};
use super::values::Algorithm;
use crate::codes::Code;
use crate::finding::{Check, Finding, Outcome, all_good};

/// A replica to look at.
pub struct Target<'a> {
    /// What the report will say; its `finished` is set when the scan ends.
    pub context: ReportContext,
    /// The folder.
    pub path: &'a Path,
    /// Hears how far the scan is.
    pub progress: &'a dyn Progress,
}

/// What `verify weights` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Survey {
    /// What was asked, and the outcome.
    pub checks: Vec<Check>,
    /// Everything that does not hold.
    pub findings: Vec<Finding>,
    /// The replicas in the order asked.
    pub replicas: Vec<SurveyedReplica>,
    /// How they compare with each other.
    pub agreement: Agreement,
    /// The conclusion.
    pub verdict: Verdict,
}

/// The conclusion of a [`Survey`]. There is nothing between the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every required check was performed and passed.
    Verified,
    /// One was not, or did not.
    NotVerified,
}

/// One replica in a [`Survey`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SurveyedReplica {
    /// Its name.
    pub name: String,
    /// Does it hold the checkpoint?
    pub integrity: Integrity,
    /// The rehash; absent when the replica could not be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<ReplicaReport>,
}

/// Rehashes every target in parallel and draws the conclusion. A target that
/// cannot be reached is a finding and does not stop the others.
///
/// `asserted` is the number of distinct replicas that somebody claims.
/// `now` is the clock: RFC 3339 in UTC.
pub fn survey(
    targets: Vec<Target<'_>>,
    manifest: &Manifest,
    algorithm: Algorithm,
    asserted: Option<usize>,
    now: &(dyn Fn() -> String + Sync),
) -> Survey {
    let requests: Vec<_> = targets
        .iter()
        .map(|target| Request {
            root: target.path,
            manifest: Some(manifest),
            algorithm,
            progress: target.progress,
        })
        .collect();
    let results: Vec<(SurveyedReplica, Vec<Finding>)> =
        rehash_each(&requests, Pace::default(), |index, scan| {
            judged(targets[index].context.clone(), scan, manifest, now)
        });
    let (replicas, findings): (Vec<_>, Vec<_>) = results.into_iter().unzip();
    conclude(replicas, findings.concat(), asserted)
}

fn judged(
    mut context: ReportContext,
    scan: Result<ReplicaScan, Unreachable>,
    manifest: &Manifest,
    now: &(dyn Fn() -> String + Sync),
) -> (SurveyedReplica, Vec<Finding>) {
    let name = context.replica.clone();
    match scan {
        Ok(scan) => {
            context.finished = now();
            let report = scan.into_report(manifest, context);
            let findings = report.findings.clone();
            let replica = SurveyedReplica {
                name,
                integrity: integrity_of_files(manifest, &report),
                report: Some(report),
            };
            (replica, findings)
        }
        Err(e) => {
            let reason = e.to_string();
            let finding = Finding::new(Code::ReplicaUnreachable, &name, &reason);
            let replica = SurveyedReplica {
                name,
                integrity: Integrity::NotChecked { reason },
                report: None,
            };
            (replica, vec![finding])
        }
    }
}

fn conclude(
    replicas: Vec<SurveyedReplica>,
    mut findings: Vec<Finding>,
    asserted: Option<usize>,
) -> Survey {
    let reports: Vec<_> = replicas.iter().filter_map(|r| r.report.as_ref()).collect();
    let agreement = agree(&reports);
    findings.extend(agreement.findings());

    // A replica counts as rehashed when its files were read, whatever was found.
    let read: Vec<_> = replicas
        .iter()
        .filter(|r| !matches!(r.integrity, Integrity::NotChecked { .. }))
        .filter_map(|r| r.report.as_ref())
        .collect();
    let rehashed = agree(&read).replicas;
    let count = match asserted {
        None => Outcome::NotPerformed {
            reason: "no number was asserted".to_owned(),
        },
        Some(n) if n == rehashed => Outcome::Passed,
        Some(n) => {
            let detail = format!("{rehashed} distinct replicas were rehashed, {n} were asserted");
            let finding = Finding::new(Code::ReplicaCount, "replicas", detail);
            findings.push(finding.values(n, rehashed));
            Outcome::Failed
        }
    };

    let passed = |yes: bool| {
        if yes {
            Outcome::Passed
        } else {
            Outcome::Failed
        }
    };
    let all_reached = replicas.iter().all(|r| r.report.is_some());
    let all_verified =
        !replicas.is_empty() && replicas.iter().all(|r| r.integrity == Integrity::Verified);
    let agreed = if reports.len() < 2 && all_reached {
        Outcome::NotPerformed {
            reason: "there is only one replica".to_owned(),
        }
    } else {
        passed(agreement.all_agree && all_reached)
    };
    let check = |name: &str, required, outcome| Check {
        name: name.to_owned(),
        required,
        outcome,
    };
    let checks = vec![
        check("replicas-reached", true, passed(all_reached)),
        check("replicas-verified", true, passed(all_verified)),
        check("replicas-agree", replicas.len() > 1, agreed),
        check(
            "replicas-distinct",
            true,
            passed(agreement.duplicates.is_empty()),
        ),
        check("replica-count", asserted.is_some(), count),
    ];
    let verdict = if all_good(&checks, &findings) {
        Verdict::Verified
    } else {
        Verdict::NotVerified
    };
    Survey {
        checks,
        findings,
        replicas,
        agreement,
        verdict,
    }
}

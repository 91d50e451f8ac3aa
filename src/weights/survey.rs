//! All replicas of a checkpoint at once: rehash, compare, conclude.

use std::path::Path;

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::agree::{Agreement, agree};
use super::git::Bound;
use super::layout::{Place, Wanted};
use super::manifest::{Binding, ListFormat, Listing};
use super::rehash::{Progress, Unreachable, rehash_place};
use super::report::{Integrity, ReplicaReport, ReportContext, integrity_of_files};
use super::values::Algorithm;
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::finding::{Check, Finding, Outcome, Severity, all_good};
use crate::relpath::RelPath;

/// A replica to look at.
pub struct Target<'a> {
    /// What the report will say; its `finished` is set when the scan ends.
    pub context: ReportContext,
    /// The folder.
    pub path: &'a Path,
    /// Which revision to look at, in a hub cache.
    pub revision: Option<&'a str>,
    /// Hears how far the scan is.
    pub progress: &'a dyn Progress,
}

/// What `verify weights` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Survey {
    /// What the replicas were compared with.
    pub manifest: ManifestSummary,
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

/// What is known from a manifest before any replica was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ManifestSummary {
    /// The file format it was read from.
    pub format: ListFormat,
    /// Files listed.
    pub files: usize,
    /// The pinned identity. Absent when the manifest gives none: an observed root
    /// in a report is then only what was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<Sha256Digest>,
    /// Paths declared as not part of the checkpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<RelPath>,
    /// The revision that the files are said to belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Fingerprint of the key that the manifest's signature was confirmed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signer: Option<String>,
    /// What the manifest says of the link to that revision. The check
    /// `revision-bound` says whether it was shown here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
}

impl ManifestSummary {
    fn of(manifest: &Listing) -> Self {
        Self {
            format: manifest.format(),
            files: manifest.file_count(),
            root: manifest.root(),
            ignore: manifest.ignore().iter().cloned().collect(),
            revision: manifest.revision().map(str::to_owned),
            signer: None,
            binding: manifest.source().map(|s| s.binding),
        }
    }
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
    manifest: &impl AsRef<Listing>,
    algorithm: Algorithm,
    asserted: Option<usize>,
    now: &(dyn Fn() -> String + Sync),
) -> Survey {
    let manifest = manifest.as_ref();
    let results: Vec<(SurveyedReplica, Vec<Finding>)> = targets
        .into_par_iter()
        .map(|target| look_at(target, manifest, algorithm, now))
        .collect();
    let (replicas, findings): (Vec<_>, Vec<_>) = results.into_iter().unzip();
    conclude(manifest, replicas, findings.concat(), asserted)
}

fn look_at(
    target: Target<'_>,
    manifest: &Listing,
    algorithm: Algorithm,
    now: &(dyn Fn() -> String + Sync),
) -> (SurveyedReplica, Vec<Finding>) {
    let mut context = target.context;
    let name = context.replica.clone();
    let wanted = Wanted {
        asked: target.revision,
        pinned: manifest.revision(),
    };
    let scan = Place::locate(target.path, wanted)
        .map_err(Unreachable)
        .and_then(|place| rehash_place(place, manifest, algorithm, target.progress));
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
            let finding = Finding::new(e.0.code(), &name, &reason);
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
    manifest: &Listing,
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
    let compared = if manifest.is_absent() {
        Outcome::NotPerformed {
            reason: "there is no manifest".to_owned(),
        }
    } else {
        Outcome::Passed
    };
    let checks = vec![
        check("manifest-given", true, compared),
        check("replicas-reached", true, passed(all_reached)),
        check("replicas-verified", true, passed(all_verified)),
        check("replicas-agree", replicas.len() > 1, agreed),
        check(
            "replicas-distinct",
            true,
            passed(agreement.duplicates.is_empty()),
        ),
        check("replica-count", asserted.is_some(), count),
        check("structure", false, structure_outcome(&reports, &findings)),
        check("revision-bound", false, asserted_only(manifest)),
    ];
    let verdict = if all_good(&checks, &findings) {
        Verdict::Verified
    } else {
        Verdict::NotVerified
    };
    Survey {
        manifest: ManifestSummary::of(manifest),
        checks,
        findings,
        replicas,
        agreement,
        verdict,
    }
}

/// Did the weight files' own headers hold? Not required: digests decide, and a
/// problem is a finding of its own.
fn structure_outcome(reports: &[&ReplicaReport], findings: &[Finding]) -> Outcome {
    let looked: usize = reports
        .iter()
        .map(|r| r.structure.safetensors + r.structure.gguf)
        .sum();
    let problems = reports.iter().flat_map(|r| &r.structure.problems);
    let codes: Vec<_> = problems.map(|p| p.kind.code()).collect();
    let bad = |f: &&Finding| f.severity == Severity::Error && codes.contains(&f.code);
    if findings.iter().any(|f| bad(&f)) {
        Outcome::Failed
    } else if looked == 0 {
        Outcome::NotPerformed {
            reason: "there are no safetensors or GGUF files".to_owned(),
        }
    } else {
        Outcome::Passed
    }
}

fn asserted_only(manifest: &Listing) -> Outcome {
    let reason = match (manifest.revision(), manifest.source().map(|s| s.binding)) {
        (None, _) => "the manifest names no revision".to_owned(),
        (Some(revision), Some(Binding::GitObjects)) => format!(
            "revision {revision} is asserted; the manifest says it was shown when it was made, and its git objects are not at hand"
        ),
        (Some(revision), _) => {
            format!("revision {revision} is asserted; its git objects are not at hand")
        }
    };
    Outcome::NotPerformed { reason }
}

impl Survey {
    /// Concludes whether the manifest belongs to a revision, after a survey with
    /// the listing of [`Bound`], and makes that a required part of the verdict.
    pub fn with_bound(mut self, bound: &Bound) -> Self {
        self.findings.extend(bound.findings.iter().cloned());
        let broken = self
            .findings
            .iter()
            .any(|f| f.code == Code::RevisionNotBound);
        let whole = self
            .replicas
            .iter()
            .any(|r| r.integrity == Integrity::Verified);
        let outcome = if broken {
            Outcome::Failed
        } else if whole {
            Outcome::Passed
        } else {
            Outcome::NotPerformed {
                reason: "no replica holds all files, so their blob ids are not known".to_owned(),
            }
        };
        for check in self
            .checks
            .iter_mut()
            .filter(|c| c.name == "revision-bound")
        {
            (check.required, check.outcome) = (true, outcome.clone());
        }
        self.conclude_again()
    }

    /// Adds a check that could not be performed although it was asked for.
    pub fn with_unbound(mut self, reason: String) -> Self {
        for check in self
            .checks
            .iter_mut()
            .filter(|c| c.name == "revision-bound")
        {
            check.required = true;
            check.outcome = Outcome::NotPerformed {
                reason: reason.clone(),
            };
        }
        self.conclude_again()
    }

    /// Adds what became of the signature on a manifest of a signed format: checked
    /// with the key of the signer named, or, without one, not checked.
    pub fn with_signature(mut self, signer: Option<String>) -> Self {
        let outcome = match signer {
            Some(_) => Outcome::Passed,
            None => Outcome::NotPerformed {
                reason: "signature not checked: no public key was given".to_owned(),
            },
        };
        self.checks.insert(
            1,
            Check {
                name: "manifest-signature".to_owned(),
                required: signer.is_some(),
                outcome,
            },
        );
        self.manifest.signer = signer;
        self.conclude_again()
    }

    /// The answer to a manifest that cannot be relied on: nothing was read.
    pub fn refused(format: ListFormat, findings: Vec<Finding>) -> Self {
        let mut survey = conclude(&Listing::absent(), Vec::new(), findings, None);
        survey.manifest.format = format;
        for check in &mut survey.checks {
            check.outcome = match check.name.as_str() {
                "manifest-given" => Outcome::Failed,
                _ => Outcome::NotPerformed {
                    reason: "the manifest was refused".to_owned(),
                },
            };
        }
        survey.conclude_again()
    }

    fn conclude_again(mut self) -> Self {
        self.verdict = if all_good(&self.checks, &self.findings) {
            Verdict::Verified
        } else {
            Verdict::NotVerified
        };
        self
    }
}

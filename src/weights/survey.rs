//! All replicas of a checkpoint at once: rehash, compare, conclude.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::agree::{Agreement, agree};
use super::git::Bound;
use super::hashing::Pace;
use super::look::{Expected, Looked, Target, looked};
use super::manifest::{Binding, ListFormat, Listing};
use super::report::{Integrity, ReplicaReport, is_not_re_read, not_against_root};
use super::values::Algorithm;
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::finding::{Check, Finding, Outcome, Severity, all_good};
use crate::relpath::RelPath;

/// What `verify weights` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Survey {
    /// What the conclusion rests on.
    pub basis: Basis,
    /// What the replicas were compared with, one for each kind of checkpoint.
    pub manifests: Vec<ManifestSummary>,
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

/// What a [`Survey`] rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The files were read just now.
    Rehash,
    /// Reports of earlier rehashes were judged; no replica was looked at.
    Reports,
}

/// What is known from a manifest before any replica was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ManifestSummary {
    /// What the checkpoint is for.
    pub role: String,
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
    fn of(role: &str, manifest: &Listing) -> Self {
        Self {
            role: role.to_owned(),
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
    /// What the checkpoint is for.
    pub role: String,
    /// Does it hold the checkpoint?
    pub integrity: Integrity,
    /// Fingerprint of the node key that signed the report, when a key was given
    /// for this node and the signature verifies with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed_by: Option<String>,
    /// The rehash; absent when the replica could not be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<ReplicaReport>,
}

/// Rehashes every target in parallel and draws the conclusion, for one checkpoint
/// on each replica of this machine. A target that cannot be reached is a finding
/// and does not stop the others.
///
/// `pace` bounds threads and reading, over all targets together.
/// `asserted` is the number of distinct replicas that somebody claims.
/// `now` is the clock: RFC 3339 in UTC.
pub fn survey(
    targets: Vec<Target<'_>>,
    manifest: &impl AsRef<Listing>,
    algorithm: Algorithm,
    pace: Pace,
    asserted: Option<usize>,
    now: &(dyn Fn() -> String + Sync),
) -> Survey {
    let manifest = manifest.as_ref();
    let of = |target| Expected {
        target,
        manifest,
        since: None,
    };
    let targets = targets.into_iter().map(of).collect();
    let looked = looked(targets, algorithm, pace, now, |_, looked| looked);
    conclude(&[("target", manifest)], looked, asserted, Basis::Rehash)
}

/// Compares the replicas and draws the conclusion. `manifests` are what was
/// expected, by role.
pub fn conclude(
    manifests: &[(&str, &Listing)],
    looked: Vec<Looked>,
    asserted: Option<usize>,
    basis: Basis,
) -> Survey {
    let mut findings = Vec::new();
    let replicas: Vec<SurveyedReplica> = looked
        .into_iter()
        .map(|l| {
            findings.extend(l.findings);
            SurveyedReplica {
                name: l.replica,
                role: l.role,
                integrity: l.integrity,
                signed_by: l.signed_by,
                report: l.report,
            }
        })
        .collect();
    let reports: Vec<_> = replicas.iter().filter_map(|r| r.report.as_ref()).collect();
    let agreement = agree(&reports);
    findings.extend(agreement.findings());
    findings.extend(blake3_not_compared(manifests, &reports));

    let rehashed = rehashed(&replicas);
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
    // Leaving files out is neither a match nor a mismatch.
    let left_out: usize = reports
        .iter()
        .map(|r| r.files.iter().filter(|f| is_not_re_read(f)).count())
        .sum();
    let no_errors = findings.iter().all(|f| f.severity < Severity::Error);
    let not_re_read = (left_out > 0 && all_reached && no_errors).then(|| Outcome::NotPerformed {
        reason: format!("{left_out} files not re-read"),
    });
    // Nor is comparing them by something that the root does not commit to.
    let by_blake3 = manifests.iter().any(|(role, manifest)| {
        let of_role = |r: &&&ReplicaReport| r.role == *role;
        reports
            .iter()
            .filter(of_role)
            .any(|r| not_against_root(manifest, r.algorithm))
    });
    let not_by_sha256 = (by_blake3 && all_reached && no_errors).then(|| Outcome::NotPerformed {
        reason: "only BLAKE3 was compared, which the manifest's root does not commit to (hint: leave --algorithm out, or say `both`)"
            .to_owned(),
    });
    let several = replicas.iter().any(|r| r.name != replicas[0].name);
    let agreed = if !several && all_reached {
        Outcome::NotPerformed {
            reason: "there is only one replica".to_owned(),
        }
    } else if let Some(outcome) = &not_re_read {
        outcome.clone()
    } else {
        passed(agreement.all_agree && all_reached)
    };
    let not_performed = not_re_read.or(not_by_sha256);
    let verified = not_performed.unwrap_or_else(|| passed(all_verified));
    let check = |name: &str, required, outcome| Check {
        name: name.to_owned(),
        required,
        outcome,
    };
    let compared = if manifests.iter().any(|(_, m)| m.is_absent()) {
        Outcome::NotPerformed {
            reason: "there is no manifest".to_owned(),
        }
    } else {
        Outcome::Passed
    };
    let checks = vec![
        check("manifest-given", true, compared),
        check("replicas-reached", true, passed(all_reached)),
        check("replicas-verified", true, verified),
        check("replicas-agree", several, agreed),
        check(
            "replicas-distinct",
            true,
            passed(agreement.duplicates.is_empty()),
        ),
        check("replica-count", asserted.is_some(), count),
        check("structure", false, structure_outcome(&reports, &findings)),
        check("revision-bound", false, asserted_only(manifests)),
    ];
    let verdict = if all_good(&checks, &findings) {
        Verdict::Verified
    } else {
        Verdict::NotVerified
    };
    let summaries = manifests
        .iter()
        .map(|(role, m)| ManifestSummary::of(role, m));
    Survey {
        basis,
        manifests: summaries.collect(),
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
        .filter_map(|r| r.structure.as_ref())
        .map(|s| s.safetensors + s.gguf)
        .sum();
    let structures = reports.iter().filter_map(|r| r.structure.as_ref());
    let problems = structures.flat_map(|s| &s.problems);
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

/// A digest that was computed and compared with nothing must not read as compared.
fn blake3_not_compared(manifests: &[(&str, &Listing)], reports: &[&ReplicaReport]) -> Vec<Finding> {
    let without = |(role, manifest): &(&str, &Listing)| {
        let computed = |r: &&&ReplicaReport| r.role == *role && r.algorithm == Algorithm::Both;
        let lacking = manifest.entries().filter(|e| e.blake3.is_none()).count();
        let any = lacking > 0 && reports.iter().any(|r| computed(&r));
        // Foreign lists say per file what was compared.
        let said = manifest.root().is_none() || !any;
        (!said).then(|| {
            let detail = format!(
                "the manifest gives no BLAKE3 of {lacking} of {} files: SHA-256 alone was compared there",
                manifest.file_count()
            );
            Finding::new(Code::Blake3NotCompared, "manifest", detail)
        })
    };
    manifests.iter().filter_map(without).collect()
}

/// The link to a revision is a question about the target.
fn asserted_only(manifests: &[(&str, &Listing)]) -> Outcome {
    let target = manifests.iter().find(|(role, _)| *role == "target");
    let Some((_, manifest)) = target else {
        return Outcome::NotPerformed {
            reason: "there is no manifest of the target".to_owned(),
        };
    };
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
            .any(|r| r.role == "target" && r.integrity == Integrity::Verified);
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
        for manifest in self.manifests.iter_mut().filter(|m| m.role == "target") {
            manifest.signer.clone_from(&signer);
        }
        self.conclude_again()
    }

    /// The answer to a manifest that cannot be relied on: nothing was read.
    pub fn refused(format: ListFormat, findings: Vec<Finding>) -> Self {
        let absent = Listing::absent();
        let manifests = [("target", &absent)];
        let mut survey = conclude(&manifests, Vec::new(), None, Basis::Rehash);
        survey.findings.splice(0..0, findings);
        for manifest in &mut survey.manifests {
            manifest.format = format;
        }
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

/// Distinct replicas of which every checkpoint was read, whatever was found.
fn rehashed(replicas: &[SurveyedReplica]) -> usize {
    let left_out = |name: &str| {
        replicas
            .iter()
            .any(|r| r.name == name && matches!(r.integrity, Integrity::NotChecked { .. }))
    };
    let read: Vec<_> = replicas
        .iter()
        .filter(|r| !left_out(&r.name))
        .filter_map(|r| r.report.as_ref())
        .collect();
    agree(&read).replicas
}

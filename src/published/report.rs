//! What an audit of a published record comes to.

use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::Kind;
use crate::audit::Verdict;
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::finding::{Check, Finding, Outcome, Severity, all_good};

/// How well a figure is founded, weakest first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Derivation {
    /// The record has no such figure, though one of its kind would be expected.
    NotRecorded,
    /// It is only said.
    Stated,
    /// Other figures at hand leave room for it, within their rounding.
    Consistent,
    /// It follows from finer values at hand, digit for digit.
    Recomputed,
}

impl Derivation {
    /// As written in reports and policies.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotRecorded => "not_recorded",
            Self::Stated => "stated",
            Self::Consistent => "consistent",
            Self::Recomputed => "recomputed",
        }
    }

    /// Reads what [`Derivation::name`] writes.
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::NotRecorded,
            Self::Stated,
            Self::Consistent,
            Self::Recomputed,
        ]
        .into_iter()
        .find(|d| d.name() == name)
    }
}

/// A figure of a published record and what the auditor makes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PublishedFigure {
    /// Its place in the record, or a name where it is only implied.
    pub id: String,
    /// As in the record; absent where the record does not say it.
    pub stated: Option<String>,
    /// As it follows from what is at hand.
    pub recomputed: Option<String>,
    /// Unit.
    pub unit: String,
    /// Values that went in; null when the record does not say.
    pub n: Option<u64>,
    /// How well it is founded.
    pub derivation: Derivation,
    /// Who vouches for what it was derived from: `none` without a signature.
    pub witness: String,
    /// From what it was derived, or why it was not.
    pub basis: String,
}

/// The result of an audit of anything but a bundle of our own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PublishedReport {
    /// What was audited.
    pub path: String,
    /// What it is.
    pub kind: Kind,
    /// Digest of the file.
    pub sha256: Sha256Digest,
    /// The record's own name for itself.
    pub id: Option<String>,
    /// `self_consistent` at best when nobody signed it.
    pub verdict: Verdict,
    /// Checks in the order performed.
    pub checks: Vec<Check>,
    /// Findings, errors first.
    pub findings: Vec<Finding>,
    /// Every figure, with its label.
    pub figures: Vec<PublishedFigure>,
    /// Fingerprints of trusted signers with a valid signature.
    pub signers: Vec<String>,
}

/// An audit of a published record in progress.
#[derive(Default)]
pub struct Auditor {
    /// Checks so far.
    pub checks: Vec<Check>,
    /// Findings so far.
    pub findings: Vec<Finding>,
    /// Figures so far.
    pub figures: Vec<PublishedFigure>,
    /// The record's name for itself.
    pub id: Option<String>,
    /// Trusted signers.
    pub signers: Vec<String>,
}

impl Auditor {
    /// Adds a finding.
    pub fn add(&mut self, code: Code, subject: impl Into<String>, detail: impl Into<String>) {
        self.findings.push(Finding::new(code, subject, detail));
    }

    /// Adds a finding with the two values that differ.
    pub fn differ(
        &mut self,
        code: Code,
        subject: impl Into<String>,
        detail: impl Into<String>,
        expected: impl ToString,
        found: impl ToString,
    ) {
        self.findings
            .push(Finding::new(code, subject, detail).values(expected, found));
    }

    /// Closes a check: failed when an error has one of its codes.
    pub fn close(&mut self, name: &str, codes: &[Code]) {
        let failed = self
            .findings
            .iter()
            .any(|f| f.severity == Severity::Error && codes.contains(&f.code));
        let outcome = match failed {
            true => Outcome::Failed,
            false => Outcome::Passed,
        };
        self.push(name, true, outcome);
    }

    /// A check that was not performed.
    pub fn skip(&mut self, name: &str, required: bool, reason: impl Into<String>) {
        let reason = reason.into();
        self.push(name, required, Outcome::NotPerformed { reason });
    }

    fn push(&mut self, name: &str, required: bool, outcome: Outcome) {
        self.checks.push(Check {
            name: name.to_owned(),
            required,
            outcome,
        });
    }

    /// Adds a figure that the record states.
    pub fn figure(&mut self, figure: FigureOf) {
        self.figures.push(PublishedFigure {
            id: figure.id,
            stated: figure.stated,
            recomputed: figure.recomputed,
            unit: figure.unit.to_owned(),
            n: figure.n,
            derivation: figure.derivation,
            witness: "none".to_owned(),
            basis: figure.basis,
        });
    }

    /// A figure that is only said.
    pub fn stated(
        &mut self,
        id: impl Into<String>,
        value: impl Into<String>,
        unit: &'static str,
        n: Option<u64>,
        basis: impl Into<String>,
    ) {
        self.figure(FigureOf {
            id: id.into(),
            stated: Some(value.into()),
            recomputed: None,
            unit,
            n,
            derivation: Derivation::Stated,
            basis: basis.into(),
        });
    }

    /// The report.
    pub fn finish(mut self, path: &str, kind: Kind, bytes: &[u8]) -> PublishedReport {
        self.findings.sort_by_key(|f| std::cmp::Reverse(f.severity));
        let verdict = verdict(&self.checks, &self.findings);
        PublishedReport {
            path: path.to_owned(),
            kind,
            sha256: Sha256Digest::of(bytes),
            id: self.id,
            verdict,
            checks: self.checks,
            findings: self.findings,
            figures: self.figures,
            signers: self.signers,
        }
    }
}

/// Arguments of [`Auditor::figure`].
pub struct FigureOf {
    /// Place or name.
    pub id: String,
    /// As said.
    pub stated: Option<String>,
    /// As it follows.
    pub recomputed: Option<String>,
    /// Unit.
    pub unit: &'static str,
    /// Values that went in.
    pub n: Option<u64>,
    /// Label.
    pub derivation: Derivation,
    /// From what.
    pub basis: String,
}

/// Names of the checks that say who signed and not whether the content holds.
pub const TRUST_CHECKS: [&str; 3] = ["signer-trusted", "signature-present", "threshold"];

/// Everything passed; or everything but who signed; or not.
pub fn verdict(checks: &[Check], findings: &[Finding]) -> Verdict {
    const TRUST_CODES: [Code; 2] = [Code::SignerNotTrusted, Code::ThresholdNotMet];
    let content: Vec<Check> = checks
        .iter()
        .filter(|c| !TRUST_CHECKS.contains(&c.name.as_str()))
        .cloned()
        .collect();
    let rest: Vec<Finding> = findings
        .iter()
        .filter(|f| !TRUST_CODES.contains(&f.code))
        .cloned()
        .collect();
    if !all_good(&content, &rest) {
        Verdict::NotVerified
    } else if all_good(checks, findings) {
        Verdict::Verified
    } else {
        Verdict::SelfConsistent
    }
}

impl PublishedReport {
    /// How many figures have each label, strongest first.
    pub fn labels(&self) -> [(Derivation, usize); 4] {
        [
            Derivation::Recomputed,
            Derivation::Consistent,
            Derivation::Stated,
            Derivation::NotRecorded,
        ]
        .map(|d| {
            let n = self.figures.iter().filter(|f| f.derivation == d).count();
            (d, n)
        })
    }
}

/// Renders a report as plain text.
pub fn human(report: &PublishedReport, full: bool) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "record {}", report.path);
    let _ = writeln!(
        out,
        "  {}   {}",
        report.kind.name(),
        report.id.as_deref().unwrap_or("without a name of its own")
    );
    let labels: Vec<String> = report
        .labels()
        .iter()
        .map(|(d, n)| format!("{n} {}", d.name().replace('_', " ")))
        .collect();
    let _ = writeln!(out, "  figures: {}", labels.join(", "));
    if full {
        figures(report, &mut out);
    } else if !report.figures.is_empty() {
        out.push_str("  (--full lists every figure with its label and what it rests on)\n");
    }
    out.push('\n');
    checks(report, full, &mut out);
    findings(report, &mut out);
    out.push('\n');
    out.push_str(last_line(report));
    out.push('\n');
    out
}

fn figures(report: &PublishedReport, out: &mut String) {
    let width = report
        .figures
        .iter()
        .map(|f| f.id.chars().count())
        .max()
        .unwrap_or(0)
        .clamp(20, 60);
    for f in &report.figures {
        let value = match (&f.stated, &f.recomputed) {
            (Some(s), Some(r)) if s != r => format!("{s} (here {r})"),
            (Some(v), _) | (None, Some(v)) => v.clone(),
            (None, None) => "-".to_owned(),
        };
        let n = f.n.map_or("?".to_owned(), |n| n.to_string());
        let _ = writeln!(
            out,
            "    {:<width$}  {value} {}  n={n}  {}; {}",
            f.id,
            f.unit,
            f.derivation.name(),
            f.basis
        );
    }
}

fn checks(report: &PublishedReport, full: bool, out: &mut String) {
    for c in &report.checks {
        let _ = match &c.outcome {
            Outcome::Passed if !full => continue,
            Outcome::Passed => writeln!(out, "  passed         {}", c.name),
            Outcome::Failed => writeln!(out, "  FAILED         {}", c.name),
            Outcome::NotPerformed { reason } => {
                let weight = if c.required { "" } else { " (allowed)" };
                writeln!(out, "  not performed  {}: {reason}{weight}", c.name)
            }
        };
    }
}

fn findings(report: &PublishedReport, out: &mut String) {
    const SHOWN: usize = 12;
    for f in report.findings.iter().take(SHOWN) {
        let weight = match f.severity {
            Severity::Error => "error",
            Severity::Note => "note ",
        };
        let _ = writeln!(out, "  {weight} {} [{}] {}", f.code, f.subject, f.detail);
        if let (Some(expected), Some(found)) = (&f.expected, &f.found) {
            let _ = writeln!(
                out,
                "          expected {expected}\n          found    {found}"
            );
        }
    }
    if report.findings.len() > SHOWN {
        let more = report.findings.len() - SHOWN;
        let _ = writeln!(out, "  … and {more} more (--format json shows all)");
    }
    if !report.findings.is_empty() {
        out.push_str("  `verify explain CODE` says what a finding means and what to do.\n");
    }
}

fn last_line(report: &PublishedReport) -> &'static str {
    match report.verdict {
        Verdict::Verified if report.signers.is_empty() => {
            "ACCEPTED by your policy: the record does not contradict itself. Nobody signed it, and nothing but its\n\
             arithmetic was established."
        }
        Verdict::Verified => {
            "VERIFIED: signed by a key that you trust, and nothing in it contradicts itself. What is only stated\n\
             is its signer's word."
        }
        Verdict::SelfConsistent => {
            "SELF-CONSISTENT: the record does not contradict itself, but nobody whom you trust signed it. What is\n\
             only stated stays somebody's word."
        }
        Verdict::NotVerified => "NOT VERIFIED: see what failed or was not performed above.",
    }
}

//! Findings and checks: what was looked at, and what did not hold.
//!
//! A finding is not an error. An error means that a question could not be asked;
//! a finding is an answer that someone will not like. Every finding has a code
//! from [`Code`], and every code has an entry in docs/codes.md, which is
//! generated from the table in [`crate::codes`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::codes::Code;

/// How much a finding weighs.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; never changes an exit code.
    Note,
    /// Something required does not hold: exit code 1.
    Error,
}

/// One thing that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The kind of finding.
    pub code: Code,
    /// Taken from the code, repeated for readers of the JSON.
    pub severity: Severity,
    /// What it is about: a file, a replica and file, a record field, a case.
    pub subject: String,
    /// What is wrong, in one sentence.
    pub detail: String,
    /// What should have been there, where there is such a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// What was there instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
}

impl Finding {
    /// A finding without an expected/found pair.
    pub fn new(code: Code, subject: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            code,
            severity: code.severity(),
            subject: subject.into(),
            detail: detail.into(),
            expected: None,
            found: None,
        }
    }

    /// Adds the two values that differ.
    pub fn values(mut self, expected: impl ToString, found: impl ToString) -> Self {
        self.expected = Some(expected.to_string());
        self.found = Some(found.to_string());
        self
    }
}

/// What became of a check. There is no fourth outcome and no default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Outcome {
    /// It was performed and held.
    Passed,
    /// It was performed and did not hold; the findings say how.
    Failed,
    /// It was not performed.
    NotPerformed {
        /// Why not.
        reason: String,
    },
}

/// A named check and its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// Stable kebab-case name.
    pub name: String,
    /// When false, "not performed" is reported but does not fail the audit.
    pub required: bool,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// True when every required check passed and no finding is an error.
pub fn all_good(checks: &[Check], findings: &[Finding]) -> bool {
    findings.iter().all(|f| f.severity < Severity::Error)
        && checks.iter().all(|c| match c.outcome {
            Outcome::Passed => true,
            Outcome::Failed => false,
            Outcome::NotPerformed { .. } => !c.required,
        })
}

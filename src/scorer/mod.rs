//! The frozen scorer: named CEL checks that anyone can run again.
//!
//! `scorer.toml` holds a dialect and a list of checks:
//!
//! ```toml
//! format = "runseal.scorer/v1"
//! name = "frozen-evidence-fields-v1"
//! dialect = "runseal-cel/1"
//!
//! [[check]]
//! id = "json_object"
//! expr = 'answer.json != null && has(answer.json.date)'
//! ```
//!
//! Checks run in file order over two variables, `case` (the frozen case) and
//! `answer`. The first check that is false makes the grade `fail` and names the
//! stage; the first one that errors or is not a boolean makes it `ungraded`,
//! never `fail`; when all are true the case passes. Later checks do not run.
//!
//! A scorer comes from whoever made the suite and an answer from a model, so
//! neither is trusted: [`Scorer::parse`] reads the file and scans the
//! expressions without parsing them, and everything after that (the CEL parser,
//! the check of the syntax tree in [`dialect`], the evaluation in [`eval`]) runs
//! in a limited child process, see [`child`].
//!
//! `docs/scorer-dialect.md` is the dialect's specification.

pub mod child;
pub mod dialect;
pub mod eval;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::{Enc, Sha256Digest};
pub use dialect::DIALECT;

/// `format` of every scorer file.
pub const FORMAT: &str = "runseal.scorer/v1";
/// Largest scorer file.
pub const MAX_FILE_BYTES: usize = 256 * 1024;
/// Most checks in one scorer.
pub const MAX_CHECKS: usize = 64;
/// Largest answer: content, reasoning, finish reason and tool calls (as compact
/// JSON) together. A larger one is `ungraded`.
pub const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// Largest case, as compact JSON. A larger one is `ungraded`.
pub const MAX_CASE_BYTES: usize = 4 * 1024 * 1024;
/// Most JSON values (at any depth) in the case, in the tool calls, and in the
/// parsed content, each.
pub const MAX_JSON_VALUES: usize = 200_000;

/// A scorer whose file is well-formed. Its expressions have been scanned, not
/// parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scorer {
    name: String,
    checks: Vec<CheckText>,
    file: Sha256Digest,
}

/// One check as written.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckText {
    /// Names the stage that failed.
    pub id: String,
    /// A boolean CEL expression.
    pub expr: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "format")]
    _format: String,
    name: String,
    #[serde(rename = "dialect")]
    _dialect: String,
    check: Vec<CheckText>,
}

/// Why a scorer is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScorerError {
    /// Too large, not UTF-8, not TOML, or not of this shape.
    #[error("the scorer file cannot be read: {0} (hint: docs/scorer-dialect.md shows one)")]
    File(String),
    /// Another format.
    #[error("the scorer has format {0:?} (hint: {FORMAT:?} is the one this version reads)")]
    Format(String),
    /// A dialect this version does not evaluate. Grades are then not performed.
    #[error(
        "the scorer is written in dialect {0:?} (hint: this version evaluates {DIALECT:?}; a newer \
         one may know it)"
    )]
    UnknownDialect(String),
    /// A check is outside the dialect.
    #[error(
        "check {id:?} is refused: {why} (hint: docs/scorer-dialect.md lists what a check may use)"
    )]
    Check {
        /// The check.
        id: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Scorer {
    /// Reads a scorer file, refusing whatever is outside the limits.
    pub fn parse(bytes: &[u8]) -> Result<Self, ScorerError> {
        let bad = |why: &str| ScorerError::File(why.to_owned());
        if bytes.len() > MAX_FILE_BYTES {
            return Err(ScorerError::File(format!(
                "it has {} bytes, more than {MAX_FILE_BYTES}",
                bytes.len()
            )));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| bad("it is not UTF-8"))?;
        let table: toml::Table =
            toml::from_str(text).map_err(|e| ScorerError::File(e.message().to_owned()))?;
        // Format and dialect come first: a later version's file may have fields
        // that this one does not know, and "unknown dialect" is the true answer.
        let string = |key: &str| table.get(key).and_then(|v| v.as_str()).unwrap_or_default();
        if string("format") != FORMAT {
            return Err(ScorerError::Format(string("format").to_owned()));
        }
        if string("dialect") != DIALECT {
            return Err(ScorerError::UnknownDialect(string("dialect").to_owned()));
        }
        let file: File = table
            .try_into()
            .map_err(|e: toml::de::Error| ScorerError::File(e.message().to_owned()))?;
        if !is_name(&file.name, |c| c == '-' || c == '_' || c == '.') {
            return Err(bad(
                "its name is not 1 to 64 lower-case letters, digits, '-', '_' and '.'",
            ));
        }
        if file.check.is_empty() || file.check.len() > MAX_CHECKS {
            return Err(ScorerError::File(format!(
                "it has {} checks; 1 to {MAX_CHECKS} are allowed",
                file.check.len()
            )));
        }
        let mut seen = BTreeSet::new();
        for check in &file.check {
            let refuse = |why: String| ScorerError::Check {
                id: check.id.clone(),
                why,
            };
            if !is_name(&check.id, |c| c == '_') {
                return Err(refuse(
                    "its id is not 1 to 64 lower-case letters, digits and '_'".to_owned(),
                ));
            }
            if !seen.insert(check.id.as_str()) {
                return Err(refuse("another check has the same id".to_owned()));
            }
            dialect::scan(&check.expr).map_err(refuse)?;
        }
        Ok(Self {
            name: file.name,
            checks: file.check,
            file: Sha256Digest::of(bytes),
        })
    }

    /// The scorer's own name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its checks, in order.
    pub fn checks(&self) -> &[CheckText] {
        &self.checks
    }

    /// What a record pins: dialect and file bytes.
    pub fn identity(&self) -> Sha256Digest {
        identity(DIALECT, self.file)
    }
}

/// Identity digest of a scorer: `runseal-enc/v1` in the domain `scorer/v1` over
/// the dialect's name and the SHA-256 of the file. Also works for a scorer in a
/// dialect that this version cannot evaluate.
pub fn identity(dialect: &str, file: Sha256Digest) -> Sha256Digest {
    Enc::new("scorer/v1")
        .bytes(dialect.as_bytes())
        .bytes(&file.0)
        .finish()
}

fn is_name(text: &str, extra: impl Fn(char) -> bool) -> bool {
    (1..=64).contains(&text.len())
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || extra(c))
}

/// The grade of one case. Nothing here tells whether a transport failed or
/// who served it; those are other axes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "grade", rename_all = "lowercase")]
pub enum Grade {
    /// Every check is true.
    Pass,
    /// A check is false.
    Fail {
        /// The first one that is.
        check: String,
    },
    /// No grade can be given.
    Ungraded {
        /// Why not. The same evidence gives the same text.
        reason: String,
    },
}

/// What a case was answered, as the scorer sees it. The parsed form
/// (`answer.json`) is derived from the content and never handed in.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Final content.
    pub content: String,
    /// Reasoning, empty when there was none.
    pub reasoning: String,
    /// As the server gave it.
    pub finish_reason: Option<String>,
    /// As the server gave them, assembled.
    pub tool_calls: Vec<Value>,
}

/// One case to grade.
#[derive(Debug, Clone, PartialEq)]
pub struct GradeItem {
    /// The caller's name for it; comes back in the result.
    pub key: String,
    /// The frozen case, a JSON object.
    pub case: Value,
    /// The answer to it.
    pub answer: Answer,
}

/// One graded case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GradeResult {
    /// From the item.
    pub key: String,
    /// Its grade.
    pub grade: Grade,
    /// False when the scorer's child died over this item (or was not started
    /// for it any more). The grade is then `ungraded`, and an auditor reports
    /// the check as not performed: limits of time depend on the machine.
    pub performed: bool,
}

//! in-toto Statement v1: what a signed payload says, and about which bytes.
//!
//! The statement is generic over its predicate; this module knows the frame
//! only. The reader parses exactly the bytes whose signature was checked
//! ([`crate::envelope::Envelope::payload`]) and, because our own payloads have
//! one byte form, refuses any other spelling of the same JSON.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;
use crate::finding::{Code, Finding};
use crate::json::{self, JsonError};

/// `_type` of every statement.
pub const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
/// DSSE payload type of every statement.
pub const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

/// A claim (the predicate) about artifacts (the subjects).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Statement<P> {
    /// Always [`STATEMENT_TYPE`].
    #[serde(rename = "_type")]
    pub statement_type: String,
    /// What the claim is about.
    pub subject: Vec<Subject>,
    /// Which kind of claim it is.
    #[serde(rename = "predicateType")]
    pub predicate_type: String,
    /// The claim.
    pub predicate: P,
}

/// One artifact, by name and digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Unique within the statement.
    pub name: String,
    /// Its digests.
    pub digest: DigestSet,
}

/// Digests of one artifact. SHA-256 is always there; others are extras.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DigestSet {
    /// The digest that counts.
    pub sha256: Sha256Digest,
    /// For example `blake3`, in lower-case hex.
    #[serde(flatten)]
    pub others: BTreeMap<String, String>,
}

impl Subject {
    /// A subject known by its SHA-256 alone.
    pub fn new(name: impl Into<String>, sha256: Sha256Digest) -> Self {
        Self {
            name: name.into(),
            digest: DigestSet {
                sha256,
                others: BTreeMap::new(),
            },
        }
    }
}

/// Why a payload is not a statement that can be judged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatementError {
    /// Not strict JSON, or not of this shape.
    #[error("the payload is not a statement: {0}")]
    Json(#[from] JsonError),
    /// Another spelling of the same JSON.
    #[error(
        "the payload is not in canonical form (hint: compact JSON with sorted keys is the only \
         form our own records have)"
    )]
    NotCanonical,
    /// Not an in-toto Statement v1.
    #[error("the payload has _type {0:?} (hint: {STATEMENT_TYPE} is expected)")]
    Type(String),
    /// Another kind of claim than the one asked for.
    #[error(
        "the statement has predicate type {found:?} (hint: {expected:?} was expected; a newer \
         version of verify may know it)"
    )]
    PredicateType {
        /// The one asked for.
        expected: String,
        /// The one in the payload.
        found: String,
    },
    /// No subjects, or two of one name, or one without a name.
    #[error("the statement's subjects are unusable: {0} (hint: one name, one artifact)")]
    Subjects(String),
}

impl StatementError {
    /// The same as a finding.
    pub fn finding(&self, subject: &str) -> Finding {
        Finding::new(Code::StatementMalformed, subject, self.to_string())
    }
}

impl<P> Statement<P> {
    /// A statement of the current version.
    pub fn new(predicate_type: &str, subject: Vec<Subject>, predicate: P) -> Self {
        Self {
            statement_type: STATEMENT_TYPE.to_owned(),
            subject,
            predicate_type: predicate_type.to_owned(),
            predicate,
        }
    }

    /// The subject of that name.
    pub fn subject_named(&self, name: &str) -> Option<&Subject> {
        self.subject.iter().find(|s| s.name == name)
    }
}

impl<P: Serialize> Statement<P> {
    /// The bytes to sign.
    pub fn to_payload(&self) -> Vec<u8> {
        json::canonical(self)
    }
}

impl<P: DeserializeOwned> Statement<P> {
    /// Parses a verified payload of our own: canonical JSON, the right types,
    /// usable subjects.
    pub fn from_payload(payload: &[u8], predicate_type: &str) -> Result<Self, StatementError> {
        let value = json::parse(payload)?;
        // The types are looked at first: "a newer kind of record" is more use
        // to a reader than the first field that does not fit.
        let text = |key: &str| value.get(key).and_then(|v| v.as_str()).unwrap_or_default();
        if text("_type") != STATEMENT_TYPE {
            return Err(StatementError::Type(text("_type").to_owned()));
        }
        if text("predicateType") != predicate_type {
            return Err(StatementError::PredicateType {
                expected: predicate_type.to_owned(),
                found: text("predicateType").to_owned(),
            });
        }
        if json::canonical(&value) != payload {
            return Err(StatementError::NotCanonical);
        }
        let statement: Self = json::from_slice(payload)?;
        check_subjects(&statement.subject)?;
        Ok(statement)
    }
}

fn check_subjects(subjects: &[Subject]) -> Result<(), StatementError> {
    let bad = |why: String| Err(StatementError::Subjects(why));
    if subjects.is_empty() {
        return bad("there are none".to_owned());
    }
    let mut seen = BTreeSet::new();
    for subject in subjects {
        if subject.name.is_empty() {
            return bad("one has no name".to_owned());
        }
        if !seen.insert(&subject.name) {
            return bad(format!("{:?} is there twice", subject.name));
        }
    }
    Ok(())
}

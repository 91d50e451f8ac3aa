//! Subjects of the statement: what the record is about, by SHA-256.

use super::RunRecord;
use crate::digest::Sha256Digest;
use crate::plan::Pin;
use crate::statement::Subject;

/// Name of the subject that is the evidence index.
pub const INDEX_SUBJECT: &str = "evidence/index.json";

/// Subjects in their fixed order: checkpoints, executable (unless unpinned),
/// dataset, suite, scorer, evidence index.
pub fn subjects(record: &RunRecord, index: Sha256Digest) -> Vec<Subject> {
    let mut out: Vec<Subject> = record
        .model
        .checkpoints
        .iter()
        .map(|c| Subject::new(format!("checkpoint/{}", c.role), c.manifest_root))
        .collect();
    if let Pin::Sha256(digest) = record.runtime.image {
        out.push(Subject::new("executable", digest));
    }
    out.push(Subject::new("dataset", record.provenance.dataset));
    out.push(Subject::new("suite", record.provenance.suite));
    out.push(Subject::new("scorer", record.provenance.evaluator));
    out.push(Subject::new(INDEX_SUBJECT, index));
    out
}

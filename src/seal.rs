//! Sealing: from evidence files to index and signed record.

use std::collections::BTreeMap;

use crate::bundle::evidence::Evidence;
use crate::bundle::index::{self, Files};
use crate::digest::Sha256Digest;
use crate::envelope;
use crate::finding::Finding;
use crate::json;
use crate::keys::SigningKey;
use crate::record::subjects::subjects;
use crate::record::{PREDICATE_TYPE, RecordStatement, RunRecord, Signer, Stated, Tool, derive};
use crate::schema;
use crate::statement::{PAYLOAD_TYPE, STATEMENT_TYPE};

/// A bundle that cannot be sealed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The evidence cannot be parsed.
    #[error("the evidence cannot be sealed: {}", list(.0))]
    Evidence(Vec<Finding>),
    /// The record does not match its own schema: our fault.
    #[error("the record does not match its schema: {}", .0.join("; "))]
    Schema(Vec<String>),
}

fn list(findings: &[Finding]) -> String {
    let texts: Vec<String> = findings
        .iter()
        .map(|f| format!("{} {}: {}", f.code, f.subject, f.detail))
        .collect();
    texts.join("; ")
}

/// The two files that a seal adds, and the record in it.
#[derive(Debug)]
pub struct Sealed {
    /// Bytes of index.json.
    pub index: Vec<u8>,
    /// Bytes of record.intoto.jsonl.
    pub envelope: Vec<u8>,
    /// The derived record.
    pub record: RunRecord,
}

/// Derives, checks against the schema, and signs.
pub fn seal(
    files: &Files,
    salts: &BTreeMap<String, [u8; 32]>,
    tool: Tool,
    key: &SigningKey,
) -> Result<Sealed, SealError> {
    let evidence = Evidence::parse(files).map_err(SealError::Evidence)?;
    let index = index::build(
        &evidence.header.run_id,
        evidence.header.nonce_hash,
        files,
        salts,
    );
    let stated = Stated {
        tool,
        signers: vec![Signer {
            role: "operator".into(),
            keyid: key.keyid(),
            public_key: key.public().to_pem(),
        }],
    };
    let record = derive::record(&evidence, &index, &stated);
    let index = index.to_bytes();
    let statement = RecordStatement {
        statement_type: STATEMENT_TYPE.into(),
        subject: subjects(&record, Sha256Digest::of(&index)),
        predicate_type: PREDICATE_TYPE.into(),
        predicate: record,
    };
    let value = serde_json::to_value(&statement).unwrap_or_default();
    schema::validate("record", &value).map_err(SealError::Schema)?;
    let payload = json::canonical(&value);
    Ok(Sealed {
        index,
        envelope: envelope::sign(&payload, PAYLOAD_TYPE, &[key]),
        record: statement.predicate,
    })
}

//! A replica report signed on its node: a DSSE envelope whose payload is the
//! report's file, byte for byte.

use super::report::{REPLICA_FORMAT, ReplicaReport};
use crate::codes::Code;
use crate::envelope::{self, Verdict};
use crate::finding::Finding;
use crate::json;
use crate::keys::{PublicKey, SigningKey};

/// DSSE payload type of a signed replica report.
pub const REPLICA_PAYLOAD_TYPE: &str = "application/vnd.runseal.replica.v1+json";

/// A report as it came, with its envelope when its node signed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedReport {
    /// The report.
    pub report: ReplicaReport,
    /// The envelope's one line.
    pub envelope: Option<Vec<u8>>,
}

/// A public key that somebody trusts for a node, or for all of them.
#[derive(Debug, Clone)]
pub struct NodeKey {
    /// The replica's name; `None` when the key may sign for any.
    pub replica: Option<String>,
    /// The key.
    pub key: PublicKey,
}

/// What is known about who signed a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signature {
    /// It carries none and none was asked for.
    None,
    /// It carries one, but no key was given to check it with.
    Unchecked,
    /// It verifies with this key, given for this node.
    Verified(PublicKey),
    /// It should verify and does not.
    Bad(Finding),
}

/// Why bytes are not a saved report.
#[derive(Debug, thiserror::Error)]
#[error("not a replica report: {0} (hint: --save-reports writes them)")]
pub struct SavedReportError(String);

/// Signs a report with its node's key: one canonical line.
pub fn sign_report(report: &ReplicaReport, key: &SigningKey) -> Vec<u8> {
    envelope::sign(&report_bytes(report), REPLICA_PAYLOAD_TYPE, &[key])
}

/// The bytes of a report's file: canonical JSON and a newline.
pub fn report_bytes(report: &ReplicaReport) -> Vec<u8> {
    let mut bytes = json::canonical(report);
    bytes.push(b'\n');
    bytes
}

impl SavedReport {
    /// Reads a report, plain or in its envelope.
    pub fn parse(bytes: &[u8]) -> Result<Self, SavedReportError> {
        let e = |e: &dyn ToString| SavedReportError(e.to_string());
        let value = json::parse(bytes).map_err(|x| e(&x))?;
        let (payload, envelope) = if value.get("payloadType").is_some() {
            let envelope = envelope::parse_foreign(bytes).map_err(|x| e(&x))?;
            if envelope.payload_type != REPLICA_PAYLOAD_TYPE {
                let found = envelope.payload_type;
                return Err(SavedReportError(format!("the payload type is {found:?}")));
            }
            (envelope.payload, Some(bytes.to_vec()))
        } else {
            (bytes.to_vec(), None)
        };
        let report: ReplicaReport = json::from_slice(&payload).map_err(|x| e(&x))?;
        if report.format != REPLICA_FORMAT {
            return Err(SavedReportError(format!(
                "its format is {:?}",
                report.format
            )));
        }
        Ok(Self { report, envelope })
    }

    /// Checks the signature against the keys given for this report's node.
    pub fn signature(&self, keys: &[NodeKey]) -> Signature {
        let name = &self.report.replica;
        // A key given for this node alone leaves no room for the general ones.
        let named = |k: &&NodeKey| k.replica.as_ref() == Some(name);
        let any_named = keys.iter().any(|k| named(&k));
        let mine: Vec<PublicKey> = keys
            .iter()
            .filter(|k| named(k) || !any_named && k.replica.is_none())
            .map(|k| k.key)
            .collect();
        let bad = |code, detail: &str| Signature::Bad(Finding::new(code, name, detail));
        let Some(bytes) = &self.envelope else {
            return if mine.is_empty() {
                Signature::None
            } else {
                bad(Code::ReportNotSigned, "the report carries no signature")
            };
        };
        if mine.is_empty() {
            return Signature::Unchecked;
        }
        let Ok(envelope) = envelope::parse_foreign(bytes) else {
            return bad(Code::ReportSignature, "the envelope cannot be read");
        };
        // The envelope must be about the very report that is judged.
        if envelope.payload_type != REPLICA_PAYLOAD_TYPE
            || envelope.payload != report_bytes(&self.report)
        {
            return bad(
                Code::ReportSignature,
                "the signed bytes are not this report",
            );
        }
        let verdicts = envelope::verify(&envelope, &mine);
        match verdicts.into_iter().find_map(|v| match v.verdict {
            Verdict::Valid(key) => Some(key),
            _ => None,
        }) {
            Some(key) => Signature::Verified(key),
            None => bad(
                Code::ReportSignature,
                "no signature verifies with a key given for this node",
            ),
        }
    }
}

//! A signed verdict: in-toto Simple Verification Result v0.2, the auditor's own word.
//!
//! It lists what passed, and only that; what failed or was not performed is absent, and
//! the one property that stands for the whole verdict is there only when it is.

use serde_json::{Value, json};

use crate::audit::{AuditReport, Verdict};
use crate::digest::Sha256Digest;
use crate::ecdsa_keys::EcdsaSigningKey;
use crate::envelope::{self, Envelope, EnvelopeSignature, pae};
use crate::finding::{Check, Outcome};
use crate::json;
use crate::keys::SigningKey;
use crate::policy::Policy;
use crate::published::report::PublishedReport;
use crate::statement::{PAYLOAD_TYPE, STATEMENT_TYPE};

/// Its predicate type.
pub const PREDICATE: &str = "https://in-toto.io/attestation/svr/v0.2";

/// The key that a verdict is signed with.
pub enum VerdictKey {
    /// Ed25519.
    Ed25519(SigningKey),
    /// ECDSA P-256.
    P256(EcdsaSigningKey),
}

/// What the verdict is about and when it was given.
pub struct About<'a> {
    /// Name of the record's file.
    pub name: &'a str,
    /// Its digest.
    pub sha256: Sha256Digest,
    /// RFC 3339, UTC.
    pub time: &'a str,
    /// The policy that was applied.
    pub policy: Option<&'a Policy>,
}

/// Properties of a bundle's audit.
pub fn of_audit(report: &AuditReport) -> Vec<String> {
    let mut out = properties(&report.checks, report.verdict);
    if report.grades == "recomputed" {
        out.push("RUNSEAL_GRADES_RECOMPUTED".to_owned());
    }
    if let Some(record) = &report.derived {
        out.push(format!(
            "RUNSEAL_RUN_STATUS_{}",
            record.run.status.name().to_uppercase()
        ));
        if record.run.taints.is_empty() {
            out.push("RUNSEAL_RUN_UNTAINTED".to_owned());
        }
    }
    out
}

/// Properties of the audit of anything else.
pub fn of_published(report: &PublishedReport) -> Vec<String> {
    properties(&report.checks, report.verdict)
}

fn properties(checks: &[Check], verdict: Verdict) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    match verdict {
        Verdict::Verified => out.push("RUNSEAL_VERIFIED".to_owned()),
        Verdict::SelfConsistent => out.push("RUNSEAL_SELF_CONSISTENT".to_owned()),
        Verdict::NotVerified => {}
    }
    let passed = checks.iter().filter(|c| c.outcome == Outcome::Passed);
    out.extend(
        passed.map(|c| format!("RUNSEAL_CHECK_{}", c.name.replace('-', "_").to_uppercase())),
    );
    out
}

/// The envelope file: one canonical line.
pub fn sign(about: &About, properties: &[String], key: &VerdictKey) -> Vec<u8> {
    let policies: Vec<Value> = about
        .policy
        .iter()
        .map(|p| json!({"name": "policy.toml", "digest": {"sha256": p.sha256}}))
        .collect();
    let payload = json::canonical(&json!({
        "_type": STATEMENT_TYPE,
        "subject": [{"name": about.name, "digest": {"sha256": about.sha256}}],
        "predicateType": PREDICATE,
        "predicate": {
            "verifier": {
                "id": concat!(env!("CARGO_PKG_REPOSITORY"), "/verify/", env!("CARGO_PKG_VERSION")),
                "policies": policies,
            },
            "timeCreated": about.time,
            "properties": properties,
        },
    }));
    match key {
        VerdictKey::Ed25519(key) => envelope::sign(&payload, PAYLOAD_TYPE, &[key]),
        VerdictKey::P256(key) => {
            let sig = key.sign(&pae(PAYLOAD_TYPE, &payload));
            let keyid = key.public().keyid();
            let envelope = Envelope {
                payload,
                payload_type: PAYLOAD_TYPE.to_owned(),
                signatures: vec![EnvelopeSignature { keyid, sig }],
            };
            envelope.to_line()
        }
    }
}

//! The outer layer: a sigstore bundle with one key signature.
//!
//! Unknown fields are refused here. Nothing signs this layer, so whatever it says
//! must be something that is compared with the payload or with the reader's key.

use base64::Engine;
use base64::alphabet;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::{PAD, STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::codes::Code;
use crate::ecdsa_keys::{Curve, EcdsaPublicKey, EcdsaSigningKey};
use crate::envelope::pae;
use crate::finding::Finding;
use crate::json;

/// The media type of the bundles read and written.
pub const MEDIA_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
/// Longest bundle read, in bytes; a longer one is not written either. A statement
/// lists some 150 bytes per file or shard.
pub const MAX_BUNDLE: u64 = 1 << 28;
/// The payload type of an in-toto statement.
pub const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

/// A bundle whose outer layer could be read. Nothing in it is believed yet.
#[derive(Debug, Clone)]
pub struct Bundle {
    payload_type: String,
    payload: Vec<u8>,
    signature: Vec<u8>,
    keyid: String,
    hint: Option<String>,
    raw_key: Option<Vec<u8>>,
    key_details: Option<String>,
}

/// What became of the signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignatureState {
    /// It verifies over the payload with the key that the reader gave.
    Valid,
    /// It does not, or the bundle names another key.
    Invalid,
    /// There was no key to check it with.
    NotChecked,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WireBundle {
    media_type: String,
    verification_material: WireMaterial,
    dsse_envelope: WireEnvelope,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WireMaterial {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    public_key: Option<WireKey>,
    #[serde(default, skip_serializing)]
    x509_certificate_chain: Option<Value>,
    #[serde(default, skip_serializing)]
    certificate: Option<Value>,
    #[serde(default)]
    tlog_entries: Option<Vec<Value>>,
    #[serde(default, skip_serializing)]
    timestamp_verification_data: Option<Value>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WireKey {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    #[serde(default, skip_serializing)]
    raw_bytes: Option<String>,
    #[serde(default, skip_serializing)]
    key_details: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WireEnvelope {
    payload: String,
    payload_type: String,
    signatures: Vec<WireSignature>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireSignature {
    sig: String,
    #[serde(default)]
    keyid: Option<String>,
}

impl Bundle {
    /// Reads a bundle of any tool. What is wrong with it is a finding about
    /// `bundle`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Finding> {
        let malformed = |why: String| Finding::new(Code::OmsMalformed, "bundle", why);
        let unsupported = |why: &str| Finding::new(Code::OmsUnsupported, "bundle", why);
        let wire: WireBundle = json::from_slice(bytes).map_err(|e| malformed(e.to_string()))?;
        if wire.media_type != MEDIA_TYPE {
            return Err(
                Finding::new(Code::OmsUnsupported, "bundle", "another media type")
                    .values(MEDIA_TYPE, wire.media_type),
            );
        }
        let material = wire.verification_material;
        if material.certificate.is_some() || material.x509_certificate_chain.is_some() {
            return Err(unsupported(
                "it is signed with a certificate; only bundles signed with a key are checked here",
            ));
        }
        let key = material
            .public_key
            .ok_or_else(|| malformed("it has no verificationMaterial.publicKey".to_owned()))?;
        let logged = material.tlog_entries.is_some_and(|e| !e.is_empty());
        if logged || material.timestamp_verification_data.is_some() {
            return Err(unsupported(
                "it carries log entries or timestamps, which are not checked here",
            ));
        }
        let [signature] = wire.dsse_envelope.signatures.as_slice() else {
            let n = wire.dsse_envelope.signatures.len();
            return Err(malformed(format!("it has {n} signatures and not one")));
        };
        let decode = |what: &str, text: &str| {
            base64_of(text).ok_or_else(|| malformed(format!("the {what} is not base64")))
        };
        let raw_key = key.raw_bytes.as_deref().map(|t| decode("rawBytes", t));
        Ok(Self {
            payload: decode("payload", &wire.dsse_envelope.payload)?,
            signature: decode("signature", &signature.sig)?,
            keyid: signature.keyid.clone().unwrap_or_default(),
            payload_type: wire.dsse_envelope.payload_type,
            hint: key.hint.filter(|h| !h.is_empty()),
            raw_key: raw_key.transpose()?,
            key_details: key.key_details,
        })
    }

    /// Signs a payload.
    pub fn sign(payload: Vec<u8>, key: &EcdsaSigningKey) -> Self {
        Self {
            signature: key.sign(&pae(PAYLOAD_TYPE, &payload)),
            payload,
            payload_type: PAYLOAD_TYPE.to_owned(),
            keyid: String::new(),
            hint: Some(key.public().pem_digest().hex()),
            raw_key: None,
            key_details: None,
        }
    }

    /// The bundle file: compact JSON in the form of the reference implementation.
    pub fn to_bytes(&self) -> Vec<u8> {
        json::canonical(&WireBundle {
            media_type: MEDIA_TYPE.to_owned(),
            verification_material: WireMaterial {
                public_key: Some(WireKey {
                    hint: self.hint.clone(),
                    raw_bytes: None,
                    key_details: None,
                }),
                x509_certificate_chain: None,
                certificate: None,
                tlog_entries: Some(Vec::new()),
                timestamp_verification_data: None,
            },
            dsse_envelope: WireEnvelope {
                payload: STANDARD.encode(&self.payload),
                payload_type: self.payload_type.clone(),
                signatures: vec![WireSignature {
                    sig: STANDARD.encode(&self.signature),
                    keyid: Some(self.keyid.clone()),
                }],
            },
        })
    }

    /// The bytes that the signature covers; to be parsed as they are.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The payload's type.
    pub fn payload_type(&self) -> &str {
        &self.payload_type
    }

    /// Checks the signature with the key that the reader trusts. What the bundle
    /// says about the key only ever speaks against it.
    pub fn check_signature(&self, key: Option<&EcdsaPublicKey>) -> (SignatureState, Vec<Finding>) {
        let Some(key) = key else {
            return (SignatureState::NotChecked, Vec::new());
        };
        let mut findings = Vec::new();
        let mut other_key = |what: &str, expected: String, found: String| {
            let detail = format!("the bundle's {what} is that of another key");
            let finding = Finding::new(Code::OmsKeyMismatch, "bundle", detail);
            findings.push(finding.values(expected, found));
        };
        let digest = key.pem_digest().hex();
        if let Some(hint) = self.hint.as_ref().filter(|h| **h != digest) {
            other_key("hint", digest.clone(), hint.clone());
        }
        if let Some(raw) = &self.raw_key
            && key_of(raw).as_ref() != Some(key)
        {
            other_key("rawBytes", key.fingerprint(), hex::encode(raw));
        }
        let details = match key.curve() {
            Curve::P256 => "PKIX_ECDSA_P256_SHA_256",
            Curve::P384 => "PKIX_ECDSA_P384_SHA_384",
            Curve::P521 => "PKIX_ECDSA_P521_SHA_512",
        };
        if let Some(found) = self.key_details.as_ref().filter(|d| *d != details) {
            other_key("keyDetails", details.to_owned(), found.clone());
        }
        if !["", &digest, &key.keyid()].contains(&self.keyid.as_str()) {
            other_key("keyid", digest, self.keyid.clone());
        }
        let message = pae(&self.payload_type, &self.payload);
        if !key.verify(&message, &self.signature) {
            findings.push(Finding::new(
                Code::SignatureInvalid,
                "bundle",
                format!(
                    "the signature does not verify with the {} key {}",
                    key.curve(),
                    key.fingerprint()
                ),
            ));
        }
        let state = if findings.is_empty() {
            SignatureState::Valid
        } else {
            SignatureState::Invalid
        };
        (state, findings)
    }
}

/// Early versions of the reference implementation embedded the key as PEM text.
fn key_of(raw: &[u8]) -> Option<EcdsaPublicKey> {
    match std::str::from_utf8(raw) {
        Ok(text) => EcdsaPublicKey::from_pem(text).ok(),
        Err(_) => EcdsaPublicKey::from_der(raw).ok(),
    }
}

/// Either alphabet, padded, and without bits that mean nothing.
fn base64_of(text: &str) -> Option<Vec<u8>> {
    const URL: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, PAD);
    STANDARD.decode(text).or_else(|_| URL.decode(text)).ok()
}

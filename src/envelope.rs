//! DSSE v1.0.2 envelopes: a payload, and signatures over exactly those bytes.
//!
//! What is signed is the pre-authentication encoding
//! `DSSEv1 <len(type)> <type> <len(payload)> <payload>`, lengths in bytes. The
//! payload that a caller parses is the decoded byte string that was verified;
//! nothing is ever serialised again on the way.
//!
//! There are two readers. [`parse_own_lines`] reads *our* records: JSON Lines,
//! one signature per envelope, all envelopes with one payload, and one byte
//! form, so that every changed byte is either a broken signature or a form that
//! is not canonical. [`parse_foreign`] reads what other tools write: white
//! space, URL-safe base64, several signatures, no key ids.
//!
//! Three questions are kept apart. Does the signature verify with a key? Is
//! that key one the payload names as a signer? Is it one that *the reader*
//! trusts? A key id only ever selects which key to try; it grants nothing. The
//! same key counts once, however many signatures or names it appears under.

use std::collections::BTreeSet;

use base64::Engine;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use serde::{Deserialize, Serialize};

use crate::finding::{Code, Finding};
use crate::json;
use crate::keys::{PublicKey, SIGNATURE_LENGTH, SigningKey};

/// Name of a record's envelope file, the subject of findings about it.
pub const RECORD_FILE: &str = "record.intoto.jsonl";

/// One envelope, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The exact bytes that signatures cover. Parse these.
    pub payload: Vec<u8>,
    /// What kind of bytes they are.
    pub payload_type: String,
    /// Signatures, unverified.
    pub signatures: Vec<EnvelopeSignature>,
}

/// One signature of an envelope, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvelopeSignature {
    /// A hint at the key; empty when there is none.
    pub keyid: String,
    /// The signature.
    pub sig: Vec<u8>,
}

/// Why something is not an envelope.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a DSSE envelope: {0} (hint: ask for the original file)")]
pub struct EnvelopeError(String);

#[derive(Serialize, Deserialize)]
struct Wire {
    payload: String,
    #[serde(rename = "payloadType")]
    payload_type: String,
    signatures: Vec<WireSignature>,
}

#[derive(Serialize, Deserialize)]
struct WireSignature {
    #[serde(default)]
    keyid: Option<String>,
    sig: String,
}

/// The pre-authentication encoding, what a signature covers.
pub fn pae(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut out = format!(
        "DSSEv1 {} {payload_type} {} ",
        payload_type.len(),
        payload.len()
    )
    .into_bytes();
    out.extend_from_slice(payload);
    out
}

/// Signs a payload with each key, in the order in which the payload names its
/// signers. The result is the whole content of an envelope file: one canonical
/// line per signature.
pub fn sign(payload: &[u8], payload_type: &str, keys: &[&SigningKey]) -> Vec<u8> {
    let message = pae(payload_type, payload);
    let mut out = Vec::new();
    for key in keys {
        let envelope = Envelope {
            payload: payload.to_vec(),
            payload_type: payload_type.to_owned(),
            signatures: vec![EnvelopeSignature {
                keyid: key.keyid(),
                sig: key.sign(&message).to_vec(),
            }],
        };
        out.extend(envelope.to_line());
    }
    out
}

impl Envelope {
    /// The canonical line, with its line end.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = json::canonical(&Wire {
            payload: STANDARD.encode(&self.payload),
            payload_type: self.payload_type.clone(),
            signatures: self
                .signatures
                .iter()
                .map(|s| WireSignature {
                    keyid: Some(s.keyid.clone()),
                    sig: STANDARD.encode(&s.sig),
                })
                .collect(),
        });
        line.push(b'\n');
        line
    }
}

/// Reads one envelope of any tool.
///
/// Accepted: standard and URL-safe base64 with or without padding, white space
/// between JSON tokens, unknown fields, several signatures, a missing, null or
/// empty key id. Refused: duplicate JSON keys, as they are readable in two ways.
pub fn parse_foreign(bytes: &[u8]) -> Result<Envelope, EnvelopeError> {
    let wire: Wire = json::from_slice(bytes).map_err(|e| EnvelopeError(e.to_string()))?;
    let mut signatures = Vec::new();
    for signature in wire.signatures {
        signatures.push(EnvelopeSignature {
            keyid: signature.keyid.unwrap_or_default(),
            sig: decode_liberal(&signature.sig)
                .ok_or_else(|| EnvelopeError("a signature is not base64".to_owned()))?,
        });
    }
    if signatures.is_empty() {
        return Err(EnvelopeError("it has no signatures".to_owned()));
    }
    Ok(Envelope {
        payload: decode_liberal(&wire.payload)
            .ok_or_else(|| EnvelopeError("the payload is not base64".to_owned()))?,
        payload_type: wire.payload_type,
        signatures,
    })
}

/// Reads the envelope file of one of our own records.
///
/// Every line must be byte for byte what [`Envelope::to_line`] gives, with one
/// signature of the right length and a key id that can be one, and all lines
/// must carry the same payload and type.
pub fn parse_own_lines(bytes: &[u8]) -> Result<Vec<Envelope>, Vec<Finding>> {
    let mut findings = Vec::new();
    let mut add = |code, detail: String| findings.push(Finding::new(code, RECORD_FILE, detail));
    let Some(body) = bytes.strip_suffix(b"\n") else {
        let (code, detail) = if bytes.is_empty() {
            (Code::EnvelopeMalformed, "the file is empty")
        } else {
            (Code::EnvelopeNotCanonical, "the last line has no line end")
        };
        add(code, detail.to_owned());
        return Err(findings);
    };
    let mut envelopes: Vec<Envelope> = Vec::new();
    for (i, line) in body.split(|b| *b == b'\n').enumerate() {
        let n = i + 1;
        if line.is_empty() {
            add(Code::EnvelopeNotCanonical, format!("line {n} is empty"));
            continue;
        }
        let envelope = match parse_foreign(line) {
            Ok(envelope) => envelope,
            Err(e) => {
                add(Code::EnvelopeMalformed, format!("line {n}: {e}"));
                continue;
            }
        };
        let canonical = envelope.to_line();
        if canonical.strip_suffix(b"\n") != Some(line) {
            add(
                Code::EnvelopeNotCanonical,
                format!("line {n} is not written in the canonical form"),
            );
        } else if let Err(why) = check_own_shape(&envelope) {
            add(Code::EnvelopeNotCanonical, format!("line {n}: {why}"));
        }
        if let Some(first) = envelopes.first()
            && (first.payload != envelope.payload || first.payload_type != envelope.payload_type)
        {
            add(
                Code::EnvelopesDiffer,
                format!("line {n} carries another payload than line 1"),
            );
        }
        envelopes.push(envelope);
    }
    if findings.is_empty() {
        Ok(envelopes)
    } else {
        Err(findings)
    }
}

fn check_own_shape(envelope: &Envelope) -> Result<(), &'static str> {
    let [signature] = envelope.signatures.as_slice() else {
        return Err("it has more than one signature");
    };
    if signature.sig.len() != SIGNATURE_LENGTH {
        return Err("the signature has the wrong length");
    }
    if STANDARD
        .decode(&signature.keyid)
        .is_ok_and(|b| b.len() == 32)
    {
        Ok(())
    } else {
        Err("the key id is not the base64 of a SHA-256")
    }
}

fn decode_liberal(text: &str) -> Option<Vec<u8>> {
    const CONFIG: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    const PLAIN: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, CONFIG);
    const URL: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, CONFIG);
    PLAIN.decode(text).or_else(|_| URL.decode(text)).ok()
}

/// What became of one signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It verifies with this key. Whether the key is trusted is another
    /// question.
    Valid(PublicKey),
    /// A key was tried and it does not verify.
    Invalid,
    /// There was no key to try.
    NoKey,
}

/// One signature and its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureVerdict {
    /// The key id as written in the envelope.
    pub keyid: String,
    /// What became of it.
    pub verdict: Verdict,
}

/// Checks every signature of an envelope against candidate keys.
///
/// A key id that belongs to a candidate selects that candidate alone; without
/// one (or with one in another tool's scheme) each candidate is tried.
pub fn verify(envelope: &Envelope, candidates: &[PublicKey]) -> Vec<SignatureVerdict> {
    let message = pae(&envelope.payload_type, &envelope.payload);
    envelope
        .signatures
        .iter()
        .map(|signature| {
            let selected: Vec<_> = candidates
                .iter()
                .filter(|k| !signature.keyid.is_empty() && k.keyid() == signature.keyid)
                .collect();
            let tried = if selected.is_empty() {
                candidates.iter().collect()
            } else {
                selected
            };
            let verdict = match tried.iter().find(|k| k.verify(&message, &signature.sig)) {
                Some(key) => Verdict::Valid(**key),
                None if tried.is_empty() => Verdict::NoKey,
                None => Verdict::Invalid,
            };
            SignatureVerdict {
                keyid: signature.keyid.clone(),
                verdict,
            }
        })
        .collect()
}

/// The distinct trusted keys with a good signature over one payload. A (t, n)
/// threshold holds when there are at least t of them; a copied signature or a
/// second name for a key adds nothing.
///
/// Envelopes whose payload or type is not the first one's are left out.
pub fn unique_signers(envelopes: &[Envelope], trusted: &[PublicKey]) -> BTreeSet<String> {
    let Some(first) = envelopes.first() else {
        return BTreeSet::new();
    };
    envelopes
        .iter()
        .filter(|e| e.payload == first.payload && e.payload_type == first.payload_type)
        .flat_map(|e| verify(e, trusted))
        .filter_map(|v| match v.verdict {
            Verdict::Valid(key) => Some(key.keyid()),
            _ => None,
        })
        .collect()
}

/// What [`check_signers`] found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SignerReport {
    /// What does not hold.
    pub findings: Vec<Finding>,
    /// Named signers whose signature verifies, in the payload's order.
    pub valid: Vec<PublicKey>,
    /// Those of them that the reader trusts.
    pub trusted: Vec<PublicKey>,
}

/// Compares the signatures of our own record with the signers that its payload
/// names, and with the keys that the reader trusts.
///
/// `named` comes from the payload itself (key id as written, key as embedded),
/// so it says who claims to have signed and nothing more. There must be exactly
/// one signature per named signer, in that order: order is part of the one byte
/// form. `trusted` comes from the reader. The finding `signer-not-trusted` is
/// given when *none* of the valid signers is trusted; a policy that wants
/// several counts [`SignerReport::trusted`].
pub fn check_signers(
    envelopes: &[Envelope],
    named: &[(String, PublicKey)],
    trusted: &[PublicKey],
) -> SignerReport {
    let mut report = SignerReport::default();
    let mut findings = Vec::new();
    let mut add = |code, detail: String| findings.push(Finding::new(code, RECORD_FILE, detail));

    let mut expected = Vec::new();
    for (keyid, key) in named {
        if key.keyid() != *keyid {
            add(
                Code::SignerUnexpected,
                format!(
                    "the payload names signer {keyid} but embeds the key {}",
                    key.keyid()
                ),
            );
        } else if expected.contains(key) {
            add(
                Code::SignerUnexpected,
                format!("the payload names signer {keyid} twice"),
            );
        } else {
            expected.push(*key);
        }
    }
    if named.is_empty() {
        add(
            Code::SignerUnexpected,
            "the payload names no signer".to_owned(),
        );
    }

    let mut order = Vec::new();
    for envelope in envelopes {
        let message = pae(&envelope.payload_type, &envelope.payload);
        for signature in &envelope.signatures {
            let position = expected.iter().position(|k| k.keyid() == signature.keyid);
            let Some(position) = position else {
                add(
                    Code::SignerUnexpected,
                    format!(
                        "there is a signature by {:?}, which the payload does not name",
                        signature.keyid
                    ),
                );
                continue;
            };
            if order.contains(&position) {
                add(
                    Code::SignerUnexpected,
                    format!("signer {} has more than one signature", signature.keyid),
                );
                continue;
            }
            order.push(position);
            if expected[position].verify(&message, &signature.sig) {
                report.valid.push(expected[position]);
            } else {
                add(
                    Code::SignatureInvalid,
                    format!("the signature of {} does not verify", signature.keyid),
                );
            }
        }
    }
    for (position, key) in expected.iter().enumerate() {
        if !order.contains(&position) {
            add(
                Code::SignerUnexpected,
                format!("the named signer {} has no signature", key.keyid()),
            );
        }
    }
    if !order.is_sorted() {
        add(
            Code::EnvelopeNotCanonical,
            "the signatures are not in the order in which the payload names the signers".to_owned(),
        );
    }

    report.trusted = report
        .valid
        .iter()
        .copied()
        .filter(|k| trusted.contains(k))
        .collect();
    if report.trusted.is_empty() && !report.valid.is_empty() {
        let who: Vec<_> = report.valid.iter().map(PublicKey::fingerprint).collect();
        let why = if trusted.is_empty() {
            "no trusted key was given"
        } else {
            "it is not among the trusted keys"
        };
        add(
            Code::SignerNotTrusted,
            format!("valid signature by {}, but {why}", who.join(", ")),
        );
    }
    report.findings = findings;
    report
}

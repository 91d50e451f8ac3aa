//! A signed envelope without a bundle around it: `*.json`, `*.intoto.jsonl`, or a
//! sigstore v0.3 bundle with a public key.
//!
//! What can be checked is the signature, that the statement is one, and the subjects
//! that lie beside it. A record of our own is more than that: without its evidence
//! nothing in it is recomputed, so it is not verified.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Beside;
use super::kind::Kind;
use super::report::{Auditor, Derivation, FigureOf, PublishedReport};
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::envelope::{self, Envelope, EnvelopeSignature, pae, parse_foreign};
use crate::finding::{Check, Outcome};
use crate::json;
use crate::keys::PublicKey;
use crate::policy::{Role, Trust};
use crate::record::{PREDICATE_TYPE, RecordStatement};
use crate::relpath::RelPath;
use crate::schema;
use crate::statement::PAYLOAD_TYPE;

/// Predicates whose content is their signer's word and nothing more: a valid signature
/// is all there is to check.
pub const SIGNERS_WORD: [&str; 2] = [
    "https://in-toto.io/attestation/svr/v0.2",
    "https://in-toto.io/attestation/test-result/v0.1",
];

/// Checking a signature takes time, so there is an end to how many are.
const MOST_SIGNATURES: usize = 10_000;

/// Audits an envelope file.
pub fn audit(path: &str, bytes: &[u8], trust: &Trust, beside: &dyn Beside) -> PublishedReport {
    let mut a = Auditor::default();
    match read(&mut a, bytes) {
        Some(envelopes) => {
            a.close("envelope", &[Code::EnvelopeMalformed]);
            contents(&mut a, bytes, &envelopes, trust, beside);
        }
        None => {
            a.close("envelope", &[Code::EnvelopeMalformed]);
            for name in ["statement", "signature", "signer-trusted", "subjects"] {
                a.skip(name, true, "the envelope could not be read");
            }
        }
    }
    let mut report = a.finish(path, Kind::Envelope, bytes);
    if !report.signers.is_empty() {
        for f in &mut report.figures {
            f.witness = "operator".to_owned();
        }
    }
    report
}

/// The envelopes of a file, unless they are too many to look at.
fn read(a: &mut Auditor, bytes: &[u8]) -> Option<Vec<Envelope>> {
    let envelopes = parse(a, bytes)?;
    let signatures: usize = envelopes.iter().map(|e| e.signatures.len()).sum();
    if signatures > MOST_SIGNATURES {
        let why = format!("it has more than {MOST_SIGNATURES} signatures; none was looked at");
        a.add(Code::EnvelopeMalformed, "envelope", why);
        return None;
    }
    Some(envelopes)
}

/// One document, or one a line.
fn parse(a: &mut Auditor, bytes: &[u8]) -> Option<Vec<Envelope>> {
    let mut bad = |subject: &str, why: String| {
        a.add(Code::EnvelopeMalformed, subject, why);
        None
    };
    if let Ok(value) = json::parse(bytes) {
        return match sigstore(&value) {
            Some(Ok(inner)) => match parse_foreign(&inner) {
                Ok(e) => Some(vec![e]),
                Err(e) => bad("dsseEnvelope", e.to_string()),
            },
            Some(Err(why)) => bad("sigstore bundle", why),
            None => match parse_foreign(bytes) {
                Ok(e) => Some(vec![e]),
                Err(e) => bad("envelope", e.to_string()),
            },
        };
    }
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let mut out = Vec::new();
    for (i, line) in body.split(|b| *b == b'\n').enumerate() {
        match parse_foreign(line) {
            Ok(e) => out.push(e),
            // One line tells; a long file of such lines would tell it a million times.
            Err(e) => return bad(&format!("line {}", i + 1), e.to_string()),
        }
    }
    Some(out)
}

/// The envelope in a sigstore bundle; `None` when it is none.
fn sigstore(value: &Value) -> Option<Result<Vec<u8>, String>> {
    let media = value.get("mediaType")?.as_str()?;
    let known = media.starts_with("application/vnd.dev.sigstore.bundle");
    if !known {
        return None;
    }
    let material = value.get("verificationMaterial");
    if material.and_then(|m| m.get("publicKey")).is_none() {
        let why = "it rests on a certificate and not on a key; certificates are not checked here";
        return Some(Err(why.to_owned()));
    }
    Some(match value.get("dsseEnvelope") {
        // Only base64 texts go through this; the signed bytes stay as they are.
        Some(inner) => Ok(json::canonical(inner)),
        None => Err("it holds no envelope, only a signature over a file".to_owned()),
    })
}

fn contents(
    a: &mut Auditor,
    bytes: &[u8],
    envelopes: &[Envelope],
    trust: &Trust,
    beside: &dyn Beside,
) {
    let payloads = grouped(envelopes);
    let mut words = true;
    let mut own = false;
    let mut statements = Vec::new();
    let mut predicates = vec![String::new(); payloads.len()];
    for (i, (e, _)) in payloads.iter().enumerate() {
        let at = format!("payload {}", i + 1);
        let Some(statement) = statement(a, &at, e) else {
            words = false;
            continue;
        };
        let predicate = statement["predicateType"].as_str().unwrap_or_default();
        predicates[i] = predicate.to_owned();
        own |= predicate == PREDICATE_TYPE;
        words &= SIGNERS_WORD.contains(&predicate);
        a.id.get_or_insert_with(|| predicate.to_owned());
        statements.push(statement);
    }
    a.close(
        "statement",
        &[Code::StatementMalformed, Code::SchemaInvalid],
    );
    let embedded = match own && payloads.len() == 1 {
        true => own_record(a, bytes, &statements),
        false => Vec::new(),
    };
    signatures(a, &payloads, &predicates, trust, &embedded);
    a.close(
        "signature",
        &[Code::SignatureInvalid, Code::SignerUnexpected],
    );
    a.close("signer-trusted", &[Code::SignerNotTrusted]);
    subjects(a, &statements, beside);
    if own {
        a.skip(
            "evidence",
            true,
            "the bundle's other files are not here, so nothing was recomputed (give the bundle's folder)",
        );
    } else if !words {
        a.skip(
            "content",
            true,
            "this version knows no way to check such a predicate",
        );
    }
}

/// A payload, by the first envelope that carries it, and all signatures over it.
type Group<'a> = (&'a Envelope, Vec<&'a EnvelopeSignature>);

/// Envelopes of one payload and type, in the order in which they first come.
fn grouped(envelopes: &[Envelope]) -> Vec<Group<'_>> {
    let mut places: BTreeMap<(&str, &[u8]), usize> = BTreeMap::new();
    let mut out: Vec<Group> = Vec::new();
    for e in envelopes {
        let next = out.len();
        let at = *places.entry((&e.payload_type, &e.payload)).or_insert(next);
        if at == next {
            out.push((e, Vec::new()));
        }
        out[at].1.extend(&e.signatures);
    }
    out
}

/// The statement in a payload.
fn statement(a: &mut Auditor, at: &str, e: &Envelope) -> Option<Value> {
    let mut bad = |why: String| {
        a.add(Code::StatementMalformed, at, why);
        None
    };
    if e.payload_type != PAYLOAD_TYPE {
        return bad(format!("its payload type is {:?}", e.payload_type));
    }
    let value = match json::parse(&e.payload) {
        Ok(v) => v,
        Err(e) => return bad(e.to_string()),
    };
    let kind = value["_type"].as_str().unwrap_or_default();
    if !kind.starts_with("https://in-toto.io/Statement/v") {
        return bad(format!("it is a {kind:?}, not an in-toto statement"));
    }
    let digest = |s: &Value| {
        let text = s["digest"]["sha256"].as_str().unwrap_or_default();
        text.parse::<Sha256Digest>().is_ok()
    };
    let subjects = value["subject"].as_array();
    if !subjects.is_some_and(|s| !s.is_empty() && s.iter().all(digest)) {
        return bad("its subjects are not named by SHA-256".to_owned());
    }
    Some(value)
}

/// A record of our own: its schema, the signers that it names, its figures as said.
fn own_record(a: &mut Auditor, bytes: &[u8], statements: &[Value]) -> Vec<(String, PublicKey)> {
    let Some(value) = statements.first() else {
        return Vec::new();
    };
    if let Err(errors) = schema::validate("record", value) {
        for e in errors {
            a.add(Code::SchemaInvalid, "record", e);
        }
        a.close("schema", &[Code::SchemaInvalid]);
        return Vec::new();
    }
    let read: Result<RecordStatement, _> = serde_json::from_value(value.clone());
    let Ok(record) = read else {
        return Vec::new();
    };
    a.id = Some(record.predicate.run.id.clone());
    if let Err(findings) = envelope::parse_own_lines(bytes) {
        a.findings.extend(findings);
    }
    a.close(
        "canonical",
        &[Code::EnvelopeNotCanonical, Code::EnvelopesDiffer],
    );
    for m in &record.predicate.metrics {
        a.figure(FigureOf {
            id: m.name(),
            stated: m.value.clone(),
            recomputed: None,
            // The report's units are fixed texts; this one is in the id's definition.
            unit: "",
            n: Some(m.n),
            derivation: Derivation::Stated,
            basis: format!("{}; the events are not here", m.unit),
        });
    }
    record
        .predicate
        .provenance
        .signers
        .iter()
        .filter_map(|s| Some((s.keyid.clone(), PublicKey::from_pem(&s.public_key).ok()?)))
        .collect()
}

/// Who may sign such a predicate. A key given without a role may sign anything.
fn roles_for(predicate: &str) -> &'static [Role] {
    match predicate {
        PREDICATE_TYPE => &[Role::Operator],
        p if p == SIGNERS_WORD[0] => &[Role::Auditor],
        p if p == SIGNERS_WORD[1] => &[Role::Operator, Role::Auditor],
        _ => &Role::ALL,
    }
}

/// Every signature with the reader's keys, and with those that a record of our own
/// embeds: the latter show that it was not changed, and grant nothing.
fn signatures(
    a: &mut Auditor,
    payloads: &[Group],
    predicates: &[String],
    trust: &Trust,
    embedded: &[(String, PublicKey)],
) {
    let mut all: Option<BTreeSet<String>> = None;
    for (i, (payload, mine)) in payloads.iter().enumerate() {
        let at = format!("payload {}", i + 1);
        let message = pae(&payload.payload_type, &payload.payload);
        let mut good: BTreeSet<String> = BTreeSet::new();
        let mut others = Vec::new();
        let roles = roles_for(predicates.get(i).map_or("", String::as_str));
        for s in mine {
            let named: Vec<_> = trust
                .keys
                .iter()
                .filter(|k| k.key.keyid() == s.keyid)
                .collect();
            let tried: Vec<_> = match named.is_empty() {
                true => trust.keys.iter().collect(),
                false => named.clone(),
            };
            let by = tried.iter().find(|k| k.key.verify(&message, &s.sig));
            let itself = embedded
                .iter()
                .find(|(id, k)| *id == s.keyid && k.keyid() == s.keyid);
            match (by, itself) {
                (Some(k), _) if k.role.is_some_and(|r| !roles.contains(&r)) => {
                    let role = k.role.map_or("", Role::name);
                    others.push(format!("{} is trusted as {role}", k.name));
                }
                (Some(k), _) => {
                    good.insert(k.key.fingerprint());
                }
                (None, _) if !named.is_empty() => {
                    a.add(
                        Code::SignatureInvalid,
                        &at,
                        format!("the signature of {} does not verify", named[0].name),
                    );
                }
                (None, Some((_, k))) if !k.verify(&message, &s.sig) => {
                    let why = format!("the signature of {} does not verify", s.keyid);
                    a.add(Code::SignatureInvalid, &at, why);
                }
                _ => {}
            }
        }
        if good.is_empty() {
            let why = match (trust.keys.is_empty(), others.is_empty()) {
                (true, _) => "no trusted key was given".to_owned(),
                (_, true) => "none of its signatures is by a key that you trust".to_owned(),
                _ => format!(
                    "no key that you trust for this signed it: {}",
                    others.join(", ")
                ),
            };
            a.add(Code::SignerNotTrusted, &at, why);
        }
        // Who signed the file is who signed all of it.
        all = Some(match all {
            None => good,
            Some(before) => before.intersection(&good).cloned().collect(),
        });
    }
    a.signers = all.unwrap_or_default().into_iter().collect();
}

/// Subjects that are plain names of files beside the envelope.
fn subjects(a: &mut Auditor, statements: &[Value], beside: &dyn Beside) {
    let mut looked = 0;
    let mut of = 0;
    for s in statements
        .iter()
        .flat_map(|s| s["subject"].as_array().into_iter().flatten())
    {
        of += 1;
        let name = s["name"].as_str().unwrap_or_default();
        let plain = RelPath::parse(name).is_ok_and(|p| !p.as_bytes().contains(&b'/'));
        if !plain {
            continue;
        }
        match beside.read(name) {
            Ok(Some(bytes)) => {
                looked += 1;
                let found = Sha256Digest::of(&bytes);
                let want = s["digest"]["sha256"].as_str().unwrap_or_default();
                if !found.hex().eq_ignore_ascii_case(want) {
                    a.differ(
                        Code::SubjectMismatch,
                        name,
                        "the file beside the envelope is not the one it is about",
                        want,
                        found,
                    );
                }
            }
            Ok(None) => {}
            Err(why) => a.add(Code::SubjectMismatch, name, why),
        }
    }
    let failed = a.findings.iter().any(|f| f.code == Code::SubjectMismatch);
    if looked == 0 && !failed {
        a.skip("subjects", false, "none of them lies beside the envelope");
    } else {
        a.close("subjects", &[Code::SubjectMismatch]);
        if looked < of {
            let reason = format!("{} of {of} subjects do not lie beside it", of - looked);
            a.checks.push(Check {
                name: "subjects-complete".into(),
                required: false,
                outcome: Outcome::NotPerformed { reason },
            });
        }
    }
}

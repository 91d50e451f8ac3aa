//! Envelopes and statements: what is signed, what is read, who counts.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proptest::prelude::*;
use runseal::digest::Sha256Digest;
use runseal::envelope::{
    Envelope, EnvelopeSignature, Verdict, check_signers, pae, parse_foreign, parse_own_lines, sign,
    unique_signers, verify,
};
use runseal::finding::{Code, Finding};
use runseal::keys::{PublicKey, SigningKey};
use runseal::statement::{PAYLOAD_TYPE, STATEMENT_TYPE, Statement, StatementError, Subject};
use serde_json::{Value, json};

const LINE: &[u8] = include_bytes!("vectors/dsse/hello-world.intoto.jsonl");
const PUBLIC_PEM: &str = include_str!("vectors/dsse/hello-world.pub.pem");

fn key(n: u8) -> SigningKey {
    SigningKey::from_seed(&[n; 32])
}

fn named(keys: &[&SigningKey]) -> Vec<(String, PublicKey)> {
    keys.iter().map(|k| (k.keyid(), k.public())).collect()
}

fn codes(findings: &[Finding]) -> Vec<Code> {
    findings.iter().map(|f| f.code).collect()
}

fn signature_of(line: &[u8]) -> EnvelopeSignature {
    parse_foreign(line).unwrap().signatures.remove(0)
}

#[test]
fn the_encoding_counts_bytes() {
    assert_eq!(
        pae("http://example.com/HelloWorld", b"hello world"),
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    );
    assert_eq!(pae("", b""), b"DSSEv1 0  0 ");
    assert_eq!(pae("é", "世".as_bytes()), "DSSEv1 2 é 3 世".as_bytes());
    // A type that imitates the frame cannot make two messages one.
    assert_ne!(pae("a 1 b", b"c"), pae("a", b"b 1 c"));
}

#[test]
fn an_envelope_made_by_another_library_is_ours_byte_for_byte() {
    let mut seed = [0; 32];
    for (i, byte) in seed.iter_mut().enumerate() {
        *byte = i as u8;
    }
    let key = SigningKey::from_seed(&seed);
    assert_eq!(
        sign(b"hello world", "http://example.com/HelloWorld", &[&key]),
        LINE
    );
    let envelopes = parse_own_lines(LINE).unwrap();
    assert_eq!(envelopes[0].payload, b"hello world");
    let public = PublicKey::from_pem(PUBLIC_PEM).unwrap();
    assert_eq!(
        verify(&envelopes[0], &[public])[0].verdict,
        Verdict::Valid(public)
    );
}

/// The whole judgement of a file, as an audit makes it: any finding at all?
fn is_refused(bytes: &[u8], named: &[(String, PublicKey)], trusted: &[PublicKey]) -> bool {
    match parse_own_lines(bytes) {
        Err(findings) => !findings.is_empty(),
        Ok(envelopes) => !check_signers(&envelopes, named, trusted)
            .findings
            .is_empty(),
    }
}

#[test]
fn every_changed_byte_of_a_record_is_found() {
    let (a, b) = (key(1), key(2));
    let good = sign(br#"{"x":1}"#, PAYLOAD_TYPE, &[&a, &b]);
    let named = named(&[&a, &b]);
    let trusted = [a.public()];
    assert!(!is_refused(&good, &named, &trusted));
    for i in 0..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[i] ^= 1 << bit;
            assert!(is_refused(&bad, &named, &trusted), "byte {i} bit {bit}");
        }
        let mut shorter = good.clone();
        shorter.remove(i);
        assert!(is_refused(&shorter, &named, &trusted), "byte {i} removed");
        for extra in [b' ', b'\n', b'\r', b'\t', b'=', b'A', b','] {
            let mut longer = good.clone();
            longer.insert(i, extra);
            assert!(is_refused(&longer, &named, &trusted), "byte {i} inserted");
        }
    }
    for tail in ["\n", " ", "\r\n", "{}\n"] {
        let bad = [&good[..], tail.as_bytes()].concat();
        assert!(is_refused(&bad, &named, &trusted), "{tail:?}");
    }
    // Whole lines cannot be dropped, doubled or swapped either.
    let split = good.iter().position(|c| *c == b'\n').unwrap() + 1;
    let (first, second) = good.split_at(split);
    for bad in [
        first.to_vec(),
        second.to_vec(),
        [first, first, second].concat(),
        [second, first].concat(),
    ] {
        assert!(is_refused(&bad, &named, &trusted));
    }
}

#[test]
fn our_own_form_is_the_only_one() {
    let line = String::from_utf8(LINE.to_vec()).unwrap();
    let body = line.trim_end();
    let cases = [
        ("empty", String::new(), Code::EnvelopeMalformed),
        ("no line end", body.to_owned(), Code::EnvelopeNotCanonical),
        (
            "two line ends",
            format!("{line}\n"),
            Code::EnvelopeNotCanonical,
        ),
        (
            "line end first",
            format!("\n{line}"),
            Code::EnvelopeNotCanonical,
        ),
        (
            "space",
            line.replace("\":", "\": "),
            Code::EnvelopeNotCanonical,
        ),
        (
            "carriage return",
            format!("{body}\r\n"),
            Code::EnvelopeNotCanonical,
        ),
        (
            "escaped slash",
            line.replace("http:/", "http:\\/"),
            Code::EnvelopeNotCanonical,
        ),
        (
            "no padding",
            line.replace("d29ybGQ=", "d29ybGQ"),
            Code::EnvelopeNotCanonical,
        ),
        (
            "trailing bits",
            line.replace("d29ybGQ=", "d29ybGR="),
            Code::EnvelopeMalformed,
        ),
        (
            "unknown field",
            line.replace("{\"payload\"", "{\"extra\":1,\"payload\""),
            Code::EnvelopeNotCanonical,
        ),
        (
            "duplicate key",
            line.replace("{\"payload\"", "{\"payload\":\"\",\"payload\""),
            Code::EnvelopeMalformed,
        ),
        (
            "not base64",
            line.replace("d29ybGQ=", "d29y*GQ="),
            Code::EnvelopeMalformed,
        ),
        ("not JSON", "hello\n".to_owned(), Code::EnvelopeMalformed),
        ("an array", format!("[{body}]\n"), Code::EnvelopeMalformed),
    ];
    for (what, text, code) in cases {
        let findings = parse_own_lines(text.as_bytes()).unwrap_err();
        assert_eq!(codes(&findings), [code], "{what}: {findings:?}");
    }
    let mut envelope = parse_foreign(LINE).unwrap();
    let shape = |e: &Envelope| codes(&parse_own_lines(&e.to_line()).unwrap_err());
    envelope.signatures[0].keyid = String::new();
    assert_eq!(shape(&envelope), [Code::EnvelopeNotCanonical], "no key id");
    envelope.signatures[0].keyid = "operator".to_owned();
    assert_eq!(
        shape(&envelope),
        [Code::EnvelopeNotCanonical],
        "a name for a key id"
    );
    envelope.signatures[0] = signature_of(LINE);
    envelope.signatures[0].sig.pop();
    assert_eq!(
        shape(&envelope),
        [Code::EnvelopeNotCanonical],
        "short signature"
    );
    envelope.signatures = vec![signature_of(LINE), signature_of(LINE)];
    assert_eq!(
        shape(&envelope),
        [Code::EnvelopeNotCanonical],
        "two in one envelope"
    );
}

#[test]
fn lines_with_different_payloads_are_told_apart() {
    let (a, b) = (key(1), key(2));
    let other_payload = [sign(b"1", "t", &[&a]), sign(b"2", "t", &[&b])].concat();
    let other_type = [sign(b"1", "t", &[&a]), sign(b"1", "u", &[&b])].concat();
    for bad in [other_payload, other_type] {
        assert_eq!(
            codes(&parse_own_lines(&bad).unwrap_err()),
            [Code::EnvelopesDiffer]
        );
    }
}

#[test]
fn foreign_envelopes_are_read_liberally_and_verified_exactly() {
    let k = key(3);
    let payload = br#"{ "spelled" : "freely", "n": 1.0 }??>>"#;
    let message = pae("application/x", payload);
    let sig = k.sign(&message);
    for keyid in [json!(null), json!(""), json!("ab12"), json!(k.keyid())] {
        let text = format!(
            "\n{{ \"signatures\" : [ {{\"sig\": {:?}, \"keyid\": {keyid}, \"cert\": \"x\"}} ],\n \"payloadType\": \"application/x\", \"payload\": {:?} }}\n",
            URL_SAFE_NO_PAD.encode(sig),
            URL_SAFE_NO_PAD.encode(payload),
        );
        let envelope = parse_foreign(text.as_bytes()).unwrap();
        assert_eq!(
            envelope.payload, payload,
            "the signed bytes, not a second spelling"
        );
        let verdicts = verify(&envelope, &[key(4).public(), k.public()]);
        assert_eq!(verdicts[0].verdict, Verdict::Valid(k.public()), "{keyid}");
    }
    let without = json!({"payload": STANDARD.encode(payload), "payloadType": "application/x",
        "signatures": [{"sig": STANDARD.encode(sig)}]});
    let envelope = parse_foreign(without.to_string().as_bytes()).unwrap();
    assert!(matches!(
        verify(&envelope, &[k.public()])[0].verdict,
        Verdict::Valid(_)
    ));
    for bad in [
        json!({"payload": "", "payloadType": "t", "signatures": []}),
        json!({"payload": "", "payloadType": "t"}),
        json!({"payload": "%", "payloadType": "t", "signatures": [{"sig": ""}]}),
        json!({"payload": "", "payloadType": "t", "signatures": [{"sig": "%"}]}),
        json!(null),
    ] {
        assert!(parse_foreign(bad.to_string().as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn a_key_id_selects_and_grants_nothing() {
    let (a, b) = (key(1), key(2));
    let mut envelope = parse_foreign(&sign(b"p", "t", &[&a])).unwrap();
    let verdict = |e: &Envelope, keys: &[PublicKey]| verify(e, keys).remove(0).verdict;
    assert_eq!(
        verdict(&envelope, &[a.public(), b.public()]),
        Verdict::Valid(a.public())
    );
    assert_eq!(verdict(&envelope, &[b.public()]), Verdict::Invalid);
    assert_eq!(verdict(&envelope, &[]), Verdict::NoKey);
    // With b's id on a's signature, b is tried and fails; a is not tried.
    envelope.signatures[0].keyid = b.keyid();
    assert_eq!(
        verdict(&envelope, &[a.public(), b.public()]),
        Verdict::Invalid
    );
}

#[test]
fn copied_signatures_and_second_names_count_once() {
    let (a, b) = (key(1), key(2));
    let mut envelope = parse_foreign(&sign(b"p", "t", &[&a])).unwrap();
    let original = envelope.signatures[0].clone();
    for keyid in ["", "another name", &b.keyid()] {
        envelope.signatures.push(EnvelopeSignature {
            keyid: keyid.to_owned(),
            ..original.clone()
        });
    }
    envelope.signatures.push(original);
    let trusted = [a.public(), b.public(), a.public()];
    let copies = [envelope.clone(), envelope.clone()];
    assert_eq!(unique_signers(&copies, &trusted).len(), 1);
    // A second real signer makes two.
    let second = parse_foreign(&sign(b"p", "t", &[&b])).unwrap();
    assert_eq!(
        unique_signers(&[envelope.clone(), second], &trusted).len(),
        2
    );
    // Not when it signed something else.
    let elsewhere = parse_foreign(&sign(b"q", "t", &[&b])).unwrap();
    assert_eq!(
        unique_signers(&[envelope.clone(), elsewhere], &trusted).len(),
        1
    );
    assert_eq!(unique_signers(&[envelope], &[]).len(), 0);
}

#[test]
fn signers_are_compared_with_the_payload_and_with_the_reader() {
    let (a, b, c) = (key(1), key(2), key(3));
    let check = |keys: &[&SigningKey], named: &[(String, PublicKey)], trusted: &[PublicKey]| {
        check_signers(
            &parse_own_lines(&sign(b"p", "t", keys)).unwrap(),
            named,
            trusted,
        )
    };
    let both = named(&[&a, &b]);
    let report = check(&[&a, &b], &both, &[b.public(), c.public()]);
    assert_eq!(report.findings, []);
    assert_eq!(report.valid, [a.public(), b.public()]);
    assert_eq!(report.trusted, [b.public()]);

    let report = check(&[&a, &b], &both, &[]);
    assert_eq!(codes(&report.findings), [Code::SignerNotTrusted]);
    assert!(
        report.findings[0]
            .detail
            .contains(&a.public().fingerprint())
    );
    assert_eq!(report.valid.len(), 2);
    let report = check(&[&a, &b], &both, &[c.public()]);
    assert_eq!(codes(&report.findings), [Code::SignerNotTrusted]);

    let t = [a.public()];
    let found = |keys: &[&SigningKey], named: &[(String, PublicKey)]| {
        codes(&check(keys, named, &t).findings)
    };
    assert_eq!(
        found(&[&a], &both),
        [Code::SignerUnexpected],
        "one is missing"
    );
    assert_eq!(
        found(&[&a, &b, &c], &both),
        [Code::SignerUnexpected],
        "one too many"
    );
    assert_eq!(
        found(&[&a, &b, &a], &both),
        [Code::SignerUnexpected],
        "one twice"
    );
    assert_eq!(
        found(&[&b, &a], &both),
        [Code::EnvelopeNotCanonical],
        "order"
    );
    let twice = named(&[&a, &a]);
    assert_eq!(
        found(&[&a], &twice),
        [Code::SignerUnexpected],
        "named twice"
    );
    // A trusted signature does not help when the payload does not name it.
    assert_eq!(found(&[&a], &[]), [Code::SignerUnexpected; 2]);
    // A named id that is not the embedded key's.
    let crossed = [(a.keyid(), b.public())];
    assert_eq!(found(&[&a], &crossed), [Code::SignerUnexpected; 2]);
    assert!(check(&[&a], &crossed, &t).valid.is_empty());
    // The embedded key did sign, under its own id, but was announced under another.
    let renamed = [(b.keyid(), a.public())];
    assert!(check(&[&a], &renamed, &t).valid.is_empty());
}

#[test]
fn an_invalid_signature_is_not_also_called_untrusted() {
    let (a, b) = (key(1), key(2));
    let mut envelope = parse_foreign(&sign(b"p", "t", &[&a])).unwrap();
    envelope.signatures[0].sig = b.sign(&pae("t", b"p")).to_vec();
    let report = check_signers(&[envelope], &named(&[&a]), &[a.public()]);
    assert_eq!(codes(&report.findings), [Code::SignatureInvalid]);
    assert_eq!((report.valid.len(), report.trusted.len()), (0, 0));
}

const KIND: &str = "runseal:test/v1";

fn statement() -> Statement<Value> {
    let subjects = vec![
        Subject::new("weights", Sha256Digest::of(b"w")),
        Subject::new("index", Sha256Digest::of(b"i")),
    ];
    Statement::new(KIND, subjects, json!({"a": 1}))
}

#[test]
fn a_statement_survives_its_payload() {
    let mut s = statement();
    s.subject[0]
        .digest
        .others
        .insert("blake3".into(), "00".into());
    let payload = s.to_payload();
    assert_eq!(Statement::from_payload(&payload, KIND).unwrap(), s);
    assert!(
        payload.starts_with(format!("{{\"_type\":\"{STATEMENT_TYPE}\",\"predicate\":").as_bytes())
    );
    assert_eq!(
        s.subject_named("index").unwrap().digest.sha256,
        Sha256Digest::of(b"i")
    );
    assert!(s.subject_named("image").is_none());
}

#[test]
fn a_payload_that_is_no_statement_of_ours_is_refused() {
    let read = |v: &Value| Statement::<Value>::from_payload(&runseal::json::canonical(v), KIND);
    let good = serde_json::to_value(statement()).unwrap();
    assert!(read(&good).is_ok());
    let with = |pointer: &str, value: Value| {
        let mut v = good.clone();
        *v.pointer_mut(pointer).unwrap() = value;
        v
    };
    assert!(matches!(
        read(&with("/_type", json!("https://in-toto.io/Statement/v0.1"))),
        Err(StatementError::Type(_))
    ));
    assert!(matches!(
        read(&with("/predicateType", json!("x"))),
        Err(StatementError::PredicateType { .. })
    ));
    assert!(matches!(
        read(&with("/subject", json!([]))),
        Err(StatementError::Subjects(_))
    ));
    assert!(matches!(
        read(&with("/subject/1/name", json!("weights"))),
        Err(StatementError::Subjects(_))
    ));
    assert!(matches!(
        read(&with("/subject/1/name", json!(""))),
        Err(StatementError::Subjects(_))
    ));
    assert!(matches!(
        read(&with("/subject/0/digest", json!({"blake3": "00"}))),
        Err(StatementError::Json(_))
    ));
    assert!(matches!(
        read(&with("/subject/0/digest/sha256", json!("00"))),
        Err(StatementError::Json(_))
    ));
    let mut extra = good.clone();
    extra["unknown"] = json!(1);
    assert!(matches!(read(&extra), Err(StatementError::Json(_))));
    let spaced = serde_json::to_vec_pretty(&good).unwrap();
    assert!(matches!(
        Statement::<Value>::from_payload(&spaced, KIND),
        Err(StatementError::NotCanonical)
    ));
    let error = Statement::<Value>::from_payload(b"{", KIND).unwrap_err();
    assert_eq!(error.finding("x").code, Code::StatementMalformed);
}

proptest! {
    #[test]
    fn what_is_signed_comes_back_exactly(payload: Vec<u8>, kind in ".{0,30}", n in 1usize..4) {
        let keys: Vec<_> = (1..=n as u8).map(key).collect();
        let refs: Vec<_> = keys.iter().collect();
        let lines = sign(&payload, &kind, &refs);
        let envelopes = parse_own_lines(&lines).unwrap();
        prop_assert_eq!(envelopes.len(), n);
        for e in &envelopes {
            prop_assert_eq!(&e.payload, &payload);
            prop_assert_eq!(&e.payload_type, &kind);
        }
        let report = check_signers(&envelopes, &named(&refs), &[keys[n - 1].public()]);
        prop_assert_eq!(report.findings, vec![]);
        prop_assert_eq!(report.valid.len(), n);
        prop_assert_eq!(report.trusted.len(), 1);
    }

    #[test]
    fn the_readers_take_any_bytes(bytes: Vec<u8>) {
        let _ = parse_foreign(&bytes);
        let _ = parse_own_lines(&bytes);
        let _ = Statement::<Value>::from_payload(&bytes, KIND);
    }
}

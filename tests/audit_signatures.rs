//! Signatures that must not count, through the real program.

mod support;

use runseal::envelope::{parse_own_lines, sign};
use runseal::json;
use runseal::statement::PAYLOAD_TYPE;
use support::*;

/// What the program says of the completed bundle with this record: exit code,
/// verdict line, findings.
fn with_record(record: Vec<u8>, keys: &[&str]) -> (i32, String) {
    let dir = copy_of(COMPLETED);
    std::fs::write(dir.path().join("record.intoto.jsonl"), record).unwrap();
    let mut args = vec!["record".to_owned(), dir.path().display().to_string()];
    for key in keys {
        let path = golden().join(format!("keys/{key}.pub.pem"));
        args.extend(["--trusted-key".to_owned(), path.display().to_string()]);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let said = verify(&args);
    (said.code, said.stdout)
}

fn record() -> Vec<u8> {
    load(COMPLETED).record.unwrap()
}

fn refused(record: Vec<u8>, keys: &[&str], code: &str) {
    let (exit, text) = with_record(record, keys);
    assert_eq!(exit, 1, "{code}\n{text}");
    assert!(text.contains(&format!("error {code} [")), "{code}\n{text}");
    assert!(!text.contains("\nVERIFIED"), "{code}\n{text}");
}

const OURS: &str = "test-only";
const OTHER: &str = "other-test-only";

#[test]
fn the_untouched_record_passes() {
    assert_eq!(with_record(record(), &[OURS]).0, 0);
    assert_eq!(with_record(record(), &[OTHER, OURS]).0, 0);
}

#[test]
fn a_key_that_is_not_trusted_is_no_pass() {
    refused(record(), &[], "signer-not-trusted");
    refused(record(), &[OTHER], "signer-not-trusted");
}

/// Signed by a trusted key that the payload does not name: trust in a key is no
/// leave to sign for another.
#[test]
fn the_wrong_key_signs() {
    let payload = json::canonical(&statement(&load(COMPLETED)));
    let forged = sign(&payload, PAYLOAD_TYPE, &[&other()]);
    refused(forged.clone(), &[OTHER], "signer-unexpected");
    refused(forged, &[OTHER, OURS], "signer-unexpected");
}

/// A wrong signature under the right key id.
#[test]
fn the_key_id_grants_nothing() {
    let payload = json::canonical(&statement(&load(COMPLETED)));
    let mut envelope = parse_own_lines(&sign(&payload, PAYLOAD_TYPE, &[&other()])).unwrap();
    envelope[0].signatures[0].keyid = operator().keyid();
    refused(envelope[0].to_line(), &[OURS, OTHER], "signature-invalid");
}

#[test]
fn a_signature_copied_from_another_record_is_no_signature() {
    let mut envelope = parse_own_lines(&record()).unwrap();
    let theirs = parse_own_lines(&load(FAILED).record.unwrap()).unwrap();
    envelope[0].signatures = theirs[0].signatures.clone();
    refused(envelope[0].to_line(), &[OURS], "signature-invalid");
    // And the whole record of another run over this evidence.
    refused(
        load(FAILED).record.unwrap(),
        &[OURS],
        "index-digest-mismatch",
    );
}

#[test]
fn a_second_line_is_not_passed_over() {
    refused([record(), record()].concat(), &[OURS], "signer-unexpected");
    let other_run = load(FAILED).record.unwrap();
    refused([record(), other_run].concat(), &[OURS], "envelopes-differ");
    let payload = json::canonical(&statement(&load(COMPLETED)));
    let grafted = sign(&payload, PAYLOAD_TYPE, &[&other()]);
    refused([record(), grafted].concat(), &[OURS], "signer-unexpected");
}

#[test]
fn white_space_is_not_passed_over() {
    for (before, after, code) in [
        ("", "\n", "envelope-not-canonical"),
        (" ", "", "envelope-not-canonical"),
        ("\n", "", "envelope-not-canonical"),
        // No line end behind it: the space is a line of its own, and no envelope.
        ("", " ", "envelope-not-canonical"),
        ("", " \n", "envelope-malformed"),
        ("", "\r\n", "envelope-malformed"),
    ] {
        let bytes = [before.as_bytes(), &record(), after.as_bytes()].concat();
        refused(bytes, &[OURS], code);
    }
    let mut bytes = record();
    bytes.pop();
    refused(bytes, &[OURS], "envelope-not-canonical");
}

//! Edits of the envelope and of who signs.

use super::*;

pub fn edits() -> Vec<Edit> {
    vec![
        as_is!("record-dropped", COMPLETED, [RecordMissing], |raw| raw
            .record =
            None),
        as_is!("record-emptied", COMPLETED, [EnvelopeMalformed], |raw| {
            raw.record = Some(Vec::new());
        }),
        as_is!(
            "space-after-the-record",
            COMPLETED,
            [EnvelopeNotCanonical],
            |raw| {
                raw.record.as_mut().unwrap().insert(0, b' ');
            }
        ),
        as_is!(
            "blank-line-after-the-record",
            COMPLETED,
            [EnvelopeNotCanonical],
            |raw| {
                raw.record.as_mut().unwrap().push(b'\n');
            }
        ),
        as_is!(
            "line-of-another-run-appended",
            COMPLETED,
            [EnvelopesDiffer],
            |raw| {
                let line = load(FAILED).record.unwrap();
                raw.record.as_mut().unwrap().extend(line);
            }
        ),
        as_is!("line-twice", COMPLETED, [SignerUnexpected], |raw| {
            let line = raw.record.clone().unwrap();
            raw.record.as_mut().unwrap().extend(line);
        }),
        as_is!("grafted-signature", COMPLETED, [SignerUnexpected], |raw| {
            let payload = json::canonical(&statement(raw));
            let line = envelope::sign(&payload, PAYLOAD_TYPE, &[&other()]);
            raw.record.as_mut().unwrap().extend(line);
        }),
        as_is!(
            "signature-of-another-record",
            COMPLETED,
            [SignatureInvalid],
            |raw| {
                let theirs = load(FAILED).record.unwrap();
                let mut ours = envelope::parse_own_lines(raw.record.as_ref().unwrap()).unwrap();
                let theirs = envelope::parse_own_lines(&theirs).unwrap();
                ours[0].signatures = theirs[0].signatures.clone();
                raw.record = Some(ours[0].to_line());
            }
        ),
        as_is!(
            "payload-edited-unsigned",
            COMPLETED,
            [SignatureInvalid, StatusNotReproduced],
            |raw| {
                let mut ours = envelope::parse_own_lines(raw.record.as_ref().unwrap()).unwrap();
                let mut value = statement(raw);
                value["predicate"]["run"]["status"] = json!("aborted");
                value["predicate"]["run"]["cause"] = json!("SIGINT");
                ours[0].payload = json::canonical(&value);
                raw.record = Some(ours[0].to_line());
            }
        ),
        as_is!(
            "other-payload-type",
            COMPLETED,
            [StatementMalformed],
            |raw| {
                let payload = json::canonical(&statement(raw));
                raw.record = Some(envelope::sign(&payload, "text/plain", &[&operator()]));
            }
        ),
        as_is!(
            "payload-not-canonical",
            COMPLETED,
            [StatementMalformed],
            |raw| {
                let payload = serde_json::to_vec_pretty(&statement(raw)).unwrap();
                raw.record = Some(envelope::sign(&payload, PAYLOAD_TYPE, &[&operator()]));
            }
        ),
        as_is!("field-left-out", COMPLETED, [SchemaInvalid], |raw| {
            resign(raw, |s| {
                s["predicate"]
                    .as_object_mut()
                    .unwrap()
                    .remove("limitations");
            });
        }),
        as_is!("field-added", COMPLETED, [SchemaInvalid], |raw| {
            resign(raw, |s| s["predicate"]["note"] = json!("certified"));
        }),
        as_is!(
            "signed-by-another-who-says-so",
            COMPLETED,
            [SignerNotTrusted, SignerUnexpected],
            |raw| {
                let mut value = statement(raw);
                let signer = &mut value["predicate"]["provenance"]["signers"][0];
                signer["keyid"] = json!(other().keyid());
                signer["public_key"] = json!(other().public().to_pem());
                let payload = json::canonical(&value);
                raw.record = Some(envelope::sign(&payload, PAYLOAD_TYPE, &[&other()]));
            }
        ),
        as_is!(
            "record-status-edited",
            COMPLETED,
            [StatusNotReproduced],
            |raw| resign(raw, |s| {
                s["predicate"]["run"]["status"] = json!("aborted");
                s["predicate"]["run"]["cause"] = json!("SIGINT");
            })
        ),
        as_is!(
            "record-taint-edited",
            TAINTED,
            [TaintNotReproduced],
            |raw| resign(raw, |s| {
                s["predicate"]["run"]["taints"] = json!([]);
            })
        ),
        as_is!(
            "record-count-edited",
            COMPLETED,
            [CountNotReproduced],
            |raw| resign(raw, |s| {
                s["predicate"]["grades"]["pass"] = json!(4);
            })
        ),
        as_is!(
            "record-metric-edited",
            COMPLETED,
            [MetricNotReproduced],
            |raw| resign(raw, |s| {
                s["predicate"]["metrics"][0]["value"] = json!("4096.000");
            })
        ),
        as_is!("record-case-edited", FAILED, [CaseNotReproduced], |raw| {
            resign(raw, |s| {
                s["predicate"]["cases"][1]["transport"] = json!("completed");
            })
        }),
        as_is!(
            "record-integrity-edited",
            REFUSED,
            [IntegrityNotReproduced],
            |raw| resign(raw, |s| {
                s["predicate"]["integrity"]["verified"] = json!(2);
            })
        ),
        as_is!(
            "record-limitation-dropped",
            COMPLETED,
            [LimitationNotReproduced],
            |raw| resign(raw, |s| {
                s["predicate"]["limitations"].as_array_mut().unwrap().pop();
            })
        ),
        as_is!(
            "record-subject-edited",
            COMPLETED,
            [SubjectNotReproduced],
            |raw| resign(raw, |s| {
                s["subject"][0]["digest"]["sha256"] = json!("ab".repeat(32));
            })
        ),
        as_is!(
            "record-field-edited",
            COMPLETED,
            [FieldNotReproduced],
            |raw| resign(raw, |s| {
                s["predicate"]["hardware"]["machines"] = json!(4);
            })
        ),
        // The whole bundle by somebody else, declared by them: only trust tells.
        edit_trust(),
        as_is!(
            "second-signer-named-and-absent",
            COMPLETED,
            [SignerUnexpected],
            |raw| {
                resign(raw, |s| {
                    let signer = json!({"role": "auditor", "keyid": other().keyid(),
                    "public_key": other().public().to_pem()});
                    s["predicate"]["provenance"]["signers"]
                        .as_array_mut()
                        .unwrap()
                        .push(signer);
                });
            }
        ),
        as_is!("own-second-key-as-auditor", COMPLETED, [], |raw| {
            let mut value = statement(raw);
            let signer = json!({"role": "auditor", "keyid": other().keyid(),
                "public_key": other().public().to_pem()});
            value["predicate"]["provenance"]["signers"]
                .as_array_mut()
                .unwrap()
                .push(signer);
            let payload = json::canonical(&value);
            raw.record = Some(envelope::sign(
                &payload,
                PAYLOAD_TYPE,
                &[&operator(), &other()],
            ));
        }),
    ]
}

fn edit_trust() -> Edit {
    as_is!(
        "all-by-somebody-else",
        COMPLETED,
        [SignerNotTrusted],
        |raw| {
            edit_events(raw, |lines| {
                let Event::Declare { keyid, .. } = &mut lines[1].event else {
                    panic!("the declaration comes second");
                };
                *keyid = other().keyid();
            });
            let tool = statement(raw)["predicate"]["provenance"]["tool"].clone();
            let tool = serde_json::from_value(tool).unwrap();
            let sealed =
                runseal::seal::seal(&raw.files, &Default::default(), tool, &other()).unwrap();
            (raw.index, raw.record) = (Some(sealed.index), Some(sealed.envelope));
        }
    )
}

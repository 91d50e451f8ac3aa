//! Edits of the index, and files dropped, added and swapped.

use super::*;

pub fn edits() -> Vec<Edit> {
    vec![
        as_is!("index-dropped", COMPLETED, [IndexMissing], |raw| raw
            .index =
            None),
        as_is!(
            "index-of-another-run",
            COMPLETED,
            [
                IndexDigestMismatch,
                WrongRun,
                EvidenceAltered,
                EvidenceExtra
            ],
            |raw| {
                raw.index = load(REFUSED_LIKE).index;
            }
        ),
        as_is!("index-pretty", COMPLETED, [IndexMalformed], |raw| {
            let value = json::parse(raw.index.as_ref().unwrap()).unwrap();
            let bytes = serde_json::to_vec_pretty(&value).unwrap();
            let mut signed = statement(raw);
            set_index_digest(&mut signed, &bytes);
            put_statement(raw, &signed);
            raw.index = Some(bytes);
        }),
        as_is!(
            "index-digest-in-the-record-edited",
            COMPLETED,
            [IndexDigestMismatch],
            |raw| {
                resign(raw, |s| set_index_digest(s, b"other"));
            }
        ),
        as_is!("index-renamed-run", COMPLETED, [WrongRun], |raw| {
            edit_index(raw, |i| {
                i["run_id"] = json!("20261201T000000Z-golden-v1-000000")
            });
        }),
        as_is!(
            "index-lists-a-file-twice",
            COMPLETED,
            [IndexMalformed],
            |raw| {
                edit_index(raw, |i| {
                    let files = i["files"].as_array_mut().unwrap();
                    files.insert(0, files[0].clone());
                });
            }
        ),
        as_is!("index-out-of-order", COMPLETED, [IndexMalformed], |raw| {
            edit_index(raw, |i| i["files"].as_array_mut().unwrap().swap(0, 1));
        }),
        as_is!(
            "index-lists-the-private-folder",
            COMPLETED,
            [IndexMalformed],
            |raw| {
                edit_index(raw, |i| {
                    i["files"][10]["path"] = json!("private/salts.json")
                });
            }
        ),
        as_is!(
            "index-leaves-the-bundle",
            COMPLETED,
            [IndexMalformed],
            |raw| {
                edit_index(raw, |i| i["files"][0]["path"] = json!("../checkpoints/x"));
            }
        ),
        as_is!(
            "index-digest-of-a-file-edited",
            COMPLETED,
            [EvidenceAltered],
            |raw| {
                edit_index(raw, |i| i["files"][0]["sha256"] = json!("0".repeat(64)));
            }
        ),
        as_is!(
            "index-size-of-a-file-edited",
            COMPLETED,
            [EvidenceAltered],
            |raw| {
                edit_index(raw, |i| i["files"][0]["size"] = json!(1));
            }
        ),
        as_is!("file-not-in-the-index", COMPLETED, [EvidenceExtra], |raw| {
            raw.files.insert(path("notes.txt"), b"all fine\n".to_vec());
        }),
        edit!(
            "file-added-and-indexed",
            COMPLETED,
            [EvidenceExtra],
            |raw| {
                raw.files.insert(path("notes.txt"), b"all fine\n".to_vec());
            }
        ),
        edit!(
            "report-of-a-replica-that-is-not-planned",
            COMPLETED,
            [EvidenceExtra],
            |raw| {
                let bytes = raw.files[&path("replicas/r0.json")].clone();
                raw.files.insert(path("replicas/r9.json"), bytes);
            }
        ),
        as_is!("file-dropped", COMPLETED, [EvidenceMissing], |raw| {
            raw.files.remove(&path("engine/r1.log")).unwrap();
        }),
        edit!("engine-log-dropped", COMPLETED, [EvidenceMissing], |raw| {
            raw.files.remove(&path("engine/r1.log")).unwrap();
        }),
        edit!("engine-file-dropped", COMPLETED, [EvidenceMissing], |raw| {
            raw.files.remove(&path("engine/r1.json")).unwrap();
        }),
        edit!(
            "replica-report-dropped",
            COMPLETED,
            [EvidenceMissing],
            |raw| {
                raw.files.remove(&path("replicas/r1.json")).unwrap();
            }
        ),
        edit!("telemetry-dropped", COMPLETED, [EvidenceMissing], |raw| {
            raw.files.remove(&path("telemetry.jsonl")).unwrap();
        }),
        edit!("answers-dropped", COMPLETED, [EvidenceMissing], |raw| {
            raw.files.remove(&path("responses.jsonl")).unwrap();
        }),
        edit!("cases-dropped", COMPLETED, [EvidenceMissing], |raw| {
            raw.files.remove(&path("suite/cases.jsonl")).unwrap();
        }),
        edit!("answers-of-another-run", COMPLETED, [WrongRun], |raw| {
            swap_in(raw, "responses.jsonl", FAILED);
        }),
        edit!("grades-of-another-run", COMPLETED, [WrongRun], |raw| {
            swap_in(raw, "grades.jsonl", WITHHELD);
        }),
        edit!("telemetry-of-another-run", COMPLETED, [WrongRun], |raw| {
            swap_in(raw, "telemetry.jsonl", FAILED);
        }),
        edit!("node-of-another-run", COMPLETED, [WrongRun], |raw| {
            swap_in(raw, "nodes/n0.json", FAILED);
        }),
        edit!("report-of-another-run", COMPLETED, [WrongRun], |raw| {
            swap_in(raw, "replicas/r1.json", REFUSED);
        }),
        edit!("engine-of-another-run", COMPLETED, [WrongRun], |raw| {
            swap_in(raw, "engine/r0.json", FAILED);
        }),
        edit!("engine-log-of-another-run", COMPLETED, [WrongRun], |raw| {
            swap_in(raw, "engine/r0.log", FAILED);
        }),
        edit!("image-of-another-run", COMPLETED, [WrongRun], |raw| {
            swap_in(raw, "image.json", FAILED);
        }),
        edit!("log-of-another-run", COMPLETED, [WrongRun], |raw| {
            swap_in(raw, "events.jsonl", WITHHELD);
        }),
        edit!(
            "plan-of-another-run",
            COMPLETED,
            [PlanMismatch, ReplicaReportMismatch],
            |raw| {
                swap_in(raw, "plan.json", FAILED);
            }
        ),
        edit!(
            "file-not-canonical",
            COMPLETED,
            [EvidenceMalformed],
            |raw| {
                file(raw, "nodes/n0.json").push(b'\n');
            }
        ),
        edit!(
            "file-that-is-no-json",
            COMPLETED,
            [EvidenceMalformed],
            |raw| {
                *file(raw, "image.json") = b"{}{}\n".to_vec();
            }
        ),
        as_is!(
            "something-that-is-no-file",
            COMPLETED,
            [EvidenceFileType],
            |raw| {
                let dir = write_out(raw);
                std::os::unix::fs::symlink("/dev/null", dir.path().join("link")).unwrap();
                *raw = runseal::bundle::read::read(dir.path()).unwrap();
            }
        ),
    ]
}

/// A bundle of the same plan, whose index differs in digests and run.
const REFUSED_LIKE: &str = REFUSED;

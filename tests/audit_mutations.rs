//! The mutation law: what is changed in a sealed bundle is found, by the code one
//! would expect; what a forger with the operator's key can do unseen is listed,
//! line by line, in tests/golden/out-of-reach.md, and asserted here as unseen.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use runseal::audit::Verdict;
use runseal::bundle::index::Index;
use runseal::bundle::read::RawBundle;
use runseal::codes::Code;
use runseal::finding::Severity;
use serde_json::{Value, json};
use support::*;

/// Runs `work` on every item, on both cores of a small machine.
fn on_all<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::SeqCst)) {
                    work(item);
                }
            });
        }
    });
}

/// (a) One byte of one file, nothing signed again. Every byte of small files, of
/// the index and of the record; a stride of the event log.
#[test]
fn every_flipped_byte_is_found() {
    let mut work: Vec<(&str, String, usize)> = Vec::new();
    for name in [COMPLETED, WITHHELD] {
        let raw = load(name);
        // The second bundle differs in how files are committed to, no more.
        let only: &[&str] = &["suite/cases.jsonl", "responses.jsonl", "private/salts.json"];
        for (path, bytes) in &raw.files {
            let path = path.to_string();
            if name == WITHHELD && !only.contains(&path.as_str()) {
                continue;
            }
            let stride = if bytes.len() < 4096 { 1 } else { 17 };
            work.extend(
                (0..bytes.len())
                    .step_by(stride)
                    .map(|i| (name, path.clone(), i)),
            );
        }
    }
    let raw = load(COMPLETED);
    for (file, bytes) in [
        ("index.json", &raw.index),
        ("record.intoto.jsonl", &raw.record),
    ] {
        let len = bytes.as_ref().unwrap().len();
        work.extend((0..len).map(|i| (COMPLETED, file.to_owned(), i)));
    }
    let found: Mutex<BTreeMap<(String, Code), usize>> = Mutex::default();
    let bundles: BTreeMap<&str, RawBundle> =
        [COMPLETED, WITHHELD].map(|name| (name, load(name))).into();
    on_all(&work, |(name, file, i)| {
        let bit = 1u8 << (i % 8);
        let code = flip(&bundles[name], file, *i, bit);
        let code = code.unwrap_or_else(|why| panic!("{name}/{file} byte {i}: {why}"));
        *found
            .lock()
            .unwrap()
            .entry((file.clone(), code))
            .or_default() += 1;
    });
    println!("{} bytes flipped, all found:", work.len());
    for ((file, code), n) in found.into_inner().unwrap() {
        println!("  {n:>6}  {file}  {code}");
    }
}

/// Flips one bit and gives the code by which it was found.
fn flip(base: &RawBundle, name: &str, i: usize, bit: u8) -> Result<Code, String> {
    let mut raw = base.clone();
    let want: &[Code] = match name {
        "index.json" => {
            raw.index.as_mut().unwrap()[i] ^= bit;
            &[Code::IndexDigestMismatch]
        }
        "record.intoto.jsonl" => {
            raw.record.as_mut().unwrap()[i] ^= bit;
            &[
                Code::EnvelopeMalformed,
                Code::EnvelopeNotCanonical,
                Code::SignatureInvalid,
                Code::SignerUnexpected,
                Code::StatementMalformed,
                Code::SchemaInvalid,
            ]
        }
        _ => {
            file(&mut raw, name)[i] ^= bit;
            &[Code::EvidenceAltered]
        }
    };
    if want == [Code::EvidenceAltered] && !i.is_multiple_of(61) {
        // What the audit does first, without what it does for every other file.
        let index = Index::parse(raw.index.as_ref().unwrap()).unwrap();
        let check = index.check(&raw.files, &raw.salts);
        let hit = |f: &runseal::finding::Finding| {
            f.code == Code::EvidenceAltered && f.subject == name && f.severity == Severity::Error
        };
        return match check.findings.iter().any(hit) {
            true => Ok(Code::EvidenceAltered),
            false => Err("the index does not see it".into()),
        };
    }
    if want != [Code::EvidenceAltered] && !i.is_multiple_of(61) {
        raw.files.clear(); // Record and index are checked before any evidence is.
    }
    let report = check(&raw);
    if report.exit_code() != 1 {
        return Err("exit code 0".into());
    }
    let errors = errors(&report);
    want.iter()
        .find(|c| errors.contains(c))
        .copied()
        .ok_or_else(|| format!("found by {errors:?}"))
}

/// Salts are private, and an edited salt is still no way around a commitment.
#[test]
fn every_flipped_byte_of_the_salts_is_found() {
    let dir = copy_of(WITHHELD);
    let path = dir.path().join("private/salts.json");
    let salts = std::fs::read(&path).unwrap();
    for i in 0..salts.len() {
        let mut bytes = salts.clone();
        bytes[i] ^= if bytes[i].is_ascii_alphabetic() {
            0x20
        } else {
            1
        };
        std::fs::write(&path, bytes).unwrap();
        let report = check(&runseal::bundle::read::read(dir.path()).unwrap());
        assert_eq!(report.verdict, Verdict::NotVerified, "byte {i}");
    }
}

/// Another plausible value of the same shape: what an operator would like the
/// record to say, not what a parser trips over.
fn plausible(path: &str, value: &Value) -> Option<Value> {
    let text = match value {
        Value::Number(n) => return Some(json!(n.as_u64()? + 1)),
        Value::Bool(b) => return Some(json!(!b)),
        Value::Null => {
            let number =
                path.ends_with("_ns") || path.ends_with("_tokens") || path.ends_with("mem_total");
            return Some(match path {
                p if number || p.contains("_tokens_") => json!(1),
                p if p.ends_with("observed_root") => json!("ab".repeat(32)),
                _ => json!("1.000"),
            });
        }
        Value::String(s) => s,
        _ => return None,
    };
    let words = [
        ("completed", "truncated"),
        ("cancelled", "truncated"),
        ("truncated", "completed"),
        ("not_attempted", "cancelled"),
        ("verified", "mismatch"),
        ("mismatch", "verified"),
        ("unchanged", "changed"),
        ("not_checked", "unchanged"),
        ("recomputed", "consistent"),
        ("operator", "node"),
        ("closed-later", "SIGINT"),
        ("this_run", "existing"),
        ("existing", "this_run"),
        ("measure", "collect"),
    ];
    if let Some((_, to)) = words.iter().find(|(from, _)| from == text) {
        return Some(json!(to));
    }
    let swapped = |s: &str| {
        let mut s = s.to_owned();
        let last = s.pop().unwrap_or('a');
        s.push(if last == '1' { '2' } else { '1' });
        s
    };
    let hex = text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let number = text.parse::<f64>().is_ok();
    if hex || number {
        return Some(json!(swapped(text)));
    }
    match text.parse::<jiff::Timestamp>() {
        Ok(t) => Some(json!((t + jiff::SignedDuration::from_secs(1)).to_string())),
        Err(_) => Some(json!(format!("{text}x"))),
    }
}

/// Every leaf of a JSON document, and every array and object for its elements.
fn places(value: &Value, at: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, v) in map {
                let key = key.replace('~', "~0").replace('/', "~1");
                places(v, &format!("{at}/{key}"), out);
            }
        }
        Value::Array(items) => {
            for (i, v) in items.iter().enumerate() {
                places(v, &format!("{at}/{i}"), out);
            }
        }
        _ => out.push(at.to_owned()),
    }
}

/// Tagged groups whose parts only make sense together.
fn whole_edit(path: &str) -> Option<fn(&mut Value)> {
    let leaf = path.rsplit('/').next()?;
    Some(match leaf {
        "status" => |run| {
            let run = run.as_object_mut().unwrap();
            for key in ["state", "cause", "detail"] {
                run.remove(key);
            }
            let failed = run["status"] == "completed";
            run.insert(
                "status".into(),
                json!(if failed { "failed" } else { "completed" }),
            );
            if failed {
                for (k, v) in [("state", "measure"), ("cause", "x"), ("detail", "x")] {
                    run.insert(k.into(), json!(v));
                }
            }
        },
        "grade" => |case| {
            let case = case.as_object_mut().unwrap();
            let pass = case["grade"] == "pass";
            case.remove("check");
            case.remove("reason");
            case.insert(
                "grade".into(),
                json!(if pass { "ungraded" } else { "pass" }),
            );
            if pass {
                case.insert("reason".into(), json!("x"));
            }
        },
        "attribution" => |case| {
            let case = case.as_object_mut().unwrap();
            let verified = case["attribution"] == "verified";
            case.remove("because");
            let to = if verified { "unverified" } else { "verified" };
            case.insert("attribution".into(), json!(to));
            if verified {
                case.insert("because".into(), json!("x"));
            }
        },
        // Null where nothing was measured; a plausible one is whole.
        "client_lag" => |record| {
            let lag = json!({"n": 1, "every_ns": 1, "p50_ns": 1, "p99_ns": 1, "max_ns": 1});
            record["client_lag"] = lag;
        },
        // What the servers' counters say of others.
        "state" if path.contains("/foreign_") => |parent| {
            let none = parent["state"] == "none";
            *parent = match none {
                true => json!({"state": "found", "detail": "x"}),
                false => json!({"state": "none"}),
            };
        },
        "proof" => |cache| {
            let cache = cache.as_object_mut().unwrap();
            let claim = cache["claim"].clone();
            cache.clear();
            cache.insert("claim".into(), claim);
            cache.insert("proof".into(), json!("not_claimed"));
        },
        _ => return None,
    })
}

/// By which code an edit of this field must be found; `None`: it cannot be.
fn expected(path: &str) -> Option<BTreeSet<Code>> {
    let rules: &[(&str, &[Code])] = &[
        ("/_type", &[Code::StatementMalformed]),
        ("/predicateType", &[Code::StatementMalformed]),
        ("/subject", &[Code::SubjectNotReproduced]),
        ("/predicate/run/status", &[Code::StatusNotReproduced]),
        ("/predicate/run/state", &[Code::StatusNotReproduced]),
        ("/predicate/run/cause", &[Code::StatusNotReproduced]),
        ("/predicate/run/detail", &[Code::StatusNotReproduced]),
        ("/predicate/run/taints", &[Code::TaintNotReproduced]),
        ("/predicate/transport", &[Code::CountNotReproduced]),
        ("/predicate/grades", &[Code::CountNotReproduced]),
        ("/predicate/attribution", &[Code::CountNotReproduced]),
        ("/predicate/metrics", &[Code::MetricNotReproduced]),
        ("/predicate/cases", &[Code::CaseNotReproduced]),
        ("/predicate/integrity", &[Code::IntegrityNotReproduced]),
        (
            "/predicate/model/checkpoints",
            &[Code::IntegrityNotReproduced],
        ),
        ("/predicate/limitations", &[Code::LimitationNotReproduced]),
        // The one stated group: it is about the program, which leaves no trace in
        // the evidence. Keep in step with docs/threat-model.md.
        ("/predicate/provenance/tool/name", &[]),
        ("/predicate/provenance/tool/version", &[]),
        ("/predicate/provenance/tool/commit", &[]),
        ("/predicate/provenance/tool/binary_sha256", &[]),
        ("/predicate/provenance/signers", &[Code::SignerUnexpected]),
        ("/predicate", &[Code::FieldNotReproduced]),
    ];
    let starts = |p: &str| path == p || path.starts_with(&format!("{p}/"));
    let (_, codes) = rules.iter().find(|(p, _)| starts(p))?;
    (!codes.is_empty()).then(|| codes.iter().copied().collect())
}

/// (b) Every field of the record, changed and signed again with the operator's
/// own key.
#[test]
fn every_edited_field_of_the_record_is_found() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut unseen: BTreeSet<String> = BTreeSet::new();
    for name in ALL {
        let base = load(name);
        let value = statement(&base);
        let mut all = Vec::new();
        places(&value, "", &mut all);
        let results: Mutex<Vec<(String, BTreeSet<Code>)>> = Mutex::default();
        on_all(&all, |path| {
            let mut edited = value.clone();
            let parent = path.rsplit_once('/').unwrap().0;
            match whole_edit(path).filter(|_| !path.starts_with("/predicate/metrics")) {
                Some(edit) if edited.pointer(parent).unwrap().is_object() => {
                    edit(edited.pointer_mut(parent).unwrap());
                }
                _ => {
                    let leaf = edited.pointer_mut(path).unwrap();
                    *leaf = plausible(path, leaf).unwrap();
                }
            }
            assert_ne!(edited, value, "{path}");
            let mut raw = base.clone();
            put_statement(&mut raw, &edited);
            results
                .lock()
                .unwrap()
                .push((path.clone(), errors(&check(&raw))));
        });
        for (path, found) in results.into_inner().unwrap() {
            match expected(&path) {
                None => {
                    assert!(found.is_empty(), "{name}{path}: {found:?}");
                    unseen.insert(path);
                }
                Some(mut want) => {
                    // The index is a subject that is looked at by itself.
                    let index = path.strip_suffix("/digest/sha256").is_some_and(|at| {
                        value.pointer(at).unwrap()["name"] == "evidence/index.json"
                    });
                    let renamed = value.pointer(&path) == Some(&json!("evidence/index.json"));
                    if index {
                        want = [Code::IndexDigestMismatch].into();
                    } else if renamed {
                        want.insert(Code::IndexDigestMismatch);
                    }
                    assert_eq!(found, want, "{name}{path}");
                    for code in found {
                        *counts.entry(code.to_string()).or_default() += 1;
                    }
                }
            }
        }
    }
    println!("edited fields of the record, signed again: {counts:#?}");
    let stated: BTreeSet<String> = ["name", "version", "commit", "binary_sha256"]
        .map(|f| format!("/predicate/provenance/tool/{f}"))
        .into();
    assert_eq!(unseen, stated, "the stated fields");
}

/// Elements dropped from and added to every list of the record.
#[test]
fn lists_of_the_record_are_complete() {
    let base = load(TAINTED);
    let value = statement(&base);
    let lists = [
        ("/subject", Code::SubjectNotReproduced),
        ("/predicate/run/taints", Code::TaintNotReproduced),
        (
            "/predicate/model/checkpoints/0/replicas",
            Code::IntegrityNotReproduced,
        ),
        ("/predicate/hardware/nodes", Code::FieldNotReproduced),
        ("/predicate/metrics", Code::MetricNotReproduced),
        ("/predicate/cases", Code::CaseNotReproduced),
        ("/predicate/limitations", Code::LimitationNotReproduced),
    ];
    for (path, code) in lists {
        for drop in [true, false] {
            let mut edited = value.clone();
            let list = edited.pointer_mut(path).unwrap().as_array_mut().unwrap();
            if drop {
                list.remove(0);
            } else {
                list.push(list[0].clone());
            }
            let mut raw = base.clone();
            put_statement(&mut raw, &edited);
            assert_eq!(errors(&check(&raw)), [code].into(), "{path} drop: {drop}");
        }
    }
}

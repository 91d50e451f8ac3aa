//! Hostile bundles: nothing panics, nothing hangs, nothing is passed over.

mod support;

use std::os::unix::ffi::OsStrExt;

use proptest::prelude::*;
use runseal::audit::{Reader, audit};
use runseal::bundle::read::{RawBundle, read};
use runseal::codes::Code;
use runseal::json;
use runseal::scorer::{Grade, GradeItem, GradeResult};
use serde_json::Value;
use support::*;

/// A scorer that says what its reader fears: everything passes.
fn generous(_: &[u8], items: &[GradeItem]) -> Result<Vec<GradeResult>, String> {
    let pass = |i: &GradeItem| GradeResult {
        key: i.key.clone(),
        grade: Grade::Pass,
        performed: true,
    };
    Ok(items.iter().map(pass).collect())
}

fn exit_code(raw: &RawBundle) -> u8 {
    let reader = Reader {
        trusted: &[operator().public()],
        grader: &generous,
        commitment: None,
    };
    let report = audit("bundle", raw, &reader);
    // Reports on hostile bundles are read by people too.
    let style = runseal::audit::report::Style {
        lang: runseal::record::limitations::Lang::Tr,
        full: true,
    };
    runseal::audit::report::human(&report, style);
    report.exit_code()
}

/// Values that arithmetic, allocation and indexing stumble over.
const NUMBERS: [&str; 10] = [
    "0",
    "1",
    "255",
    "65536",
    "4294967295",
    "9007199254740992",
    "9007199254740993",
    "18446744073709551615",
    "-1",
    "1e308",
];

#[derive(Debug, Clone)]
enum Change {
    Flip(usize, u8),
    Cut(usize),
    Drop(usize, usize),
    Insert(usize, Vec<u8>),
    Line(usize, usize),
    Number(usize, usize),
    Leaf(usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<usize>();
    prop_oneof![
        (at, 1u8..=255).prop_map(|(i, b)| Change::Flip(i, b)),
        at.prop_map(Change::Cut),
        (at, 1usize..200).prop_map(|(i, n)| Change::Drop(i, n)),
        (at, prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(i, b)| Change::Insert(i, b)),
        (at, at).prop_map(|(i, j)| Change::Line(i, j)),
        (at, 0..NUMBERS.len()).prop_map(|(i, n)| Change::Number(i, n)),
        (at, at).prop_map(|(i, n)| Change::Leaf(i, n)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    let len = bytes.len().max(1);
    match change {
        _ if bytes.is_empty() => {}
        Change::Flip(i, bit) => bytes[i % len] ^= bit,
        Change::Cut(i) => bytes.truncate(i % len),
        Change::Drop(i, n) => {
            let from = i % len;
            bytes.drain(from..(from + n).min(len));
        }
        Change::Insert(i, more) => {
            let at = i % len;
            bytes.splice(at..at, more.iter().copied());
        }
        Change::Line(i, j) => {
            let mut lines: Vec<Vec<u8>> = bytes
                .split_inclusive(|b| *b == b'\n')
                .map(<[u8]>::to_vec)
                .collect();
            let n = lines.len();
            let line = lines.remove(i % n);
            if j % 3 > 0 {
                lines.insert(j % n, line);
            }
            *bytes = lines.concat();
        }
        Change::Number(i, n) => {
            let digit = |b: &u8| b.is_ascii_digit();
            let from = i % len;
            let Some(start) = bytes[from..].iter().position(digit).map(|p| p + from) else {
                return;
            };
            let end = bytes[start..]
                .iter()
                .position(|b| !digit(b))
                .map_or(len, |p| p + start);
            bytes.splice(start..end, NUMBERS[*n].bytes());
        }
        Change::Leaf(i, n) => leaf(bytes, *i, *n),
    }
}

/// Exchanges a leaf of one JSON line for something of another shape, and keeps
/// the canonical form so that the value gets past the parser.
fn leaf(bytes: &mut Vec<u8>, i: usize, n: usize) {
    let mut lines: Vec<Vec<u8>> = bytes
        .split(|b| *b == b'\n')
        .filter(|l| !l.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    let Some(count) = lines.len().checked_sub(1).map(|c| c + 1) else {
        return;
    };
    let line = &mut lines[i % count];
    let Ok(mut value) = json::parse(line) else {
        return;
    };
    let new = [
        Value::Null,
        "".into(),
        "x".repeat(5000).into(),
        "../../x".into(),
        "\u{202e}\u{1b}[2J".into(),
        0.into(),
        (1u64 << 53).into(),
        serde_json::json!([]),
        serde_json::json!([[[[{}]]]]),
        serde_json::json!({"a": {}}),
        true.into(),
    ];
    replace(&mut value, &mut (i / count % 64), &new[n % new.len()]);
    *line = json::canonical(&value);
    *bytes = lines
        .into_iter()
        .flat_map(|mut l| {
            l.push(b'\n');
            l
        })
        .collect();
}

fn replace(value: &mut Value, left: &mut usize, new: &Value) -> bool {
    match value {
        Value::Object(map) if !map.is_empty() => map.values_mut().any(|v| replace(v, left, new)),
        Value::Array(items) if !items.is_empty() => items.iter_mut().any(|v| replace(v, left, new)),
        leaf if *left == 0 => {
            *leaf = new.clone();
            true
        }
        _ => {
            *left -= 1;
            false
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is done to a bundle, the audit ends with a report; and when
    /// nothing was signed again, never with a pass.
    #[test]
    fn no_bundle_makes_the_audit_panic(
        which in 0usize..6,
        file in any::<usize>(),
        changes in prop::collection::vec(change(), 1..4),
        sealed in any::<bool>(),
    ) {
        let mut raw = load(ALL[which]);
        let before = raw.clone();
        let names: Vec<_> = raw.files.keys().cloned().collect();
        for c in &changes {
            match file % (names.len() + 2) {
                0 => apply(raw.index.as_mut().unwrap(), c),
                1 => apply(raw.record.as_mut().unwrap(), c),
                n => apply(raw.files.get_mut(&names[n - 2]).unwrap(), c),
            }
        }
        let same = raw.files == before.files && raw.index == before.index && raw.record == before.record;
        let own = file % (names.len() + 2) < 2;
        if sealed && !own {
            forge(&mut raw);
            exit_code(&raw);
        } else if !same {
            prop_assert_eq!(exit_code(&raw), 1);
        }
    }

    /// A signed payload of any shape ends in a report as well.
    #[test]
    fn no_record_makes_the_audit_panic(i in any::<usize>(), n in any::<usize>()) {
        let mut raw = load(TAINTED);
        let mut payload = json::canonical(&statement(&raw));
        payload.push(b'\n');
        leaf(&mut payload, i, n);
        payload.pop();
        let value = json::parse(&payload).unwrap();
        put_statement(&mut raw, &value);
        exit_code(&raw);
    }
}

/// Deep, doubled and overlong JSON in every file of a bundle is a finding.
#[test]
fn json_that_parsers_disagree_about_is_refused() {
    let base = load(COMPLETED);
    let hostile: [(&str, Vec<u8>); 5] = [
        (
            "deep",
            [vec![b'['; 100_000], vec![b']'; 100_000], vec![b'\n']].concat(),
        ),
        ("twice", b"{\"a\":1,\"a\":2}\n".to_vec()),
        ("past 2^53", b"{\"a\":9007199254740993}\n".to_vec()),
        (
            "long",
            [b"\"".to_vec(), vec![b'x'; 8 << 20], b"\"\n".to_vec()].concat(),
        ),
        ("empty", Vec::new()),
    ];
    for name in base.files.keys() {
        for (what, bytes) in &hostile {
            let mut raw = base.clone();
            raw.files.insert(name.clone(), bytes.clone());
            forge(&mut raw);
            // Engine logs are text for people; all that is asked is their header.
            let found = errors(&check(&raw));
            assert!(!found.is_empty(), "{name}: {what}");
        }
    }
    for (what, bytes) in hostile {
        let mut raw = base.clone();
        raw.index = Some(bytes.clone());
        assert!(
            errors(&check(&raw)).contains(&Code::IndexMalformed),
            "index: {what}"
        );
        let mut raw = base.clone();
        raw.record = Some(bytes);
        assert_eq!(check(&raw).exit_code(), 1, "record: {what}");
    }
}

/// Paths that an index must not hold.
#[test]
fn an_index_names_plain_files_of_the_bundle() {
    for bad in [
        "../plan.json",
        "/etc/passwd",
        "a/../b",
        "a//b",
        "./a",
        "",
        "record.intoto.jsonl",
        "index.json",
        "private",
        "private/salts.json",
        "a\\x41",
    ] {
        let mut raw = load(COMPLETED);
        edit_index(&mut raw, |i| {
            let files = i["files"].as_array_mut().unwrap();
            files.retain(|f| f["path"].as_str() != Some(bad));
            let entry = serde_json::json!({"path": bad, "size": 0, "sha256": "0".repeat(64)});
            let at = files.iter().position(|f| f["path"].as_str() > Some(bad));
            files.insert(at.unwrap_or(files.len()), entry);
        });
        let found = errors(&check(&raw));
        assert_eq!(found, [Code::IndexMalformed].into(), "{bad:?}");
    }
}

fn on_disk(make: impl FnOnce(&std::path::Path)) -> std::collections::BTreeSet<Code> {
    let dir = copy_of(COMPLETED);
    make(dir.path());
    errors(&check(&read(dir.path()).unwrap()))
}

/// Whatever lies in a bundle's folder is a listed file or a finding.
#[test]
fn nothing_in_the_folder_is_passed_over() {
    let extra: std::collections::BTreeSet<Code> = [Code::EvidenceExtra].into();
    let kind: std::collections::BTreeSet<Code> = [Code::EvidenceFileType].into();
    let found = on_disk(|d| std::fs::write(d.join("extra"), "x").unwrap());
    assert_eq!(found, extra);
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff\nname");
    assert_eq!(
        on_disk(|d| std::fs::write(d.join(odd), "x").unwrap()),
        extra
    );
    let found = on_disk(|d| {
        // A bundle inside a bundle.
        let inner = copy_of(FAILED);
        std::fs::create_dir(d.join("inner")).unwrap();
        for name in ["record.intoto.jsonl", "index.json", "plan.json"] {
            std::fs::copy(inner.path().join(name), d.join("inner").join(name)).unwrap();
        }
    });
    assert_eq!(found, extra);
    let link = |to: &'static str, at: &'static str| {
        on_disk(move |d| {
            let _ = std::fs::remove_file(d.join(at));
            std::os::unix::fs::symlink(to, d.join(at)).unwrap();
        })
    };
    assert_eq!(link("plan.json", "link"), kind);
    assert_eq!(link("/etc", "private"), kind);
    let found = link("/etc/hostname", "engine/r0.log");
    assert!(found.is_superset(&kind), "{found:?}");
    assert!(found.contains(&Code::EvidenceMissing), "{found:?}");
    // A pipe is not opened: reading it would wait for ever.
    let found = on_disk(|d| {
        rustix::fs::mkfifoat(rustix::fs::CWD, d.join("pipe"), rustix::fs::Mode::RUSR).unwrap();
    });
    assert_eq!(found, kind);
    let found = on_disk(|d| {
        std::fs::remove_file(d.join("index.json")).unwrap();
        std::fs::create_dir(d.join("index.json")).unwrap();
    });
    assert_eq!(found, [Code::IndexMissing].into());
}

/// A bundle given through a link is the bundle; what is no folder is no bundle.
#[test]
fn what_cannot_be_read_is_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(golden().join(COMPLETED), &link).unwrap();
    let key = golden().join("keys/test-only.pub.pem");
    let key = key.to_str().unwrap();
    let said = verify(&["record", link.to_str().unwrap(), "--trusted-key", key]);
    assert_eq!(said.code, 0);
    for path in ["no-such-bundle", "make.sh"] {
        let said = verify(&["record", path]);
        assert_eq!(said.code, 2, "{path}");
        assert!(said.stderr.contains("hint:"), "{}", said.stderr);
    }
}

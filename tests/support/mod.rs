//! Golden bundles, the forger, and the audit run in-process.
//!
//! The forger holds the operator's key. [`resign`] edits the record alone;
//! [`forge`] edits evidence and derives index and record again with the library's
//! own seal, which is the strongest forger short of redoing everything.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use runseal::audit::{AuditReport, Reader, audit};
use runseal::bundle::index::{self, Files, INDEX_FILE, PRIVATE_DIR, RECORD_FILE, SALTS_FILE};
use runseal::bundle::read::{RawBundle, read};
use runseal::codes::Code;
use runseal::digest::Sha256Digest;
use runseal::envelope;
use runseal::event::{EventLine, to_line};
use runseal::finding::Severity;
use runseal::json;
use runseal::keys::{PublicKey, SigningKey};
use runseal::record::Tool;
use runseal::relpath::RelPath;
use runseal::scorer::child::{ChildLimits, SUBCOMMAND, grade_in_child};
use runseal::scorer::{GradeItem, GradeResult};
use runseal::seal::seal;
use runseal::statement::PAYLOAD_TYPE;
use serde_json::Value;

pub const COMPLETED: &str = "completed";
pub const REFUSED: &str = "refused";
pub const FAILED: &str = "failed";
pub const TAINTED: &str = "tainted";
pub const KILLED: &str = "killed";
pub const WITHHELD: &str = "withheld";
pub const PUBLISHED: &str = "withheld-published";
pub const OPEN: &str = "open";
/// Made before bundles held documents of the servers.
pub const BEFORE_SERVERS: &str = "before-servers";
/// Others used a server while it was measured.
pub const FOREIGN: &str = "foreign";
pub const ALL: [&str; 8] = [
    COMPLETED, REFUSED, FAILED, TAINTED, KILLED, WITHHELD, PUBLISHED, OPEN,
];

pub fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn pem(name: &str) -> String {
    std::fs::read_to_string(golden().join("keys").join(name)).unwrap()
}

/// The key that sealed the golden bundles.
pub fn operator() -> SigningKey {
    SigningKey::from_pem(&pem("test-only.key.pem")).unwrap()
}

/// Somebody else's key.
pub fn other() -> SigningKey {
    SigningKey::from_pem(&pem("other-test-only.key.pem")).unwrap()
}

pub fn load(name: &str) -> RawBundle {
    read(&golden().join(name)).unwrap()
}

/// Copies a golden bundle, so that it can be changed on disk.
pub fn copy_of(name: &str) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in walkdir::WalkDir::new(golden().join(name)).min_depth(1) {
        let entry = entry.unwrap();
        let rel = entry.path().strip_prefix(golden().join(name)).unwrap();
        let target = to.path().join(rel);
        if entry.file_type().is_dir() {
            std::fs::create_dir(target).unwrap();
        } else {
            std::fs::write(target, std::fs::read(entry.path()).unwrap()).unwrap();
        }
    }
    to
}

/// Writes a bundle to disk.
pub fn write_out(raw: &RawBundle) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    let put = |name: &Path, bytes: &[u8]| {
        let path = to.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    for (path, bytes) in &raw.files {
        put(&path.to_path(), bytes);
    }
    for (name, bytes) in [(RECORD_FILE, &raw.record), (INDEX_FILE, &raw.index)] {
        if let Some(bytes) = bytes {
            put(Path::new(name), bytes);
        }
    }
    if !raw.salts.is_empty() {
        let mut bytes = json::canonical(&raw.salts);
        bytes.push(b'\n');
        put(Path::new(SALTS_FILE), &bytes);
    }
    to
}

/// The real scorer in its child process. Thousands of audits grade the same
/// answers, so results are kept by what was asked.
pub fn grader(scorer: &[u8], items: &[GradeItem]) -> Result<Vec<GradeResult>, String> {
    type Known = BTreeMap<(Vec<u8>, Vec<u8>), Result<Vec<GradeResult>, String>>;
    static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());
    let key = (scorer.to_vec(), format!("{items:?}").into_bytes());
    if let Some(known) = KNOWN.lock().unwrap().get(&key) {
        return known.clone();
    }
    let verify = Path::new(env!("CARGO_BIN_EXE_verify"));
    let result = grade_in_child(
        verify,
        &[SUBCOMMAND],
        scorer,
        items,
        &ChildLimits::default(),
    )
    .map_err(|e| e.to_string());
    KNOWN.lock().unwrap().insert(key, result.clone());
    result
}

/// Audits for a reader who trusts the operator.
pub fn check(raw: &RawBundle) -> AuditReport {
    check_with(raw, &[operator().public()])
}

pub fn check_with(raw: &RawBundle, trusted: &[PublicKey]) -> AuditReport {
    let reader = Reader {
        trusted,
        grader: &grader,
        commitment: None,
    };
    audit("bundle", raw, &reader)
}

/// Codes of the findings that make the exit code 1.
pub fn errors(report: &AuditReport) -> BTreeSet<Code> {
    report
        .findings
        .iter()
        .filter(|f| f.severity == Severity::Error)
        .map(|f| f.code)
        .collect()
}

pub fn path(name: &str) -> RelPath {
    RelPath::parse(name).unwrap()
}

/// Bytes of a file of the bundle.
pub fn file<'a>(raw: &'a mut RawBundle, name: &str) -> &'a mut Vec<u8> {
    raw.files
        .get_mut(&path(name))
        .unwrap_or_else(|| panic!("the golden bundle has no {name}"))
}

fn canonical_line(value: &Value) -> Vec<u8> {
    let mut bytes = json::canonical(value);
    bytes.push(b'\n');
    bytes
}

/// Edits a JSON file, keeping its canonical form.
pub fn edit_json(raw: &mut RawBundle, name: &str, edit: impl FnOnce(&mut Value)) {
    let bytes = file(raw, name);
    let mut value = json::parse(bytes).unwrap();
    let before = value.clone();
    edit(&mut value);
    assert_ne!(value, before, "the edit of {name} changes nothing");
    *bytes = canonical_line(&value);
}

/// Edits the lines of a JSON Lines file; the header is line 0.
pub fn edit_lines(raw: &mut RawBundle, name: &str, edit: impl FnOnce(&mut Vec<Value>)) {
    let bytes = file(raw, name);
    let mut lines: Vec<Value> = bytes
        .split(|b| *b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| json::parse(l).unwrap())
        .collect();
    let before = lines.clone();
    edit(&mut lines);
    assert_ne!(lines, before, "the edit of {name} changes nothing");
    *bytes = lines.iter().flat_map(canonical_line).collect();
}

/// The events of a bundle.
pub fn events(raw: &RawBundle) -> Vec<EventLine> {
    raw.files[&path("events.jsonl")]
        .split(|b| *b == b'\n')
        .skip(1)
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect()
}

/// Edits the events and numbers them anew, as a forger would.
pub fn edit_events(raw: &mut RawBundle, edit: impl FnOnce(&mut Vec<EventLine>)) {
    let mut lines = events(raw);
    let before = lines.clone();
    edit(&mut lines);
    assert_ne!(lines, before, "the edit of the events changes nothing");
    for (i, line) in lines.iter_mut().enumerate() {
        line.seq = i as u64 + 1;
    }
    let bytes = file(raw, "events.jsonl");
    let head = bytes.iter().position(|b| *b == b'\n').unwrap() + 1;
    bytes.truncate(head);
    for line in &lines {
        bytes.extend(to_line(line).into_bytes());
        bytes.push(b'\n');
    }
}

/// Position of the first event that satisfies `want`.
pub fn at(lines: &[EventLine], want: impl Fn(&EventLine) -> bool) -> usize {
    lines
        .iter()
        .position(want)
        .expect("the golden log has such an event")
}

/// The signed statement as JSON.
pub fn statement(raw: &RawBundle) -> Value {
    let lines = envelope::parse_own_lines(raw.record.as_ref().unwrap()).unwrap();
    json::parse(&lines[0].payload).unwrap()
}

/// Edits the signed statement and signs again.
pub fn resign(raw: &mut RawBundle, edit: impl FnOnce(&mut Value)) {
    let mut value = statement(raw);
    let before = value.clone();
    edit(&mut value);
    assert_ne!(value, before, "the edit of the record changes nothing");
    put_statement(raw, &value);
}

pub fn put_statement(raw: &mut RawBundle, value: &Value) {
    let payload = json::canonical(value);
    raw.record = Some(envelope::sign(&payload, PAYLOAD_TYPE, &[&operator()]));
}

fn salts(raw: &RawBundle) -> BTreeMap<String, [u8; 32]> {
    raw.salts
        .iter()
        .map(|(name, text)| {
            let mut salt = [0u8; 32];
            hex::decode_to_slice(text, &mut salt).unwrap();
            (name.clone(), salt)
        })
        .collect()
}

/// Carries edited evidence through index and record. True when the library's own
/// seal did it; when the evidence cannot even be sealed, the old record is bent
/// to the new index and signed.
pub fn forge(raw: &mut RawBundle) -> bool {
    let signed = statement(raw);
    let tool: Tool =
        serde_json::from_value(signed["predicate"]["provenance"]["tool"].clone()).unwrap();
    let salts = salts(raw);
    match seal(&raw.files, &salts, tool, &operator()) {
        Ok(sealed) => {
            raw.index = Some(sealed.index);
            raw.record = Some(sealed.envelope);
            true
        }
        Err(_) => {
            bend(raw, &raw.files.clone(), &salts);
            false
        }
    }
}

fn bend(raw: &mut RawBundle, files: &Files, salts: &BTreeMap<String, [u8; 32]>) {
    let mut value = statement(raw);
    let run = &value["predicate"]["run"];
    let nonce = run["nonce_hash"].as_str().unwrap().parse().unwrap();
    let index = index::build(run["id"].as_str().unwrap(), nonce, files, salts).to_bytes();
    set_index_digest(&mut value, &index);
    raw.index = Some(index);
    put_statement(raw, &value);
}

/// Makes a statement commit to an index.
pub fn set_index_digest(statement: &mut Value, index: &[u8]) {
    let digest = Sha256Digest::of(index).hex();
    for subject in statement["subject"].as_array_mut().unwrap() {
        if subject["name"] == "evidence/index.json" {
            subject["digest"]["sha256"] = digest.clone().into();
        }
    }
}

/// Edits the index and makes the record commit to it.
pub fn edit_index(raw: &mut RawBundle, edit: impl FnOnce(&mut Value)) {
    let mut value = json::parse(raw.index.as_ref().unwrap()).unwrap();
    edit(&mut value);
    let bytes = canonical_line(&value);
    let mut signed = statement(raw);
    set_index_digest(&mut signed, &bytes);
    raw.index = Some(bytes);
    put_statement(raw, &signed);
}

/// What the real program says.
pub struct Said {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the real program in the folder of the golden bundles.
pub fn verify(args: &[&str]) -> Said {
    verify_in(&golden(), args)
}

pub fn verify_in(dir: &Path, args: &[&str]) -> Said {
    let out = Command::new(env!("CARGO_BIN_EXE_verify"))
        .args(args)
        .current_dir(dir)
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    Said {
        code: out.status.code().unwrap_or(-1),
        stdout: String::from_utf8(out.stdout).unwrap(),
        stderr: String::from_utf8(out.stderr).unwrap(),
    }
}

/// The private folder's name, for tests that make one.
pub const PRIVATE: &str = PRIVATE_DIR;

//! What a rehash found on one replica, and what follows from it.
//!
//! The file list holds facts. Everything else in the report (states, findings,
//! observed root) is derived from them by [`super::judge`], once when the report
//! is written and again by everyone who reads it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::judge::{self, observed_root};
use super::manifest::Manifest;
use super::rehash::ReplicaScan;
use super::values::{Algorithm, Blake3Digest, Mode, Wide};
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::finding::Finding;
use crate::relpath::RelPath;

/// The value of the `format` field.
pub const REPLICA_FORMAT: &str = "runseal.replica/v1";

/// One rehash of one replica (`runseal.replica/v1`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaReport {
    /// Always `runseal.replica/v1`.
    #[schemars(extend("const" = REPLICA_FORMAT))]
    pub format: String,
    /// The replica's name in the inventory.
    pub replica: String,
    /// What the checkpoint is for: `target`, `draft`, `adapter`, `tokenizer`.
    pub role: String,
    /// The run this rehash belongs to, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// SHA-256 of the run's nonce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce_hash: Option<Sha256Digest>,
    /// Digest of the run's plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_digest: Option<Sha256Digest>,
    /// Root of the manifest that the folder was compared with.
    pub manifest_root: Sha256Digest,
    /// Root over every file that was found. Absent when anything could not be
    /// hashed with SHA-256, or was not a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_root: Option<Sha256Digest>,
    /// Boot id of the machine that read the files.
    pub boot_id: String,
    /// When reading began, RFC 3339 in UTC, by that machine's clock.
    pub started: String,
    /// When it ended.
    pub finished: String,
    /// Which digests were computed.
    pub algorithm: Algorithm,
    /// The folder itself.
    pub root_identity: RootIdentity,
    /// Everything found in the folder, in byte order of the paths. Folders are
    /// left out unless the manifest has a file there or they could not be read.
    pub files: Vec<FileReport>,
    /// What does not hold, derived from `files` and the manifest.
    pub findings: Vec<Finding>,
    /// What a second look after the run found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Restat>,
}

/// Device and inode of a replica's folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RootIdentity {
    /// Device number.
    pub dev: Wide,
    /// Inode number.
    pub ino: Wide,
}

/// One entry of the folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileReport {
    /// Where it lies.
    pub path: RelPath,
    /// What it is.
    pub kind: Kind,
    /// Size, times and identity, from the opened file where it was opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stat: Option<FileStat>,
    /// SHA-256 of the bytes read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Sha256Digest>,
    /// BLAKE3 of the bytes read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<Blake3Digest>,
    /// What a symbolic link says, escaped like a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Why there is no digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    /// Derived: does it match the manifest?
    pub state: State,
    /// Derived: why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What an entry of a folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link, never followed.
    Symlink,
    /// A named pipe, never opened.
    Pipe,
    /// A socket, never opened.
    Socket,
    /// A device, never opened.
    Device,
    /// It could not be looked at.
    Unknown,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::Folder => "folder",
            Self::Symlink => "symbolic link",
            Self::Pipe => "named pipe",
            Self::Socket => "socket",
            Self::Device => "device",
            Self::Unknown => "thing of unknown kind",
        })
    }
}

/// What the file system says of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileStat {
    /// Length in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: Mode,
    /// Device number.
    pub dev: Wide,
    /// Inode number.
    pub ino: Wide,
    /// Last change of the content, ns since 1970; anyone can set it.
    pub mtime_ns: Wide,
    /// Last change of content or attributes, ns since 1970, set by the kernel.
    pub ctime_ns: Wide,
}

/// Why an entry has no digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Problem {
    /// The kind of problem.
    pub kind: ProblemKind,
    /// What happened, in words.
    pub detail: String,
}

/// The kinds of [`Problem`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// It changed between the first look at it and the last.
    ChangedDuringRead,
    /// The system refused.
    CouldNotRead,
    /// It does not match the manifest anyway and reading it could take for ever.
    TooLarge,
    /// It has not moved since an earlier rehash, and a full one was not asked for.
    NotReRead,
}

/// Whether one file matches the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its bytes were read and have the pinned size and digest.
    Verified,
    /// It is not what the manifest says.
    Mismatch,
    /// Nothing is known.
    NotChecked,
}

/// Whether one replica matches the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Integrity {
    /// Every file of the manifest was read and matches; nothing else is there.
    Verified,
    /// At least one file is other than pinned, missing or extra.
    Mismatch,
    /// Nothing was found wrong, but not everything was looked at.
    NotChecked {
        /// Why not.
        reason: String,
    },
}

impl fmt::Display for Integrity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Verified => "verified",
            Self::Mismatch => "mismatch",
            Self::NotChecked { .. } => "not checked",
        })
    }
}

/// A second look at the folder, without reading the files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Restat {
    /// When, RFC 3339 in UTC.
    pub finished: String,
    /// Derived: nothing changed.
    pub unchanged: bool,
    /// What changed.
    pub changed: Vec<StatChange>,
}

/// One change that a [`Restat`] saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatChange {
    /// The path, or `.` for the folder itself.
    pub path: String,
    /// What is different, in words.
    pub what: String,
}

/// What a report says beyond the scan: names and times that only the caller knows.
#[derive(Debug, Clone)]
pub struct ReportContext {
    /// The replica's name.
    pub replica: String,
    /// What the checkpoint is for.
    pub role: String,
    /// The run, when there is one.
    pub run_id: Option<String>,
    /// SHA-256 of the run's nonce.
    pub nonce_hash: Option<Sha256Digest>,
    /// Digest of the run's plan.
    pub plan_digest: Option<Sha256Digest>,
    /// Boot id of this machine, see [`super::boot_id`].
    pub boot_id: String,
    /// When the scan began, RFC 3339 in UTC.
    pub started: String,
    /// When it ended.
    pub finished: String,
}

/// The file was left out because it has not moved since an earlier rehash.
pub fn is_not_re_read(file: &FileReport) -> bool {
    let problem = file.problem.as_ref();
    problem.is_some_and(|p| p.kind == ProblemKind::NotReRead)
}

impl ReplicaScan {
    /// Judges the facts against the manifest they were gathered for.
    pub fn into_report(self, manifest: &Manifest, context: ReportContext) -> ReplicaReport {
        let mut files = self.files;
        let findings = judge::judge(
            &subject(&context.replica, &context.role),
            manifest,
            self.algorithm,
            &mut files,
        );
        ReplicaReport {
            format: REPLICA_FORMAT.to_owned(),
            replica: context.replica,
            role: context.role,
            run_id: context.run_id,
            nonce_hash: context.nonce_hash,
            plan_digest: context.plan_digest,
            manifest_root: manifest.root(),
            observed_root: observed_root(&files),
            boot_id: context.boot_id,
            started: context.started,
            finished: context.finished,
            algorithm: self.algorithm,
            root_identity: self.root_identity,
            files,
            findings,
            after: None,
        }
    }
}

/// Whether the replica holds the pinned checkpoint, from the digests in the report
/// and the manifest alone; states and findings in the report are not looked at.
///
/// Only SHA-256 counts: the root that plans pin does not commit to BLAKE3.
pub fn derive_integrity(manifest: &Manifest, report: &ReplicaReport) -> Integrity {
    let integrity = integrity_of_files(manifest, report);
    if integrity == Integrity::Verified && report.algorithm == Algorithm::Blake3 {
        return Integrity::NotChecked {
            reason: "only BLAKE3 was computed, and the manifest root commits to SHA-256".to_owned(),
        };
    }
    integrity
}

/// As [`derive_integrity`], but satisfied with the manifest file's BLAKE3 digests
/// when only those were computed: for readers who trust the file as a whole.
pub fn integrity_of_files(manifest: &Manifest, report: &ReplicaReport) -> Integrity {
    let not_checked = |reason: String| Integrity::NotChecked { reason };
    if report.manifest_root != manifest.root() {
        return not_checked("the report is about another manifest".to_owned());
    }
    if !in_order(&report.files) {
        return not_checked("the report lists a path twice or out of order".to_owned());
    }
    let mut files = report.files.clone();
    let findings = judge::judge(
        &subject(&report.replica, &report.role),
        manifest,
        report.algorithm,
        &mut files,
    );
    let missing = findings.iter().any(|f| f.code == Code::FileMissing);
    if missing || files.iter().any(|f| f.state == State::Mismatch) {
        return Integrity::Mismatch;
    }
    let left_out = files.iter().filter(|f| is_not_re_read(f)).count();
    let unknown = |f: &&FileReport| f.state == State::NotChecked && !is_not_re_read(f);
    if left_out > 0 && files.iter().find(unknown).is_none() {
        let all = manifest.file_count();
        return not_checked(format!("{left_out} of {all} files not re-read"));
    }
    if let Some(file) = files.iter().find(unknown) {
        let why = file.reason.as_deref().unwrap_or("no reason given");
        return not_checked(format!("{}: {why}", file.path));
    }
    // Counted and not inferred from the absence of complaints.
    let verified = files.iter().filter(|f| f.state == State::Verified).count();
    if verified != manifest.file_count() {
        let all = manifest.file_count();
        return not_checked(format!("{verified} of {all} files were looked at"));
    }
    Integrity::Verified
}

/// Does the report follow from its own facts, and is it about this manifest?
///
/// Every finding is a `replica-report-mismatch`: something in the report was
/// edited, or written by a program that judges differently. Mismatching weights,
/// honestly reported, give no finding here.
pub fn check_report(manifest: &Manifest, report: &ReplicaReport) -> Vec<Finding> {
    let mut out = Vec::new();
    let mut differs = |field: &str, detail: &str, expected: String, found: String| {
        if expected != found {
            let subject = format!("{}/{field}", report.replica);
            out.push(
                Finding::new(Code::ReplicaReportMismatch, subject, detail).values(expected, found),
            );
        }
    };
    let text = |v: Option<Sha256Digest>| v.map_or("none".to_owned(), |d| d.hex());
    differs(
        "format",
        "The report is in another format.",
        REPLICA_FORMAT.to_owned(),
        report.format.clone(),
    );
    differs(
        "manifest_root",
        "The report is about another manifest.",
        manifest.root().hex(),
        report.manifest_root.hex(),
    );
    differs(
        "observed_root",
        "The observed root is not that of the files in the report.",
        text(observed_root(&report.files)),
        text(report.observed_root),
    );
    differs(
        "files",
        "The paths are not in strictly ascending order.",
        "in order".to_owned(),
        if in_order(&report.files) {
            "in order"
        } else {
            "out of order"
        }
        .to_owned(),
    );
    differs(
        "started",
        "The times are not RFC 3339 in UTC, or do not run forwards.",
        "in order".to_owned(),
        times_run_forwards(report),
    );
    if let Some(after) = &report.after {
        differs(
            "after.unchanged",
            "The second look lists changes that it denies, or the reverse.",
            after.changed.is_empty().to_string(),
            after.unchanged.to_string(),
        );
    }

    let mut files = report.files.clone();
    let findings = judge::judge(
        &subject(&report.replica, &report.role),
        manifest,
        report.algorithm,
        &mut files,
    );
    for (derived, stated) in files.iter().zip(&report.files) {
        differs(
            &stated.path.to_string(),
            "The state of the file does not follow from what was read.",
            state_in_words(derived),
            state_in_words(stated),
        );
        if let Some(why) = impossible(stated, report.algorithm) {
            differs(
                &stated.path.to_string(),
                "The entry contradicts itself.",
                "a possible entry".to_owned(),
                why.to_owned(),
            );
        }
    }
    if findings != report.findings {
        differs(
            "findings",
            "The findings are not those that follow from the files.",
            codes_in_words(&findings),
            // Same codes, other words: still told apart.
            format!("{} (as stated)", codes_in_words(&report.findings)),
        );
    }
    out
}

/// How findings name a replica's checkpoint: `r2`, or `r2:draft`. No replica's
/// name holds a colon.
pub(super) fn subject(replica: &str, role: &str) -> String {
    match role {
        "target" => replica.to_owned(),
        other => format!("{replica}:{other}"),
    }
}

fn in_order(files: &[FileReport]) -> bool {
    files.windows(2).all(|w| w[0].path < w[1].path)
}

fn times_run_forwards(report: &ReplicaReport) -> String {
    let mut last: Option<jiff::Timestamp> = None;
    let after = report.after.as_ref().map(|a| &a.finished);
    for text in [&report.started, &report.finished].into_iter().chain(after) {
        match text.parse::<jiff::Timestamp>() {
            Ok(t) if text.ends_with('Z') && last.is_none_or(|l| l <= t) => last = Some(t),
            _ => return text.clone(),
        }
    }
    "in order".to_owned()
}

fn state_in_words(file: &FileReport) -> String {
    let state = match file.state {
        State::Verified => "verified",
        State::Mismatch => "mismatch",
        State::NotChecked => "not checked",
    };
    match &file.reason {
        Some(reason) => format!("{state}: {reason}"),
        None => state.to_owned(),
    }
}

fn codes_in_words(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "none".to_owned();
    }
    let each: Vec<_> = findings
        .iter()
        .map(|f| format!("{} {}", f.code, f.subject))
        .collect();
    each.join(", ")
}

/// Facts that no rehash writes down together.
fn impossible(file: &FileReport, algorithm: Algorithm) -> Option<&'static str> {
    let digest = file.sha256.is_some() || file.blake3.is_some();
    if digest && file.kind != Kind::File {
        return Some("a digest of something that is not a file");
    }
    if digest && file.problem.is_some() {
        return Some("a digest and a reason why there is none");
    }
    if digest && file.stat.is_none() {
        return Some("a digest of a file that was never looked at");
    }
    if file.sha256.is_some() && !algorithm.sha256() || file.blake3.is_some() && !algorithm.blake3()
    {
        return Some("a digest that this rehash did not compute");
    }
    if file.target.is_some() && file.kind != Kind::Symlink {
        return Some("a link target on something that is not a link");
    }
    None
}

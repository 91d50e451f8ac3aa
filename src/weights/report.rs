//! What a rehash found on one replica, and what follows from it.
//!
//! The file list, the layout and the structure hold facts. Everything else in the report (states, findings,
//! observed root) is derived from them by [`super::judge`], once when the report
//! is written and again by everyone who reads it.

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::hashing::Reading;
use super::judge::{self, Facts, observed_root};
use super::layout::Layout;
use super::manifest::Listing;
use super::pieces::PieceDigests;
use super::rehash::ReplicaScan;
use super::structure::Structure;
use super::values::{Algorithm, Blake3Digest, GitId, Mode, Wide};
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
    /// SHA-256 of the run's nonce, or of a fresh one where another machine asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce_hash: Option<Sha256Digest>,
    /// Digest of the run's plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_digest: Option<Sha256Digest>,
    /// Root of the manifest that the folder was compared with. Absent when the
    /// manifest gives none, because sizes or SHA-256 of some files are not in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest_root: Option<Sha256Digest>,
    /// Root over every file that was found, ignored ones aside. Absent when
    /// anything could not be hashed with SHA-256, or was not a file.
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
    /// How the checkpoint lies in it; absent in early reports, which were of flat
    /// folders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// The manifest's empty folders that are there.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub empty_folders: BTreeSet<RelPath>,
    /// What the weight files say about themselves; absent in early reports, which
    /// did not look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structure: Option<Structure>,
    /// How the files were read, and what that did to the page cache; absent in early
    /// reports.
    #[serde(default, skip_serializing_if = "Reading::is_unknown")]
    pub reading: Reading,
    /// Everything found in the folder, in byte order of the paths. Folders are
    /// left out unless the manifest has a file there or ignores them, or they could
    /// not be read.
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
    /// Git blob id of the bytes read, where something had to be compared with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_blob: Option<GitId>,
    /// Digests of its pieces, where the manifest lists it in shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pieces: Option<PieceDigests>,
    /// In a hub cache, the blob that the snapshot's link leads to; kind, stat and
    /// digests are the blob's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<String>,
    /// What a symbolic link says, escaped like a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Why there is no digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    /// Derived: does it match the manifest?
    pub state: State,
    /// Derived: which digests were compared, when that is not just the ones that
    /// the rehash computed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compared: Vec<Compared>,
    /// Derived: why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A digest that a file was compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compared {
    /// SHA-256.
    Sha256,
    /// BLAKE3.
    Blake3,
    /// The git blob id of its content, a SHA-1.
    GitBlob,
    /// The git blob id of the git-lfs pointer to its content.
    GitPointer,
    /// The digests of its shards.
    Shards,
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha256 => "SHA-256",
            Self::Blake3 => "BLAKE3",
            Self::GitBlob => "git blob id",
            Self::GitPointer => "git-lfs pointer's blob id",
            Self::Shards => "shards",
        })
    }
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
    /// A link of a snapshot leads to a blob that the cache does not have.
    Dangling,
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
    /// The manifest says that it is not part of the checkpoint; not looked into.
    Ignored,
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
    pub fn into_report(
        self,
        manifest: &impl AsRef<Listing>,
        context: ReportContext,
    ) -> ReplicaReport {
        let manifest = manifest.as_ref();
        let mut files = self.files;
        let expected = manifest.empty_folders().iter();
        let empty_folders = expected.filter(|p| self.folders.contains_key(*p)).cloned();
        let empty_folders = empty_folders.collect();
        let subject = subject(&context.replica, &context.role);
        let facts = Facts {
            subject: &subject,
            algorithm: self.algorithm,
            layout: Some(&self.layout),
            structure: Some(&self.structure),
            empty_folders: &empty_folders,
        };
        let findings = judge::judge(facts, manifest, &mut files);
        ReplicaReport {
            format: REPLICA_FORMAT.to_owned(),
            replica: context.replica,
            role: context.role,
            run_id: context.run_id,
            nonce_hash: context.nonce_hash,
            plan_digest: context.plan_digest,
            manifest_root: manifest.root(),
            observed_root: observed_root(manifest, &files),
            boot_id: context.boot_id,
            started: context.started,
            finished: context.finished,
            algorithm: self.algorithm,
            root_identity: self.root_identity,
            layout: Some(self.layout),
            empty_folders,
            structure: Some(self.structure),
            reading: self.reading,
            files,
            findings,
            after: None,
        }
    }
}

/// Whether the replica holds the pinned checkpoint, from the digests in the report
/// and the manifest alone; states and findings in the report are not looked at.
///
/// Where the manifest has a root only SHA-256 counts: the root does not commit to
/// BLAKE3. Foreign lists without one are believed as a whole.
pub fn derive_integrity(manifest: &impl AsRef<Listing>, report: &ReplicaReport) -> Integrity {
    let manifest = manifest.as_ref();
    let not_checked = |reason: String| Integrity::NotChecked { reason };
    if manifest.is_absent() {
        return not_checked("there is no manifest to compare with".to_owned());
    }
    if report.manifest_root != manifest.root() {
        return not_checked("the report is about another manifest".to_owned());
    }
    if !in_order(&report.files) {
        return not_checked("the report lists a path twice or out of order".to_owned());
    }
    let mut files = report.files.clone();
    let subject = subject(&report.replica, &report.role);
    let findings = judge::judge(Facts::of(report, &subject), manifest, &mut files);
    integrity_of_judged(manifest, report.algorithm, &files, &findings)
}

/// The pinned root was not compared, whatever else was.
pub(super) fn not_against_root(manifest: &Listing, algorithm: Algorithm) -> bool {
    algorithm == Algorithm::Blake3 && manifest.root().is_some()
}

/// As [`derive_integrity`], of files that were judged just now, in order of their
/// paths and against this manifest.
pub(super) fn integrity_of_judged(
    manifest: &Listing,
    algorithm: Algorithm,
    files: &[FileReport],
    findings: &[Finding],
) -> Integrity {
    let not_checked = |reason: String| Integrity::NotChecked { reason };
    if manifest.is_absent() {
        return not_checked("there is no manifest to compare with".to_owned());
    }
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
    if not_against_root(manifest, algorithm) {
        return not_checked(
            "only BLAKE3 was computed, and the manifest root commits to SHA-256".to_owned(),
        );
    }
    Integrity::Verified
}

/// How findings name a replica's checkpoint: `r2`, or `r2:draft`. No replica's
/// name holds a colon.
pub(super) fn subject(replica: &str, role: &str) -> String {
    match role {
        "target" => replica.to_owned(),
        other => format!("{replica}:{other}"),
    }
}

pub(super) fn in_order(files: &[FileReport]) -> bool {
    files.windows(2).all(|w| w[0].path < w[1].path)
}

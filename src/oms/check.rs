//! A folder against a bundle.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bundle::{Bundle, PAYLOAD_TYPE, SignatureState};
use super::listing::{Expected, Listing};
use super::statement::{Method, Statement};
use crate::codes::Code;
use crate::digest::{Sha256Digest, tree_root};
use crate::ecdsa_keys::EcdsaPublicKey;
use crate::finding::{Check, Finding, Outcome, Severity, all_good};
use crate::relpath::RelPath;
use crate::weights::{Kind, PieceFile, PieceHash, ProblemKind, Progress, Wide, scan_pieces};

/// What a check of a folder against a bundle found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OmsReport {
    /// What was asked, and the outcome: `oms-bundle`, `oms-signature`,
    /// `oms-statement`, `oms-files`.
    pub checks: Vec<Check>,
    /// Everything that does not hold, and notes.
    pub findings: Vec<Finding>,
    /// Fingerprint of the key that the signature verifies with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signer: Option<String>,
    /// What the statement says, once it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statement: Option<Summary>,
    /// Identity of the files found (`runseal-tree/v1` over the listed files).
    /// Only when all match and were hashed whole with SHA-256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_root: Option<Sha256Digest>,
    /// How many of the listed files match.
    pub files_verified: usize,
    /// Bytes of those.
    pub bytes_verified: u64,
    /// Every required check passed.
    pub verified: bool,
}

/// The readable part of a statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// The model's name by the signer.
    pub name: String,
    /// The subject's digest. It does not commit to names.
    pub oms_root: Sha256Digest,
    /// `files`, or `shards of N bytes`.
    pub method: String,
    /// `sha256` or `blake3`.
    pub hash: String,
    /// How many files are listed.
    pub files: usize,
    /// What the signer left out.
    pub ignore_paths: Vec<String>,
}

/// Checks the folder `root` against the bytes of a bundle, with the key that the
/// reader trusts. Without a key the files are compared all the same, but the
/// result is never "verified". `own` is the device and inode of the bundle's file:
/// when it lies in the folder, no bundle can list it.
pub fn check_folder(
    root: &Path,
    bundle: &[u8],
    key: Option<&EcdsaPublicKey>,
    own: Option<(u64, u64)>,
    progress: &dyn Progress,
) -> OmsReport {
    let mut run = Run::default();
    run.go(root, bundle, key, own, progress);
    let checks = ["oms-bundle", "oms-signature", "oms-statement", "oms-files"]
        .map(|name| Check {
            name: name.to_owned(),
            required: true,
            outcome: run.outcomes.remove(name).unwrap_or(Outcome::NotPerformed {
                reason: "an earlier check failed".to_owned(),
            }),
        })
        .to_vec();
    OmsReport {
        verified: all_good(&checks, &run.findings),
        checks,
        ..run.into_report()
    }
}

#[derive(Default)]
struct Run {
    outcomes: BTreeMap<&'static str, Outcome>,
    findings: Vec<Finding>,
    signer: Option<String>,
    statement: Option<Summary>,
    tree_root: Option<Sha256Digest>,
    files_verified: usize,
    bytes_verified: u64,
}

impl Run {
    fn into_report(self) -> OmsReport {
        OmsReport {
            checks: Vec::new(),
            findings: self.findings,
            signer: self.signer,
            statement: self.statement,
            tree_root: self.tree_root,
            files_verified: self.files_verified,
            bytes_verified: self.bytes_verified,
            verified: false,
        }
    }

    fn passed(&mut self, name: &'static str) {
        self.outcomes.insert(name, Outcome::Passed);
    }

    fn failed(&mut self, name: &'static str, findings: impl IntoIterator<Item = Finding>) {
        self.outcomes.insert(name, Outcome::Failed);
        self.findings.extend(findings);
    }

    fn go(
        &mut self,
        root: &Path,
        bytes: &[u8],
        key: Option<&EcdsaPublicKey>,
        own: Option<(u64, u64)>,
        progress: &dyn Progress,
    ) {
        let bundle = match Bundle::parse(bytes) {
            Ok(bundle) => bundle,
            Err(finding) => return self.failed("oms-bundle", [finding]),
        };
        self.passed("oms-bundle");
        match bundle.check_signature(key) {
            (SignatureState::Valid, _) => {
                self.signer = key.map(EcdsaPublicKey::fingerprint);
                self.passed("oms-signature");
            }
            // What nobody signed is not looked at any further.
            (SignatureState::Invalid, findings) => {
                return self.failed("oms-signature", findings);
            }
            (SignatureState::NotChecked, _) => {
                let reason = "signature not checked: no public key was given".to_owned();
                let outcome = Outcome::NotPerformed { reason };
                self.outcomes.insert("oms-signature", outcome);
            }
        }
        if bundle.payload_type() != PAYLOAD_TYPE {
            let finding = Finding::new(Code::OmsUnsupported, "bundle", "another payload type");
            let finding = finding.values(PAYLOAD_TYPE, bundle.payload_type());
            return self.failed("oms-statement", [finding]);
        }
        let statement = match Statement::parse(bundle.payload()) {
            Ok(statement) => statement,
            Err(finding) => return self.failed("oms-statement", [finding]),
        };
        let listing = match Listing::of(&statement) {
            Ok(listing) => listing,
            Err(findings) => return self.failed("oms-statement", findings),
        };
        self.passed("oms-statement");
        self.statement = Some(Summary {
            name: statement.name.clone(),
            oms_root: statement.root,
            method: statement.serialization.method.to_string(),
            hash: statement.serialization.hash.name().to_owned(),
            files: listing.files.len(),
            ignore_paths: statement.serialization.ignore_paths.clone(),
        });
        let detail = "compare models by their manifest's root";
        let note = Finding::new(Code::OmsRootWithoutNames, "statement", detail);
        self.findings.push(note);
        self.files(root, &statement, &listing, own, progress);
    }

    fn files(
        &mut self,
        root: &Path,
        statement: &Statement,
        listing: &Listing,
        own: Option<(u64, u64)>,
        progress: &dyn Progress,
    ) {
        let parameters = &statement.serialization;
        let length = match parameters.method {
            Method::Files => None,
            Method::Shards(length) => Some(length),
        };
        let follow = parameters.allow_symlinks;
        let choose = |all: &[PieceFile]| {
            let folder = FolderView::new(all, follow, length.is_some());
            let listed = listing.files.keys();
            // Links may lead to files that are not listed themselves.
            listed
                .map(|path| match folder.destination(&path.to_string()) {
                    Link::To(file) if follow => file.entry.path.clone(),
                    _ => path.clone(),
                })
                .collect()
        };
        let found = match scan_pieces(root, parameters.hash, length, &choose, progress) {
            Ok(found) => found,
            Err(e) => {
                let finding = Finding::new(Code::ReplicaUnreachable, "folder", e.to_string());
                return self.failed("oms-files", [finding]);
            }
        };
        let folder = FolderView::new(&found, follow, length.is_some());
        let mut findings = Vec::new();
        for (path, expected) in &listing.files {
            match folder.compare(path, expected) {
                Ok(size) => {
                    self.files_verified += 1;
                    self.bytes_verified += size;
                }
                Err(finding) => findings.push((path.clone(), finding)),
            }
        }
        for file in &found {
            let path = &file.entry.path;
            let known = listing.files.contains_key(path);
            let empty_handed = file.entry.kind == Kind::Folder && file.entry.problem.is_none();
            if known || empty_handed {
                continue;
            }
            let finding = if is_same_file(file, own) {
                note_ignored(path, "the bundle itself")
            } else if listing.ignores(path) {
                note_ignored(path, "the signature does not cover it")
            } else {
                folder.unlisted(file)
            };
            findings.push((path.clone(), finding));
        }
        findings.sort_by(|a, b| a.0.cmp(&b.0));
        let findings: Vec<_> = findings.into_iter().map(|(_, f)| f).collect();
        let bad = findings.iter().any(|f| f.severity == Severity::Error);
        // Counted and not inferred from the absence of complaints.
        if bad || self.files_verified != listing.files.len() {
            return self.failed("oms-files", findings);
        }
        self.findings.extend(findings);
        self.passed("oms-files");
        if length.is_none() && parameters.hash == PieceHash::Sha256 {
            self.tree_root = folder.tree_root(listing);
        }
    }
}

fn note_ignored(path: &RelPath, why: &str) -> Finding {
    Finding::new(Code::OmsPathIgnored, path.to_string(), why)
}

fn is_same_file(file: &PieceFile, own: Option<(u64, u64)>) -> bool {
    let own = own.map(|(dev, ino)| (Wide(dev.into()), Wide(ino.into())));
    let here = file.entry.stat.map(|s| (s.dev, s.ino));
    file.entry.kind == Kind::File && here.is_some() && here == own
}

/// What was found in the folder, by name.
struct FolderView<'a> {
    entries: BTreeMap<String, &'a PieceFile>,
    follow: bool,
    shards: bool,
}

enum Link<'a> {
    To(&'a PieceFile),
    Nowhere,
    Outside,
}

impl<'a> FolderView<'a> {
    fn new(found: &'a [PieceFile], follow: bool, shards: bool) -> Self {
        Self {
            entries: found
                .iter()
                .map(|f| (f.entry.path.to_string(), f))
                .collect(),
            follow,
            shards,
        }
    }

    /// The size of a file that is as listed.
    fn compare(&self, path: &RelPath, expected: &Expected) -> Result<u64, Finding> {
        let finding = |code, why: &str| Finding::new(code, path.to_string(), why);
        let Some(mut file) = self.entries.get(&path.to_string()).copied() else {
            return Err(self.missing(path));
        };
        if file.entry.kind == Kind::Symlink {
            file = match self.destination(&path.to_string()) {
                Link::Outside => {
                    let why =
                        "a symbolic link out of the folder, or in a circle; it was not followed";
                    return Err(finding(Code::SymlinkEscapes, why));
                }
                _ if !self.follow => {
                    let why = "a symbolic link stands where a file was signed";
                    return Err(finding(Code::SymlinkInFlatFolder, why));
                }
                Link::Nowhere => {
                    return Err(finding(Code::FileMissing, "a symbolic link to nothing"));
                }
                Link::To(file) => file,
            };
        }
        if file.entry.kind != Kind::File {
            let why = format!("a {} stands where a file was signed", file.entry.kind);
            return Err(finding(Code::FileType, &why));
        }
        if let Some(problem) = &file.entry.problem {
            let code = match problem.kind {
                ProblemKind::ChangedDuringRead => Code::ChangedDuringRead,
                _ => Code::CouldNotRead,
            };
            return Err(finding(code, &problem.detail));
        }
        let (Some(stat), Some(digests)) = (file.entry.stat, &file.digests) else {
            return Err(finding(Code::CouldNotRead, "it was not read"));
        };
        if let Some(size) = expected.size.filter(|s| *s != stat.size) {
            return Err(
                finding(Code::SizeMismatch, "it is not as long as its shards")
                    .values(size, stat.size),
            );
        }
        if *digests == expected.digests {
            return Ok(stat.size);
        }
        let pairs = expected.digests.iter().zip(digests).enumerate();
        let differs = pairs.into_iter().find(|(_, (a, b))| a != b);
        Err(match differs {
            Some((i, (want, have))) => {
                let why = match self.shards {
                    true => format!("shard {} of {} differs", i + 1, expected.digests.len()),
                    false => "its bytes are not those that were signed".to_owned(),
                };
                finding(Code::DigestMismatch, &why).values(hex::encode(want), hex::encode(have))
            }
            None => finding(Code::DigestMismatch, "it has another number of shards"),
        })
    }

    fn missing(&self, path: &RelPath) -> Finding {
        let text = path.to_string();
        let closed = text.match_indices('/').find_map(|(end, _)| {
            let folder = self.entries.get(&text[..end])?;
            folder.entry.problem.as_ref()
        });
        match closed {
            Some(problem) => {
                let why = format!("its folder could not be read: {}", problem.detail);
                Finding::new(Code::CouldNotRead, text, why)
            }
            None => Finding::new(Code::FileMissing, text, "it is not there"),
        }
    }

    fn unlisted(&self, file: &PieceFile) -> Finding {
        let entry = &file.entry;
        let (code, why) = match entry.kind {
            Kind::File if self.shards && entry.stat.is_some_and(|s| s.size == 0) => (
                Code::OmsEmptyFile,
                "it is empty, and a signature by shards cannot list it".to_owned(),
            ),
            Kind::File => (Code::FileExtra, "the bundle does not list it".to_owned()),
            Kind::Symlink => match self.destination(&entry.path.to_string()) {
                Link::Outside => (
                    Code::SymlinkEscapes,
                    "a symbolic link out of the folder, or in a circle; it was not followed"
                        .to_owned(),
                ),
                _ => (
                    Code::FileExtra,
                    "a symbolic link that the bundle does not list".to_owned(),
                ),
            },
            Kind::Folder | Kind::Unknown => {
                let problem = entry.problem.as_ref().map(|p| p.detail.clone());
                (
                    Code::CouldNotRead,
                    problem.unwrap_or_else(|| "it could not be looked at".to_owned()),
                )
            }
            other => (
                Code::FileType,
                format!("a {other} that the bundle does not list"),
            ),
        };
        Finding::new(code, entry.path.to_string(), why)
    }

    /// Where a link leads, by the names alone: nothing is opened. Works on escaped
    /// text, in which `/`, `.` and `..` stand for themselves.
    fn destination(&self, link: &str) -> Link<'a> {
        let mut place: Vec<&str> = Vec::new();
        let mut ahead: Vec<&str> = link.rsplit('/').collect();
        let mut hops = 0;
        while let Some(part) = ahead.pop() {
            match part {
                "" | "." => continue,
                ".." => {
                    if place.pop().is_none() {
                        return Link::Outside;
                    }
                    continue;
                }
                name => place.push(name),
            }
            let here = self.entries.get(&place.join("/"));
            if let Some(target) = here.and_then(|f| f.entry.target.as_deref()) {
                hops += 1;
                // The kernel gives up after as many.
                if hops > 40 || target.starts_with('/') {
                    return Link::Outside;
                }
                place.pop();
                ahead.extend(target.rsplit('/'));
            }
        }
        match self.entries.get(&place.join("/")) {
            Some(file) => Link::To(file),
            None => Link::Nowhere,
        }
    }

    /// The identity of the listed files, all of which match.
    fn tree_root(&self, listing: &Listing) -> Option<Sha256Digest> {
        let entries: Option<Vec<_>> = listing
            .files
            .iter()
            .map(|(path, expected)| {
                let mut file = *self.entries.get(&path.to_string())?;
                if file.entry.kind == Kind::Symlink {
                    file = match self.destination(&path.to_string()) {
                        Link::To(file) => file,
                        _ => return None,
                    };
                }
                let digest = Sha256Digest(*expected.digests.first()?);
                Some((path, file.entry.stat?.size, digest))
            })
            .collect();
        entries.map(tree_root)
    }
}

//! A folder against a bundle.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bundle::{Bundle, SignatureState};
use super::folder::{FolderView, Link};
use super::listing::Listing;
use super::manifest::read_statement;
use super::statement::{Method, Statement};
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::ecdsa_keys::EcdsaPublicKey;
use crate::finding::{Check, Finding, Outcome, Severity, all_good};
use crate::relpath::RelPath;
use crate::weights::{
    GitId, Kind, Pace, PieceFile, PieceHash, Place, Progress, Unreachable, Wanted, Wide,
    scan_pieces,
};

/// What a check of a folder against a bundle found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OmsReport {
    /// What was asked, and the outcome: `oms-bundle`, `oms-signature`,
    /// `oms-statement`, `oms-files`, and `structure`, which is not required: a
    /// problem in it is a finding of its own.
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

/// What is checked, beside the bundle.
#[derive(Debug, Clone, Copy)]
pub struct Where<'a> {
    /// A folder, a hub cache or one of its snapshots, or a GGUF file.
    pub path: &'a Path,
    /// Which revision to look at, in a hub cache.
    pub revision: Option<&'a str>,
    /// Device and inode of the bundle's file: when it lies in the folder, no bundle
    /// can list it.
    pub own: Option<(u64, u64)>,
    /// Paths that the reader takes as not part of the model; shown in the report.
    pub ignore: &'a [RelPath],
    /// How hard the disk and the cores may be worked.
    pub pace: Pace,
}

impl<'a> Where<'a> {
    /// A path, and nothing more to say about it.
    pub fn at(path: &'a Path) -> Self {
        Self {
            path,
            revision: None,
            own: None,
            ignore: &[],
            pace: Pace::default(),
        }
    }
}

/// Checks a checkpoint against the bytes of a bundle, with the key that the reader
/// trusts. Without a key the files are compared all the same, but the result is
/// never "verified".
pub fn check_folder(
    at: Where,
    bundle: &[u8],
    key: Option<&EcdsaPublicKey>,
    progress: &dyn Progress,
) -> OmsReport {
    let mut run = Run::default();
    run.go(at, bundle, key, progress);
    let names = [
        "oms-bundle",
        "oms-signature",
        "oms-statement",
        "oms-files",
        "structure",
    ];
    let checks = names
        .map(|name| Check {
            name: name.to_owned(),
            required: name != "structure",
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
        at: Where,
        bytes: &[u8],
        key: Option<&EcdsaPublicKey>,
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
        let statement = match read_statement(&bundle) {
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
        self.files(at, &statement, &listing, progress);
    }

    fn files(
        &mut self,
        at: Where,
        statement: &Statement,
        listing: &Listing,
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
        let wanted = Wanted {
            asked: at.revision,
            pinned: None,
        };
        let found = Place::locate(at.path, wanted)
            .map_err(Unreachable)
            .and_then(|place| {
                scan_pieces(place, parameters.hash, length, &choose, at.pace, progress)
            });
        let scan = match found {
            Ok(scan) => scan,
            Err(e) => {
                let finding = Finding::new(e.0.code(), "folder", e.to_string());
                return self.failed("oms-files", [finding]);
            }
        };
        let found = &scan.files;
        let folder = FolderView::new(found, follow, length.is_some());
        let left_out = |file: &PieceFile| {
            let path = &file.entry.path;
            if listing.files.contains_key(path) {
                None
            } else if is_same_file(file, at.own) {
                Some("the bundle itself")
            } else if listing.ignores(path) {
                Some("the signature does not cover it")
            } else if at.ignore.iter().any(|top| top.holds(path)) {
                Some("you left it out with --ignore")
            } else {
                None
            }
        };
        let mut findings = Vec::new();
        for (path, expected) in &listing.files {
            match folder.compare(path, expected) {
                Ok(size) => {
                    self.files_verified += 1;
                    self.bytes_verified += size;
                }
                Err(finding) => findings.push((Some(path.clone()), finding)),
            }
        }
        for file in found {
            let path = &file.entry.path;
            let known = listing.files.contains_key(path);
            let empty_handed = file.entry.kind == Kind::Folder && file.entry.problem.is_none();
            if known || empty_handed {
                continue;
            }
            let finding = match left_out(file) {
                Some(why) => note_ignored(path, why),
                None => folder.unlisted(file),
            };
            findings.push((Some(path.clone()), finding));
        }
        let bad = findings.iter().any(|(_, f)| f.severity == Severity::Error);
        let part = found.iter().filter(|file| left_out(file).is_none());
        let (part, links) = folder.followed(part);
        let pinned = at.revision.filter(|r| r.parse::<GitId>().is_ok());
        let (structure, beside) = scan.beside(&part, &links, pinned);
        self.outcomes.insert("structure", structure.outcome());
        findings.extend(beside);
        // A second look, as after a rehash: what was read first may be another file by now.
        let moved = scan.moved(at.path);
        let bad = bad || !moved.is_empty();
        findings.extend(moved.into_iter().map(|change| {
            let detail = format!("{} while the folder was read", change.what);
            let finding = Finding::new(Code::ChangedDuringRead, &change.path, detail);
            (RelPath::parse(&change.path).ok(), finding)
        }));
        // Stable: findings of one file stay in the order of the checks, and what is
        // about the whole folder comes first.
        findings.sort_by(|a, b| a.0.cmp(&b.0));
        self.findings.extend(findings.into_iter().map(|(_, f)| f));
        // Counted and not inferred from the absence of complaints.
        if bad || self.files_verified != listing.files.len() {
            return self.failed("oms-files", []);
        }
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

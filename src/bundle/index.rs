//! `index.json`: every evidence file of a bundle, by digest or commitment.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::codes::Code;
use crate::digest::{Sha256Digest, commitment};
use crate::finding::Finding;
use crate::json;
use crate::relpath::RelPath;

/// Value of [`Index::format`].
pub const FORMAT: &str = "runseal.index/v1";
/// Name of the index in a bundle.
pub const INDEX_FILE: &str = "index.json";
/// Name of the signed record in a bundle.
pub const RECORD_FILE: &str = "record.intoto.jsonl";
/// Folder that is never published and never indexed.
pub const PRIVATE_DIR: &str = "private";
/// File with the salts of all commitments.
pub const SALTS_FILE: &str = "private/salts.json";

/// The list of evidence files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// Always [`FORMAT`].
    pub format: String,
    /// The run.
    pub run_id: String,
    /// Hash of its nonce.
    pub nonce_hash: Sha256Digest,
    /// Files, sorted by path.
    pub files: Vec<Entry>,
}

/// One evidence file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Path in the bundle.
    pub path: RelPath,
    /// How its bytes are fixed.
    #[serde(flatten)]
    pub bytes: Fixed,
}

/// How the bytes of a file are fixed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Fixed {
    /// By size and digest; the file must be there.
    Open {
        /// Bytes.
        size: u64,
        /// SHA-256.
        sha256: Sha256Digest,
    },
    /// By the salted commitment `SHA-256(0x00 ‖ salt ‖ bytes)`; the file may be
    /// withheld.
    Withholdable {
        /// The commitment.
        commitment: Sha256Digest,
    },
}

/// `private/salts.json`: salts by path, 64 hex digits each.
pub type Salts = BTreeMap<String, String>;

/// The files of a bundle in memory, by path.
pub type Files = BTreeMap<RelPath, Vec<u8>>;

/// Builds the index over `files`; those named in `salts` get commitments.
pub fn build(
    run_id: &str,
    nonce_hash: Sha256Digest,
    files: &Files,
    salts: &BTreeMap<String, [u8; 32]>,
) -> Index {
    let files = files
        .iter()
        .map(|(path, bytes)| Entry {
            path: path.clone(),
            bytes: match salts.get(&path.to_string()) {
                Some(salt) => Fixed::Withholdable {
                    commitment: commitment(salt, bytes),
                },
                None => Fixed::Open {
                    size: bytes.len() as u64,
                    sha256: Sha256Digest::of(bytes),
                },
            },
        })
        .collect();
    Index {
        format: FORMAT.into(),
        run_id: run_id.into(),
        nonce_hash,
        files,
    }
}

impl Index {
    /// The bytes of index.json: canonical JSON and a newline.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = json::canonical(self);
        bytes.push(b'\n');
        bytes
    }

    /// Parses index.json in its one byte form.
    pub fn parse(bytes: &[u8]) -> Result<Self, Box<Finding>> {
        let bad = |why: String| Box::new(Finding::new(Code::IndexMalformed, INDEX_FILE, why));
        let index: Index = json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
        if index.to_bytes() != bytes {
            return Err(bad("it is not in canonical form".into()));
        }
        if index.format != FORMAT {
            return Err(bad(format!("unknown format {:?}", index.format)));
        }
        if !index.files.is_sorted_by(|a, b| a.path < b.path) {
            return Err(bad("its paths are not sorted or not unique".into()));
        }
        for entry in &index.files {
            let name = entry.path.to_string();
            let own = [INDEX_FILE, RECORD_FILE].contains(&name.as_str());
            if own || name == PRIVATE_DIR || name.starts_with("private/") {
                return Err(bad(format!("it lists {name}, which is never indexed")));
            }
        }
        Ok(index)
    }

    /// Paths that may be withheld, with their commitments.
    pub fn withholdable(&self) -> BTreeMap<String, Sha256Digest> {
        self.files
            .iter()
            .filter_map(|e| match e.bytes {
                Fixed::Withholdable { commitment } => Some((e.path.to_string(), commitment)),
                Fixed::Open { .. } => None,
            })
            .collect()
    }

    /// Compares the index with the files that are there.
    pub fn check(&self, files: &Files, salts: &Salts) -> IndexCheck {
        let mut out = IndexCheck::default();
        let listed: BTreeSet<&RelPath> = self.files.iter().map(|e| &e.path).collect();
        for path in files.keys().filter(|p| !listed.contains(p)) {
            out.findings.push(Finding::new(
                Code::EvidenceExtra,
                path.to_string(),
                "the index does not list it",
            ));
        }
        for entry in &self.files {
            let name = entry.path.to_string();
            match (files.get(&entry.path), &entry.bytes) {
                (Some(bytes), Fixed::Open { size, sha256 }) => {
                    let found = Sha256Digest::of(bytes);
                    if bytes.len() as u64 != *size || found != *sha256 {
                        out.findings.push(
                            Finding::new(
                                Code::EvidenceAltered,
                                name,
                                "its bytes are not those of the index",
                            )
                            .values(
                                format!("{sha256} ({size} bytes)"),
                                format!("{found} ({} bytes)", bytes.len()),
                            ),
                        );
                    }
                }
                (None, Fixed::Open { .. }) => out.findings.push(Finding::new(
                    Code::EvidenceMissing,
                    name,
                    "the index lists it and it is not there",
                )),
                (None, Fixed::Withholdable { .. }) => {
                    out.findings.push(Finding::new(
                        Code::PartWithheld,
                        name.clone(),
                        "only its commitment is here",
                    ));
                    out.withheld.push(name);
                }
                (Some(bytes), Fixed::Withholdable { commitment: want }) => {
                    let mut salt = [0u8; 32];
                    let known = salts
                        .get(&name)
                        .is_some_and(|s| hex::decode_to_slice(s, &mut salt).is_ok());
                    if !known {
                        out.unopened.push(name);
                        continue;
                    }
                    let found = commitment(&salt, bytes);
                    if found != *want {
                        out.findings.push(
                            Finding::new(
                                Code::EvidenceAltered,
                                name,
                                "its bytes are not those committed to",
                            )
                            .values(want, found),
                        );
                    }
                }
            }
        }
        out
    }
}

/// What [`Index::check`] found.
#[derive(Debug, Default)]
pub struct IndexCheck {
    /// What does not hold.
    pub findings: Vec<Finding>,
    /// Files that are not there and need not be.
    pub withheld: Vec<String>,
    /// Files that are there but whose salt is not, so that nothing ties them to
    /// the index.
    pub unopened: Vec<String>,
}

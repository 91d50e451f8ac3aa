//! From resource names to files: which paths, how cut, and what is left out.

use std::collections::BTreeMap;

use super::statement::{Method, Statement};
use crate::codes::Code;
use crate::finding::Finding;
use crate::relpath::{RelPath, escape};

/// What a bundle says about one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Its length, which only shards tell.
    pub size: Option<u64>,
    /// Its digests: one of the whole, or one per shard from the beginning.
    pub digests: Vec<[u8; 32]>,
}

/// The files that a bundle covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// By path; never empty.
    pub files: BTreeMap<RelPath, Expected>,
    ignored: Vec<RelPath>,
}

struct Shard {
    start: u64,
    end: u64,
    digest: [u8; 32],
}

impl Listing {
    /// Reads the resources' names. Everything that is wrong is found, not only the
    /// first thing; with a single error there is no listing.
    pub fn of(statement: &Statement) -> Result<Self, Vec<Finding>> {
        let mut findings = Vec::new();
        let mut shards: BTreeMap<RelPath, Vec<Shard>> = BTreeMap::new();
        let mut files: BTreeMap<RelPath, Expected> = BTreeMap::new();
        for resource in &statement.resources {
            let name = resource.name.as_str();
            let duplicate = || ambiguous(name, "it stands there twice");
            match statement.serialization.method {
                Method::Files => match path_of(name, name) {
                    Ok(path) => {
                        let expected = Expected {
                            size: None,
                            digests: vec![resource.digest],
                        };
                        if files.insert(path, expected).is_some() {
                            findings.push(duplicate());
                        }
                    }
                    Err(finding) => findings.push(finding),
                },
                Method::Shards(_) => match shard_of(name) {
                    Ok((path, start, end)) => shards.entry(path).or_default().push(Shard {
                        start,
                        end,
                        digest: resource.digest,
                    }),
                    Err(finding) => findings.push(finding),
                },
            }
        }
        if let Method::Shards(size) = statement.serialization.method {
            for (path, shards) in shards {
                match join(shards, size) {
                    Ok(expected) => _ = files.insert(path, expected),
                    Err(why) => {
                        let code = Code::OmsShardsIncomplete;
                        findings.push(Finding::new(code, path.to_string(), why));
                    }
                }
            }
        }
        findings.extend(clashes(&files));
        if statement.resources.is_empty() {
            let detail = "it lists no resources, so any folder and none would do";
            findings.push(Finding::new(Code::OmsEmpty, "statement", detail));
        }
        if !findings.is_empty() {
            return Err(findings);
        }
        let ignored = statement.serialization.ignore_paths.iter();
        Ok(Self {
            files,
            ignored: ignored
                .map(|p| p.strip_prefix("./").unwrap_or(p))
                // A path such as `.` would leave out everything; one that leaves the
                // folder leaves out nothing.
                .filter_map(|p| RelPath::from_bytes(p.trim_end_matches('/').as_bytes()).ok())
                .collect(),
        })
    }

    /// True when the signer left out this path or a folder above it. A listed file
    /// is never left out.
    pub fn ignores(&self, path: &RelPath) -> bool {
        !self.files.contains_key(path) && self.ignored.iter().any(|top| top.holds(path))
    }

    /// What the signer left out, with everything below.
    pub fn ignored(&self) -> &[RelPath] {
        &self.ignored
    }
}

fn ambiguous(name: &str, why: &str) -> Finding {
    Finding::new(Code::OmsNameAmbiguous, escape(name.as_bytes()), why)
}

fn path_of(text: &str, name: &str) -> Result<RelPath, Finding> {
    RelPath::from_bytes(text.as_bytes()).map_err(|e| {
        let leaves = text.starts_with('/') || text.split('/').any(|part| part == "..");
        if leaves {
            let detail = format!("the name leads out of the folder: {}", e.why);
            Finding::new(Code::OmsNameEscapes, escape(name.as_bytes()), detail)
        } else {
            ambiguous(name, e.why)
        }
    })
}

/// `path:start:end`, with numbers in their one decimal form.
fn shard_of(name: &str) -> Result<(RelPath, u64, u64), Finding> {
    let bad = |why: &str| Finding::new(Code::OmsMalformed, escape(name.as_bytes()), why);
    let number = |text: &str| text.parse().ok().filter(|n: &u64| n.to_string() == text);
    let mut parts = name.rsplitn(3, ':');
    let (end, start, path) = (parts.next(), parts.next(), parts.next());
    let range = (start.and_then(number), end.and_then(number));
    let (Some(path), (Some(start), Some(end))) = (path, range) else {
        return Err(bad("it is not of the form path:start:end"));
    };
    if path.contains(':') {
        return Err(ambiguous(
            name,
            "its path has a colon, which separates the parts of a shard's name",
        ));
    }
    if start >= end {
        return Err(bad("its range is empty"));
    }
    Ok((path_of(path, name)?, start, end))
}

/// Shards must follow each other from the first byte, all full but the last.
fn join(mut shards: Vec<Shard>, size: u64) -> Result<Expected, String> {
    shards.sort_by_key(|s| s.start);
    let mut at = 0;
    for (i, shard) in shards.iter().enumerate() {
        if shard.start != at {
            return Err(format!(
                "a shard ends at byte {at} and the next one begins at byte {}",
                shard.start
            ));
        }
        let length = shard.end - shard.start;
        let last = i + 1 == shards.len();
        if length > size || (length < size && !last) {
            return Err(format!(
                "the shard from byte {at} to byte {} is not {size} bytes long",
                shard.end
            ));
        }
        at = shard.end;
    }
    Ok(Expected {
        size: Some(at),
        digests: shards.into_iter().map(|s| s.digest).collect(),
    })
}

/// Names that are one file on some file system, and files that would have to be
/// folders.
fn clashes(files: &BTreeMap<RelPath, Expected>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut folded = BTreeMap::new();
    for path in files.keys() {
        let name = path.to_string();
        if let Some(other) = folded.insert(name.to_lowercase(), name.clone()) {
            let why = format!("where case does not matter it is the same file as {other}");
            findings.push(Finding::new(Code::OmsNameAmbiguous, name, why));
        }
    }
    for (lower, name) in &folded {
        for (end, _) in lower.match_indices('/') {
            if let Some(file) = folded.get(&lower[..end]) {
                let why = format!("{file} is listed as a file and cannot be a folder too");
                findings.push(Finding::new(Code::OmsNameAmbiguous, name, why));
            }
        }
    }
    findings
}

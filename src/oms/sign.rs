//! Signing a folder.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::bundle::{Bundle, MAX_BUNDLE};
use super::listing::Listing;
use super::statement::{Method, Resource, Serialization, Statement};
use crate::digest::{Sha256Digest, tree_root};
use crate::ecdsa_keys::EcdsaSigningKey;
use crate::finding::Severity;
use crate::relpath::{BadPath, RelPath};
use crate::weights::{
    FileReport, GitId, Kind, LayoutKind, Pace, PieceFile, PieceHash, Place, Progress, Unreachable,
    Wanted, scan_pieces,
};

/// Why a folder was not signed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// The folder could not be opened or listed.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// Something in it cannot be signed.
    #[error("{path} cannot be signed: {why} (hint: {hint})")]
    Entry {
        /// Where it lies.
        path: String,
        /// What is wrong with it.
        why: String,
        /// What to do.
        hint: &'static str,
    },
    /// There is nothing to sign.
    #[error(
        "the folder holds no files to sign, and a signature over nothing fits every folder (hint: \
         is it the right folder?)"
    )]
    Empty,
    /// The bundle would be longer than any reader takes.
    #[error(
        "the bundle would have {bytes} bytes or more, and readers take no more than {MAX_BUNDLE} (hint: a larger --shard-size, or --method files)"
    )]
    TooLarge {
        /// As far as is known.
        bytes: u64,
    },
    /// The reference implementation has no such combination.
    #[error(
        "BLAKE3 by shards is not part of the format (hint: --method files; BLAKE3 needs no shards)"
    )]
    Blake3Shards,
    /// A path to leave out is not one below the folder.
    #[error("a path to ignore: {0}")]
    Ignore(#[from] BadPath),
}

/// How to sign.
#[derive(Debug, Clone)]
pub struct SignOptions {
    /// Files, or shards of so many bytes (at least one).
    pub method: Method,
    /// Which digest.
    pub hash: PieceHash,
    /// Names below the folder that are left out, with everything below them. They
    /// are written into the statement.
    pub ignore_paths: Vec<String>,
    /// The model's name in the statement: informative. In a hub cache the
    /// repository's name is taken.
    pub name: String,
    /// Which revision to sign, in a hub cache.
    pub revision: Option<String>,
}

/// A signed folder.
#[derive(Debug)]
pub struct Signed {
    /// The bundle.
    pub bundle: Bundle,
    /// What it says.
    pub statement: Statement,
    /// The files' identity in this project, where SHA-256 of whole files was
    /// computed.
    pub tree_root: Option<Sha256Digest>,
    /// How many files are signed.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// What lies in the folder and was left out.
    pub left_out: Vec<RelPath>,
    /// How the checkpoint lies there.
    pub layout: LayoutKind,
}

/// Reads every file of a checkpoint and signs the digests. Anything but plain,
/// readable files that hold still is refused, and so is every name that a reader
/// could misunderstand. The links of a snapshot in a hub cache are signed as the
/// files they stand for, and the statement allows links, because other readers see
/// links there.
pub fn sign_folder(
    root: &Path,
    key: &EcdsaSigningKey,
    options: SignOptions,
    progress: &dyn Progress,
) -> Result<Signed, SignError> {
    let length = match (options.method, options.hash) {
        (Method::Files, _) => None,
        (Method::Shards(_), PieceHash::Blake3) => return Err(SignError::Blake3Shards),
        (Method::Shards(length), PieceHash::Sha256) => Some(length),
    };
    let asked = Wanted {
        asked: options.revision.as_deref(),
        pinned: None,
    };
    let place = Place::locate(root, asked).map_err(Unreachable)?;
    let layout = place.layout().clone();
    if let Some(path) = layout.incomplete.first() {
        return Err(SignError::Entry {
            path: path.clone(),
            why: "it is a download that was not finished".to_owned(),
            hint: "finish the download, or remove what is left of it",
        });
    }
    // Sorted and unique, so that equal folders give equal statements.
    let mut ignore_paths: BTreeSet<String> = options.ignore_paths.into_iter().collect();
    if layout.kind == LayoutKind::HfLocalDir {
        // The hub client's own notes, which no copy of the model needs.
        ignore_paths.insert(".cache/huggingface".to_owned());
    }
    let ignored = ignore_paths
        .iter()
        .map(|p| RelPath::from_bytes(p.as_bytes()));
    let ignored = ignored.collect::<Result<Vec<_>, BadPath>>()?;
    let wanted = |entry: &FileReport| !ignored.iter().any(|top| top.holds(&entry.path));
    let least = Cell::new(0);
    let choose = |all: &[PieceFile]| {
        let all: Vec<_> = all.iter().map(|f| &f.entry).filter(|e| wanted(e)).collect();
        least.set(
            all.iter()
                .map(|e| least_bytes(e, length))
                .fold(0, u64::saturating_add),
        );
        // Nothing is read for a bundle that nobody could read.
        if least.get() > MAX_BUNDLE {
            return BTreeSet::new();
        }
        all.into_iter().map(|e| e.path.clone()).collect()
    };
    let scan = scan_pieces(
        place,
        options.hash,
        length,
        &choose,
        Pace::default(),
        progress,
    )?;

    if least.get() > MAX_BUNDLE {
        return Err(SignError::TooLarge { bytes: least.get() });
    }
    let found = &scan.files;
    let whole = length.is_none() && options.hash == PieceHash::Sha256;
    let mut resources = Vec::new();
    let mut left_out = Vec::new();
    let mut tree = Vec::new();
    // The list is in byte order of the paths, which is code-point order.
    for file in found {
        let entry = &file.entry;
        if entry.kind == Kind::Folder && entry.problem.is_none() {
            continue;
        }
        if !wanted(entry) {
            left_out.push(entry.path.clone());
            continue;
        }
        let (name, size, digests) = signable(file, length.is_some(), whole)?;
        tree.push((&entry.path, size, digests.first().copied()));
        let mut start = 0;
        for digest in digests {
            let name = match length {
                None => name.to_owned(),
                Some(length) => {
                    let end = size.min(start + length);
                    let name = format!("{name}:{start}:{end}");
                    start = end;
                    name
                }
            };
            resources.push(Resource {
                name,
                digest: *digest,
            });
        }
    }
    if resources.is_empty() {
        return Err(SignError::Empty);
    }
    // Signed is only what our own reader would call sound.
    let part: Vec<_> = found
        .iter()
        .map(|f| &f.entry)
        .filter(|e| wanted(e))
        .cloned()
        .collect();
    let commit = options.revision.as_deref();
    let commit = commit.filter(|r| r.parse::<GitId>().is_ok());
    let (_, beside) = scan.beside(&part, &BTreeMap::new(), commit);
    let error = beside
        .into_iter()
        .find(|(_, f)| f.severity == Severity::Error);
    if let Some((_, finding)) = error {
        return Err(SignError::Entry {
            path: finding.subject,
            why: format!("{}: {}", finding.code, finding.detail),
            hint: finding.code.explain().2,
        });
    }
    let (files, bytes) = (tree.len(), tree.iter().map(|(_, size, _)| size).sum());
    let entries: Option<Vec<_>> = tree
        .into_iter()
        .map(|(path, size, digest)| Some((path, size, Sha256Digest(digest?))))
        .collect();
    let serialization = Serialization {
        method: options.method,
        hash: options.hash,
        allow_symlinks: layout.kind == LayoutKind::HfCache,
        ignore_paths: ignore_paths.into_iter().collect(),
    };
    let name = layout.repository.unwrap_or(options.name);
    let statement = Statement::new(name, serialization, resources);
    // Signed is only what our own reader would accept.
    if let Err(findings) = Listing::of(&statement) {
        let finding = findings.into_iter().next();
        let (path, why) = finding.map_or_else(Default::default, |f| (f.subject, f.detail));
        let hint = "rename the file";
        return Err(SignError::Entry { path, why, hint });
    }
    let bundle = Bundle::sign(statement.to_payload(), key);
    let long = bundle.to_bytes().len() as u64;
    if long > MAX_BUNDLE {
        return Err(SignError::TooLarge { bytes: long });
    }
    Ok(Signed {
        bundle,
        statement,
        tree_root: entries.filter(|_| whole).map(tree_root),
        files,
        bytes,
        left_out,
        layout: layout.kind,
    })
}

/// What a file adds to a bundle, at least: the payload is base64, and of the numbers
/// in its shards' names only one digit is counted.
fn least_bytes(entry: &FileReport, length: Option<u64>) -> u64 {
    const RESOURCE: usize = r#"{"algorithm":"sha256","digest":"","name":""},"#.len() + 64;
    let size = entry.stat.map_or(0, |s| s.size);
    let resources = match length {
        Some(length) => size.div_ceil(length.max(1)),
        None => 1,
    };
    let each = RESOURCE + entry.path.as_bytes().len();
    resources.saturating_mul(each as u64) / 3 * 4
}

/// Name, size and digests of a file, or why it cannot be signed.
fn signable(
    file: &PieceFile,
    shards: bool,
    whole_sha256: bool,
) -> Result<(&str, u64, &[[u8; 32]]), SignError> {
    let entry = &file.entry;
    let refuse = |why: &str, hint| SignError::Entry {
        path: entry.path.to_string(),
        why: why.to_owned(),
        hint,
    };
    if let Some(problem) = &entry.problem {
        return Err(refuse(
            &problem.detail,
            "let nothing write to the folder, and give this user read permission",
        ));
    }
    if entry.kind != Kind::File {
        return Err(refuse(
            &format!("it is a {}", entry.kind),
            "sign a folder of plain files, or leave it out with --ignore",
        ));
    }
    let name = std::str::from_utf8(entry.path.as_bytes())
        .map_err(|_| refuse("its name is not UTF-8, and JSON has no other", "rename it"))?;
    if shards && name.contains(':') {
        return Err(refuse(
            "its name has a colon, which separates the parts of a shard's name",
            "rename it, or use --method files",
        ));
    }
    match (entry.stat, &file.digests) {
        (Some(stat), Some(_)) if shards && stat.size == 0 => Err(refuse(
            "it is empty, and a signature by shards cannot list it",
            "remove it, leave it out with --ignore, or use --method files",
        )),
        (Some(stat), Some(digests)) => {
            let blob = entry.blob.as_deref().filter(|_| whole_sha256);
            if blob.is_some_and(|b| b.len() == 64 && b != hex::encode(digests[0])) {
                return Err(refuse(
                    "the cache names its blob by another SHA-256 than its bytes have",
                    "remove the blob and download it again",
                ));
            }
            Ok((name, stat.size, digests))
        }
        _ => Err(refuse("it was not read", "try again")),
    }
}

//! Reading a bundle's folder: plain files only, never through a link.

use std::io;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use super::evidence::json_bytes;
use super::index::{Files, INDEX_FILE, PRIVATE_DIR, RECORD_FILE, SALTS_FILE, Salts};
use crate::codes::Code;
use crate::finding::Finding;
use crate::json;
use crate::relpath::{self, RelPath};

/// Largest evidence file that is read.
pub const MAX_FILE: u64 = 4 << 30;

/// Largest record, index or file of salts: each is a few lines about the evidence.
pub const MAX_SMALL: u64 = 64 << 20;

/// A bundle's folder could not be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "could not read bundle {path}: {source} (hint: give the folder of one run, such as evidence/<run-id>)"
)]
pub struct ReadError {
    /// What was being read.
    pub path: PathBuf,
    /// The system's reason.
    source: io::Error,
}

/// The bytes of a bundle, before anything is believed.
#[derive(Debug, Clone, Default)]
pub struct RawBundle {
    /// `record.intoto.jsonl`.
    pub record: Option<Vec<u8>>,
    /// `index.json`.
    pub index: Option<Vec<u8>>,
    /// Salts, when the private folder is here.
    pub salts: Salts,
    /// Every other file outside `private/`.
    pub files: Files,
    /// Things that are neither files nor folders, and names that no index can hold.
    pub findings: Vec<Finding>,
}

/// Reads a bundle's folder.
pub fn read(dir: &Path) -> Result<RawBundle, ReadError> {
    let err = |path: &Path, source| ReadError {
        path: path.to_owned(),
        source,
    };
    let meta = std::fs::metadata(dir).map_err(|e| err(dir, e))?;
    if !meta.is_dir() {
        return Err(err(dir, io::Error::other("it is not a folder")));
    }
    let mut out = RawBundle::default();
    // The folder itself may be given through a link; nothing inside may be one.
    let root = dir.canonicalize().map_err(|e| err(dir, e))?;
    for entry in WalkDir::new(&root).min_depth(1).sort_by_file_name() {
        let entry = entry.map_err(|e| {
            let path = e.path().unwrap_or(dir).to_owned();
            err(&path, io::Error::other(e))
        })?;
        if entry.file_type().is_dir() {
            continue;
        }
        let rel = entry.path().strip_prefix(&root).unwrap_or(entry.path());
        let name = std::os::unix::ffi::OsStrExt::as_bytes(rel.as_os_str());
        let path = match RelPath::from_bytes(name) {
            Ok(path) => path,
            Err(e) => {
                out.findings.push(Finding::new(
                    Code::EvidenceExtra,
                    relpath::escape(name),
                    e.to_string(),
                ));
                continue;
            }
        };
        if !entry.file_type().is_file() {
            out.findings.push(Finding::new(
                Code::EvidenceFileType,
                path.to_string(),
                "it is neither a file nor a folder and was not opened",
            ));
            continue;
        }
        let text = path.to_string();
        let private = text.starts_with(&format!("{PRIVATE_DIR}/"));
        if private && text != SALTS_FILE {
            continue;
        }
        let most = match text.as_str() {
            RECORD_FILE | INDEX_FILE | SALTS_FILE => MAX_SMALL,
            _ => MAX_FILE,
        };
        let bytes = read_file(entry.path(), most).map_err(|e| err(entry.path(), e))?;
        match text.as_str() {
            RECORD_FILE => out.record = Some(bytes),
            INDEX_FILE => out.index = Some(bytes),
            SALTS_FILE => match salts(&bytes) {
                Some(salts) => out.salts = salts,
                None => out.findings.push(Finding::new(
                    Code::EvidenceMalformed,
                    SALTS_FILE,
                    "it is not a canonical object of salts, 64 lower-case hex digits each",
                )),
            },
            _ => {
                out.files.insert(path, bytes);
            }
        }
    }
    Ok(out)
}

/// The salts, when they are in their one byte form.
fn salts(bytes: &[u8]) -> Option<Salts> {
    let salts: Salts = json::from_slice(bytes).ok()?;
    let well_formed = |s: &String| {
        let mut salt = [0u8; 32];
        hex::decode_to_slice(s, &mut salt).is_ok() && hex::encode(salt) == *s
    };
    (json_bytes(&salts) == bytes && salts.values().all(well_formed)).then_some(salts)
}

fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    // Not following a link and not waiting for a pipe, even if the entry was
    // exchanged after it was listed.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if meta.len() > most {
        let why = format!("it is larger than {} MiB", most >> 20);
        return Err(io::Error::other(why));
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

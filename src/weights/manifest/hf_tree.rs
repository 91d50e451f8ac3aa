//! The JSON that a model hub's tree listing gives
//! (`/api/models/ORG/NAME/tree/REVISION?recursive=true`).
//!
//! Large files have `lfs.oid`, the SHA-256 of the content. Small ones only have
//! `oid`, the git blob id, which is a SHA-1. Fields that nothing is read from are
//! passed over: the format is not ours.

use serde_json::Value;

use super::{Entry, ListFormat, Listing, ManifestError};
use crate::digest::Sha256Digest;
use crate::json;
use crate::relpath::RelPath;

/// Reads the array that the listing is.
pub(super) fn read(bytes: &[u8]) -> Result<Listing, ManifestError> {
    let value = json::parse(bytes)?;
    let Value::Array(items) = value else {
        return Err(ManifestError::Unknown("it is not a JSON array".to_owned()));
    };
    let mut entries = Vec::new();
    let mut folders = Vec::new();
    for item in &items {
        let text = |key: &str| item.get(key).and_then(Value::as_str);
        let refuse = |why: &str| {
            let path = text("path").unwrap_or("an entry without a path");
            ManifestError::Unknown(format!("{path}: {why}"))
        };
        let path = text("path").ok_or_else(|| refuse("every entry needs a path"))?;
        let path = RelPath::from_bytes(path.as_bytes())?;
        match text("type") {
            Some("file") => {
                let entry = entry(item, path).map_err(|why| refuse(&why))?;
                entries.push(entry);
            }
            Some("directory") => folders.push(path),
            _ => return Err(refuse("its type is neither file nor directory")),
        }
    }
    for folder in folders {
        let below = |e: &Entry| {
            let rest = e.path.as_bytes().strip_prefix(folder.as_bytes());
            rest.is_some_and(|r| r.first() == Some(&b'/'))
        };
        // Git has no empty folders, so this listing stopped at its top level.
        if !entries.iter().any(below) {
            return Err(ManifestError::Unknown(format!(
                "it names the folder {folder} and nothing in it; ask for the listing with recursive=true"
            )));
        }
    }
    Listing::new(ListFormat::HfTree, entries)
}

fn entry(item: &Value, path: RelPath) -> Result<Entry, String> {
    let mut entry = Entry::of(path);
    let size = |v: &Value| v.get("size").and_then(Value::as_u64);
    entry.size = Some(size(item).ok_or("it has no size")?);
    match item.get("lfs").filter(|lfs| !lfs.is_null()) {
        Some(lfs) => {
            let oid = lfs.get("oid").and_then(Value::as_str);
            let oid = oid.ok_or("it has lfs, but no lfs.oid")?;
            let oid = oid.strip_prefix("sha256:").unwrap_or(oid);
            let digest: Sha256Digest = oid.parse().map_err(|_| "lfs.oid is not a SHA-256")?;
            entry.sha256 = Some(digest);
            if size(lfs).is_some() && size(lfs) != entry.size {
                return Err("size and lfs.size contradict each other".to_owned());
            }
        }
        None => {
            let oid = item.get("oid").and_then(Value::as_str);
            entry.git_blob = Some(oid.ok_or("it has no oid")?.parse()?);
        }
    }
    Ok(entry)
}

//! The hub client's cache of one repository.
//!
//! ```text
//! models--ORG--NAME/refs/main                       a commit id
//! models--ORG--NAME/snapshots/<commit>/config.json  -> ../../blobs/<etag>
//! models--ORG--NAME/blobs/<etag>                    the content
//! models--ORG--NAME/blobs/<etag>.incomplete         a download that stopped
//! ```

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::super::beneath::Folder;
use super::super::report::{FileReport, Kind, Problem, ProblemKind};
use super::{Chosen, Layout, LayoutKind, LocateError, Place, Wanted, small_text};
use crate::relpath::{RelPath, escape};

/// `path` is the cache of one repository.
pub(super) fn is_root(path: &Path) -> bool {
    let named = path
        .file_name()
        .is_some_and(|n| n.as_bytes().starts_with(b"models--"));
    path.join("snapshots").is_dir() && (named || path.join("blobs").is_dir())
}

/// The cache and the snapshot's name, when `path` is a snapshot.
pub(super) fn snapshot_of(path: &Path) -> Option<(&Path, String)> {
    let snapshots = path.parent()?;
    let root = snapshots.parent()?;
    let inside = snapshots.file_name()? == "snapshots" && is_root(root) && path.is_dir();
    inside.then(|| Some((root, escape(path.file_name()?.as_bytes()))))?
}

/// Names of the caches in a folder that holds several.
pub(super) fn caches_in(path: &Path) -> std::io::Result<Vec<String>> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.as_bytes().starts_with(b"models--") && is_root(&entry.path()) {
            out.push(escape(name.as_bytes()));
        }
    }
    out.sort();
    Ok(out)
}

/// Opens a cache at the snapshot that `by_path`, the caller, `refs/main`, being
/// alone, or the manifest names, in this order.
pub(super) fn open(
    root: &Path,
    wanted: Wanted,
    by_path: Option<String>,
) -> Result<Place, LocateError> {
    let cache = Folder::open(root)?;
    let refs = refs(&cache)?;
    let held = snapshots(&cache)?;
    if by_path.is_some() && wanted.asked.is_some() && by_path.as_deref() != wanted.asked {
        return Err(LocateError::NoRevision {
            wanted: wanted.asked.unwrap_or_default().to_owned(),
            held: by_path.into_iter().collect(),
        });
    }
    let has = |name: &str| held.iter().any(|h| h == name);
    let main = refs.get("main").filter(|c| has(c));
    let pinned = wanted.pinned.filter(|p| has(p));
    let (snapshot, chosen) = match (by_path, wanted.asked) {
        (Some(name), _) => (name, Chosen::ByPath),
        (None, Some(asked)) => {
            // A ref's name or a commit.
            let commit = refs.get(asked).map_or(asked, String::as_str);
            if !has(commit) {
                let wanted = asked.to_owned();
                return Err(LocateError::NoRevision { wanted, held });
            }
            (commit.to_owned(), Chosen::ByRevision)
        }
        (None, None) => match (main, held.as_slice(), pinned) {
            (Some(main), _, _) => (main.clone(), Chosen::ByMain),
            (None, [], _) => return Err(LocateError::Empty),
            (None, [only], _) => (only.clone(), Chosen::Only),
            (None, _, Some(pinned)) => (pinned.to_owned(), Chosen::ByManifest),
            _ => return Err(LocateError::Ambiguous(held)),
        },
    };
    let below = RelPath::parse(&format!("snapshots/{snapshot}")).map_err(std::io::Error::other)?;
    let mut place = Place::new(cache.open_folder(&below)?, LayoutKind::HfCache);
    place.blobs = match cache.open_folder(&known("blobs")?) {
        Ok(blobs) => Some(blobs),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(e.into()),
    };
    if let Some(blobs) = &place.blobs {
        let names = blobs.list_into(&|_| false)?;
        let names = names.iter().map(|f| f.path.to_string());
        place.layout.incomplete = names.filter(|n| n.ends_with(".incomplete")).collect();
    }
    place.layout.repository = repository(root);
    place.layout.revision = Some(snapshot);
    place.layout.chosen = Some(chosen);
    place.layout.refs = refs;
    Ok(place)
}

fn known(path: &str) -> std::io::Result<RelPath> {
    RelPath::parse(path).map_err(std::io::Error::other)
}

/// `models--ORG--NAME` is `ORG/NAME`.
fn repository(root: &Path) -> Option<String> {
    let name = escape(root.file_name()?.as_bytes());
    Some(name.strip_prefix("models--")?.replacen("--", "/", 1))
}

fn snapshots(cache: &Folder) -> std::io::Result<Vec<String>> {
    let entries = cache
        .open_folder(&known("snapshots")?)?
        .list_into(&|_| false)?;
    let folders = entries.iter().filter(|f| f.kind == Kind::Folder);
    Ok(folders.map(|f| f.path.to_string()).collect())
}

fn refs(cache: &Folder) -> std::io::Result<std::collections::BTreeMap<String, String>> {
    let folder = match cache.open_folder(&known("refs")?) {
        Ok(folder) => folder,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Default::default()),
        Err(e) => return Err(e),
    };
    let mut out = std::collections::BTreeMap::new();
    for entry in folder.list_into(&|_| true)? {
        if entry.kind == Kind::File {
            // A ref that cannot be read names nothing; its text is shown.
            let text = match small_text(&folder, &entry.path) {
                Ok(text) => text.trim().to_owned(),
                Err(e) => format!("unreadable: {e}"),
            };
            out.insert(entry.path.to_string(), text);
        }
    }
    Ok(out)
}

/// Replaces a link of the snapshot by the blob it leads to, and gives the blob's
/// name when it can be opened. Any other link stays what it is.
pub(super) fn follow(
    blobs: Option<&Folder>,
    layout: &Layout,
    file: &mut FileReport,
) -> Option<RelPath> {
    if file.kind != Kind::Symlink {
        return None;
    }
    let name = blob_name(layout, &file.path, file.target.as_deref()?)?;
    file.blob = Some(name.to_string());
    let seen = blobs.and_then(|b| b.look(&name).transpose());
    match seen {
        None => {
            file.problem = Some(Problem {
                kind: ProblemKind::Dangling,
                detail: format!("the cache has no blob {name}"),
            });
            None
        }
        Some(Err(e)) => {
            file.problem = Some(super::super::beneath::could_not_read(&e));
            None
        }
        Some(Ok((kind, stat))) => {
            file.target = None;
            file.kind = kind;
            file.stat = Some(stat);
            (kind == Kind::File).then_some(name)
        }
    }
}

/// The blob that a link names, if it leads to `blobs/<name>` of this cache and
/// takes no other way. Worked out on the text.
fn blob_name(layout: &Layout, path: &RelPath, target: &str) -> Option<RelPath> {
    let mut place = vec!["snapshots", layout.revision.as_deref()?];
    let path = path.to_string();
    place.extend(path.split('/'));
    place.pop();
    if target.starts_with('/') {
        return None;
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                place.pop()?;
            }
            name => place.push(name),
        }
    }
    match place.as_slice() {
        ["blobs", name] => RelPath::parse(name).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::is_commit;
    use super::*;

    #[test]
    fn only_links_to_a_blob_of_this_cache_are_followed() {
        let layout = |revision: &str| Layout {
            kind: LayoutKind::HfCache,
            revision: Some(revision.to_owned()),
            ..Layout::default()
        };
        let to = |path: &str, target: &str| {
            let path = RelPath::parse(path).unwrap();
            blob_name(&layout("abc"), &path, target).map(|b| b.to_string())
        };
        assert_eq!(to("a", "../../blobs/x").as_deref(), Some("x"));
        assert_eq!(to("s/a", "../../../blobs/x").as_deref(), Some("x"));
        for (path, target) in [
            ("a", "/cache/blobs/x"),
            ("a", "../../../blobs/x"),
            ("a", "../../../other/blobs/x"),
            ("s/a", "../../blobs/x"),
            ("a", "../../blobs"),
            ("a", "../../blobs/x/y"),
            ("a", "../../blobs/../refs/main"),
            ("a", "b"),
            ("a", ""),
        ] {
            assert_eq!(to(path, target), None, "{path} -> {target}");
        }
    }

    #[test]
    fn repositories_are_named_by_their_folder() {
        let name = |n: &str| repository(Path::new(n));
        assert_eq!(
            name("/x/models--org--some--name").as_deref(),
            Some("org/some--name")
        );
        assert_eq!(name("/x/models--gpt2").as_deref(), Some("gpt2"));
        assert_eq!(name("/x/gpt2"), None);
        assert!(is_commit(&"0a".repeat(20)) && !is_commit("main"));
    }
}

//! A second look after the run: did anything move? Names, sizes, times and
//! identities are compared; no file is read. The change time is set by the
//! kernel, so a file written to and given its old mtime back still shows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::hashing::differences;
use super::layout::{Place, Wanted};
use super::report::{FileReport, Kind, ReplicaReport, Restat, RootIdentity, StatChange, State};
use crate::relpath::RelPath;

/// Compares a folder with the report of its rehash. `finished` is the time now,
/// RFC 3339 in UTC.
pub fn restat(root: &Path, report: &ReplicaReport, finished: String) -> Restat {
    let changed = match look(root, report) {
        Ok(changed) => changed,
        Err(e) => vec![change(".", format!("it can no longer be listed: {e}"))],
    };
    Restat {
        finished,
        unchanged: changed.is_empty(),
        changed,
    }
}

fn look(root: &Path, report: &ReplicaReport) -> std::io::Result<Vec<StatChange>> {
    let ignored = report.files.iter().filter(|f| f.state == State::Ignored);
    moved(
        root,
        report.layout.as_ref().and_then(|l| l.revision.as_deref()),
        report.root_identity,
        &ignored.map(|f| f.path.clone()).collect(),
        report.files.iter(),
    )
}

/// What moved in a folder since it was listed. `revision` is the snapshot that was
/// looked at, in a hub cache, whatever a ref says by now.
pub(super) fn moved<'a>(
    root: &Path,
    revision: Option<&str>,
    identity: RootIdentity,
    ignored: &BTreeSet<RelPath>,
    before: impl Iterator<Item = &'a FileReport>,
) -> std::io::Result<Vec<StatChange>> {
    let wanted = Wanted {
        asked: revision,
        pinned: None,
    };
    let mut place = Place::locate(root, wanted).map_err(std::io::Error::other)?;
    let mut changed = Vec::new();
    if place.identity() != identity {
        changed.push(change(".", "it is another folder".to_owned()));
    }
    let now = place.list(ignored)?;
    let mut before: BTreeMap<_, _> = before.map(|f| (&f.path, f)).collect();
    for entry in &now {
        match before.remove(&entry.path) {
            Some(old) => {
                if let Some(what) = compare(old, entry) {
                    changed.push(change(&entry.path.to_string(), what));
                }
            }
            // Folders that hold only expected files are not in the report.
            None if entry.kind == Kind::Folder && entry.problem.is_none() => {}
            None => changed.push(change(&entry.path.to_string(), "it appeared".to_owned())),
        }
    }
    for path in before.keys() {
        changed.push(change(&path.to_string(), "it vanished".to_owned()));
    }
    Ok(changed)
}

fn compare(old: &FileReport, new: &FileReport) -> Option<String> {
    if old.blob != new.blob {
        return Some("its link leads to another blob".to_owned());
    }
    if old.kind != new.kind {
        return Some(format!("it was a {} and is a {}", old.kind, new.kind));
    }
    let (Some(before), Some(after)) = (old.stat, new.stat) else {
        return Some("it could not be looked at".to_owned());
    };
    let what = differences(&before, &after);
    (!what.is_empty()).then(|| format!("{} changed", what.join(", ")))
}

fn change(path: &str, what: String) -> StatChange {
    StatChange {
        path: path.to_owned(),
        what,
    }
}

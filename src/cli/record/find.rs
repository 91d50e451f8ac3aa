//! Which records a path leads to: a bundle's folder, a file, or a tree of them.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use walkdir::WalkDir;

/// A record that was found; what a file is, its content tells later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// The folder of a bundle.
    Bundle(PathBuf),
    /// A file. One that was named must be a record; one of a tree may be something else.
    File { path: PathBuf, named: bool },
}

/// What the paths led to.
#[derive(Debug, Default)]
pub struct Found {
    /// Records in the order of the paths, those of a tree by name.
    pub items: Vec<Item>,
    /// Files of a tree that cannot be records by their names.
    pub passed_over: usize,
    /// Links in a tree, which are not followed.
    pub links: usize,
    /// True when a path was a tree.
    pub tree: bool,
}

/// Follows one path.
pub fn find(path: &Path, found: &mut Found) -> anyhow::Result<()> {
    let shown = path.display();
    let meta = std::fs::metadata(path).with_context(|| {
        format!("could not read {shown} (hint: give the folder of one run, such as evidence/<run-id>, or a record's file)")
    })?;
    if meta.is_file() {
        found.items.push(Item::File {
            path: path.to_owned(),
            named: true,
        });
        return Ok(());
    }
    if !meta.is_dir() {
        bail!("{shown} is neither a file nor a folder (hint: pipes and devices are not read)");
    }
    if is_bundle(path) {
        found.items.push(Item::Bundle(path.to_owned()));
        return Ok(());
    }
    walk(path, found)
}

/// True for the folder of a run, whole or broken: it has the record, the event log, or
/// both plan and index.
fn is_bundle(dir: &Path) -> bool {
    let has = |name: &str| dir.join(name).symlink_metadata().is_ok();
    has("record.intoto.jsonl") || has("events.jsonl") || (has("index.json") && has("plan.json"))
}

fn walk(root: &Path, found: &mut Found) -> anyhow::Result<()> {
    let before = found.items.len();
    // The folder itself may be a link; nothing below it is followed.
    let mut entries = WalkDir::new(root)
        .min_depth(1)
        .follow_root_links(true)
        .sort_by_file_name()
        .into_iter();
    while let Some(entry) = entries.next() {
        let entry = entry.with_context(|| format!("could not read {}", root.display()))?;
        let kind = entry.file_type();
        if kind.is_symlink() {
            found.links += 1;
        } else if kind.is_dir() {
            if is_bundle(entry.path()) {
                found.items.push(Item::Bundle(entry.into_path()));
                // A bundle inside a bundle is a finding of the outer one.
                entries.skip_current_dir();
            }
        } else if kind.is_file() && may_be_record(entry.path()) {
            found.items.push(Item::File {
                path: entry.into_path(),
                named: false,
            });
        } else {
            found.passed_over += 1;
        }
    }
    if found.items.len() == before {
        bail!(
            "{} is no bundle and holds no records (hint: a bundle has record.intoto.jsonl in it; in other folders \
             *.json and *.intoto.jsonl are looked at)",
            root.display()
        );
    }
    found.tree = true;
    Ok(())
}

fn may_be_record(path: &Path) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy());
    name.is_some_and(|n| n.ends_with(".json") || n.ends_with(".intoto.jsonl"))
}

//! Where reports may go: not into a checkpoint, where they would be extra files.

use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail};

/// Refuses a folder that is, or lies in, one of the checkpoints at `roots`, by
/// whatever name: folders are compared by device and inode, not by their text.
pub fn refuse_inside(dir: &Path, roots: &[PathBuf]) -> anyhow::Result<()> {
    let shown = dir.display();
    let absolute = std::path::absolute(dir).with_context(|| format!("{shown} is not a path"))?;
    // The part of the path that is there already: where the rest will lie.
    let there = absolute.ancestors().find(|p| p.symlink_metadata().is_ok());
    let Some(there) = there else { return Ok(()) };
    let missing = absolute.strip_prefix(there).unwrap_or(&absolute);
    if missing.components().any(|c| c == Component::ParentDir) {
        bail!(
            "{shown} goes back (`..`) from a folder that is not there (hint: leave the detour out)"
        );
    }
    let there = there
        .canonicalize()
        .with_context(|| format!("could not look at {}", there.display()))?;
    let same = |a: &Path, b: &Path| match (a.metadata(), b.metadata()) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        // What cannot be looked at is compared by name.
        _ => a == b,
    };
    for root in roots {
        let Some(folder) = folder_of(root) else {
            continue;
        };
        if there.ancestors().any(|above| same(above, &folder)) {
            bail!(
                "--save-reports {shown} lies inside the checkpoint {} and would be an extra file there (hint: choose a folder elsewhere)",
                root.display()
            );
        }
    }
    Ok(())
}

/// The folder of which every part belongs to the checkpoint. A cache is one with all
/// its snapshots; beside a GGUF file there may be other files.
fn folder_of(root: &Path) -> Option<PathBuf> {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    if root.is_file() {
        return None;
    }
    let cache = root.ancestors().nth(2).filter(|above| {
        root.parent().is_some_and(|p| p.ends_with("snapshots")) && above.join("blobs").is_dir()
    });
    Some(cache.map(Path::to_owned).unwrap_or(root))
}

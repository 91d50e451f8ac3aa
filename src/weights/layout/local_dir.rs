//! The metadata that the hub client writes beside files it downloads into a
//! folder: `.cache/huggingface/download/<path>.metadata`, three lines of commit,
//! etag and time. Folders that were copied from another node usually have none,
//! which means nothing.

use std::io;
use std::path::Path;

use super::super::beneath::Folder;
use super::super::report::Kind;
use super::{Claim, Layout, is_commit, small_text};
use crate::relpath::RelPath;

const CACHE: &str = ".cache/huggingface";
const DOWNLOAD: &str = ".cache/huggingface/download";

/// The folder has the client's own folder in it.
pub(super) fn is_one(path: &Path) -> bool {
    let real = |p: &str| path.join(p).symlink_metadata().is_ok_and(|m| m.is_dir());
    real(".cache") && real(CACHE)
}

/// Reads all metadata. A folder without any is fine.
pub(super) fn read(folder: &Folder, layout: &mut Layout) -> io::Result<()> {
    let download = RelPath::parse(DOWNLOAD).map_err(io::Error::other)?;
    let download = match folder.open_folder(&download) {
        Ok(download) => download,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    for entry in download.list_into(&|_| true)? {
        if entry.kind != Kind::File {
            continue;
        }
        let name = entry.path.as_bytes();
        if name.ends_with(b".incomplete") {
            layout.incomplete.push(format!("{DOWNLOAD}/{}", entry.path));
        }
        let Some(about) = name.strip_suffix(b".metadata") else {
            continue;
        };
        let Ok(path) = RelPath::from_bytes(about) else {
            continue;
        };
        let text = small_text(&download, &entry.path).unwrap_or_default();
        layout.claims.push(parse(path, &text));
    }
    Ok(())
}

/// What the text of one metadata file claims.
fn parse(path: RelPath, text: &str) -> Claim {
    let mut lines = text.lines().map(str::trim);
    let commit = lines.next().filter(|c| is_commit(c)).map(str::to_owned);
    let etag = lines.next().filter(|e| !e.is_empty()).map(str::to_owned);
    let time = lines.next().and_then(|t| t.parse::<f64>().ok());
    let whole = commit.is_some() && etag.is_some() && time.is_some();
    Claim {
        path,
        commit: commit.filter(|_| whole),
        etag: etag.filter(|_| whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn three_lines_or_nothing() {
        let claim = |text: &str| {
            let c = parse(RelPath::parse("a").unwrap(), text);
            (c.commit, c.etag)
        };
        let commit = "0f".repeat(20);
        let good = format!("{commit}\netag\n1700000000.25\n");
        assert_eq!(
            claim(&good),
            (Some(commit.clone()), Some("etag".to_owned()))
        );
        for bad in [
            String::new(),
            commit.clone(),
            format!("{commit}\netag\n"),
            "main\netag\n1\n".to_owned(),
            format!("{commit}\n\n1\n"),
            format!("{commit}\netag\nyesterday\n"),
        ] {
            assert_eq!(claim(&bad), (None, None), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in ".{0,200}") {
            let _ = parse(RelPath::parse("a").unwrap(), &text);
        }
    }
}

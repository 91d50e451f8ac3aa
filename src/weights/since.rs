//! Leaving out what has not moved since an earlier rehash.
//!
//! A file is left out when its path, size, both times and inode are those of the
//! earlier report, and the earlier report has the digest that the manifest wants.
//! Everything else is read. What is left out is *not re-read*: it has no digest
//! in the new report and never counts as verified. A file that changed shortly
//! before the earlier rehash began is read as well, because a second change
//! within one tick of the file system's clock leaves the same times.

use super::manifest::Listing;
use super::report::{FileReport, Kind, Problem, ProblemKind, ReplicaReport};

/// Two seconds: the coarsest clock of a file system in use.
const TICK_NS: i128 = 2_000_000_000;

/// An earlier report of the same replica.
#[derive(Debug, Clone, Copy)]
pub struct Since<'a> {
    /// The report.
    pub report: &'a ReplicaReport,
    /// Boot id of this machine now.
    pub boot_id: &'a str,
}

/// Marks the files that need not be read.
pub(super) fn mark(files: &mut [FileReport], manifest: &Listing, since: Since) {
    let Ok(started) = since.report.started.parse::<jiff::Timestamp>() else {
        return;
    };
    let settled = started.as_nanosecond() - TICK_NS;
    let same_boot = since.boot_id == since.report.boot_id;
    let suffix = if same_boot {
        ""
    } else {
        "; the machine was restarted since then"
    };
    for file in files
        .iter_mut()
        .filter(|f| f.kind == Kind::File && f.problem.is_none())
    {
        let before = &since.report.files;
        let Ok(at) = before.binary_search_by(|b| b.path.cmp(&file.path)) else {
            continue;
        };
        let before = &before[at];
        let wanted = manifest.get(&file.path);
        let was_good = wanted.is_some_and(|m| m.sha256.is_some() && before.sha256 == m.sha256);
        let (Some(old), Some(new)) = (before.stat, file.stat) else {
            continue;
        };
        // Device numbers are given out anew at every start.
        let same = old.size == new.size
            && old.ino == new.ino
            && old.mtime_ns == new.mtime_ns
            && old.ctime_ns == new.ctime_ns
            && (old.dev == new.dev || !same_boot);
        if was_good && same && new.ctime_ns.0 < settled {
            file.problem = Some(Problem {
                kind: ProblemKind::NotReRead,
                detail: format!(
                    "not re-read: size, mtime, ctime and inode are those of the rehash of {}{suffix}",
                    since.report.started
                ),
            });
        }
    }
}

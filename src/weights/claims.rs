//! What names and metadata claim about content, compared with the content.
//!
//! In a hub cache a blob is named for its content; the client's metadata give an
//! etag and a commit. Both are written by whoever fetched the file, so they prove
//! nothing, and a file that contradicts them is not what somebody believed it to be.

use std::collections::BTreeMap;

use super::layout::{Chosen, Layout, LayoutKind};
use super::report::{FileReport, Kind};
use crate::codes::Code;
use crate::finding::Finding;

/// Etags and blob names are one of two digests, or say nothing.
enum Etag {
    Sha256,
    GitBlob,
    Other,
}

fn etag_kind(text: &str) -> Etag {
    let hex = text.bytes().all(|b| b.is_ascii_hexdigit());
    match text.len() {
        64 if hex => Etag::Sha256,
        40 if hex => Etag::GitBlob,
        _ => Etag::Other,
    }
}

/// The git blob id of this file's content is needed to check a claim.
pub(super) fn needs_git_blob(file: &FileReport, layout: &Layout) -> bool {
    etags(file, layout).any(|etag| matches!(etag_kind(etag), Etag::GitBlob))
}

fn etags<'a>(file: &'a FileReport, layout: &'a Layout) -> impl Iterator<Item = &'a str> {
    let claimed = layout.claims.iter().filter(|c| c.path == file.path);
    let claimed = claimed.filter_map(|c| c.etag.as_deref());
    file.blob.as_deref().into_iter().chain(claimed)
}

/// Findings about one file: its blob's name, its metadata.
pub(super) fn of_file(subject: &str, file: &FileReport, layout: &Layout) -> Vec<Finding> {
    let mut out = Vec::new();
    // Without a digest the file was reported already.
    if file.kind != Kind::File || file.problem.is_some() {
        return out;
    }
    if let Some(name) = &file.blob {
        let code = Code::BlobNameMismatch;
        out.extend(compare(subject, file, name, code, "its blob's name"));
    }
    for claim in layout.claims.iter().filter(|c| c.path == file.path) {
        match &claim.etag {
            Some(etag) => {
                let code = Code::EtagMismatch;
                out.extend(compare(subject, file, etag, code, "its download metadata"));
            }
            None => {
                let detail = "its download metadata are not three lines of commit, etag and time";
                out.push(Finding::new(Code::ClaimNotComparable, subject, detail));
            }
        }
    }
    out
}

fn compare(subject: &str, file: &FileReport, etag: &str, code: Code, who: &str) -> Option<Finding> {
    let (found, kind) = match etag_kind(etag) {
        Etag::Sha256 => (file.sha256.map(|d| d.hex()), "SHA-256"),
        Etag::GitBlob => (file.git_blob.map(|d| d.to_string()), "git blob id"),
        Etag::Other => (None, ""),
    };
    match found {
        Some(found) if found.eq_ignore_ascii_case(etag) => None,
        Some(found) => {
            let detail = format!("{who} claims another {kind} than its content has");
            Some(Finding::new(code, subject, detail).values(etag, found))
        }
        None => {
            let detail = format!("{who} gives {etag:?}, which was not compared with its content");
            Some(Finding::new(Code::ClaimNotComparable, subject, detail))
        }
    }
}

/// Findings about the replica as a whole: unfinished downloads, other revisions.
pub(super) fn of_replica(replica: &str, layout: &Layout, pinned: Option<&str>) -> Vec<Finding> {
    let mut out: Vec<_> = layout
        .incomplete
        .iter()
        .map(|name| {
            let subject = format!("{replica}/{name}");
            let detail = "a download that was begun and not finished";
            Finding::new(Code::DownloadIncomplete, subject, detail)
        })
        .collect();
    if layout.kind == LayoutKind::HfCache {
        let main = layout.refs.get("main");
        let revision = layout.revision.as_ref();
        if let (Some(pinned), Some(revision)) = (pinned, revision)
            && pinned != revision
        {
            let detail = "the snapshot is of another revision than the manifest names";
            let finding = Finding::new(Code::RevisionMismatch, replica, detail);
            out.push(finding.values(pinned, revision));
        }
        // A loader that is given the model's name follows the ref, whatever
        // snapshot was looked at here.
        if let Some(main) = main.filter(|m| Some(*m) != revision)
            && layout.chosen != Some(Chosen::ByMain)
        {
            let detail = "refs/main names another commit than the snapshot that was looked at";
            let finding = Finding::new(Code::RefElsewhere, format!("{replica}/refs/main"), detail);
            out.push(finding.values(revision.map_or("", String::as_str), main));
        }
    }
    let mut commits: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for claim in &layout.claims {
        if let Some(commit) = &claim.commit {
            commits
                .entry(commit)
                .or_default()
                .push(claim.path.to_string());
        }
    }
    if let Some(pinned) = pinned {
        commits.retain(|commit, _| !commit.eq_ignore_ascii_case(pinned));
        for (commit, files) in commits {
            let detail = format!(
                "the download metadata of {} file(s), for example {}, are of another revision than the manifest names",
                files.len(),
                files[0]
            );
            let finding = Finding::new(Code::RevisionMismatch, replica, detail);
            out.push(finding.values(pinned, commit));
        }
    } else if commits.len() > 1 {
        let all: Vec<_> = commits.into_keys().collect();
        let detail = format!(
            "the download metadata name several revisions: {}",
            all.join(", ")
        );
        out.push(Finding::new(Code::RevisionsMixed, replica, detail));
    }
    out
}

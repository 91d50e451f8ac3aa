//! From facts and a manifest to states and findings. Pure: the same list and the
//! same manifest give the same answer on the node and at the auditor's desk.

use std::collections::{BTreeMap, BTreeSet};

use super::claims;
use super::git::pointer_blob_id;
use super::layout::Layout;
use super::links::{self, Followed};
use super::manifest::{Entry, Listing};
use super::report::{Compared, FileReport, Kind, ProblemKind, ReplicaReport, State};
use super::structure::Structure;
use super::values::Algorithm;
use crate::codes::Code;
use crate::digest::{Sha256Digest, tree_root};
use crate::finding::Finding;
use crate::relpath::RelPath;

/// What is judged beside the files.
#[derive(Clone, Copy)]
pub(super) struct Facts<'a> {
    /// How findings name the replica and its checkpoint.
    pub subject: &'a str,
    pub algorithm: Algorithm,
    /// Absent in early reports, which were of flat folders.
    pub layout: Option<&'a Layout>,
    /// Absent in early reports, which did not look.
    pub structure: Option<&'a Structure>,
    /// The manifest's empty folders that are there.
    pub empty_folders: &'a BTreeSet<RelPath>,
}

impl<'a> Facts<'a> {
    pub fn of(report: &'a ReplicaReport, subject: &'a str) -> Self {
        Self {
            subject,
            algorithm: report.algorithm,
            layout: report.layout.as_ref(),
            structure: report.structure.as_ref(),
            empty_folders: &report.empty_folders,
        }
    }
}

/// Sets state and reason of every file, and returns what does not hold, in order
/// of the paths.
pub(super) fn judge(facts: Facts, manifest: &Listing, files: &mut [FileReport]) -> Vec<Finding> {
    let replica = facts.subject;
    let links: BTreeMap<String, String> = files
        .iter()
        .filter_map(|f| Some((f.path.to_string(), f.target.clone()?)))
        .collect();
    let mut findings: Vec<(Option<RelPath>, Finding)> = Vec::new();
    let mut unread_folders = Vec::new();
    let mut by_git_alone = 0;
    for file in files.iter_mut() {
        let subject = format!("{replica}/{}", file.path);
        let expected = manifest.get(&file.path);
        let mut found = |finding| findings.push((Some(file.path.clone()), finding));
        if manifest.ignores(&file.path) {
            (file.state, file.reason) = (State::Ignored, None);
            file.compared.clear();
            let detail = "it is declared as not part of the checkpoint and was not looked into";
            found(Finding::new(Code::IgnoredByManifest, &subject, detail));
            continue;
        }
        let verdict = verdict_of(file, expected, manifest, facts.algorithm, &links);
        (file.state, file.reason) = (verdict.state, verdict.reason.clone());
        let weak = verdict.compared == [Compared::GitBlob] && verdict.state == State::Verified;
        by_git_alone += usize::from(weak);
        // Said where the manifest leaves a choice; else the algorithm says it.
        let plain = manifest.root().is_some() && expected.is_none_or(|e| e.git_blob.is_none());
        file.compared = if plain { Vec::new() } else { verdict.compared };
        if let Some(code) = verdict.code {
            let detail = verdict.reason.unwrap_or_default();
            let mut finding = Finding::new(code, &subject, detail);
            finding.expected = verdict.expected;
            finding.found = verdict.found;
            found(finding);
        }
        if let Some(other) = misplaced(file, manifest) {
            let detail = format!("it holds the bytes that the manifest lists for {other}");
            found(Finding::new(Code::ShardSwapped, &subject, detail));
        }
        if let Some(note) = mode_note(&subject, file, expected) {
            found(note);
        }
        for finding in facts
            .layout
            .iter()
            .flat_map(|l| claims::of_file(&subject, file, l))
        {
            found(finding);
        }
        if file.kind == Kind::Folder && file.problem.is_some() {
            unread_folders.push(format!("{}/", file.path));
        }
    }

    let present: BTreeSet<_> = files.iter().map(|f| &f.path).collect();
    for file in manifest.entries().filter(|f| !present.contains(&f.path)) {
        // Below a folder that could not be read nothing is known to be missing.
        let path = file.path.to_string();
        if unread_folders.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let subject = format!("{replica}/{path}");
        let mut finding = Finding::new(Code::FileMissing, subject, "it is not there");
        finding.expected = file.digest_text();
        finding.found = Some("nothing".to_owned());
        findings.push((Some(file.path.clone()), finding));
    }
    for path in manifest.empty_folders().difference(facts.empty_folders) {
        let subject = format!("{replica}/{path}");
        let detail = "the manifest records an empty folder there, and there is no folder";
        let note = Finding::new(Code::EmptyFolderMissing, subject, detail);
        findings.push((Some(path.clone()), note));
    }
    for problem in facts.structure.iter().flat_map(|s| &s.problems) {
        let subject = format!("{replica}/{}", problem.path);
        findings.push((Some(problem.path.clone()), problem.finding(subject)));
    }
    let revision = manifest.revision();
    for finding in facts
        .layout
        .iter()
        .flat_map(|l| claims::of_replica(replica, l, revision))
    {
        findings.push((None, finding));
    }
    if by_git_alone > 0 {
        let detail = format!(
            "{by_git_alone} file(s) could only be compared by git blob id, because the manifest gives nothing else"
        );
        findings.push((None, Finding::new(Code::ComparedBySha1, replica, detail)));
    }
    if manifest.is_absent() {
        let detail = "there is no manifest, so nothing was compared; layout, structure and the claims of a cache were looked at";
        findings.push((None, Finding::new(Code::NotCompared, replica, detail)));
    }
    // Stable: findings of one file stay in the order of the checks, and what is
    // about the whole replica comes first.
    findings.sort_by(|a, b| a.0.cmp(&b.0));
    let mut findings: Vec<_> = findings.into_iter().map(|(_, f)| f).collect();
    // The index and the digests may both see that two shards were swapped.
    findings.dedup_by(|b, a| {
        b.code == Code::ShardSwapped && (a.code, &a.subject) == (b.code, &b.subject)
    });
    findings
}

/// The root over every file found, ignored ones aside, if each has a SHA-256.
pub(super) fn observed_root(manifest: &Listing, files: &[FileReport]) -> Option<Sha256Digest> {
    let entries: Option<Vec<_>> = files
        .iter()
        .filter(|f| !manifest.ignores(&f.path))
        .map(|f| {
            let file = f.kind == Kind::File && f.problem.is_none();
            file.then_some((&f.path, f.stat?.size, f.sha256?))
        })
        .collect();
    entries.filter(|e| !e.is_empty()).map(tree_root)
}

/// The other path whose listed content this file holds, when that is not a
/// content that the manifest lists here.
fn misplaced<'a>(file: &FileReport, manifest: &'a Listing) -> Option<&'a RelPath> {
    let here = manifest.get(&file.path)?;
    let found = file.sha256?;
    if here.sha256.is_none_or(|want| want == found) || file.stat?.size == 0 {
        return None;
    }
    let other = manifest.entries().find(|e| e.sha256 == Some(found))?;
    Some(&other.path)
}

struct Verdict {
    state: State,
    reason: Option<String>,
    code: Option<Code>,
    expected: Option<String>,
    found: Option<String>,
    compared: Vec<Compared>,
}

impl Verdict {
    fn new(state: State, code: Code, reason: impl Into<String>) -> Self {
        Self {
            state,
            reason: Some(reason.into()),
            code: Some(code),
            expected: None,
            found: None,
            compared: Vec::new(),
        }
    }

    fn mismatch(code: Code, reason: impl Into<String>) -> Self {
        Self::new(State::Mismatch, code, reason)
    }

    fn not_checked(code: Code, reason: impl Into<String>) -> Self {
        Self::new(State::NotChecked, code, reason)
    }

    fn values(mut self, expected: Option<String>, found: impl ToString) -> Self {
        self.expected = expected;
        self.found = Some(found.to_string());
        self
    }
}

fn verdict_of(
    file: &FileReport,
    expected: Option<&Entry>,
    manifest: &Listing,
    algorithm: Algorithm,
    links: &BTreeMap<String, String>,
) -> Verdict {
    let pinned = expected.and_then(Entry::digest_text);
    if let Some(problem) = file
        .problem
        .as_ref()
        .filter(|p| p.kind == ProblemKind::Dangling)
    {
        return Verdict::mismatch(Code::LinkDangling, &problem.detail).values(pinned, "nothing");
    }
    match file.kind {
        Kind::File if manifest.is_absent() => match &file.problem {
            None => Verdict {
                code: None,
                ..Verdict::not_checked(Code::NotCompared, "there is no manifest to compare with")
            },
            Some(p) if p.kind == ProblemKind::ChangedDuringRead => {
                Verdict::not_checked(Code::ChangedDuringRead, &p.detail)
            }
            Some(p) => Verdict::not_checked(Code::CouldNotRead, &p.detail),
        },
        Kind::File => match expected {
            Some(expected) => listed_file(file, expected, algorithm),
            None => Verdict::mismatch(Code::FileExtra, "the manifest does not list it")
                .values(None, digest_found(file)),
        },
        Kind::Symlink if file.blob.is_some() => Verdict::mismatch(
            Code::SymlinkEscapes,
            "the blob it leads to is itself a symbolic link; it was not followed",
        )
        .values(pinned, "a symbolic link"),
        Kind::Symlink => symlink(file, expected.is_some() || manifest.is_absent(), links).values(
            pinned,
            format!("link to {}", file.target.as_deref().unwrap_or("?")),
        ),
        Kind::Folder if expected.is_none() => {
            let why = problem_detail(file).unwrap_or("it was not looked into");
            Verdict::not_checked(Code::CouldNotRead, why)
        }
        Kind::Unknown => {
            let why = problem_detail(file).unwrap_or("it could not be looked at");
            Verdict::not_checked(Code::CouldNotRead, why)
        }
        Kind::Folder | Kind::Pipe | Kind::Socket | Kind::Device => {
            let reason = match expected {
                Some(_) => format!("a {} stands where the manifest has a file", file.kind),
                None => format!("a {} that the manifest does not list", file.kind),
            };
            Verdict::mismatch(Code::FileType, reason).values(pinned, file.kind)
        }
    }
}

fn listed_file(file: &FileReport, expected: &Entry, algorithm: Algorithm) -> Verdict {
    let pinned = expected.digest_text();
    if let Some(problem) = &file.problem
        && problem.kind == ProblemKind::ChangedDuringRead
    {
        return Verdict::not_checked(Code::ChangedDuringRead, &problem.detail)
            .values(pinned, "no stable content");
    }
    let Some(stat) = file.stat else {
        return Verdict::not_checked(Code::CouldNotRead, "it was not looked at");
    };
    if let Some(size) = expected.size.filter(|size| stat.size != *size) {
        let reason = format!("{} bytes instead of {size}", stat.size);
        return Verdict::mismatch(Code::SizeMismatch, reason).values(pinned, digest_found(file));
    }
    if let Some(problem) = &file.problem
        && problem.kind == ProblemKind::NotReRead
    {
        return Verdict::not_checked(Code::NotReRead, &problem.detail);
    }
    if let Some(problem) = &file.problem {
        return Verdict::not_checked(Code::CouldNotRead, &problem.detail)
            .values(pinned, "not read");
    }
    let other_bytes = match expected.size {
        Some(_) => "same size, other bytes",
        None => "other bytes",
    };
    let mut compared = Vec::new();
    if let Some(want) = expected.sha256.filter(|_| algorithm.sha256()) {
        match file.sha256 {
            None => return no_digest("no SHA-256 was computed").values(pinned, "not read"),
            Some(found) if found != want => {
                return Verdict::mismatch(Code::DigestMismatch, other_bytes).values(pinned, found);
            }
            Some(_) => compared.push(Compared::Sha256),
        }
    }
    if algorithm.blake3() {
        match (expected.blake3, file.blake3) {
            (_, None) => return no_digest("no BLAKE3 was computed"),
            (Some(want), Some(found)) if want != found => {
                let reason = if compared.is_empty() {
                    format!("{other_bytes} (BLAKE3)")
                } else {
                    "SHA-256 matches but BLAKE3 does not: the manifest contradicts itself"
                        .to_owned()
                };
                return Verdict::mismatch(Code::DigestMismatch, reason)
                    .values(Some(want.to_string()), found);
            }
            (Some(_), Some(_)) => compared.push(Compared::Blake3),
            (None, Some(_)) => {}
        }
    }
    if let Some(want) = expected.git_blob {
        let pointer = file.sha256.map(|sha256| pointer_blob_id(sha256, stat.size));
        if pointer == Some(want) {
            compared.push(Compared::GitPointer);
        } else if let Some(found) = file.git_blob {
            if found != want {
                let (code, reason) = if compared.is_empty() {
                    (Code::DigestMismatch, format!("{other_bytes} (git blob id)"))
                } else {
                    let reason =
                        "it matches the manifest, but it is not the revision's file of this path";
                    (Code::RevisionNotBound, reason.to_owned())
                };
                return Verdict::mismatch(code, reason).values(
                    Some(format!("git-blob:{want}")),
                    format!("git-blob:{found}"),
                );
            }
            compared.push(Compared::GitBlob);
        } else {
            return no_digest("no git blob id was computed").values(pinned, "not read");
        }
    }
    if let Some(want) = &expected.pieces {
        let Some(found) = &file.pieces else {
            return no_digest("no shards were hashed").values(pinned, "not read");
        };
        if let Some((reason, want, found)) = want.difference(found) {
            return Verdict::mismatch(Code::DigestMismatch, reason).values(Some(want), found);
        }
        compared.push(Compared::Shards);
    }
    if compared.is_empty() {
        return no_digest(match algorithm {
            Algorithm::Blake3 => "the manifest has no BLAKE3 digest to compare with",
            _ => "the manifest has no digest to compare with",
        });
    }
    Verdict {
        state: State::Verified,
        reason: None,
        code: None,
        expected: None,
        found: None,
        compared,
    }
}

fn no_digest(why: &str) -> Verdict {
    Verdict::not_checked(Code::CouldNotRead, why)
}

fn digest_found(file: &FileReport) -> String {
    match (file.sha256, file.blake3) {
        (Some(digest), _) => digest.hex(),
        (None, Some(digest)) => digest.to_string(),
        (None, None) => match &file.problem {
            Some(problem) => format!("not read: {}", problem.detail),
            None => "not read".to_owned(),
        },
    }
}

fn problem_detail(file: &FileReport) -> Option<&str> {
    file.problem.as_ref().map(|p| p.detail.as_str())
}

fn mode_note(subject: &str, file: &FileReport, expected: Option<&Entry>) -> Option<Finding> {
    let (want, have) = (expected?.mode?, file.stat?.mode);
    // Only whether it can be executed at all: the other bits follow the umask of
    // whoever copied the files.
    if file.kind != Kind::File || want.executable() == have.executable() {
        return None;
    }
    let detail = "whether it may be executed differs from the manifest";
    Some(Finding::new(Code::ModeDiffers, subject, detail).values(want, have))
}

fn symlink(file: &FileReport, listed: bool, links: &BTreeMap<String, String>) -> Verdict {
    match (destination(&file.path.to_string(), links), listed) {
        (Destination::Outside, _) => Verdict::mismatch(
            Code::SymlinkEscapes,
            "a symbolic link out of the folder; it was not followed",
        ),
        (Destination::Circle, _) => Verdict::mismatch(
            Code::SymlinkEscapes,
            "a symbolic link that leads in a circle; it was not followed",
        ),
        (Destination::Inside, true) => Verdict::mismatch(
            Code::SymlinkInFlatFolder,
            "a symbolic link stands where a file should be",
        ),
        (Destination::Inside, false) => Verdict::mismatch(
            Code::FileExtra,
            "a symbolic link that the manifest does not list",
        ),
    }
}

enum Destination {
    Inside,
    Outside,
    Circle,
}

/// Where a link leads, links within the folder followed through those found in it.
fn destination(link: &str, links: &BTreeMap<String, String>) -> Destination {
    match links::follow(link, |path| links.get(path).map(String::as_str)) {
        Some(Followed::To(_)) => Destination::Inside,
        Some(Followed::Circle) => Destination::Circle,
        None => Destination::Outside,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_resolved_by_name() {
        let links: BTreeMap<String, String> = [
            ("file", "other"),
            ("up", "../other"),
            ("sub/up", "../other"),
            ("sub/out", "../../other"),
            ("absolute", "/etc/passwd"),
            ("self", "self"),
            ("a", "b"),
            ("b", "a"),
            ("here", "."),
            ("dir", "sub"),
            ("through", "dir/out"),
            ("chain", "file"),
            ("round", "round/x"),
        ]
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .into();
        let where_to = |link| match destination(link, &links) {
            Destination::Inside => "inside",
            Destination::Outside => "outside",
            Destination::Circle => "circle",
        };
        for (link, expected) in [
            ("file", "inside"),
            ("up", "outside"),
            ("sub/up", "inside"),
            ("sub/out", "outside"),
            ("absolute", "outside"),
            ("self", "circle"),
            ("a", "circle"),
            ("here", "inside"),
            ("dir", "inside"),
            ("through", "outside"),
            ("chain", "inside"),
            ("round", "circle"),
        ] {
            assert_eq!(where_to(link), expected, "{link}");
        }
    }
}

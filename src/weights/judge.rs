//! From facts and a manifest to states and findings. Pure: the same list and the
//! same manifest give the same answer on the node and at the auditor's desk.

use std::collections::BTreeMap;

use super::manifest::{Manifest, ManifestFile};
use super::report::{FileReport, Kind, ProblemKind, State};
use super::values::Algorithm;
use crate::codes::Code;
use crate::digest::{Sha256Digest, tree_root};
use crate::finding::Finding;
use crate::relpath::RelPath;

/// Sets state and reason of every file, and returns what does not hold, in order
/// of the paths.
pub(super) fn judge(
    replica: &str,
    manifest: &Manifest,
    algorithm: Algorithm,
    files: &mut [FileReport],
) -> Vec<Finding> {
    let links: BTreeMap<String, String> = files
        .iter()
        .filter_map(|f| Some((f.path.to_string(), f.target.clone()?)))
        .collect();
    let mut findings: Vec<(RelPath, Finding)> = Vec::new();
    let mut unread_folders = Vec::new();
    for file in files.iter_mut() {
        let subject = format!("{replica}/{}", file.path);
        let expected = manifest.get(&file.path);
        let verdict = verdict_of(file, expected, algorithm, &links);
        (file.state, file.reason) = (verdict.state, verdict.reason.clone());
        if let Some(code) = verdict.code {
            let detail = verdict.reason.unwrap_or_default();
            let mut finding = Finding::new(code, &subject, detail);
            finding.expected = verdict.expected;
            finding.found = verdict.found;
            findings.push((file.path.clone(), finding));
        }
        if let Some(note) = mode_note(&subject, file, expected) {
            findings.push((file.path.clone(), note));
        }
        if file.kind == Kind::Folder && file.problem.is_some() {
            unread_folders.push(format!("{}/", file.path));
        }
    }

    let present: std::collections::BTreeSet<_> = files.iter().map(|f| &f.path).collect();
    for file in manifest.files().filter(|f| !present.contains(&f.path)) {
        // Below a folder that could not be read nothing is known to be missing.
        let path = file.path.to_string();
        if unread_folders.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let subject = format!("{replica}/{path}");
        let finding = Finding::new(Code::FileMissing, subject, "it is not there")
            .values(file.sha256, "nothing");
        findings.push((file.path.clone(), finding));
    }
    findings.sort_by(|a, b| a.0.cmp(&b.0));
    findings.into_iter().map(|(_, finding)| finding).collect()
}

/// The root over every file found, if each has a SHA-256.
pub(super) fn observed_root(files: &[FileReport]) -> Option<Sha256Digest> {
    let entries: Option<Vec<_>> = files
        .iter()
        .map(|f| {
            let file = f.kind == Kind::File && f.problem.is_none();
            file.then_some((&f.path, f.stat?.size, f.sha256?))
        })
        .collect();
    entries.map(tree_root)
}

struct Verdict {
    state: State,
    reason: Option<String>,
    code: Option<Code>,
    expected: Option<String>,
    found: Option<String>,
}

impl Verdict {
    fn new(state: State, code: Code, reason: impl Into<String>) -> Self {
        Self {
            state,
            reason: Some(reason.into()),
            code: Some(code),
            expected: None,
            found: None,
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
    expected: Option<&ManifestFile>,
    algorithm: Algorithm,
    links: &BTreeMap<String, String>,
) -> Verdict {
    let sha = expected.map(|e| e.sha256.hex());
    match file.kind {
        Kind::File => match expected {
            Some(expected) => listed_file(file, expected, algorithm),
            None => Verdict::mismatch(Code::FileExtra, "the manifest does not list it")
                .values(None, digest_found(file)),
        },
        Kind::Symlink => symlink(file, expected.is_some(), links).values(
            sha,
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
            Verdict::mismatch(Code::FileType, reason).values(sha, file.kind)
        }
    }
}

fn listed_file(file: &FileReport, expected: &ManifestFile, algorithm: Algorithm) -> Verdict {
    let sha = Some(expected.sha256.hex());
    if let Some(problem) = &file.problem
        && problem.kind == ProblemKind::ChangedDuringRead
    {
        return Verdict::not_checked(Code::ChangedDuringRead, &problem.detail)
            .values(sha, "no stable content");
    }
    let Some(stat) = file.stat else {
        return Verdict::not_checked(Code::CouldNotRead, "it was not looked at");
    };
    if stat.size != expected.size {
        let reason = format!("{} bytes instead of {}", stat.size, expected.size);
        return Verdict::mismatch(Code::SizeMismatch, reason).values(sha, digest_found(file));
    }
    if let Some(problem) = &file.problem
        && problem.kind == ProblemKind::NotReRead
    {
        return Verdict::not_checked(Code::NotReRead, &problem.detail);
    }
    if let Some(problem) = &file.problem {
        return Verdict::not_checked(Code::CouldNotRead, &problem.detail).values(sha, "not read");
    }
    if algorithm.sha256() {
        match file.sha256 {
            None => return no_digest("no SHA-256 was computed").values(sha, "not read"),
            Some(found) if found != expected.sha256 => {
                return Verdict::mismatch(Code::DigestMismatch, "same size, other bytes")
                    .values(sha, found);
            }
            Some(_) => {}
        }
    }
    if algorithm.blake3() {
        match (expected.blake3, file.blake3) {
            (Some(want), Some(found)) if want != found => {
                let reason = if algorithm.sha256() {
                    "SHA-256 matches but BLAKE3 does not: the manifest contradicts itself"
                } else {
                    "same size, other bytes (BLAKE3)"
                };
                return Verdict::mismatch(Code::DigestMismatch, reason)
                    .values(Some(want.to_string()), found);
            }
            (Some(_), Some(_)) => {}
            (_, None) => return no_digest("no BLAKE3 was computed"),
            // With SHA-256 compared above, a manifest without BLAKE3 is enough.
            (None, Some(_)) if algorithm.sha256() => {}
            (None, Some(_)) => {
                return no_digest("the manifest has no BLAKE3 digest to compare with");
            }
        }
    }
    Verdict {
        state: State::Verified,
        reason: None,
        code: None,
        expected: None,
        found: None,
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

fn mode_note(subject: &str, file: &FileReport, expected: Option<&ManifestFile>) -> Option<Finding> {
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
            "a symbolic link stands where the manifest has a file",
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

/// Where a link leads, by the names alone: nothing is opened, and links within
/// the folder are followed through the list of links found in it. Works on
/// escaped text, in which `/`, `.` and `..` stand for themselves.
fn destination(link: &str, links: &BTreeMap<String, String>) -> Destination {
    let mut place: Vec<&str> = Vec::new();
    let mut ahead: Vec<&str> = link.rsplit('/').collect();
    let mut hops = 0;
    while let Some(part) = ahead.pop() {
        match part {
            "" | "." => continue,
            ".." => {
                if place.pop().is_none() {
                    return Destination::Outside;
                }
                continue;
            }
            name => place.push(name),
        }
        if let Some(target) = links.get(&place.join("/")) {
            hops += 1;
            // The kernel gives up after as many.
            if hops > 40 {
                return Destination::Circle;
            }
            if target.starts_with('/') {
                return Destination::Outside;
            }
            place.pop();
            ahead.extend(target.rsplit('/'));
        }
    }
    Destination::Inside
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

//! Reading somebody else's report: does it follow from its own facts?

use super::judge::{self, Facts, observed_root};
use super::manifest::Listing;
use super::report::{
    Compared, FileReport, Kind, REPLICA_FORMAT, ReplicaReport, State, in_order, subject,
};
use super::values::Algorithm;
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::finding::Finding;

/// Does the report follow from its own facts, and is it about this manifest?
///
/// Every finding is a `replica-report-mismatch`: something in the report was
/// edited, or written by a program that judges differently. Mismatching weights,
/// honestly reported, give no finding here.
pub fn check_report(manifest: &impl AsRef<Listing>, report: &ReplicaReport) -> Vec<Finding> {
    let manifest = manifest.as_ref();
    let mut out = Vec::new();
    let mut differs = |field: &str, detail: &str, expected: String, found: String| {
        if expected != found {
            let subject = format!("{}/{field}", report.replica);
            out.push(
                Finding::new(Code::ReplicaReportMismatch, subject, detail).values(expected, found),
            );
        }
    };
    let text = |v: Option<Sha256Digest>| v.map_or("none".to_owned(), |d| d.hex());
    differs(
        "format",
        "The report is in another format.",
        REPLICA_FORMAT.to_owned(),
        report.format.clone(),
    );
    differs(
        "manifest_root",
        "The report is about another manifest.",
        text(manifest.root()),
        text(report.manifest_root),
    );
    differs(
        "observed_root",
        "The observed root is not that of the files in the report.",
        text(observed_root(manifest, &report.files)),
        text(report.observed_root),
    );
    differs(
        "files",
        "The paths are not in strictly ascending order.",
        "in order".to_owned(),
        if in_order(&report.files) {
            "in order"
        } else {
            "out of order"
        }
        .to_owned(),
    );
    differs(
        "started",
        "The times are not RFC 3339 in UTC, or do not run forwards.",
        "in order".to_owned(),
        times_run_forwards(report),
    );
    if let Some(after) = &report.after {
        differs(
            "after.unchanged",
            "The second look lists changes that it denies, or the reverse.",
            after.changed.is_empty().to_string(),
            after.unchanged.to_string(),
        );
    }

    let mut files = report.files.clone();
    let subject = subject(&report.replica, &report.role);
    let findings = judge::judge(Facts::of(report, &subject), manifest, &mut files);
    for (derived, stated) in files.iter().zip(&report.files) {
        differs(
            &stated.path.to_string(),
            "The state of the file does not follow from what was read.",
            state_in_words(derived),
            state_in_words(stated),
        );
        if let Some(why) = impossible(stated, report.algorithm) {
            differs(
                &stated.path.to_string(),
                "The entry contradicts itself.",
                "a possible entry".to_owned(),
                why.to_owned(),
            );
        }
    }
    if findings != report.findings {
        differs(
            "findings",
            "The findings are not those that follow from the files.",
            codes_in_words(&findings),
            // Same codes, other words: still told apart.
            format!("{} (as stated)", codes_in_words(&report.findings)),
        );
    }
    out
}

fn times_run_forwards(report: &ReplicaReport) -> String {
    let mut last: Option<jiff::Timestamp> = None;
    let after = report.after.as_ref().map(|a| &a.finished);
    for text in [&report.started, &report.finished].into_iter().chain(after) {
        match text.parse::<jiff::Timestamp>() {
            Ok(t) if text.ends_with('Z') && last.is_none_or(|l| l <= t) => last = Some(t),
            _ => return text.clone(),
        }
    }
    "in order".to_owned()
}

fn state_in_words(file: &FileReport) -> String {
    let state = match file.state {
        State::Verified => "verified",
        State::Mismatch => "mismatch",
        State::NotChecked => "not checked",
        State::Ignored => "ignored",
    };
    let by: Vec<_> = file.compared.iter().map(Compared::to_string).collect();
    match &file.reason {
        Some(reason) => format!("{state}: {reason}"),
        None if by.is_empty() => state.to_owned(),
        None => format!("{state} by {}", by.join(" and ")),
    }
}

fn codes_in_words(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "none".to_owned();
    }
    let each: Vec<_> = findings
        .iter()
        .map(|f| format!("{} {}", f.code, f.subject))
        .collect();
    each.join(", ")
}

/// Facts that no rehash writes down together.
fn impossible(file: &FileReport, algorithm: Algorithm) -> Option<&'static str> {
    let whole = file.sha256.is_some() || file.blake3.is_some();
    let digest = whole || file.git_blob.is_some() || file.pieces.is_some();
    if digest && file.kind != Kind::File {
        return Some("a digest of something that is not a file");
    }
    if digest && file.problem.is_some() {
        return Some("a digest and a reason why there is none");
    }
    if digest && file.stat.is_none() {
        return Some("a digest of a file that was never looked at");
    }
    if file.sha256.is_some() && !algorithm.sha256() || file.blake3.is_some() && !algorithm.blake3()
    {
        return Some("a digest that this rehash did not compute");
    }
    if file.target.is_some() && file.kind != Kind::Symlink {
        return Some("a link target on something that is not a link");
    }
    None
}

//! One checkpoint of one replica: rehash it here, or take the report of somebody who
//! did, and judge it for itself.

use std::collections::BTreeSet;
use std::path::Path;

use super::check::check_report;
use super::hashing::Pace;
use super::layout::Wanted;
use super::manifest::Listing;
use super::rehash::{At, Progress, ReplicaScan, Request, Unreachable, rehash_each};
use super::report::{
    Integrity, ReplicaReport, ReportContext, derive_integrity, integrity_of_judged, subject,
};
use super::restat::restat;
use super::since::Since;
use super::values::Algorithm;
use crate::codes::Code;
use crate::finding::Finding;

/// A replica to look at.
pub struct Target<'a> {
    /// What the report will say; its `finished` is set when the scan ends.
    pub context: ReportContext,
    /// The folder.
    pub path: &'a Path,
    /// Which revision to look at, in a hub cache.
    pub revision: Option<&'a str>,
    /// Hears how far the scan is.
    pub progress: &'a dyn Progress,
}

/// A target and what it should hold.
pub struct Expected<'a> {
    /// Where to look.
    pub target: Target<'a>,
    /// What should be there.
    pub manifest: &'a Listing,
    /// An earlier report, to leave out what has not moved since.
    pub since: Option<Since<'a>>,
}

/// Rehashes targets on this machine, all at once, and judges each for itself.
/// `done` is called with each as soon as it is known, on whichever thread did it.
pub fn looked<R: Send>(
    targets: Vec<Expected<'_>>,
    algorithm: Algorithm,
    pace: Pace,
    now: &(dyn Fn() -> String + Sync),
    done: impl Fn(usize, Looked) -> R + Sync,
) -> Vec<R> {
    let requests = targets.iter().map(|e| {
        let wanted = Wanted {
            asked: e.target.revision,
            pinned: e.manifest.revision(),
        };
        let at = At::Path(e.target.path, wanted);
        Request {
            since: e.since,
            ..Request::compare(at, e.manifest, algorithm, e.target.progress)
        }
    });
    rehash_each(requests.collect(), pace, |index, scan| {
        let e = &targets[index];
        done(index, judged(e, scan, now))
    })
}

fn judged(
    e: &Expected,
    scan: Result<ReplicaScan, Unreachable>,
    now: &(dyn Fn() -> String + Sync),
) -> Looked {
    let (mut context, manifest) = (e.target.context.clone(), e.manifest);
    match scan {
        Ok(scan) => {
            context.finished = now();
            let report = scan.into_report(manifest, context);
            Looked::at(manifest, second_look(e.target.path, report, now))
        }
        Err(e) => {
            let subject = subject(&context.replica, &context.role);
            let finding = Finding::new(e.0.code(), subject, e.to_string());
            Looked::unreachable(&context.replica, &context.role, finding)
        }
    }
}

/// What became of one checkpoint of one replica, before it is compared with the
/// others.
#[derive(Debug, Clone)]
pub struct Looked {
    /// The replica's name.
    pub replica: String,
    /// What the checkpoint is for.
    pub role: String,
    /// Does it hold the checkpoint?
    pub integrity: Integrity,
    /// The rehash, when there was one.
    pub report: Option<ReplicaReport>,
    /// The node key that signed the report, when that was checked and held.
    pub signed_by: Option<String>,
    /// Everything that does not hold.
    pub findings: Vec<Finding>,
}

impl Looked {
    /// Takes a report that was made here, against this manifest.
    pub fn at(manifest: &Listing, report: ReplicaReport) -> Self {
        let integrity =
            integrity_of_judged(manifest, report.algorithm, &report.files, &report.findings);
        Self::with(integrity, report)
    }

    fn with(mut integrity: Integrity, report: ReplicaReport) -> Self {
        let mut findings = report.findings.clone();
        let moved = moved(&report);
        if !moved.is_empty() && integrity == Integrity::Verified {
            integrity = Integrity::NotChecked {
                reason: "it changed while the replica was read".to_owned(),
            };
        }
        findings.extend(moved);
        Self {
            replica: report.replica.clone(),
            role: report.role.clone(),
            integrity,
            findings,
            report: Some(report),
            signed_by: None,
        }
    }

    /// Judges a report that somebody else made: it must follow from its own facts.
    pub fn from_elsewhere(manifest: &Listing, report: ReplicaReport) -> Self {
        let mut doubts = check_report(manifest, &report);
        let integrity = derive_integrity(manifest, &report);
        let mut this = Self::with(integrity, report);
        if !doubts.is_empty() && this.integrity == Integrity::Verified {
            this.integrity = Integrity::NotChecked {
                reason: "the report contradicts itself".to_owned(),
            };
        }
        doubts.append(&mut this.findings);
        this.findings = doubts;
        this
    }

    /// There is no report.
    pub fn unreachable(replica: &str, role: &str, finding: Finding) -> Self {
        Self {
            replica: replica.to_owned(),
            role: role.to_owned(),
            integrity: Integrity::NotChecked {
                reason: finding.detail.clone(),
            },
            report: None,
            signed_by: None,
            findings: vec![finding],
        }
    }
}

/// Looks at names, sizes and times again once all is read: a large checkpoint is read
/// for hours, and what was read first may be another file by then. Kept in the report
/// when something moved.
pub fn second_look(
    path: &Path,
    mut report: ReplicaReport,
    now: &(dyn Fn() -> String + Sync),
) -> ReplicaReport {
    let after = restat(path, &report, now());
    if !after.unchanged {
        report.after = Some(after);
    }
    report
}

/// What the second look of a rehash saw, beside what was seen at the first.
fn moved(report: &ReplicaReport) -> Vec<Finding> {
    let replica = subject(&report.replica, &report.role);
    let troubled = report.files.iter().filter(|f| f.problem.is_some());
    let known: BTreeSet<String> = troubled.map(|f| f.path.to_string()).collect();
    let changes = report.after.iter().flat_map(|a| &a.changed);
    changes
        .filter(|c| !known.contains(&c.path))
        .map(|c| {
            let subject = format!("{replica}/{}", c.path);
            let detail = format!("{} while the replica was read", c.what);
            Finding::new(Code::ChangedDuringRead, subject, detail)
        })
        .collect()
}

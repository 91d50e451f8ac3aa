//! `verify weights --report`: judges saved reports again, from their digests and
//! the manifest alone. No replica is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use runseal::codes::Code;
use runseal::finding::Finding;
use runseal::weights::{
    self, Basis, Integrity, Looked, NodeKey, ReplicaReport, SavedReport, Signature, Survey,
};

use super::options::Options;
use super::remote::Replicas;
use crate::cli::read_input;

const MAX_REPORT: u64 = 1 << 29;

/// Judges the reports and compares them with each other.
pub fn survey(
    options: &Options,
    given: &Replicas,
    asserted: Option<usize>,
) -> anyhow::Result<Survey> {
    let keys = options.trusted()?;
    let manifests = &given.manifests;
    let mut looked = Vec::new();
    for Given { saved, doubt, .. } in only_one_each(read_reports(&options.reports)?)? {
        let report = saved.report.clone();
        let manifest = manifests.iter().find(|(r, _)| r.name() == report.role);
        let mut one = match manifest {
            Some((_, manifest)) => Looked::from_elsewhere(manifest, report),
            None => {
                let reason = format!("no manifest was given for the {}", report.role);
                let finding = Finding::new(Code::ReplicaReportMismatch, &report.replica, &reason);
                Looked {
                    replica: report.replica.clone(),
                    role: report.role.clone(),
                    integrity: Integrity::NotChecked { reason },
                    report: Some(report),
                    signed_by: None,
                    findings: vec![finding],
                }
            }
        };
        apply_signature(&saved, &keys, &mut one);
        one.findings.extend(doubt);
        looked.push(one);
    }
    known_names(&keys, looked.iter().map(|l| l.replica.as_str()))?;
    looked.extend(missing(given, &looked));
    Ok(weights::conclude(
        &given.expected(),
        looked,
        asserted,
        Basis::Reports,
    ))
}

/// Checkpoints without a report: of the inventory's replicas, and of those that
/// have a report on another checkpoint.
fn missing(given: &Replicas, looked: &[Looked]) -> Vec<Looked> {
    let named = given.replicas.iter().map(|r| r.name.as_str());
    let mut names: BTreeSet<&str> = named.filter(|n| !n.is_empty()).collect();
    names.extend(looked.iter().map(|l| l.replica.as_str()));
    let mut out = Vec::new();
    for name in names {
        for role in given.manifests.keys() {
            if looked
                .iter()
                .any(|l| l.replica == name && l.role == role.name())
            {
                continue;
            }
            let detail = format!("no report on its {role} was given");
            let finding = Finding::new(Code::ReportMissing, name, detail);
            out.push(Looked::unreachable(name, role.name(), finding));
        }
    }
    out
}

/// Notes who signed a report, or that nobody did who should have.
pub fn apply_signature(saved: &SavedReport, keys: &[NodeKey], looked: &mut Looked) {
    match saved.signature(keys) {
        Signature::None | Signature::Unchecked => {}
        Signature::Verified(key) => looked.signed_by = Some(key.fingerprint()),
        Signature::Bad(finding) => looked.findings.push(finding),
    }
}

/// A key for a replica that does not exist would silently check nothing.
pub fn known_names<'a>(
    keys: &[NodeKey],
    names: impl Iterator<Item = &'a str>,
) -> anyhow::Result<()> {
    let names: BTreeSet<&str> = names.collect();
    match keys
        .iter()
        .filter_map(|k| k.replica.as_deref())
        .find(|n| !names.contains(n))
    {
        Some(name) => bail!("--node-key names {name:?}, which is no replica here"),
        None => Ok(()),
    }
}

/// Earlier reports by replica and role.
pub type Earlier = BTreeMap<(String, String), ReplicaReport>;

pub fn earlier_reports(paths: &[PathBuf]) -> anyhow::Result<Earlier> {
    let mut out = Earlier::new();
    for Given { path, saved, doubt } in only_one_each(read_reports(paths)?)? {
        if let Some(doubt) = doubt {
            bail!("{}: {}", path.display(), doubt.detail);
        }
        let report = saved.report;
        out.insert((report.replica.clone(), report.role.clone()), report);
    }
    Ok(out)
}

/// Two reports on one checkpoint of one replica are two answers to one question,
/// and no two replicas.
fn only_one_each(all: Vec<Given>) -> anyhow::Result<Vec<Given>> {
    let mut met: BTreeMap<(String, String), &Path> = BTreeMap::new();
    for Given { path, saved, .. } in &all {
        let (replica, role) = (&saved.report.replica, &saved.report.role);
        if let Some(first) = met.insert((replica.clone(), role.clone()), path) {
            bail!(
                "{} is a second report on the {role} of replica {replica}, beside {} (hint: give the one that you mean)",
                path.display(),
                first.display()
            );
        }
    }
    Ok(all)
}

/// A report that was given.
struct Given {
    /// The file that is judged.
    path: PathBuf,
    saved: SavedReport,
    /// What does not fit about the files that make it up.
    doubt: Option<Finding>,
}

/// `gx1` for `gx1.json` and for `gx1.dsse.json`, in their folder.
fn stem(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let name = name.strip_suffix(b".json").unwrap_or(name);
    let name = name.strip_suffix(b".dsse").unwrap_or(name);
    let name = std::ffi::OsStr::from_bytes(name);
    path.with_file_name(name)
}

/// A signed report and a plain one that are two forms of one report. What was signed
/// is what counts.
fn joined(one: Given, other: Given) -> Given {
    let (signed, plain) = match one.saved.envelope {
        Some(_) => (one, other),
        None => (other, one),
    };
    let same = signed.saved.report == plain.saved.report;
    let doubt = (!same).then(|| {
        let detail = format!(
            "{} is not the report that was signed; the one in {} was judged",
            plain.path.display(),
            signed.path.display()
        );
        Finding::new(
            Code::ReportNotAsSigned,
            &signed.saved.report.replica,
            detail,
        )
    });
    Given {
        doubt: signed.doubt.or(doubt),
        ..signed
    }
}

/// Reads saved reports. In a folder, a signed report's envelope belongs to the
/// plain file beside it, and a mere copy is not read twice.
fn read_reports(paths: &[PathBuf]) -> anyhow::Result<Vec<Given>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let shown = path.display();
        let entries = std::fs::read_dir(path).with_context(|| format!("could not list {shown}"))?;
        let mut inside: Vec<PathBuf> = entries
            .map(|e| e.map(|e| e.path()))
            .collect::<Result<_, _>>()
            .with_context(|| format!("could not list {shown}"))?;
        inside.retain(|p| p.extension().is_some_and(|e| e == "json"));
        inside.sort();
        if inside.is_empty() {
            bail!("{shown} holds no reports (hint: --save-reports writes them)");
        }
        files.extend(inside);
    }
    let mut out: Vec<Given> = Vec::new();
    let mut met = BTreeSet::new();
    for path in files {
        // A file that was named itself and lies in a folder that was named.
        if !met.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
            continue;
        }
        let bytes = read_input(&path, "the report", MAX_REPORT)?;
        let saved = SavedReport::parse(&bytes).with_context(|| format!("{}", path.display()))?;
        let given = Given {
            path,
            saved,
            doubt: None,
        };
        // The envelope and its payload: one report, by their names or by what they hold.
        let pair = out.iter().position(|g| {
            let two_forms = g.saved.envelope.is_none() != given.saved.envelope.is_none();
            let equal = g.saved.report == given.saved.report;
            two_forms && (equal || stem(&g.path) == stem(&given.path))
        });
        match pair {
            Some(at) => {
                let other = out.remove(at);
                out.insert(at, joined(other, given));
            }
            None => out.push(given),
        }
    }
    Ok(out)
}

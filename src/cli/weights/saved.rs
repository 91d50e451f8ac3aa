//! `verify weights --report`: judges saved reports again, from their digests and
//! the manifest alone. No replica is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

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
    for (_, saved) in read_reports(&options.reports)? {
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
    for (path, saved) in read_reports(paths)? {
        let report = saved.report;
        let key = (report.replica.clone(), report.role.clone());
        if out.insert(key, report).is_some() {
            bail!(
                "{} is a second report on the same replica and checkpoint",
                path.display()
            );
        }
    }
    Ok(out)
}

/// Reads saved reports. In a folder, a signed report's envelope belongs to the
/// plain file beside it, and a mere copy is not read twice.
fn read_reports(paths: &[PathBuf]) -> anyhow::Result<Vec<(PathBuf, SavedReport)>> {
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
    let mut out: Vec<(PathBuf, SavedReport)> = Vec::new();
    for path in files {
        let bytes = read_input(&path, "the report", MAX_REPORT)?;
        let saved = SavedReport::parse(&bytes).with_context(|| format!("{}", path.display()))?;
        match out.iter_mut().find(|(_, s)| s.report == saved.report) {
            // The envelope and its payload: one report.
            Some((_, same)) if same.envelope.is_none() != saved.envelope.is_none() => {
                same.envelope = same.envelope.take().or(saved.envelope);
            }
            _ => out.push((path, saved)),
        }
    }
    Ok(out)
}

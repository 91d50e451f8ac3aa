//! `verify weights --report`: judges saved reports again, from their digests and
//! the manifest alone. No replica is looked at.

use std::collections::BTreeSet;

use runseal::codes::Code;
use runseal::finding::Finding;
use runseal::weights::{self, Basis, Integrity, Looked, Survey};

use super::weights_remote::{Options, Replicas, apply_signature, read_reports};

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
    looked.extend(missing(given, &looked));
    Ok(weights::conclude(looked, asserted, Basis::Reports))
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

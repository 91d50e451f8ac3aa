//! Verify: every checkpoint file on every replica, before anything is launched.

use std::collections::BTreeMap;
use std::path::Path;

use runseal::bundle::evidence::replica_file;
use runseal::codes::Code;
use runseal::durable::{self, WriteError, WriteOptions};
use runseal::event::State;
use runseal::finding::Severity;
use runseal::plan::RunPlan;
use runseal::weights::{
    Algorithm, Integrity, Inventory, NoProgress, Pace, Replica, ReplicaReport, ReportContext,
    Survey, Target, restat, survey,
};

use super::bundle_dir::BundleDir;
use super::{Run, Stop, facts};
use crate::builtin;
use crate::plan_file::Resolved;

/// Inventory that `verify weights` reads.
pub const INVENTORY: &str = "cluster.toml";
/// Manifest beside it.
pub const MANIFEST: &str = "weights.manifest.json";

/// Makes absent copies of built-in checkpoints; returns the names made.
pub fn make_replicas(resolved: &Resolved) -> anyhow::Result<Vec<String>> {
    let mut made = Vec::new();
    for role in &resolved.builtin_roles {
        for replica in &resolved.plan.replicas {
            if let Some(path) = replica.paths.get(role)
                && builtin::create_replica(Path::new(path))?
            {
                made.push(replica.name.clone());
            }
        }
    }
    Ok(made)
}

/// Writes the inventory and manifest for `verify weights`. Files that are there
/// with other contents are left alone, and that is said.
pub fn write_inventory(resolved: &Resolved) -> anyhow::Result<Vec<String>> {
    let Some(manifest) = resolved.manifests.get("target") else {
        return Ok(Vec::new());
    };
    let replicas = resolved
        .plan
        .replicas
        .iter()
        .map(|r| {
            let path = r.paths.get("target").cloned().unwrap_or_default();
            Replica::local(r.name.clone(), path)
        })
        .collect();
    let inventory = Inventory::new(MANIFEST, replicas)?;
    let mut notes = Vec::new();
    for (name, bytes) in [
        (MANIFEST, manifest.to_bytes()),
        (INVENTORY, inventory.render().into_bytes()),
    ] {
        match std::fs::read(name) {
            Ok(there) if there == bytes => {}
            // With comments, or in another order of keys.
            Ok(there) if name == INVENTORY && says(&there, &inventory) => {}
            Ok(_) => notes.push(format!(
                "preflight: ./{name} is there with other contents and was left alone; `verify weights` \
                 reads that one"
            )),
            Err(_) => match durable::write(Path::new(name), &bytes, WriteOptions::default()) {
                Ok(()) => {}
                Err(e) => notes.push(format!("preflight: {e}")),
            },
        }
    }
    Ok(notes)
}

/// True when a file is this inventory, however it is written.
fn says(text: &[u8], inventory: &Inventory) -> bool {
    let text = std::str::from_utf8(text).ok();
    text.and_then(|t| Inventory::parse(t).ok()).as_ref() == Some(inventory)
}

impl Run {
    /// Rehashes every checkpoint on every replica. Anything but "all verified,
    /// all distinct, all agreeing" refuses the launch.
    pub(super) async fn verify(&mut self) -> Result<(), Stop> {
        self.enter(State::Verify);
        let resolved = self.inputs.resolved.clone();
        let run_id = self.dir.run_id.clone();
        let nonce_hash = self.dir.nonce_hash;
        // Hashing is work for threads of its own, minutes of it for a large
        // checkpoint. A signal does not wait: the threads only read, and end with
        // the process.
        let work = tokio::task::spawn_blocking(move || survey_all(&resolved, &run_id, nonce_hash));
        let surveys = self
            .or_signal(work)
            .await?
            .map_err(|e| Stop::failure("rehash-died", e))?;
        let plan = &self.inputs.resolved.plan;
        let mut faults = Vec::new();
        let mut only_duplicates = true;
        for (role, survey) in &surveys {
            let verified = survey
                .replicas
                .iter()
                .filter(|r| r.integrity == Integrity::Verified)
                .count();
            self.say(&format!(
                "verify: {role}: {verified} of {} replicas verified, {} distinct, on {} machine(s)",
                plan.replicas.len(),
                survey.agreement.replicas,
                survey.agreement.machines
            ));
            let errors = survey
                .findings
                .iter()
                .filter(|f| f.severity == Severity::Error);
            for f in errors {
                let mut text = format!("{} {}: {}", f.code, f.subject, f.detail);
                if let (Some(expected), Some(found)) = (&f.expected, &f.found) {
                    text.push_str(&format!(" (expected {expected}, found {found})"));
                }
                self.say(&format!("verify: {text}"));
                faults.push(text);
                only_duplicates &= matches!(f.code, Code::ReplicaDuplicate | Code::ReplicaCount);
            }
            if verified != plan.replicas.len() && faults.is_empty() {
                only_duplicates = false;
                faults.push(format!(
                    "{role}: {verified} of {} verified",
                    plan.replicas.len()
                ));
            }
        }
        for (role, survey) in surveys {
            for replica in survey.replicas {
                if let Some(report) = replica.report {
                    self.reports.insert((replica.name, role.clone()), report);
                }
            }
        }
        write_reports(&self.dir, &self.reports).map_err(|e| Stop::failure("evidence-write", e))?;
        match faults.first() {
            None => Ok(()),
            Some(first) => Err(Stop::Refusal {
                cause: match only_duplicates {
                    true => Code::ReplicaDuplicate.name(),
                    false => "weights-not-verified",
                },
                detail: match faults.len() {
                    1 => first.clone(),
                    n => format!("{first}; and {} more", n - 1),
                },
            }),
        }
    }
}

fn survey_all(
    resolved: &Resolved,
    run_id: &str,
    nonce_hash: runseal::digest::Sha256Digest,
) -> Vec<(String, Survey)> {
    let plan = &resolved.plan;
    let boot_id = facts::boot_id().unwrap_or_default();
    resolved
        .manifests
        .iter()
        .map(|(role, manifest)| {
            let targets = plan
                .replicas
                .iter()
                .map(|r| Target {
                    context: ReportContext {
                        replica: r.name.clone(),
                        role: role.clone(),
                        run_id: Some(run_id.to_owned()),
                        nonce_hash: Some(nonce_hash),
                        plan_digest: Some(plan.digest()),
                        boot_id: boot_id.clone(),
                        started: facts::now_text(),
                        finished: String::new(),
                    },
                    path: Path::new(r.paths.get(role).map_or("", String::as_str)),
                    revision: None,
                    progress: &NoProgress,
                })
                .collect();
            let asserted = Some(plan.replicas.len());
            let survey = survey(
                targets,
                manifest,
                Algorithm::Sha256,
                Pace::default(),
                asserted,
                &facts::now_text,
            );
            (role.clone(), survey)
        })
        .collect()
}

/// Writes the reports into the bundle.
pub fn write_reports(
    dir: &BundleDir,
    reports: &BTreeMap<(String, String), ReplicaReport>,
) -> Result<(), WriteError> {
    for ((replica, role), report) in reports {
        dir.write_json(&replica_file(replica, role), report)?;
    }
    Ok(())
}

/// Looks at size, times and inode of every file again, without reading; says
/// what changed since the rehash.
pub fn restat_all(
    plan: &RunPlan,
    reports: &mut BTreeMap<(String, String), ReplicaReport>,
) -> Vec<String> {
    let mut changes = Vec::new();
    for ((name, role), report) in reports {
        let replica = plan.replicas.iter().find(|r| r.name == *name);
        let Some(path) = replica.and_then(|r| r.paths.get(role)) else {
            continue;
        };
        let after = restat(Path::new(path), report, facts::now_text());
        for c in &after.changed {
            changes.push(format!("{name}/{}: {}", c.path, c.what));
        }
        report.after = Some(after);
    }
    changes
}

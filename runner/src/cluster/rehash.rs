//! Every checkpoint on every node, rehashed by the node itself and judged here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use runseal::digest::Sha256Digest;
use runseal::finding::Finding;
use runseal::weights::remote::{Conversation, Question, Told, ask, protocol};
use runseal::weights::{
    self, Algorithm, Basis, Expected, Listing, Looked, Manifest, NoProgress, Pace, Replica,
    ReportContext, Survey, Target, Transport,
};

use super::Nodes;
use crate::run::facts::now_text;

/// What reports say of the run that they belong to; all absent outside of one.
#[derive(Debug, Clone, Default)]
pub struct RunOf {
    /// Run id.
    pub run_id: Option<String>,
    /// Hash of its nonce.
    pub nonce_hash: Option<Sha256Digest>,
    /// Digest of its plan.
    pub plan_digest: Option<Sha256Digest>,
}

struct Silent;

impl Told for Silent {
    fn planned(&self, _: u64) {}
    fn done(&self, _: u64) {}
}

/// Rehashes every checkpoint of every node and concludes: as many distinct and
/// agreeing replicas as there are nodes, or not.
pub fn rehash(
    nodes: &Nodes,
    manifests: &BTreeMap<String, Manifest>,
    run: &RunOf,
) -> anyhow::Result<Survey> {
    let listings: BTreeMap<String, Listing> = manifests
        .iter()
        .map(|(role, m)| (role.clone(), AsRef::<Listing>::as_ref(m).clone()))
        .collect();
    let replicas = nodes.inventory.replicas();
    let looked: Vec<Vec<Looked>> = std::thread::scope(|scope| {
        let threads: Vec<_> = replicas
            .iter()
            .map(|replica| {
                let listings = &listings;
                scope.spawn(move || one(nodes, replica, listings, run))
            })
            .collect();
        threads
            .into_iter()
            .map(|t| {
                t.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect::<anyhow::Result<_>>()
    })?;
    let expected: Vec<(&str, &Listing)> = listings.iter().map(|(r, l)| (r.as_str(), l)).collect();
    let looked = looked.into_iter().flatten().collect();
    Ok(weights::conclude(
        &expected,
        looked,
        Some(replicas.len()),
        Basis::Rehash,
    ))
}

fn one(
    nodes: &Nodes,
    replica: &Replica,
    listings: &BTreeMap<String, Listing>,
    run: &RunOf,
) -> anyhow::Result<Vec<Looked>> {
    let paths: BTreeMap<&str, &String> = replica.paths.iter().map(|(r, p)| (r.name(), p)).collect();
    let path = |role: &str| -> anyhow::Result<PathBuf> {
        let path = paths.get(role);
        let path = path.with_context(|| format!("{} has no path for {role}", replica.name))?;
        Ok(match replica.transport {
            Transport::Local => nodes.folder.join(path),
            _ => PathBuf::from(path),
        })
    };
    if replica.transport == Transport::Local && !replica.sudo {
        return here(replica, listings, run, &path);
    }
    let mut questions = Vec::new();
    for (role, listing) in listings {
        let path = path(role)?;
        questions.push(Question {
            request: protocol::Request {
                path: path
                    .to_str()
                    .with_context(|| format!("{} is not UTF-8", path.display()))?
                    .to_owned(),
                revision: None,
                expected: protocol::Expected::of(listing),
                algorithm: Algorithm::Sha256,
                jobs: None,
                bytes_per_second: None,
                replica: replica.name.clone(),
                role: role.clone(),
                run_id: run.run_id.clone(),
                nonce_hash: Some(match run.nonce_hash {
                    Some(hash) => hash,
                    // No earlier report can repeat it.
                    None => fresh()?,
                }),
                plan_digest: run.plan_digest,
                since: None,
            },
            manifest: listing,
        });
    }
    let Conversation { answers, .. } = ask(&nodes.node(replica), &questions, &Silent);
    let each = questions
        .iter()
        .zip(answers)
        .map(|(q, answer)| match answer {
            Ok(asked) => Looked::from_elsewhere(q.manifest, asked.saved.report),
            Err(failure) => {
                let finding = Finding::new(failure.code, &replica.name, failure.detail);
                Looked::unreachable(&replica.name, &q.request.role, finding)
            }
        });
    Ok(each.collect())
}

/// A replica of this machine.
fn here(
    replica: &Replica,
    listings: &BTreeMap<String, Listing>,
    run: &RunOf,
    path: &dyn Fn(&str) -> anyhow::Result<PathBuf>,
) -> anyhow::Result<Vec<Looked>> {
    let boot_id = weights::boot_id().context("could not read this machine's boot id")?;
    let mut places = Vec::new();
    for (role, listing) in listings {
        places.push((role, listing, path(role)?));
    }
    let targets = places.iter().map(|(role, listing, path)| Expected {
        target: Target {
            context: ReportContext {
                replica: replica.name.clone(),
                role: (*role).clone(),
                run_id: run.run_id.clone(),
                nonce_hash: run.nonce_hash,
                plan_digest: run.plan_digest,
                boot_id: boot_id.clone(),
                started: now_text(),
                finished: String::new(),
            },
            path,
            revision: None,
            progress: &NoProgress,
        },
        manifest: listing,
        since: None,
    });
    Ok(weights::looked(
        targets.collect(),
        Algorithm::Sha256,
        Pace::default(),
        &now_text,
        |_, looked| looked,
    ))
}

fn fresh() -> anyhow::Result<Sha256Digest> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|e| anyhow!("could not get random bytes: {e}"))?;
    Ok(Sha256Digest::of(&bytes))
}

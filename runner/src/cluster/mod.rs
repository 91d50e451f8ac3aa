//! The nodes of a cluster, reached from here: what they are, and whether their
//! weights are the pinned ones.
//!
//! Everything goes through the system's ssh (or the inventory's command) to `verify
//! weights --agent` on the node. A node that fails stops nobody else.

mod rehash;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use runseal::codes::Code;
use runseal::digest::Sha256Digest;
use runseal::finding::Finding;
use runseal::leftovers;
use runseal::node_facts::Facts;
use runseal::node_facts::check::{Node, check};
use runseal::node_facts::clock::offset;
use runseal::node_facts::collect::{Wanted, collect};
use runseal::weights::remote::{self, LockRequest, NodeLook, Reach};
use runseal::weights::{Engine, Inventory, Launch, Limits, Replica, Transport};

use crate::plan_file::ClusterPlan;

pub use rehash::{RunOf, rehash};

/// How long things may take when the inventory does not say, in seconds.
const CONNECT: u64 = 10;
const FACTS: u64 = 30;
const SILENCE: u64 = 30;

/// A cluster within reach.
pub struct Nodes<'a> {
    /// Its inventory.
    pub inventory: &'a Inventory,
    folder: PathBuf,
    reach: Reach,
    own_sha256: Sha256Digest,
    silence: Duration,
    /// Goes when this goes.
    _private: (tempfile::TempDir, leftovers::Entry),
}

/// What the nodes said.
#[derive(Debug, Default)]
pub struct Look {
    /// Nodes that answered.
    pub nodes: BTreeMap<String, Node>,
    /// Everything that is wrong or remarkable, those that did not answer first.
    pub findings: Vec<Finding>,
}

impl<'a> Nodes<'a> {
    /// Makes ready to reach the nodes; nothing is started yet.
    pub fn new(plan: &'a ClusterPlan, own: &Path) -> anyhow::Result<Self> {
        let limits = &plan.inventory.extra.limits;
        let private = leftovers::private_folder()
            .context("could not make a private folder for ssh's sockets")?;
        let bytes =
            std::fs::read(own).with_context(|| format!("could not read {}", own.display()))?;
        Ok(Self {
            inventory: &plan.inventory,
            folder: plan.folder.clone(),
            reach: Reach {
                ssh: plan.inventory.ssh().unwrap_or("ssh").into(),
                own: own.to_owned(),
                private: private.0.path().to_owned(),
                folder: plan.folder.clone(),
                connect_timeout: limits.connect_s.unwrap_or(CONNECT),
            },
            own_sha256: Sha256Digest::of(&bytes),
            silence: Duration::from_secs(limits.silence_s.unwrap_or(SILENCE)),
            _private: private,
        })
    }

    fn node<'n>(&'n self, replica: &'n Replica) -> remote::Node<'n> {
        remote::Node {
            replica,
            reach: &self.reach,
            version: env!("CARGO_PKG_VERSION"),
            own_sha256: self.own_sha256,
            push: None,
            silence: self.silence,
        }
    }

    /// Asks all nodes what they are, at once, and holds the answers against the
    /// inventory. The head is asked for the cluster in the name of `owner`.
    pub fn look(&self, owner: &str) -> Look {
        let replicas = self.inventory.replicas();
        let answers: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = replicas
                .iter()
                .map(|replica| scope.spawn(|| self.look_at(replica, owner)))
                .collect();
            threads
                .into_iter()
                .map(|t| {
                    t.join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect()
        });
        let mut out = Look::default();
        for (replica, answer) in replicas.iter().zip(answers) {
            match answer {
                Ok((node, findings)) => {
                    out.findings.extend(findings);
                    out.nodes.insert(replica.name.clone(), node);
                }
                Err(finding) => out.findings.push(finding),
            }
        }
        out.findings.extend(check(self.inventory, &out.nodes));
        out
    }

    fn look_at(&self, replica: &Replica, owner: &str) -> Result<(Node, Vec<Finding>), Finding> {
        let wanted = wanted(self.inventory, replica, &self.inventory.extra.limits);
        if replica.transport == Transport::Local {
            let raw = collect(&wanted);
            let facts = Facts::read(&raw);
            let clock = None;
            return Ok((Node { facts, raw, clock }, Vec::new()));
        }
        let cluster = self.inventory.extra.cluster.as_ref();
        let lock = cluster
            .filter(|c| c.head == replica.name)
            .map(|c| LockRequest {
                cluster: c.name.clone(),
                owner: owner.to_owned(),
            });
        let asked = remote::look(&self.node(replica), &wanted, lock.as_ref());
        let NodeLook {
            raw,
            exchanges,
            notes,
            busy,
            ..
        } = asked.map_err(|f| Finding::new(f.code, &replica.name, f.detail))?;
        // The node runs `verify` and this is `attest`: that they differ says nothing.
        let mut findings: Vec<Finding> = notes
            .into_iter()
            .filter(|n| n.code != Code::AgentBinaryDiffers)
            .collect();
        if let Some(holder) = busy {
            let age = holder
                .age_s
                .map_or(String::new(), |s| format!(", for {s} s"));
            let who = holder.owner.as_deref().unwrap_or("somebody unknown");
            let detail = format!("it is taken by {who}{age}");
            findings.push(Finding::new(Code::ClusterBusy, &replica.name, detail));
        }
        let facts = Facts::read(&raw);
        let clock = offset(&exchanges);
        Ok((Node { facts, raw, clock }, findings))
    }
}

/// What is asked of a node.
fn wanted(inventory: &Inventory, replica: &Replica, limits: &Limits) -> Wanted {
    let engine = inventory.extra.engine.as_ref();
    let docker = engine.filter(|e| e.launch == Launch::Docker);
    Wanted {
        interfaces: replica.node.fabric.clone(),
        hcas: replica.node.hcas.clone(),
        folders: replica.paths.values().cloned().collect(),
        docker: docker.map_or(Vec::new(), Engine::docker_words),
        image: inventory.extra.image.as_ref().map(|i| i.reference.clone()),
        limit_ms: limits.facts_s.unwrap_or(FACTS) * 1000,
    }
}

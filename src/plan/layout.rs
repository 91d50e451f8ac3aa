//! A multi-node engine: which programs run at which rank, in which order, seeing
//! what.
//!
//! Words and environments hold placeholders for what would name machines
//! (`{address}`, `{rendezvous}`, …) and for folders on them (`{model}`, …). They are
//! filled from the inventory, which is not part of a bundle.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PlanError, ReplicaPlan};
use crate::digest::Sha256Digest;

/// The layout of a multi-node engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayoutPlan {
    /// Ranks, one a node.
    pub ranks: Vec<RankPlan>,
    /// Programs in the order in which they are started; they are ended in the
    /// opposite one.
    pub programs: Vec<ProgramPlan>,
    /// The container image; absent for processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImagePin>,
    /// Options of `docker run`; absent for processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub docker_args: Vec<String>,
    /// What the containers see of the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountPlan>,
}

/// A rank and the replica that it loads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RankPlan {
    /// Its number; 0 is the head, which serves.
    pub rank: u32,
    /// Alias of the replica.
    pub replica: String,
}

/// A program of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProgramPlan {
    /// Name of the recipe's step.
    pub step: String,
    /// The rank.
    pub rank: u32,
    /// It is started inside the container of the rank's first program.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exec: bool,
    /// Its words, with placeholders.
    pub argv: Vec<String>,
    /// Its environment, with placeholders: the whole of it for a process, what is
    /// added to the image's for a container.
    pub env: BTreeMap<String, String>,
}

/// By what a container image is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImagePin {
    /// Digests of manifests, any of which will do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub manifests: Vec<Sha256Digest>,
    /// Digest of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Sha256Digest>,
    /// Digests of the unpacked layers, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diff_ids: Vec<Sha256Digest>,
}

/// Something of a node that a container sees. Where it lies on the node is not said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MountPlan {
    /// Path in the container.
    pub target: String,
    /// It may be written to.
    pub writable: bool,
    /// What is known of it.
    pub content: MountContent,
}

/// What is known of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MountContent {
    /// The replica's checkpoint of this role.
    Checkpoint(String),
    /// SHA-256 of the file, or tree root of the folder.
    Sha256(Sha256Digest),
    /// Not pinned, for this reason.
    Unpinned(String),
}

impl LayoutPlan {
    /// The replica of a rank.
    pub fn replica_of(&self, rank: u32) -> Option<&str> {
        let found = self.ranks.iter().find(|r| r.rank == rank);
        found.map(|r| r.replica.as_str())
    }

    pub(super) fn check(&self, replicas: &[ReplicaPlan]) -> Result<(), PlanError> {
        let bad = |why: String| Err(PlanError(why));
        let numbers: BTreeSet<u32> = self.ranks.iter().map(|r| r.rank).collect();
        let wanted = 0..u32::try_from(self.ranks.len()).unwrap_or(u32::MAX);
        if self.ranks.is_empty() || !numbers.iter().copied().eq(wanted) {
            return bad("engine.layout.ranks are not 0, 1, 2, … with each one once".into());
        }
        let mut seen = BTreeSet::new();
        for rank in &self.ranks {
            if !replicas.iter().any(|r| r.name == rank.replica) {
                return bad(format!(
                    "rank {} names unknown replica {:?}",
                    rank.rank, rank.replica
                ));
            }
            if !seen.insert(&rank.replica) {
                return bad(format!("two ranks load replica {:?}", rank.replica));
            }
        }
        let mut started = BTreeSet::new();
        for program in &self.programs {
            let (step, rank) = (&program.step, program.rank);
            if !numbers.contains(&rank) {
                return bad(format!("{step} runs at rank {rank}, which there is not"));
            }
            if program.argv.is_empty() && self.image.is_none() {
                return bad(format!("{step} of rank {rank} has no words"));
            }
            if program.exec && !started.contains(&rank) {
                return bad(format!("{step} of rank {rank} has no container to run in"));
            }
            started.insert(rank);
        }
        // A rank that nothing runs at would count as serving.
        match numbers.difference(&started).next() {
            Some(rank) => bad(format!("nothing runs at rank {rank}")),
            None => Ok(()),
        }
    }
}

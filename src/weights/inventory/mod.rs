//! The inventory: which replicas there are and how to reach them
//! (`runseal.cluster/v1`, TOML, usually `cluster.toml`).
//!
//! `manifest` and `path` are those of the target checkpoint. Further checkpoints
//! have their manifest in `[manifests]` and their folder in each replica's
//! `paths`; a replica is complete or it is not one, so every replica names a
//! folder for every manifest.
//!
//! A multi-node run reads more from the same file: [`Cluster`], [`Image`],
//! [`Mount`], [`Engine`], [`Limits`], [`Expect`] and the [`NodeSettings`] of every
//! replica, which is then called a node.

mod cluster;
mod replica;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bundle::evidence::replica_file;

pub use cluster::{
    Alike, Auto, Cluster, Engine, Expect, GidIndex, Image, Launch, Limits, Mount, NodeSettings,
    Topology,
};
pub use replica::{CommandTemplate, Replica, Ssh, Transport};

/// The value of the `format` field.
pub const INVENTORY_FORMAT: &str = "runseal.cluster/v1";

/// What a checkpoint is for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The model that answers.
    Target,
    /// The drafter of speculative decoding.
    Draft,
    /// A LoRA or other adapter.
    Adapter,
    /// A tokenizer kept apart from the model.
    Tokenizer,
}

impl Role {
    /// The word in inventories, reports and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Draft => "draft",
            Self::Adapter => "adapter",
            Self::Tokenizer => "tokenizer",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The replicas of a model's checkpoints. Local paths are relative to the
/// inventory's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    manifests: BTreeMap<Role, String>,
    ssh: Option<String>,
    replicas: Vec<Replica>,
    /// What a multi-node run needs.
    pub extra: Extra,
}

/// What a multi-node run needs beyond replicas. All of it may be absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extra {
    /// What the nodes are together.
    pub cluster: Option<Cluster>,
    /// The container image.
    pub image: Option<Image>,
    /// What containers see of the nodes.
    pub mounts: Vec<Mount>,
    /// Environment of every rank.
    pub env: BTreeMap<String, String>,
    /// How the ranks are started.
    pub engine: Option<Engine>,
    /// How long things may take.
    pub limits: Limits,
    /// What every node must be.
    pub expect: Expect,
}

/// The inventory of a cluster: its nodes, their copies of the checkpoints, and how
/// an engine is started on them.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Inventory")]
pub(crate) struct File {
    /// Always "runseal.cluster/v1".
    format: String,
    /// Manifest of the target checkpoint, relative to this file.
    manifest: String,
    /// The ssh program to use instead of the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    ssh: Option<String>,
    /// Manifests of further checkpoints, by role.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    manifests: BTreeMap<Role, String>,
    /// What the nodes are together.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<Cluster>,
    /// The container image, and by which digests it is known again.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<Image>,
    /// Environment of every rank.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
    /// Which recipe starts the ranks, and with what.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<Engine>,
    /// How long things may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    /// What every node must be. What is absent is not checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    expect: Option<Expect>,
    /// What containers see of the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "mount")]
    mounts: Vec<Mount>,
    /// Replicas of the checkpoints.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "replica")]
    replicas: Vec<replica::Table>,
    /// The same table under its other name: the nodes of a cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "node")]
    nodes: Vec<replica::Table>,
}

/// Why an inventory was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InventoryError {
    /// Not TOML, or not with the fields of an inventory.
    #[error("the inventory cannot be read: {0} (hint: docs/replicas.md lists every key)")]
    Shape(String),
    /// A key that means nothing.
    #[error("the inventory cannot be read: {problem} (hint: did you mean `{nearest}`?)")]
    UnknownKey {
        /// The parser's complaint.
        problem: String,
        /// The known key that looks most like it.
        nearest: String,
    },
    /// Another format.
    #[error("the inventory's format is {0:?}, not {INVENTORY_FORMAT:?}")]
    Format(String),
    /// No replicas.
    #[error(
        "the inventory names no replica (hint: add a [[replica]] with name, transport and path)"
    )]
    Empty,
    /// A name is used twice.
    #[error("the inventory names replica {0:?} twice (hint: give each its own name)")]
    Duplicate(String),
    /// The reports of two replicas would have one file name.
    #[error(
        "the inventory names the replicas {one:?} and {other:?}, whose reports would be one file where case does not matter (hint: give them names that differ in more than case and do not end in \".dsse\" or in a checkpoint's role)"
    )]
    SameFile {
        /// One of them.
        one: String,
        /// The other.
        other: String,
    },
    /// A name would not be safe as a file name and in reports.
    #[error(
        "{0:?} is not a replica name (hint: up to 64 of a-z, A-Z, 0-9, '.', '_', '-', not starting with '.' or '-')"
    )]
    Name(String),
    /// A transport that this version does not have.
    #[error(
        "replica {name:?} has transport {transport:?}, which this version does not have (hint: \"local\", \"ssh\" or \"command\")"
    )]
    Transport {
        /// The replica.
        name: String,
        /// Its transport.
        transport: String,
    },
    /// A replica's options do not go together.
    #[error("replica {name:?}: {why}")]
    Replica {
        /// The replica.
        name: String,
        /// What is wrong, with a hint.
        why: String,
    },
    /// A part of the inventory that only a multi-node run needs makes no sense.
    #[error("[{part}]: {why}")]
    Part {
        /// Name of the table.
        part: &'static str,
        /// What is wrong, with a hint.
        why: String,
    },
    /// A manifest's path is empty, or the target's is given twice.
    #[error("the manifest of the {0} is empty or given twice (hint: `manifest` is the target's)")]
    Manifest(Role),
    /// Replicas and manifests do not cover the same checkpoints.
    #[error(
        "replica {name:?} and the manifests do not name the same checkpoints: {role} (hint: [manifests] {role} = \"FILE\" goes with paths.{role} = \"FOLDER\" in every replica)"
    )]
    Incomplete {
        /// The replica.
        name: String,
        /// The checkpoint that only one side has.
        role: Role,
    },
}

impl Inventory {
    /// Makes an inventory of target checkpoints and checks it like one that was
    /// read.
    pub fn new(
        manifest: impl Into<String>,
        replicas: Vec<Replica>,
    ) -> Result<Self, InventoryError> {
        let manifests = BTreeMap::from([(Role::Target, manifest.into())]);
        let this = Self {
            manifests,
            ssh: None,
            replicas,
            extra: Extra::default(),
        };
        // Through the written form, so that there is one set of rules.
        Self::parse(&this.render())
    }

    /// Reads an inventory.
    pub fn parse(text: &str) -> Result<Self, InventoryError> {
        let file: File = toml::from_str(text).map_err(|e| shape(text, &e))?;
        if file.format != INVENTORY_FORMAT {
            return Err(InventoryError::Format(file.format));
        }
        let mut manifests = file.manifests;
        if manifests.insert(Role::Target, file.manifest).is_some() {
            return Err(InventoryError::Manifest(Role::Target));
        }
        let tables = file.replicas.into_iter().chain(file.nodes);
        let replicas: Result<Vec<_>, _> = tables.map(Replica::try_from).collect();
        let this = Self {
            manifests,
            ssh: file.ssh,
            replicas: replicas?,
            extra: Extra {
                cluster: file.cluster,
                image: file.image,
                mounts: file.mounts,
                env: file.env,
                engine: file.engine,
                limits: file.limits.unwrap_or_default(),
                expect: file.expect.unwrap_or_default(),
            },
        };
        this.check()?;
        Ok(this)
    }

    fn check(&self) -> Result<(), InventoryError> {
        if self.replicas.is_empty() {
            return Err(InventoryError::Empty);
        }
        if let Some((role, _)) = self.manifests.iter().find(|(_, path)| path.is_empty()) {
            return Err(InventoryError::Manifest(*role));
        }
        let mut names = BTreeSet::new();
        let mut files: BTreeMap<String, &str> = BTreeMap::new();
        for replica in &self.replicas {
            if !names.insert(&replica.name) {
                return Err(InventoryError::Duplicate(replica.name.clone()));
            }
            for role in self.manifests.keys() {
                // Of its reports, plain and signed, on a file system where case does
                // not matter.
                let file = replica_file(&replica.name, role.name()).to_lowercase();
                let signed = file.trim_end_matches(".json").to_owned() + ".dsse.json";
                for file in [file, signed] {
                    let other = files.insert(file, &replica.name);
                    if let Some(other) = other.filter(|other| *other != replica.name) {
                        return Err(InventoryError::SameFile {
                            one: other.to_owned(),
                            other: replica.name.clone(),
                        });
                    }
                }
            }
            let here: BTreeSet<Role> = replica.paths.keys().copied().collect();
            let wanted: BTreeSet<Role> = self.manifests.keys().copied().collect();
            if let Some(role) = here.symmetric_difference(&wanted).next() {
                return Err(InventoryError::Incomplete {
                    name: replica.name.clone(),
                    role: *role,
                });
            }
        }
        self.check_extra()
            .map_err(|(part, why)| InventoryError::Part { part, why })
    }

    fn check_extra(&self) -> Result<(), (&'static str, String)> {
        let of = |part| move |why| (part, why);
        let extra = &self.extra;
        cluster::check_env(&extra.env).map_err(of("env"))?;
        extra.limits.check().map_err(of("limits"))?;
        if let Some(image) = &extra.image {
            image.check().map_err(of("image"))?;
        }
        let mut targets = BTreeSet::new();
        for mount in &extra.mounts {
            mount.check().map_err(of("mount"))?;
            if let Some(role) = mount.checkpoint
                && !self.manifests.contains_key(&role)
            {
                return Err(("mount", format!("no checkpoint has the role {role}")));
            }
            if !targets.insert(&mount.target) {
                return Err(("mount", format!("{:?} is mounted twice", mount.target)));
            }
        }
        if let Some(engine) = &extra.engine {
            engine.check(extra.image.as_ref()).map_err(of("engine"))?;
        }
        self.check_ranks().map_err(of("node"))?;
        let Some(cluster) = &extra.cluster else {
            return Ok(());
        };
        cluster.check().map_err(of("cluster"))?;
        let head = self.replicas.iter().find(|r| r.name == cluster.head);
        match head.map(|head| head.node.rank) {
            Some(Some(0)) => Ok(()),
            Some(_) => Err(format!("head {:?} does not have rank 0", cluster.head)),
            None => Err(format!(
                "head {:?} is no node of this inventory",
                cluster.head
            )),
        }
        .map_err(of("cluster"))
    }

    /// Ranks are 0, 1, 2, … without a gap, or there are none at all.
    fn check_ranks(&self) -> Result<(), String> {
        let ranks: BTreeSet<u32> = self.replicas.iter().filter_map(|r| r.node.rank).collect();
        if ranks.is_empty() {
            return Ok(());
        }
        if let Some(without) = self.replicas.iter().find(|r| r.node.rank.is_none()) {
            return Err(format!(
                "{:?} has no rank while others have one (hint: rank = 0, 1, 2, … for all)",
                without.name
            ));
        }
        let wanted = 0..u32::try_from(self.replicas.len()).unwrap_or(u32::MAX);
        match ranks.into_iter().eq(wanted) {
            true => Ok(()),
            false => Err(format!(
                "the ranks are not 0 to {} with each one once",
                self.replicas.len() - 1
            )),
        }
    }

    /// The replicas, in the order of the file.
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    /// The nodes in the order of their ranks; empty when they have none.
    pub fn ranks(&self) -> Vec<(u32, &Replica)> {
        let with = |r| Some((Replica::rank(r)?, r));
        let mut out: Vec<_> = self.replicas.iter().filter_map(with).collect();
        out.sort_by_key(|(rank, _)| *rank);
        out
    }

    /// Path of every manifest as it is written, by role.
    pub fn manifests(&self) -> &BTreeMap<Role, String> {
        &self.manifests
    }

    /// The ssh program to use instead of the system's.
    pub fn ssh(&self) -> Option<&str> {
        self.ssh.as_deref()
    }

    /// Where the target's manifest lies, given the inventory's folder.
    pub fn manifest_path(&self, folder: &Path) -> PathBuf {
        folder.join(self.manifests.get(&Role::Target).map_or("", String::as_str))
    }

    /// Where every manifest lies, given the inventory's folder.
    pub fn manifest_paths(&self, folder: &Path) -> BTreeMap<Role, PathBuf> {
        let each = self.manifests.iter();
        each.map(|(role, path)| (*role, folder.join(path)))
            .collect()
    }

    /// The file's text.
    pub fn render(&self) -> String {
        let mut manifests = self.manifests.clone();
        let file = File {
            format: INVENTORY_FORMAT.to_owned(),
            manifest: manifests.remove(&Role::Target).unwrap_or_default(),
            ssh: self.ssh.clone(),
            manifests,
            cluster: self.extra.cluster.clone(),
            image: self.extra.image.clone(),
            env: self.extra.env.clone(),
            engine: self.extra.engine.clone(),
            limits: Some(self.extra.limits.clone()).filter(|l| *l != Limits::default()),
            expect: Some(self.extra.expect.clone()).filter(|e| *e != Expect::default()),
            mounts: self.extra.mounts.clone(),
            replicas: self.replicas.iter().map(Replica::to_table).collect(),
            nodes: Vec::new(),
        };
        let body = toml::to_string(&file)
            // Every field is text, a number or a table of these.
            .expect("an inventory is always TOML");
        format!(
            "# The replicas of one checkpoint, as `verify weights` reads them. Paths are\n\
             # relative to this file.\n{body}"
        )
    }
}

/// The parser's complaint with its line, on one line; for a key that is not
/// known, the known one that looks most like it.
fn shape(text: &str, e: &toml::de::Error) -> InventoryError {
    let line = e
        .span()
        .map(|s| text[..s.start.min(text.len())].matches('\n').count() + 1);
    let problem = match line {
        Some(line) => format!("line {line}: {}", e.message()),
        None => e.message().to_owned(),
    };
    // "unknown field `paht`, expected one of `name`, `path`": the parser knows
    // which keys stand to choice at this place.
    let mut quoted = e.message().split('`').skip(1).step_by(2);
    let unknown = e.message().starts_with("unknown ").then(|| quoted.next());
    let nearest = unknown.flatten().and_then(|key| {
        quoted
            .map(|k| (strsim::damerau_levenshtein(key, k), k))
            .filter(|(distance, k)| *distance <= 1 + k.len() / 3)
            .min()
    });
    match nearest {
        Some((_, nearest)) => InventoryError::UnknownKey {
            nearest: nearest.to_owned(),
            problem,
        },
        None => InventoryError::Shape(problem),
    }
}

#[cfg(test)]
mod tests;

//! The inventory: which replicas there are and how to reach them
//! (`runseal.cluster/v1`, TOML, usually `cluster.toml`).
//!
//! `manifest` and `path` are those of the target checkpoint. Further checkpoints
//! have their manifest in `[manifests]` and their folder in each replica's
//! `paths`; a replica is complete or it is not one, so every replica names a
//! folder for every manifest.

mod replica;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::bundle::evidence::replica_file;

pub use replica::{CommandTemplate, Replica, Ssh, Transport};

/// The value of the `format` field.
pub const INVENTORY_FORMAT: &str = "runseal.cluster/v1";

/// What a checkpoint is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
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
}

/// The file as it is written.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    manifest: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ssh: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    manifests: BTreeMap<Role, String>,
    #[serde(default, rename = "replica")]
    replicas: Vec<replica::Table>,
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
        let replicas: Result<Vec<_>, _> =
            file.replicas.into_iter().map(Replica::try_from).collect();
        let this = Self {
            manifests,
            ssh: file.ssh,
            replicas: replicas?,
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
        Ok(())
    }

    /// The replicas, in the order of the file.
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas
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
            replicas: self.replicas.iter().map(Replica::to_table).collect(),
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

//! The inventory: which replicas there are and how to reach them
//! (`runseal.cluster/v1`, TOML, usually `cluster.toml`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The value of the `format` field.
pub const INVENTORY_FORMAT: &str = "runseal.cluster/v1";

/// The replicas of one checkpoint. Paths are relative to the inventory's folder.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Inventory {
    format: String,
    manifest: String,
    #[serde(default, rename = "replica")]
    replicas: Vec<Replica>,
}

/// One replica.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Replica {
    /// A short name, unique in the inventory; it appears in findings and file names.
    pub name: String,
    /// How to reach it. Only `local` so far.
    pub transport: String,
    /// Its folder.
    pub path: String,
}

/// Why an inventory was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InventoryError {
    /// Not TOML, or not with the fields of an inventory.
    #[error("the inventory cannot be read: {0} (hint: `attest run` writes one to start from)")]
    Shape(String),
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
    /// A name would not be safe as a file name and in reports.
    #[error(
        "{0:?} is not a replica name (hint: up to 64 of a-z, A-Z, 0-9, '.', '_', '-', not starting with '.' or '-')"
    )]
    Name(String),
    /// A transport that this version does not have.
    #[error(
        "replica {name:?} has transport {transport:?}, which this version does not have (hint: \"local\")"
    )]
    Transport {
        /// The replica.
        name: String,
        /// Its transport.
        transport: String,
    },
    /// A path is empty.
    #[error("{0} has an empty path")]
    EmptyPath(String),
}

impl Inventory {
    /// Makes an inventory and checks it like one that was read.
    pub fn new(
        manifest: impl Into<String>,
        replicas: Vec<Replica>,
    ) -> Result<Self, InventoryError> {
        let this = Self {
            format: INVENTORY_FORMAT.to_owned(),
            manifest: manifest.into(),
            replicas,
        };
        this.check()?;
        Ok(this)
    }

    /// Reads an inventory.
    pub fn parse(text: &str) -> Result<Self, InventoryError> {
        let this: Self =
            toml::from_str(text).map_err(|e| InventoryError::Shape(shape(text, &e)))?;
        this.check()?;
        Ok(this)
    }

    fn check(&self) -> Result<(), InventoryError> {
        if self.format != INVENTORY_FORMAT {
            return Err(InventoryError::Format(self.format.clone()));
        }
        if self.replicas.is_empty() {
            return Err(InventoryError::Empty);
        }
        if self.manifest.is_empty() {
            return Err(InventoryError::EmptyPath("the manifest".to_owned()));
        }
        let mut names = BTreeSet::new();
        for replica in &self.replicas {
            if !is_name(&replica.name) {
                return Err(InventoryError::Name(replica.name.clone()));
            }
            if !names.insert(&replica.name) {
                return Err(InventoryError::Duplicate(replica.name.clone()));
            }
            if replica.transport != "local" {
                return Err(InventoryError::Transport {
                    name: replica.name.clone(),
                    transport: replica.transport.clone(),
                });
            }
            if replica.path.is_empty() {
                return Err(InventoryError::EmptyPath(format!(
                    "replica {:?}",
                    replica.name
                )));
            }
        }
        Ok(())
    }

    /// The replicas, in the order of the file.
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    /// Where the manifest lies, given the inventory's folder.
    pub fn manifest_path(&self, folder: &Path) -> PathBuf {
        folder.join(&self.manifest)
    }

    /// The file's text.
    pub fn render(&self) -> String {
        let text = |s: &str| toml::Value::String(s.to_owned()).to_string();
        let mut out = format!(
            "# The replicas of one checkpoint, as `verify weights` reads them. Paths are\n\
             # relative to this file.\n\
             format = {}\n\
             manifest = {}\n",
            text(&self.format),
            text(&self.manifest)
        );
        for replica in &self.replicas {
            out.push_str(&format!(
                "\n[[replica]]\nname = {}\ntransport = {}\npath = {}\n",
                text(&replica.name),
                text(&replica.transport),
                text(&replica.path)
            ));
        }
        out
    }
}

fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=64).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with(['.', '-'])
}

/// The parser's complaint with its line, on one line.
fn shape(text: &str, e: &toml::de::Error) -> String {
    let line = e
        .span()
        .map(|s| text[..s.start.min(text.len())].matches('\n').count() + 1);
    match line {
        Some(line) => format!("line {line}: {}", e.message()),
        None => e.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn replica(name: &str, transport: &str, path: &str) -> Replica {
        Replica {
            name: name.to_owned(),
            transport: transport.to_owned(),
            path: path.to_owned(),
        }
    }

    #[test]
    fn mistakes_are_named() {
        let good = Inventory::new("m.json", vec![replica("r0", "local", "a")])
            .unwrap()
            .render();
        assert!(Inventory::parse(&good).is_ok());
        for (from, to, says) in [
            ("runseal.cluster/v1", "runseal.cluster/v9", "v9"),
            ("\"local\"", "\"ssh\"", "transport \"ssh\""),
            ("\"r0\"", "\"../r0\"", "not a replica name"),
            ("\"r0\"", "\"\"", "not a replica name"),
            ("path =", "paht =", "line 9: unknown field `paht`"),
            ("\"a\"", "\"\"", "empty path"),
            ("[[replica]]", "[[node]]", "unknown field `node`"),
            ("name =", "name", "line 7"),
        ] {
            let e = Inventory::parse(&good.replace(from, to))
                .unwrap_err()
                .to_string();
            assert!(e.contains(says), "{from} -> {to}: {e}");
        }
        let twice = vec![replica("r0", "local", "a"), replica("r0", "local", "b")];
        assert!(matches!(
            Inventory::new("m", twice),
            Err(InventoryError::Duplicate(_))
        ));
        assert!(matches!(
            Inventory::new("m", vec![]),
            Err(InventoryError::Empty)
        ));
    }

    proptest! {
        #[test]
        fn rendering_round_trips(manifest in ".{1,20}", paths in prop::collection::vec(".{1,20}", 1..5)) {
            let replicas = paths.iter().enumerate().map(|(i, p)| replica(&format!("r{i}"), "local", p));
            let inventory = Inventory::new(manifest, replicas.collect()).unwrap();
            prop_assert_eq!(Inventory::parse(&inventory.render()).unwrap(), inventory);
        }
    }
}

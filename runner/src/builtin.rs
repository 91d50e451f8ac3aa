//! What is compiled into the program: the reference checkpoint, the shipped
//! suites and the default plan, so that the first run needs nothing else.

use std::path::Path;

use runseal::durable::{self, WriteError, WriteOptions};
use runseal::weights::{Manifest, ManifestFile};
use runseal::{digest::Sha256Digest, relpath::RelPath};

/// The default plan, which `attest init` writes.
pub const PLAN: &str = include_str!("attest.toml");
/// The commented inventory of the built-in plan, which `attest init` writes.
pub const CLUSTER: &str = include_str!("cluster.toml");
/// Name of the built-in checkpoint in a plan.
pub const CHECKPOINT: &str = "builtin:reference";

macro_rules! files {
    ($dir:literal: $($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../", $dir, "/", $name)))),*]
    };
}

/// Files of the reference checkpoint.
pub const CHECKPOINT_FILES: &[(&str, &[u8])] = files!(
    "reference-model/checkpoint":
    "config.json",
    "generation_config.json",
    "model-00001-of-00004.safetensors",
    "model-00002-of-00004.safetensors",
    "model-00003-of-00004.safetensors",
    "model-00004-of-00004.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
);

/// The three files of a suite.
#[derive(Debug, Clone)]
pub struct SuiteFiles {
    /// `suite.toml`.
    pub toml: Vec<u8>,
    /// `cases.jsonl`.
    pub cases: Vec<u8>,
    /// `scorer.toml`.
    pub scorer: Vec<u8>,
}

/// Names of the shipped suites.
pub const SUITES: &[&str] = &[
    "serving-performance-v1",
    "needle-recall-v1",
    "context-sweep-v1",
    "recipe-card-v1",
];

/// A shipped suite by name.
pub fn suite(name: &str) -> Option<SuiteFiles> {
    macro_rules! shipped {
        ($dir:literal) => {
            Some(SuiteFiles {
                toml: include_bytes!(concat!("../suites/", $dir, "/suite.toml")).to_vec(),
                cases: include_bytes!(concat!("../suites/", $dir, "/cases.jsonl")).to_vec(),
                scorer: include_bytes!(concat!("../suites/", $dir, "/scorer.toml")).to_vec(),
            })
        };
    }
    match name {
        "serving-performance-v1" => shipped!("serving-performance-v1"),
        "needle-recall-v1" => shipped!("needle-recall-v1"),
        "context-sweep-v1" => shipped!("context-sweep-v1"),
        "recipe-card-v1" => shipped!("recipe-card-v1"),
        _ => None,
    }
}

/// The manifest of the built-in checkpoint.
pub fn manifest() -> anyhow::Result<Manifest> {
    let files = CHECKPOINT_FILES
        .iter()
        .map(|(name, bytes)| {
            Ok(ManifestFile {
                path: RelPath::parse(name)?,
                size: bytes.len() as u64,
                sha256: Sha256Digest::of(bytes),
                blake3: None,
                mode: None,
            })
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Manifest::new(files, None)?)
}

/// Makes a copy of the built-in checkpoint when the folder is absent. True when
/// it was made; a folder that is there is never touched.
pub fn create_replica(dir: &Path) -> Result<bool, WriteError> {
    if dir.symlink_metadata().is_ok() {
        return Ok(false);
    }
    // Written beside and renamed, so that a half-made copy never has the name.
    let parent = dir
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    durable::create_dir_all(parent)?;
    let io = |source| WriteError::Io {
        path: dir.to_owned(),
        source,
    };
    let temp = tempfile::Builder::new()
        .prefix(".replica-")
        .tempdir_in(parent)
        .map_err(io)?;
    for (name, bytes) in CHECKPOINT_FILES {
        durable::write(&temp.path().join(name), bytes, WriteOptions::default())?;
    }
    std::fs::set_permissions(
        temp.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .map_err(io)?;
    std::fs::rename(temp.path(), dir).map_err(io)?;
    // The folder now has its name and must not be removed with the guard.
    let _ = temp.keep();
    durable::sync_dir(parent).map_err(io)?;
    Ok(true)
}

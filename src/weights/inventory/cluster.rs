//! What an inventory says beyond replicas: the cluster, the image, what is mounted,
//! how the engine is started, and what the nodes are expected to be.
//!
//! Everything here is optional. `verify weights` reads it, checks it, and needs none
//! of it.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Role;
use crate::digest::Sha256Digest;

/// `[cluster]`: what the nodes are together.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// A short name, up to 40 characters of a-z, 0-9, "-" and "_". One run at a time
    /// per name.
    pub name: String,
    /// Name of the node with rank 0.
    pub head: String,
    /// How the fast links are wired. Recorded, not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// Where the ranks find each other, ADDRESS:PORT. The address is the head's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rendezvous: Option<String>,
}

/// How the fast links of a cluster are wired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// All nodes on one switch.
    Switch,
    /// Two nodes, one cable.
    Direct,
    /// Each node linked to two others.
    Ring,
    /// Each node linked to every other.
    Mesh,
}

/// Settings of a node that only a multi-node run needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSettings {
    /// Its rank, from 0.
    pub rank: Option<u32>,
    /// Its address on the fast network, as the engine is told it.
    pub address: Option<String>,
    /// Interface that it is managed through.
    pub management: Option<String>,
    /// Interfaces of the fast network.
    pub fabric: Vec<String>,
    /// RDMA devices to use.
    pub hcas: Vec<String>,
    /// Index of the RoCE address to use.
    pub gid_index: Option<GidIndex>,
    /// Environment of this rank, on top of the common one.
    pub env: BTreeMap<String, String>,
}

/// Which entry of a port's GID table RoCE uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum GidIndex {
    /// This one.
    Index(u32),
    /// The RoCE v2 entry of the node's IPv4 address, looked up on the node.
    Auto(Auto),
}

/// The word `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Auto {
    /// Found out on the node.
    Auto,
}

/// `[image]`: the container image, and by which digests it is known again.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// As given to the container engine, best with `@sha256:…`.
    pub reference: String,
    /// Digests of manifests, `sha256:…`: any of them will do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub manifests: Vec<String>,
    /// Digest of the configuration, `sha256:…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Digests of the unpacked layers in order, `sha256:…`: the same on every
    /// storage driver.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diff_ids: Vec<String>,
}

/// `[[mount]]`: something of the node that a container sees.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Path in the container.
    pub target: String,
    /// Path on the node, with `sha256` or `unpinned`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Or: the node's copy of this checkpoint, which its manifest pins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Role>,
    /// The container may write to it. Without it, it may not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub writable: bool,
    /// SHA-256 of the file, or the tree root (`runseal-tree/v1`) of the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Sha256Digest>,
    /// Why it is not pinned, for caches and the like. The record repeats it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpinned: Option<String>,
}

/// How the engine's ranks are started.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Launch {
    /// A program of the node.
    Process,
    /// A container of the node's container engine.
    Docker,
    /// Nothing is started: what already runs is measured and never stopped.
    Attach,
}

impl Launch {
    /// The word in inventories and plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Docker => "docker",
            Self::Attach => "attach",
        }
    }
}

/// `[engine]`: which recipe starts the ranks, and with what.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// Name of the recipe, for example "sglang" or "vllm".
    pub recipe: String,
    /// "process", "docker" or "attach".
    pub launch: Launch,
    /// Name that the model is served under.
    pub served_name: String,
    /// Port of the API on the head.
    pub port: u16,
    /// Ranks that each layer is split over; the number of nodes when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor_parallel: Option<u32>,
    /// The program on the nodes, an absolute path; only with launch = "process".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// SHA-256 of that program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_sha256: Option<Sha256Digest>,
    /// Words that start the container engine; ["docker"] when absent. Another way is
    /// ["sudo", "-n", "docker"].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub docker: Vec<String>,
    /// Options of `docker run` instead of the recipe's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub docker_args: Option<Vec<String>>,
    /// Further arguments of every rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Further arguments of the head.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub head_args: Vec<String>,
    /// Further arguments of the other ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worker_args: Vec<String>,
}

/// `[limits]`: how long things may take, in seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Until a connection to a node stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_s: Option<u64>,
    /// Until a node has said what it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts_s: Option<u64>,
    /// Longest silence of a node that hashes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence_s: Option<u64>,
    /// From the launch until the endpoint answers its canary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_s: Option<u64>,
    /// Until a rank that was asked to end is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_s: Option<u64>,
}

/// `[expect]`: what every node must be. What is absent is not checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// Name of the GPU, as the driver gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Version of the GPU driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Version of the GPU's firmware (VBIOS).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vbios: Option<String>,
    /// Release of the kernel, as `uname -r` prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Version of DGX OS: that of the last update over the air, else of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dgx_version: Option<String>,
    /// Version of the container engine's server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_engine: Option<String>,
    /// Smallest MTU of the fast interfaces, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u64>,
    /// Lowest speed of the fast interfaces, in Mbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_mbps: Option<u64>,
    /// Least memory available, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_available: Option<u64>,
    /// Least space free where the target checkpoint lies, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_free: Option<u64>,
    /// Largest distance of a node's clock from this machine's, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_offset_ms: Option<u64>,
    /// Facts in which the nodes may not differ.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub alike: BTreeSet<Alike>,
}

/// A fact in which nodes can be alike.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Alike {
    /// Name of the GPU.
    Gpu,
    /// Version of the GPU driver.
    Driver,
    /// Version of the GPU's firmware.
    Vbios,
    /// Release of the kernel.
    Kernel,
    /// Version of DGX OS.
    DgxVersion,
    /// Version of the container engine.
    ContainerEngine,
    /// MTU of the fast interfaces.
    Mtu,
    /// Speed of the fast interfaces.
    LinkMbps,
}

impl Alike {
    /// The word in inventories and findings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Driver => "driver",
            Self::Vbios => "vbios",
            Self::Kernel => "kernel",
            Self::DgxVersion => "dgx_version",
            Self::ContainerEngine => "container_engine",
            Self::Mtu => "mtu",
            Self::LinkMbps => "link_mbps",
        }
    }
}

impl Cluster {
    /// Address and port where the ranks meet.
    pub fn rendezvous(&self) -> Option<(&str, u16)> {
        let (address, port) = self.rendezvous.as_ref()?.rsplit_once(':')?;
        Some((address, port.parse().ok()?))
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let plain =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
        if self.name.is_empty() || self.name.len() > 40 || !self.name.chars().all(plain) {
            return Err(format!(
                "name {:?} is not 1 to 40 characters of a-z, 0-9, '-' and '_'",
                self.name
            ));
        }
        if let Some(text) = &self.rendezvous {
            let fine = self
                .rendezvous()
                .is_some_and(|(a, port)| port != 0 && is_address(a));
            if !fine {
                return Err(format!(
                    "rendezvous {text:?} is not ADDRESS:PORT (hint: \"10.0.0.1:29501\", the head's address on the fast network)"
                ));
            }
        }
        Ok(())
    }
}

impl NodeSettings {
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(address) = &self.address
            && !is_address(address)
        {
            return Err(format!(
                "address {address:?} is not an address (hint: the node's own, on the fast network, without a port)"
            ));
        }
        let names = self.management.iter().chain(&self.fabric).chain(&self.hcas);
        for name in names {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-@:".contains(c);
            if name.is_empty() || !name.chars().all(plain) || name.starts_with('-') {
                return Err(format!("{name:?} is not the name of a device"));
            }
        }
        check_env(&self.env)
    }
}

impl Image {
    pub(super) fn check(&self) -> Result<(), String> {
        let odd = |c: char| c.is_control() || c.is_whitespace();
        if self.reference.is_empty()
            || self.reference.starts_with('-')
            || self.reference.contains(odd)
        {
            return Err(format!("{:?} is not an image", self.reference));
        }
        let all = self
            .manifests
            .iter()
            .chain(&self.config)
            .chain(&self.diff_ids);
        for text in all {
            let digest = text.strip_prefix("sha256:").map(str::parse::<Sha256Digest>);
            if !matches!(digest, Some(Ok(_))) {
                return Err(format!(
                    "{text:?} is not a digest (hint: sha256: and 64 hexadecimal digits)"
                ));
            }
        }
        Ok(())
    }
}

impl Mount {
    pub(super) fn check(&self) -> Result<(), String> {
        if !self.target.starts_with('/') || odd_path(&self.target) {
            return Err(format!("target {:?} is not an absolute path", self.target));
        }
        match (&self.source, self.checkpoint) {
            (Some(source), None) => {
                if !source.starts_with('/') || odd_path(source) {
                    return Err(format!("source {source:?} is not an absolute path"));
                }
                if self.sha256.is_some() == self.unpinned.is_some() {
                    return Err(format!(
                        "{source:?} needs either a sha256 or a reason in `unpinned`"
                    ));
                }
                Ok(())
            }
            (None, Some(_)) if self.sha256.is_none() && self.unpinned.is_none() => {
                if self.writable {
                    return Err("a checkpoint is not mounted writable".to_owned());
                }
                Ok(())
            }
            (None, Some(_)) => Err("a checkpoint is pinned by its manifest already".to_owned()),
            _ => Err("it needs either a source or a checkpoint".to_owned()),
        }
    }
}

impl Engine {
    /// Words that start the container engine.
    pub fn docker_words(&self) -> Vec<String> {
        match self.docker.is_empty() {
            true => vec!["docker".to_owned()],
            false => self.docker.clone(),
        }
    }

    pub(super) fn check(&self, image: Option<&Image>) -> Result<(), String> {
        if self.recipe.is_empty() || self.served_name.is_empty() {
            return Err("recipe and served_name may not be empty".to_owned());
        }
        if self.port == 0 {
            return Err("port 0 is no port".to_owned());
        }
        if self.tensor_parallel == Some(0) {
            return Err("tensor_parallel is at least 1".to_owned());
        }
        if self.launch == Launch::Docker && image.is_none() {
            return Err("launch = \"docker\" needs an [image]".to_owned());
        }
        // An option without effect would read as if it had one.
        let given = [
            ("program", self.program.is_some(), Launch::Process),
            (
                "program_sha256",
                self.program_sha256.is_some(),
                Launch::Process,
            ),
            ("docker", !self.docker.is_empty(), Launch::Docker),
            ("docker_args", self.docker_args.is_some(), Launch::Docker),
        ];
        if let Some((option, _, with)) = given
            .iter()
            .find(|(_, is, with)| *is && *with != self.launch)
        {
            return Err(format!(
                "{option:?} means nothing with launch = {:?} (hint: it goes with {:?})",
                self.launch.name(),
                with.name()
            ));
        }
        if let Some(program) = &self.program
            && (!program.starts_with('/') || odd_path(program))
        {
            return Err(format!("program {program:?} is not an absolute path"));
        }
        if self
            .docker
            .first()
            .is_some_and(|w| w.is_empty() || w.starts_with('-'))
        {
            return Err("docker does not begin with a program".to_owned());
        }
        let words = self
            .args
            .iter()
            .chain(&self.head_args)
            .chain(&self.worker_args);
        let words = words
            .chain(&self.docker)
            .chain(self.docker_args.iter().flatten());
        match words.into_iter().find(|w| w.contains('\0')) {
            Some(word) => Err(format!("{word:?} holds a NUL")),
            None => Ok(()),
        }
    }
}

impl Limits {
    pub(super) fn check(&self) -> Result<(), String> {
        const DAY: u64 = 24 * 60 * 60;
        let all = [
            ("connect_s", self.connect_s),
            ("facts_s", self.facts_s),
            ("silence_s", self.silence_s),
            ("ready_s", self.ready_s),
            ("stop_s", self.stop_s),
        ];
        for (name, value) in all {
            if value.is_some_and(|s| s == 0 || s > DAY) {
                return Err(format!("{name} is not 1 to {DAY} seconds"));
            }
        }
        Ok(())
    }
}

/// Names that every process may have, and values without a NUL.
pub(super) fn check_env(env: &BTreeMap<String, String>) -> Result<(), String> {
    for (name, value) in env {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty()
            || name.starts_with(|c: char| c.is_ascii_digit())
            || !name.chars().all(plain)
        {
            return Err(format!("{name:?} is not the name of a variable"));
        }
        if value.contains('\0') {
            return Err(format!("the value of {name} holds a NUL"));
        }
    }
    Ok(())
}

/// Host name, IPv4 or IPv6 address, without brackets or port.
fn is_address(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    !text.is_empty() && !text.starts_with(['-', '.', ':']) && text.chars().all(plain)
}

/// A colon would end the path in `docker run -v`, a comma in `--mount`.
fn odd_path(path: &str) -> bool {
    path.contains(|c: char| c.is_control() || matches!(c, ':' | ',' | '"'))
}

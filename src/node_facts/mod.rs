//! What a node is: read from the raw outputs of its own programs and files.
//!
//! The parsers are pure: bytes in, typed facts out, so that whoever runs and whoever
//! audits read the same. What a source does not say is absent, never zero: GB10
//! answers `[N/A]` to several questions about its GPU. [`collect`] gathers the
//! sources on the node, [`check`] holds the facts of all nodes against what an
//! inventory expects.

pub mod check;
pub mod clock;
pub mod collect;
mod docker;
mod gpu;
mod network;
mod system;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use docker::{ContainerEngine, ImageIdentity, Pinned};
pub use gpu::{Gpu, Throttle};
pub use network::{Gid, Hca, Link};
pub use system::{Memory, Pressure};

/// A source's output, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// What it said, at most [`collect::MAX_OUTPUT`] bytes.
    Text(String),
    /// It could not be had.
    Absent(String),
}

/// The sources of a node by name, for example `nvidia-smi` or `/proc/meminfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Raw(pub BTreeMap<String, Output>);

impl Raw {
    /// What a source said.
    pub fn text(&self, source: &str) -> Option<&str> {
        match self.0.get(source) {
            Some(Output::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Why a source said nothing.
    pub fn absent(&self, source: &str) -> &str {
        match self.0.get(source) {
            Some(Output::Absent(why)) => why,
            Some(Output::Text(_)) => "it could not be understood",
            None => "it was not asked",
        }
    }

    /// The sources of a group, `group:NAME`.
    fn group<'a>(&'a self, group: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.iter().filter_map(move |(source, output)| {
            let name = source.strip_prefix(group)?.strip_prefix(':')?;
            match output {
                Output::Text(text) => Some((name, text.as_str())),
                Output::Absent(_) => None,
            }
        })
    }
}

/// The facts of one node. Absent means that no source said it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// `PRETTY_NAME` of os-release.
    pub os: Option<String>,
    /// Version of DGX OS: of the last update over the air, else of the image.
    pub dgx_version: Option<String>,
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// Boot id of the kernel.
    pub boot_id: Option<String>,
    /// Memory, in bytes.
    pub memory: Memory,
    /// Share of time in which something waited, by resource.
    pub pressure: BTreeMap<String, Pressure>,
    /// GPUs, in the driver's order; `None` when the driver said nothing.
    pub gpus: Option<Vec<Gpu>>,
    /// Network interfaces by name; `None` when they could not be listed.
    pub links: Option<BTreeMap<String, Link>>,
    /// RDMA devices by name; `None` when they could not be listed.
    pub hcas: Option<BTreeMap<String, Hca>>,
    /// The container engine.
    pub container_engine: Option<ContainerEngine>,
    /// The image of the run, as the container engine knows it.
    pub image: Option<ImageIdentity>,
    /// Whether the clock is held to another one.
    pub clock_synchronised: Option<bool>,
    /// TCP ports that something listens on; `None` when they could not be listed.
    pub listening: Option<BTreeSet<u16>>,
    /// Space free for an ordinary user, in bytes, by path.
    pub disk_free: BTreeMap<String, u64>,
}

impl Facts {
    /// Reads the sources of a node.
    pub fn read(raw: &Raw) -> Self {
        let text = |source: &'static str| raw.text(source);
        let first_line = |source: &'static str| -> Option<String> {
            let line = text(source)?.lines().next()?.trim();
            (!line.is_empty()).then(|| line.to_owned())
        };
        let mut links = text("ip-addr").and_then(network::ip_json);
        for (name, output) in raw.group("ethtool") {
            if let Some(link) = links.as_mut().and_then(|l| l.get_mut(name)) {
                link.mbps = network::ethtool_mbps(output);
            }
        }
        let mut hcas = text("ibdev2netdev").and_then(network::ibdev2netdev);
        for (name, output) in raw.group("gids") {
            let gids = network::gids(output);
            let hcas = hcas.get_or_insert_default();
            hcas.entry(name.to_owned()).or_default().gids = gids;
        }
        Self {
            os: text("/etc/os-release").and_then(|t| system::shell_value(t, "PRETTY_NAME")),
            dgx_version: text("/etc/dgx-release").and_then(system::dgx_version),
            kernel: first_line("/proc/sys/kernel/osrelease"),
            boot_id: first_line("/proc/sys/kernel/random/boot_id"),
            memory: text("/proc/meminfo").map_or(Memory::default(), system::meminfo),
            pressure: raw
                .group("pressure")
                .filter_map(|(name, output)| Some((name.to_owned(), system::pressure(output)?)))
                .collect(),
            gpus: text("nvidia-smi").and_then(gpu::nvidia_smi),
            links,
            hcas,
            container_engine: text("docker-info").and_then(docker::info),
            image: text("docker-image").and_then(docker::image),
            clock_synchronised: text("timedatectl")
                .and_then(system::ntp_synchronised)
                .or_else(|| text("chronyc").and_then(system::chrony_synchronised)),
            listening: system::listening(text("/proc/net/tcp"), text("/proc/net/tcp6")),
            disk_free: raw
                .group("disk")
                .filter_map(|(path, output)| Some((path.to_owned(), output.trim().parse().ok()?)))
                .collect(),
        }
    }

    /// Releases and versions of the first GPU, which on these machines is the only
    /// one.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpus.as_ref()?.first()
    }
}

//! Types of the smaller evidence files: nodes, image, engine, grades, telemetry.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::Sha256Digest;
use crate::plan::Pin;
use crate::scorer::Grade;

/// `format` of grades.jsonl's header.
pub const GRADES_FORMAT: &str = "runseal.grades/v1";
/// `format` of telemetry.jsonl's header.
pub const TELEMETRY_FORMAT: &str = "runseal.telemetry/v1";
/// `format` of nodes/*.json.
pub const NODE_FORMAT: &str = "runseal.node/v1";
/// `format` of image.json.
pub const IMAGE_FORMAT: &str = "runseal.image/v1";
/// `format` of engine/*.json.
pub const ENGINE_FORMAT: &str = "runseal.engine/v1";

/// `format` of addresses.json.
pub const ADDRESSES_FORMAT: &str = "runseal.addresses/v1";
/// `format` of server/*.json.
pub const SERVER_FORMAT: &str = "runseal.server/v1";

/// `nodes/<node>.json`: facts of one machine before and after the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeFile {
    /// Always [`NODE_FORMAT`].
    pub format: String,
    /// The run.
    pub run_id: String,
    /// Hash of its nonce.
    pub nonce_hash: Sha256Digest,
    /// Alias of the node.
    pub node: String,
    /// In preflight.
    pub before: NodeFacts,
    /// In collect; absent when the run did not get there.
    pub after: Option<NodeFacts>,
}

/// Facts of a machine. Absent means that it could not be read, never zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeFacts {
    /// When, RFC 3339 in UTC.
    pub at: String,
    /// `uname -s -r`.
    pub kernel: Option<String>,
    /// `PRETTY_NAME` of os-release.
    pub os: Option<String>,
    /// Machine architecture, for example `aarch64`.
    pub arch: String,
    /// Processor model.
    pub cpu_model: Option<String>,
    /// Processors usable by this process.
    pub cpus: u64,
    /// `MemTotal` in bytes.
    pub mem_total: Option<u64>,
    /// `MemAvailable` in bytes.
    pub mem_available: Option<u64>,
    /// Boot id of the kernel; another one after the run means a reboot.
    pub boot_id: Option<String>,
    /// Devices of the NVIDIA driver, by model name; empty without a driver.
    pub gpus: Vec<String>,
}

/// `image.json`: what program served, as pinned and as observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageFile {
    /// Always [`IMAGE_FORMAT`].
    pub format: String,
    /// The run.
    pub run_id: String,
    /// Hash of its nonce.
    pub nonce_hash: Sha256Digest,
    /// `process`: an executable, not a container image.
    pub kind: String,
    /// As in the plan.
    pub pinned: Pin,
    /// Digest of the running executable, read from the running process, by
    /// replica. Absent for a rank that was never up.
    pub observed: BTreeMap<String, Sha256Digest>,
}

/// `engine/<replica>.json`: the serving process of one replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineFile {
    /// Always [`ENGINE_FORMAT`].
    pub format: String,
    /// The run.
    pub run_id: String,
    /// Hash of its nonce.
    pub nonce_hash: Sha256Digest,
    /// Replica it serves.
    pub replica: String,
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Address and port that it listens on; empty for a rank that was never up.
    pub listen: String,
    /// Arguments of the running process, read from the system after launch; the
    /// first is replaced by `{executable}`.
    pub argv: Vec<String>,
    /// Its environment, read from the system.
    pub env: BTreeMap<String, String>,
    /// Documents of the server before the measurement, by path.
    pub before: BTreeMap<String, Value>,
    /// The same after it.
    pub after: BTreeMap<String, Value>,
}

/// `server/<endpoint>.json`: which documents of an endpoint's server were kept, and
/// when. Their bytes as they came lie in `server/<endpoint>/before/` and `…/after/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerFile {
    /// Always [`SERVER_FORMAT`].
    pub format: String,
    /// The run.
    pub run_id: String,
    /// Hash of its nonce.
    pub nonce_hash: Sha256Digest,
    /// Alias of the endpoint.
    pub endpoint: String,
    /// In measure, before its first request: by path, every document of the plan.
    pub before: BTreeMap<String, ServerDocument>,
    /// After its last request, in collect.
    pub after: BTreeMap<String, ServerDocument>,
}

/// What became of asking for a document. Times are nanoseconds since the run epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum ServerDocument {
    /// A whole answer came.
    Obtained {
        /// HTTP status; facts are read from 200 only.
        status: u16,
        /// SHA-256 of its body.
        sha256: Sha256Digest,
        /// When it was asked for.
        asked: u64,
        /// When the last byte was here.
        ended: u64,
    },
    /// None came, or it is not kept.
    NotObtained {
        /// Why.
        why: String,
    },
}

/// `addresses.json`: where the endpoints are that somebody else runs. The log has only
/// what [`crate::event::hidden_address`] makes of it, so that this file can be withheld.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddressFile {
    /// Always [`ADDRESSES_FORMAT`].
    pub format: String,
    /// The run.
    pub run_id: String,
    /// Hash of its nonce.
    pub nonce_hash: Sha256Digest,
    /// 32-byte salt, as 64 hex digits.
    pub salt: String,
    /// By endpoint.
    pub endpoints: BTreeMap<String, EndpointAddress>,
}

impl AddressFile {
    /// What the log has in place of an endpoint's address; `None` where there is none.
    pub fn hidden(&self, endpoint: &str) -> Option<String> {
        let mut salt = [0u8; 32];
        hex::decode_to_slice(&self.salt, &mut salt).ok()?;
        let peer = self.endpoints.get(endpoint)?.peer.as_ref()?;
        Some(crate::event::hidden_address(&salt, peer))
    }
}

/// Where one endpoint is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointAddress {
    /// As in the plan that people wrote.
    pub url: String,
    /// Address and port that its host name led to; absent when the run did not get as
    /// far as to ask.
    pub peer: Option<String>,
}

/// A line of grades.jsonl.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GradeLine {
    /// Case id.
    pub case: String,
    /// Repetition.
    pub rep: u32,
    /// The scorer's word.
    #[serde(flatten)]
    pub grade: Grade,
    /// What is remarkable about the answer; see [`crate::grading::flags`].
    pub flags: Vec<String>,
}

/// A line of telemetry.jsonl.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TelemetryLine {
    /// Nanoseconds since the run epoch.
    pub t: u64,
    /// Alias of the node.
    pub node: String,
    /// `MemAvailable` in bytes.
    pub mem_available: Option<u64>,
    /// One-minute load average in thousandths.
    pub load1_milli: Option<u64>,
    /// Busy time of all processors since boot, in clock ticks.
    pub cpu_busy_ticks: Option<u64>,
}

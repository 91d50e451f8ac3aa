//! The run record (`runseal:run-record/v1`): the signed payload's predicate.
//!
//! Every field is derived from the bundle's other files by [`derive::record`],
//! for the operator who seals and again for the auditor who checks, except the
//! few that [`Stated`] lists.

pub mod attribution;
mod counts;
pub mod derive;
pub mod lag;
pub mod limitations;
pub mod servers;
pub mod status;
pub mod subjects;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;
use crate::metrics::Metric;
use crate::plan::Pin;
use crate::scorer::Grade;
use crate::server_facts::ServerFact;
use crate::server_facts::traffic::Foreign;
use crate::statement::Statement;
use crate::trace::Transport;
use crate::weights::Integrity;

/// `predicateType` of the statement.
pub const PREDICATE_TYPE: &str = "runseal:run-record/v1";
/// Version of the limitation rules and metric definitions applied here.
pub const RULES_VERSION: &str = "1";

/// The whole signed payload.
pub type RecordStatement = Statement<RunRecord>;

/// The predicate. Groups follow the published serving record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRecord {
    /// Which run, and how it ended.
    pub run: Run,
    /// The checkpoints and who holds them intact.
    pub model: Model,
    /// What served.
    pub runtime: Runtime,
    /// On what machines.
    pub hardware: Hardware,
    /// Settings of the requests.
    pub requests: Requests,
    /// What was asked.
    pub input: Input,
    /// Cache condition.
    pub cache: Cache,
    /// Transport states over all declared attempts.
    pub transport: TransportCounts,
    /// Grades over all declared attempts.
    pub grades: GradeCounts,
    /// Attribution over all declared attempts.
    pub attribution: AttributionCounts,
    /// Replica integrity.
    pub integrity: IntegrityCounts,
    /// What the servers say of themselves, per endpoint; absent in bundles that hold no
    /// documents of theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<Vec<ServerRecord>>,
    /// How late the measuring client itself was; absent when nothing was measured.
    pub client_lag: Option<ClientLag>,
    /// Figures, by the definitions of docs/metrics.md.
    pub metrics: Vec<Metric>,
    /// Every declared attempt.
    pub cases: Vec<CaseRecord>,
    /// What the record does not establish, derived by rule.
    pub limitations: Vec<Limitation>,
    /// Conditions that two records must share to be compared.
    pub conditions: Conditions,
    /// Digests of everything that judged, and who signs.
    pub provenance: Provenance,
    /// Parts that may be withheld: path and commitment.
    pub withheld: BTreeMap<String, Sha256Digest>,
}

/// What the server of one endpoint says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerRecord {
    /// Alias of the endpoint.
    pub endpoint: String,
    /// Typed values with their sources, from the raw documents in `server/`.
    pub facts: Vec<ServerFact>,
    /// Requests of others right before the measurement.
    pub foreign_before: Foreign,
    /// Tokens of others while it lasted.
    pub foreign_during: Foreign,
}

/// The run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// `YYYYMMDDTHHMMSSZ-<suite>-<6 hex of the plan digest>`.
    pub id: String,
    /// Hash of the run nonce.
    pub nonce_hash: Sha256Digest,
    /// Digest of plan.json.
    pub plan_digest: Sha256Digest,
    /// How it ended: `status`, and for other than completed its `cause`.
    #[serde(flatten)]
    pub status: Status,
    /// What may have touched the measurement.
    pub taints: Vec<Taint>,
    /// Wall clock at the epoch, RFC 3339 UTC, the operator's word.
    pub started: String,
    /// Wall clock at the end of the log, on the same anchor.
    pub finished: String,
    /// Suite name.
    pub suite: String,
    /// Kind of measurement.
    pub kind: String,
}

/// How long work that was ready to run waited for the client's own threads while
/// the measured requests ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientLag {
    /// Samples.
    pub n: u64,
    /// Nanoseconds between two samples.
    pub every_ns: u64,
    /// Median, at most 1/32 too high.
    pub p50_ns: u64,
    /// 99th percentile, at most 1/32 too high.
    pub p99_ns: u64,
    /// Largest, exact.
    pub max_ns: u64,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Status {
    /// Every declared case was attempted and every state was left in order.
    Completed,
    /// It could not go on.
    Failed {
        /// State in which it failed.
        state: String,
        /// Kebab-case cause.
        cause: String,
        /// One sentence.
        detail: String,
    },
    /// Someone ended it.
    Aborted {
        /// Name of the signal.
        cause: String,
    },
    /// It would not launch.
    Refused {
        /// Kebab-case cause.
        cause: String,
        /// One sentence.
        detail: String,
    },
}

impl Status {
    /// The bare word.
    pub fn name(&self) -> &'static str {
        match self {
            Status::Completed => "completed",
            Status::Failed { .. } => "failed",
            Status::Aborted { .. } => "aborted",
            Status::Refused { .. } => "refused",
        }
    }
}

/// Something that may have touched the measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Taint {
    /// Kebab-case cause.
    pub cause: String,
    /// One sentence.
    pub detail: String,
    /// Attempts it touches; empty for all.
    pub reqs: Vec<u32>,
}

/// The model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Checkpoints by role.
    pub checkpoints: Vec<CheckpointRecord>,
}

/// A checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRecord {
    /// `target`, `draft` …
    pub role: String,
    /// What people call it.
    pub name: String,
    /// Root digest of the pinned manifest.
    pub manifest_root: Sha256Digest,
    /// Files in it.
    pub files: u64,
    /// Bytes in it.
    pub bytes: u64,
    /// Revision that the manifest is said to belong to.
    pub revision: Option<String>,
    /// Per replica.
    pub replicas: Vec<ReplicaRecord>,
}

/// One copy of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaRecord {
    /// Alias.
    pub replica: String,
    /// Alias of its machine.
    pub node: String,
    /// Rehash before the run.
    pub integrity: Integrity,
    /// Re-stat after it: `unchanged`, `changed`, `not_checked`.
    pub after: String,
    /// Tree root over what was found.
    pub observed_root: Option<Sha256Digest>,
}

/// What served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Runtime {
    /// Engine recipe.
    pub engine: String,
    /// Version that the servers report, when they all report the same.
    pub version: Option<String>,
    /// `process`.
    pub image_kind: String,
    /// Pinned identity.
    pub image: Pin,
    /// Serving ranks that were seen to run exactly that.
    pub image_observed_equal: u64,
    /// Serving ranks that were up.
    pub ranks: u64,
    /// Digest of the planned argument template.
    pub argv_digest: Sha256Digest,
    /// Digest of the planned environment.
    pub env_digest: Sha256Digest,
    /// Ranks per endpoint.
    pub layout: String,
    /// Context limit that the servers report, in tokens.
    pub context_limit_tokens: Option<u64>,
}

/// Machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Distinct machines by boot id; nodes without one count singly.
    pub machines: u64,
    /// Facts per alias.
    pub nodes: Vec<NodeRecord>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeRecord {
    /// Alias.
    pub node: String,
    /// Architecture.
    pub arch: String,
    /// Processor model.
    pub cpu_model: Option<String>,
    /// Processors.
    pub cpus: u64,
    /// Memory in bytes.
    pub mem_total: Option<u64>,
    /// GPUs by model.
    pub gpus: Vec<String>,
    /// Operating system.
    pub os: Option<String>,
    /// Kernel.
    pub kernel: Option<String>,
}

/// Settings of the requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Requests {
    /// Sampling temperature.
    pub temperature: String,
    /// Sampling seed.
    pub seed: u64,
    /// Completion cap in tokens.
    pub max_tokens: u64,
    /// Reasoning effort asked for.
    pub reasoning_effort: Option<String>,
    /// Answers that held reasoning text.
    pub reasoning_observed: u64,
    /// Always true: the client streams.
    pub streaming: bool,
    /// Client slots.
    pub concurrency: u32,
    /// How often every case was sent.
    pub repetitions: u32,
    /// Endpoints the load was spread over.
    pub endpoints: u64,
    /// Where a fixed number of output tokens was asked for (`ignore_eos`): whether every
    /// answer has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_output: Option<FixedOutput>,
}

/// What became of the claim that every answer has a fixed number of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "proof", rename_all = "snake_case")]
pub enum FixedOutput {
    /// Every declared attempt completed with the finish reason `length` and exactly as
    /// many completion tokens as its cap.
    Proven {
        /// Attempts.
        n: u64,
    },
    /// It does not hold or cannot be shown.
    Refused {
        /// Why.
        reason: String,
    },
}

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Digest of the cases.
    pub dataset: Sha256Digest,
    /// Number of cases.
    pub cases: u64,
    /// Input length the suite aims at, in tokens.
    pub length_target_tokens: Option<u64>,
    /// Smallest prompt the server counted.
    pub prompt_tokens_min: Option<u64>,
    /// Largest prompt the server counted.
    pub prompt_tokens_max: Option<u64>,
    /// Attempts with a server-side prompt count.
    pub prompt_tokens_n: u64,
    /// How prompts are made unique.
    pub preparation: String,
    /// The batches of a sweep or card, from suite.toml; figures name them by number, from 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batches: Vec<crate::suite::BatchOf>,
    /// By length target, where the suite or the plan has any: what the server counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lengths: Vec<crate::length::LengthRange>,
}

/// Cache condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cache {
    /// What the plan claims: `cold` or `none`.
    pub claim: String,
    /// What became of the claim.
    #[serde(flatten)]
    pub proof: CacheProof,
}

/// What became of a cold-cache claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "proof", rename_all = "snake_case")]
pub enum CacheProof {
    /// Unique prefixes, and every measured attempt that was answered reported
    /// cached tokens within the limit.
    Proven {
        /// Attempts that reported.
        n: u64,
        /// Largest report.
        max_cached_tokens: u64,
    },
    /// The claim does not hold or cannot be shown.
    Refused {
        /// Why.
        reason: String,
    },
    /// Nothing was claimed.
    NotClaimed,
}

/// Transport states.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TransportCounts {
    /// Declared attempts: the denominator.
    pub declared: u64,
    /// Completed.
    pub completed: u64,
    /// HTTP error.
    pub http_error: u64,
    /// Error in the stream.
    pub stream_error: u64,
    /// Ended early.
    pub truncated: u64,
    /// Time limit.
    pub timeout: u64,
    /// Cancelled.
    pub cancelled: u64,
    /// No connection.
    pub connect_error: u64,
    /// Never sent.
    pub not_attempted: u64,
}

/// Grades.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GradeCounts {
    /// Declared attempts: the denominator.
    pub declared: u64,
    /// All checks held.
    pub pass: u64,
    /// A check did not hold.
    pub fail: u64,
    /// No grade.
    pub ungraded: u64,
}

/// Attribution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttributionCounts {
    /// Declared attempts: the denominator.
    pub declared: u64,
    /// Known to have been answered by the pinned weights and program.
    pub verified: u64,
    /// Not known.
    pub unverified: u64,
    /// Passes among the verified.
    pub verified_passes: u64,
    /// Who vouches for the weakest input.
    pub witness: String,
}

/// Replica integrity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IntegrityCounts {
    /// Replicas in the plan: the denominator.
    pub replicas: u64,
    /// Replicas that were distinct copies.
    pub distinct: u64,
    /// Every checkpoint verified before the run.
    pub verified: u64,
    /// And unchanged after it.
    pub unchanged_after: u64,
}

/// One declared attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CaseRecord {
    /// Case id.
    pub case: String,
    /// Repetition.
    pub rep: u32,
    /// Endpoint that served it.
    pub endpoint: Option<String>,
    /// Transport state.
    pub transport: Transport,
    /// `grade`, with the `check` that failed or the `reason` for no grade.
    #[serde(flatten)]
    pub grade: Grade,
    /// `attribution`: whether the answer is known to come from what the plan
    /// names, and if not, `because` of what.
    #[serde(flatten)]
    pub attribution: Attribution,
    /// Send to end, nanoseconds.
    pub duration_ns: Option<u64>,
    /// Send to first generated output, nanoseconds.
    pub first_generated_ns: Option<u64>,
    /// Send to first final content, nanoseconds.
    pub first_content_ns: Option<u64>,
    /// Prompt tokens as the server counts.
    pub prompt_tokens: Option<u64>,
    /// Completion tokens as the server counts.
    pub completion_tokens: Option<u64>,
    /// Finish reason.
    pub finish_reason: Option<String>,
    /// Remarkable things about the answer or its stream.
    pub flags: Vec<String>,
    /// Length target, depth and haystack, where the suite has such cells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<CellRecord>,
}

/// What a case is an instance of, from suite.toml.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CellRecord {
    /// Length that the document aims at, in tokens; `prompt_tokens` is what the server
    /// counted.
    pub length_target_tokens: u64,
    /// Percent of the document's other lines before the needle.
    pub depth_percent: u8,
    /// What needle and haystack were drawn from.
    pub needle_seed: String,
    /// SHA-256 of the frozen haystack.
    pub haystack_sha256: Sha256Digest,
}

/// Whether an answer is known to come from what the plan names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "attribution", rename_all = "snake_case")]
pub enum Attribution {
    /// It is.
    Verified,
    /// It is not.
    Unverified {
        /// Kebab-case reason.
        because: String,
    },
}

/// Something the record does not establish: a code and its parameters. The texts
/// are rendered by [`limitations::text`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limitation {
    /// Kebab-case code.
    pub code: String,
    /// Parameters of its text.
    pub params: BTreeMap<String, String>,
}

/// Conditions under which two records may be compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// Named conditions.
    pub values: BTreeMap<String, String>,
    /// Digest over them.
    pub digest: Sha256Digest,
}

/// Digests of everything that judged, and who signs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Digest of the suite.
    pub suite: Sha256Digest,
    /// Digest of the scorer file.
    pub evaluator: Sha256Digest,
    /// Dialect that the scorer is written in.
    pub dialect: String,
    /// Digest of the cases.
    pub dataset: Sha256Digest,
    /// Version of rules and definitions.
    pub rules_version: String,
    /// `this_run` when the run made the key, else `existing`.
    pub key_origin: String,
    /// The program that ran and sealed. Stated.
    #[schemars(extend("x-derivation" = "stated"))]
    pub tool: Tool,
    /// Who must have signed. Stated; the key id must be that of the log.
    #[schemars(extend("x-derivation" = "stated"))]
    pub signers: Vec<Signer>,
}

/// The program that ran and sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// `runseal`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Source commit it was built from, `-modified` when the tree was not clean.
    pub commit: Option<String>,
    /// SHA-256 of its binary: the observer that took the stamps.
    pub binary_sha256: Sha256Digest,
}

/// A signer named in the payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signer {
    /// `operator`, `node`, `auditor`.
    pub role: String,
    /// base64(SHA-256(SPKI DER)).
    pub keyid: String,
    /// SPKI PEM.
    pub public_key: String,
}

/// The fields that no evidence file gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stated {
    /// See [`Provenance::tool`].
    pub tool: Tool,
    /// See [`Provenance::signers`].
    pub signers: Vec<Signer>,
}

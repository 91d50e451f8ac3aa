//! The resolved run plan (`runseal.plan/v1`): every input of a run, pinned.
//!
//! A plan holds placeholders (`{executable}`, `{model}`, `{port}`), never a run
//! id, nonce, output path or time, so the same plan gives the same digest on
//! every day. What cannot be pinned says so and why.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

mod input;
mod layout;
mod load;
mod remote;

pub use input::{Api, InputPlan, Language};
pub use remote::{ADDRESSES, RECIPE as REMOTE_RECIPE, RemotePlan};

pub use layout::{ImagePin, LayoutPlan, MountContent, MountPlan, ProgramPlan, RankPlan};
pub use load::{LoadPlan, MAX_MILLIHERTZ, MAX_RETRY, RETRIABLE, RetryPlan, StagePlan};

use crate::digest::Sha256Digest;
use crate::json;
use crate::server_facts;

/// Value of [`RunPlan::format`].
pub const FORMAT: &str = "runseal.plan/v1";

/// Largest number of declared attempts: cases × repetitions.
pub const MAX_ATTEMPTS: u64 = 1_000_000;
/// Roles that a checkpoint can have.
pub const ROLES: [&str; 4] = ["target", "draft", "adapter", "tokenizer"];

/// Fields of a request body that have a setting of their own; neither a plan nor a case
/// may set them otherwise.
pub const OWN_FIELDS: [&str; 10] = [
    "messages",
    "prompt",
    "model",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "seed",
    "stream",
    "stream_options",
    "reasoning_effort",
];

/// Why a plan was refused.
#[derive(Debug, thiserror::Error)]
#[error("plan: {0} (hint: `attest init` writes a commented plan to start from)")]
pub struct PlanError(pub String);

/// An input that is fixed by digest, or openly not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Pin {
    /// SHA-256 of the artifact.
    Sha256(Sha256Digest),
    /// It cannot be pinned; figures that rest on it say so.
    Unpinned {
        /// Why.
        reason: String,
    },
}

/// A resolved plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunPlan {
    /// Always [`FORMAT`].
    pub format: String,
    /// The suite, by digest.
    pub suite: SuitePin,
    /// The checkpoints that every replica must hold.
    pub checkpoints: Vec<CheckpointPin>,
    /// Where the copies of the checkpoints are.
    pub replicas: Vec<ReplicaPlan>,
    /// What serves, and from which replicas.
    pub endpoints: Vec<EndpointPlan>,
    /// The program that serves.
    pub engine: EnginePlan,
    /// Settings of every request.
    pub requests: RequestSettings,
    /// How requests are sent.
    pub load: LoadPlan,
    /// Time limits in milliseconds.
    pub timeouts_ms: TimeoutsMs,
    /// What is claimed about caches.
    pub cache: CacheClaim,
    /// How prompts are brought to a length; without it they are sent as frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<InputPlan>,
    /// Bundle files that may be withheld from readers; they get salted
    /// commitments in the index. Only [`WITHHOLDABLE`] names are allowed.
    pub withholdable: Vec<String>,
}

/// Files whose absence leaves every figure derivable and only the re-grading
/// undone.
pub const WITHHOLDABLE: [&str; 2] = ["suite/cases.jsonl", "responses.jsonl"];

/// A suite by digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SuitePin {
    /// Its name.
    pub name: String,
    /// Tree root over its three files.
    pub digest: Sha256Digest,
    /// SHA-256 of its cases.
    pub dataset: Sha256Digest,
    /// SHA-256 of its scorer file.
    pub scorer: Sha256Digest,
    /// Every declared case, in order: the denominator of every count.
    pub case_ids: Vec<String>,
    /// Where the plan asks for `ignore_eos`: the completion cap of each case in their
    /// order, which every answer must reach to the token. It stands here so that it is
    /// known while the cases are withheld.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fixed_output: Vec<u64>,
}

/// A checkpoint by digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointPin {
    /// `target`, `draft`, `adapter` or `tokenizer`.
    pub role: String,
    /// What people call it.
    pub name: String,
    /// Root digest of its manifest.
    pub manifest_root: Sha256Digest,
    /// Repository revision that the manifest is said to belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// A copy of the checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaPlan {
    /// Alias; no host name.
    pub name: String,
    /// Alias of the machine it is on.
    pub node: String,
    /// How it is reached; `local` for this machine.
    pub transport: String,
    /// Folder per checkpoint role, relative to where the run is started.
    pub paths: BTreeMap<String, String>,
}

/// A serving endpoint and the replicas whose weights it serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EndpointPlan {
    /// Alias.
    pub name: String,
    /// Replicas that its ranks load; none for an endpoint that somebody else runs.
    pub replicas: Vec<String>,
    /// How to reach an endpoint that somebody else runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemotePlan>,
}

/// The serving program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnginePlan {
    /// Engine recipe, for example `reference`.
    pub recipe: String,
    /// How it is started: `process`.
    pub launch: String,
    /// Digest of the executable.
    pub executable: Pin,
    /// Argument template per rank.
    pub argv: Vec<String>,
    /// The whole environment of the process.
    pub env: BTreeMap<String, String>,
    /// Path that requests are posted to.
    pub path: String,
    /// Documents of every endpoint that are kept right before and right after the
    /// measurement, by path. Plans of earlier versions have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub documents: Vec<String>,
    /// A multi-node engine: programs per rank instead of `argv` and `env` per replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<LayoutPlan>,
}

/// Settings of every request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestSettings {
    /// Served model name. The server's echo of it proves nothing.
    pub model: String,
    /// Sampling temperature, as a decimal string.
    pub temperature: String,
    /// Sampling seed.
    pub seed: u64,
    /// Completion cap in tokens, for all cases.
    pub max_tokens: u64,
    /// Reasoning effort asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// Ask for token counts with every chunk. Servers that do not offer it ignore
    /// it; without them the time per output token is not measurable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continuous_usage: bool,
    /// Which form requests have.
    #[serde(default, skip_serializing_if = "Api::is_chat")]
    pub api: Api,
    /// Further fields of the body, sent as they stand.
    #[serde(default)]
    pub extra: Map<String, Value>,
}

impl RequestSettings {
    /// The temperature as the number that goes into the body.
    pub fn temperature_number(&self) -> Value {
        serde_json::from_str(&self.temperature).unwrap_or(Value::Null)
    }

    /// The plan asks servers to go on to the cap whatever the model wants.
    pub fn ignores_eos(&self) -> bool {
        self.extra.get("ignore_eos") == Some(&Value::Bool(true))
    }
}

/// Time limits in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimeoutsMs {
    /// Until a connection stands.
    pub connect: u64,
    /// From send to the first generated output.
    pub first_token: u64,
    /// Between generated outputs.
    pub stall: u64,
    /// From send to the end.
    pub request: u64,
    /// From launch until an endpoint answers its canary.
    pub ready: u64,
}

/// What is claimed about the prefix cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheClaim {
    /// `cold` (unique prefixes, proven by the server's cached-token report) or
    /// `none` (nothing is claimed).
    pub claim: String,
    /// Largest cached-token count per request that still counts as cold.
    pub max_cached_tokens: u64,
}

impl RunPlan {
    /// Parses plan.json and checks that it makes sense.
    pub fn parse(bytes: &[u8]) -> Result<Self, PlanError> {
        let plan: RunPlan = json::from_slice(bytes).map_err(|e| PlanError(e.to_string()))?;
        plan.check()?;
        Ok(plan)
    }

    /// The bytes of plan.json: canonical JSON and a newline.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = json::canonical(self);
        bytes.push(b'\n');
        bytes
    }

    /// SHA-256 of plan.json.
    pub fn digest(&self) -> Sha256Digest {
        Sha256Digest::of(&self.to_bytes())
    }

    /// Declared measured attempts: cases × repetitions.
    pub fn declared(&self) -> usize {
        self.suite.case_ids.len() * self.load.repetitions as usize
    }

    /// What a plan must satisfy beyond its types.
    pub fn check(&self) -> Result<(), PlanError> {
        let bad = |why: String| Err(PlanError(why));
        if self.format != FORMAT {
            return bad(format!("unknown format {:?}", self.format));
        }
        if self.suite.case_ids.is_empty() {
            return bad("the suite declares no case".into());
        }
        unique("case id", self.suite.case_ids.iter())?;
        unique("replica", self.replicas.iter().map(|r| &r.name))?;
        unique("endpoint", self.endpoints.iter().map(|e| &e.name))?;
        unique("checkpoint role", self.checkpoints.iter().map(|c| &c.role))?;
        for name in self.replicas.iter().flat_map(|r| [&r.name, &r.node]) {
            alias(name)?;
        }
        // Without a target and a copy of it, or with an endpoint that serves no
        // copy, "every rank's weights were verified" would hold of nothing.
        // Of an endpoint that somebody else runs, nothing of the kind is said.
        let remote = self.is_remote();
        self.check_remote()?;
        if !remote && !self.checkpoints.iter().any(|c| c.role == "target") {
            return bad("no checkpoint has the role \"target\"".into());
        }
        for checkpoint in &self.checkpoints {
            if !ROLES.contains(&checkpoint.role.as_str()) {
                return bad(format!(
                    "checkpoint role {:?} is none of {}",
                    checkpoint.role,
                    ROLES.join(", ")
                ));
            }
        }
        for endpoint in &self.endpoints {
            alias(&endpoint.name)?;
            if !remote && endpoint.replicas.is_empty() {
                return bad(format!("endpoint {} serves no replica", endpoint.name));
            }
            unique("replica of an endpoint", endpoint.replicas.iter())?;
            for replica in &endpoint.replicas {
                if !self.replicas.iter().any(|r| r.name == *replica) {
                    return bad(format!(
                        "endpoint {} names unknown replica {replica:?}",
                        endpoint.name
                    ));
                }
            }
        }
        if self.endpoints.is_empty() {
            return bad("there is no endpoint to send to".into());
        }
        for replica in &self.replicas {
            for checkpoint in &self.checkpoints {
                if !replica.paths.contains_key(&checkpoint.role) {
                    return bad(format!(
                        "replica {} has no path for {}",
                        replica.name, checkpoint.role
                    ));
                }
            }
        }
        if let Some(layout) = &self.engine.layout {
            layout.check(&self.replicas)?;
        }
        self.load.check()?;
        if self.load.concurrency == 0 || self.load.repetitions == 0 {
            return bad("concurrency and repetitions must be at least 1".into());
        }
        let attempts = self.suite.case_ids.len() as u64 * u64::from(self.load.repetitions);
        if attempts > MAX_ATTEMPTS {
            return bad(format!(
                "cases times repetitions are {attempts} attempts, and a plan may declare at most {MAX_ATTEMPTS}"
            ));
        }
        match self.requests.temperature_number() {
            Value::Number(n) if n.as_f64().is_some_and(|t| t >= 0.0) => {}
            _ => {
                return bad(format!(
                    "temperature {:?} is not a number ≥ 0",
                    self.requests.temperature
                ));
            }
        }
        if self.requests.seed > json::MAX_INTEGER {
            return bad("the seed is past 2^53".into());
        }
        if let Some(key) = self
            .requests
            .extra
            .keys()
            .find(|k| OWN_FIELDS.contains(&k.as_str()))
        {
            return bad(format!(
                "requests.extra may not set {key:?}; it has a setting of its own"
            ));
        }
        self.check_input()?;
        // They become file names in the bundle, so only known ones are let in.
        let known = server_facts::family(&self.engine.recipe).map_or(&[][..], |f| f.documents);
        if let Some(d) = self
            .engine
            .documents
            .iter()
            .find(|d| !known.contains(&d.as_str()))
        {
            return bad(format!(
                "engine.documents names {d:?}, which is no document of {}",
                self.engine.recipe
            ));
        }
        unique("document of the engine", self.engine.documents.iter())?;
        if !matches!(self.cache.claim.as_str(), "cold" | "none") {
            return bad("cache.claim must be \"cold\" or \"none\"".into());
        }
        if let Some(w) = self
            .withholdable
            .iter()
            .find(|w| !(WITHHOLDABLE.contains(&w.as_str()) || remote && *w == ADDRESSES))
        {
            return bad(format!(
                "{w:?} cannot be withheld; only {} can",
                WITHHOLDABLE.join(" and ")
            ));
        }
        unique("withholdable file", self.withholdable.iter())
    }

    /// The endpoint that the n-th declared attempt goes to.
    pub fn endpoint_of(&self, index: usize) -> &EndpointPlan {
        &self.endpoints[index % self.endpoints.len()]
    }

    /// Fills the argument template of a rank.
    pub fn argv(&self, replica: &ReplicaPlan, executable: &str, port: &str) -> Vec<String> {
        let model = replica.paths.get("target").map_or("", String::as_str);
        self.engine
            .argv
            .iter()
            .map(|a| {
                a.replace("{executable}", executable)
                    .replace("{model}", model)
                    .replace("{port}", port)
                    .replace("{replica}", &replica.name)
            })
            .collect()
    }
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Result<(), PlanError> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(PlanError(format!("{what} {name:?} stands twice")));
        }
    }
    Ok(())
}

/// Aliases become file names in the bundle.
fn alias(name: &str) -> Result<(), PlanError> {
    let ok = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 40 || !name.chars().all(ok) {
        return Err(PlanError(format!(
            "alias {name:?} must be 1 to 40 characters of a-z, 0-9, '-' and '_'"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Transport;

    fn load(text: &str) -> LoadPlan {
        serde_json::from_str(text).unwrap()
    }

    fn stage(arrivals: &str, seed: Option<u64>) -> StagePlan {
        StagePlan {
            arrivals: arrivals.into(),
            millihertz: 1000,
            seed,
        }
    }

    #[test]
    fn loads_that_mean_nothing_are_refused() {
        let closed =
            load(r#"{"mode":"closed","concurrency":1,"repetitions":4,"spread":"round-robin"}"#);
        let open = LoadPlan {
            mode: "open".into(),
            stages: vec![stage("constant", None), stage("poisson", Some(1))],
            ..closed.clone()
        };
        let retry = |attempts, on: &[Transport]| LoadPlan {
            retry: Some(RetryPlan {
                attempts,
                on: on.to_vec(),
            }),
            ..closed.clone()
        };
        for good in [&closed, &open, &retry(2, &[Transport::Timeout])] {
            assert_eq!(good.check().map_err(|e| e.0), Ok(()));
        }
        let with = |stages: Vec<StagePlan>| LoadPlan {
            stages,
            ..open.clone()
        };
        let too_fast = StagePlan {
            millihertz: MAX_MILLIHERTZ + 1,
            ..stage("constant", None)
        };
        for bad in [
            LoadPlan {
                mode: "half-open".into(),
                ..closed.clone()
            },
            LoadPlan {
                stages: open.stages.clone(),
                ..closed.clone()
            },
            with(Vec::new()),
            with(vec![stage("constant", None); 3]),
            with(vec![stage("constant", Some(1))]),
            with(vec![stage("poisson", None)]),
            with(vec![stage("bursty", None)]),
            with(vec![too_fast]),
            retry(1, &[Transport::Timeout]),
            retry(MAX_RETRY + 1, &[Transport::Timeout]),
            retry(2, &[]),
            retry(2, &[Transport::Timeout, Transport::Timeout]),
            // That would be choosing among answers.
            retry(2, &[Transport::Completed]),
            retry(2, &[Transport::Cancelled]),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn repetitions_are_shared_out_over_the_stages_in_their_order() {
        let mut open =
            load(r#"{"mode":"open","concurrency":1,"repetitions":6,"spread":"round-robin"}"#);
        open.stages = vec![stage("constant", None); 3];
        let stages: Vec<usize> = (0..6).map(|rep| open.stage_of(rep)).collect();
        assert_eq!(stages, [0, 0, 1, 1, 2, 2]);
    }
}

//! `attest.toml`: the plan as people write it, and its resolution into a
//! [`RunPlan`] in which every input is pinned.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use runseal::digest::Sha256Digest;
use runseal::plan::{
    ADDRESSES, Api, CacheClaim, CheckpointPin, EndpointPlan, EnginePlan, FORMAT, InputPlan,
    LoadPlan, Pin, REMOTE_RECIPE, ReplicaPlan, RequestSettings, RetryPlan, RunPlan, StagePlan,
    SuitePin, TimeoutsMs,
};
use runseal::server_facts;
use runseal::suite::{Suite, digests};
use runseal::weights::Manifest;
use serde::Deserialize;

use crate::builtin::{self, SuiteFiles};

mod cluster;
mod hints;
mod limits;
pub mod remote;

use remote::Remote;

pub use cluster::ClusterPlan;

/// Name of the file in the current folder.
pub const FILE: &str = "attest.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    format: String,
    suite: String,
    #[serde(default)]
    withholdable: Vec<String>,
    /// Inventory of a cluster, which then names replicas, manifests and engine.
    #[serde(default)]
    inventory: Option<String>,
    #[serde(default)]
    checkpoint: Vec<CheckpointEntry>,
    #[serde(default)]
    replica: Vec<ReplicaEntry>,
    #[serde(default)]
    endpoint: Vec<EndpointEntry>,
    #[serde(default)]
    engine: Option<EngineEntry>,
    requests: RequestsEntry,
    load: LoadEntry,
    timeouts_ms: TimeoutsMs,
    cache: CacheClaim,
    #[serde(default)]
    input: Option<InputPlan>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckpointEntry {
    role: String,
    name: String,
    /// The inventory's, when there is one.
    #[serde(default)]
    manifest: Option<String>,
    #[serde(default)]
    revision: Option<String>,
}

#[derive(Deserialize)]
struct ReplicaEntry {
    name: String,
    node: String,
    /// Folder per checkpoint role.
    #[serde(flatten)]
    paths: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndpointEntry {
    name: String,
    #[serde(default)]
    replicas: Vec<String>,
    /// Of an endpoint that somebody else runs.
    #[serde(default)]
    url: Option<String>,
    /// PEM with authorities that are trusted beside the public ones.
    #[serde(default)]
    ca_file: Option<String>,
    /// Environment variable with the bearer key.
    #[serde(default)]
    api_key_env: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EngineEntry {
    recipe: String,
    /// Further arguments of the engine.
    #[serde(default)]
    args: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestsEntry {
    model: String,
    temperature: String,
    seed: u64,
    max_tokens: u64,
    #[serde(default)]
    reasoning_effort: Option<String>,
    #[serde(default)]
    continuous_usage: bool,
    #[serde(default)]
    api: Api,
    #[serde(default)]
    extra: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadEntry {
    #[serde(default = "closed")]
    mode: String,
    concurrency: u32,
    repetitions: u32,
    #[serde(default)]
    stage: Vec<StagePlan>,
    #[serde(default)]
    retry: Option<RetryPlan>,
}

fn closed() -> String {
    "closed".into()
}

/// Where a plan comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file; paths in it are relative to its folder.
    File(PathBuf),
    /// The text compiled into this program.
    Builtin,
}

impl Source {
    /// The named file; else ./attest.toml; else the built-in plan.
    pub fn find(named: Option<&Path>) -> Self {
        match named {
            Some(path) => Source::File(path.to_owned()),
            None if Path::new(FILE).exists() => Source::File(FILE.into()),
            None => Source::Builtin,
        }
    }

    /// What to say aloud.
    pub fn describe(&self) -> String {
        match self {
            Source::File(path) => format!("plan {}", path.display()),
            Source::Builtin => {
                "the built-in plan (there is no ./attest.toml; `attest init` writes one)".into()
            }
        }
    }

    fn text(&self) -> anyhow::Result<String> {
        match self {
            Source::Builtin => Ok(builtin::PLAN.to_owned()),
            Source::File(path) => std::fs::read_to_string(path)
                .with_context(|| format!("could not read plan {}", path.display())),
        }
    }

    fn folder(&self) -> PathBuf {
        match self {
            Source::File(path) => path.parent().unwrap_or(Path::new("")).to_owned(),
            Source::Builtin => PathBuf::new(),
        }
    }
}

/// A plan with the bytes behind its pins.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The plan.
    pub plan: RunPlan,
    /// Its suite, parsed.
    pub suite: Suite,
    /// Its suite, as bytes.
    pub suite_files: SuiteFiles,
    /// Manifests by checkpoint role.
    pub manifests: BTreeMap<String, Manifest>,
    /// Roles whose checkpoint is compiled in, so that absent copies can be made.
    pub builtin_roles: Vec<String>,
    /// The endpoints that somebody else runs.
    pub remotes: BTreeMap<String, Remote>,
    /// The executable that the reference engine is started from.
    pub executable: PathBuf,
    /// The cluster that it runs on, when the plan names an inventory.
    pub cluster: Option<ClusterPlan>,
}

/// Reads a plan and pins everything it names.
pub fn resolve(source: &Source, executable: &Path) -> anyhow::Result<Resolved> {
    let text = source.text()?;
    let file: PlanFile = toml::from_str(&text).map_err(|e| {
        let hint = hints::unknown_name(e.message()).unwrap_or_default();
        anyhow::anyhow!("{}: {}{hint}", source.describe(), e.to_string().trim_end())
    })?;
    if file.format != "runseal.attest/v1" {
        bail!(
            "{}: unknown format {:?} (hint: runseal.attest/v1)",
            source.describe(),
            file.format
        );
    }
    let folder = source.folder();
    let suite_files = suite_files(&file.suite, &folder)?;
    let suite = Suite::parse(&suite_files.toml, &suite_files.cases)?;
    runseal::scorer::Scorer::parse(&suite_files.scorer)?;
    let suite_digests = digests(&suite_files.toml, &suite_files.cases, &suite_files.scorer);

    if let Some(shipped) = runseal::shipped::digest(&suite.toml.name)
        && shipped.suite != suite_digests.suite
    {
        bail!(
            "suite {:?} has the name of a shipped suite and other bytes; every audit would refuse the record \
             (hint: give it a name of its own in suite.toml)",
            suite.toml.name
        );
    }

    let cluster = match &file.inventory {
        None => None,
        Some(name) => Some(cluster::read(&folder.join(name), &file)?),
    };
    let mut manifests = BTreeMap::new();
    let mut builtin_roles = Vec::new();
    let mut checkpoints = Vec::new();
    for c in file.checkpoint {
        limits::role(&c.role)?;
        let named = match (&cluster, &c.manifest) {
            (Some(cluster), _) => cluster.manifest(&c.role)?,
            (None, Some(name)) => folder.join(name),
            (None, None) => bail!("plan: the checkpoint {} names no manifest", c.role),
        };
        let manifest = if c.manifest.as_deref() == Some(builtin::CHECKPOINT) {
            builtin_roles.push(c.role.clone());
            builtin::manifest()?
        } else {
            let path = named;
            let bytes = std::fs::read(&path)
                .with_context(|| format!("could not read manifest {}", path.display()))?;
            Manifest::parse(&bytes).with_context(|| format!("manifest {}", path.display()))?
        };
        checkpoints.push(CheckpointPin {
            role: c.role.clone(),
            name: c.name,
            manifest_root: manifest.root(),
            revision: c.revision,
        });
        manifests.insert(c.role, manifest);
    }

    let replicas: Vec<ReplicaPlan> = match &cluster {
        Some(cluster) => cluster.replicas(),
        None => file
            .replica
            .into_iter()
            .map(|r| ReplicaPlan {
                name: r.name,
                node: r.node,
                transport: "local".into(),
                paths: r.paths,
            })
            .collect(),
    };
    for r in &replicas {
        let known = |role: &String| checkpoints.iter().any(|c| c.role == *role);
        if let Some(key) = r.paths.keys().find(|k| !known(k)) {
            let names = ["name", "node"].into_iter();
            let names = names.chain(checkpoints.iter().map(|c| c.role.as_str()));
            bail!(
                "replica {}: {key:?} is neither a setting nor a checkpoint role{}",
                r.name,
                hints::nearest(key, names).unwrap_or_default()
            );
        }
    }
    let mut remotes = BTreeMap::new();
    let endpoints = if let Some(cluster) = &cluster {
        vec![cluster.endpoint()]
    } else if file.endpoint.is_empty() {
        replicas
            .iter()
            .map(|r| EndpointPlan {
                name: r.name.clone(),
                replicas: vec![r.name.clone()],
                remote: None,
            })
            .collect()
    } else {
        let mut endpoints = Vec::new();
        for e in file.endpoint {
            let remote = remote(&e, &folder)?;
            endpoints.push(EndpointPlan {
                name: e.name.clone(),
                replicas: e.replicas,
                remote: remote.as_ref().map(Remote::plan),
            });
            remotes.extend(remote.map(|r| (e.name, r)));
        }
        endpoints
    };
    let mut withholdable = file.withholdable;
    if file
        .engine
        .as_ref()
        .is_some_and(|e| e.recipe == REMOTE_RECIPE)
        && !withholdable.iter().any(|w| w == ADDRESSES)
    {
        withholdable.push(ADDRESSES.to_owned());
    }
    let asks_on = file.requests.extra.get("ignore_eos") == Some(&serde_json::Value::Bool(true));
    let caps = suite
        .cases
        .iter()
        .map(|c| c.max_tokens.min(file.requests.max_tokens));
    let fixed_output = if asks_on { caps.collect() } else { Vec::new() };
    let plan = RunPlan {
        format: FORMAT.into(),
        suite: SuitePin {
            name: suite.toml.name.clone(),
            digest: suite_digests.suite,
            dataset: suite_digests.dataset,
            scorer: suite_digests.scorer,
            case_ids: suite.cases.iter().map(|c| c.id.clone()).collect(),
            fixed_output,
        },
        checkpoints,
        replicas,
        endpoints,
        engine: match (&cluster, file.engine) {
            (Some(cluster), _) => cluster.engine()?,
            (None, Some(entry)) => {
                engine(entry, &file.requests.model, file.requests.api, executable)?
            }
            (None, None) => bail!("plan: there is no [engine] (hint: `attest init` writes a plan)"),
        },
        requests: RequestSettings {
            model: file.requests.model,
            temperature: file.requests.temperature,
            seed: file.requests.seed,
            max_tokens: file.requests.max_tokens,
            reasoning_effort: file.requests.reasoning_effort,
            continuous_usage: file.requests.continuous_usage,
            api: file.requests.api,
            extra: file.requests.extra,
        },
        load: LoadPlan {
            mode: file.load.mode,
            concurrency: file.load.concurrency,
            repetitions: file.load.repetitions,
            spread: "round-robin".into(),
            stages: file.load.stage,
            retry: file.load.retry,
        },
        timeouts_ms: file.timeouts_ms,
        cache: file.cache,
        input: file.input,
        withholdable,
    };
    plan.check()?;
    limits::check(&plan)?;
    limits::batches(&plan, &suite.toml)?;
    limits::lengths(&plan, &suite.toml)?;
    for e in plan.endpoints.iter().filter(|_| cluster.is_none()) {
        if e.remote.is_none() && e.replicas.len() != 1 {
            bail!(
                "endpoint {}: the reference engine serves one replica per endpoint, not {}",
                e.name,
                e.replicas.len()
            );
        }
    }
    Ok(Resolved {
        plan,
        suite,
        suite_files,
        manifests,
        builtin_roles,
        remotes,
        executable: executable.to_owned(),
        cluster,
    })
}

/// What an entry says of somebody else's endpoint, if it does.
fn remote(e: &EndpointEntry, folder: &Path) -> anyhow::Result<Option<Remote>> {
    let Some(url) = &e.url else {
        if e.ca_file.is_some() || e.api_key_env.is_some() {
            bail!(
                "plan: endpoint {} has ca_file or api_key_env and no url",
                e.name
            );
        }
        return Ok(None);
    };
    let (ca, key) = (e.ca_file.as_deref(), e.api_key_env.clone());
    Remote::new(&e.name, url, ca, key, folder).map(Some)
}

fn suite_files(name: &str, folder: &Path) -> anyhow::Result<SuiteFiles> {
    if let Some(files) = builtin::suite(name) {
        return Ok(files);
    }
    let dir = folder.join(name);
    let read = |file: &str| {
        let path = dir.join(file);
        std::fs::read(&path).with_context(|| {
            format!(
                "could not read suite file {} (hint: {name:?} is not a shipped suite ({}), so it must be a folder)",
                path.display(),
                builtin::SUITES.join(", ")
            )
        })
    };
    Ok(SuiteFiles {
        toml: read("suite.toml")?,
        cases: read("cases.jsonl")?,
        scorer: read("scorer.toml")?,
    })
}

fn engine(
    entry: EngineEntry,
    model: &str,
    api: Api,
    executable: &Path,
) -> anyhow::Result<EnginePlan> {
    if entry.recipe == REMOTE_RECIPE {
        if !entry.args.is_empty() {
            bail!("plan: engine.args are for engines that are launched");
        }
        return Ok(EnginePlan {
            recipe: entry.recipe,
            launch: "none".into(),
            executable: Pin::Unpinned {
                reason: "somebody else runs the endpoint".into(),
            },
            argv: Vec::new(),
            env: BTreeMap::new(),
            path: api.path().into(),
            documents: Vec::new(),
            layout: None,
        });
    }
    if entry.recipe != "reference" {
        bail!(
            "unknown engine recipe {:?} (hint: this version launches \"reference\", and \"{REMOTE_RECIPE}\" measures \
             what somebody else runs)",
            entry.recipe
        );
    }
    let bytes = std::fs::read(executable)
        .with_context(|| format!("could not read {} to pin it", executable.display()))?;
    let fixed = [
        "{executable}",
        "engine",
        "--model",
        "{model}",
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
        "--served-model-name",
        model,
        "--die-with-parent",
    ];
    let mut argv: Vec<String> = fixed.iter().map(|s| (*s).to_owned()).collect();
    argv.extend(entry.args);
    let documents = server_facts::family(&entry.recipe).map_or(&[][..], |f| f.documents);
    Ok(EnginePlan {
        recipe: entry.recipe,
        launch: "process".into(),
        executable: Pin::Sha256(Sha256Digest::of(&bytes)),
        argv,
        env: BTreeMap::new(),
        path: api.path().into(),
        documents: documents.iter().map(|d| (*d).to_owned()).collect(),
        layout: None,
    })
}

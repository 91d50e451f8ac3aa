//! A run: plan → declare → preflight → verify → launch → ready → warm → measure
//! → collect → teardown → grade → record → seal → audit.
//!
//! Every exit path goes through collect and teardown and ends in a sealed record
//! that names state and cause. [`Stop`] is how a state ends the run; it is
//! written to the log as an event, and the record's status is derived from that.

pub mod bundle_dir;
pub mod close;
pub mod facts;
pub mod finish;
mod http;
mod load;
pub mod rank;
mod serve;
mod telemetry;
mod verify;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use runseal::bundle::evidence::{json_bytes, node_names};
use runseal::bundle::files::{
    EngineFile, GRADES_FORMAT, IMAGE_FORMAT, ImageFile, NODE_FORMAT, NodeFile, TELEMETRY_FORMAT,
};
use runseal::digest::Sha256Digest;
use runseal::event::{self, Event, Header, State, nonce_hash};
use runseal::keys::SigningKey;
use runseal::record::Tool;
use runseal::response;
use runseal::weights::ReplicaReport;
use tokio::sync::watch;

use crate::client::{Cancel, Canceller, Client};
use crate::plan_file::Resolved;
use crate::recorder::Recorder;
use bundle_dir::BundleDir;
use rank::Rank;

pub use finish::Finished;

/// What the program gives a run.
pub struct Inputs {
    /// The plan and the bytes behind its pins.
    pub resolved: Resolved,
    /// Folder that bundles are made in.
    pub out: PathBuf,
    /// Key that seals.
    pub key: SigningKey,
    /// This run made the key.
    pub key_made_by_run: bool,
    /// This program.
    pub tool: Tool,
    /// Hears what is going on, a line at a time.
    pub say: fn(&str),
}

/// Why a run does not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// It cannot.
    Failure {
        /// Kebab-case cause.
        cause: &'static str,
        /// One sentence.
        detail: String,
    },
    /// It will not: something is not as pinned.
    Refusal {
        /// Kebab-case cause.
        cause: &'static str,
        /// One sentence.
        detail: String,
    },
    /// Someone asked it to end.
    Signal(&'static str),
}

impl Stop {
    fn failure(cause: &'static str, detail: impl ToString) -> Self {
        Stop::Failure {
            cause,
            detail: detail.to_string(),
        }
    }
}

/// A run in progress.
struct Run {
    inputs: Inputs,
    dir: BundleDir,
    nonce: [u8; 32],
    recorder: Recorder,
    client: Client,
    state: State,
    signal: watch::Receiver<Option<&'static str>>,
    canceller: Arc<Canceller>,
    cancel: Cancel,
    ranks: Vec<Rank>,
    watchers: Vec<tokio::task::JoinHandle<()>>,
    reports: BTreeMap<(String, String), ReplicaReport>,
    nodes: BTreeMap<String, NodeFile>,
    image: ImageFile,
    engines: BTreeMap<String, EngineFile>,
    next_req: u32,
}

/// Runs a plan to its sealed record. `Err` means that no record could be sealed;
/// the bundle so far stays where it is.
pub async fn run(inputs: Inputs) -> anyhow::Result<Finished> {
    let signal = signals()?;
    let mut run = Run::declare(inputs, signal)?;
    let outcome = run.forward().await;
    if let Err(stop) = &outcome {
        run.note(stop);
    }
    run.collect().await?;
    run.teardown().await;
    run.enter(State::Grade);
    let log_error = run.recorder.failed();
    if let Some(why) = log_error {
        anyhow::bail!(
            "the event log could not be written: {why}. No record was sealed; what there is lies in {} \
             (hint: is the disk full?)",
            run.dir.path.display()
        );
    }
    run.seal()
}

/// Watches for SIGINT and SIGTERM for the rest of the program's life.
fn signals() -> anyhow::Result<watch::Receiver<Option<&'static str>>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt()).context("could not watch for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("could not watch for SIGTERM")?;
    let (tx, rx) = watch::channel(None);
    tokio::spawn(async move {
        loop {
            let name = tokio::select! {
                _ = interrupt.recv() => "SIGINT",
                _ = terminate.recv() => "SIGTERM",
            };
            // The first one counts; ending is bounded in time, so there is
            // nothing for a second one to hurry.
            tx.send_if_modified(|s| s.is_none().then(|| *s = Some(name)).is_some());
        }
    });
    Ok(rx)
}

impl Run {
    /// Fixes run id and nonce and makes the bundle's folder.
    fn declare(
        inputs: Inputs,
        signal: watch::Receiver<Option<&'static str>>,
    ) -> anyhow::Result<Self> {
        let plan = &inputs.resolved.plan;
        let mut nonce = [0u8; 32];
        getrandom::fill(&mut nonce).map_err(|e| anyhow::anyhow!("no random bytes: {e}"))?;
        let nonce_hash = nonce_hash(&nonce);
        let epoch = Instant::now();
        let wall = jiff::Timestamp::now();
        let plan_digest = plan.digest();
        let stamp = wall.strftime("%Y%m%dT%H%M%SZ");
        let run_id = format!("{stamp}-{}-{}", plan.suite.name, &plan_digest.hex()[..6]);
        let dir = BundleDir::create(&inputs.out, &run_id, nonce_hash)
            .context("could not make the bundle's folder")?;
        let header = Header {
            format: event::FORMAT.into(),
            run_id: run_id.clone(),
            nonce_hash,
            epoch: wall.to_string(),
        };
        dir.write("plan.json", &plan.to_bytes())?;
        let suite = &inputs.resolved.suite_files;
        dir.write("suite/suite.toml", &suite.toml)?;
        dir.write("suite/cases.jsonl", &suite.cases)?;
        dir.write("suite/scorer.toml", &suite.scorer)?;
        for (role, manifest) in &inputs.resolved.manifests {
            dir.write(
                &format!("checkpoints/{role}.manifest.json"),
                &manifest.to_bytes(),
            )?;
        }
        // Files that grow or come late exist from the start, so that a run that
        // is killed leaves a bundle that can be closed.
        for (name, format) in [
            ("responses.jsonl", response::FORMAT),
            ("telemetry.jsonl", TELEMETRY_FORMAT),
            ("grades.jsonl", GRADES_FORMAT),
        ] {
            dir.write(name, &json_bytes(&dir.header(format)))?;
        }
        let image = ImageFile {
            format: IMAGE_FORMAT.into(),
            run_id: run_id.clone(),
            nonce_hash,
            kind: plan.engine.launch.clone(),
            pinned: plan.engine.executable.clone(),
            observed: BTreeMap::new(),
        };
        dir.write_json("image.json", &image)?;
        let recorder = Recorder::create(&dir.path.join("events.jsonl"), &header, epoch)?;
        let keyid = inputs.key.keyid();
        let commitment = event::run_commitment(plan_digest, nonce_hash, plan.suite.dataset, &keyid);
        (inputs.say)(&format!("run {run_id}"));
        (inputs.say)(&format!(
            "commitment {commitment} (plan, nonce hash, cases, key: hand it to someone now if you want an anchor)"
        ));
        let declare = Event::Declare {
            plan_digest,
            nonce: hex::encode(nonce),
            case_set_digest: plan.suite.dataset,
            keyid,
            key_made_by_run: inputs.key_made_by_run,
        };
        let (canceller, cancel) = Cancel::pair();
        let mut run = Run {
            client: Client::new(recorder.clone()),
            dir,
            nonce,
            recorder,
            state: State::Declare,
            signal,
            canceller: Arc::new(canceller),
            cancel,
            ranks: Vec::new(),
            watchers: Vec::new(),
            reports: BTreeMap::new(),
            nodes: BTreeMap::new(),
            image,
            engines: BTreeMap::new(),
            next_req: 0,
            inputs,
        };
        run.enter(State::Declare);
        run.emit(&declare);
        run.facts_before()?;
        Ok(run)
    }

    fn emit(&self, event: &Event) {
        self.recorder.emit(self.recorder.now(), event);
    }

    fn say(&self, text: &str) {
        let ms = self.recorder.now() / 1_000_000;
        (self.inputs.say)(&format!("[{:>3}.{:03} s] {text}", ms / 1000, ms % 1000));
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.emit(&Event::State { state });
    }

    /// Writes down why the run ends.
    fn note(&self, stop: &Stop) {
        let (text, event) = match stop {
            Stop::Failure { cause, detail } => (
                format!("FAILED in {}: {cause}: {detail}", self.state.name()),
                Event::Failure {
                    state: self.state,
                    cause: (*cause).into(),
                    detail: detail.clone(),
                },
            ),
            Stop::Refusal { cause, detail } => (
                format!("REFUSED: {cause}: {detail}"),
                Event::Refusal {
                    cause: (*cause).into(),
                    detail: detail.clone(),
                },
            ),
            Stop::Signal(name) => (
                format!("{name}: ending the run"),
                Event::Signal {
                    name: (*name).into(),
                },
            ),
        };
        self.say(&text);
        self.emit(&event);
    }

    /// The states up to and with measure.
    async fn forward(&mut self) -> Result<(), Stop> {
        self.preflight()?;
        self.interrupted()?;
        self.verify().await?;
        self.interrupted()?;
        self.launch().await?;
        self.ready().await?;
        self.warm().await?;
        self.measure().await
    }

    /// Ends the run when a signal has arrived.
    fn interrupted(&self) -> Result<(), Stop> {
        match *self.signal.borrow() {
            Some(name) => Err(Stop::Signal(name)),
            None => Ok(()),
        }
    }

    fn node_file(&self, node: &str) -> NodeFile {
        NodeFile {
            format: NODE_FORMAT.into(),
            run_id: self.dir.run_id.clone(),
            nonce_hash: self.dir.nonce_hash,
            node: node.to_owned(),
            before: facts::local(),
            after: None,
        }
    }

    fn facts_before(&mut self) -> anyhow::Result<()> {
        for node in node_names(&self.inputs.resolved.plan) {
            let file = self.node_file(&node);
            self.dir.write_json(&format!("nodes/{node}.json"), &file)?;
            self.nodes.insert(node, file);
        }
        Ok(())
    }

    fn preflight(&mut self) -> Result<(), Stop> {
        self.enter(State::Preflight);
        let folders = |e: anyhow::Error| Stop::failure("replica-folders", format!("{e:#}"));
        let made = verify::make_replicas(&self.inputs.resolved).map_err(folders)?;
        if !made.is_empty() {
            self.say(&format!("preflight: made replicas {}", made.join(", ")));
        }
        for note in verify::write_inventory(&self.inputs.resolved).map_err(folders)? {
            self.say(&note);
        }
        Ok(())
    }

    /// Facts after, server documents after, re-stat of the weights: on every path.
    async fn collect(&mut self) -> anyhow::Result<()> {
        self.enter(State::Collect);
        self.ranks_alive();
        self.documents_after().await;
        for (node, file) in &mut self.nodes {
            file.after = Some(facts::local());
            self.dir.write_json(&format!("nodes/{node}.json"), file)?;
        }
        for change in verify::restat_all(&self.inputs.resolved.plan, &mut self.reports) {
            self.say(&format!("collect: {change}"));
            self.emit(&Event::Taint {
                cause: "weights-changed-during-run".into(),
                detail: change,
                reqs: Vec::new(),
            });
        }
        verify::write_reports(&self.dir, &self.reports)?;
        self.dir.write_json("image.json", &self.image)?;
        self.write_engines()?;
        Ok(())
    }

    /// Grades, seals, and audits the own bundle.
    fn seal(self) -> anyhow::Result<Finished> {
        let grading = finish::grade(&self.dir, &self.inputs.resolved, &self.inputs.tool_exe())?;
        if let Some(why) = &grading.failure {
            self.note(&Stop::failure("scorer-failed", why));
        }
        self.recorder.finish()?;
        self.say("grade: sealing");
        finish::seal(
            &self.dir,
            &self.inputs.resolved.plan,
            grading.lines,
            &self.inputs.key,
            self.inputs.tool.clone(),
            &self.inputs.tool_exe(),
        )
    }
}

impl Inputs {
    fn tool_exe(&self) -> PathBuf {
        self.resolved.executable.clone()
    }
}

/// SHA-256 of a program's file, and its version: what took the stamps.
pub fn tool(executable: &Path) -> anyhow::Result<Tool> {
    let bytes = std::fs::read(executable)
        .with_context(|| format!("could not read {}", executable.display()))?;
    Ok(Tool {
        name: "runseal".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        commit: option_env!("RUNSEAL_COMMIT").map(str::to_owned),
        binary_sha256: Sha256Digest::of(&bytes),
    })
}

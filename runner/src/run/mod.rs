//! A run: plan → declare → preflight → verify → launch → ready → warm → measure
//! → collect → teardown → grade → record → seal → audit.
//!
//! Every exit path goes through collect and teardown and ends in a sealed record
//! that names state and cause. [`Stop`] is how a state ends the run; it is
//! written to the log as an event, and the record's status is derived from that.

pub mod bundle_dir;
mod calibrate;
pub mod close;
mod declare;
pub mod facts;
pub mod finish;
mod http;
mod load;
pub mod lock;
pub mod rank;
mod remote;
mod serve;
mod server_documents;
mod signals;
mod specs;
mod stop;
mod telemetry;
mod verify;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use runseal::bundle::files::{AddressFile, EngineFile, ImageFile, NodeFile, ServerFile};
use runseal::bundle::index::RECORD_FILE;
use runseal::digest::Sha256Digest;
use runseal::durable::WriteError;
use runseal::event::{Event, State};
use runseal::keys::SigningKey;
use runseal::record::Tool;
use runseal::weights::ReplicaReport;

use crate::client::{Cancel, Canceller, Client, Headers};
use crate::plan_file::Resolved;
use crate::recorder::Recorder;
use bundle_dir::BundleDir;
use rank::Rank;
use signals::Asked;

pub use finish::Finished;
pub use stop::Stop;
pub use verify::INVENTORY;

/// What the program gives a run.
pub struct Inputs {
    /// The plan and the bytes behind its pins.
    pub resolved: Resolved,
    /// Headers of the requests to somebody else's endpoints, keys among them.
    pub headers: BTreeMap<String, Headers>,
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

/// A run in progress.
struct Run {
    inputs: Inputs,
    dir: BundleDir,
    /// Tells `attest close` that the run still goes on.
    _held: File,
    nonce: [u8; 32],
    recorder: Recorder,
    client: Client,
    state: State,
    signal: Asked,
    signal_noted: bool,
    /// A reason to end was written down.
    stopped: bool,
    canceller: Arc<Canceller>,
    cancel: Cancel,
    ranks: Vec<Rank>,
    watchers: Vec<tokio::task::JoinHandle<()>>,
    reports: BTreeMap<(String, String), ReplicaReport>,
    nodes: BTreeMap<String, NodeFile>,
    image: ImageFile,
    engines: BTreeMap<String, EngineFile>,
    /// It got as far as to measure.
    measuring: bool,
    /// Where somebody else's endpoints are, for the auditor and for requests.
    addresses: Option<AddressFile>,
    remotes: BTreeMap<String, remote::Destination>,
    /// Characters of text that the prompts of a case are filled with.
    filled: BTreeMap<String, u64>,
    /// By endpoint, from measure on.
    servers: BTreeMap<String, ServerFile>,
    next_req: u32,
}

/// Runs a plan to its sealed record. `Err` means that no record could be sealed;
/// the bundle so far stays where it is.
pub async fn run(inputs: Inputs) -> anyhow::Result<Finished> {
    let signal = signals::watch().context("could not watch for signals")?;
    let mut run = Run::declare(inputs, signal)?;
    if let Err(stop) = run.forward().await {
        run.note(&stop);
    }
    run.collect().await;
    run.teardown().await;
    run.enter(State::Grade);
    let path = run.dir.path.clone();
    run.seal().map_err(|e| {
        if path.join(RECORD_FILE).exists() {
            return e.context(format!("{} is sealed all the same", path.display()));
        }
        let bundle = path.display();
        let why = runseal::chain::chain(e.as_ref());
        anyhow::anyhow!(
            "{why}\nno record was sealed; the evidence so far lies in {bundle}\n\
             hint: when the cause is gone, `attest close {bundle}` seals it as aborted"
        )
    })
}

impl Run {
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
    fn note(&mut self, stop: &Stop) {
        self.signal_noted |= matches!(stop, Stop::Signal(_));
        self.stopped = true;
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
        if let Some(hint) = stop.hint() {
            self.say(&format!("  hint: {hint}"));
        }
        self.emit(&event);
    }

    /// Writes down a signal that came too late to change the course of the run:
    /// the record says aborted all the same.
    fn note_late_signal(&mut self) {
        if let (false, Err(stop)) = (self.signal_noted, self.interrupted()) {
            self.note(&stop);
        }
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
        self.calibrate().await?;
        self.measure().await
    }

    /// Ends the run when a signal has arrived.
    fn interrupted(&self) -> Result<(), Stop> {
        match *self.signal.borrow() {
            Some(name) => Err(Stop::Signal(name)),
            None => Ok(()),
        }
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

    /// Re-stat of the weights, facts after, server documents after: on every path.
    /// What cannot be written is noted and keeps nothing from what follows.
    async fn collect(&mut self) {
        self.enter(State::Collect);
        self.ranks_alive();
        self.documents_after().await;
        if let Err(e) = self.servers_after().await {
            self.note(&Stop::failure("evidence-write", e));
        }
        for change in verify::restat_all(&self.inputs.resolved.plan, &mut self.reports) {
            self.say(&format!(
                "TAINTED: weights changed during the run: {change}"
            ));
            self.emit(&Event::Taint {
                cause: "weights-changed-during-run".into(),
                detail: change,
                reqs: Vec::new(),
            });
        }
        for file in self.nodes.values_mut() {
            file.after = Some(facts::local());
        }
        if let Err(e) = self.write_collected() {
            self.note(&Stop::failure("evidence-write", e));
        }
        // An engine that died over the very last answer is only known by now.
        self.settle().await;
        if let (false, Err(stop)) = (self.stopped, self.rank_died()) {
            self.note(&stop);
        }
        self.note_late_signal();
    }

    fn write_collected(&self) -> Result<(), WriteError> {
        for (node, file) in &self.nodes {
            self.dir.write_json(&format!("nodes/{node}.json"), file)?;
        }
        verify::write_reports(&self.dir, &self.reports)?;
        self.dir.write_json("image.json", &self.image)?;
        self.write_engines()
    }

    /// Grades, seals, and audits the own bundle.
    fn seal(mut self) -> anyhow::Result<Finished> {
        self.note_late_signal();
        self.recorder.flush()?;
        self.say("grade: running the frozen scorer");
        let grading = match finish::grade(&self.dir, &self.inputs.resolved, &self.inputs.tool_exe())
        {
            Ok(grading) => grading,
            Err(e) => {
                self.note(&Stop::failure("grading-failed", format!("{e:#}")));
                // The first error is the one to report.
                let _ = self.recorder.finish();
                return Err(e);
            }
        };
        if let Some(why) = &grading.failure {
            self.note(&Stop::failure("scorer-failed", why));
        }
        self.note_late_signal();
        self.recorder.finish()?;
        self.say("seal: index, record, own audit");
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

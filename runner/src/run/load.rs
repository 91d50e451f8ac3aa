//! Warm-up and measurement: attempts from plan, suite and nonce; one POST each.

use std::fs::File;
use std::io::Write;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use runseal::bundle::evidence::{json_bytes, node_names};
use runseal::event::State;
use runseal::plan::RunPlan;
use runseal::response::Response;
use runseal::suite::{AttemptKey, WARMUP};
use runseal::trace::{Traces, Transport};

use super::remote::Destination;
use super::specs::{self, Fault, Specs};
use super::telemetry::Telemetry;
use super::{Run, Stop, finish, signals};
use crate::client::source::{Ended, Retrying};
use crate::client::{self, lag::LagProbe};
use crate::client::{
    AttemptSpec, Cancel, Canceller, Client, Stage, run_closed_loop_from, run_closed_loop_with,
    run_rate_sweep_with,
};

/// Pause between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(15);

/// Most attempts that are built before a client asks for them.
const MOST_AHEAD: usize = 64;

/// Where each answer goes.
pub(super) type OnResponse = Box<dyn Fn(Response) + Send + Sync>;

/// Appends answers to responses.jsonl as they end. An answer that cannot be kept
/// ends the run: there is no use in measuring what nobody can check.
struct Spool {
    file: File,
    error: Option<String>,
    ended: usize,
    canceller: Arc<Canceller>,
}

impl Spool {
    fn put(&mut self, response: &Response) {
        self.ended += 1;
        if self.error.is_some() {
            return;
        }
        let write = |file: &mut File| -> std::io::Result<()> {
            let at = file.metadata()?.len();
            let result = file.write_all(&json_bytes(response));
            if result.is_err() {
                // No torn line behind whole ones.
                file.set_len(at)?;
            }
            result
        };
        if let Err(e) = write(&mut self.file) {
            self.error = Some(e.to_string());
            self.canceller.cancel();
        }
    }

    /// Makes the answers as durable as the log that they belong to, and gives the
    /// first error.
    fn close(&mut self) -> Option<String> {
        let error = self.error.take();
        error.or_else(|| self.file.sync_all().err().map(|e| e.to_string()))
    }
}

impl Run {
    /// What builds the attempts of this run.
    pub(super) fn specs(&self) -> Result<Arc<Specs>, Stop> {
        let resolved = &self.inputs.resolved;
        let up = self.ranks.iter();
        let up = up.map(|r| (r.replica.as_str(), Destination::of_process(r.addr)));
        let specs = Specs::new(
            &resolved.plan,
            &resolved.suite,
            self.nonce,
            &up.collect(),
            &self.remotes,
            self.filled.clone(),
        )?;
        Ok(Arc::new(specs))
    }

    /// Sends attempts and spools their answers. `work` sends them, given where
    /// each answer goes.
    pub(super) async fn send<W: Future<Output = ()>>(
        &mut self,
        total: usize,
        work: impl FnOnce(&Client, &Cancel, OnResponse) -> W,
    ) -> Result<(), Stop> {
        let spool = File::options()
            .append(true)
            .open(self.dir.path.join("responses.jsonl"))
            .map_err(|e| Stop::failure("evidence-write", format!("responses.jsonl: {e}")))?;
        let spool = Arc::new(Mutex::new(Spool {
            file: spool,
            error: None,
            ended: 0,
            canceller: Arc::clone(&self.canceller),
        }));
        let sink = Arc::clone(&spool);
        let on_response = Box::new(move |response: Response| {
            lock(&sink).put(&response);
        });
        let (client, cancel) = (self.client.clone(), self.cancel.clone());
        let work = work(&client, &cancel, on_response);
        tokio::pin!(work);
        let mut ticks = tokio::time::interval(PROGRESS);
        ticks.tick().await;
        let mut signal = pin!(signals::arrived(self.signal.clone()));
        loop {
            tokio::select! {
                () = &mut work => break,
                _ = &mut signal => {
                    // Attempts in flight end as cancelled, with what they got.
                    self.canceller.cancel();
                    work.await;
                    break;
                }
                _ = ticks.tick() => {
                    let ended = lock(&spool).ended;
                    self.say(&format!("{}: {ended} of {total} attempts ended", self.state.name()));
                }
            }
        }
        let error = lock(&spool).close();
        self.interrupted()?;
        self.settle().await;
        self.rank_died()?;
        if let Some(why) = error {
            return Err(Stop::failure(
                "evidence-write",
                format!("responses.jsonl: {why}"),
            ));
        }
        if let Some(why) = self.recorder.failed() {
            return Err(Stop::failure(
                "evidence-write",
                format!("events.jsonl: {why}"),
            ));
        }
        Ok(())
    }

    /// The declared warm-ups of each endpoint, which are also its canaries.
    pub(super) async fn warm(&mut self) -> Result<(), Stop> {
        self.enter(State::Warm);
        let Some(count) = self
            .inputs
            .resolved
            .suite
            .toml
            .warmup
            .as_ref()
            .map(|w| w.count)
        else {
            return Ok(());
        };
        let endpoints: Vec<String> = self.endpoint_names();
        let build = self.specs()?;
        let mut specs = Vec::new();
        let each = endpoints.len() * count as usize;
        for (i, name) in endpoints.iter().cycle().take(each).enumerate() {
            let key = AttemptKey {
                case: WARMUP.into(),
                rep: i as u32,
                attempt: 0,
            };
            let mut spec = build.one(key, name)?;
            spec.req = self.next_req;
            self.next_req += 1;
            specs.push(spec);
        }
        self.send(specs.len(), |client, cancel, put| {
            let (client, cancel) = (client.clone(), cancel.clone());
            async move { run_closed_loop_with(&client, specs, 1, &cancel, put).await }
        })
        .await?;
        let traces = self.traces()?;
        let lost = traces
            .requests
            .iter()
            .find(|t| t.warmup && t.transport() != Transport::Completed);
        if let Some(t) = lost {
            return Err(Stop::failure(
                "canary-failed",
                format!(
                    "the warm-up of {} ended as {}",
                    t.endpoint,
                    t.transport().name()
                ),
            ));
        }
        self.say(&format!("warm: {} endpoints answered", endpoints.len()));
        Ok(())
    }

    fn endpoint_names(&self) -> Vec<String> {
        let plan = &self.inputs.resolved.plan;
        plan.endpoints.iter().map(|e| e.name.clone()).collect()
    }

    pub(super) fn traces(&self) -> Result<Traces, Stop> {
        self.recorder
            .flush()
            .map_err(|e| Stop::failure("evidence-write", e))?;
        finish::read_events(&self.dir)
            .map(|events| Traces::build(&events))
            .map_err(|e| Stop::failure("evidence-read", format!("{e:#}")))
    }

    /// The measured attempts. Nothing is aggregated here.
    pub(super) async fn measure(&mut self) -> Result<(), Stop> {
        self.enter(State::Measure);
        self.measuring = true;
        let plan = self.inputs.resolved.plan.clone();
        let n = plan.declared();
        let how = match plan.load.stages.len() {
            0 => String::new(),
            stages => format!(" in {stages} open stage(s)"),
        };
        self.say(&format!(
            "measure: {n} attempts{how}, {} at a time",
            plan.load.concurrency
        ));
        self.servers_before().await?;
        let telemetry = Telemetry::start(
            &self.dir.path.join("telemetry.jsonl"),
            node_names(&plan),
            self.recorder.clone(),
            Arc::clone(&self.canceller),
        )
        .map_err(|e| Stop::failure("evidence-write", format!("telemetry.jsonl: {e}")))?;
        let lag = LagProbe::start(&self.recorder, State::Measure)
            .map_err(|e| Stop::failure("lag-not-measured", e))?;
        let sent = self.send_declared(&plan, n).await;
        lag.stop().await;
        let sampled = telemetry.stop().await;
        sent?;
        sampled.map_err(|e| Stop::failure("evidence-write", format!("telemetry.jsonl: {e}")))?;
        self.say(&format!("measure: all {n} attempts ended"));
        Ok(())
    }

    /// The declared attempts, in the loop that the plan asks for.
    async fn send_declared(&mut self, plan: &RunPlan, n: usize) -> Result<(), Stop> {
        let specs = self.specs()?;
        let fault = Fault::default();
        // More clients than attempts would have nothing to do.
        let clients = (plan.load.concurrency as usize).clamp(1, n.max(1));
        client::descriptors::room_for(clients)
            .map_err(|e| Stop::failure("too-few-open-files", e))?;
        let first = specs::ahead(&specs, clients.min(MOST_AHEAD), &fault)
            .map_err(|e| Stop::failure("request-not-built", e))?;
        let (most, on) = match &plan.load.retry {
            Some(r) => (r.attempts, r.on.clone()),
            None => (1, Vec::new()),
        };
        let (theirs, canceller) = (Arc::clone(&fault), Arc::clone(&self.canceller));
        let again = move |_, ended: &Ended| {
            let spec = specs.again(ended);
            spec.map_err(|stop| {
                specs::note(&theirs, stop);
                canceller.cancel();
            })
            .ok()
        };
        let batches = self.inputs.resolved.suite.toml.batches.iter();
        let sizes: Vec<(usize, usize)> = batches
            .map(|b| (b.size() as usize, b.concurrency as usize))
            .collect();
        if !sizes.is_empty() {
            let sizes = sizes.repeat(plan.load.repetitions as usize);
            let next_req = self.next_req;
            let sent = self.send(n, |client, cancel, put| {
                let (client, cancel) = (client.clone(), cancel.clone());
                in_batches(client, cancel, first, next_req, sizes, put)
            });
            let sent = sent.await;
            return specs::taken(&fault).map_or(sent, Err);
        }
        let source = Retrying::new(first, self.next_req, most, on, again);
        let stages: Vec<Stage> = plan
            .load
            .stages
            .iter()
            .filter_map(|s| s.schedule())
            .map(|arrivals| Stage {
                arrivals,
                requests: plan.load.stage_repetitions() * plan.suite.case_ids.len() as u32,
                most_open: Some(clients),
            })
            .collect();
        let sent = self.send(n, |client, cancel, put| {
            let (client, cancel) = (client.clone(), cancel.clone());
            async move {
                if stages.is_empty() {
                    run_closed_loop_from(&client, source, clients, &cancel, put).await;
                } else {
                    run_rate_sweep_with(&client, source, &stages, &cancel, put).await;
                }
            }
        });
        let sent = sent.await;
        // What kept an attempt from being built is the cause of all that follows.
        specs::taken(&fault).map_or(sent, Err)
    }
}

/// Batch by batch, given how many requests each has and how many of them are open at
/// once: the next when they have all ended.
async fn in_batches(
    client: Client,
    cancel: Cancel,
    mut first: impl Iterator<Item = AttemptSpec>,
    mut next_req: u32,
    sizes: Vec<(usize, usize)>,
    put: OnResponse,
) {
    let put = Arc::new(put);
    for (size, at_once) in sizes {
        let mut batch: Vec<AttemptSpec> = first.by_ref().take(size).collect();
        if batch.len() < size || cancel.is_cancelled() {
            return; // One could not be built, or the run is ending.
        }
        for spec in &mut batch {
            spec.req = next_req;
            next_req += 1;
        }
        let put = Arc::clone(&put);
        run_closed_loop_with(&client, batch, at_once, &cancel, move |r| put(r)).await;
    }
}

fn lock(spool: &Mutex<Spool>) -> MutexGuard<'_, Spool> {
    // A file and a counter: whole between any two statements.
    spool.lock().unwrap_or_else(PoisonError::into_inner)
}

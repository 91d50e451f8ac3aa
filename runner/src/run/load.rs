//! Warm-up and measurement: attempts from plan, suite and nonce; one POST each.

use std::fs::File;
use std::io::Write;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use runseal::bundle::evidence::{json_bytes, node_names};
use runseal::event::State;
use runseal::response::Response;
use runseal::suite::{AttemptKey, WARMUP};
use runseal::trace::{Traces, Transport};

use super::telemetry::Telemetry;
use super::{Run, Stop, finish, signals};
use crate::client::{AttemptSpec, Canceller, Endpoint, Headers, Timeouts, run_closed_loop_with};

/// Pause between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(15);

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
    fn timeouts(&self) -> Timeouts {
        let t = &self.inputs.resolved.plan.timeouts_ms;
        Timeouts {
            connect: Duration::from_millis(t.connect),
            request: Duration::from_millis(t.request),
            first_token: Some(Duration::from_millis(t.first_token)),
            stall: Some(Duration::from_millis(t.stall)),
        }
    }

    fn spec(&mut self, key: AttemptKey, endpoint: &str) -> Result<AttemptSpec, Stop> {
        let resolved = &self.inputs.resolved;
        let failed = |why: &str| Stop::failure("request-not-built", format!("{}: {why}", key.case));
        let replica = resolved
            .plan
            .endpoints
            .iter()
            .find(|e| e.name == endpoint)
            .and_then(|e| e.replicas.first());
        let rank = self
            .ranks
            .iter()
            .find(|r| Some(&r.replica) == replica)
            .ok_or_else(|| failed("its endpoint is not up"))?;
        let body = resolved
            .suite
            .body(&resolved.plan.requests, &self.nonce, &key)
            .ok_or_else(|| failed("the suite has no such case"))?;
        let mut salt = [0u8; 32];
        getrandom::fill(&mut salt).map_err(|_| failed("no random bytes"))?;
        let req = self.next_req;
        self.next_req += 1;
        Ok(AttemptSpec {
            req,
            warmup: key.case == WARMUP,
            case: key.case,
            rep: key.rep,
            attempt: key.attempt,
            endpoint: Endpoint {
                name: endpoint.to_owned(),
                addr: rank.addr,
                host_header: rank.addr.to_string(),
                path: resolved.plan.engine.path.clone(),
            },
            body: Bytes::from(body),
            salt,
            timeouts: self.timeouts(),
            headers: Headers::default(),
        })
    }

    /// Sends attempts and spools their answers.
    async fn send(&mut self, specs: Vec<AttemptSpec>, concurrency: usize) -> Result<(), Stop> {
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
        let on_response = move |response: Response| {
            lock(&sink).put(&response);
        };
        let total = specs.len();
        // More clients than attempts would have nothing to do.
        let clients = concurrency.clamp(1, total.max(1));
        let work = run_closed_loop_with(&self.client, specs, clients, &self.cancel, on_response);
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

    /// One declared warm-up per endpoint, which is also its canary.
    pub(super) async fn warm(&mut self) -> Result<(), Stop> {
        self.enter(State::Warm);
        if self.inputs.resolved.suite.toml.warmup.is_none() {
            return Ok(());
        }
        let endpoints: Vec<String> = self.endpoint_names();
        let mut specs = Vec::new();
        for (i, name) in endpoints.iter().enumerate() {
            let key = AttemptKey {
                case: WARMUP.into(),
                rep: i as u32,
                attempt: 0,
            };
            specs.push(self.spec(key, name)?);
        }
        self.send(specs, 1).await?;
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

    fn traces(&self) -> Result<Traces, Stop> {
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
        let plan = self.inputs.resolved.plan.clone();
        let mut specs = Vec::new();
        let keys = (0..plan.load.repetitions)
            .flat_map(|rep| plan.suite.case_ids.iter().map(move |case| (case, rep)));
        for (i, (case, rep)) in keys.enumerate() {
            let key = AttemptKey {
                case: case.clone(),
                rep,
                attempt: 0,
            };
            specs.push(self.spec(key, &plan.endpoint_of(i).name)?);
        }
        let n = specs.len();
        self.say(&format!(
            "measure: {n} attempts, {} at a time",
            plan.load.concurrency
        ));
        let telemetry = Telemetry::start(
            &self.dir.path.join("telemetry.jsonl"),
            node_names(&plan),
            self.recorder.clone(),
            Arc::clone(&self.canceller),
        )
        .map_err(|e| Stop::failure("evidence-write", format!("telemetry.jsonl: {e}")))?;
        let sent = self.send(specs, plan.load.concurrency as usize).await;
        let sampled = telemetry.stop().await;
        sent?;
        sampled.map_err(|e| Stop::failure("evidence-write", format!("telemetry.jsonl: {e}")))?;
        self.say(&format!("measure: all {n} attempts ended"));
        Ok(())
    }
}

fn lock(spool: &Mutex<Spool>) -> MutexGuard<'_, Spool> {
    // A file and a counter: whole between any two statements.
    spool.lock().unwrap_or_else(PoisonError::into_inner)
}

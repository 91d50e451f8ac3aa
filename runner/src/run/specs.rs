//! The attempts of a run: from plan, suite and nonce to what the client sends.
//!
//! Bodies are built by a thread of its own, a bounded number ahead of the client:
//! the client's threads must not spend their time on building prompts of megabytes,
//! and memory must not grow with the number of attempts.

use std::collections::BTreeMap;
use std::sync::mpsc::{IntoIter, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use runseal::filler::Filling;
use runseal::plan::RunPlan;
use runseal::suite::{AttemptKey, CALIBRATION, Suite, WARMUP};

use super::Stop;
use super::remote::Destination;
use crate::client::source::Ended;
use crate::client::{AttemptSpec, Endpoint, Timeouts};

/// Builds attempts.
pub(super) struct Specs {
    plan: RunPlan,
    suite: Suite,
    nonce: [u8; 32],
    endpoints: BTreeMap<String, Destination>,
    /// Characters of text by case.
    filled: BTreeMap<String, u64>,
}

impl Specs {
    /// `up` has the replicas that are up, and `remotes` the endpoints of somebody else.
    pub fn new(
        plan: &RunPlan,
        suite: &Suite,
        nonce: [u8; 32],
        up: &BTreeMap<&str, Destination>,
        remotes: &BTreeMap<String, Destination>,
        filled: BTreeMap<String, u64>,
    ) -> Result<Self, Stop> {
        let mut endpoints = BTreeMap::new();
        for e in &plan.endpoints {
            let ours = e.replicas.first().and_then(|r| up.get(r.as_str()));
            let to = ours.or(remotes.get(&e.name)).ok_or_else(|| {
                Stop::failure(
                    "request-not-built",
                    format!("endpoint {} is not up", e.name),
                )
            })?;
            endpoints.insert(e.name.clone(), to.clone());
        }
        Ok(Self {
            plan: plan.clone(),
            suite: suite.clone(),
            nonce,
            endpoints,
            filled,
        })
    }

    fn timeouts(&self) -> Timeouts {
        let t = &self.plan.timeouts_ms;
        Timeouts {
            connect: Duration::from_millis(t.connect),
            request: Duration::from_millis(t.request),
            first_token: Some(Duration::from_millis(t.first_token)),
            stall: Some(Duration::from_millis(t.stall)),
        }
    }

    /// One attempt. Its number is given where it is queued.
    pub fn one(&self, key: AttemptKey, endpoint: &str) -> Result<AttemptSpec, Stop> {
        let failed = |why: &str| Stop::failure("request-not-built", format!("{}: {why}", key.case));
        let to = self
            .endpoints
            .get(endpoint)
            .ok_or_else(|| failed("its endpoint is not up"))?;
        let filling = self.plan.input.as_ref().map(|input| Filling {
            language: input.language,
            chars: self.filled.get(&key.case).copied().unwrap_or(0),
        });
        let body = self
            .suite
            .filled_body(&self.plan.requests, &self.nonce, &key, filling)
            .ok_or_else(|| failed("the suite has no such case"))?;
        let mut salt = [0u8; 32];
        getrandom::fill(&mut salt).map_err(|_| failed("no random bytes"))?;
        Ok(AttemptSpec {
            req: 0,
            warmup: key.case == WARMUP || key.attempt == CALIBRATION,
            case: key.case,
            rep: key.rep,
            attempt: match key.attempt {
                CALIBRATION => 0,
                n => n,
            },
            endpoint: Endpoint {
                name: endpoint.to_owned(),
                addr: to.addr,
                host_header: to.host_header.clone(),
                path: format!("{}{}", to.prefix, self.plan.engine.path),
            },
            body: Bytes::from(body),
            salt,
            timeouts: self.timeouts(),
            headers: to.headers.clone(),
        })
    }

    /// A further attempt at a case that has ended.
    pub fn again(&self, ended: &Ended) -> Result<AttemptSpec, Stop> {
        let key = AttemptKey {
            case: ended.case.clone(),
            rep: ended.rep,
            attempt: ended.attempt + 1,
        };
        self.one(key, &ended.endpoint)
    }

    /// The declared attempts in their order: repetition by repetition, case by case.
    fn declared(&self) -> impl Iterator<Item = Result<AttemptSpec, Stop>> + '_ {
        let cases = &self.plan.suite.case_ids;
        let keys = (0..self.plan.load.repetitions)
            .flat_map(move |rep| cases.iter().map(move |case| (case, rep)));
        keys.enumerate().map(|(i, (case, rep))| {
            let key = AttemptKey {
                case: case.clone(),
                rep,
                attempt: 0,
            };
            self.one(key, &self.plan.endpoint_of(i).name)
        })
    }
}

/// The first thing that went wrong while attempts were built.
pub(super) type Fault = Arc<Mutex<Option<Stop>>>;

/// Takes note of a fault.
pub(super) fn note(fault: &Fault, stop: Stop) {
    let mut fault = fault.lock().unwrap_or_else(PoisonError::into_inner);
    fault.get_or_insert(stop);
}

/// Takes the fault, if there was one.
pub(super) fn taken(fault: &Fault) -> Option<Stop> {
    fault.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The declared attempts, built at most `ahead` before they are asked for. Ends
/// early when one cannot be built, and says why in `fault`.
pub(super) fn ahead(
    specs: &Arc<Specs>,
    ahead: usize,
    fault: &Fault,
) -> std::io::Result<IntoIter<AttemptSpec>> {
    let (to, from) = sync_channel(ahead);
    let (specs, fault) = (Arc::clone(specs), Arc::clone(fault));
    std::thread::Builder::new()
        .name("requests".into())
        .spawn(move || build(&specs, &to, &fault))?;
    Ok(from.into_iter())
}

fn build(specs: &Specs, to: &SyncSender<AttemptSpec>, fault: &Fault) {
    for spec in specs.declared() {
        match spec {
            Ok(spec) => {
                // Whoever asked is gone: the run is ending.
                if to.send(spec).is_err() {
                    return;
                }
            }
            Err(stop) => return note(fault, stop),
        }
    }
}

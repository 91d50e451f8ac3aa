//! Launch, ready, and teardown of the serving processes.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use runseal::bundle::evidence::log_header;
use runseal::bundle::files::{ENGINE_FORMAT, EngineFile};
use runseal::durable::WriteError;
use runseal::event::{Event, State};
use runseal::plan::Pin;
use serde_json::Value;
use tokio::task::JoinSet;

use super::rank::{self, Exit};
use super::{Run, Stop, http, signals};

/// Documents of a server that are kept as evidence.
const DOCUMENTS: [&str; 3] = ["/version", "/v1/models", "/metrics"];
const DOCUMENT_LIMIT: Duration = Duration::from_secs(5);
const END_GRACE: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_secs(2);

impl Run {
    /// Starts one process per replica and looks at what really runs. A partial
    /// launch ends the run, and teardown takes down what did come up.
    pub(super) async fn launch(&mut self) -> Result<(), Stop> {
        self.enter(State::Launch);
        if self.inputs.resolved.plan.is_remote() {
            return self.find_remotes().await;
        }
        let plan = self.inputs.resolved.plan.clone();
        let executable = self.inputs.resolved.executable.display().to_string();
        let limit = Duration::from_millis(plan.timeouts_ms.ready);
        for replica in &plan.replicas {
            let failed = |e: &dyn std::fmt::Display| Stop::failure("launch-failed", e);
            let argv = plan.argv(replica, &executable, "0");
            let log = self
                .log(&replica.name)
                .map_err(|e| Stop::failure("evidence-write", e))?;
            let asked = signals::arrived(self.signal.clone());
            let rank = rank::launch(
                &replica.name,
                &argv,
                &plan.engine.env,
                log,
                limit,
                async move {
                    asked.await;
                },
            )
            .await;
            // An interrupted launch is the signal's doing, not the engine's.
            self.interrupted_unless(rank.is_ok())?;
            let rank = rank.map_err(|e| failed(&e))?;
            self.emit(&Event::RankUp {
                replica: replica.name.clone(),
                pid: rank.pid,
                start_ticks: rank.start_ticks,
                listen: rank.addr.to_string(),
            });
            let pid = rank.pid;
            self.watch(&rank);
            self.ranks.push(rank);
            let observed = rank::observe(pid).map_err(|e| failed(&e))?;
            self.image
                .observed
                .insert(replica.name.clone(), observed.executable);
            let planned = plan.argv(replica, "{executable}", "0");
            let as_pinned = plan.engine.executable == Pin::Sha256(observed.executable);
            self.engine_file(&replica.name, &observed)
                .map_err(|e| Stop::failure("evidence-write", e))?;
            if !as_pinned || observed.argv != planned || observed.env != plan.engine.env {
                return Err(Stop::Failure {
                    cause: "process-not-as-planned",
                    detail: format!(
                        "the process of {} runs another executable, other arguments or another environment",
                        replica.name
                    ),
                });
            }
        }
        self.say(&format!("launch: {} engines up", self.ranks.len()));
        Ok(())
    }

    /// Log of an engine. Its first line is there whole or not at all.
    fn log(&self, replica: &str) -> Result<File, WriteError> {
        let name = format!("engine/{replica}.log");
        let header = log_header(&self.dir.run_id, &self.dir.nonce_hash);
        self.dir.write(&name, header.as_bytes())?;
        let path = self.dir.path.join(name);
        File::options()
            .append(true)
            .open(&path)
            .map_err(|source| WriteError::Io { path, source })
    }

    /// Records the end of a rank whenever it comes, and ends the run when nobody
    /// asked for it.
    fn watch(&mut self, rank: &rank::Rank) {
        let mut exit = rank.exit.clone();
        let ending: Arc<AtomicBool> = Arc::clone(&rank.ending);
        let recorder = self.recorder.clone();
        let replica = rank.replica.clone();
        let canceller = Arc::clone(&self.canceller);
        let watcher = tokio::spawn(async move {
            let Ok(ended) = exit.wait_for(Option::is_some).await.map(|e| *e) else {
                return;
            };
            let expected = ending.load(Ordering::SeqCst);
            let Exit { code, signal } = ended.unwrap_or(Exit {
                code: None,
                signal: None,
            });
            recorder.emit(
                recorder.now(),
                &Event::RankExit {
                    replica,
                    code,
                    signal,
                    expected,
                },
            );
            if !expected {
                canceller.cancel();
            }
        });
        self.watchers.push(watcher);
    }

    fn engine_file(&mut self, replica: &str, observed: &rank::Observed) -> Result<(), WriteError> {
        let file = EngineFile {
            argv: observed.argv.clone(),
            env: observed.env.clone(),
            ..self.engine_stub(replica)
        };
        self.engines.insert(replica.to_owned(), file.clone());
        self.dir
            .write_json(&format!("engine/{replica}.json"), &file)?;
        Ok(())
    }

    fn engine_stub(&self, replica: &str) -> EngineFile {
        let rank = self.ranks.iter().find(|r| r.replica == replica);
        EngineFile {
            format: ENGINE_FORMAT.into(),
            run_id: self.dir.run_id.clone(),
            nonce_hash: self.dir.nonce_hash,
            replica: replica.to_owned(),
            pid: rank.map_or(0, |r| r.pid),
            start_ticks: rank.map_or(0, |r| r.start_ticks),
            listen: rank.map_or(String::new(), |r| r.addr.to_string()),
            argv: Vec::new(),
            env: BTreeMap::new(),
            before: BTreeMap::new(),
            after: BTreeMap::new(),
        }
    }

    /// Waits until every server says it is healthy, and keeps its documents.
    pub(super) async fn ready(&mut self) -> Result<(), Stop> {
        self.enter(State::Ready);
        if self.inputs.resolved.plan.is_remote() {
            // What a server of somebody else says of its health is not ours to ask: the
            // warm-up is its canary.
            return self.interrupted();
        }
        let limit = Duration::from_millis(self.inputs.resolved.plan.timeouts_ms.ready);
        let deadline = Instant::now() + limit;
        for i in 0..self.ranks.len() {
            let (addr, replica) = (self.ranks[i].addr, self.ranks[i].replica.clone());
            loop {
                self.interrupted()?;
                self.rank_died()?;
                let health = http::get(addr, "/health", DOCUMENT_LIMIT);
                if let Ok((200, _)) = self.or_signal(health).await? {
                    break;
                }
                if Instant::now() > deadline {
                    return Err(Stop::failure(
                        "not-ready",
                        format!("{replica} was not healthy within {} ms", limit.as_millis()),
                    ));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let documents = self.or_signal(documents(addr)).await?;
            if let Some(engine) = self.engines.get_mut(&replica) {
                engine.before = documents;
            }
        }
        self.say(&format!("ready: all {} healthy", self.ranks.len()));
        Ok(())
    }

    /// Waits until the end of every process that has ended is known here. What is
    /// left of it may still stand in the process table for a moment, and teardown
    /// must not take its death for its own doing.
    pub(super) async fn settle(&self) {
        for rank in self.ranks.iter().filter(|r| !r.alive()) {
            let mut exit = rank.exit.clone();
            // Being reaped takes no time; a limit only guards against the unknown.
            let _ = tokio::time::timeout(SETTLE, exit.wait_for(Option::is_some)).await;
        }
    }

    /// Fails when a rank has ended by itself.
    pub(super) fn rank_died(&self) -> Result<(), Stop> {
        match self.ranks.iter().find(|r| r.exit.borrow().is_some()) {
            None => Ok(()),
            Some(r) => {
                let how = match *r.exit.borrow() {
                    Some(Exit {
                        signal: Some(s), ..
                    }) => format!("signal {s}"),
                    Some(Exit { code: Some(c), .. }) => format!("exit code {c}"),
                    _ => "an unknown cause".into(),
                };
                Err(Stop::failure(
                    "rank-died",
                    format!("the engine of {} ended by {how}", r.replica),
                ))
            }
        }
    }

    /// Writes down which ranks still live now that the measurement is over.
    pub(super) fn ranks_alive(&self) {
        for rank in self.ranks.iter().filter(|r| r.alive()) {
            self.emit(&Event::RankAlive {
                replica: rank.replica.clone(),
                pid: rank.pid,
                start_ticks: rank.start_ticks,
            });
        }
    }

    /// Keeps the servers' documents after the measurement, all at once: a server
    /// that hangs costs one time limit, not one per server.
    pub(super) async fn documents_after(&mut self) {
        let mut asking = JoinSet::new();
        for rank in self.ranks.iter().filter(|r| r.alive()) {
            let (replica, addr) = (rank.replica.clone(), rank.addr);
            asking.spawn(async move { (replica, documents(addr).await) });
        }
        while let Some(answer) = asking.join_next().await {
            if let Ok((replica, documents)) = answer
                && let Some(engine) = self.engines.get_mut(&replica)
            {
                engine.after = documents;
            }
        }
    }

    /// Writes the engine files.
    pub(super) fn write_engines(&self) -> Result<(), WriteError> {
        for (replica, file) in &self.engines {
            self.dir
                .write_json(&format!("engine/{replica}.json"), file)?;
        }
        Ok(())
    }

    /// Ends every process of ours, on every path.
    pub(super) async fn teardown(&mut self) {
        self.enter(State::Teardown);
        self.client.close_idle();
        self.settle().await;
        let mut ending = JoinSet::new();
        for rank in &self.ranks {
            let (replica, pid) = (rank.replica.clone(), rank.pid);
            let ended = rank.end(END_GRACE);
            ending.spawn(async move { (replica, pid, ended.await.is_some()) });
        }
        while let Some(result) = ending.join_next().await {
            if let Ok((replica, pid, false)) = result {
                self.note(&Stop::failure(
                    "rank-would-not-end",
                    format!("process {pid} of {replica} is still there"),
                ));
            }
        }
        if !self.ranks.is_empty() {
            let left = self.ranks.iter().filter(|r| r.alive()).count();
            self.say(&format!(
                "teardown: {} engines ended, {left} left",
                self.ranks.len() - left
            ));
        }
        // The watchers write the exits into the log, which is finished after this.
        for watcher in self.watchers.drain(..) {
            if tokio::time::timeout(END_GRACE, watcher).await.is_err() {
                break;
            }
        }
    }

    /// A future, or the end of the run by a signal, whichever comes first.
    pub(super) async fn or_signal<T>(&self, work: impl Future<Output = T>) -> Result<T, Stop> {
        tokio::select! {
            value = work => Ok(value),
            name = signals::arrived(self.signal.clone()) => Err(Stop::Signal(name)),
        }
    }

    fn interrupted_unless(&self, fine: bool) -> Result<(), Stop> {
        if fine { Ok(()) } else { self.interrupted() }
    }
}

async fn documents(addr: std::net::SocketAddr) -> BTreeMap<String, Value> {
    let mut asking = JoinSet::new();
    for path in DOCUMENTS {
        asking.spawn(async move { (path, http::document(addr, path, DOCUMENT_LIMIT).await) });
    }
    let mut out = BTreeMap::new();
    while let Some(answer) = asking.join_next().await {
        if let Ok((path, document)) = answer {
            out.insert(path.to_owned(), document);
        }
    }
    out
}

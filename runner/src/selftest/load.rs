//! One workload through the client, with its whole evidence on disk.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use runseal::digest::Sha256Digest;
use runseal::event::{EventLine, FORMAT, Header, State};
use runseal::response::Response;
use runseal::schedule::Arrivals;
use runseal::trace::{Trace, Traces};
use serde::{Deserialize, Serialize};

use super::process::{cpu_time, peak_rss_kib};
use super::server::{Script, monotonic};
use crate::client::descriptors::room_for;
use crate::client::lag::LagProbe;
use crate::client::{
    AttemptSpec, Cancel, Canceller, Client, Endpoint, Headers, Stage, Timeouts,
    run_closed_loop_with, run_open_loop_with,
};
use crate::recorder::Recorder;

/// How requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// So many at a time.
    Closed(usize),
    /// Evenly in time, so many in 1,000 seconds.
    Open(u64),
}

/// A workload.
#[derive(Debug, Clone)]
pub struct Load {
    /// Where the server listens.
    pub addr: SocketAddr,
    /// What it does with each request.
    pub script: Script,
    /// Requests in all.
    pub requests: u32,
    /// How they are sent.
    pub pattern: Pattern,
    /// Bytes of each body.
    pub body: usize,
    /// After this time the rest is cancelled.
    pub limit: Duration,
}

/// What it cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Content events received.
    pub events: u64,
    /// Socket reads, where they are counted while measuring; otherwise 0.
    pub reads: u64,
    /// From the first to the last moment, in nanoseconds.
    pub wall_ns: u64,
    /// Processor time of this process, in nanoseconds.
    pub cpu_ns: u64,
    /// Largest resident size so far, in KiB; 0 where the system does not say.
    pub peak_rss_kib: u64,
    /// How late the client's own runtime was: median, 99th percentile and maximum
    /// of its samples, in nanoseconds.
    pub lag_ns: [u64; 3],
    /// What to add to the client's stamps to get the machine's monotonic clock.
    pub epoch_ns: u64,
}

/// Attempt number `req` of a workload.
pub fn spec(load: &Load, req: u32, body: &Bytes) -> AttemptSpec {
    AttemptSpec {
        req,
        case: format!("case-{req}"),
        rep: 0,
        attempt: 0,
        warmup: false,
        endpoint: Endpoint {
            name: "loopback".into(),
            addr: load.addr,
            host_header: load.addr.to_string(),
            path: load.script.path(req),
        },
        body: body.clone(),
        salt: Sha256Digest::of(&req.to_be_bytes()).0,
        timeouts: Timeouts {
            connect: Duration::from_secs(10),
            request: Duration::from_secs(300),
            first_token: Some(Duration::from_secs(60)),
            stall: Some(Duration::from_secs(60)),
        },
        headers: Headers::default(),
    }
}

/// Runs a workload and leaves `events.jsonl` and `responses.jsonl` in `dir`.
pub async fn run(load: &Load, dir: &Path) -> io::Result<Cost> {
    if let Pattern::Closed(streams) = load.pattern {
        room_for(streams).map_err(io::Error::other)?;
    }
    let body = Bytes::from(vec![b' '; load.body]);
    let before = (Instant::now(), cpu_time());
    let header = Header {
        epoch: "1970-01-01T00:00:00Z".into(),
        format: FORMAT.into(),
        nonce_hash: Sha256Digest([0; 32]),
        run_id: "self-test".into(),
    };
    let recorder = Recorder::create(&dir.join("events.jsonl"), &header, Instant::now())
        .map_err(io::Error::other)?;
    let epoch_ns = monotonic() - recorder.now();
    let client = Client::new(recorder);
    let spool = Spool::create(&dir.join("responses.jsonl"))?;
    let sink = Arc::clone(&spool);
    let copy = load.clone();
    let specs = (0..load.requests).map(move |req| spec(&copy, req, &body));
    let lag = LagProbe::start(client.recorder(), State::Measure)?;
    let (canceller, cancel) = Cancel::pair();
    let limit = tokio::spawn(timed(load.limit, canceller));
    let on_response = move |r| Spool::put(&sink, &r);
    match load.pattern {
        Pattern::Closed(c) => run_closed_loop_with(&client, specs, c, &cancel, on_response).await,
        Pattern::Open(millihertz) => {
            let stage = Stage {
                arrivals: Arrivals::Constant { millihertz },
                requests: load.requests,
                most_open: None,
            };
            run_open_loop_with(&client, specs, stage, &cancel, on_response).await;
        }
    }
    limit.abort();
    let lag = lag.stop().await;
    client.recorder().finish().map_err(io::Error::other)?;
    let events = Spool::close(&spool)?;
    Ok(Cost {
        events,
        reads: 0,
        wall_ns: u64::try_from(before.0.elapsed().as_nanos()).unwrap_or(u64::MAX),
        cpu_ns: cpu_time() - before.1,
        peak_rss_kib: peak_rss_kib().unwrap_or(0),
        lag_ns: [lag.percentile(50), lag.percentile(99), lag.max()],
        epoch_ns,
    })
}

async fn timed(limit: Duration, canceller: Canceller) {
    tokio::time::sleep(limit).await;
    canceller.cancel();
}

/// Appends answers to a file as they end.
struct Spool {
    out: BufWriter<File>,
    /// Content events, by the length of their text.
    events: u64,
    error: Option<io::Error>,
}

impl Spool {
    fn create(path: &Path) -> io::Result<Arc<Mutex<Self>>> {
        Ok(Arc::new(Mutex::new(Self {
            out: BufWriter::new(File::create_new(path)?),
            events: 0,
            error: None,
        })))
    }

    fn put(this: &Mutex<Self>, response: &Response) {
        let mut this = this.lock().unwrap_or_else(PoisonError::into_inner);
        this.events += (response.content.len() / " word".len()) as u64;
        let bytes = runseal::bundle::evidence::json_bytes(response);
        if let Err(e) = this.out.write_all(&bytes) {
            this.error.get_or_insert(e);
        }
    }

    fn close(this: &Mutex<Self>) -> io::Result<u64> {
        let mut this = this.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(e) = this.error.take() {
            return Err(e);
        }
        this.out.flush()?;
        this.out.get_ref().sync_all()?;
        Ok(this.events)
    }
}

/// The attempts as the log in `dir` tells them.
pub fn traces(dir: &Path) -> io::Result<Vec<Trace>> {
    let text = std::fs::read_to_string(dir.join("events.jsonl"))?;
    let lines = text
        .lines()
        .skip(1)
        .map(|l| runseal::json::from_slice::<EventLine>(l.as_bytes()).map_err(io::Error::other))
        .collect::<io::Result<Vec<_>>>()?;
    let traces = Traces::build(&lines);
    match traces.findings.first() {
        Some(f) => Err(io::Error::other(format!(
            "an impossible log: {}: {}",
            f.code, f.detail
        ))),
        None => Ok(traces.requests),
    }
}

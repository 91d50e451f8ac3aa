//! How well this box can measure: the client against a server with known truth.
//!
//! [`run`] starts the server in a process of its own and sends it four workloads
//! over loopback, the whole evidence going to a temporary folder as in a real
//! run. It reports how many events the client takes in, how far its stamps are
//! from what the server really did, how late it sends what is due, and how late
//! its own threads are. Everything is bounded in time; on a slow box fewer
//! requests are counted, and the counts say so.

pub mod load;
pub mod process;
pub mod server;

use std::io;
use std::process::Command;
use std::time::Duration;

use runseal::metrics::exact::percentile;
use runseal::trace::{Trace, Transport};
use serde::Serialize;

use load::{Cost, Load, Pattern};
use process::ServerProcess;
use server::{Script, Truth};

/// Each workload is cut off after this time.
const LIMIT: Duration = Duration::from_secs(2);
/// A run is flagged when the client's lag exceeds this part of a reported median.
const LAG_SHARE: u64 = 100;

/// A distribution in nanoseconds. Percentiles are rounded down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// Values.
    pub n: u64,
    /// Median.
    pub median_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Largest.
    pub max_ns: u64,
}

impl Spread {
    /// Of these values; `None` when there are none.
    pub fn of(values: &[u64]) -> Option<Self> {
        let at = |percent| {
            let exact = percentile(values, percent, 100)?.to_integer();
            u64::try_from(exact).ok()
        };
        Some(Self {
            n: values.len() as u64,
            median_ns: at(50)?,
            p99_ns: at(99)?,
            max_ns: *values.iter().max()?,
        })
    }
}

/// Events taken in as fast as they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Throughput {
    /// Events that the server puts into one write.
    pub events_per_write: u32,
    /// Streams at a time.
    pub streams: u32,
    /// Content events received.
    pub events: u64,
    /// In this time.
    pub wall_ns: u64,
    /// Using this much processor time of the client.
    pub cpu_ns: u64,
}

impl Throughput {
    /// Events per second.
    pub fn per_second(&self) -> u64 {
        let rate = u128::from(self.events) * 1_000_000_000 / u128::from(self.wall_ns.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Format of this report.
    pub format: &'static str,
    /// How fast the client takes in events.
    pub throughput: Vec<Throughput>,
    /// First token: the client's stamp minus the moment at which the server began
    /// to write it, with 16 streams at 50 events a second each.
    pub first_token_error: Option<Spread>,
    /// Sent minus due, at [`Report::dispatch_per_second`].
    pub dispatch_lag: Option<Spread>,
    /// Requests a second of the open loop.
    pub dispatch_per_second: u64,
    /// 99th percentile of the wait of ready work for the client's threads, during
    /// the stamp measurement.
    pub client_lag_p99_ns: u64,
    /// A reported median below this would be flagged on this box: its 1 % is less
    /// than the client's own lag.
    pub finest_median_ns: u64,
    /// Largest resident size of the client under the first workload, in KiB; 0 where
    /// the system does not say.
    pub peak_rss_kib: u64,
    /// Attempts that did not end as they should have.
    pub failed: u64,
}

/// Format of [`Report`].
pub const FORMAT: &str = "runseal.self-test/v1";

/// Runs the workloads; `server` is a command that runs [`server::serve_stdio`].
/// Must be called on the runtime whose client is to be measured.
pub async fn run(server: impl Fn() -> Command) -> io::Result<Report> {
    let quick = |per_write| Script {
        chunks: 256,
        per_write,
        pace_us: 0,
        stepped: true,
    };
    let mut failed = 0;
    let mut throughput = Vec::new();
    // Of the first workload: later ones stand on what reading its log back took.
    let mut peak_rss_kib = None;
    for (per_write, requests) in [(1, 400), (8, 1200)] {
        let shot = Shot::take(&server, quick(per_write), Pattern::Closed(16), requests).await?;
        failed += shot.failed();
        peak_rss_kib.get_or_insert(shot.cost.peak_rss_kib);
        throughput.push(Throughput {
            events_per_write: per_write,
            streams: 16,
            events: shot.cost.events,
            wall_ns: shot.cost.wall_ns,
            cpu_ns: shot.cost.cpu_ns,
        });
    }
    let slow = Script {
        chunks: 16,
        per_write: 1,
        pace_us: 20_000,
        stepped: false,
    };
    let stamps = Shot::take(&server, slow, Pattern::Closed(16), 64).await?;
    let short = Script {
        chunks: 4,
        pace_us: 1000,
        ..slow
    };
    let per_second = 1000;
    let dispatch = Shot::take(&server, short, Pattern::Open(per_second * 1000), 1000).await?;
    failed += stamps.failed() + dispatch.failed();
    let lag = stamps.cost.lag_ns[1];
    Ok(Report {
        format: FORMAT,
        throughput,
        first_token_error: Spread::of(&stamps.first_token_errors()),
        dispatch_lag: Spread::of(&dispatch.dispatch_lags()),
        dispatch_per_second: per_second,
        client_lag_p99_ns: lag,
        finest_median_ns: lag.saturating_mul(LAG_SHARE),
        peak_rss_kib: peak_rss_kib.unwrap_or(0),
        failed,
    })
}

/// One workload, run and read back from its log.
struct Shot {
    cost: Cost,
    traces: Vec<Trace>,
    truths: Vec<Truth>,
}

impl Shot {
    async fn take(
        server: &impl Fn() -> Command,
        script: Script,
        pattern: Pattern,
        requests: u32,
    ) -> io::Result<Self> {
        let server = ServerProcess::start(server())?;
        let dir = tempfile::tempdir()?;
        let load = Load {
            addr: server.addr,
            pattern,
            script,
            requests,
            body: 512,
            limit: LIMIT,
        };
        let cost = load::run(&load, dir.path()).await?;
        Ok(Self {
            cost,
            truths: server.finish()?,
            traces: load::traces(dir.path())?,
        })
    }

    /// Attempts that neither completed nor were cut off by the time limit.
    fn failed(&self) -> u64 {
        let states = self.traces.iter().map(Trace::transport);
        let bad = states.filter(|s| {
            !matches!(
                s,
                Transport::Completed | Transport::Cancelled | Transport::NotAttempted
            )
        });
        bad.count() as u64
    }

    fn first_token_errors(&self) -> Vec<u64> {
        let error = |trace: &Trace| {
            let at = self
                .truths
                .binary_search_by_key(&trace.req, |t| t.id)
                .ok()?;
            let seen = trace.first_generated? + self.cost.epoch_ns;
            // Both clocks are one; nothing is seen before it is written.
            Some(seen.saturating_sub(self.truths[at].first))
        };
        self.traces.iter().filter_map(error).collect()
    }

    fn dispatch_lags(&self) -> Vec<u64> {
        let lag = |t: &Trace| Some(t.send?.saturating_sub(t.queued));
        self.traces.iter().filter_map(lag).collect()
    }
}

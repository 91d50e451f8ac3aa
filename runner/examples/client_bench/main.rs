//! The load client against the floor: a server with known truth, a bare socket
//! reader and our client with its whole evidence on disk, each in a process of
//! its own.
//!
//! `cargo run --release -p runseal-runner --example client_bench -- [SUITE...]`
//! where SUITE is `paced`, `stepped`, `burst`, `stamps`, `streams`, `memory`, `bodies` or
//! `dispatch`; all of them by default. `metrics` times the figures of a million
//! events; `peers.py` beside this file runs other clients on the same server. `one KIND C N CHUNKS PER_WRITE PACE_US
//! STEPPED BODY RATE` measures one workload, KIND being `floor` or `client`. What
//! it prints is in docs/performance.md, section "Client".

mod floor;
mod metrics;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{bail, ensure};
use runseal_runner::selftest::load::{self, Cost, Load, Pattern};
use runseal_runner::selftest::process::ServerProcess;
use runseal_runner::selftest::server::{Script, Truth, serve_stdio};

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("server") => Ok(serve_stdio(other(&args[1..])?)?),
        Some("metrics") => metrics::run(),
        Some("reader") => reader(&args[1..]),
        Some("one") => {
            ensure!(args.len() > 2, "one KIND and eight numbers");
            println!("{}", measure(&args[1], Work::parse(&args[2..])?)?.line());
            Ok(())
        }
        _ => {
            let all = [
                "stepped", "burst", "stamps", "streams", "memory", "bodies", "dispatch",
            ];
            let wanted: Vec<&str> = match args.is_empty() {
                true => all.to_vec(),
                false => args.iter().map(String::as_str).collect(),
            };
            wanted.into_iter().try_for_each(suite)
        }
    }
}

/// `CHUNKS PER_WRITE PACE_US STEPPED`, for clients that cannot put a script into
/// the query (`peers.py`).
fn other(args: &[String]) -> anyhow::Result<Option<Script>> {
    let n = args
        .iter()
        .map(|a| a.parse())
        .collect::<Result<Vec<u64>, _>>()?;
    match n[..] {
        [] => Ok(None),
        [chunks, per_write, pace_us, stepped] => Ok(Some(Script {
            chunks: chunks as u32,
            per_write: per_write as u32,
            pace_us,
            stepped: stepped != 0,
        })),
        _ => bail!("server [CHUNKS PER_WRITE PACE_US STEPPED]"),
    }
}

/// A workload in numbers.
#[derive(Clone, Copy)]
struct Work {
    concurrency: u64,
    requests: u64,
    chunks: u64,
    per_write: u64,
    pace_us: u64,
    /// 1: one write per stream in turn; 0: as many as the socket takes.
    stepped: u64,
    body: u64,
    /// Requests per 1,000 seconds of an open loop; 0 for a closed one.
    rate: u64,
}

impl Work {
    const N: usize = 8;

    fn numbers(&self) -> [u64; Self::N] {
        let w = self;
        [
            w.concurrency,
            w.requests,
            w.chunks,
            w.per_write,
            w.pace_us,
            w.stepped,
            w.body,
            w.rate,
        ]
    }

    fn parse(args: &[String]) -> anyhow::Result<Self> {
        let n = args
            .iter()
            .map(|a| a.parse())
            .collect::<Result<Vec<u64>, _>>()?;
        let n: [u64; Self::N] = n.try_into().map_err(|_| anyhow::anyhow!("eight numbers"))?;
        let [
            concurrency,
            requests,
            chunks,
            per_write,
            pace_us,
            stepped,
            body,
            rate,
        ] = n;
        Ok(Self {
            concurrency,
            requests,
            chunks,
            per_write,
            pace_us,
            stepped,
            body,
            rate,
        })
    }

    fn load(&self, port: u16) -> Load {
        Load {
            addr: (std::net::Ipv4Addr::LOCALHOST, port).into(),
            requests: self.requests as u32,
            pattern: match self.rate {
                0 => Pattern::Closed(self.concurrency as usize),
                rate => Pattern::Open(rate),
            },
            script: Script {
                chunks: self.chunks as u32,
                per_write: self.per_write as u32,
                pace_us: self.pace_us,
                stepped: self.stepped != 0,
            },
            body: self.body as usize,
            limit: Duration::from_secs(600),
        }
    }
}

/// Unpaced, small bodies.
fn flat_out(concurrency: u64, requests: u64, per_write: u64, stepped: u64) -> Work {
    Work {
        concurrency,
        requests,
        chunks: 256,
        per_write,
        pace_us: 0,
        stepped,
        body: 512,
        rate: 0,
    }
}

/// 32 events at 20 ms.
fn paced(concurrency: u64, requests: u64) -> Work {
    Work {
        chunks: 32,
        pace_us: 20_000,
        ..flat_out(concurrency, requests, 1, 0)
    }
}

fn suite(name: &str) -> anyhow::Result<()> {
    println!("# {name}");
    match name {
        // The events of all streams at once every 2 ms, as from an engine's step.
        "paced" => {
            for (c, per_write) in [(16, 1), (64, 1), (16, 8), (64, 8)] {
                pair(Work {
                    pace_us: 2000,
                    ..flat_out(c, 4 * c, per_write, 0)
                })?;
            }
        }
        "stepped" | "burst" => {
            let stepped = u64::from(name == "stepped");
            for per_write in [1, 8] {
                for c in [1, 16, 64] {
                    pair(flat_out(c, 2000, per_write, stepped))?;
                }
            }
        }
        "stamps" => {
            for (c, n) in [(1, 20), (16, 160), (64, 640)] {
                pair(paced(c, n))?;
            }
        }
        "streams" => pair(Work {
            pace_us: 50_000,
            chunks: 64,
            ..paced(2000, 4000)
        })?,
        "memory" => {
            for n in [1000, 4000, 16_000] {
                println!("{}", measure("client", flat_out(64, n, 8, 1))?.line());
            }
        }
        "bodies" => pair(Work {
            pace_us: 1000,
            body: 3 << 20,
            ..paced(64, 256)
        })?,
        "dispatch" => {
            let work = Work {
                chunks: 4,
                pace_us: 1000,
                rate: 1_000_000,
                ..paced(0, 5000)
            };
            println!("{}", measure("client", work)?.line());
        }
        other => bail!("no suite is called {other}"),
    }
    Ok(())
}

/// The floor and the client on one workload, three times in turn; the pair with
/// the middle ratio is printed, so that a neighbour's burst is not the figure.
fn pair(work: Work) -> anyhow::Result<()> {
    let mut rounds = Vec::new();
    for _ in 0..3 {
        rounds.push((measure("floor", work)?, measure("client", work)?));
    }
    rounds.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let all: Vec<String> = rounds.iter().map(|r| format!("{:.2}", ratio(r))).collect();
    let (floor, client) = &rounds[1];
    println!("{}\n{}", floor.line(), client.line());
    println!("  CPU per event, client / floor: {}", all.join(" "));
    Ok(())
}

fn ratio((floor, client): &(Outcome, Outcome)) -> f64 {
    client.cpu_per_million() / floor.cpu_per_million()
}

/// One workload by one kind of reader.
struct Outcome {
    kind: String,
    work: Work,
    cost: Cost,
    /// First content: reported stamp minus the server's, ascending, in ns.
    errors: Vec<i64>,
    /// From due to sent, ascending, in ns; nothing for the floor.
    dispatch: Vec<i64>,
}

impl Outcome {
    fn cpu_per_million(&self) -> f64 {
        self.cost.cpu_ns as f64 / 1e3 / self.cost.events as f64
    }

    fn line(&self) -> String {
        let w = self.work;
        let pattern = match w.rate {
            0 => format!("C={}", w.concurrency),
            rate => format!("{}/s", rate / 1000),
        };
        let mut line = format!(
            "{:6} {pattern:<6} N={:<5} {}x{} pace={}us stepped={} body={} | {:>7.0} events/s \
             {:>5.2} CPU-s/M {:>5.1} events/read {:>6} KiB | first token error {}",
            self.kind,
            w.requests,
            w.chunks,
            w.per_write,
            w.pace_us,
            w.stepped,
            w.body,
            self.cost.events as f64 * 1e9 / self.cost.wall_ns as f64,
            self.cpu_per_million(),
            self.cost.events as f64 / self.cost.reads as f64,
            self.cost.peak_rss_kib,
            quantiles(&self.errors),
        );
        if self.kind == "client" {
            let lag = self.cost.lag_ns.map(|n| n as i64);
            line += &format!(
                " | dispatch {} | loop lag {:.3} / {:.3} / {:.3} ms",
                quantiles(&self.dispatch),
                lag[0] as f64 / 1e6,
                lag[1] as f64 / 1e6,
                lag[2] as f64 / 1e6,
            );
        }
        line
    }
}

/// Median and 99th percentile of ascending values.
fn quantiles(sorted: &[i64]) -> String {
    let at = |q: f64| match sorted.len() {
        0 => f64::NAN,
        n => sorted[((n - 1) as f64 * q).round() as usize] as f64 / 1e6,
    };
    format!("{:.3} / {:.3} ms", at(0.5), at(0.99))
}

fn measure(kind: &str, work: Work) -> anyhow::Result<Outcome> {
    let exe = std::env::current_exe()?;
    let mut command = Command::new(&exe);
    command.arg("server");
    let server = ServerProcess::start(command)?;
    let dir = tempfile::tempdir()?;
    let out = Command::new(&exe)
        .args(["reader", kind])
        .arg(dir.path())
        .arg(server.addr.port().to_string())
        .args(work.numbers().map(|n| n.to_string()))
        .stderr(std::process::Stdio::inherit())
        .output()?;
    ensure!(out.status.success(), "the {kind} process failed");
    let truth = server.finish()?;
    let mut lines = out.stdout.split(|b| *b == b'\n');
    let mut cost: Cost = serde_json::from_slice(lines.next().unwrap_or_default())?;
    ensure!(
        truth.len() as u64 == work.requests,
        "the server answered {} of {} requests",
        truth.len(),
        work.requests
    );
    let mut dispatch = Vec::new();
    let firsts: Vec<floor::First> = if kind == "floor" {
        serde_json::from_slice(lines.next().unwrap_or_default())?
    } else {
        ensure!(
            cost.events == work.requests * work.chunks,
            "events were lost"
        );
        let log = std::fs::read(dir.path().join("events.jsonl"))?;
        cost.reads = memchr::memmem::find_iter(&log, b"\"e\":\"read\"").count() as u64;
        let traces = load::traces(dir.path())?;
        dispatch = traces
            .iter()
            .filter_map(|t| Some(t.send? as i64 - t.queued as i64))
            .collect();
        dispatch.sort_unstable();
        traces
            .iter()
            .filter_map(|t| Some((t.req, t.first_generated? + cost.epoch_ns)))
            .collect()
    };
    Ok(Outcome {
        kind: kind.to_owned(),
        work,
        cost,
        errors: errors(&truth, firsts),
        dispatch,
    })
}

fn errors(truth: &[Truth], firsts: Vec<floor::First>) -> Vec<i64> {
    let mut errors: Vec<i64> = firsts
        .into_iter()
        .filter_map(|(req, t)| {
            let at = truth.binary_search_by_key(&req, |t| t.id).ok()?;
            Some(t as i64 - truth[at].first as i64)
        })
        .collect();
    errors.sort_unstable();
    errors
}

/// The measured process.
fn reader(args: &[String]) -> anyhow::Result<()> {
    ensure!(args.len() > 3, "KIND DIR PORT and eight numbers");
    let load = Work::parse(&args[3..])?.load(args[2].parse()?);
    if args[0] == "floor" {
        let (cost, firsts) = floor::run(&load)?;
        println!(
            "{}\n{}",
            serde_json::to_string(&cost)?,
            serde_json::to_string(&firsts)?
        );
        return Ok(());
    }
    let runtime = runseal_runner::client::runtime()?;
    let cost = runtime.block_on(load::run(&load, Path::new(&args[1])))?;
    println!("{}", serde_json::to_string(&cost)?);
    Ok(())
}

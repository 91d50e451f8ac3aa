//! Figures from a million events: reading the log, building the lives, deriving.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::{Context, ensure};
use runseal::bundle::files::GradeLine;
use runseal::event::{self, EventLine};
use runseal::grading::Declared;
use runseal::metrics::serving::serving;
use runseal::plan::LoadPlan;
use runseal::scorer::Grade;
use runseal::trace::{Trace, Traces};

/// Requests, and events of each: five around the answer, two per chunk.
const REQUESTS: u32 = 1000;
const CHUNKS: u32 = 496;

pub fn run() -> anyhow::Result<()> {
    let log = log();
    let start = Instant::now();
    let lines: Vec<&[u8]> = log.lines().map(str::as_bytes).collect();
    let lines: Option<Vec<EventLine>> = event::from_lines(&lines).into_iter().collect();
    let lines = lines.context("a line that is no event")?;
    let parsed = start.elapsed();
    let start = Instant::now();
    let traces = Traces::build(&lines);
    ensure!(traces.findings.is_empty(), "an impossible log");
    let built = start.elapsed();
    let start = Instant::now();
    let declared: Vec<Declared> = traces
        .requests
        .iter()
        .map(|t| Declared {
            case: &t.case,
            rep: t.rep,
            trace: Some(t),
        })
        .collect();
    let grades: Vec<GradeLine> = declared
        .iter()
        .map(|d| GradeLine {
            case: d.case.into(),
            rep: d.rep,
            grade: Grade::Pass,
            flags: Vec::new(),
        })
        .collect();
    let load = LoadPlan {
        mode: "closed".into(),
        concurrency: REQUESTS,
        repetitions: 1,
        spread: "round-robin".into(),
        stages: Vec::new(),
        retry: None,
    };
    let attempts: Vec<&Trace> = traces.requests.iter().collect();
    let figures = serving(&load, &declared, &attempts, &grades);
    let derived = start.elapsed();
    println!(
        "{} events, {} MB: parsed in {} ms, lives in {} ms, {} figures in {} ms",
        lines.len(),
        log.len() / 1_000_000,
        parsed.as_millis(),
        built.as_millis(),
        figures.len(),
        derived.as_millis()
    );
    Ok(())
}

/// A log as the client writes it, all requests open at once.
fn log() -> String {
    let mut out = String::new();
    let mut seq = 0;
    let mut put = |t: u64, rest: String| {
        seq += 1;
        // Writing to memory cannot fail.
        let _ = writeln!(out, "{{\"seq\":{seq},\"t\":{t},{rest}}}");
    };
    let zero = "0".repeat(64);
    for r in 0..REQUESTS {
        put(
            0,
            format!(
                "\"e\":\"queued\",\"req\":{r},\"case\":\"c{r}\",\"rep\":0,\"attempt\":0,\"warmup\":false,\"endpoint\":\"e\""
            ),
        );
        put(
            0,
            format!("\"e\":\"body\",\"req\":{r},\"len\":2,\"digest\":\"{zero}\""),
        );
        put(
            1,
            format!("\"e\":\"connected\",\"req\":{r},\"reused\":true,\"peer\":\"127.0.0.1:1\""),
        );
        put(2, format!("\"e\":\"send\",\"req\":{r}"));
    }
    for c in 0..CHUNKS {
        for r in 0..REQUESTS {
            let (t, read) = (3 + u64::from(c * REQUESTS + r), c + 1);
            put(
                t,
                format!("\"e\":\"read\",\"req\":{r},\"read\":{read},\"bytes\":250"),
            );
            if c == 0 {
                put(
                    t,
                    format!(
                        "\"e\":\"headers\",\"req\":{r},\"read\":1,\"status\":200,\"event_stream\":true"
                    ),
                );
            }
            put(
                t,
                format!(
                    "\"e\":\"delta\",\"req\":{r},\"read\":{read},\"ev\":{read},\"kind\":\"content\",\"len\":5,\"digest\":\"{}\"",
                    &zero[..32]
                ),
            );
        }
    }
    for r in 0..REQUESTS {
        let t = 3 + u64::from(CHUNKS * REQUESTS + r);
        put(t, format!("\"e\":\"end\",\"req\":{r},\"cause\":\"eof\""));
    }
    out
}

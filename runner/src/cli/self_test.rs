//! `attest self-test`.

use std::fmt::Write as _;
use std::process::{Command, ExitCode};

use anyhow::Context;
use runseal_runner::client;
use runseal_runner::selftest::{self, Report, Spread, server};

use super::{Format, own_path, print};

/// Measures this box's load client against a loopback server with known truth
///
/// Takes less than ten seconds and writes nothing but temporary files. Exit code 0:
/// measured; 1: some requests failed; 2: could not run.
#[derive(clap::Args)]
pub(super) struct Args {
    /// How to print the answer
    #[arg(long, value_enum, default_value = "human")]
    format: Format,
    /// Be the server: print the port, serve until stdin ends, print the truth
    #[arg(long, hide = true)]
    serve: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.serve {
        server::serve_stdio(None).context("the loopback server failed")?;
        return Ok(ExitCode::SUCCESS);
    }
    let exe = own_path()?;
    let command = || {
        let mut command = Command::new(&exe);
        command.args(["self-test", "--serve"]);
        command
    };
    let runtime = client::runtime().context("could not start the client's threads")?;
    let report = runtime
        .block_on(selftest::run(command))
        .context("the self-test could not run")?;
    print(&match args.format {
        Format::Human => human(&report),
        Format::Json => serde_json::to_string(&report)? + "\n",
    })?;
    Ok(match report.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn human(report: &Report) -> String {
    let mut out = String::from("Load client of this box, against a loopback server\n\n");
    // Writing to memory cannot fail.
    for t in &report.throughput {
        let _ = writeln!(
            out,
            "  {:<28}{:>10} events/s   {} of processor time per event",
            format!("{} per write, {} streams", t.events_per_write, t.streams),
            t.per_second(),
            micros(t.cpu_ns / t.events.max(1)),
        );
    }
    let mut spread = |name: &str, spread: Option<Spread>| {
        let _ = match spread {
            Some(s) => writeln!(
                out,
                "  {name:<28}median {}   p99 {}   max {}   n {}",
                micros(s.median_ns),
                micros(s.p99_ns),
                micros(s.max_ns),
                s.n
            ),
            None => writeln!(out, "  {name:<28}not measured: nothing came in time"),
        };
    };
    spread("first token, seen - true", report.first_token_error);
    let name = format!("sent - due, {}/s", report.dispatch_per_second);
    spread(&name, report.dispatch_lag);
    let _ = writeln!(
        out,
        "  {:<28}p99 {}\n  {:<28}{} KiB\n  {:<28}{}\n\n\
         Medians below {} would be flagged on this box: 1 % of them is less than the client's own lag.",
        "client lag",
        micros(report.client_lag_p99_ns),
        "largest resident size",
        report.peak_rss_kib,
        "failed requests",
        report.failed,
        micros(report.finest_median_ns),
    );
    out
}

/// Nanoseconds for people.
fn micros(ns: u64) -> String {
    match ns {
        0..=999_999 => format!("{}.{:03} us", ns / 1000, ns % 1000),
        _ => format!("{}.{:03} ms", ns / 1_000_000, ns / 1000 % 1000),
    }
}

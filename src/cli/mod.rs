//! The command line: parse, dispatch, turn the answer into an exit code.
//!
//! 0: everything required was performed and passed. 1: findings. 2: could not
//! run. Each subcommand is one file and one line in [`dispatch`].

mod compare;
mod dataset;
mod explain;
mod export;
mod output;
mod record;
mod scorer;
mod weights;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand, ValueEnum};
use runseal::chain::chain;
use runseal::leftovers;

/// Checks LLM benchmark claims offline: which weights lie on which replica, and
/// whether a sealed run record follows from its evidence.
///
/// Exit code 0: everything required was performed and passed. 1: findings.
/// 2: could not run.
#[derive(Parser)]
#[command(name = "verify", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Weights(Box<weights::Args>),
    Record(record::Args),
    Compare(compare::Args),
    Export(export::Args),
    Dataset(dataset::Args),
    Scorer(scorer::Args),
    Explain(explain::Args),
}

fn dispatch(command: Command) -> anyhow::Result<Answer> {
    match command {
        Command::Weights(args) => weights::run(*args),
        Command::Record(args) => record::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Export(args) => export::run(args),
        Command::Dataset(args) => dataset::run(args),
        Command::Scorer(args) => scorer::run(args),
        Command::Explain(args) => explain::run(args),
    }
}

/// What a subcommand that could run has to say.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// Everything required was performed and passed.
    Passed,
    /// It was not, or did not.
    Findings,
}

/// How the answer is written to stdout.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Text for people
    Human,
    /// One JSON object
    Json,
}

/// Runs the program. Clap itself leaves with 2 on wrong usage.
pub fn main() -> ExitCode {
    // The frozen scorer runs in a child of this program (see scorer::child).
    if std::env::args_os()
        .nth(1)
        .is_some_and(|a| a == runseal::scorer::child::SUBCOMMAND)
    {
        return runseal::scorer::child::child_main();
    }
    let command = Args::parse().command;
    if let Err(e) = leftovers::watch() {
        // Everything else works; only an interrupted run would leave something.
        output::complain(&format!("note: signals cannot be waited for: {e}"));
    }
    match dispatch(command) {
        Ok(Answer::Passed) => ExitCode::SUCCESS,
        Ok(Answer::Findings) => ExitCode::from(1),
        Err(e) => {
            output::complain(&format!("error: {}", chain(e.as_ref())));
            ExitCode::from(2)
        }
    }
}

/// Reads a whole input file. Pipes and devices are refused (they could block for
/// ever), and so is anything too large to be what it should be.
fn read_input(path: &Path, what: &str, max: u64) -> anyhow::Result<Vec<u8>> {
    let shown = path.display();
    let meta = std::fs::metadata(path).with_context(|| format!("could not read {what} {shown}"))?;
    if !meta.is_file() {
        bail!("{what} {shown} is not a regular file");
    }
    if meta.len() > max {
        bail!("{what} {shown} is larger than {max} bytes (hint: is it the right file?)");
    }
    std::fs::read(path).with_context(|| format!("could not read {what} {shown}"))
}

/// The clock: RFC 3339 in UTC, to the millisecond.
fn now() -> String {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_millisecond(now.as_millisecond())
        .unwrap_or(now)
        .to_string()
}

//! The command line: parse, dispatch, turn the answer into an exit code.
//!
//! 0: everything required was performed and passed. 1: the record says failed,
//! aborted, refused or tainted. 2: could not run. Each subcommand is one file and
//! one line in [`dispatch`].

mod check;
mod close;
mod engine;
mod export;
mod init;
mod keygen;
mod keys;
mod pin;
mod plan;
mod run;
mod self_test;
mod sign;
mod suite;
mod verdict;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};

/// Runs a pinned workload on rehashed weights and seals what happened.
///
/// Exit code 0: a sealed record says completed, untainted, every case attempted.
/// 1: it says failed, aborted, refused or tainted. 2: could not run.
#[derive(Parser)]
#[command(name = "attest", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Init(init::Args),
    Keygen(keygen::Args),
    Pin(pin::Args),
    Plan(plan::Args),
    Check(check::Args),
    Run(run::Args),
    Close(close::Args),
    Export(export::Args),
    Sign(sign::Args),
    Suite(suite::Args),
    Engine(engine::Args),
    SelfTest(self_test::Args),
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Init(args) => init::run(args),
        Command::Keygen(args) => keygen::run(args),
        Command::Pin(args) => pin::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Check(args) => check::run(args),
        Command::Run(args) => run::run(args),
        Command::Close(args) => close::run(args),
        Command::Export(args) => export::run(args),
        Command::Sign(args) => sign::run(args),
        Command::Suite(args) => suite::run(args),
        Command::Engine(args) => engine::run(args),
        Command::SelfTest(args) => self_test::run(args),
    }
}

/// How the answer is written to stdout.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Text for people
    Human,
    /// One JSON object on the last line
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
    // A file that meets the limit on file sizes is an error and not the end.
    if let Err(e) = runseal::leftovers::survive_file_limit() {
        complain(&format!(
            "note: the limit on file sizes may end this program: {e}"
        ));
    }
    match dispatch(Args::parse().command) {
        Ok(code) => code,
        Err(e) => {
            complain(&format!("error: {}", runseal::chain::chain(e.as_ref())));
            ExitCode::from(2)
        }
    }
}

/// Writes a line for people to stderr.
fn complain(text: &str) {
    // Nobody is left to tell when stderr is gone.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes data to stdout. A reader that went away is not an error: the exit code
/// still tells.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// This program's file.
fn own_path() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("could not find this program's own file")
}

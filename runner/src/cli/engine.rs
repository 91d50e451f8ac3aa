//! `attest engine`: the reference engine, as `attest run` starts it.

use std::process::ExitCode;

use runseal_runner::reference::{EngineArgs, run_blocking};

/// Serve a checkpoint with the reference engine (what `attest run` starts)
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    run_blocking(args.engine)?;
    Ok(ExitCode::SUCCESS)
}

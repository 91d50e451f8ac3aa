//! `attest close`: a killed run becomes an aborted record.

use std::path::PathBuf;
use std::process::ExitCode;

use runseal_runner::run::close::close;
use runseal_runner::run::tool;

use super::{Format, keys, own_path, verdict};

/// Seal the bundle of a run that was killed, as aborted
#[derive(clap::Args)]
pub struct Args {
    /// The bundle's folder
    bundle: PathBuf,
    /// Secret key (PEM) that the run declared; default ./keys/attest.key.pem
    #[arg(long, value_name = "PEM")]
    key: Option<PathBuf>,
    /// How to write the result
    #[arg(long, value_enum, default_value = "human")]
    format: Format,
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let exe = own_path()?;
    let path = args.key.unwrap_or_else(|| keys::SECRET.into());
    let loaded = keys::load_or_make(Some(&path))?;
    let finished = close(&args.bundle, &loaded.key, tool(&exe)?, &exe)?;
    verdict::deliver(&finished, &loaded.public_path, args.format, None)
}

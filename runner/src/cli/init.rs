//! `attest init`.

use std::path::Path;
use std::process::ExitCode;

use runseal::durable::{self, WriteOptions};
use runseal_runner::{builtin, plan_file};

use super::{keys, print};

/// Write a commented attest.toml that reproduces the built-in plan, and a signing key
#[derive(clap::Args)]
pub struct Args {
    /// Replace an attest.toml that is there
    #[arg(long)]
    force: bool,
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let options = WriteOptions {
        replace: args.force,
        private: false,
    };
    durable::write(
        Path::new(plan_file::FILE),
        builtin::PLAN.as_bytes(),
        options,
    )?;
    let key = keys::load_or_make(None)?;
    print(&format!(
        "plan         ./{}\nkey          ./{} ({})\nfingerprint  {}\nNext: attest plan show, then attest run\n",
        plan_file::FILE,
        keys::SECRET,
        if key.made { "made now" } else { "was there" },
        key.key.public().fingerprint()
    ))?;
    Ok(ExitCode::SUCCESS)
}

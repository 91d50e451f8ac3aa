//! `attest run`: the main job.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use runseal_runner::plan_file::{Source, resolve};
use runseal_runner::run::finish::check_scorer;
use runseal_runner::run::lock::FolderLock;
use runseal_runner::run::{Inputs, run as run_plan, tool};

use super::{Format, complain, keys, own_path, verdict};

/// Rehash, serve, measure, grade, seal, audit
#[derive(clap::Args)]
pub struct Args {
    /// Plan file; default ./attest.toml, else the built-in plan
    plan: Option<PathBuf>,
    /// Folder that the bundle is made in
    #[arg(long, default_value = "./evidence", value_name = "DIR")]
    out: PathBuf,
    /// Secret key (PEM) to seal with; default ./keys/attest.key.pem, made on first use
    #[arg(long, value_name = "PEM")]
    key: Option<PathBuf>,
    /// Also exit 1 when fewer than this share of the cases pass, such as 0.75 or 3/4
    #[arg(long, value_name = "RATIO", value_parser = verdict::ratio)]
    require_pass: Option<verdict::Ratio>,
    /// How to write the result
    #[arg(long, value_enum, default_value = "human")]
    format: Format,
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    // Before anything is read or made: what another run is making now is not
    // there yet, or half.
    let _lock = FolderLock::take(Path::new("."))?;
    let source = Source::find(args.plan.as_deref());
    complain(&format!("using {}", source.describe()));
    let exe = own_path()?;
    let resolved = resolve(&source, &exe)?;
    if resolved.cluster.is_some() {
        bail!(
            "this version does not launch engines on a cluster yet (hint: `attest plan show` prints the commands, `attest check` looks at the nodes)"
        );
    }
    // Before anything is made or sent. The keys themselves go to the client only.
    let mut headers = std::collections::BTreeMap::new();
    for (name, remote) in &resolved.remotes {
        let found = remote.headers(|variable| std::env::var(variable).ok());
        let found = found.with_context(|| format!("endpoint {name}"))?;
        headers.insert(name.clone(), found);
    }
    // A scorer that cannot be run at all is better known before the measurement.
    check_scorer(&exe, &resolved.suite_files.scorer)?;
    let tool = tool(&exe)?;
    let loaded = keys::load_or_make(args.key.as_deref())?;
    if loaded.made {
        complain(&format!(
            "made a signing key: {} and {} (fingerprint {})",
            keys::SECRET,
            keys::PUBLIC,
            loaded.key.public().fingerprint()
        ));
    }
    let inputs = Inputs {
        resolved,
        headers,
        out: args.out,
        key: loaded.key,
        key_made_by_run: loaded.made,
        tool,
        say: complain,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("could not start the async runtime")?;
    let finished = runtime.block_on(run_plan(inputs));
    // A rehash that a signal left behind must not keep the program here.
    runtime.shutdown_background();
    verdict::deliver(
        &finished?,
        &loaded.public_path,
        args.format,
        args.require_pass,
    )
}

//! `attest init`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use runseal::durable::{self, WriteOptions};
use runseal::weights::Inventory;
use runseal_runner::import::{self, Imported};
use runseal_runner::run::INVENTORY;
use runseal_runner::{builtin, plan_file};

use super::{complain, keys, print};

/// Write a commented plan and inventory, and a signing key
///
/// Without --from these are attest.toml, which reproduces the built-in plan, and
/// cluster.toml, which lists its replicas and shows every setting of a cluster.
#[derive(clap::Args)]
pub struct Args {
    /// Replace an attest.toml or cluster.toml that is there
    #[arg(long)]
    force: bool,
    /// Take the cluster from another tool's file: FORMAT is spark-vllm-docker (its .env) or
    /// sparkrun (a cluster's or a recipe's YAML). May be given several times
    #[arg(long, num_args = 2, value_names = ["FORMAT", "FILE"], action = clap::ArgAction::Append)]
    from: Vec<String>,
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (plan, cluster) = match imported(&args.from)? {
        None => (builtin::PLAN.to_owned(), builtin::CLUSTER.to_owned()),
        Some(all) => {
            for note in &all.notes {
                complain(&format!("note: {note}"));
            }
            let cluster = all.cluster_toml();
            // What was imported may be nonsense, and then nothing is written.
            Inventory::parse(&cluster).context("what was imported makes no inventory")?;
            (all.attest_toml(), cluster)
        }
    };
    let there = |name: &str| Path::new(name).symlink_metadata().is_ok();
    // An inventory that a run wrote, or its user, stays; one that was asked for with
    // --from does not go missing silently.
    let keep = there(INVENTORY) && !args.force && args.from.is_empty();
    let mut files = vec![(plan_file::FILE, &plan)];
    if !keep {
        files.push((INVENTORY, &cluster));
    }
    if let Some((name, _)) = files.iter().find(|(name, _)| there(name) && !args.force) {
        return Err(durable::WriteError::Exists((*name).into()).into());
    }
    let options = WriteOptions {
        replace: args.force,
        private: false,
    };
    for (name, text) in files {
        durable::write(Path::new(name), text.as_bytes(), options)?;
    }
    let key = keys::load_or_make(None)?;
    print(&format!(
        "plan         ./{}\ninventory    ./{} ({})\nkey          ./{} ({})\nfingerprint  {}\nNext: {}\n",
        plan_file::FILE,
        INVENTORY,
        if keep { "was there" } else { "made now" },
        keys::SECRET,
        if key.made { "made now" } else { "was there" },
        key.key.public().fingerprint(),
        match args.from.is_empty() {
            true => "attest plan show, then attest run",
            false => "the lines marked FILL IN, then attest plan show",
        }
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Everything that --from names, put together.
fn imported(from: &[String]) -> anyhow::Result<Option<Imported>> {
    let mut all: Option<Imported> = None;
    for pair in from.chunks_exact(2) {
        let [format, file] = pair else { continue };
        let path = PathBuf::from(file);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("could not read {}", path.display()))?;
        let one = import::read(format, &text).with_context(|| path.display().to_string())?;
        all = Some(match all {
            None => one,
            Some(before) => before.and(one),
        });
    }
    Ok(all)
}

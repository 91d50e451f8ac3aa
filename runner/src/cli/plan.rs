//! `attest plan show`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use runseal::plan::Pin;
use runseal_runner::plan_file::{Source, resolve};

use super::{Format, complain, own_path, print};

/// Look at a plan; nothing runs
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print every pin and every argument list that `attest run` would use
    Show {
        /// Plan file; default ./attest.toml, else the built-in plan
        plan: Option<PathBuf>,
        /// Text, or plan.json exactly as it will stand in the bundle
        #[arg(long, value_enum, default_value = "human")]
        format: Format,
    },
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Command::Show { plan, format } = args.command;
    let source = Source::find(plan.as_deref());
    complain(&format!("using {}", source.describe()));
    let exe = own_path()?;
    let resolved = resolve(&source, &exe)?;
    let plan = &resolved.plan;
    if format == Format::Json {
        print(&String::from_utf8_lossy(&plan.to_bytes()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = format!("plan digest  {}\n", plan.digest());
    let pin = |p: &Pin| match p {
        Pin::Sha256(d) => d.hex(),
        Pin::Unpinned { reason } => format!("unpinned ({reason})"),
    };
    out.push_str(&format!(
        "suite        {} {} ({} cases)\ndataset      {}\nscorer       {}\nexecutable   {}\n",
        plan.suite.name,
        plan.suite.digest,
        plan.suite.case_ids.len(),
        plan.suite.dataset,
        plan.suite.scorer,
        pin(&plan.engine.executable)
    ));
    for c in &plan.checkpoints {
        out.push_str(&format!(
            "checkpoint   {} {} root {}\n",
            c.role, c.name, c.manifest_root
        ));
    }
    out.push_str(&format!(
        "requests     model {}, temperature {}, seed {}, cap {} tokens\nload         closed loop, {} at a time, {} repetition(s), {} attempts\ncache        {}\n",
        plan.requests.model,
        plan.requests.temperature,
        plan.requests.seed,
        plan.requests.max_tokens,
        plan.load.concurrency,
        plan.load.repetitions,
        plan.declared(),
        plan.cache.claim
    ));
    for e in plan.endpoints.iter().filter(|e| e.remote.is_some()) {
        let remote = resolved.remotes.get(&e.name);
        let key = remote.and_then(|r| r.api_key_env.as_deref());
        out.push_str(&format!(
            "endpoint     {} at {}, key {}\n",
            e.name,
            remote.map_or("?", |r| r.url.as_str()),
            key.map_or("none".to_owned(), |name| format!("in ${name}")),
        ));
    }
    if plan.is_remote() {
        out.push_str("nothing is launched: somebody else runs the endpoint(s)\n");
        print(&out)?;
        return Ok(ExitCode::SUCCESS);
    }
    out.push_str("launch, in this order, each with exactly this environment:\n");
    for r in &plan.replicas {
        let paths = each(&r.paths, ": ").join(", ");
        out.push_str(&format!("  {} on {} from {paths}\n", r.name, r.node));
        out.push_str(&format!(
            "    {}\n",
            plan.argv(r, &exe.display().to_string(), "0").join(" ")
        ));
        out.push_str(&format!(
            "    env {}\n",
            each(&plan.engine.env, "=").join(" ")
        ));
    }
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// The pairs of a map, as people write them.
fn each(map: &std::collections::BTreeMap<String, String>, between: &str) -> Vec<String> {
    let pairs = map.iter();
    pairs.map(|(k, v)| format!("{k}{between}{v}")).collect()
}

//! `attest plan show`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use runseal::plan::{Pin, RunPlan};
use runseal::weights::remote::command::shell_line;
use runseal::weights::{GidIndex, Launch, Replica};
use runseal_runner::engine_recipe::command;
use runseal_runner::plan_file::{ClusterPlan, Source, resolve};

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
    match &resolved.cluster {
        Some(cluster) => out.push_str(&launches(cluster, plan)?),
        None => {
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
        }
    }
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// The pairs of a map, as people write them.
fn each(map: &std::collections::BTreeMap<String, String>, between: &str) -> Vec<String> {
    let pairs = map.iter();
    pairs.map(|(k, v)| format!("{k}{between}{v}")).collect()
}

/// Every command of a cluster's launch, ready to be pasted into a shell on its node.
/// RUN stands for the run id, which is not known yet.
fn launches(cluster: &ClusterPlan, plan: &RunPlan) -> anyhow::Result<String> {
    let extra = &cluster.inventory.extra;
    let engine = extra.engine.as_ref();
    let engine = engine.context("the inventory has no [engine]")?;
    let layout = plan.engine.layout.as_ref();
    let layout = layout.context("the plan has no layout")?;
    let mut out = format!(
        "engine       {} ({}), launch {}\n",
        cluster.recipe.name,
        cluster.recipe.about,
        engine.launch.name()
    );
    if let (Launch::Docker, Some(image)) = (engine.launch, &extra.image) {
        let pinned = [
            image
                .manifests
                .iter()
                .map(|d| format!("  manifest {d}"))
                .collect(),
            image
                .config
                .iter()
                .map(|d| format!("  config {d}"))
                .collect(),
            image
                .diff_ids
                .iter()
                .map(|d| format!("  layer {d}"))
                .collect::<Vec<_>>(),
        ]
        .concat();
        out.push_str(&format!("image        {}\n", image.reference));
        pinned
            .iter()
            .for_each(|line| out.push_str(&format!("           {line}\n")));
        if !image.reference.contains("@sha256:") && pinned.is_empty() {
            out.push_str("             not pinned by any digest: the record will say so\n");
        }
    }
    for mount in &extra.mounts {
        let content = match (mount.checkpoint, mount.sha256, &mount.unpinned) {
            (Some(role), ..) => format!("the node's {role}, pinned by its manifest"),
            (_, Some(digest), _) => format!("sha256 {digest}"),
            (.., why) => format!("unpinned ({})", why.as_deref().unwrap_or_default()),
        };
        let mode = if mount.writable { "rw" } else { "ro" };
        out.push_str(&format!(
            "mount        {} {mode}: {content}\n",
            mount.target
        ));
    }
    let programs = command::programs(&cluster.recipe, &cluster.inventory)?;
    out.push_str("launch, in this order:\n");
    for (i, program) in programs.iter().enumerate() {
        out.push_str(&format!(
            "  {}. {}, rank {} on {}\n",
            i + 1,
            program.step,
            program.rank,
            program.node
        ));
        if engine.launch == Launch::Docker {
            let image = extra.image.as_ref().map_or("", |i| i.reference.as_str());
            let words = command::docker(engine, &layout.docker_args, image, "RUN", program);
            out.push_str(&format!("     {}\n", shell_line(&words)));
        } else {
            out.push_str(&format!("     {}\n", shell_line(&program.argv)));
            for (name, value) in &program.env {
                out.push_str(&format!(
                    "     env {name}={}\n",
                    shell_line(std::slice::from_ref(value))
                ));
            }
        }
    }
    let auto = |r: &&Replica| matches!(r.node.gid_index, Some(GidIndex::Auto(_)));
    let auto: Vec<&str> = cluster
        .inventory
        .replicas()
        .iter()
        .filter(auto)
        .map(|r| r.name.as_str())
        .collect();
    if !auto.is_empty() {
        out.push_str(&format!(
            "  gid_index auto is looked up before the launch on {}\n",
            auto.join(", ")
        ));
    }
    out.push_str("teardown in the opposite order\n");
    Ok(out)
}

//! `attest check`: preflight and verify, and nothing else.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use runseal::finding::{Finding, Severity};
use runseal::node_facts::Facts;
use runseal::node_facts::check::Node;
use runseal::node_facts::clock::Offset;
use runseal::weights::remote::command::shell_line;
use runseal::weights::{Integrity, Survey, Transport};
use runseal_runner::cluster::{Nodes, RunOf, rehash};
use runseal_runner::plan_file::{ClusterPlan, Source, resolve};
use serde::Serialize;

use super::{Format, complain, own_path, print};

/// Look at every node of a cluster and rehash its weights; nothing is started
///
/// Exit code 0: every node is as the inventory expects and holds the pinned weights. 1: something
/// is not so, or could not be looked at. 2: could not run.
#[derive(clap::Args)]
pub struct Args {
    /// Plan file with an inventory; default ./attest.toml
    plan: Option<PathBuf>,
    /// Look at the nodes only, and do not read the weights
    #[arg(long)]
    no_weights: bool,
    /// How to write the result
    #[arg(long, value_enum, default_value = "human")]
    format: Format,
}

/// The whole answer.
#[derive(Serialize)]
struct Answer {
    nodes: BTreeMap<String, NodeAnswer>,
    findings: Vec<Finding>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weights: Option<Survey>,
    good: bool,
}

#[derive(Serialize)]
struct NodeAnswer {
    facts: Facts,
    clock: Option<Offset>,
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    // Nothing of ours stays behind on a signal: connections, folders, programs.
    runseal::leftovers::watch().context("signals cannot be waited for")?;
    let source = Source::find(args.plan.as_deref());
    complain(&format!("using {}", source.describe()));
    let exe = own_path()?;
    let resolved = resolve(&source, &exe)?;
    let Some(cluster) = &resolved.cluster else {
        bail!(
            "this plan names no inventory, so there is no cluster to look at (hint: `verify weights` looks at local replicas)"
        );
    };
    for line in programs(cluster) {
        complain(&line);
    }
    let nodes = Nodes::new(cluster, &exe)?;
    let look = nodes.look(&format!("attest check, process {}", std::process::id()));
    let mut findings = look.findings;
    let weights = match args.no_weights {
        true => None,
        false => Some(rehash(&nodes, &resolved.manifests, &RunOf::default())?),
    };
    if let Some(survey) = &weights {
        // What kept a node from being looked at is said once.
        let new = survey.findings.iter().filter(|f| !findings.contains(f));
        let new: Vec<Finding> = new.cloned().collect();
        findings.extend(new);
    }
    let good = findings.iter().all(|f| f.severity < Severity::Error)
        && look.nodes.len() == cluster.inventory.replicas().len()
        && weights.as_ref().is_none_or(|w| {
            w.replicas
                .iter()
                .all(|r| r.integrity == Integrity::Verified)
        });
    let text = match args.format {
        Format::Human => human(cluster, &look.nodes, &findings, weights.as_ref(), good),
        Format::Json => {
            let each = look.nodes.into_iter().map(|(name, node)| {
                let (facts, clock) = (node.facts, node.clock);
                (name, NodeAnswer { facts, clock })
            });
            let answer = Answer {
                nodes: each.collect(),
                findings,
                weights,
                good,
            };
            let mut text = String::from_utf8(runseal::json::canonical(&answer))?;
            text.push('\n');
            text
        }
    };
    print(&text)?;
    Ok(ExitCode::from(u8::from(!good)))
}

/// Who starts what: said before it happens.
fn programs(cluster: &ClusterPlan) -> Vec<String> {
    let each = cluster.inventory.replicas().iter();
    each.filter_map(|r| match &r.transport {
        Transport::Local => None,
        Transport::Ssh(_) => {
            let ssh = cluster.inventory.ssh().unwrap_or("ssh");
            Some(format!("starting {ssh} for {}", r.name))
        }
        Transport::Command(c) => Some(format!(
            "starting {} for {}",
            shell_line(&c.command[..1]),
            r.name
        )),
    })
    .collect()
}

fn human(
    cluster: &ClusterPlan,
    nodes: &BTreeMap<String, Node>,
    findings: &[Finding],
    weights: Option<&Survey>,
    good: bool,
) -> String {
    let mut out = String::new();
    for replica in cluster.inventory.replicas() {
        let rank = replica
            .rank()
            .map_or(String::new(), |n| format!(" (rank {n})"));
        let said = match nodes.get(&replica.name) {
            Some(node) => describe(node),
            None => "not looked at".to_owned(),
        };
        out.push_str(&format!("{}{rank}  {said}\n", replica.name));
    }
    for r in weights.iter().flat_map(|w| &w.replicas) {
        let state = match &r.integrity {
            Integrity::Verified => "verified".to_owned(),
            Integrity::Mismatch => "MISMATCH".to_owned(),
            Integrity::NotChecked { reason } => format!("not checked: {reason}"),
        };
        out.push_str(&format!("{}  {}: {state}\n", r.name, r.role));
    }
    for f in findings {
        let mark = match f.severity {
            Severity::Error => "",
            Severity::Note => "note: ",
        };
        out.push_str(&format!("{mark}{}  {}: {}", f.code, f.subject, f.detail));
        if let (Some(expected), Some(found)) = (&f.expected, &f.found) {
            out.push_str(&format!(" (expected {expected}, found {found})"));
        }
        out.push('\n');
    }
    if weights.is_none() {
        out.push_str("weights not looked at (--no-weights)\n");
    }
    out.push_str(if good {
        "ready\n"
    } else {
        "NOT READY; `verify explain CODE` says more\n"
    });
    out
}

fn describe(node: &Node) -> String {
    let facts = &node.facts;
    let mut parts = Vec::new();
    match facts.gpu() {
        Some(gpu) => {
            parts.push(
                gpu.name
                    .clone()
                    .unwrap_or("a GPU without a name".to_owned()),
            );
            parts.extend(gpu.driver.as_ref().map(|d| format!("driver {d}")));
        }
        None => parts.push("no GPU that its driver would tell of".to_owned()),
    }
    parts.extend(facts.dgx_version.as_ref().map(|v| format!("DGX OS {v}")));
    parts.extend(facts.kernel.as_ref().map(|k| format!("kernel {k}")));
    parts.extend(
        facts
            .memory
            .available
            .map(|b| format!("{} MiB available", b >> 20)),
    );
    parts.extend(
        node.clock
            .map(|c| format!("clock {:+} us (to {} us)", c.offset_us, c.error_us)),
    );
    parts.join(", ")
}

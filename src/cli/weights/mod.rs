//! `verify weights`: rehash every file of a checkpoint on every replica.
//!
//! The arguments are resolved to targets and a manifest first; whatever goes
//! wrong there is "could not run". From then on nothing is an error any more,
//! only findings.

mod agent;
mod human;
mod oms;
mod options;
mod outside;
mod progress;
mod remote;
mod resolve;
mod saved;

use std::collections::BTreeMap;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use anyhow::bail;
use clap::ValueEnum;
use runseal::relpath::RelPath;
use runseal::weights::{Algorithm, ListFormat, Pace, Role, Survey, Verdict};

use super::output::{Paint, print, print_json};
use super::{Answer, Format};
use resolve::AskedBinding;

/// Rehash a checkpoint on every replica and compare it with its manifest
///
/// Without PATH, the replicas and the manifest are those of ./cluster.toml. With
/// PATH, that is the one replica: a folder, a hub cache (models--ORG--NAME) or one
/// of its snapshots, or a .gguf file. --manifest says what it should hold; without
/// one, layout and structure are looked at and nothing is verified. Nothing outside
/// the folders is opened; links are followed only from a snapshot to a blob of the
/// same cache. No socket is opened either: replicas on other machines are reached by
/// the system's ssh or the inventory's command, and stderr says which is started for
/// whom.
#[derive(clap::Args)]
pub struct Args {
    /// One replica, instead of an inventory
    #[arg(conflicts_with = "inventory")]
    path: Option<PathBuf>,
    /// The manifest, an OMS bundle, or a checkout with git-lfs pointers; by default the
    /// one that the inventory names
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Read the manifest in this format; needed for plain b3sum lists, which look
    /// like those of sha256sum
    #[arg(long, value_enum, value_name = "FORMAT")]
    manifest_format: Option<ManifestFormat>,
    /// Assert that exactly N distinct replicas are rehashed and all agree
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    replicas: Option<u16>,
    /// The inventory [default: cluster.toml]
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// The revision to look at in a hub cache, a commit or a ref; a commit is also
    /// what a manifest that names no revision is taken to be of
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// Show that the manifest belongs to its revision, from the repository's commit
    /// and tree objects in this folder
    #[arg(long, value_name = "DIR")]
    git_objects: Option<PathBuf>,
    /// Take this path, and all below it, as not part of the checkpoint; shown in
    /// the report. May be given several times
    #[arg(long, value_name = "PATH", value_parser = rel_path)]
    ignore: Vec<RelPath>,
    /// Which digests to compute; the manifest's root commits to SHA-256
    #[arg(long, value_enum, default_value = "sha256")]
    algorithm: AlgorithmArg,
    #[command(flatten)]
    oms: oms::OmsArgs,
    /// Hash on so many threads, instead of all cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Read at most so many megabytes (10^6 bytes) a second, on each machine, so that a
    /// node that serves can be checked
    #[arg(long, value_name = "MB/S", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    io_limit: Option<u64>,
    #[command(flatten)]
    remote: options::Options,
    /// How to print
    #[arg(long, value_enum, default_value = "human")]
    format: Format,
}

fn rel_path(text: &str) -> Result<RelPath, String> {
    RelPath::typed(text).map_err(|e| e.to_string())
}

#[derive(Clone, Copy, ValueEnum)]
enum ManifestFormat {
    /// Our own JSON
    Runseal,
    Sha256sum,
    /// `sha256sum --tag`, `b3sum --tag`
    BsdTag,
    B3sum,
    Hashdeep,
    /// JSON of a hub's tree listing
    HfTree,
    /// OpenSSF Model Signing bundle
    Oms,
}

impl From<ManifestFormat> for ListFormat {
    fn from(arg: ManifestFormat) -> Self {
        match arg {
            ManifestFormat::Runseal => Self::Runseal,
            ManifestFormat::Sha256sum => Self::Sha256sum,
            ManifestFormat::BsdTag => Self::BsdTag,
            ManifestFormat::B3sum => Self::B3sum,
            ManifestFormat::Hashdeep => Self::Hashdeep,
            ManifestFormat::HfTree => Self::HfTree,
            ManifestFormat::Oms => Self::Oms,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum AlgorithmArg {
    Sha256,
    Blake3,
    Both,
}

impl From<AlgorithmArg> for Algorithm {
    fn from(arg: AlgorithmArg) -> Self {
        match arg {
            AlgorithmArg::Sha256 => Self::Sha256,
            AlgorithmArg::Blake3 => Self::Blake3,
            AlgorithmArg::Both => Self::Both,
        }
    }
}

pub fn run(args: Args) -> anyhow::Result<Answer> {
    if args.remote.agent {
        return agent::run(args.remote.agent_key()?);
    }
    if let (Some(path), Some(bundle)) = (&args.path, &args.oms.oms) {
        return oms::run(path, bundle, &args);
    }
    let resolved = match resolve::resolve(&args)? {
        Ok(resolved) => resolved,
        Err(refused) => {
            let manifest_paths = BTreeMap::from([(Role::Target, refused.path)]);
            let about = human::About {
                manifest_paths: &manifest_paths,
                manifests: &BTreeMap::new(),
                algorithm: Algorithm::Sha256,
            };
            return report(&refused.survey, &about, args.format);
        }
    };
    let algorithm = Algorithm::from(args.algorithm);
    let manifests = &resolved.replicas.manifests;
    let mut entries = manifests.values().flat_map(|m| m.entries());
    if !algorithm.sha256() && entries.any(|f| f.blake3.is_none()) {
        bail!("the manifest has no BLAKE3 digests to compare with (hint: --algorithm sha256)");
    }
    let asserted = args.replicas.map(usize::from);
    let survey = if args.remote.reports.is_empty() {
        remote::survey(
            &resolved.replicas,
            &args.remote,
            algorithm,
            pace(&args),
            asserted,
        )?
    } else {
        saved::survey(&args.remote, &resolved.replicas, asserted)?
    };
    let survey = match &resolved.signed {
        Some(signed) => survey.with_signature(signed.signer.clone()),
        None => survey,
    };
    let survey = match &resolved.binding {
        AskedBinding::NotAsked => survey,
        AskedBinding::Unreadable(why) => survey.with_unbound(why.clone()),
        AskedBinding::Read(bound) => survey.with_bound(bound),
    };
    let about = human::About {
        manifest_paths: &resolved.manifest_paths,
        manifests,
        algorithm,
    };
    report(&survey, &about, args.format)
}

fn report(survey: &Survey, about: &human::About, format: Format) -> anyhow::Result<Answer> {
    match format {
        Format::Json => print_json(survey)?,
        Format::Human => {
            print(&human::text(survey, about, &Paint::for_stdout()))?;
        }
    }
    Ok(match survey.verdict {
        Verdict::Verified => Answer::Passed,
        Verdict::NotVerified => Answer::Findings,
    })
}

fn pace(args: &Args) -> Pace {
    let bytes_per_second = args.io_limit.map(|mb| mb.saturating_mul(1_000_000));
    Pace {
        jobs: args.jobs.map(usize::from).and_then(NonZeroUsize::new),
        bytes_per_second: bytes_per_second.and_then(NonZeroU64::new),
    }
}

//! `verify weights`: rehash every file of a checkpoint on every replica.
//!
//! The arguments are resolved to targets and a manifest first; whatever goes
//! wrong there is "could not run". From then on nothing is an error any more,
//! only findings.

mod human;
mod oms;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::ValueEnum;
use runseal::relpath::{RelPath, escape};
use runseal::weights::git::{Bound, ObjectDir, Revision};
use runseal::weights::{
    self, Algorithm, Binding, GitId, Inventory, ListFormat, Listing, ReportContext, Source, Survey,
    Target, Verdict, pointer_tree,
};

use super::output::{Meter, Paint, print, print_json};
use super::{Answer, Format, now, read_input};

const MAX_MANIFEST: u64 = 1 << 28;
const MAX_INVENTORY: u64 = 1 << 24;

/// Rehash a checkpoint on every replica and compare it with its manifest
///
/// Without PATH, the replicas and the manifest are those of ./cluster.toml. With
/// PATH, that is the one replica: a folder, a hub cache (models--ORG--NAME) or one
/// of its snapshots, or a .gguf file. --manifest says what it should hold; without
/// one, layout and structure are looked at and nothing is verified. Nothing outside
/// the folders is opened; links are followed only from a snapshot to a blob of the
/// same cache.
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
    /// How to print
    #[arg(long, value_enum, default_value = "human")]
    format: Format,
}

fn rel_path(text: &str) -> Result<RelPath, String> {
    RelPath::from_bytes(text.trim_end_matches('/').as_bytes()).map_err(|e| e.to_string())
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

/// What the arguments come to.
struct Resolved {
    replicas: Vec<(String, PathBuf)>,
    manifest_path: Option<PathBuf>,
    manifest: Listing,
    binding: AskedBinding,
    signed: Option<oms::Signed>,
}

/// What is known of the link to a revision before any replica was looked at.
enum AskedBinding {
    NotAsked,
    /// The objects do not give the revision.
    Unreadable(String),
    Read(Bound),
}

pub fn run(args: Args) -> anyhow::Result<Answer> {
    if let (Some(path), Some(bundle)) = (&args.path, &args.oms.oms) {
        let (key, revision) = (args.oms.key.as_deref(), args.revision.as_deref());
        return oms::run(path, bundle, key, revision, &args.ignore, args.format);
    }
    let resolved = match resolve(&args)? {
        Ok(resolved) => resolved,
        Err((path, refused)) => {
            return report(&refused, path.as_deref(), 0, Algorithm::Sha256, args.format);
        }
    };
    let algorithm = Algorithm::from(args.algorithm);
    let mut entries = resolved.manifest.entries();
    if !algorithm.sha256() && entries.any(|f| f.blake3.is_none()) {
        bail!("the manifest has no BLAKE3 digests to compare with (hint: --algorithm sha256)");
    }
    let survey = look(&resolved, &args, algorithm)?;
    let path = resolved.manifest_path.as_deref();
    let bytes = resolved.manifest.total_size();
    report(&survey, path, bytes, algorithm, args.format)
}

fn report(
    survey: &Survey,
    manifest: Option<&Path>,
    bytes: u64,
    algorithm: Algorithm,
    format: Format,
) -> anyhow::Result<Answer> {
    match format {
        Format::Json => print_json(survey)?,
        Format::Human => {
            let text = human::text(survey, manifest, bytes, algorithm, &Paint::for_stdout());
            print(&text)?;
        }
    }
    Ok(match survey.verdict {
        Verdict::Verified => Answer::Passed,
        Verdict::NotVerified => Answer::Findings,
    })
}

/// The path of a manifest that was refused, and the answer to it.
type Refused = (Option<PathBuf>, Survey);

fn resolve(args: &Args) -> anyhow::Result<Result<Resolved, Refused>> {
    let (replicas, manifest_path) = match &args.path {
        Some(path) => (vec![(name_of(path), path.clone())], args.manifest.clone()),
        None => {
            let (replicas, manifest) = from_inventory(args)?;
            (replicas, Some(manifest))
        }
    };
    let read = match &manifest_path {
        Some(path) => read_manifest(path, args).with_context(|| path.display().to_string())?,
        None => Ok((Listing::absent(), None)),
    };
    let (mut manifest, signed) = match read {
        Ok(read) => read,
        Err(refused) => return Ok(Err((manifest_path, refused))),
    };
    if args.oms.key.is_some() && signed.is_none() {
        bail!(
            "--key is for OMS bundles, and the manifest is none (hint: --manifest BUNDLE or --oms BUNDLE)"
        );
    }
    let commit = args
        .revision
        .as_deref()
        .filter(|r| r.parse::<GitId>().is_ok());
    if manifest.revision().is_none() && commit.is_some() {
        manifest = manifest.with_source(Some(Source {
            repository: None,
            revision: commit.map(str::to_owned),
            binding: Binding::Asserted,
        }));
    }
    manifest = manifest.with_ignore(args.ignore.iter().cloned())?;
    let binding = bind(args, &manifest)?;
    if let AskedBinding::Read(bound) = &binding {
        manifest = bound.listing.clone();
    }
    Ok(Ok(Resolved {
        replicas,
        manifest_path,
        manifest,
        binding,
        signed,
    }))
}

/// A listing, and who signed it where the format is a signed one; or the answer to
/// one that cannot be relied on.
type ReadManifest = Result<(Listing, Option<oms::Signed>), Survey>;

fn read_manifest(path: &Path, args: &Args) -> anyhow::Result<ReadManifest> {
    let told = args.manifest_format;
    if path.is_dir() {
        return Ok(Ok((pointer_tree(path)?, None)));
    }
    let bytes = read_input(path, "the manifest", MAX_MANIFEST)?;
    if oms::is_manifest(&bytes, told) {
        return oms::read_manifest(&bytes, args.oms.key.as_deref());
    }
    // The only pair of formats that the bytes do not tell apart.
    let name = path.file_name().map(|n| n.to_string_lossy().to_lowercase());
    let blake3 =
        name.is_some_and(|n| n.contains("b3sum") || n.contains("blake3") || n.ends_with(".b3"));
    let told = told.map(ListFormat::from);
    let listing = Listing::read(&bytes, told)?;
    if blake3 && told.is_none() && listing.format() == ListFormat::Sha256sum {
        return Ok(Ok((Listing::read(&bytes, Some(ListFormat::B3sum))?, None)));
    }
    Ok(Ok((listing, None)))
}

fn bind(args: &Args, manifest: &Listing) -> anyhow::Result<AskedBinding> {
    let Some(dir) = &args.git_objects else {
        return Ok(AskedBinding::NotAsked);
    };
    let Some(revision) = manifest.revision() else {
        bail!("the manifest names no revision to bind to (hint: give the commit with --revision)");
    };
    if manifest.is_absent() {
        bail!(
            "--git-objects binds a manifest to its revision, and there is none (hint: --manifest)"
        );
    }
    if !dir.is_dir() {
        bail!("--git-objects {} is not a folder", dir.display());
    }
    let commit: GitId = match revision.parse() {
        Ok(commit) => commit,
        Err(_) => bail!("the revision {revision:?} is not a full commit id"),
    };
    Ok(match Revision::read(&ObjectDir::new(dir), commit) {
        Ok(revision) => AskedBinding::Read(revision.bind(manifest.clone())),
        Err(e) => AskedBinding::Unreadable(e.to_string()),
    })
}

fn from_inventory(args: &Args) -> anyhow::Result<(Vec<(String, PathBuf)>, PathBuf)> {
    let path = match &args.inventory {
        Some(path) => path.clone(),
        None if Path::new("cluster.toml").exists() => PathBuf::from("cluster.toml"),
        None => bail!(
            "there is no cluster.toml here (hint: `attest run` writes one; or name an inventory with \
             --inventory, or give one folder and its --manifest)"
        ),
    };
    let bytes = read_input(&path, "the inventory", MAX_INVENTORY)?;
    let text = String::from_utf8(bytes)
        .ok()
        .with_context(|| format!("{} is not UTF-8 text", path.display()))?;
    let inventory = Inventory::parse(&text).with_context(|| format!("{}", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let replicas = inventory.replicas().iter();
    let replicas = replicas.map(|r| (r.name.clone(), folder.join(&r.path)));
    let manifest = args.manifest.clone();
    let manifest = manifest.unwrap_or_else(|| inventory.manifest_path(folder));
    Ok((replicas.collect(), manifest))
}

/// A folder's own name stands for a replica that no inventory names.
fn name_of(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match absolute.file_name() {
        Some(name) => escape(name.as_bytes()),
        None => "replica".to_owned(),
    }
}

fn look(resolved: &Resolved, args: &Args, algorithm: Algorithm) -> anyhow::Result<Survey> {
    let boot_id = weights::boot_id().context("could not read this machine's boot id")?;
    let meter = Meter::new();
    let started = now();
    let targets = resolved.replicas.iter().map(|(name, path)| Target {
        context: ReportContext {
            replica: name.clone(),
            role: "target".to_owned(),
            run_id: None,
            nonce_hash: None,
            plan_digest: None,
            boot_id: boot_id.clone(),
            started: started.clone(),
            finished: started.clone(),
        },
        path,
        revision: args.revision.as_deref(),
        progress: &meter,
    });
    let asserted = args.replicas.map(usize::from);
    let manifest = &resolved.manifest;
    let survey = weights::survey(targets.collect(), manifest, algorithm, asserted, &now);
    let survey = match &resolved.signed {
        Some(signed) => survey.with_signature(signed.signer.clone()),
        None => survey,
    };
    Ok(match &resolved.binding {
        AskedBinding::NotAsked => survey,
        AskedBinding::Unreadable(why) => survey.with_unbound(why.clone()),
        AskedBinding::Read(bound) => survey.with_bound(bound),
    })
}

//! `attest pin`: the pins that a plan refers to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Subcommand, ValueEnum};
use runseal::codes::Code;
use runseal::durable::{self, WriteOptions};
use runseal::finding::{Finding, Severity};
use runseal::relpath::RelPath;
use runseal::weights::git::{ObjectDir, Revision};
use runseal::weights::{
    Algorithm, Binding, GitId, Layout, LayoutKind, Listing, MAX_MANIFEST, Manifest, NoProgress,
    Place, ReportContext, Source, Wanted, What, scan_place,
};

use super::{complain, print};

mod dataset;

/// Pin an input, so that a plan can name it by digest
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Weights(Weights),
    Dataset(dataset::Dataset),
}

/// Hash a checkpoint with SHA-256 and BLAKE3 and write its manifest
///
/// PATH is a folder, a hub cache (models--ORG--NAME) or one of its snapshots, or a
/// .gguf file. A checkpoint with findings is not pinned: exit code 1. A `.git` and a
/// `.cache/huggingface` folder are declared as not part of it.
#[derive(clap::Args)]
struct Weights {
    /// The checkpoint
    path: PathBuf,
    /// How to write the manifest; SHA256SUMS lines lose sizes, ignored paths and
    /// the revision
    #[arg(long, value_enum, default_value = "json")]
    manifest_format: ManifestFormat,
    /// The file to write; without it the manifest goes to stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace a file that is there
    #[arg(long, requires = "output")]
    force: bool,
    /// The revision: chooses a cache's snapshot, and is recorded when it is a commit
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// The repository to record, for example ORG/NAME
    #[arg(long, value_name = "NAME")]
    repository: Option<String>,
    /// Show that the files are those of the revision, from the repository's commit
    /// and tree objects in this folder
    #[arg(long, value_name = "DIR")]
    git_objects: Option<PathBuf>,
    /// Declare this path, and all below it, as not part of the checkpoint. May be
    /// given several times
    #[arg(long, value_name = "PATH", value_parser = rel_path)]
    ignore: Vec<RelPath>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ManifestFormat {
    /// runseal.manifest/v1
    Json,
    /// As `sha256sum` writes it
    Sha256sums,
}

fn rel_path(text: &str) -> Result<RelPath, String> {
    RelPath::typed(text).map_err(|e| e.to_string())
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Weights(args) => weights(&args),
        Command::Dataset(args) => dataset::run(&args),
    }
}

fn weights(args: &Weights) -> anyhow::Result<ExitCode> {
    let shown = args.path.display();
    let wanted = Wanted {
        asked: args.revision.as_deref(),
        pinned: None,
    };
    let place = Place::locate(&args.path, wanted).with_context(|| format!("{shown}"))?;
    let layout = place.layout().clone();
    let ignore = ignored(args, &layout)?;
    if let Some(output) = &args.output {
        refuse_inside(output, &args.path, &ignore)?;
    }
    let commit = commit(args, &layout)?;
    let revision = match (&args.git_objects, &commit) {
        (None, _) => None,
        (Some(_), None) => {
            bail!("no revision is known to bind to (hint: give the commit with --revision)")
        }
        (Some(dir), Some(commit)) => Some(Revision::read(&ObjectDir::new(dir), *commit)?),
    };
    let what = What {
        ignore,
        git_blobs: revision.iter().flat_map(|r| r.blobs.clone()).collect(),
    };
    let scan = scan_place(place, what, Algorithm::Both, &NoProgress)?;

    let source = Source {
        repository: args.repository.clone().or(layout.repository.clone()),
        revision: commit.map(|c| c.to_string()),
        binding: match &revision {
            Some(_) => Binding::GitObjects,
            None => Binding::Asserted,
        },
    };
    let known = source.repository.is_some() || source.revision.is_some();
    let made = Manifest::from_scan(&scan, known.then_some(source));
    // Judged before it is written: with the revision's blob ids where they are at
    // hand, else without any expectation.
    let mut findings = Vec::new();
    let expected = match (&revision, &made) {
        (Some(revision), Ok(manifest)) => {
            let bound = revision.bind(AsRef::<Listing>::as_ref(manifest).clone());
            findings.extend(bound.findings);
            bound.listing
        }
        _ => Listing::absent().with_ignore(scan.ignore.iter().cloned())?,
    };
    findings.extend(scan.into_report(&expected, context()).findings);
    findings.retain(|f| f.code != Code::NotCompared && f.code != Code::IgnoredByManifest);
    findings.iter().for_each(say);
    if findings.iter().any(|f| f.severity == Severity::Error) {
        complain(&format!("{shown} was not pinned"));
        return Ok(ExitCode::from(1));
    }
    let manifest = made.with_context(|| format!("{shown}"))?;
    write(args, &manifest, &layout)?;
    Ok(ExitCode::SUCCESS)
}

fn write(args: &Weights, manifest: &Manifest, layout: &Layout) -> anyhow::Result<()> {
    let lines = args.manifest_format == ManifestFormat::Sha256sums;
    let bytes = if lines {
        manifest.to_sha256sums()
    } else {
        manifest.to_bytes()
    };
    if bytes.len() as u64 > MAX_MANIFEST {
        bail!(
            "the manifest of {} files has {} bytes, and no reader takes more than {MAX_MANIFEST} (hint: is it the right folder?)",
            manifest.file_count(),
            bytes.len()
        );
    }
    let listing: &Listing = manifest.as_ref();
    let mut summary = format!(
        "layout    {}\nfiles     {}, {} bytes\nroot      {}\n",
        layout.kind.in_words(),
        manifest.file_count(),
        manifest.total_size(),
        manifest.root()
    );
    if let Some(source) = manifest.source() {
        let how = match source.binding {
            Binding::GitObjects => "shown from its git objects",
            _ => "asserted, not shown",
        };
        if let Some(revision) = &source.revision {
            summary.push_str(&format!("revision  {revision}: {how}\n"));
        }
    }
    for path in listing.ignore() {
        summary.push_str(&format!("ignored   {path}: declared as not part of it\n"));
    }
    if lines && (listing.source().is_some() || !listing.ignore().is_empty()) {
        summary.push_str("note      SHA256SUMS lines cannot hold the revision or ignored paths\n");
    }
    put(args.output.as_deref(), args.force, &bytes, &summary)
}

/// The manifest to its file and the summary to stdout; or, without a file, the
/// manifest to stdout.
fn put(output: Option<&Path>, force: bool, bytes: &[u8], summary: &str) -> anyhow::Result<()> {
    match output {
        Some(output) => {
            let options = WriteOptions {
                replace: force,
                private: false,
            };
            durable::write(output, bytes, options)?;
            print(summary)
        }
        None => {
            complain(summary.trim_end());
            use std::io::Write;
            let mut out = std::io::stdout().lock();
            match out.write_all(bytes).and_then(|()| out.flush()) {
                // Half a manifest would be worse than none.
                Err(e) => Err(e).context("could not write the manifest to stdout"),
                Ok(()) => Ok(()),
            }
        }
    }
}

/// What is declared as not part of the checkpoint: as asked, and the folders that
/// git and the hub client keep for themselves.
fn ignored(args: &Weights, layout: &Layout) -> anyhow::Result<BTreeSet<RelPath>> {
    let mut out: BTreeSet<RelPath> = args.ignore.iter().cloned().collect();
    if layout.kind == LayoutKind::HfLocalDir {
        out.insert(RelPath::parse(".cache/huggingface")?);
    }
    let git = args.path.join(".git");
    if git.symlink_metadata().is_ok_and(|m| m.is_dir()) {
        out.insert(RelPath::parse(".git")?);
    }
    Ok(out)
}

/// A manifest inside the folder that it describes is one file too many there.
fn refuse_inside(output: &Path, root: &Path, ignore: &BTreeSet<RelPath>) -> anyhow::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let parent = output.parent().filter(|p| !p.as_os_str().is_empty());
    let (Ok(parent), Ok(root)) = (
        parent.unwrap_or(Path::new(".")).canonicalize(),
        root.canonicalize(),
    ) else {
        return Ok(());
    };
    let Ok(below) = parent.strip_prefix(&root) else {
        return Ok(());
    };
    let path = below.join(output.file_name().unwrap_or_default());
    let path = RelPath::from_bytes(path.as_os_str().as_bytes())?;
    let listing = Listing::absent().with_ignore(ignore.iter().cloned())?;
    if !root.is_dir() || listing.ignores(&path) {
        return Ok(());
    }
    bail!(
        "{} lies inside the checkpoint and would be an extra file there (hint: write it elsewhere, or --ignore {path})",
        output.display()
    );
}

/// The commit that the layout, the download metadata or the caller gives.
fn commit(args: &Weights, layout: &Layout) -> anyhow::Result<Option<GitId>> {
    let asked: Option<GitId> = args.revision.as_deref().and_then(|r| r.parse().ok());
    let claimed: BTreeSet<_> = layout
        .claims
        .iter()
        .filter_map(|c| c.commit.as_deref())
        .collect();
    let found = match (&layout.revision, claimed.len()) {
        (Some(revision), _) => revision.parse().ok(),
        (None, 1) => claimed.first().and_then(|c| c.parse().ok()),
        _ => None,
    };
    match (asked, found) {
        (Some(asked), Some(found)) if asked != found => bail!(
            "--revision {asked}, but the files are said to be of {found} (hint: leave --revision out, or fetch the right files)"
        ),
        (asked, found) => Ok(asked.or(found)),
    }
}

fn context() -> ReportContext {
    ReportContext {
        replica: "checkpoint".to_owned(),
        role: "target".to_owned(),
        run_id: None,
        nonce_hash: None,
        plan_digest: None,
        boot_id: String::new(),
        started: String::new(),
        finished: String::new(),
    }
}

fn say(finding: &Finding) {
    complain(&format!(
        "{} {}: {}",
        finding.code, finding.subject, finding.detail
    ));
    if let (Some(expected), Some(found)) = (&finding.expected, &finding.found) {
        complain(&format!("    expected {expected}\n    found    {found}"));
    }
}

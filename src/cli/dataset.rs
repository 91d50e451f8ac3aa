//! `verify dataset`: the files of a data set against their pinned digests.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use runseal::digest::Sha256Digest;
use runseal::finding::{Finding, Severity};
use runseal::relpath::RelPath;
use runseal::weights::{
    Algorithm, Entry, Integrity, ListFormat, Listing, NoProgress, Place, ReplicaReport,
    ReportContext, derive_integrity, rehash_place,
};
use serde_json::json;

use super::output::{Paint, count, plain, print, print_json, thousands};
use super::{Answer, Format, read_input};

/// Compare a data set, one file or a folder, with its pinned digests
///
/// The files are hashed and reported as those of a checkpoint are: `verify explain`
/// knows the findings. `attest pin dataset` writes the manifest; a suite pins the
/// SHA-256 of its cases.jsonl, which --sha256 takes.
#[derive(clap::Args)]
pub struct Args {
    /// The file or folder
    path: PathBuf,
    /// What it should hold: a manifest, or lines of sha256sum
    #[arg(long, value_name = "FILE", required_unless_present = "sha256")]
    manifest: Option<PathBuf>,
    /// The SHA-256 that the one file should have
    #[arg(long, value_name = "HEX", conflicts_with = "manifest")]
    sha256: Option<Sha256Digest>,
    /// How to print
    #[arg(long, value_enum, default_value = "human")]
    format: Format,
}

/// Largest manifest file.
const MAX_MANIFEST: u64 = 256 << 20;

pub fn run(args: Args) -> anyhow::Result<Answer> {
    let shown = plain(&args.path.display().to_string());
    let listing = listing(&args)?;
    let place = Place::dataset(&args.path).with_context(|| shown.clone())?;
    let scan = rehash_place(place, &listing, Algorithm::Sha256, &NoProgress)
        .with_context(|| shown.clone())?;
    let report = scan.into_report(&listing, context());
    let integrity = derive_integrity(&listing, &report);
    let bad = |f: &Finding| f.severity == Severity::Error;
    // Both are asked: neither a verdict without findings nor the reverse will do.
    let good = integrity == Integrity::Verified && !report.findings.iter().any(bad);
    match args.format {
        Format::Json => print_json(&json!({
            "pinned_root": listing.root(),
            "observed_root": report.observed_root,
            "files": report.files,
            "findings": report.findings,
            "integrity": integrity,
            "verdict": if good { "verified" } else { "not_verified" },
        }))?,
        Format::Human => print(&text(&shown, &listing, &report, good))?,
    }
    Ok(match good {
        true => Answer::Passed,
        false => Answer::Findings,
    })
}

fn listing(args: &Args) -> anyhow::Result<Listing> {
    if let Some(path) = &args.manifest {
        let bytes = read_input(path, "manifest", MAX_MANIFEST)?;
        return Listing::read(&bytes, None).with_context(|| plain(&path.display().to_string()));
    }
    let Some(sha256) = args.sha256 else {
        bail!("there is nothing to compare with (hint: --manifest or --sha256)");
    };
    if args.path.is_dir() {
        bail!("--sha256 is of one file, and the path is a folder (hint: --manifest)");
    }
    let entry = Entry {
        sha256: Some(sha256),
        ..Entry::of(name_of(&args.path)?)
    };
    Ok(Listing::new(ListFormat::Sha256sum, [entry])?)
}

fn name_of(path: &Path) -> anyhow::Result<RelPath> {
    use std::os::unix::ffi::OsStrExt;
    // As the place is found: the path itself may be a link.
    let path = path
        .canonicalize()
        .with_context(|| plain(&path.display().to_string()))?;
    Ok(RelPath::from_bytes(
        path.file_name().unwrap_or_default().as_bytes(),
    )?)
}

fn context() -> ReportContext {
    ReportContext {
        replica: "dataset".to_owned(),
        role: "target".to_owned(),
        run_id: None,
        nonce_hash: None,
        plan_digest: None,
        boot_id: String::new(),
        started: String::new(),
        finished: String::new(),
    }
}

fn text(shown: &str, listing: &Listing, report: &ReplicaReport, good: bool) -> String {
    let paint = Paint::for_stdout();
    let mut out = format!(
        "dataset   {shown}: {}, {} bytes pinned\n",
        count(listing.file_count(), "file"),
        thousands(listing.total_size())
    );
    if let Some(root) = listing.root() {
        out.push_str(&format!("root      {root}\n"));
    }
    for f in &report.findings {
        out.push_str(&format!(
            "\n{} {}\n    {}\n",
            f.code,
            plain(&f.subject),
            plain(&f.detail)
        ));
        if let (Some(expected), Some(found)) = (&f.expected, &f.found) {
            out.push_str(&format!(
                "    expected {}\n    found    {}\n",
                plain(expected),
                plain(found)
            ));
        }
    }
    out.push('\n');
    out.push_str(&match good {
        true => paint.good("verified: every file is the pinned one, and nothing else is there"),
        false => paint.bad("NOT verified"),
    });
    out.push('\n');
    out
}

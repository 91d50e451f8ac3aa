//! `attest pin dataset`: the digests of one file or of a folder.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use runseal::codes::Code;
use runseal::finding::Severity;
use runseal::weights::{Algorithm, Listing, Manifest, NoProgress, Place, What, scan_place};

use super::{complain, context, put, refuse_inside, say};

/// Hash a data set, one file or a folder, and write its manifest
///
/// `verify dataset` reads it. For one file the digest that a suite pins as its
/// dataset is printed too. A data set with findings is not pinned: exit code 1.
#[derive(clap::Args)]
pub struct Dataset {
    /// The file or folder
    path: PathBuf,
    /// The file to write; without it the manifest goes to stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace a file that is there
    #[arg(long, requires = "output")]
    force: bool,
}

/// Runs the subcommand.
pub fn run(args: &Dataset) -> anyhow::Result<ExitCode> {
    let shown = args.path.display().to_string();
    if let Some(output) = &args.output {
        refuse_inside(output, &args.path, &BTreeSet::new())?;
        if let (Ok(a), Ok(b)) = (output.canonicalize(), args.path.canonicalize())
            && a == b
        {
            bail!("the manifest would replace the data set (hint: write it elsewhere)");
        }
    }
    let place = Place::dataset(&args.path).with_context(|| shown.clone())?;
    let scan = scan_place(place, What::default(), Algorithm::Sha256, &NoProgress)?;
    let made = Manifest::from_scan(&scan, None);
    let mut findings = scan.into_report(&Listing::absent(), context()).findings;
    // There is nothing yet to compare with.
    findings.retain(|f| f.code != Code::NotCompared);
    findings.iter().for_each(say);
    if findings.iter().any(|f| f.severity == Severity::Error) {
        complain(&format!("{shown} was not pinned"));
        return Ok(ExitCode::from(1));
    }
    let manifest = made.with_context(|| shown.clone())?;
    let mut summary = format!(
        "files     {}, {} bytes\nroot      {}\n",
        manifest.file_count(),
        manifest.total_size(),
        manifest.root()
    );
    let mut files = manifest.files();
    if !args.path.is_dir()
        && let Some(file) = files.next()
    {
        summary.push_str(&format!("sha256    {}\n", file.sha256.hex()));
    }
    put(
        args.output.as_deref(),
        args.force,
        &manifest.to_bytes(),
        &summary,
    )?;
    Ok(ExitCode::SUCCESS)
}

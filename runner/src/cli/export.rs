//! `attest export`: a sealed sweep in the forms that others read.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use runseal::audit::{Reader, Verdict, audit};
use runseal::bundle::read::read;
use runseal::durable::{self, WriteOptions};
use runseal::export;
use runseal::scorer::child::{ChildLimits, SUBCOMMAND, grade_in_child};
use runseal::scorer::{GradeItem, GradeResult};

use super::{complain, own_path, print};

/// Audit a sealed sweep and write throughput.csv, verified-summary.json and inference.json
///
/// A bundle whose audit finds anything is not exported: exit code 1. The record of
/// schema version 3 has its texts in English and Turkish.
#[derive(clap::Args)]
pub struct Args {
    /// The bundle
    bundle: PathBuf,
    /// The folder to write to; it is made when absent
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Replace files that are there
    #[arg(long)]
    force: bool,
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let shown = args.bundle.display().to_string();
    let exe = own_path()?;
    let grader = |scorer: &[u8], items: &[GradeItem]| -> Result<Vec<GradeResult>, String> {
        grade_in_child(&exe, &[SUBCOMMAND], scorer, items, &ChildLimits::default())
            .map_err(|e| e.to_string())
    };
    let reader = Reader {
        trusted: &[],
        grader: &grader,
        commitment: None,
    };
    let raw = read(&args.bundle).with_context(|| shown.clone())?;
    let report = audit(&shown, &raw, &reader);
    // Whose key it is, is the reader's question; what it says must follow.
    let true_to_itself = matches!(report.verdict, Verdict::Verified | Verdict::SelfConsistent);
    let Some(record) = report.derived.filter(|_| true_to_itself) else {
        for f in &report.findings {
            complain(&format!("{} {:?}: {:?}", f.code, f.subject, f.detail));
        }
        complain(&format!(
            "{shown} was not exported: its audit does not hold"
        ));
        return Ok(ExitCode::from(1));
    };
    let files = export::sweep(&record).with_context(|| shown)?;
    durable::create_dir_all(&args.output)?;
    let options = WriteOptions {
        replace: args.force,
        private: false,
    };
    let mut said = String::new();
    for (name, bytes) in [
        ("throughput.csv", &files.csv),
        ("verified-summary.json", &files.summary),
        ("inference.json", &files.published),
    ] {
        let path = args.output.join(name);
        durable::write(&path, bytes, options)?;
        said.push_str(&format!("wrote {}\n", path.display()));
    }
    print(&said)?;
    Ok(ExitCode::SUCCESS)
}

//! `verify record`: audits bundles.

use std::path::{Path, PathBuf};

use anyhow::Context;
use runseal::audit::report::{Style, human};
use runseal::audit::{AuditReport, Reader, Verdict, audit};
use runseal::bundle::read::read;
use runseal::keys::{PublicKey, load_public};
use runseal::record::limitations::Lang;
use runseal::scorer::child::{ChildLimits, SUBCOMMAND, grade_in_child};
use runseal::scorer::{GradeItem, GradeResult};

use super::{Answer, Format, output};

/// Audit sealed run records: recompute every figure, grade every answer again
#[derive(clap::Args)]
pub struct Args {
    /// Bundle folders, such as evidence/<run-id>
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Public key (PEM) of an operator you trust; may be given several times
    #[arg(long = "trusted-key", value_name = "PEM")]
    trusted_keys: Vec<PathBuf>,
    /// Also require that the run ended this way: completed, failed, aborted, refused
    #[arg(long, value_name = "STATUS")]
    require_status: Option<String>,
    /// Show every check and every limitation
    #[arg(long)]
    full: bool,
    /// Language of the limitations: en or tr
    #[arg(long, default_value = "en", value_parser = lang)]
    lang: Lang,
    /// How to write the report
    #[arg(long, value_enum, default_value = "human")]
    format: Format,
}

fn lang(text: &str) -> Result<Lang, String> {
    match text {
        "en" => Ok(Lang::En),
        "tr" => Ok(Lang::Tr),
        _ => Err("the languages are en and tr".into()),
    }
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<Answer> {
    const STATUSES: [&str; 4] = ["completed", "failed", "aborted", "refused"];
    if let Some(status) = &args.require_status
        && !STATUSES.contains(&status.as_str())
    {
        anyhow::bail!(
            "unknown status {status:?} (hint: one of {})",
            STATUSES.join(", ")
        );
    }
    let trusted: Vec<PublicKey> = args
        .trusted_keys
        .iter()
        .map(|p| load_public(p))
        .collect::<Result<_, _>>()?;
    let exe = std::env::current_exe().context("could not find this program to run the scorer")?;
    let mut passed = true;
    for path in &args.paths {
        let report = audit_path(path, &trusted, &exe)?;
        let status = report.derived.as_ref().map(|r| r.run.status.name());
        let status_ok = args
            .require_status
            .as_deref()
            .is_none_or(|want| status == Some(want));
        passed &= report.verdict == Verdict::Verified && status_ok;
        match args.format {
            Format::Json => output::print_json(&report)?,
            Format::Human => {
                let style = Style {
                    lang: args.lang,
                    full: args.full,
                };
                output::print(&output::plain(&human(&report, style)))?;
                if !status_ok {
                    output::print(&format!(
                        "REQUIRED STATUS NOT MET: the run is {}, not {}.\n",
                        status.unwrap_or("unknown"),
                        args.require_status.as_deref().unwrap_or_default()
                    ))?;
                }
            }
        }
    }
    Ok(if passed {
        Answer::Passed
    } else {
        Answer::Findings
    })
}

fn audit_path(path: &Path, trusted: &[PublicKey], exe: &Path) -> anyhow::Result<AuditReport> {
    let raw = read(path)?;
    let grader = |scorer: &[u8], items: &[GradeItem]| -> Result<Vec<GradeResult>, String> {
        grade_in_child(exe, &[SUBCOMMAND], scorer, items, &ChildLimits::default())
            .map_err(|e| e.to_string())
    };
    let reader = Reader {
        trusted,
        grader: &grader,
    };
    Ok(audit(&path.display().to_string(), &raw, &reader))
}

//! `verify record`: audits bundles.

use std::path::{Path, PathBuf};

use anyhow::Context;
use runseal::audit::report::{Style, human};
use runseal::audit::{AuditReport, Reader, Verdict, audit};
use runseal::bundle::read::read;
use runseal::digest::Sha256Digest;
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
    /// The commitment that you were handed before the run; it must be this record's
    #[arg(long, value_name = "HEX")]
    commitment: Option<Sha256Digest>,
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
    if args.commitment.is_some() && args.paths.len() > 1 {
        anyhow::bail!("a commitment belongs to one run (hint: give one path with --commitment)");
    }
    let exe = std::env::current_exe().context("could not find this program to run the scorer")?;
    let style = Style {
        lang: args.lang,
        full: args.full,
    };
    let mut tally = Tally::default();
    for path in &args.paths {
        let report = match audit_path(path, &trusted, args.commitment, &exe) {
            Ok(report) => report,
            // The others are still worth looking at.
            Err(e) if args.paths.len() > 1 => {
                let why = runseal::chain::chain(e.as_ref());
                output::complain(&format!("error: {why}"));
                tally.unread += 1;
                continue;
            }
            Err(e) => return Err(e),
        };
        let status = report.derived.as_ref().map(|r| r.run.status.name());
        let wanted = args.require_status.as_deref();
        let status_ok = wanted.is_none_or(|want| status == Some(want));
        tally.count(&report, status_ok);
        match args.format {
            Format::Json => output::print_json(&report)?,
            Format::Human => output::print(&output::plain(&human(&report, style)))?,
        }
        if !status_ok {
            let text = format!(
                "REQUIRED STATUS NOT MET: the run is {}, not {}.\n",
                status.unwrap_or("unknown"),
                wanted.unwrap_or_default()
            );
            match args.format {
                Format::Human => output::print(&text)?,
                // Stdout is one object per record and nothing else.
                Format::Json => {
                    output::complain(&format!("{}: {}", path.display(), text.trim_end()));
                }
            }
        }
        if args.paths.len() > 1 && args.format == Format::Human {
            output::print("\n")?;
        }
    }
    if args.paths.len() > 1 {
        match args.format {
            Format::Human => output::print(&format!("{}\n", tally.line()))?,
            Format::Json => output::complain(&tally.line()),
        }
    }
    if tally.unread > 0 {
        anyhow::bail!("{} could not be read", output::count(tally.unread, "path"));
    }
    Ok(
        if tally.verified == args.paths.len() && tally.other_status == 0 {
            Answer::Passed
        } else {
            Answer::Findings
        },
    )
}

/// What became of several records.
#[derive(Default)]
struct Tally {
    verified: usize,
    self_consistent: usize,
    not_verified: usize,
    other_status: usize,
    unread: usize,
}

impl Tally {
    fn count(&mut self, report: &AuditReport, status_ok: bool) {
        match report.verdict {
            Verdict::Verified => self.verified += 1,
            Verdict::SelfConsistent => self.self_consistent += 1,
            Verdict::NotVerified => self.not_verified += 1,
        }
        self.other_status += usize::from(!status_ok);
    }

    fn line(&self) -> String {
        let all = self.verified + self.self_consistent + self.not_verified + self.unread;
        let mut line = format!(
            "{}: {} verified, {} self-consistent with a signer not trusted, {} not verified",
            output::count(all, "record"),
            self.verified,
            self.self_consistent,
            self.not_verified
        );
        for (n, what) in [
            (self.other_status, "without the required status"),
            (self.unread, "not readable"),
        ] {
            if n > 0 {
                line.push_str(&format!(", {n} {what}"));
            }
        }
        line
    }
}

fn audit_path(
    path: &Path,
    trusted: &[PublicKey],
    commitment: Option<Sha256Digest>,
    exe: &Path,
) -> anyhow::Result<AuditReport> {
    let raw = read(path)?;
    let grader = |scorer: &[u8], items: &[GradeItem]| -> Result<Vec<GradeResult>, String> {
        grade_in_child(exe, &[SUBCOMMAND], scorer, items, &ChildLimits::default())
            .map_err(|e| e.to_string())
    };
    let reader = Reader {
        trusted,
        grader: &grader,
        commitment,
    };
    Ok(audit(&path.display().to_string(), &raw, &reader))
}

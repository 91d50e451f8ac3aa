//! `verify compare`: may two records be held against each other, and how far apart are
//! they.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use jiff::Timestamp;
use runseal::audit::Verdict;
use runseal::comparison::{NAMES, Question, Side, compare, human::human};

use super::record::{self, Desk, Looked, Report};
use super::{Answer, Format, output};

/// Compare two records: refuse, or give differences with intervals
///
/// Both are audited first. Records that were measured under different conditions are not
/// compared; each condition that differs is named. What was varied on purpose is declared
/// with --factor. Exit code 0: compared, and both signers are trusted. 1: refused, or a
/// cause that was claimed is not supported. 2: could not run.
#[derive(clap::Args)]
pub struct Args {
    /// The record to start from: a bundle's folder
    a: PathBuf,
    /// The record that is held against it
    b: PathBuf,
    /// What was varied on purpose, by its name in the report; may be given several times
    #[arg(long = "factor", value_name = "NAME")]
    factors: Vec<String>,
    /// A further run that differs from A or B in the factor only
    #[arg(long, value_name = "BUNDLE")]
    control: Option<PathBuf>,
    /// Claim that the factor is the cause: nothing else may differ
    #[arg(long)]
    causal: bool,
    /// Seed of the resampling behind the intervals
    #[arg(long, default_value = "0", value_name = "N")]
    seed: u64,
    /// Public key of an operator you trust: PEM or OpenSSH; may be given several times
    #[arg(long = "trusted-key", value_name = "PUB")]
    trusted_keys: Vec<PathBuf>,
    /// What you trust and require (docs/policy.md)
    #[arg(long, value_name = "TOML")]
    policy: Option<PathBuf>,
    /// The time at which keys must be good, on your word: RFC 3339
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// How to print
    #[arg(long, value_enum, default_value = "human")]
    format: Format,
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<Answer> {
    for factor in &args.factors {
        if !NAMES.iter().any(|(name, _)| name == factor) {
            let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            bail!(
                "nothing is called {factor:?} (hint: one of {})",
                known.join(", ")
            );
        }
    }
    let desk = Desk {
        trust: record::trust(&args.trusted_keys, args.policy.as_deref(), args.at)?,
        commitment: None,
        exe: std::env::current_exe().context("could not find this program to run the scorer")?,
    };
    let a = audited(&args.a, &desk)?;
    let b = audited(&args.b, &desk)?;
    let control = args
        .control
        .as_deref()
        .map(|c| audited(c, &desk))
        .transpose()?;
    let question = Question {
        factors: args.factors.iter().cloned().collect::<BTreeSet<_>>(),
        causal: args.causal,
        seed: args.seed,
    };
    let control_side = control.as_ref().map(side);
    let answer = compare(&side(&a), &side(&b), control_side.as_ref(), &question);
    match args.format {
        Format::Json => output::print_json(&answer)?,
        Format::Human => output::print(&output::plain(&human(&answer)))?,
    }
    let mut trusted = true;
    for report in [Some(&a), Some(&b), control.as_ref()].into_iter().flatten() {
        if report.verdict() == Verdict::SelfConsistent {
            trusted = false;
            output::complain(&format!(
                "{}: nobody whom you trust signed it (pass --trusted-key)",
                report.path()
            ));
        }
    }
    Ok(match answer.holds() && trusted {
        true => Answer::Passed,
        false => Answer::Findings,
    })
}

fn audited(path: &Path, desk: &Desk) -> anyhow::Result<Report> {
    let mut found = record::Found::default();
    record::find(path, &mut found)?;
    let (Some(item), None, false) = (found.items.first(), found.items.get(1), found.tree) else {
        bail!(
            "{} is no single record (hint: give one bundle's folder)",
            path.display()
        );
    };
    match record::look(item, desk)? {
        Looked::Audited(report, _) => Ok(report),
        Looked::NoRecord => bail!("{} is no record", path.display()),
    }
}

fn side(report: &Report) -> Side<'_> {
    Side {
        path: report.path(),
        record: report.record(),
        verdict: report.verdict(),
    }
}

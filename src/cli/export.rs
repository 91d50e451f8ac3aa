//! `verify export`: a record in forms that other tools read.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::ValueEnum;
use runseal::audit::Verdict;
use runseal::bundle::read::read;
use runseal::durable::{self, WriteOptions};
use runseal::envelope::parse_own_lines;
use runseal::exports;
use runseal::json;
use runseal::policy::Trust;
use runseal::record::RecordStatement;

use super::record::{Desk, Item, Looked, Report, look};
use super::{Answer, output};

/// Write a record in a form that other tools read
///
/// The bundle is audited first; one whose audit finds anything is not exported (exit code
/// 1). Who signed it is not asked here. Every form says less than the record.
#[derive(clap::Args)]
pub struct Args {
    /// The bundle's folder
    bundle: PathBuf,
    /// The form
    #[arg(long = "to", value_enum)]
    form: Form,
    /// File to write to; without it, stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace a file that is there
    #[arg(long)]
    force: bool,
    /// Who provides the data, for --to every-eval-ever
    #[arg(long, default_value = "unspecified", value_name = "NAME")]
    organization: String,
    /// How the evaluator relates to the model, for --to every-eval-ever
    #[arg(long, default_value = "other", value_parser = ["first_party", "third_party", "collaborative", "other"])]
    relationship: String,
}

/// Forms of others.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// in-toto test-result v0.1, unsigned payload
    TestResult,
    /// Like the detailed result of `vllm bench serve`
    VllmBench,
    /// Table of the metrics
    Csv,
    /// Table of the cases
    CasesCsv,
    /// Every Eval Ever 0.3.0, aggregate record
    EveryEvalEver,
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<Answer> {
    let shown = args.bundle.display().to_string();
    let desk = Desk {
        trust: Trust::default(),
        commitment: None,
        exe: std::env::current_exe().context("could not find this program to run the scorer")?,
    };
    let item = Item::Bundle(args.bundle.clone());
    let Looked::Audited(Report::Bundle(report), _) = look(&item, &desk)? else {
        bail!("{shown} is no bundle");
    };
    let holds = report.verdict != Verdict::NotVerified;
    let Some(record) = report.derived.as_deref().filter(|_| holds) else {
        output::complain(&format!(
            "{shown} was not exported: its audit does not hold (`verify record` says why)"
        ));
        return Ok(Answer::Findings);
    };
    let bytes = match args.form {
        Form::TestResult => exports::test_result(record, &signed(&args.bundle)?),
        Form::VllmBench => exports::vllm_bench(record)?,
        Form::Csv => exports::metrics_csv(record),
        Form::CasesCsv => exports::cases_csv(record),
        Form::EveryEvalEver => {
            let source = exports::Source {
                organization: args.organization.clone(),
                relationship: args.relationship.clone(),
            };
            exports::every_eval_ever(record, &source)?
        }
    };
    match &args.output {
        Some(path) => {
            let options = WriteOptions {
                replace: args.force,
                private: false,
            };
            durable::write(path, &bytes, options)?;
        }
        None => output::print(&String::from_utf8(bytes)?)?,
    }
    Ok(Answer::Passed)
}

/// The signed statement of a bundle that was audited a moment ago.
fn signed(bundle: &std::path::Path) -> anyhow::Result<RecordStatement> {
    let record = read(bundle)?.record.context("the bundle has no record")?;
    let envelopes = parse_own_lines(&record).ok();
    let payload = envelopes.and_then(|e| Some(e.into_iter().next()?.payload));
    Ok(json::from_slice(
        &payload.context("the record cannot be read")?,
    )?)
}

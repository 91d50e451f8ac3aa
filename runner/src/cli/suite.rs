//! `attest suite`: a suite of one's own.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Subcommand;
use runseal::durable::{self, WriteOptions};
use runseal::finding::{Outcome, Severity};
use runseal::scorer::child::{ChildLimits, SUBCOMMAND, grade_in_child};
use runseal::suite_check::{SuiteBytes, SuiteReport, TESTS, check};

use super::{Format, own_path, print};

/// Make a suite, and look at one before it is run
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    New(New),
    Check(Check),
}

/// Write a small commented suite to start from
///
/// The folder gets suite.toml, cases.jsonl, scorer.toml, scorer-tests.jsonl and a
/// README. It can be checked and run as it stands.
#[derive(clap::Args)]
struct New {
    /// The folder to make; its last part is the suite's name (a-z, 0-9, '-')
    folder: PathBuf,
}

/// Check a suite: its form, its name, its scorer and the scorer's tests
///
/// Exit code 0: everything holds. 1: findings. 2: a file is missing or not of its form.
#[derive(clap::Args)]
struct Check {
    /// The suite's folder
    folder: PathBuf,
    /// How to print
    #[arg(long, value_enum, default_value = "human")]
    format: Format,
}

/// The files of a new suite; NAME stands for its name.
const FILES: &[(&str, &str)] = &[
    ("suite.toml", include_str!("suite/suite.toml")),
    ("cases.jsonl", include_str!("suite/cases.jsonl")),
    ("scorer.toml", include_str!("suite/scorer.toml")),
    (TESTS, include_str!("suite/scorer-tests.jsonl")),
    ("README.md", include_str!("suite/README.md")),
];

/// Largest file of a suite.
const MAX_BYTES: u64 = 1 << 30;

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::New(args) => new(&args.folder),
        Command::Check(args) => look(&args),
    }
}

fn new(folder: &Path) -> anyhow::Result<ExitCode> {
    let name = folder.file_name().and_then(|n| n.to_str()).unwrap_or("");
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || !name.chars().all(legal) {
        bail!(
            "{} cannot name a suite (hint: a-z, 0-9 and '-', for example my-suite-v1)",
            folder.display()
        );
    }
    if runseal::shipped::digest(name).is_some() {
        bail!("{name} is the name of a shipped suite (hint: choose another one)");
    }
    if folder.symlink_metadata().is_ok() {
        bail!(
            "{} already exists and was left alone (hint: choose another folder)",
            folder.display()
        );
    }
    durable::create_dir_all(folder)?;
    for (file, text) in FILES {
        let text = text.replace("NAME", name);
        durable::write(&folder.join(file), text.as_bytes(), WriteOptions::default())?;
    }
    let shown = folder.display();
    print(&format!(
        "wrote {shown}\nnext: attest suite check {shown}; then suite = \"{shown}\" in attest.toml\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn look(args: &Check) -> anyhow::Result<ExitCode> {
    let read = |name: &str| read(&args.folder.join(name));
    let (toml, cases, scorer) = (
        read("suite.toml")?,
        read("cases.jsonl")?,
        read("scorer.toml")?,
    );
    let tests = args.folder.join(TESTS);
    let tests = match tests.symlink_metadata() {
        Ok(_) => Some(read(TESTS)?),
        Err(_) => None,
    };
    let bytes = SuiteBytes {
        toml: &toml,
        cases: &cases,
        scorer: &scorer,
        tests: tests.as_deref(),
    };
    let exe = own_path()?;
    let report = check(bytes, |items| {
        let limits = ChildLimits::default();
        grade_in_child(&exe, &[SUBCOMMAND], &scorer, items, &limits).map_err(|e| e.to_string())
    })
    .with_context(|| args.folder.display().to_string())?;
    match args.format {
        Format::Human => print(&text(&report))?,
        Format::Json => {
            let mut line = String::from_utf8(runseal::json::canonical(&report))?;
            line.push('\n');
            print(&line)?;
        }
    }
    Ok(match report.good() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(1),
    })
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let shown = path.display();
    let meta = std::fs::metadata(path)
        .with_context(|| format!("could not read {shown} (hint: `attest suite new` makes one)"))?;
    if !meta.is_file() || meta.len() > MAX_BYTES {
        bail!("{shown} is not a regular file of at most {MAX_BYTES} bytes");
    }
    std::fs::read(path).with_context(|| format!("could not read {shown}"))
}

fn text(report: &SuiteReport) -> String {
    let mut out = format!(
        "suite     {}: {} cases, {} scorer tests\ndigest    {}\ndataset   {}\nscorer    {}\n\n",
        report.name, report.cases, report.tests, report.suite, report.dataset, report.scorer
    );
    for c in &report.checks {
        let how = match &c.outcome {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Failed => "FAILED".to_owned(),
            // Words of the scorer's child may have names from the file in them.
            Outcome::NotPerformed { reason } => {
                format!("not performed: {}", reason.escape_debug())
            }
        };
        out.push_str(&format!("{:27} {how}\n", c.name));
    }
    for f in &report.findings {
        let mark = match f.severity {
            Severity::Error => "",
            Severity::Note => " (note)",
        };
        out.push_str(&format!(
            "\n{}{mark} {}\n    {}\n",
            f.code,
            f.subject.escape_debug(),
            f.detail.escape_debug()
        ));
        if let (Some(expected), Some(found)) = (&f.expected, &f.found) {
            out.push_str(&format!(
                "    expected {}\n    found    {}\n",
                expected.escape_debug(),
                found.escape_debug()
            ));
        }
    }
    out.push_str(match report.good() {
        true => "\nthe suite holds\n",
        false => "\nthe suite does NOT hold\n",
    });
    out
}

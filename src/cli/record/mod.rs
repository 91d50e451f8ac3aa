//! `verify record`: audits bundles and published records, many at once.

mod find;
mod one;
mod parallel;
mod tally;
mod verdict;

use std::path::{Path, PathBuf};

use anyhow::Context;
use jiff::Timestamp;
use runseal::audit::Verdict;
use runseal::audit::report::Style;
use runseal::digest::Sha256Digest;
use runseal::finding::Severity;
use runseal::policy::{Trust, TrustedKey, file, keys};
use runseal::record::limitations::Lang;

use super::{Answer, Format, output, read_input};
pub(super) use find::{Found, Item, find};
pub(super) use one::{Desk, Looked, Report, look};
use tally::Tally;

/// Audit records: recompute every figure that can be, grade every answer again
///
/// PATH is a bundle's folder, a signed envelope, a published record, the result of another
/// benchmark program, or a folder tree of them. What a file is, its content tells.
#[derive(clap::Args)]
pub struct Args {
    /// Bundle folders such as evidence/<run-id>, record files, or trees of them
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Public key of an operator you trust: PEM or OpenSSH; may be given several times
    #[arg(long = "trusted-key", value_name = "PUB")]
    trusted_keys: Vec<PathBuf>,
    /// What you trust and require (docs/policy.md)
    #[arg(long, value_name = "TOML")]
    policy: Option<PathBuf>,
    /// The time at which keys must be good, on your word: RFC 3339
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// Sign each verdict with this secret key (Ed25519 or P-256), as an in-toto SVR beside
    /// the record: RECORD.svr.intoto.jsonl
    #[arg(long, value_name = "KEY")]
    sign_verdict: Option<PathBuf>,
    /// Replace signed verdicts that are there
    #[arg(long, requires = "sign_verdict")]
    force: bool,
    /// Also require that the run ended this way: completed, failed, aborted, refused
    #[arg(long, value_name = "STATUS")]
    require_status: Option<String>,
    /// The commitment that you were handed before the run; it must be this record's
    #[arg(long, value_name = "HEX")]
    commitment: Option<Sha256Digest>,
    /// Show every check, figure and limitation, also of the records of a tree
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

/// Largest policy file.
const MAX_POLICY: u64 = 1 << 20;

/// Keys and policy of the command line.
pub(super) fn trust(
    trusted_keys: &[PathBuf],
    policy: Option<&Path>,
    at: Option<Timestamp>,
) -> anyhow::Result<Trust> {
    let mut trust = Trust {
        at,
        ..Trust::default()
    };
    // First those of the policy: a key given twice keeps its role and window.
    if let Some(path) = policy {
        let shown = path.display().to_string();
        let bytes = read_input(path, "policy", MAX_POLICY)?;
        let dir = path.parent().unwrap_or(Path::new("."));
        let (policy, keys) = file::parse(&bytes, dir).with_context(|| shown)?;
        keys.into_iter().for_each(|k| trust.add(k));
        trust.policy = Some(policy);
    }
    for path in trusted_keys {
        let name = path.display().to_string();
        let key = keys::load(path).with_context(|| name.clone())?;
        trust.add(TrustedKey::plain(name, key));
    }
    Ok(trust)
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
    let desk = Desk {
        trust: trust(&args.trusted_keys, args.policy.as_deref(), args.at)?,
        commitment: args.commitment,
        exe: std::env::current_exe().context("could not find this program to run the scorer")?,
    };
    let key = args
        .sign_verdict
        .as_deref()
        .map(verdict::load)
        .transpose()?;
    let mut found = Found::default();
    let mut tally = Tally::default();
    for path in &args.paths {
        match find(path, &mut found) {
            Ok(()) => {}
            // The others are still worth looking at.
            Err(e) if args.paths.len() > 1 => {
                output::complain(&format!("error: {}", runseal::chain::chain(e.as_ref())));
                tally.unread += 1;
            }
            Err(e) => return Err(e),
        }
    }
    let many = args.paths.len() > 1 || found.tree;
    if args.commitment.is_some() && found.items.len() > 1 {
        anyhow::bail!("a commitment belongs to one run (hint: give one path with --commitment)");
    }
    tally.passed_over = found.passed_over;
    tally.links = found.links;
    let items = &found.items;
    parallel::ordered(
        items.len(),
        |i| look(&items[i], &desk),
        |_, looked| match looked {
            Ok(Looked::Audited(report, digest)) => {
                show(&args, &report, &mut tally, many, found.tree)?;
                match &key {
                    Some(key) => verdict::write(&report, digest, key, &desk.trust, args.force),
                    None => Ok(()),
                }
            }
            Ok(Looked::NoRecord) => {
                tally.passed_over += 1;
                Ok(())
            }
            Err(e) if many => {
                output::complain(&format!("error: {}", runseal::chain::chain(e.as_ref())));
                tally.unread += 1;
                Ok(())
            }
            Err(e) => Err(e),
        },
    )?;
    if many {
        match args.format {
            Format::Human => output::print(&format!("{}\n", tally.line()))?,
            Format::Json => output::complain(&tally.line()),
        }
    }
    if tally.unread > 0 {
        anyhow::bail!("{} could not be read", output::count(tally.unread, "path"));
    }
    if tally.all() == 0 {
        anyhow::bail!(
            "no file there is a record (hint: `verify record --help` lists what is known; {} passed over)",
            output::count(tally.passed_over, "file")
        );
    }
    Ok(
        if tally.verified == tally.all() && tally.other_status == 0 {
            Answer::Passed
        } else {
            Answer::Findings
        },
    )
}

/// Prints one report and counts it.
fn show(
    args: &Args,
    report: &Report,
    tally: &mut Tally,
    many: bool,
    tree: bool,
) -> anyhow::Result<()> {
    let wanted = args.require_status.as_deref();
    let status = report.status();
    let status_ok = wanted.is_none_or(|want| status == Some(want));
    tally.count(report, status_ok);
    let short = tree && !args.full;
    let style = Style {
        lang: args.lang,
        full: args.full,
    };
    match args.format {
        Format::Json => output::print_json(report)?,
        Format::Human if short => output::print(&output::plain(&line(report)))?,
        Format::Human => output::print(&output::plain(&report.human(style)))?,
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
            Format::Json => output::complain(&format!("{}: {}", report.path(), text.trim_end())),
        }
    }
    if many && !short && args.format == Format::Human {
        output::print("\n")?;
    }
    Ok(())
}

/// A record of a tree in one line: verdict, path, kind, codes of its errors.
fn line(report: &Report) -> String {
    let verdict = match report.verdict() {
        Verdict::Verified => "verified",
        Verdict::SelfConsistent => "self-consistent",
        Verdict::NotVerified => "NOT VERIFIED",
    };
    let mut codes: Vec<&str> = report
        .findings()
        .iter()
        .filter(|f| f.severity == Severity::Error)
        .map(|f| f.code.name())
        .collect();
    codes.dedup();
    let path = report.path().replace('\n', "\\n");
    let mut out = format!("{verdict:<15} {path}  {}", report.kind());
    if !codes.is_empty() {
        out.push_str(&format!("  {}", codes.join(" ")));
    }
    out.push('\n');
    out
}

//! `attest export`: sealed sweeps and recipe cards in the forms that others read.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::ValueEnum;
use runseal::audit::{Reader, Verdict, audit};
use runseal::bundle::read::read;
use runseal::digest::Sha256Digest;
use runseal::durable::{self, WriteOptions};
use runseal::export;
use runseal::recipe_card::{self, Config};
use runseal::record::RunRecord;
use runseal::scorer::child::{ChildLimits, SUBCOMMAND, grade_in_child};
use runseal::scorer::{GradeItem, GradeResult};

use super::{complain, own_path, print};

/// Audit sealed bundles and write what others read: a sweep's record, or one recipe card
///
/// `sweep` takes one bundle and writes throughput.csv, verified-summary.json and
/// inference.json (schema version 3, texts in English and Turkish). `recipe-card` takes a
/// bundle for each configuration and writes recipe-card.json (version 1); a configuration
/// on other hardware, build, checkpoint or suite than the default one is marked.
/// Where the audit of any bundle finds anything nothing is written: exit code 1.
#[derive(clap::Args)]
pub struct Args {
    /// The bundle; for a card NAME=BUNDLE, or its folder, which then is the name
    #[arg(required = true, value_name = "BUNDLE")]
    bundles: Vec<String>,
    /// What to write
    #[arg(long, value_enum, default_value = "sweep")]
    format: Form,
    /// Configuration of the card that the others are held against; the first without it
    #[arg(long, value_name = "NAME")]
    default: Option<String>,
    /// The folder to write to; it is made when absent
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Replace files that are there
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// The files of a context sweep
    Sweep,
    /// One card over several configurations
    RecipeCard,
}

/// A bundle whose audit found nothing.
struct Audited {
    record: RunRecord,
    index: Sha256Digest,
    regraded: bool,
}

/// Runs the subcommand.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let files = match args.format {
        Form::Sweep => sweep(&args)?,
        Form::RecipeCard => card(&args)?,
    };
    let Some(files) = files else {
        return Ok(ExitCode::from(1));
    };
    durable::create_dir_all(&args.output)?;
    let options = WriteOptions {
        replace: args.force,
        private: false,
    };
    let mut said = String::new();
    for (name, bytes) in &files {
        let path = args.output.join(name);
        durable::write(&path, bytes, options)?;
        said.push_str(&format!("wrote {}\n", path.display()));
    }
    print(&said)?;
    Ok(ExitCode::SUCCESS)
}

type Files = Vec<(&'static str, Vec<u8>)>;

fn sweep(args: &Args) -> anyhow::Result<Option<Files>> {
    let [bundle] = args.bundles.as_slice() else {
        bail!("a sweep is one bundle (hint: --format recipe-card takes several)");
    };
    if args.default.is_some() {
        bail!("--default is for --format recipe-card");
    }
    let Some(audited) = audited(Path::new(bundle))? else {
        return Ok(None);
    };
    let files = export::sweep(&audited.record).with_context(|| bundle.clone())?;
    Ok(Some(vec![
        ("throughput.csv", files.csv),
        ("verified-summary.json", files.summary),
        ("inference.json", files.published),
    ]))
}

fn card(args: &Args) -> anyhow::Result<Option<Files>> {
    let mut all = Vec::new();
    let mut good = true;
    for given in &args.bundles {
        let (name, path) = named(given)?;
        // All are looked at, so that one call names all that do not hold.
        match audited(&path)? {
            Some(audited) => all.push((name, audited)),
            None => good = false,
        }
    }
    if !good {
        return Ok(None);
    }
    let configs: Vec<Config> = all
        .iter()
        .map(|(name, a)| Config {
            name,
            record: &a.record,
            index: a.index,
            regraded: a.regraded,
        })
        .collect();
    let card = recipe_card::card(&configs, args.default.as_deref())?;
    Ok(Some(vec![("recipe-card.json", card)]))
}

/// NAME=BUNDLE, or a folder that is there and names itself.
fn named(given: &str) -> anyhow::Result<(String, PathBuf)> {
    let (name, path) = match given.split_once('=') {
        Some((name, path)) if !Path::new(given).exists() => (name.to_owned(), PathBuf::from(path)),
        _ => {
            let path = PathBuf::from(given);
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned());
            (name.unwrap_or_default(), path)
        }
    };
    let shown = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 120 || !name.chars().all(shown) {
        bail!(
            "{name:?} cannot name a configuration (hint: NAME=BUNDLE with a NAME of a-z, 0-9, '-', '_', '.')"
        );
    }
    Ok((name, path))
}

/// The record that follows from a bundle; nothing, and why on stderr, where its audit
/// does not hold.
fn audited(bundle: &Path) -> anyhow::Result<Option<Audited>> {
    let shown = bundle.display().to_string();
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
    let raw = read(bundle).with_context(|| shown.clone())?;
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
        return Ok(None);
    };
    Ok(Some(Audited {
        record: *record,
        index: Sha256Digest::of(raw.index.as_deref().unwrap_or_default()),
        regraded: report.grades == "recomputed",
    }))
}

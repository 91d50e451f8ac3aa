//! `verify weights`: rehash every file of a checkpoint on every replica.
//!
//! The arguments are resolved to targets and a manifest first; whatever goes
//! wrong there is "could not run". From then on nothing is an error any more,
//! only findings.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::ValueEnum;
use runseal::finding::{Finding, Severity};
use runseal::relpath::{RelPath, escape};
use runseal::weights::{
    self, Algorithm, Integrity, Inventory, Manifest, ReportContext, State, Survey, SurveyedReplica,
    Target, Verdict,
};

use super::output::{Meter, Paint, count, plain, print, print_json, thousands};
use super::{Answer, Format, now, read_input};

const MAX_MANIFEST: u64 = 1 << 28;
const MAX_INVENTORY: u64 = 1 << 24;

/// Rehash a checkpoint on every replica and compare it with its manifest
///
/// Without PATH, the replicas and the manifest are those of ./cluster.toml. With
/// PATH, that folder is the one replica and --manifest says what it should hold.
/// Nothing outside the folders is opened, links are never followed.
#[derive(clap::Args)]
pub struct Args {
    /// One replica's folder, instead of an inventory
    #[arg(requires = "manifest", conflicts_with = "inventory")]
    path: Option<PathBuf>,
    /// The manifest; by default the one that the inventory names
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Assert that exactly N distinct replicas are rehashed and all agree
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    replicas: Option<u16>,
    /// The inventory [default: cluster.toml]
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// Which digests to compute; the manifest's root commits to SHA-256
    #[arg(long, value_enum, default_value = "sha256")]
    algorithm: AlgorithmArg,
    /// How to print
    #[arg(long, value_enum, default_value = "human")]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum AlgorithmArg {
    Sha256,
    Blake3,
    Both,
}

impl From<AlgorithmArg> for Algorithm {
    fn from(arg: AlgorithmArg) -> Self {
        match arg {
            AlgorithmArg::Sha256 => Self::Sha256,
            AlgorithmArg::Blake3 => Self::Blake3,
            AlgorithmArg::Both => Self::Both,
        }
    }
}

/// What the arguments come to.
struct Resolved {
    replicas: Vec<(String, PathBuf)>,
    manifest_path: PathBuf,
    manifest: Manifest,
}

pub fn run(args: Args) -> anyhow::Result<Answer> {
    let resolved = resolve(&args)?;
    let algorithm = Algorithm::from(args.algorithm);
    let has_blake3 = resolved.manifest.files().all(|f| f.blake3.is_some());
    if !algorithm.sha256() && !has_blake3 {
        bail!("the manifest has no BLAKE3 digests to compare with (hint: --algorithm sha256)");
    }
    let survey = look(&resolved, algorithm, args.replicas.map(usize::from))?;
    match args.format {
        Format::Json => print_json(&survey)?,
        Format::Human => print(&human(&survey, &resolved, algorithm, &Paint::for_stdout()))?,
    }
    Ok(match survey.verdict {
        Verdict::Verified => Answer::Passed,
        Verdict::NotVerified => Answer::Findings,
    })
}

fn resolve(args: &Args) -> anyhow::Result<Resolved> {
    let (replicas, manifest_path) = match (&args.path, &args.manifest) {
        (Some(path), Some(manifest)) => (vec![(name_of(path), path.clone())], manifest.clone()),
        _ => from_inventory(args)?,
    };
    let bytes = read_input(&manifest_path, "the manifest", MAX_MANIFEST)?;
    let manifest =
        Manifest::parse(&bytes).with_context(|| format!("{}", manifest_path.display()))?;
    Ok(Resolved {
        replicas,
        manifest_path,
        manifest,
    })
}

fn from_inventory(args: &Args) -> anyhow::Result<(Vec<(String, PathBuf)>, PathBuf)> {
    let path = match &args.inventory {
        Some(path) => path.clone(),
        None if Path::new("cluster.toml").exists() => PathBuf::from("cluster.toml"),
        None => bail!(
            "there is no cluster.toml here (hint: `attest run` writes one; or name an inventory with \
             --inventory, or give one folder and its --manifest)"
        ),
    };
    let bytes = read_input(&path, "the inventory", MAX_INVENTORY)?;
    let text = String::from_utf8(bytes)
        .ok()
        .with_context(|| format!("{} is not UTF-8 text", path.display()))?;
    let inventory = Inventory::parse(&text).with_context(|| format!("{}", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let replicas = inventory.replicas().iter();
    let replicas = replicas.map(|r| (r.name.clone(), folder.join(&r.path)));
    let manifest = args.manifest.clone();
    let manifest = manifest.unwrap_or_else(|| inventory.manifest_path(folder));
    Ok((replicas.collect(), manifest))
}

/// A folder's own name stands for a replica that no inventory names.
fn name_of(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match absolute.file_name() {
        Some(name) => escape(name.as_bytes()),
        None => "replica".to_owned(),
    }
}

fn look(
    resolved: &Resolved,
    algorithm: Algorithm,
    asserted: Option<usize>,
) -> anyhow::Result<Survey> {
    let boot_id = weights::boot_id().context("could not read this machine's boot id")?;
    let meter = Meter::new();
    let started = now();
    let targets = resolved.replicas.iter().map(|(name, path)| Target {
        context: ReportContext {
            replica: name.clone(),
            role: "target".to_owned(),
            run_id: None,
            nonce_hash: None,
            plan_digest: None,
            boot_id: boot_id.clone(),
            started: started.clone(),
            finished: started.clone(),
        },
        path,
        progress: &meter,
    });
    Ok(weights::survey(
        targets.collect(),
        &resolved.manifest,
        algorithm,
        asserted,
        &now,
    ))
}

fn human(survey: &Survey, resolved: &Resolved, algorithm: Algorithm, paint: &Paint) -> String {
    let manifest = &resolved.manifest;
    let mut out = format!(
        "manifest  {}: {}, {} bytes\nroot      {}\n",
        plain(&resolved.manifest_path.display().to_string()),
        count(manifest.file_count(), "file"),
        thousands(manifest.total_size()),
        manifest.root(),
    );
    if !algorithm.sha256() {
        out.push_str("note      only BLAKE3 is compared, which the root does not commit to\n");
    }
    out.push('\n');
    let width = survey.replicas.iter().map(|r| r.name.chars().count()).max();
    for replica in &survey.replicas {
        out.push_str(&replica_line(replica, width.unwrap_or(0), manifest, paint));
    }
    for finding in &survey.findings {
        out.push('\n');
        out.push_str(&finding_text(finding, survey, paint));
    }
    out.push('\n');
    out.push_str(&last_line(survey, paint));
    out
}

fn replica_line(
    replica: &SurveyedReplica,
    width: usize,
    manifest: &Manifest,
    paint: &Paint,
) -> String {
    let name = plain(&replica.name);
    let (files, bytes) = match &replica.report {
        None => return format!("{name:width$}  {}\n", paint.bad("unreachable")),
        Some(report) => {
            let good = report.files.iter().filter(|f| f.state == State::Verified);
            let read = report
                .files
                .iter()
                .filter(|f| f.sha256.is_some() || f.blake3.is_some());
            let bytes = read.filter_map(|f| f.stat).map(|s| s.size).sum();
            (good.count(), bytes)
        }
    };
    // Padded before it is coloured, so that columns stay aligned.
    let word = format!("{:11}", replica.integrity.to_string());
    let word = match replica.integrity {
        Integrity::Verified => paint.good(&word),
        _ => paint.bad(&word),
    };
    format!(
        "{name:width$}  {word}  {files} of {} verified, {} bytes read\n",
        count(manifest.file_count(), "file"),
        thousands(bytes),
    )
}

fn finding_text(finding: &Finding, survey: &Survey, paint: &Paint) -> String {
    let code = finding.code.name();
    let code = match finding.severity {
        Severity::Error => paint.bad(code),
        Severity::Note => code.to_owned(),
    };
    let mut out = format!(
        "{code}  {}\n    {}\n",
        plain(&finding.subject),
        plain(&finding.detail)
    );
    for (label, value) in [("expected", &finding.expected), ("found", &finding.found)] {
        if let Some(value) = value {
            out.push_str(&format!("    {label:8}  {}\n", plain(value)));
        }
    }
    if let Some(others) = others(finding, survey) {
        out.push_str(&format!("    {}\n", plain(&others)));
    }
    out
}

/// What the other replicas have at the path that a replica's finding is about.
fn others(finding: &Finding, survey: &Survey) -> Option<String> {
    survey.replicas.iter().find_map(|replica| {
        let from_here = replica.report.as_ref()?.findings.contains(finding);
        let path = finding
            .subject
            .strip_prefix(&replica.name)?
            .strip_prefix('/')?;
        let path = RelPath::parse(path).ok().filter(|_| from_here)?;
        survey.agreement.others(&replica.name, &path)
    })
}

fn last_line(survey: &Survey, paint: &Paint) -> String {
    let errors = survey
        .findings
        .iter()
        .filter(|f| f.severity == Severity::Error);
    let verdict = match survey.verdict {
        Verdict::Verified => paint.good("verified"),
        Verdict::NotVerified => paint.bad(&format!(
            "not verified: {}",
            count(errors.count(), "finding")
        )),
    };
    format!(
        "{verdict}; replicas: {}, machines: {}\n",
        survey.agreement.replicas, survey.agreement.machines
    )
}

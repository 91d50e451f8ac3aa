//! `verify weights`: rehash every file of a checkpoint on every replica.
//!
//! The arguments are resolved to targets and a manifest first; whatever goes
//! wrong there is "could not run". From then on nothing is an error any more,
//! only findings.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::ValueEnum;
use runseal::finding::{Code, Finding, Severity};
use runseal::relpath::{RelPath, escape};
use runseal::weights::{
    Algorithm, Basis, Integrity, Inventory, Manifest, Replica, Role, State, Survey,
    SurveyedReplica, Verdict, is_not_re_read,
};

use super::output::{Paint, count, plain, print, print_json, thousands};
use super::weights_remote::{Options, Replicas};
use super::{Answer, Format, read_input};

const MAX_MANIFEST: u64 = 1 << 28;
const MAX_INVENTORY: u64 = 1 << 24;

/// Rehash a checkpoint on every replica and compare it with its manifest
///
/// Without PATH, the replicas and the manifest are those of ./cluster.toml. With
/// PATH, that folder is the one replica and --manifest says what it should hold.
/// Nothing outside the folders is opened, links are never followed. No socket is
/// opened either: replicas on other machines are reached by the system's ssh or
/// the inventory's command, and stderr says which is started for whom.
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
    #[command(flatten)]
    remote: Options,
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
    replicas: Replicas,
    manifest_paths: BTreeMap<Role, PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<Answer> {
    if args.remote.agent {
        return super::weights_agent::run(args.remote.agent_key()?);
    }
    let resolved = resolve(&args)?;
    let algorithm = Algorithm::from(args.algorithm);
    let mut files = resolved
        .replicas
        .manifests
        .values()
        .flat_map(Manifest::files);
    let has_blake3 = files.all(|f| f.blake3.is_some());
    if !algorithm.sha256() && !has_blake3 {
        bail!("the manifest has no BLAKE3 digests to compare with (hint: --algorithm sha256)");
    }
    let asserted = args.replicas.map(usize::from);
    let survey = if args.remote.reports.is_empty() {
        super::weights_remote::survey(&resolved.replicas, &args.remote, algorithm, asserted)?
    } else {
        super::weights_saved::survey(&args.remote, &resolved.replicas, asserted)?
    };
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
    let judging = !args.remote.reports.is_empty();
    let (mut replicas, manifest_paths) = match (&args.path, &args.manifest) {
        (Some(path), Some(manifest)) => (
            one_replica(name_of(path), Some(path.clone())),
            BTreeMap::from([(Role::Target, manifest.clone())]),
        ),
        (None, Some(manifest)) if judging && args.inventory.is_none() => (
            one_replica(String::new(), None),
            BTreeMap::from([(Role::Target, manifest.clone())]),
        ),
        _ => from_inventory(args)?,
    };
    for (role, path) in &manifest_paths {
        let bytes = read_input(path, "the manifest", MAX_MANIFEST)?;
        let manifest = Manifest::parse(&bytes).with_context(|| format!("{}", path.display()))?;
        replicas.manifests.insert(*role, manifest);
    }
    Ok(Resolved {
        replicas,
        manifest_paths,
    })
}

fn one_replica(name: String, only: Option<PathBuf>) -> Replicas {
    Replicas {
        replicas: vec![Replica::local(name, "")],
        folder: PathBuf::new(),
        only,
        manifests: BTreeMap::new(),
        ssh: None,
        explicit: true,
    }
}

fn from_inventory(args: &Args) -> anyhow::Result<(Replicas, BTreeMap<Role, PathBuf>)> {
    let path = match &args.inventory {
        Some(path) => path.clone(),
        None if Path::new("cluster.toml").exists() => PathBuf::from("cluster.toml"),
        None => bail!(
            "there is no cluster.toml here (hint: run `attest init`, name an inventory with \
             --inventory, or give one folder and its --manifest)"
        ),
    };
    let bytes = read_input(&path, "the inventory", MAX_INVENTORY)?;
    let text = String::from_utf8(bytes)
        .ok()
        .with_context(|| format!("{} is not UTF-8 text", path.display()))?;
    let inventory = Inventory::parse(&text).with_context(|| format!("{}", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut manifest_paths = inventory.manifest_paths(folder);
    if let Some(manifest) = &args.manifest {
        manifest_paths.insert(Role::Target, manifest.clone());
    }
    let replicas = Replicas {
        replicas: inventory.replicas().to_vec(),
        folder: folder.to_owned(),
        only: None,
        manifests: BTreeMap::new(),
        ssh: inventory.ssh().map(PathBuf::from),
        explicit: args.inventory.is_some(),
    };
    Ok((replicas, manifest_paths))
}

/// A folder's own name stands for a replica that no inventory names.
fn name_of(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match absolute.file_name() {
        Some(name) => escape(name.as_bytes()),
        None => "replica".to_owned(),
    }
}

fn human(survey: &Survey, resolved: &Resolved, algorithm: Algorithm, paint: &Paint) -> String {
    let mut out = String::new();
    for (role, path) in &resolved.manifest_paths {
        let Some(manifest) = resolved.replicas.manifests.get(role) else {
            continue;
        };
        let label = match role {
            Role::Target => "manifest",
            other => other.name(),
        };
        out.push_str(&format!(
            "{label:9} {}: {}, {} bytes\nroot      {}\n",
            plain(&path.display().to_string()),
            count(manifest.file_count(), "file"),
            thousands(manifest.total_size()),
            manifest.root(),
        ));
    }
    if !algorithm.sha256() {
        out.push_str("note      only BLAKE3 is compared, which the root does not commit to\n");
    }
    if survey.basis == Basis::Reports {
        out.push_str("note      saved reports are judged; no replica was looked at\n");
    }
    out.push('\n');
    let names = survey.replicas.iter().map(shown_name);
    let width = names.map(|n| n.chars().count()).max().unwrap_or(0);
    for replica in &survey.replicas {
        let manifests = &resolved.replicas.manifests;
        let manifest = manifests.iter().find(|(r, _)| r.name() == replica.role);
        let files = manifest.map_or(0, |(_, m)| m.file_count());
        out.push_str(&replica_line(replica, width, files, paint));
    }
    for finding in &survey.findings {
        // One line per replica says how many there are.
        if finding.code != Code::NotReRead {
            out.push('\n');
            out.push_str(&finding_text(finding, survey, paint));
        }
    }
    out.push('\n');
    out.push_str(&last_line(survey, paint));
    out
}

fn shown_name(replica: &SurveyedReplica) -> String {
    match replica.role.as_str() {
        "target" => plain(&replica.name),
        other => format!("{}:{}", plain(&replica.name), plain(other)),
    }
}

fn replica_line(replica: &SurveyedReplica, width: usize, all: usize, paint: &Paint) -> String {
    let name = shown_name(replica);
    let Some(report) = &replica.report else {
        return format!("{name:width$}  {}\n", paint.bad("unreachable"));
    };
    let verified = report.files.iter().filter(|f| f.state == State::Verified);
    let left_out = report.files.iter().filter(|f| is_not_re_read(f)).count();
    let read = report
        .files
        .iter()
        .filter(|f| f.sha256.is_some() || f.blake3.is_some());
    let bytes = read.filter_map(|f| f.stat).map(|s| s.size).sum();
    // Padded before it is coloured, so that columns stay aligned.
    let word = format!("{:11}", replica.integrity.to_string());
    let word = match replica.integrity {
        Integrity::Verified => paint.good(&word),
        _ => paint.bad(&word),
    };
    let mut line = format!(
        "{name:width$}  {word}  {} of {} verified, {} bytes read",
        verified.count(),
        count(all, "file"),
        thousands(bytes),
    );
    if left_out > 0 {
        line.push_str(&format!(", {} not re-read", count(left_out, "file")));
    }
    if let Some(key) = &replica.signed_by {
        line.push_str(&format!(", signed by {key}"));
    }
    line.push('\n');
    line
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
    // Nobody looks up a code while a node is down.
    let no_report = |r: &SurveyedReplica| r.report.is_none() && shown_name(r) == finding.subject;
    if survey.replicas.iter().any(no_report) && !finding.detail.contains("(hint:") {
        out.push_str(&format!("    hint: {}\n", finding.code.explain().2));
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
        let (subject, path) = finding.subject.split_once('/')?;
        let path = RelPath::parse(path).ok().filter(|_| from_here)?;
        let mine = subject == shown_name(replica);
        mine.then(|| survey.agreement.others(&replica.name, &replica.role, &path))?
    })
}

fn last_line(survey: &Survey, paint: &Paint) -> String {
    let errors = survey
        .findings
        .iter()
        .filter(|f| f.severity == Severity::Error);
    let left_out = survey.findings.iter().filter(|f| f.code == Code::NotReRead);
    let verdict = match (survey.verdict, errors.count(), left_out.count()) {
        (Verdict::Verified, ..) => paint.good("verified"),
        (_, n, 0) => paint.bad(&format!("not verified: {}", count(n, "finding"))),
        (_, 0, m) => paint.bad(&format!("not verified: {} not re-read", count(m, "file"))),
        (_, n, m) => paint.bad(&format!(
            "not verified: {}, {} not re-read",
            count(n, "finding"),
            count(m, "file")
        )),
    };
    format!(
        "{verdict}; replicas: {}, machines: {}\n",
        survey.agreement.replicas, survey.agreement.machines
    )
}

//! `verify weights PATH --oms BUNDLE --key PUB`: a folder against an OMS bundle.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use runseal::ecdsa_keys;
use runseal::finding::{Finding, Outcome, Severity};
use runseal::oms::{self, OmsReport};

use super::output::{Meter, Paint, count, plain, print, print_json, thousands};
use super::{Answer, Format, read_input};

/// A statement lists some 150 bytes per file or gigabyte.
const MAX_BUNDLE: u64 = 1 << 28;

/// The options that make it this check.
#[derive(clap::Args)]
pub struct OmsArgs {
    /// Compare PATH with an OpenSSF Model Signing (OMS) bundle instead of a manifest
    #[arg(
        long,
        value_name = "BUNDLE",
        requires = "path",
        conflicts_with_all = ["inventory", "replicas", "algorithm"]
    )]
    pub oms: Option<PathBuf>,
    /// The public key that you trust for --oms: ECDSA, SPKI PEM
    #[arg(long, value_name = "PUB", requires = "oms")]
    pub key: Option<PathBuf>,
}

/// Runs the check.
pub fn run(
    folder: &Path,
    bundle_path: &Path,
    key: Option<&Path>,
    format: Format,
) -> anyhow::Result<Answer> {
    let bundle = read_input(bundle_path, "the bundle", MAX_BUNDLE)?;
    let own = std::fs::metadata(bundle_path)
        .ok()
        .map(|m| (m.dev(), m.ino()));
    let key = key.map(ecdsa_keys::load_public).transpose()?;
    let report = oms::check_folder(folder, &bundle, key.as_ref(), own, &Meter::new());
    match format {
        Format::Json => print_json(&report)?,
        Format::Human => print(&human(&report, bundle_path, &Paint::for_stdout()))?,
    }
    Ok(if report.verified {
        Answer::Passed
    } else {
        Answer::Findings
    })
}

fn human(report: &OmsReport, bundle: &Path, paint: &Paint) -> String {
    let mut out = format!("bundle    {}", plain(&bundle.display().to_string()));
    if let Some(statement) = &report.statement {
        out.push_str(&format!(
            ": {}, {}, {}\n",
            count(statement.files, "file"),
            plain(&statement.method),
            plain(&statement.hash),
        ));
        out.push_str(&format!("model     {}\n", plain(&statement.name)));
        out.push_str(&format!("oms root  {}\n", statement.oms_root));
    } else {
        out.push('\n');
    }
    out.push_str(&match &report.tree_root {
        Some(root) => format!("root      {root}\n"),
        None => "root      not computed (only where all files match and were signed whole with SHA-256)\n"
            .to_owned(),
    });
    out.push_str(&match &report.signer {
        Some(signer) => format!("signer    {signer}\n"),
        None => "signer    not established\n".to_owned(),
    });
    out.push('\n');
    for check in &report.checks {
        let outcome = match &check.outcome {
            Outcome::Passed => paint.good("passed"),
            Outcome::Failed => paint.bad("failed"),
            Outcome::NotPerformed { reason } => paint.bad(&format!("not performed: {reason}")),
        };
        out.push_str(&format!("{:15} {outcome}\n", check.name));
    }
    for finding in &report.findings {
        out.push('\n');
        out.push_str(&finding_text(finding, paint));
    }
    out.push('\n');
    let files = report.statement.as_ref().map_or(0, |s| s.files);
    let read = format!(
        "{} of {} verified, {} bytes read",
        report.files_verified,
        count(files, "file"),
        thousands(report.bytes_verified)
    );
    let errors = report
        .findings
        .iter()
        .filter(|f| f.severity == Severity::Error);
    let verdict = match (report.verified, errors.count()) {
        (true, _) => paint.good("verified"),
        (false, 0) => paint.bad("not verified: signature not checked"),
        (false, n) => paint.bad(&format!("not verified: {}", count(n, "finding"))),
    };
    out.push_str(&format!("{verdict}; {read}\n"));
    if report.signer.is_none() && report.statement.is_some() {
        out.push_str("Give the signer's public key, from a source you trust, with --key.\n");
    }
    out
}

fn finding_text(finding: &Finding, paint: &Paint) -> String {
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
    out
}

//! `verify weights PATH --oms BUNDLE --key PUB`: a checkpoint against an OMS bundle.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use runseal::ecdsa_keys;
use runseal::finding::{Outcome, Severity};
use runseal::oms::{self, MAX_BUNDLE, OmsReport, Where};
use runseal::weights::{ListFormat, Survey};

use super::progress::Board;
use super::resolve::ReadManifest;
use super::{Args, ManifestFormat};
use crate::cli::output::{Paint, count, plain, print, print_json, thousands};
use crate::cli::{Answer, Format, read_input};

/// The options that make it this check.
#[derive(clap::Args)]
pub struct OmsArgs {
    /// Check PATH against an OpenSSF Model Signing (OMS) bundle and its signature,
    /// which --key must confirm
    #[arg(
        long,
        value_name = "BUNDLE",
        requires = "path",
        conflicts_with_all = [
            "manifest", "manifest_format", "inventory", "replicas", "algorithm", "git_objects",
            "agent", "push_agent", "ssh", "timeout", "node_keys", "save_reports", "changed_since",
            "reports",
        ]
    )]
    pub oms: Option<PathBuf>,
    /// The public key that you trust for the bundle given to --oms or --manifest:
    /// ECDSA, SPKI PEM
    #[arg(long, value_name = "PUB")]
    pub key: Option<PathBuf>,
}

/// A manifest of a signed format.
pub struct Signed {
    /// Fingerprint of the key that the signature was confirmed with; none when there
    /// was no key to check it with.
    pub signer: Option<String>,
}

/// True when a manifest is to be read as a bundle.
pub fn is_manifest(bytes: &[u8], told: Option<ManifestFormat>) -> bool {
    match told {
        Some(format) => matches!(format, ManifestFormat::Oms),
        None => oms::is_bundle(bytes),
    }
}

/// Reads a bundle as a manifest.
pub fn read_manifest(bytes: &[u8], key: Option<&Path>) -> anyhow::Result<ReadManifest> {
    let key = key.map(ecdsa_keys::load_public).transpose()?;
    Ok(match oms::read_manifest(bytes, key.as_ref()) {
        Ok(read) => {
            let signer = read.signer;
            Ok((read.listing, Some(Signed { signer })))
        }
        Err(findings) => Err(Survey::refused(ListFormat::Oms, findings)),
    })
}

/// Runs the check.
pub fn run(path: &Path, bundle_path: &Path, args: &Args) -> anyhow::Result<Answer> {
    let bundle = read_input(bundle_path, "the bundle", MAX_BUNDLE)?;
    let own = std::fs::metadata(bundle_path)
        .ok()
        .map(|m| (m.dev(), m.ino()));
    let key = args.oms.key.as_deref();
    let key = key.map(ecdsa_keys::load_public).transpose()?;
    let at = Where {
        path,
        revision: args.revision.as_deref(),
        own,
        ignore: &args.ignore,
        pace: super::pace(args),
    };
    let board = Board::new([super::resolve::name_of(path)]);
    let line = board.line(0);
    let report = oms::check_folder(at, &bundle, key.as_ref(), &line);
    line.end(report.files_verified > 0);
    drop(board);
    match args.format {
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
        out.push_str(&super::human::finding_lines(finding, paint));
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

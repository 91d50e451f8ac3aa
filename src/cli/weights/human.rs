//! The report of `verify weights` for people.

use std::path::Path;

use runseal::finding::{Finding, Outcome, Severity};
use runseal::relpath::RelPath;
use runseal::weights::{
    Algorithm, Chosen, Compared, Integrity, Layout, LayoutKind, ListFormat, ReplicaReport, State,
    Survey, SurveyedReplica, Verdict,
};

use crate::cli::output::{Paint, count, plain, thousands};

/// The whole report. `bytes` is the sum of the sizes in the manifest.
pub fn text(
    survey: &Survey,
    manifest_path: Option<&Path>,
    bytes: u64,
    algorithm: Algorithm,
    paint: &Paint,
) -> String {
    let mut out = head(survey, manifest_path, bytes, algorithm);
    out.push('\n');
    let width = survey.replicas.iter().map(|r| r.name.chars().count()).max();
    for replica in &survey.replicas {
        out.push_str(&replica_line(replica, width.unwrap_or(0), survey, paint));
    }
    for finding in &survey.findings {
        out.push('\n');
        out.push_str(&finding_text(finding, survey, paint));
    }
    out.push('\n');
    out.push_str(&last_line(survey, paint));
    out
}

fn head(survey: &Survey, manifest_path: Option<&Path>, bytes: u64, algorithm: Algorithm) -> String {
    let manifest = &survey.manifest;
    let mut out = match manifest_path {
        Some(path) => {
            let path = plain(&path.display().to_string());
            let files = count(manifest.files, "file");
            match manifest.root {
                Some(_) => format!("manifest  {path}: {files}, {} bytes", thousands(bytes)),
                None => format!("manifest  {path}: {files}"),
            }
        }
        None => "manifest  none".to_owned(),
    };
    if !matches!(manifest.format, ListFormat::Runseal | ListFormat::Absent) {
        out.push_str(&format!(" ({})", manifest.format.in_words()));
    }
    out.push('\n');
    match manifest.root {
        Some(root) => out.push_str(&format!("root      {root}\n")),
        None if manifest.format == ListFormat::Absent => {}
        None => out.push_str(
            "root      not pinned: the manifest lacks sizes or SHA-256 of some files; the roots below are of what was found\n",
        ),
    }
    if !algorithm.sha256() && manifest.root.is_some() {
        out.push_str("note      only BLAKE3 is compared, which the root does not commit to\n");
    }
    if !manifest.ignore.is_empty() {
        let paths: Vec<_> = manifest.ignore.iter().map(RelPath::to_string).collect();
        out.push_str(&format!("ignored   {}\n", plain(&paths.join(", "))));
    }
    if let Some(signed) = signature_line(survey) {
        out.push_str(&signed);
    }
    if let Some(revision) = &manifest.revision {
        let check = survey.checks.iter().find(|c| c.name == "revision-bound");
        let how = match check.map(|c| &c.outcome) {
            Some(Outcome::Passed) => "shown from its git objects".to_owned(),
            Some(Outcome::Failed) => "NOT that of the manifest".to_owned(),
            Some(Outcome::NotPerformed { reason }) if check.is_some_and(|c| c.required) => {
                format!("not shown: {reason}")
            }
            _ => "asserted, not shown".to_owned(),
        };
        out.push_str(&format!("revision  {}: {}\n", plain(revision), plain(&how)));
    }
    out
}

/// Who signed the manifest, for formats that are signed.
fn signature_line(survey: &Survey) -> Option<String> {
    let mut checks = survey.checks.iter();
    checks.find(|c| c.name == "manifest-signature")?;
    Some(match &survey.manifest.signer {
        Some(signer) => format!("signer    {}\n", plain(signer)),
        None => "signer    NOT ESTABLISHED: the signature was not checked (give the signer's public key, from a source you trust, with --key)\n"
            .to_owned(),
    })
}

fn replica_line(replica: &SurveyedReplica, width: usize, survey: &Survey, paint: &Paint) -> String {
    let name = plain(&replica.name);
    let Some(report) = &replica.report else {
        return format!("{name:width$}  {}\n", paint.bad("unreachable"));
    };
    let good = report.files.iter().filter(|f| f.state == State::Verified);
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
    let mut out = if survey.manifest.format == ListFormat::Absent {
        format!("{name:width$}  {word}  {} bytes read\n", thousands(bytes))
    } else {
        format!(
            "{name:width$}  {word}  {} of {} verified, {} bytes read\n",
            good.count(),
            count(survey.manifest.files, "file"),
            thousands(bytes),
        )
    };
    let mut more = |label: &str, text: String| {
        out.push_str(&format!("{:width$}    {label:9} {}\n", "", plain(&text)));
    };
    if report.layout.kind != LayoutKind::Flat {
        more("layout", layout(&report.layout));
    }
    if survey.manifest.root.is_none() {
        if let Some(by) = compared(report) {
            more("compared", by);
        }
        match report.observed_root {
            Some(root) => more("root", format!("{root} (of what was found, not pinned)")),
            None => more("root", "none: not everything could be hashed".to_owned()),
        }
        more("weights", weights(report));
    }
    out
}

fn layout(layout: &Layout) -> String {
    let mut out = layout.kind.in_words().to_owned();
    if let Some(repository) = &layout.repository {
        out.push_str(&format!(" of {repository}"));
    }
    if let Some(revision) = &layout.revision {
        let how = match layout.chosen {
            Some(Chosen::ByRevision) => ", as asked",
            Some(Chosen::ByMain) => ", by refs/main",
            Some(Chosen::Only) => ", the only one",
            Some(Chosen::ByManifest) => ", named by the manifest",
            _ => "",
        };
        out.push_str(&format!(", snapshot {revision}{how}"));
    }
    if layout.kind == LayoutKind::HfLocalDir {
        let n = layout.claims.len();
        out.push_str(&format!(", download metadata of {}", count(n, "file")));
    }
    out
}

/// How many files were compared by which digests.
fn compared(report: &ReplicaReport) -> Option<String> {
    let mut by: std::collections::BTreeMap<String, usize> = Default::default();
    for file in report.files.iter().filter(|f| !f.compared.is_empty()) {
        let names: Vec<_> = file.compared.iter().map(Compared::to_string).collect();
        *by.entry(names.join(" and ")).or_default() += 1;
    }
    let each = by
        .into_iter()
        .map(|(by, n)| format!("{} by {by}", count(n, "file")));
    let each: Vec<_> = each.collect();
    (!each.is_empty()).then(|| each.join(", "))
}

fn weights(report: &ReplicaReport) -> String {
    let s = &report.structure;
    format!(
        "{} safetensors, {} GGUF, structure {}",
        s.safetensors,
        s.gguf,
        if s.problems.is_empty() {
            "as it should be"
        } else {
            "with problems"
        }
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

//! The report of `verify weights` for people.

use std::collections::BTreeMap;
use std::path::PathBuf;

use runseal::codes::Code;
use runseal::finding::{Finding, Outcome, Severity};
use runseal::relpath::RelPath;
use runseal::weights::{
    Algorithm, Basis, Chosen, Compared, Integrity, Layout, LayoutKind, ListFormat, Listing,
    ManifestSummary, Reading, ReplicaReport, Role, State, Survey, SurveyedReplica, Verdict,
    is_not_re_read,
};

use crate::cli::output::{Paint, count, plain, thousands};

/// What the report is about, beside the survey.
pub struct About<'a> {
    /// Where each manifest was read from.
    pub manifest_paths: &'a BTreeMap<Role, PathBuf>,
    /// What each expects.
    pub manifests: &'a BTreeMap<Role, Listing>,
    /// The digests asked for.
    pub algorithm: Algorithm,
}

/// The whole report.
pub fn text(survey: &Survey, about: &About, paint: &Paint) -> String {
    let mut out = String::new();
    for manifest in &survey.manifests {
        out.push_str(&head(manifest, survey, about));
    }
    if survey.basis == Basis::Reports {
        out.push_str("note      saved reports are judged; no replica was looked at\n");
    }
    out.push('\n');
    let names = survey.replicas.iter().map(shown_name);
    let width = names.map(|n| n.chars().count()).max().unwrap_or(0);
    for replica in &survey.replicas {
        out.push_str(&replica_line(replica, width, survey, paint));
    }
    for finding in &survey.findings {
        // One line per replica says how many there are.
        if finding.code != Code::NotReRead {
            out.push('\n');
            out.push_str(&finding_text(finding, survey, paint));
        }
    }
    out.push('\n');
    out.push_str(&reading_line(survey));
    out.push_str(&last_line(survey, paint));
    out
}

/// `r2`, or `r2:draft` for another checkpoint than the target.
fn shown_name(replica: &SurveyedReplica) -> String {
    match replica.role.as_str() {
        "target" => plain(&replica.name),
        other => format!("{}:{}", plain(&replica.name), plain(other)),
    }
}

fn head(manifest: &ManifestSummary, survey: &Survey, about: &About) -> String {
    let role = about.manifests.keys().find(|r| r.name() == manifest.role);
    let bytes = role.and_then(|r| about.manifests.get(r));
    let bytes = bytes.map_or(0, Listing::total_size);
    let path = role.and_then(|r| about.manifest_paths.get(r));
    let label = match manifest.role.as_str() {
        "target" => "manifest",
        other => other,
    };
    let mut out = match path {
        Some(path) => {
            let path = plain(&path.display().to_string());
            let files = count(manifest.files, "file");
            match manifest.root {
                Some(_) => format!("{label:9} {path}: {files}, {} bytes", thousands(bytes)),
                None => format!("{label:9} {path}: {files}"),
            }
        }
        None => format!("{label:9} none"),
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
    if !about.algorithm.sha256() && manifest.root.is_some() {
        out.push_str(
            "note      only BLAKE3 is compared, which the root does not commit to: nothing is verified against it\n",
        );
    }
    if !manifest.ignore.is_empty() {
        let paths: Vec<_> = manifest.ignore.iter().map(RelPath::to_string).collect();
        out.push_str(&format!("ignored   {}\n", plain(&paths.join(", "))));
    }
    if let Some(signed) = signature_line(manifest, survey) {
        out.push_str(&signed);
    }
    if let Some(revision) = manifest
        .revision
        .as_ref()
        .filter(|_| manifest.role == "target")
    {
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
fn signature_line(manifest: &ManifestSummary, survey: &Survey) -> Option<String> {
    if manifest.role != "target" {
        return None;
    }
    let mut checks = survey.checks.iter();
    checks.find(|c| c.name == "manifest-signature")?;
    Some(match &manifest.signer {
        Some(signer) => format!("signer    {}\n", plain(signer)),
        None => "signer    NOT ESTABLISHED: the signature was not checked (give the signer's public key, from a source you trust, with --key)\n"
            .to_owned(),
    })
}

fn replica_line(replica: &SurveyedReplica, width: usize, survey: &Survey, paint: &Paint) -> String {
    let name = shown_name(replica);
    let manifest = survey.manifests.iter().find(|m| m.role == replica.role);
    let Some(report) = &replica.report else {
        return format!("{name:width$}  {}\n", paint.bad("unreachable"));
    };
    let left_out = report.files.iter().filter(|f| is_not_re_read(f)).count();
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
    let mut out = match manifest.filter(|m| m.format != ListFormat::Absent) {
        None => format!("{name:width$}  {word}  {} bytes read", thousands(bytes)),
        Some(manifest) => format!(
            "{name:width$}  {word}  {} of {} verified, {} bytes read",
            good.count(),
            count(manifest.files, "file"),
            thousands(bytes),
        ),
    };
    if left_out > 0 {
        out.push_str(&format!(", {} not re-read", count(left_out, "file")));
    }
    if let Some(key) = &replica.signed_by {
        out.push_str(&format!(", signed by {key}"));
    }
    out.push('\n');
    let mut more = |label: &str, text: String| {
        out.push_str(&format!("{:width$}    {label:9} {}\n", "", plain(&text)));
    };
    if let Some(found) = report
        .layout
        .as_ref()
        .filter(|l| l.kind != LayoutKind::Flat)
    {
        more("layout", layout(found));
    }
    if manifest.is_none_or(|m| m.root.is_none()) {
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
    let Some(s) = &report.structure else {
        return "not looked at".to_owned();
    };
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

/// Code, subject, detail and values of a finding.
pub fn finding_lines(finding: &Finding, paint: &Paint) -> String {
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

fn finding_text(finding: &Finding, survey: &Survey, paint: &Paint) -> String {
    let mut out = finding_lines(finding, paint);
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
        let (subject, path) = finding.subject.split_once('/')?;
        let mine = subject == shown_name(replica) && replica.report.is_some();
        let path = RelPath::parse(path).ok().filter(|_| mine)?;
        survey.agreement.others(&replica.name, &replica.role, &path)
    })
}

/// How the files were read, and what that left in the page cache.
fn reading_line(survey: &Survey) -> String {
    let reports = survey.replicas.iter().filter_map(|r| r.report.as_ref());
    let all = reports.fold(Reading::default(), |sum, r| sum.plus(r.reading));
    let ways = [
        (all.dropped, "dropped behind the reader"),
        (all.dont_cache, "with RWF_DONTCACHE"),
        (all.direct, "with O_DIRECT"),
        (all.kept, "STAYED in the page cache"),
    ];
    let ways = ways.iter().filter(|(n, _)| *n > 0);
    let ways: Vec<_> = ways
        .map(|(n, how)| format!("{} {how}", count(*n as usize, "file")))
        .collect();
    if ways.is_empty() {
        return String::new();
    }
    let kept = match all.kept {
        0 => "page cache left as it was",
        _ => "page cache not left as it was",
    };
    format!("{kept}: {}\n", ways.join(", "))
}

/// The required checks that did not pass without a finding that says so.
fn missing_checks(survey: &Survey) -> String {
    let required = survey.checks.iter().filter(|c| c.required);
    let each = required.filter_map(|check| match &check.outcome {
        Outcome::Passed => None,
        Outcome::Failed => Some(format!("{} failed", check.name)),
        Outcome::NotPerformed { reason } => {
            Some(format!("{} was not performed: {reason}", check.name))
        }
    });
    plain(&each.collect::<Vec<_>>().join("; "))
}

fn last_line(survey: &Survey, paint: &Paint) -> String {
    let errors = survey
        .findings
        .iter()
        .filter(|f| f.severity == Severity::Error);
    let left_out = survey.findings.iter().filter(|f| f.code == Code::NotReRead);
    let verdict = match (survey.verdict, errors.count(), left_out.count()) {
        (Verdict::Verified, ..) => paint.good("verified"),
        // No finding, and yet not verified: something required was not done.
        (_, 0, 0) => paint.bad(&format!("not verified: {}", missing_checks(survey))),
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

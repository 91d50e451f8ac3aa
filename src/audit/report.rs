//! The audit report for people: one screen, worst news first.

use std::fmt::Write;

use super::{AuditReport, Figure, Verdict};
use crate::finding::{Outcome, Severity};
use crate::record::limitations::{Lang, text};
use crate::record::{RunRecord, Status};

/// How much is written out.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Language of the limitations.
    pub lang: Lang,
    /// Every check and every limitation, not only what matters most.
    pub full: bool,
}

/// Renders a report as plain text.
pub fn human(report: &AuditReport, style: Style) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    line(format!("record {}", report.path));
    match &report.derived {
        Some(record) => axes(record, report, &mut line),
        None => line("  nothing could be derived from the evidence".into()),
    }
    figures(report, style, &mut line);
    checks(report, style, &mut line);
    findings(report, &mut line);
    if let Some(record) = &report.derived {
        limitations(record, style, &mut line);
    }
    line(String::new());
    line(verdict(report));
    out
}

fn axes(record: &RunRecord, report: &AuditReport, line: &mut dyn FnMut(String)) {
    let t = &record.transport;
    let g = &record.grades;
    let at = &record.attribution;
    let i = &record.integrity;
    let taints = match record.run.taints.len() {
        0 => String::new(),
        n => format!(", {n} taint(s)"),
    };
    line(format!(
        "  {}{taints}   {}   {}",
        headline(&record.run.status),
        record.run.suite,
        record.run.started
    ));
    let model: Vec<&str> = record
        .model
        .checkpoints
        .iter()
        .map(|c| c.name.as_str())
        .collect();
    line(format!(
        "  {} on {} ({} machine(s))",
        model.join(", "),
        record.runtime.engine,
        record.hardware.machines
    ));
    line(String::new());
    line(format!(
        "  transport    {} / {} completed{}",
        t.completed,
        t.declared,
        lost(record)
    ));
    let how = match report.grades.as_str() {
        "recomputed" => "re-graded by the frozen scorer".to_owned(),
        other => other.to_owned(),
    };
    line(format!(
        "  grades       {} / {} pass, {} fail, {} ungraded   {how}",
        g.pass, g.declared, g.fail, g.ungraded
    ));
    line(format!(
        "  attribution  {} / {} verified, {} / {} verified passes   witness: {}",
        at.verified, at.declared, at.verified_passes, at.declared, at.witness
    ));
    line(format!(
        "  integrity    {} / {} replicas rehashed and verified, {} unchanged after, {} distinct",
        i.verified, i.replicas, i.unchanged_after, i.distinct
    ));
}

fn headline(status: &Status) -> String {
    match status {
        Status::Completed => "COMPLETED".into(),
        Status::Failed {
            state,
            cause,
            detail,
        } => format!("FAILED in {state}: {cause} ({detail})"),
        Status::Aborted { cause } => format!("ABORTED by {cause}"),
        Status::Refused { cause, detail } => format!("REFUSED: {cause} ({detail})"),
    }
}

fn lost(record: &RunRecord) -> String {
    let t = &record.transport;
    let rest: Vec<String> = [
        (t.http_error, "http_error"),
        (t.stream_error, "stream_error"),
        (t.truncated, "truncated"),
        (t.timeout, "timeout"),
        (t.cancelled, "cancelled"),
        (t.connect_error, "connect_error"),
        (t.not_attempted, "not_attempted"),
    ]
    .iter()
    .filter(|(n, _)| *n > 0)
    .map(|(n, name)| format!("{n} {name}"))
    .collect();
    if rest.is_empty() {
        String::new()
    } else {
        format!(" ({})", rest.join(", "))
    }
}

fn figures(report: &AuditReport, style: Style, line: &mut dyn FnMut(String)) {
    // A figure without a value says little on one screen, unless the record
    // claims one.
    let silent = |f: &&Figure| f.stated.is_none() && f.recomputed.is_none() && !style.full;
    let shown: Vec<&Figure> = report.figures.iter().filter(|f| !silent(f)).collect();
    if report.figures.is_empty() {
        return;
    }
    line(String::new());
    let width = shown.iter().map(|f| f.id.len()).max().unwrap_or(0).max(30);
    line(format!(
        "  {:<width$} {:>7} {:>21}  label",
        "figure", "value", "n"
    ));
    for f in &shown {
        let shown = f.recomputed.as_ref().or(f.stated.as_ref());
        let value = match shown {
            Some(v) => format!("{v} {}", f.unit),
            None => "not measured".into(),
        };
        let mut label = format!("{}, {}", f.derivation, f.witness);
        if f.derivation == "recomputed" && f.stated != f.recomputed {
            let stated = f.stated.as_deref().unwrap_or("nothing");
            let _ = write!(label, "; the record says {stated}");
        }
        if let Some(note) = &f.note {
            let _ = write!(label, "; {note}");
        }
        line(format!(
            "  {:<width$} {:>22} {:>6}  {label}",
            f.id, value, f.n
        ));
    }
    let hidden = report.figures.len() - shown.len();
    if hidden > 0 {
        line(format!(
            "  {hidden} figures were not measured (--full says why)"
        ));
    }
}

fn checks(report: &AuditReport, style: Style, line: &mut dyn FnMut(String)) {
    line(String::new());
    let passed = report
        .checks
        .iter()
        .filter(|c| c.outcome == Outcome::Passed)
        .count();
    line(format!(
        "  checks: {passed} of {} passed",
        report.checks.len()
    ));
    for c in &report.checks {
        match &c.outcome {
            Outcome::Passed if style.full => line(format!("    passed         {}", c.name)),
            Outcome::Passed => {}
            Outcome::Failed => line(format!("    FAILED         {}", c.name)),
            Outcome::NotPerformed { reason } => {
                let weight = if c.required { "" } else { " (allowed)" };
                line(format!("    not performed  {}: {reason}{weight}", c.name));
            }
        }
    }
}

fn findings(report: &AuditReport, line: &mut dyn FnMut(String)) {
    const SHOWN: usize = 12;
    if report.findings.is_empty() {
        return;
    }
    line(String::new());
    for f in report.findings.iter().take(SHOWN) {
        let weight = match f.severity {
            Severity::Error => "error",
            Severity::Note => "note ",
        };
        line(format!(
            "  {weight} {} [{}] {}",
            f.code, f.subject, f.detail
        ));
        if let (Some(expected), Some(found)) = (&f.expected, &f.found) {
            line(format!("          expected {expected}"));
            line(format!("          found    {found}"));
        }
    }
    if report.findings.len() > SHOWN {
        line(format!(
            "  … and {} more (--format json shows all)",
            report.findings.len() - SHOWN
        ));
    }
    line("  `verify explain CODE` says what a finding means and what to do.".into());
}

fn limitations(record: &RunRecord, style: Style, line: &mut dyn FnMut(String)) {
    line(String::new());
    if style.full {
        line("  limitations".into());
        for l in &record.limitations {
            line(format!("    - {}", text(l, style.lang)));
        }
    } else {
        line(format!(
            "  {} limitations apply (--full shows them)",
            record.limitations.len()
        ));
    }
}

fn verdict(report: &AuditReport) -> String {
    let signers = if report.signers.is_empty() {
        "nobody".to_owned()
    } else {
        report.signers.join(", ")
    };
    match report.verdict {
        Verdict::Verified if report.grades == "recomputed" => format!(
            "VERIFIED: the record follows from its evidence and is signed by {signers}, whom you trust.\n\
             This proves the arithmetic and the grading, not that the events happened as written."
        ),
        Verdict::Verified => format!(
            "VERIFIED as far as it is open, grades: {}. Signed by {signers}, whom you trust.\n\
             This proves the arithmetic, not the grades, and not that the events happened as written.",
            report.grades
        ),
        Verdict::SelfConsistent => format!(
            "SELF-CONSISTENT, signer not established: the record follows from its evidence, and\n\
             the signature of {signers} is valid, but signer not trusted (pass --trusted-key)."
        ),
        Verdict::NotVerified => "NOT VERIFIED: see what failed or was not performed above.".into(),
    }
}

//! A comparison for people.

use std::fmt::Write;

use super::{Comparison, Delta};
use crate::finding::Severity;

/// Renders a comparison as plain text.
pub fn human(c: &Comparison) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "A  {}\nB  {}", c.a, c.b);
    if let Some(control) = &c.control {
        let _ = writeln!(out, "C  {control}");
    }
    out.push('\n');
    if c.differences.is_empty() {
        out.push_str("  nothing that is recorded differs\n");
    }
    for d in &c.differences {
        let role = match (d.declared, d.kind.as_str()) {
            (true, _) => "factor",
            (false, "condition") => "DIFFERS",
            (false, _) => "setup",
        };
        let _ = writeln!(
            out,
            "  {role:<8} {}\n             A {}\n             B {}",
            d.name,
            short(&d.a),
            short(&d.b)
        );
    }
    out.push('\n');
    table(&c.deltas, "B − A", &mut out);
    if !c.control_deltas.is_empty() {
        table(&c.control_deltas, "over C", &mut out);
    }
    for f in &c.findings {
        let weight = match f.severity {
            Severity::Error => "error",
            Severity::Note => "note ",
        };
        let _ = writeln!(out, "  {weight} {} [{}] {}", f.code, f.subject, f.detail);
    }
    if !c.findings.is_empty() {
        out.push('\n');
    }
    if !c.comparable {
        out.push_str("NOT COMPARABLE: no difference is shown.\n");
        return out;
    }
    out.push_str(match c.cause.supported {
        true => "COMPARABLE, and a cause may be named: ",
        false => "COMPARABLE, but no cause may be named: ",
    });
    let _ = writeln!(out, "{}.", c.cause.reason);
    out
}

fn short(text: &str) -> String {
    const SHOWN: usize = 100;
    match text.char_indices().nth(SHOWN) {
        Some((i, _)) => format!("{}…", &text[..i]),
        None if text.is_empty() => "(empty)".to_owned(),
        None => text.to_owned(),
    }
}

fn table(deltas: &[Delta], title: &str, out: &mut String) {
    if deltas.is_empty() {
        return;
    }
    let width = deltas.iter().map(|d| d.metric.len()).max().unwrap_or(0);
    let _ = writeln!(
        out,
        "  {:<width$} {:>14} {:>14} {title:>14}   95 % interval",
        "metric", "A", "B"
    );
    for d in deltas {
        let show = |v: &Option<String>| v.clone().unwrap_or_else(|| "-".to_owned());
        let interval = match (&d.interval, &d.note) {
            (Some([lo, hi]), _) => format!("[{lo}, {hi}]"),
            (None, Some(note)) => note.clone(),
            (None, None) => String::new(),
        };
        let clear = if d.clear == Some(true) {
            "  clear of 0"
        } else {
            ""
        };
        let _ = writeln!(
            out,
            "  {:<width$} {:>14} {:>14} {:>14}   {interval}{clear}",
            d.metric,
            show(&d.a),
            show(&d.b),
            show(&d.difference)
        );
    }
    out.push('\n');
}

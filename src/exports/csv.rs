//! Tables (RFC 4180): one of the metrics, one of the cases.

use crate::record::{Attribution, RunRecord};
use crate::scorer::Grade;

/// One row per metric.
pub fn metrics(record: &RunRecord) -> Vec<u8> {
    let mut out = row(&[
        "run",
        "metric",
        "value",
        "unit",
        "n",
        "estimator",
        "denominator",
        "derivation",
        "witness",
        "note",
    ]);
    for m in &record.metrics {
        out.push_str(&row(&[
            &record.run.id,
            &m.name(),
            m.value.as_deref().unwrap_or_default(),
            &m.unit,
            &m.n.to_string(),
            &m.estimator,
            &m.denominator,
            &m.derivation,
            &m.witness,
            m.note.as_deref().unwrap_or_default(),
        ]));
    }
    out.into_bytes()
}

/// One row per declared attempt; transport, grade and attribution stay three columns.
pub fn cases(record: &RunRecord) -> Vec<u8> {
    let mut out = row(&[
        "run",
        "case",
        "rep",
        "endpoint",
        "transport",
        "grade",
        "why",
        "attribution",
        "because",
        "duration_ns",
        "first_generated_ns",
        "first_content_ns",
        "prompt_tokens",
        "completion_tokens",
        "finish_reason",
    ]);
    let or_empty = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
    for c in &record.cases {
        let (grade, why) = match &c.grade {
            Grade::Pass => ("pass", ""),
            Grade::Fail { check } => ("fail", check.as_str()),
            Grade::Ungraded { reason } => ("ungraded", reason.as_str()),
        };
        let (attribution, because) = match &c.attribution {
            Attribution::Verified => ("verified", ""),
            Attribution::Unverified { because } => ("unverified", because.as_str()),
        };
        out.push_str(&row(&[
            &record.run.id,
            &c.case,
            &c.rep.to_string(),
            c.endpoint.as_deref().unwrap_or_default(),
            c.transport.name(),
            grade,
            why,
            attribution,
            because,
            &or_empty(c.duration_ns),
            &or_empty(c.first_generated_ns),
            &or_empty(c.first_content_ns),
            &or_empty(c.prompt_tokens),
            &or_empty(c.completion_tokens),
            c.finish_reason.as_deref().unwrap_or_default(),
        ]));
    }
    out.into_bytes()
}

fn row(fields: &[&str]) -> String {
    let quoted: Vec<String> = fields.iter().map(|f| quote(f)).collect();
    format!("{}\r\n", quoted.join(","))
}

/// Quotes what needs it. A field that a spreadsheet would run as a formula gets a
/// leading apostrophe.
fn quote(field: &str) -> String {
    let formula = field.starts_with(['=', '@', '\t', '\r'])
        || (field.starts_with(['+', '-']) && field.parse::<f64>().is_err());
    let text = match formula {
        true => format!("'{field}"),
        false => field.to_owned(),
    };
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_survive_and_are_no_formulas() {
        assert_eq!(
            row(&["a", "b,c", "d\"e", "=1+1", "-2.5", "-x"]),
            "a,\"b,c\",\"d\"\"e\",'=1+1,-2.5,'-x\r\n"
        );
    }
}

//! What a sealed run comes to: one screen, one JSON line, one exit code.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use runseal::audit::Verdict;
use runseal::audit::report::{Style, human as audit_text};
use runseal::bundle::index::RECORD_FILE;
use runseal::codes::Code;
use runseal::record::limitations::Lang;
use runseal::record::{RunRecord, Status};
use runseal_runner::run::Finished;
use serde_json::json;

use super::{Format, complain, print};

/// A share of cases, numerator and denominator.
pub type Ratio = (u64, u64);

/// Reads `3/4`, `0.75` or `1`.
pub fn ratio(text: &str) -> Result<Ratio, String> {
    let bad = || "a share from 0 to 1 is needed, such as 0.75 or 3/4".to_owned();
    let (num, den) = match (text.split_once('/'), text.split_once('.')) {
        (Some((n, d)), _) => (n.parse().map_err(|_| bad())?, d.parse().map_err(|_| bad())?),
        (None, Some((w, f))) => {
            let digits = u32::try_from(f.len())
                .ok()
                .filter(|n| *n <= 9)
                .ok_or_else(bad)?;
            let den = 10u64.pow(digits);
            let whole: u64 = if w.is_empty() {
                0
            } else {
                w.parse().map_err(|_| bad())?
            };
            let part: u64 = f.parse().map_err(|_| bad())?;
            (
                whole
                    .checked_mul(den)
                    .and_then(|w| w.checked_add(part))
                    .ok_or_else(bad)?,
                den,
            )
        }
        (None, None) => (text.parse().map_err(|_| bad())?, 1),
    };
    if den == 0 || num > den {
        Err(bad())
    } else {
        Ok((num, den))
    }
}

/// Prints the result and turns it into the exit code.
pub fn deliver(
    finished: &Finished,
    public_key: &Path,
    format: Format,
    required: Option<Ratio>,
) -> anyhow::Result<ExitCode> {
    let text = match format {
        Format::Human => human(finished, public_key, required),
        Format::Json => json_line(finished, public_key),
    };
    print(&text).with_context(|| {
        format!(
            "the result could not be printed; the sealed bundle is {}",
            finished.bundle.display()
        )
    })?;
    // The run's own audit can establish consistency, never the signer.
    if finished.audit.verdict == Verdict::NotVerified {
        complain(&format!(
            "error: the bundle does not pass its own audit (hint: verify record {} --full)",
            finished.bundle.display()
        ));
        return Ok(ExitCode::from(1));
    }
    if let Some((num, den)) = required
        && !enough(&finished.record, (num, den))
    {
        let g = &finished.record.grades;
        complain(&format!(
            "required: {num}/{den} of the cases must pass; {} of {} did",
            g.pass, g.declared
        ));
    }
    Ok(exit_code(&finished.record, required))
}

/// Completed, untainted, every declared case attempted; and the share of passes
/// when one is required.
fn exit_code(record: &RunRecord, required: Option<Ratio>) -> ExitCode {
    let clean = record.run.status == Status::Completed
        && record.run.taints.is_empty()
        && record.transport.not_attempted == 0;
    let enough = required.is_none_or(|r| enough(record, r));
    ExitCode::from(u8::from(!(clean && enough)))
}

/// Compares exactly: no figure is rounded on the way.
fn enough(record: &RunRecord, (num, den): Ratio) -> bool {
    u128::from(record.grades.pass) * u128::from(den)
        >= u128::from(num) * u128::from(record.grades.declared)
}

/// One screen.
fn human(finished: &Finished, public_key: &Path, required: Option<Ratio>) -> String {
    let style = Style {
        lang: Lang::En,
        full: false,
    };
    // A run that trusts nobody has not failed by that: who signed is for readers
    // to say, so the question is left out of this screen.
    let mut shown = finished.audit.clone();
    shown.checks.retain(|c| c.name != "signer-trusted");
    shown.findings.retain(|f| f.code != Code::SignerNotTrusted);
    format!(
        "{}\nresult       {}\nbundle       {}\npublic key   {}\ncheck it     verify record {} --trusted-key {}\n",
        audit_text(&shown, style),
        result(&finished.record, required),
        finished.bundle.display(),
        public_key.display(),
        finished.bundle.display(),
        public_key.display()
    )
}

/// What the exit code rests on, in one line.
fn result(record: &RunRecord, required: Option<Ratio>) -> String {
    let status = match &record.run.status {
        Status::Completed => "completed".to_owned(),
        Status::Failed { state, cause, .. } => format!("failed in {state}: {cause}"),
        Status::Aborted { cause } => format!("aborted: {cause}"),
        Status::Refused { cause, .. } => format!("refused: {cause}"),
    };
    let taints = match record.run.taints.len() {
        0 => "untainted".to_owned(),
        n => format!("TAINTED ({n})"),
    };
    let sent = record.transport.declared - record.transport.not_attempted;
    let share = required.map_or(String::new(), |(num, den)| {
        let met = if enough(record, (num, den)) {
            "met"
        } else {
            "NOT MET"
        };
        format!(", required share {num}/{den} {met}")
    });
    format!(
        "{status}, {taints}, {sent} of {} cases attempted{share}",
        record.transport.declared
    )
}

/// The last line for scripts.
fn json_line(finished: &Finished, public_key: &Path) -> String {
    let r = &finished.record;
    let line = json!({
        "bundle": finished.bundle.display().to_string(),
        "record": finished.bundle.join(RECORD_FILE).display().to_string(),
        "public_key": public_key.display().to_string(),
        "status": r.run.status.name(),
        "run": r.run,
        "taints": r.run.taints,
        "transport": r.transport,
        "grades": r.grades,
        "attribution": r.attribution,
        "integrity": r.integrity,
        "audit": finished.audit.verdict,
    });
    format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_exactly() {
        assert_eq!(ratio("3/4"), Ok((3, 4)));
        assert_eq!(ratio("0.75"), Ok((75, 100)));
        assert_eq!(ratio("1"), Ok((1, 1)));
        assert_eq!(ratio("0"), Ok((0, 1)));
        for bad in ["", "2", "1.5", "5/4", "1/0", "x", "-1", "0.", "NaN", "0.x"] {
            assert!(ratio(bad).is_err(), "{bad}");
        }
    }
}

//! Results of other benchmark programs, with the same labels: what follows from what
//! their file holds, what agrees, what is only said.
//!
//! These programs add up in binary64, each in its own order, so a figure that is off by
//! no more than a few units of the last place is `consistent` and no finding.

mod aiperf;
mod benchy;
mod guidellm;
mod vllm;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed, Zero};
use serde_json::Value;

use super::kind::Kind;
use super::number::{Interval, exact, nearest, text};
use super::report::{Auditor, Derivation, FigureOf};
use crate::codes::Code;
use crate::metrics::exact::percentile_of;

/// Relative distance that adding up in another order explains: 10⁻⁹.
const NOISE: u64 = 1_000_000_000;

/// Audits a result of the program that `kind` names.
pub fn audit(a: &mut Auditor, kind: Kind, value: &Value) {
    match kind {
        Kind::VllmBench => vllm::audit(a, value),
        Kind::LlamaBenchy => benchy::audit(a, value),
        Kind::Guidellm => guidellm::audit(a, value),
        Kind::Aiperf => aiperf::audit(a, value),
        _ => a.skip("content", true, "this version cannot audit it"),
    }
    a.close("totals", &[Code::TotalNotReproduced]);
    a.close("means", &[Code::MeanNotReproduced]);
    a.close("percentiles", &[Code::PercentileNotReproduced]);
    a.close("rates", &[Code::RateNotReproduced]);
    a.close("possible", &[Code::FigureImpossible]);
}

/// A number at a key.
fn number(value: &Value, key: &str) -> Option<f64> {
    value.get(key)?.as_f64()
}

/// A list of numbers at a key; `None` when there is none or something else is in it.
fn numbers(value: &Value, key: &str) -> Option<Vec<f64>> {
    let list = value.get(key)?.as_array()?;
    list.iter().map(Value::as_f64).collect()
}

/// How a stated number agrees with what follows.
fn agrees(stated: f64, follows: &BigRational) -> Derivation {
    let off = (exact(stated) - follows).abs();
    let noise = follows.abs() / BigRational::from_integer(BigInt::from(NOISE));
    // These programs write all digits; somebody may have rounded them, but not to one.
    let rounded = follows.abs() / BigRational::from_integer(200.into());
    let point = Interval {
        lo: follows.clone(),
        hi: follows.clone(),
    };
    if stated.to_bits() == nearest(follows).to_bits() {
        Derivation::Recomputed
    } else if off <= noise || (off <= rounded && Interval::of(stated).meets(&point)) {
        Derivation::Consistent
    } else {
        // Whoever asks makes a finding of it.
        Derivation::Stated
    }
}

/// What to say of a figure that follows from something.
struct Line<'a> {
    id: String,
    stated: f64,
    follows: Option<BigRational>,
    unit: &'static str,
    n: Option<u64>,
    code: Code,
    basis: &'a str,
}

/// Adds a figure; a finding when what follows is another value.
fn say(a: &mut Auditor, line: Line) {
    let Some(follows) = line.follows else {
        return a.stated(line.id, text(line.stated), line.unit, line.n, line.basis);
    };
    let derivation = agrees(line.stated, &follows);
    let here = text(nearest(&follows));
    if derivation == Derivation::Stated {
        a.differ(
            line.code,
            &line.id,
            format!("it does not follow: {}", line.basis),
            &here,
            text(line.stated),
        );
    }
    a.figure(FigureOf {
        id: line.id,
        stated: Some(text(line.stated)),
        recomputed: Some(here),
        unit: line.unit,
        n: line.n,
        derivation,
        basis: line.basis.to_owned(),
    });
}

/// Type-7 percentile of binary64 values, exactly.
fn percentile(values: &[f64], num: u32, den: u32) -> Option<BigRational> {
    let mut exact_values: Vec<BigRational> = values.iter().map(|v| exact(*v)).collect();
    percentile_of(&mut exact_values, num, den)
}

fn quotient(num: f64, den: f64) -> Option<BigRational> {
    let den = exact(den);
    (!den.is_zero()).then(|| exact(num) / den)
}

/// Values that must not fall: minimum, percentiles, maximum.
fn rising(a: &mut Auditor, id: &str, values: &[(&str, Option<f64>)]) {
    let there: Vec<(&str, f64)> = values
        .iter()
        .filter_map(|(k, v)| Some((*k, (*v)?)))
        .collect();
    for pair in there.windows(2) {
        if pair[0].1 > pair[1].1 {
            a.add(
                Code::FigureImpossible,
                format!("{id}.{}", pair[1].0),
                format!("it is below {}", pair[0].0),
            );
        }
    }
}

/// A mean lies between the ends.
fn between(a: &mut Auditor, id: &str, mean: Option<f64>, min: Option<f64>, max: Option<f64>) {
    let Some(mean) = mean else {
        return;
    };
    // A mean of equal values may come out a last place beside them.
    let slack = mean.abs() / NOISE as f64;
    if min.is_some_and(|v| mean < v - slack) || max.is_some_and(|v| mean > v + slack) {
        a.add(
            Code::FigureImpossible,
            id,
            "a mean lies between the smallest and the largest value",
        );
    }
}

//! Figures of sweeps and cards, batch by batch. The estimators of a sweep are those of
//! the published one: the rate of a batch, and the mean of the rates of its repetitions.
//! The batches of a card say what they measure, and have figures for that.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_rational::BigRational;

use super::exact::{decimal, ratio};
use super::{Metric, rates, recall};
use crate::bundle::files::GradeLine;
use crate::grading::Declared;
use crate::plan::RunPlan;
use crate::suite::{BatchOf, Measure, SuiteToml};
use crate::trace::{Trace, Transport};

const S: u128 = 1_000_000_000;
const MS: u128 = 1_000_000;

/// All figures, batch by batch; there is none over several batches. `grades` are in the
/// order of `declared`.
pub fn sweep(
    suite: &SuiteToml,
    plan: &RunPlan,
    declared: &[Declared],
    grades: &[GradeLine],
) -> Vec<Metric> {
    let cases = plan.suite.case_ids.iter().map(String::as_str);
    let batch_of: BTreeMap<&str, usize> = cases.zip(suite.batch_numbers()).collect();
    let mut out = Vec::new();
    for (i, batch) in suite.batches.iter().enumerate() {
        let (mine, grades): (Vec<Declared>, Vec<GradeLine>) = declared
            .iter()
            .zip(grades)
            .filter(|(d, _)| batch_of.get(d.case) == Some(&i))
            .map(|(d, g)| (*d, g.clone()))
            .unzip();
        let metrics = match batch.measures {
            Some(Measure::Recall) => recall::recall(&grades).to_vec(),
            _ => of_batch(batch, plan, &mine),
        };
        out.extend(metrics.into_iter().map(|m| Metric {
            batch: Some(i as u32 + 1),
            ..m
        }));
    }
    out
}

/// In a sweep, and of several streams: the rate of each repetition and the mean of those.
/// Of decode and prefill: the mean of their rates. Then mean request rate, mean time to
/// first output, and how many attempts generated the fixed number of tokens.
fn of_batch(batch: &BatchOf, plan: &RunPlan, mine: &[Declared]) -> Vec<Metric> {
    let mut metrics = match batch.measures {
        Some(Measure::Decode) => vec![rates::decode(mine), request_rate(mine)],
        Some(Measure::Prefill) => vec![rates::prefill(mine)],
        _ => {
            let mut metrics = of_repetitions(batch, plan.load.repetitions, mine);
            metrics.push(request_rate(mine));
            metrics
        }
    };
    metrics.push(first_generated(mine));
    let fixed = batch.output_tokens.min(plan.requests.max_tokens);
    metrics.push(fixed_output(mine, fixed));
    metrics
}

fn of_repetitions(batch: &BatchOf, repetitions: u32, mine: &[Declared]) -> Vec<Metric> {
    let rates: Vec<Result<BigRational, String>> = (0..repetitions)
        .map(|rep| {
            let of: Vec<Declared> = mine.iter().copied().filter(|d| d.rep == rep).collect();
            rate(&of)
        })
        .collect();
    let mut metrics: Vec<Metric> = rates
        .iter()
        .zip(0..)
        .map(|(rate, rep)| Metric {
            rep: Some(rep),
            ..one_rate(rate, batch.size() as usize)
        })
        .collect();
    metrics.push(mean_rate(&rates));
    metrics
}

pub(super) fn metric(id: &str, unit: &str, n: usize, estimator: &str, denominator: &str) -> Metric {
    Metric {
        id: id.into(),
        value: None,
        unit: unit.into(),
        n: n as u64,
        estimator: estimator.into(),
        denominator: denominator.into(),
        derivation: "recomputed".into(),
        witness: "operator".into(),
        note: None,
        stage: None,
        batch: None,
        rep: None,
    }
}

/// Completion tokens of a batch over its wall time, first send to last end. Every
/// attempt must have been sent, have ended and, where it completed, be counted.
fn rate(batch: &[Declared]) -> Result<BigRational, String> {
    let traces: Vec<&Trace> = batch.iter().filter_map(|d| d.trace).collect();
    let sent: Vec<(u64, u64)> = traces
        .iter()
        .filter_map(|t| Some((t.send?, t.end?)))
        .collect();
    if sent.len() < batch.len() || sent.is_empty() {
        let lacking = batch.len() - sent.len();
        return Err(format!(
            "incomplete: {lacking} attempts were not sent or have no end"
        ));
    }
    let uncounted = traces
        .iter()
        .filter(|t| t.transport() == Transport::Completed && t.completion_tokens().is_none())
        .count();
    if uncounted > 0 {
        return Err(format!(
            "incomplete: {uncounted} completed attempts without a token count"
        ));
    }
    let tokens: u128 = traces
        .iter()
        .filter_map(|t| t.completion_tokens())
        .map(u128::from)
        .sum();
    let first = sent.iter().map(|s| s.0).min().unwrap_or(0);
    let last = sent.iter().map(|s| s.1).max().unwrap_or(0);
    let wall = last.saturating_sub(first);
    ratio(tokens * S, wall.into()).ok_or_else(|| "the batch took no time".to_owned())
}

fn one_rate(rate: &Result<BigRational, String>, n: usize) -> Metric {
    let mut m = metric(
        "batch-throughput/v1",
        "tokens/s",
        n,
        "pooled rate",
        "batch duration: first send to last end, failed requests included",
    );
    match rate {
        Ok(rate) => m.value = Some(decimal(rate, 6)),
        Err(why) => m.note = Some(why.clone()),
    }
    m
}

pub(super) fn mean(values: &[BigRational]) -> Option<BigRational> {
    let n = ratio(values.len() as u128, 1)?;
    let sum: BigRational = values.iter().sum();
    (!values.is_empty()).then(|| sum / n)
}

fn mean_rate(rates: &[Result<BigRational, String>]) -> Metric {
    let mut m = metric(
        "batch-throughput-mean/v1",
        "tokens/s",
        rates.len(),
        "arithmetic mean of the rates of the repetitions",
        "repetitions of the batch",
    );
    let good: Vec<BigRational> = rates.iter().filter_map(|r| r.clone().ok()).collect();
    if good.len() == rates.len() {
        m.value = mean(&good).map(|r| decimal(&r, 6));
    } else {
        let lacking = rates.len() - good.len();
        m.note = Some(format!("incomplete: {lacking} repetitions have no rate"));
    }
    m
}

fn request_rate(batch: &[Declared]) -> Metric {
    let rates: Vec<BigRational> = batch
        .iter()
        .filter_map(|d| {
            let t = d.trace?;
            let took = t.end?.checked_sub(t.send?)?;
            ratio(u128::from(t.completion_tokens()?) * S, took.into())
        })
        .collect();
    of_attempts(
        "request-rate-mean/v1",
        "tokens/s",
        "arithmetic mean of completion tokens / (end − send)",
        &rates,
        batch.len(),
    )
}

fn first_generated(batch: &[Declared]) -> Metric {
    let times: Vec<BigRational> = batch
        .iter()
        .filter_map(|d| {
            let t = d.trace?;
            let took = t.first_generated?.checked_sub(t.send?)?;
            Some(BigRational::new(BigInt::from(took), BigInt::from(MS)))
        })
        .collect();
    of_attempts(
        "first-generated-mean/v1",
        "ms",
        "arithmetic mean of first generated − send",
        &times,
        batch.len(),
    )
}

fn of_attempts(
    id: &str,
    unit: &str,
    estimator: &str,
    values: &[BigRational],
    declared: usize,
) -> Metric {
    let of = format!("attempts with such a value; {declared} declared");
    let mut m = metric(id, unit, values.len(), estimator, &of);
    m.value = mean(values).map(|r| decimal(&r, 6));
    if values.len() < declared {
        let lacking = declared - values.len();
        m.note = Some(format!("{lacking} declared attempts have no such value"));
    }
    m
}

fn fixed_output(batch: &[Declared], tokens: u64) -> Metric {
    let whole = |d: &&Declared| {
        d.trace.is_some_and(|t| {
            t.transport() == Transport::Completed
                && t.finish.as_deref() == Some("length")
                && t.completion_tokens() == Some(tokens)
        })
    };
    let n = batch.iter().filter(whole).count();
    let mut m = metric(
        "fixed-output/v1",
        "attempts",
        batch.len(),
        "count",
        &format!("declared attempts; finish reason length and {tokens} completion tokens"),
    );
    m.value = Some(n.to_string());
    if n < batch.len() {
        m.note = Some("not every attempt generated the fixed number of tokens".into());
    }
    m
}

//! Decode and prefill rates of a card, each the mean over the attempts of a batch.
//!
//! Both are complete or absent: one attempt that failed, or reported too little, leaves
//! the figure without a value, since a mean over the rest would be one of the survivors.

use num_rational::BigRational;

use super::Metric;
use super::exact::{decimal, ratio};
use super::sweep::{mean, metric};
use crate::grading::Declared;
use crate::trace::{Trace, Transport};

const S: u128 = 1_000_000_000;

/// `decode-rate-mean/v1`: (n − k1) / (last generated − first generated), n being the
/// completion tokens and k1 those that the server had counted with the first chunk.
pub(super) fn decode(batch: &[Declared]) -> Metric {
    let rate = |t: &Trace| {
        let after = t
            .completion_tokens()?
            .checked_sub(t.first_chunk_tokens?)
            .filter(|n| *n > 0)?;
        let took = t.last_generated?.checked_sub(t.first_generated?)?;
        ratio(u128::from(after) * S, took.into())
    };
    of_all(
        "decode-rate-mean/v1",
        "arithmetic mean of (n − k1) / (last generated − first generated)",
        batch,
        rate,
    )
}

/// `prefill-rate-mean/v1`: prompt tokens / (first generated − send).
pub(super) fn prefill(batch: &[Declared]) -> Metric {
    let rate = |t: &Trace| {
        let took = t.first_generated?.checked_sub(t.send?)?;
        ratio(u128::from(t.prompt_tokens()?) * S, took.into())
    };
    let mut m = of_all(
        "prefill-rate-mean/v1",
        "arithmetic mean of prompt tokens / (first generated − send)",
        batch,
        rate,
    );
    let cached = batch
        .iter()
        .filter(|d| d.trace.and_then(|t| t.most_cached).is_some_and(|n| n > 0))
        .count();
    if m.value.is_some() && cached > 0 {
        m.note = Some(format!("{cached} attempts report cached prompt tokens"));
    }
    m
}

fn of_all(
    id: &str,
    estimator: &str,
    batch: &[Declared],
    rate: impl Fn(&Trace) -> Option<BigRational>,
) -> Metric {
    let rates: Vec<BigRational> = batch
        .iter()
        .filter(|d| d.transport() == Transport::Completed)
        .filter_map(|d| rate(d.trace?))
        .collect();
    let mut m = metric(
        id,
        "tokens/s",
        rates.len(),
        estimator,
        "every declared attempt",
    );
    let lacking = batch.len() - rates.len();
    if lacking == 0 {
        m.value = mean(&rates).map(|r| decimal(&r, 6));
    } else {
        m.note = Some(format!(
            "incomplete: {lacking} declared attempts have no such value"
        ));
    }
    m
}

//! The client's own lag beside the figures.
//!
//! A median or mean time is *lagging* when the 99th percentile of the client's lag is more
//! than 1 % of it, as it is reported: then the measuring machine is part of what was
//! measured. Both numbers are integers of the evidence, so the rule is exact.

use super::{ClientLag, RunRecord};
use crate::event::{Event, EventLine, State};
use crate::metrics::Metric;

/// Part of a median or mean that the lag may be.
const SHARE: u128 = 100;

/// The lag of the measurement, as the log has it.
pub fn of_log(events: &[EventLine]) -> Option<ClientLag> {
    events.iter().find_map(|l| match l.event {
        Event::ClientLag {
            state: State::Measure,
            n,
            every,
            p50,
            p99,
            max,
        } => Some(ClientLag {
            n,
            every_ns: every,
            p50_ns: p50,
            p99_ns: p99,
            max_ns: max,
        }),
        _ => None,
    })
}

/// Names of the medians and means that the lag is more than 1 % of, with the lag.
pub fn lagging(record: &RunRecord) -> Option<(&ClientLag, Vec<String>)> {
    let lag = record.client_lag.as_ref()?;
    let ids: Vec<String> = record
        .metrics
        .iter()
        .filter(|m| typical_ns(m).is_some_and(|ns| u128::from(lag.p99_ns) * SHARE > ns))
        .map(Metric::name)
        .collect();
    (!ids.is_empty()).then_some((lag, ids))
}

/// A median or mean of times as reported, in nanoseconds.
fn typical_ns(metric: &Metric) -> Option<u128> {
    let typical = ["median", "arithmetic mean"];
    let is_typical = typical.iter().any(|t| metric.estimator.starts_with(t));
    if metric.unit != "ms" || !is_typical {
        return None;
    }
    // Milliseconds with three decimals are microseconds without the point, with six
    // nanoseconds.
    let (whole, part) = metric.value.as_ref()?.split_once('.')?;
    let number: u128 = format!("{whole}{part}").parse().ok()?;
    match part.len() {
        3 => Some(number * 1000),
        6 => Some(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_means_are_read_as_they_are_reported() {
        let metric = |value: &str, unit: &str, estimator: &str| Metric {
            id: "x/v1".into(),
            value: Some(value.into()),
            unit: unit.into(),
            n: 1,
            estimator: estimator.into(),
            denominator: String::new(),
            derivation: String::new(),
            witness: String::new(),
            note: None,
            stage: None,
            batch: None,
            rep: None,
        };
        let ns = |v, unit, estimator| typical_ns(&metric(v, unit, estimator));
        assert_eq!(ns("12.345", "ms", "median (type 7)"), Some(12_345_000));
        assert_eq!(ns("0.000", "ms", "median (type 7)"), Some(0));
        assert_eq!(ns("12.345", "ms", "p95 (type 7)"), None);
        let mean = "arithmetic mean of first generated − send";
        assert_eq!(ns("12.345678", "ms", mean), Some(12_345_678));
        assert_eq!(ns("12.345678", "tokens/s", mean), None);
        assert_eq!(ns("12.345", "s", "median (type 7)"), None);
        assert_eq!(ns("12", "ms", "median (type 7)"), None);
    }
}

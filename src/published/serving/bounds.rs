//! What the figures of a serving record imply about each other, whatever happened.

use num_rational::BigRational;

use super::checks::{interval, metric};
use super::{MetricName, ServingRecord};
use crate::codes::Code;
use crate::published::claims::{self, Contradictions};
use crate::published::number::{Interval, shown, whole};
use crate::published::report::{Auditor, Derivation, FigureOf};
use crate::published::times;

/// A batch is no shorter than any of its requests, nor than all of them one after the
/// other over the client's slots; and the firsts of a request come in order.
pub fn possible(a: &mut Auditor, r: &ServingRecord) {
    let mut bad = |at: &str, why: String| a.add(Code::FigureImpossible, at, why);
    let ranges: Vec<Interval> = r
        .cases
        .iter()
        .filter_map(|c| interval(r, c.duration_ms.as_deref()?))
        .collect();
    let slots = r.deployment.client_concurrency;
    if slots == 0 {
        bad(
            "deployment.client_concurrency",
            "a client without slots sends nothing".into(),
        );
    } else if let Some((_, batch)) = metric(r, MetricName::BatchDuration) {
        let shortest = ranges.iter().map(|i| i.lo.clone()).sum::<BigRational>() / whole(slots);
        let longest = ranges.iter().map(|i| i.lo.clone()).max();
        let floor = longest.map_or(shortest.clone(), |l| l.max(shortest));
        if batch.hi.clone() * whole(1000) < floor {
            bad(
                "metrics.batch_duration",
                format!(
                    "its requests alone take at least {} ms with {slots} at once",
                    shown(&floor, 3)
                ),
            );
        }
    }
    use MetricName as M;
    let order = [
        M::FirstGeneratedMedian,
        M::FirstContentMedian,
        M::RequestCompletionMedian,
    ];
    for pair in order.windows(2) {
        let (Some((x, before)), Some((y, after))) = (metric(r, pair[0]), metric(r, pair[1])) else {
            continue;
        };
        // Only over the same requests must the medians stand in that order.
        if x.samples == y.samples && before.lo > after.hi {
            bad(
                &format!("metrics.{}", pair[0].name()),
                format!(
                    "it comes after {}, which follows it in every request",
                    pair[1].name()
                ),
            );
        }
    }
    if let (Some((_, median)), Some((_, p95))) = (
        metric(r, M::RequestCompletionMedian),
        metric(r, M::RequestCompletionP95),
    ) && median.lo > p95.hi
    {
        bad(
            "metrics.request_completion_p95",
            "it is below the median".into(),
        );
    }
    if let Some([lo, hi]) = r.deployment.input_observed_tokens {
        if lo > hi {
            bad(
                "deployment.input_observed_tokens",
                "the smallest is above the largest".into(),
            );
        } else if r.deployment.configured_context.is_some_and(|c| hi > c) {
            bad(
                "deployment.input_observed_tokens",
                "it is beyond the configured context".into(),
            );
        }
    }
    if r.deployment.peak_overlap.is_some_and(|o| o > slots) {
        bad(
            "deployment.peak_overlap",
            "it is more than the client allows".into(),
        );
    }
}

/// Start, finish and batch duration against each other.
pub fn dates(a: &mut Auditor, r: &ServingRecord) {
    let (from, to) = (times::read(&r.started), times::read(&r.finished));
    for (field, text, read) in [("started", &r.started, from), ("finished", &r.finished, to)] {
        if read.is_none() {
            a.add(
                Code::TimeImpossible,
                field,
                format!("{text:?} is not a time"),
            );
        }
    }
    let (Some(from), Some(to)) = (from, to) else {
        return;
    };
    let longest = to.latest() - from.earliest() + 1;
    if longest <= 0 {
        return a.add(Code::TimeImpossible, "finished", "it ended before it began");
    }
    if let Some((_, batch)) = metric(r, MetricName::BatchDuration)
        && batch.lo > BigRational::from_integer(longest.into())
    {
        a.add(
            Code::TimeImpossible,
            "metrics.batch_duration",
            format!("between start and finish lie at most {longest} s"),
        );
    }
}

/// Claims in the prose against the record and its limitations.
pub fn texts(a: &mut Auditor, r: &ServingRecord) {
    let prose = [("title", r.title.as_str()), ("summary", r.summary.as_str())];
    let limits: Vec<&str> = r.limitations.iter().map(String::as_str).collect();
    let rules = Contradictions {
        control: false,
        // Grades are in the record; what they are worth is another question.
        graded: true,
        largest_context: r
            .deployment
            .input_observed_tokens
            .map(|[_, hi]| hi.max(4096)),
    };
    claims::check(a, &prose, &limits, rules);
}

/// How many sessions of full length the key-value pool holds.
pub fn pool(a: &mut Auditor, r: &ServingRecord) {
    let d = &r.deployment;
    let (Some(pool), Some(context), Some(slots)) =
        (d.kv_pool_tokens, d.configured_context, d.request_slots)
    else {
        return;
    };
    let Some(sessions) = pool.checked_div(context) else {
        return;
    };
    a.figure(FigureOf {
        id: "implied.full_length_sessions".into(),
        stated: None,
        recomputed: Some(sessions.to_string()),
        unit: "sessions",
        n: None,
        derivation: Derivation::Consistent,
        basis: format!("pool over configured context; the server has {slots} slots"),
    });
    if sessions < slots {
        a.add(
            Code::PoolSmallerThanSlots,
            "deployment.kv_pool_tokens",
            format!("{slots} slots of {context} tokens each need more than its {pool} tokens"),
        );
    }
}

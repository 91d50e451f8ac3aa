//! Differences of metrics, and the repetitions that their intervals are drawn from.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::Zero;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bootstrap::{FEWEST, SplitMix64, interval, mean};
use crate::grading::THINK_TAGS;
use crate::metrics::Metric;
use crate::metrics::exact::{decimal, percentile};
use crate::published::decimal_text;
use crate::record::{CaseRecord, RunRecord};
use crate::scorer::Grade;

/// Decimals of ratios and intervals.
const PLACES: u32 = 6;
const MS: u64 = 1_000_000;

/// A metric on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Delta {
    /// The metric, as in the records.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// In A.
    pub a: Option<String>,
    /// In B.
    pub b: Option<String>,
    /// B less A, to the metric's own decimals.
    pub difference: Option<String>,
    /// The same over A.
    pub relative: Option<String>,
    /// Ends of the 95 % interval of the difference.
    pub interval: Option<[String; 2]>,
    /// True when the interval does not hold 0.
    pub clear: Option<bool>,
    /// Why there is no interval, or no difference.
    pub note: Option<String>,
}

/// What one repetition brings to a statistic.
enum Rep {
    /// Nanoseconds, pooled over the repetitions that were drawn.
    Times(Vec<u64>),
    /// One value of its own.
    Value(BigRational),
    /// Passes among declared.
    Share(u64, u64),
}

/// All metrics that both records have; and a sentence when repetitions are too few for
/// intervals.
pub fn deltas(a: &RunRecord, b: &RunRecord, seed: u64) -> (Vec<Delta>, Option<String>) {
    let (ra, rb) = (
        a.requests.repetitions as usize,
        b.requests.repetitions as usize,
    );
    let few = (ra.min(rb) < FEWEST).then(|| {
        format!("A has {ra} and B has {rb}: under {FEWEST} on a side no interval is given, and a difference may be chance")
    });
    let mut out = vec![pass_rate(a, b, seed, few.is_some())];
    for m in &a.metrics {
        let name = m.name();
        if let Some(other) = b.metrics.iter().find(|o| o.name() == name) {
            out.push(one(a, b, m, other, seed, few.is_some()));
        }
    }
    (out, few)
}

/// Passes over declared attempts: no metric of the record, but what is compared most.
fn pass_rate(a: &RunRecord, b: &RunRecord, seed: u64, few: bool) -> Delta {
    let value = |r: &RunRecord| {
        let n = r.grades.declared;
        (n > 0).then(|| decimal(&BigRational::new(r.grades.pass.into(), n.into()), PLACES))
    };
    let reps = |r: &RunRecord| {
        by_rep(r, |cases| {
            let passes = cases.iter().filter(|c| c.grade == Grade::Pass).count() as u64;
            Rep::Share(passes, cases.len() as u64)
        })
    };
    let d = base("pass-rate", "ratio", value(a), value(b));
    with_interval(d, &reps(a), &reps(b), share, seed, few)
}

fn base(metric: &str, unit: &str, a: Option<String>, b: Option<String>) -> Delta {
    let exact = |v: &Option<String>| v.as_deref().and_then(decimal_text);
    let places = |v: &Option<String>| {
        v.as_deref()
            .and_then(|v| v.split_once('.'))
            .map_or(0, |(_, d)| d.len() as u32)
    };
    let both = exact(&a).zip(exact(&b));
    let wide = places(&a).max(places(&b));
    Delta {
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        difference: both.as_ref().map(|(x, y)| decimal(&(y - x), wide)),
        relative: both
            .filter(|(x, _)| !x.is_zero())
            .map(|(x, y)| decimal(&((&y - &x) / &x), PLACES)),
        a,
        b,
        interval: None,
        clear: None,
        note: None,
    }
}

fn one(a: &RunRecord, b: &RunRecord, m: &Metric, o: &Metric, seed: u64, few: bool) -> Delta {
    let mut d = base(&m.name(), &m.unit, m.value.clone(), o.value.clone());
    if d.difference.is_none() {
        d.note = Some("one side has no value".into());
        return d;
    }
    let unknown = "the records hold no values of single repetitions for it";
    if m.stage.is_some() || m.rep.is_some() {
        d.note = Some(unknown.into());
        return d;
    }
    let stat = match m.id.as_str() {
        "request-duration-p95/v1" => p95,
        "batch-throughput-mean/v1" => values_mean,
        "recall/v1" => share,
        _ => median,
    };
    let (x, y) = (reps(a, m), reps(b, o));
    let (Some(x), Some(y)) = (x, y) else {
        d.note = Some(unknown.into());
        return d;
    };
    // Retries, or anything else that the cases do not show, would make it another
    // statistic; then there is no interval.
    let whole = |reps: &[Rep]| stat(&reps.iter().collect::<Vec<_>>());
    let same = |reps: &[Rep], said: &Option<String>| {
        let said = said.as_deref().and_then(decimal_text);
        let unit = BigRational::new(1.into(), BigInt::from(10u8).pow(3));
        whole(reps).zip(said).is_some_and(|(w, s)| {
            let off = if w > s { w - s } else { s - w };
            off < unit
        })
    };
    if !same(&x, &d.a) || !same(&y, &d.b) {
        d.note = Some(unknown.into());
        return d;
    }
    with_interval(d, &x, &y, stat, seed, few)
}

fn with_interval(
    mut d: Delta,
    a: &[Rep],
    b: &[Rep],
    stat: fn(&[&Rep]) -> Option<BigRational>,
    seed: u64,
    few: bool,
) -> Delta {
    if few {
        d.note = Some("too few repetitions for an interval".into());
        return d;
    }
    let rng = SplitMix64::of(seed, &d.metric);
    match interval(a, b, rng, stat) {
        Some((lo, hi)) => {
            let zero = BigRational::zero();
            d.clear = Some(lo > zero || hi < zero);
            d.interval = Some([decimal(&lo, PLACES), decimal(&hi, PLACES)]);
        }
        None => d.note = Some("a repetition has no value".into()),
    }
    d
}

fn by_rep(r: &RunRecord, of: impl Fn(&[&CaseRecord]) -> Rep) -> Vec<Rep> {
    (0..r.requests.repetitions)
        .map(|rep| of(&r.cases.iter().filter(|c| c.rep == rep).collect::<Vec<_>>()))
        .collect()
}

/// The repetitions of a metric; `None` for one that cannot be taken apart.
fn reps(r: &RunRecord, m: &Metric) -> Option<Vec<Rep>> {
    let times = |pick: fn(&CaseRecord) -> Option<u64>| {
        Some(by_rep(r, |cases| {
            Rep::Times(cases.iter().filter_map(|c| pick(c)).collect())
        }))
    };
    match m.id.as_str() {
        "request-duration-median/v1" | "request-duration-p95/v1" => times(|c| c.duration_ns),
        "first-generated-median/v1" => times(|c| c.first_generated_ns),
        "first-content-median/v1" => times(|c| {
            let tags = c.flags.iter().any(|f| f == THINK_TAGS);
            c.first_content_ns.filter(|_| !tags)
        }),
        "recall/v1" => Some(by_rep(r, |cases| {
            let passes = cases.iter().filter(|c| c.grade == Grade::Pass).count() as u64;
            Rep::Share(passes, cases.len() as u64)
        })),
        "batch-throughput-mean/v1" => r
            .metrics
            .iter()
            .filter(|o| o.id == "batch-throughput/v1" && o.batch == m.batch && o.rep.is_some())
            .map(|o| Some(Rep::Value(decimal_text(o.value.as_deref()?)?)))
            .collect(),
        _ => None,
    }
}

fn times(reps: &[&Rep]) -> Vec<u64> {
    reps.iter()
        .flat_map(|r| match r {
            Rep::Times(t) => t.clone(),
            _ => Vec::new(),
        })
        .collect()
}

fn in_ms(v: Option<BigRational>) -> Option<BigRational> {
    Some(v? / BigRational::from_integer(MS.into()))
}

fn median(reps: &[&Rep]) -> Option<BigRational> {
    in_ms(percentile(&times(reps), 1, 2))
}

fn p95(reps: &[&Rep]) -> Option<BigRational> {
    in_ms(percentile(&times(reps), 95, 100))
}

fn values_mean(reps: &[&Rep]) -> Option<BigRational> {
    let values: Vec<BigRational> = reps
        .iter()
        .filter_map(|r| match r {
            Rep::Value(v) => Some(v.clone()),
            _ => None,
        })
        .collect();
    mean(&values)
}

fn share(reps: &[&Rep]) -> Option<BigRational> {
    let (k, n) = reps.iter().fold((0, 0), |(k, n), r| match r {
        Rep::Share(passes, of) => (k + passes, n + of),
        _ => (k, n),
    });
    (n > 0).then(|| BigRational::new(BigInt::from(k), BigInt::from(n)))
}

//! Figures of a recall suite: how many needles came back, and what that shows.

use num_bigint::BigUint;

use super::Metric;
use super::exact::{decimal, ratio};
use crate::bundle::files::GradeLine;
use crate::scorer::Grade;

/// `kind` of suites that have these figures.
pub const KIND: &str = "recall";
/// Decimals of both figures.
const PLACES: u32 = 6;
/// Most declared attempts for which the bound is worked out: its terms have about 20
/// bits per attempt, and an auditor must not be kept busy by a plan.
pub const MOST: usize = 1000;

/// Both figures, over every declared attempt: one that failed, was not attempted or
/// not graded is no recall.
pub fn recall(grades: &[GradeLine]) -> [Metric; 2] {
    let n = grades.len();
    let passes = grades.iter().filter(|g| g.grade == Grade::Pass).count();
    let metric = |id: &str, estimator: &str| Metric {
        id: id.into(),
        value: None,
        unit: "ratio".into(),
        n: n as u64,
        estimator: estimator.into(),
        denominator: "every declared attempt".into(),
        derivation: "recomputed".into(),
        witness: "operator".into(),
        note: None,
        stage: None,
        batch: None,
        rep: None,
    };
    let mut share = metric("recall/v1", "passes over declared attempts");
    share.value = ratio(passes as u128, n as u128).map(|r| decimal(&r, PLACES));
    let mut bound = metric(
        "recall-lower-bound/v1",
        "one-sided 95 % lower bound (Clopper-Pearson)",
    );
    if n <= MOST {
        bound.value = lower_bound(passes, n).map(|m| millionths(&m));
    } else {
        bound.note = Some(format!("not worked out for more than {MOST} attempts"));
    }
    if n == 0 {
        share.note = Some("nothing was declared".into());
        bound.note.clone_from(&share.note);
    }
    [share, bound]
}

/// The one-sided 95 % lower bound of Clopper and Pearson (1934) for `k` passes of
/// `n`, in millionths, rounded down: the largest *m* for which *k* or more passes
/// of *n* would come with probability at most 1/20 if each came with probability
/// *m*/10⁶. Rounded down, since a bound that is rounded up is none.
///
/// Exact: with *D* = 10⁶ and *q* = *D* − *m*, the condition is
/// 20 · Σ C(n,i) mⁱ qⁿ⁻ⁱ ≤ Dⁿ over i = k … n, in integers. The sum grows with *m*.
pub fn lower_bound(k: usize, n: usize) -> Option<u32> {
    const D: u32 = 1_000_000;
    if n == 0 || k > n {
        return None;
    }
    if k == 0 {
        return Some(0); // The probability is 1 whatever m is, and no bound is shown.
    }
    let whole = BigUint::from(D).pow(u32::try_from(n).ok()?);
    let choose = binomials(n);
    let rare = |m: u32| tail(&choose, k, m, D - m) * 20u32 <= whole;
    // rare(0) holds, since nothing passes by itself; rare(D) does not.
    let (mut low, mut high) = (0, D);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if rare(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(low)
}

/// Σ C(n,i) mⁱ qⁿ⁻ⁱ over i = k … n, by Horner's rule in q.
fn tail(choose: &[BigUint], k: usize, m: u32, q: u32) -> BigUint {
    let mut sum = BigUint::ZERO;
    let mut power = BigUint::from(m).pow(k as u32);
    for c in &choose[k..] {
        sum = sum * q + c * &power;
        power *= m;
    }
    sum
}

/// C(n,0) … C(n,n).
fn binomials(n: usize) -> Vec<BigUint> {
    let mut row = vec![BigUint::from(1u8)];
    for i in 1..=n {
        let next = &row[i - 1] * (n + 1 - i) / i;
        row.push(next);
    }
    row
}

fn millionths(m: &u32) -> String {
    format!("{}.{:06}", m / 1_000_000, m % 1_000_000)
}

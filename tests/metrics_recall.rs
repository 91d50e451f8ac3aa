//! The lower bound of recall, held against the other tail and against another program.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Zero};
use proptest::prelude::*;
use runseal::bundle::files::GradeLine;
use runseal::metrics::recall::{MOST, lower_bound, recall};
use runseal::scorer::Grade;

fn millionths(m: u32) -> String {
    format!("{}.{:06}", m / 1_000_000, m % 1_000_000)
}

/// P(fewer than k of n) at m/10⁶ as a rational: the other tail, term by term from
/// the one before it, where the code under test sums integers by Horner's rule.
fn fewer(k: usize, n: usize, m: u32) -> BigRational {
    let of = |a: u64, b: u64| BigRational::new(BigInt::from(a), BigInt::from(b));
    let p = of(m.into(), 1_000_000);
    let q = BigRational::one() - &p;
    if q.is_zero() {
        return BigRational::zero();
    }
    let mut term = (0..n).fold(BigRational::one(), |t, _| t * &q);
    let mut sum = BigRational::zero();
    for i in 0..k {
        sum += &term;
        term = term * of((n - i) as u64, i as u64 + 1) * &p / &q;
    }
    sum
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_bound_is_the_last_millionth_that_the_other_tail_allows(n in 1usize..24, part in 0.0f64..=1.0) {
        let k = ((n as f64 * part).round() as usize).max(1);
        let m = lower_bound(k, n).unwrap();
        let share = BigRational::new(BigInt::from(19), BigInt::from(20));
        prop_assert!(fewer(k, n, m) >= share);
        prop_assert!(fewer(k, n, m + 1) < share);
    }
}

#[test]
fn known_bounds() {
    // All of n: the n-th root of 1/20. The others are quantiles of the beta
    // distribution, found by another program in decimals of 60 digits.
    for (k, n, want) in VECTORS {
        assert_eq!(
            lower_bound(*k, *n).map(millionths).as_deref(),
            Some(*want),
            "{k} of {n}"
        );
    }
    assert_eq!(lower_bound(0, 0), None);
    assert_eq!(lower_bound(2, 1), None);
}

const VECTORS: &[(usize, usize, &str)] = &[
    (12, 12, "0.779077"),
    (6, 6, "0.606962"),
    (1, 1, "0.050000"),
    (0, 5, "0.000000"),
    (1, 2, "0.025320"),
    (8, 10, "0.493098"),
    (11, 12, "0.661319"),
    (14, 15, "0.720603"),
    (15, 15, "0.818963"),
    (97, 100, "0.924289"),
    (500, 1000, "0.473517"),
    (1000, 1000, "0.997008"),
];

#[test]
fn failures_and_missing_grades_stay_in_the_denominator() {
    let line = |grade: Grade| GradeLine {
        case: "c".into(),
        rep: 0,
        grade,
        flags: Vec::new(),
    };
    let reason = String::new();
    let grades = [
        line(Grade::Pass),
        line(Grade::Fail { check: "x".into() }),
        line(Grade::Ungraded { reason }),
        line(Grade::Pass),
    ];
    let [share, bound] = recall(&grades);
    assert_eq!((share.n, share.value.as_deref()), (4, Some("0.500000")));
    assert_eq!(bound.value.as_deref(), Some("0.097611"));
    let [share, bound] = recall(&[]);
    assert_eq!((share.value, bound.value), (None, None));
    let many = vec![line(Grade::Pass); MOST + 1];
    let [share, bound] = recall(&many);
    assert_eq!(share.value.as_deref(), Some("1.000000"));
    assert!(bound.value.is_none() && bound.note.is_some());
}

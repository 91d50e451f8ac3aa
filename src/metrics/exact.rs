//! Exact arithmetic for derived figures: rationals in, decimal strings out.
//!
//! Raw values are integers; every mean, rate and percentile is computed exactly
//! and rounded once, half to even, to a stated number of decimals. So two
//! implementations agree to the last digit.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed, ToPrimitive, Zero};

/// A rational from two integers; `None` for a zero denominator.
pub fn ratio(num: u128, den: u128) -> Option<BigRational> {
    (den != 0).then(|| BigRational::new(BigInt::from(num), BigInt::from(den)))
}

/// Writes a rational with exactly `places` decimals, rounded half to even.
pub fn decimal(value: &BigRational, places: u32) -> String {
    let scaled = value.abs() * BigRational::from(BigInt::from(10u8).pow(places));
    let mut whole = scaled.to_integer();
    let rest = (scaled - BigRational::from(whole.clone())) * BigInt::from(2u8);
    let one = BigRational::from(BigInt::from(1u8));
    let odd = !(&whole % 2u8).is_zero();
    if rest > one || (rest == one && odd) {
        whole += 1u8;
    }
    let mut digits = whole.to_string();
    let places = places as usize;
    if digits.len() <= places {
        digits = format!("{}{digits}", "0".repeat(places + 1 - digits.len()));
    }
    if places > 0 {
        digits.insert(digits.len() - places, '.');
    }
    if value.is_negative() && !whole.is_zero() {
        digits.insert(0, '-');
    }
    digits
}

/// Percentile by linear interpolation (Hyndman and Fan, type 7) of integers, at
/// `num/den`; `None` for no values. With n sorted values x₀ … xₙ₋₁ and
/// h = (n − 1) · num/den, it is x⌊h⌋ + (h − ⌊h⌋)(x⌊h⌋₊₁ − x⌊h⌋).
pub fn percentile(values: &[u64], num: u32, den: u32) -> Option<BigRational> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let x = |i: usize| BigRational::from(BigInt::from(sorted[i]));
    interpolate(sorted.len(), x, num, den)
}

/// Likewise of rationals, which it sorts.
pub fn percentile_of(values: &mut [BigRational], num: u32, den: u32) -> Option<BigRational> {
    values.sort_unstable();
    interpolate(values.len(), |i| values[i].clone(), num, den)
}

fn interpolate(
    n: usize,
    x: impl Fn(usize) -> BigRational,
    num: u32,
    den: u32,
) -> Option<BigRational> {
    let last = n.checked_sub(1)?;
    let h = ratio(last as u128 * u128::from(num), u128::from(den))?;
    let low = h.to_integer().to_usize()?.min(last);
    let high = (low + 1).min(last);
    let fraction = h - BigRational::from(BigInt::from(low));
    Some(x(low) + fraction * (x(high) - x(low)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Request durations of the published serving record, in microseconds, and
    /// the figures that page shows for them.
    const DURATIONS_US: [u64; 8] = [
        3_923_377, 6_931_260, 3_801_035, 4_393_570, 4_387_226, 3_203_412, 3_635_690, 6_869_321,
    ];

    #[test]
    fn the_published_serving_record_is_reproduced() {
        let ms = |r: BigRational| r / BigRational::from(BigInt::from(1000));
        let median = ms(percentile(&DURATIONS_US, 1, 2).unwrap());
        assert_eq!(decimal(&median, 4), "4155.3015");
        assert_eq!(decimal(&median, 3), "4155.302");
        let p95 = ms(percentile(&DURATIONS_US, 95, 100).unwrap());
        assert_eq!(decimal(&p95, 5), "6909.58135");
        assert_eq!(decimal(&p95, 3), "6909.581");
        assert_eq!(DURATIONS_US.iter().sum::<u64>(), 37_144_891);
        assert_eq!(decimal(&ratio(787_000, 37_153).unwrap(), 3), "21.183");
        assert_eq!(decimal(&ratio(787, 206).unwrap(), 2), "3.82");
    }

    #[test]
    fn rounding_is_half_to_even_and_signs_and_zeros_are_kept() {
        for (num, den, places, want) in [
            (5, 2, 0, "2"),
            (7, 2, 0, "4"),
            (1, 8, 2, "0.12"),
            (3, 8, 2, "0.38"),
            (0, 1, 3, "0.000"),
            (1, 2000, 3, "0.000"),
            (1, 1999, 3, "0.001"),
            (999_999, 1000, 2, "1000.00"),
        ] {
            assert_eq!(
                decimal(&ratio(num, den).unwrap(), places),
                want,
                "{num}/{den}"
            );
        }
        let minus = -ratio(5, 4).unwrap();
        assert_eq!(decimal(&minus, 1), "-1.2");
        assert_eq!(decimal(&-ratio(1, 1000).unwrap(), 1), "0.0");
        assert!(ratio(1, 0).is_none());
    }

    #[test]
    fn percentiles_of_few_values() {
        assert!(percentile(&[], 1, 2).is_none());
        assert_eq!(decimal(&percentile(&[7], 95, 100).unwrap(), 0), "7");
        assert_eq!(decimal(&percentile(&[4, 1], 1, 2).unwrap(), 1), "2.5");
        assert_eq!(decimal(&percentile(&[1, 2, 3], 1, 1).unwrap(), 0), "3");
    }

    proptest! {
        #[test]
        fn a_percentile_lies_between_its_values(v in prop::collection::vec(0u64..1 << 53, 1..40), p in 0u32..=100) {
            let got = percentile(&v, p, 100).unwrap();
            let (min, max) = (*v.iter().min().unwrap(), *v.iter().max().unwrap());
            prop_assert!(got >= BigRational::from(BigInt::from(min)));
            prop_assert!(got <= BigRational::from(BigInt::from(max)));
        }

        #[test]
        fn decimals_are_within_half_a_unit(num in 0u64..1 << 60, den in 1u64..1 << 40, places in 0u32..6) {
            let exact = ratio(num.into(), den.into()).unwrap();
            let text = decimal(&exact, places);
            let digits: String = text.chars().filter(|c| *c != '.').collect();
            let back = BigRational::new(digits.parse::<BigInt>().unwrap(), BigInt::from(10u8).pow(places));
            let half = BigRational::new(BigInt::from(1u8), BigInt::from(2u8) * BigInt::from(10u8).pow(places));
            prop_assert!((back - exact).abs() <= half);
        }
    }
}

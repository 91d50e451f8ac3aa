//! Percentile intervals by resampling whole repetitions (docs/metrics.md, "Intervals of
//! differences"). Seeded and exact: two implementations agree to the last digit.

use num_bigint::BigInt;
use num_rational::BigRational;

use crate::digest::Enc;
use crate::metrics::exact::percentile_of;

/// Resamples.
pub const RESAMPLES: usize = 2000;
/// Fewest repetitions on a side for which an interval is given. Five values can be
/// drawn in 126 different ways; with fewer, a 95 % interval is mostly the extremes.
pub const FEWEST: usize = 5;

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The generator of one metric under one seed.
    pub fn of(seed: u64, metric: &str) -> Self {
        let digest = Enc::new("bootstrap/v1")
            .u64(seed)
            .bytes(metric.as_bytes())
            .finish();
        let mut first = [0u8; 8];
        first.copy_from_slice(&digest.0[..8]);
        Self(u64::from_be_bytes(first))
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`: the high half of the product.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.draw()) * n as u128) >> 64) as usize
    }
}

/// The 95 % interval of `stat(b) − stat(a)` over repetitions drawn with replacement, A's
/// before B's. `None` when a resample has no value.
pub fn interval<T>(
    a: &[T],
    b: &[T],
    mut rng: SplitMix64,
    stat: impl Fn(&[&T]) -> Option<BigRational>,
) -> Option<(BigRational, BigRational)> {
    let mut deltas = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let mut indices =
            |side: &[T]| -> Vec<usize> { (0..side.len()).map(|_| rng.below(side.len())).collect() };
        let (i, j) = (indices(a), indices(b));
        let x: Vec<&T> = i.into_iter().map(|i| &a[i]).collect();
        let y: Vec<&T> = j.into_iter().map(|j| &b[j]).collect();
        deltas.push(stat(&y)? - stat(&x)?);
    }
    let low = percentile_of(&mut deltas, 1, 40)?;
    let high = percentile_of(&mut deltas, 39, 40)?;
    Some((low, high))
}

/// The mean of rationals.
pub fn mean(values: &[BigRational]) -> Option<BigRational> {
    let n = BigInt::from(values.len());
    (!values.is_empty()).then(|| values.iter().sum::<BigRational>() / BigRational::from_integer(n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::exact::decimal;

    /// The generator's published first outputs from seed 1234567.
    #[test]
    fn the_generator_is_the_published_one() {
        let mut rng = SplitMix64(1_234_567);
        let got: Vec<u64> = (0..5).map(|_| rng.draw()).collect();
        assert_eq!(
            got,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821,
            ]
        );
    }

    #[test]
    fn intervals_are_seeded_and_hold_the_difference() {
        let rational = |n: i64| BigRational::from_integer(n.into());
        let a: Vec<BigRational> = [10, 11, 12, 13, 14].map(rational).into();
        let b: Vec<BigRational> = [20, 21, 22, 23, 24].map(rational).into();
        let stat = |v: &[&BigRational]| mean(&v.iter().map(|v| (*v).clone()).collect::<Vec<_>>());
        let of = |seed| interval(&a, &b, SplitMix64::of(seed, "m"), stat).unwrap();
        let (lo, hi) = of(1);
        assert!(lo < rational(10) && rational(10) < hi);
        assert!(lo > rational(6) && hi < rational(14), "{lo} {hi}");
        assert_eq!(of(1), of(1));
        assert_ne!(SplitMix64::of(1, "m").draw(), SplitMix64::of(2, "m").draw());
        assert_ne!(SplitMix64::of(1, "m").draw(), SplitMix64::of(1, "n").draw());
        let same = interval(&a[..1], &a[..1], SplitMix64::of(0, "m"), stat).unwrap();
        assert_eq!(
            (decimal(&same.0, 1), decimal(&same.1, 1)),
            ("0.0".into(), "0.0".into())
        );
        let nothing = interval(&a, &b, SplitMix64::of(0, "m"), |_| None);
        assert_eq!(nothing, None);
    }
}

//! When the requests of an open loop are due.
//!
//! A schedule is a pure function of its parameters, so the auditor computes it
//! again from the plan and holds it against the `queued` events. Everything is
//! integer arithmetic, so it is the same to the nanosecond on every machine and
//! in every language (docs/formats.md has the algorithm).
//!
//! Constant arrivals: request i is due i·10¹² / rate nanoseconds after the start,
//! rounded down. Poisson arrivals: each gap is −ln(u) / rate with u from SHA-256
//! of the seed and the request's number.

use crate::digest::Enc;

/// How requests arrive, whatever becomes of the earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// Evenly.
    Constant {
        /// Requests per 1,000 seconds.
        millihertz: u64,
    },
    /// As a Poisson process.
    Poisson {
        /// Requests per 1,000 seconds, on average.
        millihertz: u64,
        /// Seed, to be recorded.
        seed: u64,
    },
}

impl Arrivals {
    /// The due times of the requests 0, 1, 2 … in nanoseconds after the start,
    /// without end. A rate of zero is taken as one request per 1,000 seconds.
    pub fn offsets(self) -> impl Iterator<Item = u64> + Send + 'static {
        let mut sum = 0u64;
        (0u64..).map(move |i| match self {
            Arrivals::Constant { millihertz } => {
                let ns = u128::from(i) * NS_PER_KILOSECOND / u128::from(millihertz.max(1));
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
            Arrivals::Poisson { millihertz, seed } => {
                sum = sum.saturating_add(gap(millihertz, seed, i));
                sum
            }
        })
    }
}

const NS_PER_KILOSECOND: u128 = 1_000_000_000_000;
/// Bits of u.
const BITS: u32 = 53;
/// Bits behind the point of a logarithm.
const FRACTION: u32 = 48;
/// ln 2 · 2⁶⁰, rounded down.
const LN2: u128 = 799_144_290_325_165_978;

/// The i-th gap of a Poisson process in nanoseconds.
fn gap(millihertz: u64, seed: u64, i: u64) -> u64 {
    let digest = Enc::new("arrivals/v1").u64(seed).u64(i).finish();
    let mut first = [0; 8];
    first.copy_from_slice(&digest.0[..8]);
    // Moved off zero: u = m / 2⁵³ lies in (0, 1], so the logarithm is finite.
    let m = (u64::from_be_bytes(first) >> (64 - BITS)) + 1;
    let minus_log2 = (u128::from(BITS) << FRACTION) - log2(m);
    let minus_ln = (minus_log2 * LN2) >> 60;
    let ns = (minus_ln * NS_PER_KILOSECOND / u128::from(millihertz.max(1))) >> FRACTION;
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// log₂ of an integer that is not 0, in units of 2⁻⁴⁸ and rounded down: the whole
/// part is the place of the highest bit, and each squaring of what is left, a
/// number in [1, 2) kept to 62 bits, gives one more bit.
fn log2(m: u64) -> u128 {
    let whole = m.ilog2();
    let mut x = u128::from(m) << (62 - whole);
    let mut log = u128::from(whole);
    for _ in 0..FRACTION {
        x = (x * x) >> 62;
        let bit = x >> 63;
        x >>= bit;
        log = (log << 1) | bit;
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_arrivals_are_exact_at_any_rate() {
        let third = Arrivals::Constant { millihertz: 3000 };
        let due: Vec<u64> = third.offsets().take(4).collect();
        assert_eq!(due, [0, 333_333_333, 666_666_666, 1_000_000_000]);
        let late = third.offsets().nth(3_000_000).unwrap();
        assert_eq!(late, 1_000_000_000_000_000);
    }

    #[test]
    fn poisson_arrivals_follow_rate_and_seed() {
        let at = |seed| Arrivals::Poisson {
            millihertz: 1_000_000,
            seed,
        };
        let a: Vec<u64> = at(1).offsets().take(20_000).collect();
        assert_eq!(a, at(1).offsets().take(20_000).collect::<Vec<_>>());
        assert_ne!(a, at(2).offsets().take(20_000).collect::<Vec<_>>());
        assert!(a.is_sorted());
        // Mean gap 1 ms; its standard error is 1/√20000, under 1 %.
        let mean = *a.last().unwrap() as f64 / 20_000.0;
        assert!((0.97e6..1.03e6).contains(&mean), "{mean}");
        // In a Poisson process a share 1/e of the gaps is longer than the mean.
        let long = a.windows(2).filter(|w| w[1] - w[0] > 1_000_000).count();
        assert!((0.35..0.385).contains(&(long as f64 / 19_999.0)), "{long}");
    }

    #[test]
    fn logarithms_are_those_of_the_textbook() {
        let unit = (1u64 << FRACTION) as f64;
        for m in [1, 2, 3, 5, 1 << 52, (1 << 53) - 1, 1 << 53, 123_456_789_012] {
            let got = log2(m) as f64 / unit;
            assert!((got - (m as f64).log2()).abs() < 1e-12, "{m}: {got}");
        }
        assert_eq!(log2(1 << 53), 53 << FRACTION);
        assert_eq!(log2(1), 0);
    }

    #[test]
    fn poisson_arrivals_are_the_same_everywhere() {
        let at = Arrivals::Poisson {
            millihertz: 1_000_000,
            seed: 7,
        };
        let first: Vec<u64> = at.offsets().take(3).collect();
        assert_eq!(first, POISSON_7);
    }

    // Computed by tests/independent/formats.py, and with floating point by a third
    // program to within a nanosecond.
    const POISSON_7: [u64; 3] = [4_893_349, 4_928_743, 6_078_138];
}

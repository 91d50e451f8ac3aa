//! When the requests of an open loop are due.
//!
//! A schedule is a pure function of its parameters, so what was planned can be
//! computed again from the plan and held against the `queued` events. Constant
//! arrivals are exact: request i is due after i·10¹² / rate nanoseconds, rounded
//! down. Poisson arrivals draw each gap as −ln(u) / rate with u from SHA-256 of
//! the seed and the request's number, so no generator's version can change them.

use runseal::digest::Enc;

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
                let ns = u128::from(i) * 1_000_000_000_000 / u128::from(millihertz.max(1));
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
            Arrivals::Poisson { millihertz, seed } => {
                sum = sum.saturating_add(gap(millihertz.max(1), seed, i));
                sum
            }
        })
    }
}

/// The i-th gap of a Poisson process in nanoseconds.
fn gap(millihertz: u64, seed: u64, i: u64) -> u64 {
    let digest = Enc::new("arrivals/v1").u64(seed).u64(i).finish();
    let mut first = [0; 8];
    first.copy_from_slice(&digest.0[..8]);
    // 53 bits, moved off zero: u lies in (0, 1], so the logarithm is finite.
    let u = ((u64::from_be_bytes(first) >> 11) + 1) as f64 / (1u64 << 53) as f64;
    // libm and not the system's logarithm: the same bits everywhere.
    (-libm::log(u) * 1e12 / millihertz as f64) as u64
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
    fn poisson_arrivals_are_the_same_everywhere() {
        let at = Arrivals::Poisson {
            millihertz: 1_000_000,
            seed: 7,
        };
        let first: Vec<u64> = at.offsets().take(3).collect();
        assert_eq!(first, POISSON_7);
    }

    // Computed from the description above by another program.
    const POISSON_7: [u64; 3] = [4_893_349, 4_928_743, 6_078_138];
}

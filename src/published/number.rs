//! Numbers of published records: what was written, exactly, and how far rounding can
//! have moved it.
//!
//! A JSON number is a binary64 (DESIGN §6): its exact value goes into every sum. How
//! many digits its author kept is read off its shortest text that reads back as the
//! same number. Twelve significant digits or more count as unrounded (an unrounded number
//! can happen to end in zeros; nobody rounds to so many); with fewer, half a unit of the
//! last one may be missing.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed, Zero};

use crate::metrics::exact::decimal;

/// Significant digits from which a binary64 is taken as it stands.
const UNROUNDED: usize = 12;

/// Its exact value.
pub fn exact(v: f64) -> BigRational {
    // Strict JSON has no infinities.
    BigRational::from_float(v).unwrap_or_else(BigRational::zero)
}

/// A whole number as a rational.
pub fn whole(n: u64) -> BigRational {
    BigRational::from_integer(BigInt::from(n))
}

/// Its shortest text, without an exponent.
pub fn text(v: f64) -> String {
    format!("{v}")
}

/// The nearest binary64 of a rational. It goes through 60 decimals, which is exact
/// enough for anything a benchmark can measure (over 10⁻⁴⁰).
pub fn nearest(v: &BigRational) -> f64 {
    decimal(v, 60).parse().unwrap_or(f64::NAN)
}

/// The exact mean, `None` of nothing.
pub fn mean(values: &[f64]) -> Option<BigRational> {
    let n = u64::try_from(values.len()).ok().filter(|n| *n > 0)?;
    Some(values.iter().map(|v| exact(*v)).sum::<BigRational>() / whole(n))
}

/// The values that a rounded number can stand for, ends included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interval {
    /// Smallest.
    pub lo: BigRational,
    /// Largest.
    pub hi: BigRational,
}

impl Interval {
    /// Half a unit of the `places`-th decimal on either side.
    pub fn around(value: BigRational, places: u32) -> Self {
        let half = BigRational::new(1.into(), BigInt::from(2) * BigInt::from(10u8).pow(places));
        Self {
            lo: &value - &half,
            hi: value + half,
        }
    }

    /// Of a JSON number: a point when it has all its digits.
    pub fn of(v: f64) -> Self {
        let shown = text(v);
        let digits = shown.trim_start_matches(['-', '0', '.']);
        let significant = digits.bytes().filter(u8::is_ascii_digit).count();
        let places = shown.split_once('.').map_or(0, |(_, d)| d.len());
        if significant >= UNROUNDED {
            let value = exact(v);
            return Self {
                lo: value.clone(),
                hi: value,
            };
        }
        // What was written is the decimal, not its nearest binary64.
        let written = parse(&shown).unwrap_or_else(|| exact(v));
        Self::around(written, u32::try_from(places).unwrap_or(0))
    }

    /// Whether one value can be both.
    pub fn meets(&self, other: &Self) -> bool {
        self.lo <= other.hi && other.lo <= self.hi
    }

    /// Both scaled by a factor that is not negative.
    pub fn scaled(&self, by: &BigRational) -> Self {
        Self {
            lo: &self.lo * by,
            hi: &self.hi * by,
        }
    }

    /// The product of two intervals of numbers that are not negative.
    pub fn times(&self, other: &Self) -> Self {
        let zero = BigRational::zero();
        let floor = |v: &BigRational| v.clone().max(zero.clone());
        Self {
            lo: floor(&self.lo) * floor(&other.lo),
            hi: floor(&self.hi) * floor(&other.hi),
        }
    }

    /// The whole numbers inside: the smallest, and how many there are (at most 2).
    pub fn wholes(&self) -> (BigInt, usize) {
        let first = self.lo.ceil().to_integer();
        let last = self.hi.floor().to_integer();
        let n = if last < first {
            0
        } else if last == first {
            1
        } else {
            2
        };
        (first, n)
    }
}

/// The mean of intervals.
pub fn mean_interval(values: &[f64]) -> Option<Interval> {
    let n = u64::try_from(values.len()).ok().filter(|n| *n > 0)?;
    let all: Vec<Interval> = values.iter().map(|v| Interval::of(*v)).collect();
    Some(Interval {
        lo: all.iter().map(|i| i.lo.clone()).sum::<BigRational>() / whole(n),
        hi: all.iter().map(|i| i.hi.clone()).sum::<BigRational>() / whole(n),
    })
}

/// How a stated number agrees with what follows for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreement {
    /// It is the exact result, rounded once.
    Exact,
    /// It differs, by no more than rounding explains.
    Rounded,
    /// It does not follow.
    No,
}

/// Holds a stated mean against the values it should be the mean of.
///
/// Exact: the nearest binary64 of the exact mean. Rounded: what adding up in binary64
/// from the left and dividing gives, or any value that the digits left out allow.
pub fn mean_agrees(stated: f64, values: &[f64]) -> Agreement {
    let (Some(m), Some(range)) = (mean(values), mean_interval(values)) else {
        return Agreement::No;
    };
    let added = values.iter().sum::<f64>() / values.len() as f64;
    if stated.to_bits() == nearest(&m).to_bits() {
        Agreement::Exact
    } else if stated.to_bits() == added.to_bits() || Interval::of(stated).meets(&range) {
        Agreement::Rounded
    } else {
        Agreement::No
    }
}

/// A decimal text, `-`, digits and a point only.
pub fn parse(text: &str) -> Option<BigRational> {
    let (minus, body) = match text.strip_prefix('-') {
        Some(body) => (true, body),
        None => (false, text),
    };
    let (a, b) = body.split_once('.').unwrap_or((body, ""));
    let pointed = body.len() != a.len();
    if a.is_empty() || (pointed && b.is_empty()) {
        return None;
    }
    // A text that long is no measurement, and parsing it takes time.
    if body.len() > 400 || !a.bytes().chain(b.bytes()).all(|c| c.is_ascii_digit()) {
        return None;
    }
    let digits: BigInt = format!("{a}{b}").parse().ok()?;
    let scale = BigInt::from(10u8).pow(u32::try_from(b.len()).ok()?);
    let value = BigRational::new(digits, scale);
    Some(if minus { -value } else { value })
}

/// A rational as text: exactly when it has at most `places` decimals, else rounded.
pub fn shown(v: &BigRational, places: u32) -> String {
    let text = decimal(v, places);
    match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text,
    }
}

/// The distance of two numbers over their mean, for a spread.
pub fn spread(values: &[f64]) -> Option<BigRational> {
    let m = mean(values).filter(Signed::is_positive)?;
    let max = values.iter().copied().fold(f64::MIN, f64::max);
    let min = values.iter().copied().fold(f64::MAX, f64::min);
    Some((exact(max) - exact(min)) / m)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_agree_to_the_bit_or_within_the_digits_left_out() {
        let runs = [61.130180890766, 70.90373572271952];
        assert_eq!(mean_agrees(66.01695830674277, &runs), Agreement::Exact);
        let next = f64::from_bits(66.01695830674277_f64.to_bits() + 1);
        assert_eq!(mean_agrees(next, &runs), Agreement::No);
        assert_eq!(mean_agrees(66.017, &runs), Agreement::Rounded);
        assert_eq!(mean_agrees(66.018, &runs), Agreement::No);
        assert_eq!(mean_agrees(66.0, &runs), Agreement::Rounded);
        assert_eq!(mean_agrees(1.0, &[]), Agreement::No);
        // 0.1 + 0.2 + 0.3 added from the left is not the nearest of the exact sum.
        let thirds = [0.1, 0.2, 0.3];
        let added = (0.1 + 0.2 + 0.3) / 3.0;
        assert_ne!(mean_agrees(added, &thirds), Agreement::No);
    }

    #[test]
    fn intervals_are_those_of_the_digits() {
        let at = |t: &str| parse(t).unwrap();
        let i = Interval::of(6931.26);
        assert_eq!((i.lo, i.hi), (at("6931.255"), at("6931.265")));
        let i = Interval::of(46.92754002611305);
        assert_eq!(i.lo, i.hi);
        let product = Interval::around(at("21.183"), 3).times(&Interval::around(at("37.153"), 3));
        assert_eq!(product.wholes(), (787.into(), 1));
        assert_eq!(Interval::around(at("0.5"), 1).wholes().1, 0);
        assert_eq!(Interval::around(at("7"), 0).wholes().1, 1);
    }

    #[test]
    fn only_plain_decimals_are_read() {
        for bad in ["", "-", "1.", ".5", "1e3", "1,000", "+1", "0x1", " 1"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
        assert_eq!(shown(&parse("-12.3400").unwrap(), 6), "-12.34");
        assert_eq!(shown(&parse("100").unwrap(), 0), "100");
    }
}

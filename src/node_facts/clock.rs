//! How far a node's clock is from this machine's, from stamps taken at both ends.
//!
//! As in RFC 5905: of each exchange, t0 and t3 are read here, t1 and t2 there. The
//! exchange that took least time on the way is believed most; half of that time
//! bounds the error, however the way is divided.

use serde::{Deserialize, Serialize};

/// One exchange, in microseconds since the Unix epoch by the clock of each side.
/// Nanoseconds would not fit into the numbers of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// Sent, by the clock here.
    pub t0: u64,
    /// Received there, by the clock there.
    pub t1: u64,
    /// Answered there, by the clock there.
    pub t2: u64,
    /// Received, by the clock here.
    pub t3: u64,
}

/// The distance of two clocks, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offset {
    /// The node's clock minus this machine's.
    pub offset_us: i64,
    /// The true value is not further away than this.
    pub error_us: u64,
    /// Exchanges that it was taken from.
    pub exchanges: u32,
}

/// The offset from several exchanges; `None` without a sensible one.
pub fn offset(exchanges: &[Exchange]) -> Option<Offset> {
    let sensible = exchanges.iter().filter_map(|e| {
        let way =
            e.t3.checked_sub(e.t0)?
                .checked_sub(e.t2.checked_sub(e.t1)?)?;
        Some((way, *e))
    });
    let count = u32::try_from(exchanges.len()).ok()?;
    let (way, e) = sensible.min_by_key(|(way, _)| *way)?;
    let there = i128::from(e.t1) + i128::from(e.t2);
    let here = i128::from(e.t0) + i128::from(e.t3);
    Some(Offset {
        offset_us: i64::try_from((there - here) / 2).ok()?,
        // Stamps are cut off to whole microseconds, and a bound that is too small is
        // none.
        error_us: way / 2 + 2,
        exchanges: count,
    })
}

impl Offset {
    /// The distance may be as large as this, in microseconds.
    pub fn at_most_us(&self) -> u64 {
        self.offset_us.unsigned_abs().saturating_add(self.error_us)
    }

    /// The distance is at least this, in microseconds.
    pub fn at_least_us(&self) -> u64 {
        self.offset_us.unsigned_abs().saturating_sub(self.error_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(t0: u64, ahead: i64, there: u64, back: u64) -> Exchange {
        let at = |t: u64| t.checked_add_signed(ahead).unwrap();
        Exchange {
            t0,
            t1: at(t0 + there),
            t2: at(t0 + there + 10),
            t3: t0 + there + 10 + back,
        }
    }

    #[test]
    fn the_shortest_way_decides_and_bounds_the_error() {
        let all = [
            exchange(1_000_000, 5_000, 900, 100),
            exchange(2_000_000, 5_000, 60, 40),
            exchange(3_000_000, 5_000, 100, 5_000),
        ];
        let o = offset(&all).unwrap();
        assert_eq!(o.exchanges, 3);
        assert_eq!(o.error_us, 52);
        assert!(o.offset_us.abs_diff(5_000) <= o.error_us, "{o:?}");
        let behind = offset(&[exchange(9_000_000, -7_000, 30, 30)]).unwrap();
        assert_eq!(behind.offset_us, -7_000);
        assert_eq!(behind.at_most_us(), 7_032);
        assert_eq!(behind.at_least_us(), 6_968);
    }

    #[test]
    fn stamps_that_make_no_sense_are_passed_over() {
        let mut odd = exchange(1_000, 0, 10, 10);
        odd.t2 = odd.t1 - 1;
        let mut backwards = exchange(1_000, 0, 10, 10);
        backwards.t3 = 0;
        assert_eq!(offset(&[odd, backwards]), None);
        assert_eq!(offset(&[]), None);
    }
}

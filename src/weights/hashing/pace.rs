//! How hard a rehash may work, so that a node that serves can be checked too.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::lock;

/// Limits of a rehash. The default is everything that the machine has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pace {
    /// Threads; without a number, as many as this process may use cores.
    pub jobs: Option<NonZeroUsize>,
    /// Bytes read per second, over all folders.
    pub bytes_per_second: Option<NonZeroU64>,
}

impl Pace {
    pub(super) fn workers(self) -> usize {
        let cores = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.jobs.map_or_else(cores, NonZeroUsize::get)
    }
}

/// Holds readers back. Each read books the time that it takes at the limit, after
/// what is booked already, and the next reader waits for its turn. Time in which
/// nobody read is not made up for.
pub(super) struct Throttle {
    bytes_per_second: Option<NonZeroU64>,
    booked_until: Mutex<Instant>,
}

impl Throttle {
    pub(super) fn new(bytes_per_second: Option<NonZeroU64>) -> Self {
        Self {
            bytes_per_second,
            booked_until: Mutex::new(Instant::now()),
        }
    }

    /// Waits until `bytes` more may be read.
    pub(super) fn wait(&self, bytes: usize) {
        let Some(limit) = self.bytes_per_second else {
            return;
        };
        let now = Instant::now();
        let mut booked_until = lock(&self.booked_until);
        let turn = (*booked_until).max(now);
        let takes = bytes as u128 * 1_000_000_000 / u128::from(limit.get());
        // A limit of a byte per second books days for a chunk; more than a century
        // does not come up.
        *booked_until = turn + Duration::from_nanos(takes.try_into().unwrap_or(u64::MAX));
        drop(booked_until);
        thread::sleep(turn - now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_booked_one_after_another() {
        let throttle = Throttle::new(NonZeroU64::new(1_000_000));
        let started = *lock(&throttle.booked_until);
        throttle.wait(10_000);
        throttle.wait(20_000);
        // The second read waited for the first one's 10 ms and booked 20 more.
        assert!(Instant::now() >= started + Duration::from_millis(10));
        assert!(*lock(&throttle.booked_until) >= started + Duration::from_millis(30));
    }

    #[test]
    fn without_a_limit_nothing_is_booked() {
        let throttle = Throttle::new(None);
        let before = *lock(&throttle.booked_until);
        throttle.wait(usize::MAX);
        assert_eq!(*lock(&throttle.booked_until), before);
    }
}

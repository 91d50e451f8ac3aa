//! How late the client itself is.
//!
//! A thread hands a tiny task to the client's runtime every [`EVERY`] and the
//! task notes how long it waited to run. Whatever delays it (a busy worker, a
//! long parse, a neighbour that takes the processor) delays the stamp of a socket
//! read just as much. The thread does not wait for the task: while the runtime
//! stands still, probes pile up and each counts, so a stall of a second is not
//! one sample among thousands of good ones. For the same reason samples are due
//! by a schedule: when the whole process stood still, the thread included, the
//! samples that it missed are made up for and count from when they were due.
//! A delay of the thread under [`EVERY`] is the timer's and is not counted.
//!
//! Samples go into a histogram of fixed size. Quantiles are the upper edges of
//! its buckets, at most 1/32 above the true value; the maximum is exact.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use runseal::event::{Event, State};
use tokio::runtime::Handle;

use crate::recorder::Recorder;

/// Time between two samples.
pub const EVERY: Duration = Duration::from_millis(5);

/// Longest wait for the last samples.
const LAST: Duration = Duration::from_secs(5);

/// Buckets per power of two, as bits.
const BITS: u32 = 5;

/// Values sorted into buckets of growing width.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    n: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; ((64 - BITS as usize) + 1) << BITS],
            n: 0,
            max: 0,
        }
    }
}

impl Histogram {
    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.n += 1;
        self.max = self.max.max(value);
    }

    /// Number of values.
    pub fn n(&self) -> u64 {
        self.n
    }

    /// Largest value; 0 when there is none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// A value that at least `percent` % of the values do not exceed, and that is
    /// at most 1/32 above the smallest such value. 0 when there is none.
    pub fn percentile(&self, percent: u32) -> u64 {
        let rank = (u128::from(self.n) * u128::from(percent))
            .div_ceil(100)
            .max(1);
        let mut sum = 0u128;
        for (i, count) in self.counts.iter().enumerate() {
            sum += u128::from(*count);
            if sum >= rank {
                return upper(i).min(self.max);
            }
        }
        self.max
    }
}

/// Values below 2^[`BITS`] have buckets of their own; above, each power of two
/// has 2^[`BITS`] of them.
fn bucket(value: u64) -> usize {
    let shift = (64 - value.leading_zeros()).saturating_sub(BITS + 1);
    ((shift as usize) << BITS) + (value >> shift) as usize
}

/// Largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let shift = (bucket >> BITS).saturating_sub(1) as u32;
    let lead = (bucket - ((shift as usize) << BITS)) as u64;
    (lead << shift) + ((1 << shift) - 1)
}

/// Samples the runtime it was started on until it is stopped.
pub struct LagProbe {
    recorder: Recorder,
    state: State,
    samples: Arc<Mutex<Histogram>>,
    stop: Sender<()>,
    /// Gives the number of samples that were asked for.
    thread: std::thread::JoinHandle<u64>,
}

impl LagProbe {
    /// Starts sampling for a state of the run. Must be called on the runtime that
    /// the client runs on.
    pub fn start(recorder: &Recorder, state: State) -> std::io::Result<Self> {
        let samples = Arc::new(Mutex::new(Histogram::default()));
        let (stop, stopped) = channel();
        let (runtime, clock) = (Handle::current(), recorder.clock());
        let sink = Arc::clone(&samples);
        // Before the thread is made: its making may take long, too.
        let mut schedule = Schedule::new(clock.now());
        let thread = std::thread::Builder::new()
            .name("client-lag".into())
            .spawn(move || {
                loop {
                    let wait = Duration::from_nanos(schedule.wait(clock.now()));
                    let over =
                        !matches!(stopped.recv_timeout(wait), Err(RecvTimeoutError::Timeout));
                    while let Some(asked) = schedule.due(clock.now()) {
                        let sink = Arc::clone(&sink);
                        runtime.spawn(async move {
                            lock(&sink).add(clock.now().saturating_sub(asked));
                        });
                    }
                    if over {
                        return schedule.asked;
                    }
                }
            })?;
        Ok(Self {
            recorder: recorder.clone(),
            state,
            samples,
            stop,
            thread,
        })
    }

    /// Stops, logs [`Event::ClientLag`] and returns the samples.
    pub async fn stop(self) -> Histogram {
        drop(self.stop);
        let thread = self.thread;
        // It ends at once; joining it elsewhere keeps this thread free for the
        // probes that are still waiting.
        let asked = tokio::task::spawn_blocking(move || thread.join()).await;
        let asked = asked.ok().and_then(Result::ok).unwrap_or(0);
        let samples = Self::all(&self.samples, asked).await;
        let event = Event::ClientLag {
            state: self.state,
            n: samples.n(),
            every: EVERY.as_nanos() as u64,
            p50: samples.percentile(50),
            p99: samples.percentile(99),
            max: samples.max(),
        };
        self.recorder.emit(self.recorder.now(), &event);
        samples
    }

    /// The samples, once all that were asked for have come in: the worst are the
    /// last. Those that do not come at all waited at least as long as we did.
    async fn all(samples: &Mutex<Histogram>, asked: u64) -> Histogram {
        let until = tokio::time::Instant::now() + LAST;
        while lock(samples).n() < asked && tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut samples = lock(samples).clone();
        while samples.n() < asked {
            samples.add(LAST.as_nanos() as u64);
        }
        samples
    }
}

/// When samples are due: every [`EVERY`] from the start.
struct Schedule {
    next: u64,
    asked: u64,
}

impl Schedule {
    const STEP: u64 = EVERY.as_nanos() as u64;

    fn new(start: u64) -> Self {
        Self {
            next: start + Self::STEP,
            asked: 0,
        }
    }

    /// Nanoseconds until the next one is due.
    fn wait(&self, now: u64) -> u64 {
        self.next.saturating_sub(now)
    }

    /// From when the next due sample counts, if one is due: now, or from when it
    /// was due when that is a whole step ago.
    fn due(&mut self, now: u64) -> Option<u64> {
        if self.next > now {
            return None;
        }
        let due = self.next;
        self.next += Self::STEP;
        self.asked += 1;
        Some(if self.next > now { now } else { due })
    }
}

fn lock(samples: &Mutex<Histogram>) -> MutexGuard<'_, Histogram> {
    // Counters: whole enough between any two statements.
    samples.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_is_narrow_and_holds_its_values(value in any::<u64>(), shift in 0u32..64) {
            let value = value >> shift;
            let up = upper(bucket(value));
            prop_assert!(up >= value);
            prop_assert!(up - value <= value / 32);
            prop_assert_eq!(bucket(up), bucket(value));
            if let Some(next) = up.checked_add(1) {
                prop_assert_eq!(bucket(next), bucket(value) + 1);
            }
        }

        #[test]
        fn percentiles_are_those_of_the_sorted_values(
            mut values in prop::collection::vec(0u64..1 << 40, 1..60),
            percent in 1u32..=100,
        ) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|v| histogram.add(*v));
            values.sort_unstable();
            let rank = (values.len() * percent as usize).div_ceil(100);
            let exact = values[rank - 1];
            let got = histogram.percentile(percent);
            prop_assert!(got >= exact && got - exact <= exact / 32, "{} {}", got, exact);
            prop_assert_eq!(histogram.max(), *values.last().unwrap());
        }
    }

    #[test]
    fn missed_samples_are_made_up_for() {
        let step = Schedule::STEP;
        let mut s = Schedule::new(100);
        assert_eq!((s.wait(100), s.due(99 + step)), (step, None));
        // A little late: the timer's delay is not the client's.
        assert_eq!(s.due(150 + step), Some(150 + step));
        // The process stood still for three steps and a half.
        let now = 100 + step * 5 + step / 2;
        let due: Vec<u64> = std::iter::from_fn(|| s.due(now)).collect();
        assert_eq!(due, [100 + 2 * step, 100 + 3 * step, 100 + 4 * step, now]);
        assert_eq!(s.asked, 5);
    }

    #[test]
    fn nothing_sampled_is_zero() {
        let empty = Histogram::default();
        assert_eq!((empty.n(), empty.percentile(99), empty.max()), (0, 0, 0));
    }
}

//! Work on every core, results in order, and never more than a few of them waiting.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Condvar, Mutex};

/// Results that may be ahead of the one that is waited for.
const AHEAD: usize = 64;

/// Runs `work` on 0 … n−1 and gives the results to `take` in that order. Stops early
/// when `take` fails.
pub fn ordered<T: Send, E>(
    n: usize,
    work: impl Fn(usize) -> T + Sync,
    mut take: impl FnMut(usize, T) -> Result<(), E>,
) -> Result<(), E> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(n).min(32);
    if threads <= 1 {
        return (0..n).try_for_each(|i| take(i, work(i)));
    }
    let next = AtomicUsize::new(0);
    let taken = Mutex::new(0usize);
    let moved = Condvar::new();
    let (send, receive) = sync_channel(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let send = send.clone();
            let (next, taken, moved, work) = (&next, &taken, &moved, &work);
            scope.spawn(move || {
                loop {
                    let i = next.fetch_add(1, Ordering::SeqCst);
                    if i >= n {
                        return;
                    }
                    // A panicked holder leaves a number that is still right.
                    let mut done = taken.lock().unwrap_or_else(|e| e.into_inner());
                    while i >= done.saturating_add(AHEAD) {
                        done = moved.wait(done).unwrap_or_else(|e| e.into_inner());
                    }
                    drop(done);
                    if send.send((i, work(i))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut waiting = BTreeMap::new();
        let mut due = 0;
        let mut outcome = Ok(());
        for (i, result) in &receive {
            waiting.insert(i, result);
            while let Some(result) = waiting.remove(&due) {
                if outcome.is_ok() {
                    outcome = take(due, result);
                }
                due += 1;
            }
            // After a failure the rest is let through and thrown away.
            let gate = if outcome.is_ok() { due } else { n };
            if outcome.is_err() {
                next.store(n, Ordering::SeqCst);
            }
            *taken.lock().unwrap_or_else(|e| e.into_inner()) = gate;
            moved.notify_all();
        }
        outcome
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_a_failure_ends_it() {
        let mut got = Vec::new();
        let slow_first = |i: usize| {
            if i == 0 {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            i * 2
        };
        let end: Result<(), ()> = ordered(500, slow_first, |i, v| {
            got.push((i, v));
            Ok(())
        });
        assert_eq!(end, Ok(()));
        assert_eq!(got, (0..500).map(|i| (i, i * 2)).collect::<Vec<_>>());
        let end = ordered(500, |i| i, |i, _| if i == 7 { Err(i) } else { Ok(()) });
        assert_eq!(end, Err(7));
        assert_eq!(ordered(0, |i| i, |_, _| Err(())), Ok(()));
    }
}

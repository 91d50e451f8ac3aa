//! Who hashes what.
//!
//! Workers take the largest file that waits. A worker that has one takes a second
//! beside it only while more files wait than workers: two files on one core are
//! faster than one, but two cores are faster still. When nothing waits any more and
//! a worker is idle, one that has two files hands one of them over, half hashed, so
//! that all cores are busy until the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use super::worker::Lane;
use super::{Task, lock};

/// Something to hash.
pub(super) enum Work {
    /// A file nobody has opened yet.
    Fresh(Box<Task>),
    /// A file that another worker has begun.
    Begun(Box<Lane>),
}

pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// Somebody is idle and nothing waits. A copy of what the state says, for a
    /// look between two chunks without the lock.
    hungry: AtomicBool,
}

struct State {
    /// The largest last.
    waiting: Vec<Task>,
    handed_over: Vec<Lane>,
    workers: usize,
    /// Workers that have nothing. All of them, at first.
    idle: usize,
    given_up: bool,
}

impl Queue {
    pub(super) fn new(mut tasks: Vec<Task>, workers: usize) -> Self {
        tasks.sort_by_key(|task| task.job.listed.size);
        Self {
            state: Mutex::new(State {
                waiting: tasks,
                handed_over: Vec::new(),
                workers,
                idle: workers,
                given_up: false,
            }),
            changed: Condvar::new(),
            hungry: AtomicBool::new(false),
        }
    }

    /// Work for an idle worker. Waits while others have some that they might hand
    /// over; nothing means that all is done.
    pub(super) fn first(&self) -> Option<Work> {
        let mut state = lock(&self.state);
        loop {
            let work = match state.handed_over.pop() {
                Some(lane) => Some(Work::Begun(Box::new(lane))),
                None => state.waiting.pop().map(Box::new).map(Work::Fresh),
            };
            if state.given_up {
                return None;
            }
            if work.is_some() {
                state.idle -= 1;
                self.look_around(&state);
                return work;
            }
            if state.idle == state.workers {
                self.changed.notify_all();
                return None;
            }
            self.look_around(&state);
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// A file for a worker that has one already.
    pub(super) fn second(&self) -> Option<Task> {
        let mut state = lock(&self.state);
        if state.waiting.len() <= state.idle {
            return None;
        }
        state.waiting.pop()
    }

    /// A worker has nothing left.
    pub(super) fn idle(&self) {
        lock(&self.state).idle += 1;
    }

    /// Whether an idle worker would like a file of one that has two.
    pub(super) fn hungry(&self) -> bool {
        self.hungry.load(Ordering::Relaxed)
    }

    /// Hands a file over, unless somebody else did meanwhile.
    pub(super) fn hand_over(&self, lane: Lane) -> Option<Lane> {
        let mut state = lock(&self.state);
        if !state.is_hungry() {
            return Some(lane);
        }
        state.handed_over.push(lane);
        self.look_around(&state);
        self.changed.notify_one();
        None
    }

    /// Lets everybody stop: a worker panicked.
    pub(super) fn give_up(&self) {
        lock(&self.state).given_up = true;
        self.changed.notify_all();
    }

    fn look_around(&self, state: &MutexGuard<'_, State>) {
        self.hungry.store(state.is_hungry(), Ordering::Relaxed);
    }
}

impl State {
    fn is_hungry(&self) -> bool {
        self.waiting.is_empty() && self.idle > self.handed_over.len()
    }
}

//! One line per replica on a terminal's stderr: bytes, rate, time left.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use runseal::relpath::RelPath;
use runseal::weights::Progress;
use runseal::weights::remote::Told;

use crate::cli::output::{plain, thousands};

const REDRAW: Duration = Duration::from_millis(200);

/// All lines.
pub struct Board {
    rows: Vec<Row>,
    started: Instant,
    /// When it was drawn last; absent when nobody looks.
    drawn: Option<Mutex<Option<Instant>>>,
}

struct Row {
    name: String,
    planned: AtomicU64,
    /// Bytes of checkpoints that are done, and of the current one.
    before: AtomicU64,
    done: AtomicU64,
    state: AtomicU8,
}

const WAITING: u8 = 0;
const READING: u8 = 1;
const ENDED: u8 = 2;
const FAILED: u8 = 3;

/// One line of the board, for the thread that moves it.
pub struct Line<'a> {
    board: &'a Board,
    row: &'a Row,
}

impl Board {
    /// A line for each name; silent unless stderr is a terminal.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let rows = names.into_iter().map(|name| Row {
            name,
            planned: AtomicU64::new(0),
            before: AtomicU64::new(0),
            done: AtomicU64::new(0),
            state: AtomicU8::new(WAITING),
        });
        Self {
            rows: rows.collect(),
            started: Instant::now(),
            drawn: io::stderr().is_terminal().then(|| Mutex::new(None)),
        }
    }

    /// The line of a replica, by its place.
    pub fn line(&self, at: usize) -> Line<'_> {
        Line {
            board: self,
            row: &self.rows[at],
        }
    }

    fn text(&self, elapsed: Duration) -> String {
        let width = self.rows.iter().map(|r| r.name.chars().count()).max();
        let mut out = String::new();
        for row in &self.rows {
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "\x1b[K{:width$}  {}",
                plain(&row.name),
                row.text(elapsed),
                width = width.unwrap_or(0)
            );
        }
        out
    }

    fn draw(&self, now: bool) {
        // A thread that finds another one drawing goes on hashing.
        let Some(Ok(mut last)) = self.drawn.as_ref().map(|m| m.try_lock()) else {
            return;
        };
        if !now && last.is_some_and(|l| l.elapsed() < REDRAW) {
            return;
        }
        let up = match *last {
            Some(_) => format!("\x1b[{}A\r", self.rows.len()),
            None => String::new(),
        };
        *last = Some(Instant::now());
        let text = self.text(self.started.elapsed());
        let _ = write!(io::stderr(), "{up}{text}");
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.draw(true);
    }
}

impl Row {
    fn text(&self, elapsed: Duration) -> String {
        let done = self.before.load(Relaxed) + self.done.load(Relaxed);
        let planned = self.planned.load(Relaxed);
        let rate = done as f64 / elapsed.as_secs_f64().max(0.001);
        let so_far = format!(
            "{} of {} bytes, {} MB/s",
            thousands(done),
            thousands(planned),
            thousands((rate / 1e6) as u64)
        );
        match self.state.load(Relaxed) {
            WAITING => "waiting for an answer".to_owned(),
            READING => {
                let left = planned.saturating_sub(done) as f64 / rate.max(1.0);
                format!("{so_far}, {left:.0} s left")
            }
            ENDED => format!("{so_far}, done"),
            _ => "no report".to_owned(),
        }
    }
}

impl Line<'_> {
    /// What was read so far belongs to checkpoints that are done: another follows.
    fn next(&self) {
        let done = self.row.done.swap(0, Relaxed);
        self.row.before.fetch_add(done, Relaxed);
    }

    /// The replica is done.
    pub fn end(&self, good: bool) {
        let state = if good { ENDED } else { FAILED };
        self.row.state.store(state, Relaxed);
        self.board.draw(true);
    }
}

impl Progress for Line<'_> {
    fn planned(&self, _: usize, bytes: u64) {
        Told::planned(self, bytes);
    }

    fn read(&self, _: &RelPath, bytes: u64) {
        self.row.done.fetch_add(bytes, Relaxed);
        self.board.draw(false);
    }
}

impl Told for Line<'_> {
    fn planned(&self, bytes: u64) {
        self.next();
        self.row.planned.fetch_add(bytes, Relaxed);
        self.row.state.store(READING, Relaxed);
        self.board.draw(false);
    }

    fn done(&self, bytes: u64) {
        self.row.done.store(bytes, Relaxed);
        self.board.draw(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_replica_has_its_line() {
        let board = Board::new(["gx1", "gx10", "a"].map(str::to_owned));
        Told::planned(&board.line(0), 4_000_000);
        board.line(0).done(1_000_000);
        Told::planned(&board.line(1), 5);
        board.line(1).done(5);
        board.line(1).end(true);
        let text = board.text(Duration::from_secs(1)).replace("\x1b[K", "");
        assert_eq!(
            text,
            "gx1   1,000,000 of 4,000,000 bytes, 1 MB/s, 3 s left\n\
             gx10  5 of 5 bytes, 0 MB/s, done\n\
             a     waiting for an answer\n"
        );
    }

    #[test]
    fn several_checkpoints_add_up() {
        let board = Board::new(["r".to_owned()]);
        let line = board.line(0);
        Told::planned(&line, 10);
        line.done(10);
        Told::planned(&line, 20);
        line.done(5);
        let text = board.text(Duration::from_secs(1));
        assert!(text.contains("15 of 30 bytes"), "{text}");
    }
}

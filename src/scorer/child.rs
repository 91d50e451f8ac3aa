//! Grading in a child of the own program, under limits.
//!
//! The parent starts its own executable with a hidden subcommand, in an empty
//! environment, and the two limits as last arguments. The child first limits
//! itself (address space, CPU time, no file writes, few descriptors, no core
//! dump), then reads JSON lines from stdin: `{"scorer":...}`, then one item per
//! line, so that it never holds more than one. It answers in JSON lines as well:
//! `{"ready":true}` or `{"refused":...}`, then one line per item, in order and
//! flushed, then `{"done":n}`.
//!
//! When a child dies, the lines it wrote still count. The item it died over is
//! tried once more in a child of its own, since an earlier item may have used up
//! the limits; when that child dies too, this item alone is `ungraded`. After
//! [`ChildLimits::max_deaths`] such items the rest is not tried.

use std::io::{self, BufRead, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::eval::{Compiled, check_size};
use super::{Answer, Grade, GradeItem, GradeResult, Scorer, ScorerError};

/// The hidden subcommand of both programs.
pub const SUBCOMMAND: &str = "__grade";

/// A batch is closed when it has this many items ...
const BATCH_ITEMS: usize = 256;
/// ... or about this many bytes.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// The syntax tree and JSON are walked recursively; both are bounded, and this
/// is ample for the bounds.
const STACK_BYTES: usize = 64 * 1024 * 1024;
/// Kept of the child's stderr.
const STDERR_BYTES: u64 = 4096;

/// Limits of one child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildLimits {
    /// Address space in bytes.
    pub memory_bytes: u64,
    /// CPU seconds.
    pub cpu_seconds: u64,
    /// Wall time, kept by the parent.
    pub wall: Duration,
    /// Items that may kill a child before the rest is given up.
    pub max_deaths: usize,
}

impl Default for ChildLimits {
    fn default() -> Self {
        Self {
            memory_bytes: 512 * 1024 * 1024,
            cpu_seconds: 20,
            wall: Duration::from_secs(60),
            max_deaths: 8,
        }
    }
}

/// Why nothing was graded. An auditor reports the check as not performed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotGraded {
    /// The scorer is refused, or written in an unknown dialect.
    #[error(transparent)]
    Scorer(#[from] ScorerError),
    /// The child refused the scorer after parsing its expressions.
    #[error("{0}")]
    Refused(String),
    /// The child died before the first item, could not be started, or answered
    /// nonsense.
    #[error("the scorer's child {0} (hint: see the limits in docs/scorer-dialect.md)")]
    Child(String),
}

#[derive(Serialize, Deserialize)]
struct Head<'a> {
    scorer: std::borrow::Cow<'a, str>,
}

#[derive(Serialize)]
struct ItemOut<'a> {
    case: &'a Value,
    answer: &'a Answer,
}

#[derive(Deserialize)]
struct ItemIn {
    case: Value,
    answer: Answer,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Ready(bool),
    Refused(String),
    Item(Grade),
    Done(usize),
}

/// Grades items with a scorer, in children of `exe` (a program that runs
/// [`child_main`] when started with `hidden_args`). One result per item, in
/// order. Without items this only checks the scorer.
pub fn grade_in_child(
    exe: &Path,
    hidden_args: &[&str],
    scorer_toml: &[u8],
    items: &[GradeItem],
    limits: &ChildLimits,
) -> Result<Vec<GradeResult>, NotGraded> {
    Scorer::parse(scorer_toml)?;
    // `parse` accepted it, so it is UTF-8.
    let scorer = std::str::from_utf8(scorer_toml).unwrap_or_default();
    let start = Start {
        exe,
        hidden_args,
        scorer,
        limits,
    };

    // Items past the fixed limits are decided here and never sent.
    let mut results: Vec<Option<GradeResult>> = items
        .iter()
        .map(|item| {
            check_size(&item.case, &item.answer)
                .err()
                .map(|grade| result(item, grade, true))
        })
        .collect();
    let todo: Vec<usize> = (0..items.len()).filter(|i| results[*i].is_none()).collect();

    let mut next = 0;
    let mut deaths = 0;
    let mut alone = false;
    loop {
        let len = if alone {
            1
        } else {
            batch_len(&todo[next..], items)
        };
        let batch: Vec<&GradeItem> = todo[next..next + len].iter().map(|i| &items[*i]).collect();
        let reply = start.run(&batch)?;
        // A child may also die after its last item; then no item is to blame.
        let unfinished = reply.grades.len() < len;
        for grade in reply.grades {
            let i = todo[next];
            results[i] = Some(result(&items[i], grade, true));
            next += 1;
            alone = false;
        }
        if let Some(cause) = reply.died
            && unfinished
        {
            if len == 1 {
                let i = todo[next];
                let reason = format!("scorer child died: {cause}");
                results[i] = Some(result(&items[i], Grade::Ungraded { reason }, false));
                next += 1;
                deaths += 1;
                alone = false;
            } else {
                alone = true;
            }
        }
        if next == todo.len() {
            break;
        }
        if deaths >= limits.max_deaths {
            for &i in &todo[next..] {
                let reason = format!("not tried: the scorer's child died over {deaths} items");
                results[i] = Some(result(&items[i], Grade::Ungraded { reason }, false));
            }
            break;
        }
    }
    Ok(results.into_iter().flatten().collect())
}

fn result(item: &GradeItem, grade: Grade, performed: bool) -> GradeResult {
    GradeResult {
        key: item.key.clone(),
        grade,
        performed,
    }
}

fn batch_len(todo: &[usize], items: &[GradeItem]) -> usize {
    let mut bytes = 0;
    todo.iter()
        .take(BATCH_ITEMS)
        .take_while(|i| {
            let fits = bytes < BATCH_BYTES;
            let item = &items[**i];
            bytes += item.answer.content.len()
                + item.answer.reasoning.len()
                + crate::json::canonical(&item.case).len();
            fits
        })
        .count()
}

struct Start<'a> {
    exe: &'a Path,
    hidden_args: &'a [&'a str],
    scorer: &'a str,
    limits: &'a ChildLimits,
}

struct Reply {
    /// Of the first items of the batch.
    grades: Vec<Grade>,
    /// Set when the child ended before it was done.
    died: Option<&'static str>,
}

impl Start<'_> {
    fn run(&self, batch: &[&GradeItem]) -> Result<Reply, NotGraded> {
        let mut request = Vec::new();
        put(
            &mut request,
            &Head {
                scorer: self.scorer.into(),
            },
        )
        .and_then(|()| {
            batch.iter().try_for_each(|item| {
                let (case, answer) = (&item.case, &item.answer);
                put(&mut request, &ItemOut { case, answer })
            })
        })
        .map_err(|e| NotGraded::Child(format!("could not be asked: {e}")))?;
        let child = Command::new(self.exe)
            .args(self.hidden_args)
            .arg(self.limits.memory_bytes.to_string())
            .arg(self.limits.cpu_seconds.to_string())
            // Its own group: a Ctrl-C at the terminal is the parent's to handle.
            .process_group(0)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| NotGraded::Child(format!("could not be started: {}", e.kind())))?;
        // Room for a line per item; a line holds an id and a short reason.
        let max_output = 4096 * (batch.len() as u64 + 4);
        let ended = pump(child, request, max_output, self.limits.wall)
            .map_err(|e| NotGraded::Child(format!("could not be watched: {}", e.kind())))?;
        read_reply(&ended, batch.len())
    }
}

struct Ended {
    output: Vec<u8>,
    stderr: Vec<u8>,
    status: ExitStatus,
    timed_out: bool,
}

/// Feeds and drains the child on threads, so that neither side waits for the
/// other, and kills it at the deadline.
fn pump(mut child: Child, request: Vec<u8>, max_output: u64, wall: Duration) -> io::Result<Ended> {
    let deadline = Instant::now() + wall;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let writer = thread::spawn(move || {
        if let Some(mut stdin) = stdin {
            // A child that died or refused does not read on; its exit tells.
            let _ = stdin.write_all(&request);
        }
    });
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut output = Vec::new();
        if let Some(stdout) = stdout {
            let _ = stdout.take(max_output).read_to_end(&mut output);
        }
        let _ = send.send(output);
    });
    let noise = thread::spawn(move || {
        let mut kept = Vec::new();
        if let Some(mut stderr) = stderr {
            let _ = (&mut stderr).take(STDERR_BYTES).read_to_end(&mut kept);
            let _ = io::copy(&mut stderr, &mut io::sink());
        }
        kept
    });
    let mut timed_out = false;
    let output = match receive.recv_timeout(wall) {
        Ok(output) => Some(output),
        Err(_) => {
            timed_out = true;
            None
        }
    };
    // Its stdout is closed (or full, and the child blocked on it): it should end
    // by itself at once, and is ended at the deadline otherwise.
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if timed_out || Instant::now() >= deadline {
            timed_out = true;
            child.kill()?;
            break child.wait()?;
        }
        thread::sleep(Duration::from_millis(2));
    };
    let output = match output {
        Some(output) => output,
        None => receive.recv().unwrap_or_default(),
    };
    let _ = writer.join();
    Ok(Ended {
        output,
        stderr: noise.join().unwrap_or_default(),
        status,
        timed_out,
    })
}

fn read_reply(ended: &Ended, items: usize) -> Result<Reply, NotGraded> {
    let nonsense = || NotGraded::Child("answered in a form that is not its own".to_owned());
    let mut grades = Vec::new();
    let (mut ready, mut done) = (false, false);
    // A line without its end is one that the child could not finish.
    for line in ended.output.split_inclusive(|b| *b == b'\n') {
        let Some(line) = line.strip_suffix(b"\n") else {
            break;
        };
        if done {
            return Err(nonsense());
        }
        match serde_json::from_slice(line).map_err(|_| nonsense())? {
            Line::Refused(why) if !ready => return Err(NotGraded::Refused(why)),
            Line::Ready(true) if !ready => ready = true,
            Line::Item(grade) if ready && grades.len() < items => grades.push(grade),
            Line::Done(n) if ready && n == items && grades.len() == items => done = true,
            _ => return Err(nonsense()),
        }
    }
    if done {
        return Ok(Reply { grades, died: None });
    }
    if ended.status.code().is_some() && !ended.timed_out {
        // It ended by itself without being done: it could not limit itself, or
        // the program does not know the subcommand. Its words are for people.
        let words = String::from_utf8_lossy(&ended.stderr);
        let first = words.lines().next().unwrap_or_default();
        return Err(NotGraded::Child(format!("gave up: {first}")));
    }
    let cause = cause_of_death(ended);
    if ready {
        Ok(Reply {
            grades,
            died: Some(cause),
        })
    } else {
        Err(NotGraded::Child(format!(
            "died while reading the scorer: {cause}"
        )))
    }
}

/// In words that are the same on every machine: the limit, not the signal.
fn cause_of_death(ended: &Ended) -> &'static str {
    let signal = ended.status.signal();
    if ended.timed_out || signal == Some(Signal::XCPU.as_raw()) {
        "time limit"
    } else if [Signal::ABORT, Signal::SEGV, Signal::BUS, Signal::KILL]
        .iter()
        .any(|s| signal == Some(s.as_raw()))
    {
        // Failed allocations and overflowing stacks abort; KILL is the kernel's
        // answer when the whole machine is out of memory.
        "memory limit"
    } else {
        "it was ended from outside"
    }
}

/// The child's side; mount it as the hidden subcommand [`SUBCOMMAND`]. The last
/// two arguments of the process are the limits.
pub fn child_main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let limits: Vec<u64> = args
        .iter()
        .rev()
        .take(2)
        .filter_map(|a| a.parse().ok())
        .collect();
    let [cpu, memory] = limits[..] else {
        eprintln!("this subcommand is started by the program itself (hint: use `verify record`)");
        return ExitCode::from(2);
    };
    if let Err(e) = limit_self(memory, cpu) {
        eprintln!("the limits could not be set: {e}");
        return ExitCode::from(2);
    }
    // Whatever panics is reported as a grade; the message would be noise.
    std::panic::set_hook(Box::new(|_| {}));
    let work = thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(|| serve(&mut io::stdin().lock(), &mut io::stdout().lock()));
    match work.map(|handle| handle.join()) {
        Ok(Ok(Ok(()))) => ExitCode::SUCCESS,
        Ok(Ok(Err(e))) => {
            eprintln!("the request could not be served: {}", e.kind());
            ExitCode::from(2)
        }
        _ => {
            eprintln!("the grading thread ended");
            ExitCode::from(2)
        }
    }
}

fn limit_self(memory: u64, cpu: u64) -> io::Result<()> {
    for (resource, wanted) in [
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nofile, 8),
        (Resource::Cpu, cpu),
        (Resource::As, memory),
    ] {
        // A limit can be lowered only; one that is lower already stays.
        let lower = |wanted: u64| match getrlimit(resource).maximum {
            Some(hard) => hard.min(wanted),
            None => wanted,
        };
        // At the hard CPU limit the kernel sends KILL, which would look like
        // memory; the soft one comes a second earlier and has its own signal.
        let grace = u64::from(resource == Resource::Cpu);
        let limit = Rlimit {
            current: Some(lower(wanted)),
            maximum: Some(lower(wanted.saturating_add(grace))),
        };
        setrlimit(resource, limit)?;
    }
    Ok(())
}

/// Serves one request; pure but for the two streams.
pub fn serve(input: &mut impl BufRead, output: &mut impl Write) -> io::Result<()> {
    let mut line = Vec::new();
    input.read_until(b'\n', &mut line)?;
    let head: Head = serde_json::from_slice(&line)?;
    let compiled = Scorer::parse(head.scorer.as_bytes()).and_then(|s| Compiled::new(&s));
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(e) => return put(output, &Line::Refused(e.to_string())),
    };
    put(output, &Line::Ready(true))?;
    let mut n = 0;
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            return put(output, &Line::Done(n));
        }
        let item: ItemIn = serde_json::from_slice(&line)?;
        put(
            output,
            &Line::Item(compiled.grade(&item.case, &item.answer)),
        )?;
        n += 1;
    }
}

fn put(output: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    output.write_all(&bytes)?;
    output.flush()
}

//! A working folder with a small plan, the real `attest` in it, and looks at what
//! it leaves behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use runseal::audit::{AuditReport, Reader, Verdict, audit};
use runseal::bundle::read::read;
use runseal::event::{Event, EventLine, State};
use runseal::keys::load_public;
use runseal::record::{Attribution, CaseRecord, RunRecord, Status};
use runseal::scorer::child::{ChildLimits, SUBCOMMAND, grade_in_child};
use runseal::scorer::{GradeItem, GradeResult};
use rustix::process::{Pid, Signal, kill_process};

/// Nothing here takes this long unless it hangs.
const LIMIT: Duration = Duration::from_secs(120);
const CASES: &str = include_str!("../../suites/serving-performance-v1/cases.jsonl");
const SUITE: &str = include_str!("../../suites/serving-performance-v1/suite.toml");
const SCORER: &str = include_str!("../../suites/serving-performance-v1/scorer.toml");

pub fn attest() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_attest"))
}

/// What the tests vary about a plan.
#[derive(Clone)]
pub struct Plan {
    pub replicas: usize,
    pub cases: usize,
    pub engine_args: Vec<String>,
    pub manifest: String,
    pub request_ms: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            replicas: 2,
            cases: 4,
            engine_args: Vec::new(),
            manifest: "builtin:reference".into(),
            request_ms: 60_000,
        }
    }
}

impl Plan {
    /// Slow enough to interfere with.
    pub fn slow() -> Self {
        Self {
            engine_args: ["--token-delay-ms", "30"].map(String::from).to_vec(),
            ..Self::default()
        }
    }

    pub fn text(&self) -> String {
        let replicas: String = (0..self.replicas)
            .map(|i| {
                format!(
                    "[[replica]]\nname = \"r{i}\"\nnode = \"n0\"\ntarget = \"replicas/r{i}\"\n\n"
                )
            })
            .collect();
        format!(
            r#"format = "runseal.attest/v1"
suite = "tiny"

[[checkpoint]]
role = "target"
name = "runseal-reference"
manifest = "{}"

{replicas}[engine]
recipe = "reference"
args = {:?}

[requests]
model = "runseal-reference"
temperature = "0"
seed = 1
max_tokens = 256

[load]
concurrency = 1
repetitions = 1

[timeouts_ms]
connect = 5000
first_token = {request}
stall = {request}
request = {request}
ready = 20000

[cache]
claim = "none"
max_cached_tokens = 0
"#,
            self.manifest,
            self.engine_args,
            request = self.request_ms,
        )
    }
}

/// A working folder. Dropping it proves that no process works in it any more.
pub struct Work {
    pub dir: tempfile::TempDir,
}

impl Drop for Work {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.assert_no_process();
        }
    }
}

impl Work {
    pub fn new(plan: &Plan) -> Self {
        let work = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let tiny = work.path("tiny");
        fs::create_dir(&tiny).unwrap();
        let cases: String = CASES.split_inclusive('\n').take(plan.cases).collect();
        fs::write(tiny.join("cases.jsonl"), cases).unwrap();
        fs::write(tiny.join("scorer.toml"), SCORER).unwrap();
        let suite = SUITE.replace("serving-performance-v1", "tiny-v1");
        fs::write(tiny.join("suite.toml"), suite).unwrap();
        fs::write(work.path("attest.toml"), plan.text()).unwrap();
        work
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(attest());
        command.args(args).current_dir(self.dir.path());
        command
    }

    /// Runs to the end.
    pub fn run(&self) -> Ended {
        self.start().end()
    }

    /// Starts `attest run`.
    pub fn start(&self) -> Running<'_> {
        self.start_command(self.command(&["run"]))
    }

    pub fn start_command(&self, mut command: Command) -> Running<'_> {
        let out = |name: &str| fs::File::create(self.path(name)).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(out("out.txt"))
            .stderr(out("err.txt"))
            .spawn()
            .unwrap();
        Running { work: self, child }
    }

    /// `attest close` of the only bundle.
    pub fn close(&self) -> Ended {
        let bundle = self.bundle();
        let command = self.command(&["close", bundle.to_str().unwrap()]);
        self.start_command(command).end()
    }

    pub fn bundles(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.path("evidence")) else {
            return Vec::new();
        };
        let mut all: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
        all.sort();
        all
    }

    /// The only bundle.
    pub fn bundle(&self) -> PathBuf {
        match self.bundles().as_slice() {
            [one] => one.clone(),
            other => panic!("not one bundle: {other:?}"),
        }
    }

    /// Whole lines of the event log so far.
    pub fn events(&self) -> Vec<EventLine> {
        let Some(bundle) = self.bundles().pop() else {
            return Vec::new();
        };
        let Ok(text) = fs::read(bundle.join("events.jsonl")) else {
            return Vec::new();
        };
        let whole = text.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
        text[..whole]
            .split(|b| *b == b'\n')
            .skip(1)
            .filter(|l| !l.is_empty())
            .map(|l| serde_json::from_slice(l).unwrap())
            .collect()
    }

    /// Engines that were up: replica and pid with start time.
    pub fn engines(&self) -> Vec<(String, u32, u64)> {
        self.events()
            .into_iter()
            .filter_map(|l| match l.event {
                Event::RankUp {
                    replica,
                    pid,
                    start_ticks,
                    ..
                } => Some((replica, pid, start_ticks)),
                _ => None,
            })
            .collect()
    }

    /// Sends a signal to the engine of a replica, and to nothing else.
    pub fn signal_engine(&self, replica: &str, signal: Signal) {
        let (_, pid, ticks) = self
            .engines()
            .into_iter()
            .find(|(r, ..)| r == replica)
            .unwrap();
        assert_eq!(start_ticks(pid), Some(ticks), "{replica} is gone already");
        kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
    }

    /// The audit of a stranger who trusts the key, or does not.
    pub fn audit(&self, trust: bool) -> AuditReport {
        audit_of(
            &self.bundle(),
            trust.then(|| self.path("keys/attest.pub.pem")),
        )
    }

    /// The record, after an audit that found nothing wrong.
    pub fn record(&self) -> RunRecord {
        let report = self.audit(true);
        assert_eq!(report.verdict, Verdict::Verified, "{:#?}", report.findings);
        assert_eq!(self.audit(false).verdict, Verdict::SelfConsistent);
        *report.derived.unwrap()
    }

    /// Nothing runs that was started in this folder: neither a process whose
    /// working folder it is, nor an engine of the log.
    pub fn assert_no_process(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "processes are left: {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        for (replica, pid, ticks) in self.engines() {
            assert_ne!(start_ticks(pid), Some(ticks), "{replica} still runs");
        }
    }

    fn processes(&self) -> Vec<(String, String)> {
        let here = self.dir.path().canonicalize().unwrap();
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter(|e| fs::read_link(e.path().join("cwd")).is_ok_and(|cwd| cwd == here))
            .map(|e| {
                let argv = fs::read(e.path().join("cmdline")).unwrap_or_default();
                let argv = String::from_utf8_lossy(&argv).replace('\0', " ");
                (e.file_name().to_string_lossy().into_owned(), argv)
            })
            .collect()
    }
}

pub fn audit_of(bundle: &Path, trusted: Option<PathBuf>) -> AuditReport {
    let trusted: Vec<_> = trusted.iter().map(|p| load_public(p).unwrap()).collect();
    let exe = attest();
    let grader = |scorer: &[u8], items: &[GradeItem]| -> Result<Vec<GradeResult>, String> {
        grade_in_child(&exe, &[SUBCOMMAND], scorer, items, &ChildLimits::default())
            .map_err(|e| e.to_string())
    };
    let reader = Reader {
        trusted: &trusted,
        grader: &grader,
        commitment: None,
    };
    audit("bundle", &read(bundle).unwrap(), &reader)
}

/// Codes of the findings of an audit.
pub fn codes(report: &AuditReport) -> Vec<&'static str> {
    report.findings.iter().map(|f| f.code.name()).collect()
}

/// Why an attempt is not attributed, if so.
pub fn because(case: &CaseRecord) -> Option<&str> {
    match &case.attribution {
        Attribution::Verified => None,
        Attribution::Unverified { because } => Some(because),
    }
}

/// Start time of a process that has not ended.
pub fn start_ticks(pid: u32) -> Option<u64> {
    runseal_runner::run::rank::start_ticks(pid)
}

/// A started program.
pub struct Running<'a> {
    work: &'a Work,
    pub child: Child,
}

/// An ended one.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Ended {
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{}\n{}", self.out, self.err);
        self
    }

    #[track_caller]
    pub fn says(self, words: &str) -> Self {
        let text = format!("{}\n{}", self.out, self.err);
        assert!(text.contains(words), "{words:?} is not in\n{text}");
        self
    }
}

impl Running<'_> {
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until the log holds an event.
    #[track_caller]
    pub fn wait_for(&mut self, what: impl Fn(&Event) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !self.work.events().iter().any(|l| what(&l.event)) {
            if let Some(status) = self.child.try_wait().unwrap() {
                let err = fs::read_to_string(self.work.path("err.txt")).unwrap();
                panic!("it ended before that, with {status}:\n{err}");
            }
            assert!(Instant::now() < deadline, "that never happened");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[track_caller]
    pub fn wait_for_state(&mut self, wanted: State) {
        self.wait_for(|e| matches!(e, Event::State { state } if *state == wanted));
    }

    /// Waits until some generated text of a measured attempt has arrived.
    #[track_caller]
    pub fn wait_for_text(&mut self) {
        self.wait_for_state(State::Measure);
        let deadline = Instant::now() + LIMIT;
        loop {
            let events = self.work.events();
            let measured = |r: u32| {
                events.iter().any(
                    |l| matches!(l.event, Event::Queued { req, warmup: false, .. } if req == r),
                )
            };
            if events.iter().any(
                |l| matches!(l.event, Event::Delta { req, len, .. } if len > 0 && measured(req)),
            ) {
                return;
            }
            assert!(Instant::now() < deadline, "no text came");
            assert!(self.child.try_wait().unwrap().is_none(), "it ended early");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the end, which must come.
    #[track_caller]
    pub fn end(mut self) -> Ended {
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                panic!("it does not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = |name: &str| fs::read_to_string(self.work.path(name)).unwrap();
        Ended {
            status,
            out: text("out.txt"),
            err: text("err.txt"),
        }
    }
}

#[track_caller]
pub fn failed_with(record: &RunRecord, in_state: &str, with_cause: &str) -> String {
    match &record.run.status {
        Status::Failed {
            state,
            cause,
            detail,
        } if state == in_state && cause == with_cause => detail.clone(),
        other => panic!("not failed({in_state}, {with_cause}): {other:?}"),
    }
}

#[track_caller]
pub fn aborted_by(record: &RunRecord, by: &str) {
    let by_whom = Status::Aborted { cause: by.into() };
    assert_eq!(record.run.status, by_whom);
}

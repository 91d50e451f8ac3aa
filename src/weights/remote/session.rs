//! One conversation with one node. It always ends: silence, a stall, a message
//! that is none, or the end of the program each end it.

use std::io::{BufReader, Read, Write};
use std::num::NonZeroU64;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use super::command::{Reach, Run, Spawn};
use super::failure::{End, Failure, How};
use super::protocol::{
    self, Hello, MAX_LARGE, MAX_SMALL, Message, MessageError, PROTOCOL, Request,
};
use super::push::{self, Program};
use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::finding::Finding;
use crate::leftovers;
use crate::weights::{Listing, LocateError, Replica, SavedReport, Transport};

/// A node that hashes must get on within this many silences.
const STALL: u32 = 10;
/// To get on is to read at least this many bytes a second, or to reach the end: a
/// node that reports a byte now and then would otherwise be waited for for ever.
/// The slowest disk in use is far above it.
const SLOWEST: u64 = 64 * 1024;
/// How long a program may take to end once its pipes are closed.
const FAREWELL: Duration = Duration::from_secs(5);
/// As much stderr and log as is kept.
const MAX_SAID: usize = 16 * 1024;

/// A replica's node and what is expected of it.
pub struct Node<'a> {
    /// The replica.
    pub replica: &'a Replica,
    /// How to get there.
    pub reach: &'a Reach,
    /// This program's version: the agent's must be the same.
    pub version: &'a str,
    /// This program's digest: another one on the node is noted.
    pub own_sha256: Sha256Digest,
    /// The program to copy there, when that is wanted.
    pub push: Option<&'a Program>,
    /// Longest silence tolerated.
    pub silence: Duration,
}

/// A rehash to ask for.
pub struct Question<'a> {
    /// What is sent.
    pub request: Request,
    /// What it expects.
    pub manifest: &'a Listing,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The report, with its envelope when the node signed it.
    pub saved: SavedReport,
}

/// Hears how far a node is.
pub trait Told: Sync {
    /// So many bytes are going to be read.
    fn planned(&self, bytes: u64);
    /// So many bytes of the current checkpoint were read.
    fn done(&self, bytes: u64);
}

/// What a conversation gave.
pub struct Conversation {
    /// One answer or failure for each question.
    pub answers: Vec<Result<Asked, Failure>>,
    /// Remarks on the node's program.
    pub notes: Vec<Finding>,
}

/// Asks one node all questions, one after another.
pub fn ask(node: &Node, questions: &[Question], told: &dyn Told) -> Conversation {
    let mut answers = Vec::new();
    let mut notes = Vec::new();
    let failed = connected(node, || {
        converse(node, questions, told, &mut answers, &mut notes).err()
    });
    if let Some(failure) = failed {
        answers.resize_with(questions.len(), || Err(failure.clone()));
    }
    Conversation { answers, notes }
}

/// Talks with a node, and ends what connection was shared for that: when the talk is
/// over, or when a signal ends the program in the middle of it.
pub(super) fn connected<T>(node: &Node, talk: impl FnOnce() -> T) -> T {
    let (replica, reach) = (node.replica.clone(), node.reach.clone());
    let entry = leftovers::goodbye(move || goodbye(&replica, &reach));
    let said = talk();
    goodbye(node.replica, node.reach);
    drop(entry);
    said
}

/// Starts the agent and reads its greeting.
pub(super) fn greet(node: &Node) -> Result<(Session, Hello), Failure> {
    let replica = node.replica;
    let program = match (node.push, &replica.transport) {
        (Some(program), _) => push::ensure(node, program)?,
        (None, Transport::Local) => node.reach.own.to_string_lossy().into_owned(),
        (None, _) => replica.agent.clone().unwrap_or("verify".to_owned()),
    };
    let mut session = Session::start(node, &Run::agent(replica, &program))?;
    let hello = match session.next(node.silence)? {
        Message::Hello(hello) => hello,
        _ => return Err(session.nonsense("it did not introduce itself first")),
    };
    session.greeted = true;
    Ok((session, hello))
}

fn converse(
    node: &Node,
    questions: &[Question],
    told: &dyn Told,
    answers: &mut Vec<Result<Asked, Failure>>,
    notes: &mut Vec<Finding>,
) -> Result<(), Failure> {
    let (mut session, hello) = greet(node)?;
    notes.extend(check_hello(node, &hello)?);
    for question in questions {
        let message = Message::Rehash(Box::new(question.request.clone()));
        session.send(&message);
        answers.push(session.answer(node, question, &hello, told)?);
    }
    session.end();
    Ok(())
}

pub(super) fn check_hello(node: &Node, hello: &Hello) -> Result<Option<Finding>, Failure> {
    if hello.protocol != PROTOCOL || hello.version != node.version {
        let detail = format!(
            "version {} (protocol {}) on the node, {} (protocol {PROTOCOL}) here",
            hello.version, hello.protocol, node.version
        );
        return Err(Failure::new(Code::AgentWrongVersion, detail));
    }
    let found = hello.binary_sha256;
    // A pin holds for a pushed program as well.
    let pushed = node.push.map(|p| p.sha256);
    let wanted = node.replica.agent_sha256.or(pushed);
    match wanted {
        Some(wanted) if wanted != found => {
            let detail = format!("the program on the node is {found}, not {wanted}");
            Err(Failure::new(Code::AgentDigestMismatch, detail))
        }
        Some(_) => Ok(None),
        None if found == node.own_sha256 => Ok(None),
        None => {
            let detail = format!("built for {}, and not pinned", hello.arch);
            let note = Finding::new(Code::AgentBinaryDiffers, &node.replica.name, detail);
            Ok(Some(note.values(node.own_sha256, found)))
        }
    }
}

/// Whether a node gets on, from what it says of itself.
struct Headway {
    window: Duration,
    /// Bytes a second.
    slowest: u64,
    planned: Option<u64>,
    /// Bytes and time at the start of the window.
    from: (u64, Instant),
}

impl Headway {
    fn new(window: Duration, limit: Option<NonZeroU64>, now: Instant) -> Self {
        Self {
            window,
            // Who is told to read slowly may.
            slowest: limit.map_or(SLOWEST, |l| SLOWEST.min(l.get() / 2)),
            planned: None,
            from: (0, now),
        }
    }

    /// Only the first plan counts.
    fn planned(&mut self, bytes: u64) {
        self.planned.get_or_insert(bytes);
    }

    /// So many bytes were read by now. The error says what is too slow.
    fn at(&mut self, bytes: u64, now: Instant) -> Result<(), String> {
        let (before, since) = self.from;
        let window = self.window.as_secs().max(1);
        // What is beyond the plan is no progress.
        let bytes = self.planned.map_or(bytes, |p| bytes.min(p));
        let read = bytes.saturating_sub(before);
        if read >= self.slowest * window {
            self.from = (bytes, now);
        } else if now.saturating_duration_since(since) > self.window {
            return Err(match read {
                0 => format!("it read no byte for {window} s"),
                some => format!("it read only {some} bytes in {window} s"),
            });
        }
        Ok(())
    }
}

/// A started program that may be talking to us.
pub(super) struct Session {
    child: Child,
    to_child: Option<Sender<Vec<u8>>>,
    messages: Receiver<Result<Message, MessageError>>,
    stderr: Receiver<String>,
    spawn: Spawn,
    pinned: bool,
    ssh: bool,
    greeted: bool,
}

impl Session {
    fn start(node: &Node, run: &Run) -> Result<Self, Failure> {
        let (mut child, spawn) = start(node, run)?;
        let stdin = child.stdin.take();
        let (to_child, lines) = mpsc::channel::<Vec<u8>>();
        // A node that does not read must not stop us from noticing its silence.
        std::thread::spawn(move || {
            let Some(mut stdin) = stdin else { return };
            for line in lines {
                if stdin.write_all(&line).and_then(|()| stdin.flush()).is_err() {
                    return;
                }
            }
        });
        let (say, messages) = mpsc::sync_channel(16);
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut input = BufReader::with_capacity(1 << 16, stdout);
                let mut max = MAX_SMALL;
                loop {
                    let message = protocol::read(&mut input, max);
                    max = MAX_LARGE;
                    let last = message.is_err();
                    if say.send(message).is_err() || last {
                        return;
                    }
                }
            });
        }
        let stderr = collect(child.stderr.take());
        Ok(Self {
            child,
            to_child: Some(to_child),
            messages,
            stderr,
            spawn,
            pinned: is_pinned(node.replica),
            ssh: matches!(node.replica.transport, Transport::Ssh(_)),
            greeted: false,
        })
    }

    pub(super) fn send(&self, message: &Message) {
        let mut line = crate::json::canonical(message);
        line.push(b'\n');
        // When nobody takes it, the answer will not come, and that is noticed.
        let _ = self.to_child.as_ref().map(|c| c.send(line));
    }

    pub(super) fn next(&mut self, silence: Duration) -> Result<Message, Failure> {
        match self.messages.recv_timeout(silence) {
            Ok(Ok(message)) => Ok(message),
            Ok(Err(MessageError::Ended | MessageError::Cut))
            | Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
            Ok(Err(e)) => Err(self.nonsense(&e.to_string())),
            Err(RecvTimeoutError::Timeout) => {
                self.kill();
                let detail = format!("no answer for {} s", silence.as_secs());
                Err(Failure::new(Code::NodeTimeout, detail))
            }
        }
    }

    fn answer(
        &mut self,
        node: &Node,
        question: &Question,
        hello: &Hello,
        told: &dyn Told,
    ) -> Result<Result<Asked, Failure>, Failure> {
        let mut headway = Headway::new(
            node.silence * STALL,
            question.request.bytes_per_second,
            Instant::now(),
        );
        loop {
            match self.next(node.silence)? {
                Message::Planned { bytes, .. } => {
                    headway.planned(bytes);
                    told.planned(bytes);
                }
                Message::Progress { bytes } => {
                    told.done(bytes);
                    if let Err(detail) = headway.at(bytes, Instant::now()) {
                        self.kill();
                        return Err(Failure::new(Code::NodeTimeout, detail));
                    }
                }
                Message::Report { report, envelope } => {
                    let saved = read_report(question, hello, &report, envelope)
                        .map_err(|why| self.nonsense(&why))?;
                    return Ok(Ok(Asked { saved }));
                }
                Message::Unreachable { code, reason } if LocateError::may_be(code) => {
                    return Ok(Err(Failure::new(code, reason)));
                }
                Message::Unreachable { code, .. } => {
                    return Err(self.nonsense(&format!("{code} is no reason for a missing report")));
                }
                Message::Refused { reason } => {
                    return Err(self.nonsense(&format!("it refused: {reason}")));
                }
                _ => return Err(self.nonsense("it said something out of turn")),
            }
        }
    }

    /// The program closed its stdout: why?
    fn ended(&mut self) -> Failure {
        let end = finish(&mut self.child, &self.stderr, &self.spawn, FAREWELL);
        let end = End {
            ssh: self.ssh,
            pinned: self.pinned,
            greeted: self.greeted,
            ..end
        };
        Failure::classify(&end)
    }

    pub(super) fn nonsense(&mut self, why: &str) -> Failure {
        self.kill();
        Failure::new(Code::AgentProtocol, why)
    }

    /// Nothing more will be asked.
    pub(super) fn end(mut self) {
        self.to_child = None;
        wait(&mut self.child, FAREWELL);
    }

    pub(super) fn kill(&mut self) {
        leftovers::kill(&mut self.child);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The report must be the one that was asked for, of the node that said hello.
fn read_report(
    question: &Question,
    hello: &Hello,
    report: &str,
    envelope: Option<String>,
) -> Result<SavedReport, String> {
    let saved = SavedReport::parse(report.as_bytes()).map_err(|e| e.to_string())?;
    if saved.envelope.is_some() {
        return Err("an envelope stands where the report should be".to_owned());
    }
    let (r, q) = (&saved.report, &question.request);
    let as_asked = [
        ("replica", r.replica == q.replica),
        ("role", r.role == q.role),
        ("run_id", r.run_id == q.run_id),
        ("nonce_hash", r.nonce_hash == q.nonce_hash),
        ("plan_digest", r.plan_digest == q.plan_digest),
        (
            "algorithm",
            r.algorithm == question.manifest.needs(q.algorithm),
        ),
        ("manifest_root", r.manifest_root == question.manifest.root()),
        ("boot_id", r.boot_id == hello.boot_id),
    ];
    match as_asked.iter().find(|(_, same)| !same) {
        Some((field, _)) => Err(format!("the report's {field} is not the one asked for")),
        None => Ok(SavedReport {
            envelope: envelope.map(String::into_bytes),
            ..saved
        }),
    }
}

pub(super) fn is_pinned(replica: &Replica) -> bool {
    matches!(&replica.transport, Transport::Ssh(ssh) if ssh.host_key.is_some())
}

/// Starts a program in a process group of its own, so that all of it can be
/// ended.
pub(super) fn start(node: &Node, run: &Run) -> Result<(Child, Spawn), Failure> {
    let spawn = node.reach.spawn(node.replica, run);
    if let Some(log) = &spawn.log {
        // Only what this program says counts.
        let _ = std::fs::remove_file(log);
    }
    let mut command = Command::new(&spawn.program);
    command
        .args(&spawn.args)
        // Reasons are recognised in English.
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    match leftovers::spawn(&mut command) {
        Ok(child) => Ok((child, spawn)),
        Err(e) => {
            let detail = format!("could not start {}: {e}", spawn.program.display());
            Err(Failure::new(Code::TransportMissing, detail))
        }
    }
}

/// Waits for a program's end and gathers what it said.
pub(super) fn finish(
    child: &mut Child,
    stderr: &Receiver<String>,
    spawn: &Spawn,
    patience: Duration,
) -> End {
    let how = wait(child, patience);
    // A background process may hold the pipe open for longer.
    let stderr = stderr.recv_timeout(Duration::from_secs(1));
    let log = spawn.log.as_ref().and_then(|l| std::fs::read(l).ok());
    let logged = log.is_some();
    let log = log.unwrap_or_default();
    End {
        how,
        stderr: stderr.unwrap_or_default(),
        log: String::from_utf8_lossy(&log[..log.len().min(MAX_SAID)]).into_owned(),
        logged,
        ..End::default()
    }
}

/// How it ended, by itself or by force.
pub(super) fn wait(child: &mut Child, patience: Duration) -> How {
    let deadline = Instant::now() + patience;
    loop {
        match leftovers::try_wait(child) {
            Ok(Some(status)) => {
                return match (status.code(), status.signal()) {
                    (Some(code), _) => How::Code(code),
                    (None, signal) => How::Signal(signal.unwrap_or(0)),
                };
            }
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                leftovers::kill(child);
                return How::Forced;
            }
        }
    }
}

/// Reads everything, keeps the last of it, and hands that over at the end.
pub(super) fn collect(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (say, said) = mpsc::channel();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        let mut buffer = [0; 4096];
        if let Some(mut pipe) = pipe {
            while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                kept.extend_from_slice(&buffer[..n]);
                if kept.len() > 2 * MAX_SAID {
                    kept.drain(..kept.len() - MAX_SAID);
                }
            }
        }
        let _ = say.send(String::from_utf8_lossy(&kept).into_owned());
    });
    said
}

/// Ends ssh's shared connection.
fn goodbye(replica: &Replica, reach: &Reach) {
    let Transport::Ssh(options) = &replica.transport else {
        return;
    };
    let socket = super::ssh::control_socket(reach, &replica.name);
    if !socket.exists() {
        return;
    }
    let args = super::ssh::goodbye(options, reach, &replica.name);
    let child = Command::new(&reach.ssh)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    // Not on the list of what is left behind: it is said at the end as well.
    let Ok(mut child) = child else { return };
    let deadline = Instant::now() + FAREWELL;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second at which a node is given up, if it is within a day.
    fn given_up(planned: Option<u64>, bytes_at: impl Fn(u64) -> u64) -> Option<(u64, String)> {
        let start = Instant::now();
        let mut headway = Headway::new(Duration::from_secs(300), None, start);
        planned.into_iter().for_each(|p| headway.planned(p));
        (1..86_400).find_map(|s| {
            let said = headway.at(bytes_at(s), start + Duration::from_secs(s));
            said.err().map(|why| (s, why))
        })
    }

    #[test]
    fn a_node_that_does_not_get_on_is_given_up() {
        let (at, why) = given_up(Some(1 << 40), |_| 0).unwrap();
        assert_eq!((at, why.as_str()), (301, "it read no byte for 300 s"));
        // A byte now and then is no progress, nor is anything beyond the plan.
        let (at, why) = given_up(Some(1 << 40), |s| s / 20).unwrap();
        assert_eq!((at, why.as_str()), (301, "it read only 15 bytes in 300 s"));
        assert!(given_up(Some(1 << 30), |s| s << 24).is_some_and(|(at, _)| at < 600));
        // Slow disks get on, with or without a plan.
        assert_eq!(given_up(Some(1 << 40), |s| s * 70_000), None);
        assert_eq!(given_up(None, |s| s * 70_000), None);
    }
}

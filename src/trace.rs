//! From events to requests: the life of each attempt, and its transport state.
//!
//! [`Traces::build`] reads the event log once, checks that each life is possible
//! and keeps what metrics and grading need. It is the same code for the client
//! that wrote the log and for the auditor who distrusts it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::codes::Code;
use crate::digest::Sha256Digest;
use crate::event::{DeltaKind, EndCause, Event, EventLine, Oddity};
use crate::finding::Finding;

/// How the exchange of bytes ended, whatever the bytes said (DESIGN §4).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// A finish reason arrived and the stream ended cleanly.
    Completed,
    /// The status was not 2xx.
    HttpError,
    /// An error inside a stream, or no event stream at all.
    StreamError,
    /// The stream ended before a finish reason, or broke.
    Truncated,
    /// One of our time limits.
    Timeout,
    /// We cancelled it.
    Cancelled,
    /// No connection.
    ConnectError,
    /// Declared but never sent.
    NotAttempted,
}

impl Transport {
    /// All states, in the order reports use.
    pub const ALL: [Transport; 8] = [
        Transport::Completed,
        Transport::HttpError,
        Transport::StreamError,
        Transport::Truncated,
        Transport::Timeout,
        Transport::Cancelled,
        Transport::ConnectError,
        Transport::NotAttempted,
    ];

    /// Snake-case name as in the record.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Completed => "completed",
            Transport::HttpError => "http_error",
            Transport::StreamError => "stream_error",
            Transport::Truncated => "truncated",
            Transport::Timeout => "timeout",
            Transport::Cancelled => "cancelled",
            Transport::ConnectError => "connect_error",
            Transport::NotAttempted => "not_attempted",
        }
    }
}

/// Token usage as the server last reported it; `None` means not reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt: Option<u64>,
    /// Completion tokens, reasoning included.
    pub completion: Option<u64>,
    /// Reasoning tokens.
    pub reasoning: Option<u64>,
    /// Prompt tokens served from a cache.
    pub cached: Option<u64>,
}

/// One delta as logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaTrace {
    /// Server-sent event number.
    pub ev: u32,
    /// What it carried.
    pub kind: DeltaKind,
    /// Bytes of text.
    pub len: u64,
    /// [`crate::event::delta_digest`].
    pub digest: String,
}

/// The life of one attempt. Times are nanoseconds since the run epoch; `None`
/// where it did not happen, never 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// Attempt number.
    pub req: u32,
    /// Case id.
    pub case: String,
    /// Repetition.
    pub rep: u32,
    /// Attempt at this case and repetition.
    pub attempt: u32,
    /// Never in a figure.
    pub warmup: bool,
    /// Endpoint it was sent to.
    pub endpoint: String,
    /// Began to wait for a client slot.
    pub queued: u64,
    /// Body length and salted digest.
    pub body: Option<(u64, Sha256Digest)>,
    /// TCP connect began.
    pub connect_start: Option<u64>,
    /// Connection at hand.
    pub connected: Option<u64>,
    /// Connection was kept alive.
    pub reused: bool,
    /// First byte about to be written.
    pub send: Option<u64>,
    /// Response head read.
    pub headers: Option<u64>,
    /// HTTP status.
    pub status: Option<u16>,
    /// Answer is an event stream.
    pub event_stream: bool,
    /// First server-sent event of any kind.
    pub first_event: Option<u64>,
    /// First non-empty reasoning, content or tool delta.
    pub first_generated: Option<u64>,
    /// First non-empty final-content delta.
    pub first_content: Option<u64>,
    /// Last generated delta.
    pub last_generated: Option<u64>,
    /// Stamps of the generated-bearing server-sent events, in order.
    pub chunks: Vec<u64>,
    /// All deltas.
    pub deltas: Vec<DeltaTrace>,
    /// Last usage that said anything.
    pub usage: Option<Usage>,
    /// Finish reason.
    pub finish: Option<String>,
    /// `[DONE]`.
    pub done: Option<u64>,
    /// Errors reported by the server: length and digest.
    pub errors: Vec<(u64, String)>,
    /// Oddities and how often.
    pub odd: BTreeMap<Oddity, u64>,
    /// Reading ended.
    pub end: Option<u64>,
    /// Why it ended.
    pub cause: Option<EndCause>,
}

impl Trace {
    /// The transport state: the first rule that applies.
    ///
    /// `[DONE]` alone is not success and neither is status 200; a finish reason
    /// followed by a broken connection is not success either, because what came
    /// after it (usage, an error) is unknown.
    pub fn transport(&self) -> Transport {
        use EndCause as C;
        if self.send.is_none() {
            return match self.cause {
                Some(C::ConnectError | C::IoError | C::Malformed) => Transport::ConnectError,
                Some(C::Cancelled) if self.connect_start.is_some() => Transport::Cancelled,
                Some(C::RequestTimeout | C::FirstTokenTimeout | C::StallTimeout) => {
                    Transport::Timeout
                }
                _ => Transport::NotAttempted,
            };
        }
        match self.cause {
            None | Some(C::Cancelled) => return Transport::Cancelled,
            Some(C::RequestTimeout | C::FirstTokenTimeout | C::StallTimeout) => {
                return Transport::Timeout;
            }
            Some(C::ConnectError) => return Transport::ConnectError,
            _ => {}
        }
        match self.status {
            None => return Transport::Truncated,
            Some(s) if !(200..300).contains(&s) => return Transport::HttpError,
            _ => {}
        }
        if !self.errors.is_empty() || !self.event_stream || self.cause == Some(C::Malformed) {
            return Transport::StreamError;
        }
        match (self.finish.is_some(), self.cause) {
            (true, Some(C::Done | C::Eof)) => Transport::Completed,
            _ => Transport::Truncated,
        }
    }

    /// Bytes of text the deltas of one kind add up to.
    pub fn text_len(&self, kind: DeltaKind) -> u64 {
        self.deltas
            .iter()
            .filter(|d| d.kind == kind)
            .map(|d| d.len)
            .sum()
    }

    /// Completion tokens as reported. Zero while text was generated means that
    /// the server did not report, not that there was nothing.
    pub fn completion_tokens(&self) -> Option<u64> {
        match self.usage?.completion? {
            0 if self.first_generated.is_some() => None,
            n => Some(n),
        }
    }

    /// Prompt tokens as reported; zero means not reported, since every prompt
    /// has tokens.
    pub fn prompt_tokens(&self) -> Option<u64> {
        self.usage?.prompt.filter(|n| *n > 0)
    }

    /// Reasoning tokens as reported. Zero while reasoning text streamed means
    /// not reported.
    pub fn reasoning_tokens(&self) -> Option<u64> {
        match self.usage?.reasoning? {
            0 if self.text_len(DeltaKind::Reasoning) > 0 => None,
            n => Some(n),
        }
    }
}

/// All attempts of a run, by number.
#[derive(Debug, Default, Clone)]
pub struct Traces {
    /// Attempts in order of their numbers.
    pub requests: Vec<Trace>,
    /// What is impossible in the log (`event-inconsistent`).
    pub findings: Vec<Finding>,
}

impl Traces {
    /// Reads the request events of a log; run events are passed over.
    pub fn build<'a>(lines: impl IntoIterator<Item = &'a EventLine>) -> Self {
        let mut builder = Builder::default();
        for line in lines {
            builder.take(line);
        }
        builder.out
    }
}

#[derive(Default)]
struct Builder {
    out: Traces,
    /// Per attempt: stamp of the latest event, latest read, latest event number.
    last: Vec<(u64, u32, u32)>,
}

impl Builder {
    fn odd(&mut self, line: &EventLine, why: &str) {
        self.out.findings.push(Finding::new(
            Code::EventInconsistent,
            format!("events.jsonl event {}", line.seq),
            why,
        ));
    }

    fn take(&mut self, line: &EventLine) {
        let t = line.t;
        if let Event::Queued {
            req,
            case,
            rep,
            attempt,
            warmup,
            endpoint,
        } = &line.event
        {
            if *req as usize != self.out.requests.len() {
                return self.odd(line, "attempt numbers must count up from 0");
            }
            self.out.requests.push(Trace {
                req: *req,
                case: case.clone(),
                rep: *rep,
                attempt: *attempt,
                warmup: *warmup,
                endpoint: endpoint.clone(),
                queued: t,
                ..Trace::default()
            });
            self.last.push((t, 0, 0));
            return;
        }
        let Some(req) = line.event.req() else {
            return;
        };
        let (Some(trace), Some(last)) = (
            self.out.requests.get_mut(req as usize),
            self.last.get_mut(req as usize),
        ) else {
            return self.odd(line, "it names an attempt that was never queued");
        };
        let result = step(trace, last, t, &line.event);
        if let Err(why) = result {
            self.odd(line, why);
        }
    }
}

/// Applies one event to one attempt, or says why it cannot have happened.
fn step(
    trace: &mut Trace,
    last: &mut (u64, u32, u32),
    t: u64,
    event: &Event,
) -> Result<(), &'static str> {
    if t < last.0 {
        return Err("time runs backwards within an attempt");
    }
    if trace.end.is_some() {
        return Err("the attempt had already ended");
    }
    last.0 = t;
    if let Some(read) = event.read() {
        let next = matches!(event, Event::Read { .. });
        if trace.send.is_none() {
            return Err("something was read before the request was sent");
        }
        match next {
            true if read != last.1 + 1 => return Err("read numbers must count up from 1"),
            false if read != last.1 => return Err("it names a read other than the latest"),
            _ => last.1 = read,
        }
    }
    let once = |already: bool, why| if already { Err(why) } else { Ok(()) };
    match event {
        Event::Body { len, digest, .. } => {
            once(trace.body.is_some(), "a second body")?;
            trace.body = Some((*len, *digest));
        }
        Event::ConnectStart { .. } => {
            once(trace.connect_start.is_some(), "a second connect")?;
            trace.connect_start = Some(t);
        }
        Event::Connected { reused, .. } => {
            once(trace.connected.is_some(), "a second connection")?;
            trace.connected = Some(t);
            trace.reused = *reused;
        }
        Event::Send { .. } => {
            once(
                trace.send.is_some(),
                "sent twice: an attempt is one request",
            )?;
            if trace.body.is_none() || trace.connected.is_none() {
                return Err("sent without a body or a connection");
            }
            trace.send = Some(t);
        }
        Event::Headers {
            status,
            event_stream,
            ..
        } => {
            once(trace.headers.is_some(), "a second response head")?;
            trace.headers = Some(t);
            trace.status = Some(*status);
            trace.event_stream = *event_stream;
        }
        Event::Read { .. } => {}
        other => {
            if trace.headers.is_none() && !matches!(other, Event::End { .. }) {
                return Err("a part of the answer came before its head");
            }
            content(trace, last, t, other)?;
        }
    }
    Ok(())
}

fn content(
    trace: &mut Trace,
    last: &mut (u64, u32, u32),
    t: u64,
    event: &Event,
) -> Result<(), &'static str> {
    match event {
        Event::Delta {
            ev,
            kind,
            len,
            digest,
            ..
        } => {
            if *ev < last.2 || *ev == 0 {
                return Err("server-sent event numbers must not fall");
            }
            if (*len == 0) != (*kind == DeltaKind::Empty) {
                return Err("only an empty delta has no text");
            }
            trace.first_event.get_or_insert(t);
            if *kind != DeltaKind::Empty {
                trace.first_generated.get_or_insert(t);
                trace.last_generated = Some(t);
                let same_event = trace
                    .deltas
                    .last()
                    .is_some_and(|d| d.ev == *ev && d.kind != DeltaKind::Empty);
                if !same_event {
                    trace.chunks.push(t);
                }
            }
            if *kind == DeltaKind::Content {
                trace.first_content.get_or_insert(t);
            }
            last.2 = *ev;
            trace.deltas.push(DeltaTrace {
                ev: *ev,
                kind: *kind,
                len: *len,
                digest: digest.clone(),
            });
        }
        Event::Usage {
            prompt,
            completion,
            reasoning,
            cached,
            ..
        } => {
            trace.first_event.get_or_insert(t);
            // The last usage that says anything wins, field by field: some
            // servers repeat it, some send an empty one at the end.
            let usage = trace.usage.get_or_insert_default();
            usage.prompt = prompt.or(usage.prompt);
            usage.completion = completion.or(usage.completion);
            usage.reasoning = reasoning.or(usage.reasoning);
            usage.cached = cached.or(usage.cached);
        }
        Event::Finish { reason, .. } => {
            trace.first_event.get_or_insert(t);
            trace.finish.get_or_insert_with(|| reason.clone());
        }
        Event::Done { .. } => {
            if trace.done.is_some() {
                return Err("a second [DONE]");
            }
            trace.done = Some(t);
        }
        Event::Error { len, digest, .. } => trace.errors.push((*len, digest.clone())),
        Event::Odd { what, .. } => *trace.odd.entry(*what).or_default() += 1,
        Event::End { cause, .. } => {
            if (*cause == EndCause::Done) != trace.done.is_some() {
                return Err("the end and [DONE] contradict each other");
            }
            trace.end = Some(t);
            trace.cause = Some(*cause);
        }
        _ => {}
    }
    Ok(())
}

impl Event {
    /// The attempt it belongs to, for events after [`Event::Queued`].
    pub fn req(&self) -> Option<u32> {
        match self {
            Event::Queued { req, .. }
            | Event::Body { req, .. }
            | Event::ConnectStart { req }
            | Event::Connected { req, .. }
            | Event::Send { req }
            | Event::Headers { req, .. }
            | Event::Read { req, .. }
            | Event::Delta { req, .. }
            | Event::Usage { req, .. }
            | Event::Finish { req, .. }
            | Event::Done { req, .. }
            | Event::Error { req, .. }
            | Event::Odd { req, .. }
            | Event::End { req, .. } => Some(*req),
            _ => None,
        }
    }

    /// The socket read it came in.
    pub fn read(&self) -> Option<u32> {
        match self {
            Event::Headers { read, .. }
            | Event::Read { read, .. }
            | Event::Delta { read, .. }
            | Event::Usage { read, .. }
            | Event::Finish { read, .. }
            | Event::Done { read, .. }
            | Event::Error { read, .. }
            | Event::Odd { read, .. } => Some(*read),
            _ => None,
        }
    }
}

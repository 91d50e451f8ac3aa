//! From events to requests: the life of each attempt, and its transport state.
//!
//! [`Traces::build`] reads the event log once, checks that each life is possible
//! and keeps what metrics and grading need. It is the same code for the client
//! that wrote the log and for the auditor who distrusts it.

mod build;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;
use crate::event::{DeltaKind, EndCause, EventLine, Oddity};
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
    /// An error inside a stream, an answer that died inside the server, no event
    /// stream, or no HTTP at all.
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
    /// Address and port of its other end, or what stands for them.
    pub peer: Option<String>,
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
    /// The server's count of completion tokens with the first chunk: reported after
    /// it and before the next.
    pub first_chunk_tokens: Option<u64>,
    /// All deltas.
    pub deltas: Vec<DeltaTrace>,
    /// Last usage that said anything.
    pub usage: Option<Usage>,
    /// Most cached prompt tokens that any usage reported: a later report does not take
    /// an earlier one back.
    pub most_cached: Option<u64>,
    /// Most completion tokens that any usage reported.
    pub most_completion: Option<u64>,
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

/// Finish reasons by which servers say that a request died inside them: vLLM's
/// `error` and `abort`, SGLang's `abort`, and what others call an end that neither the
/// model nor the cap made.
const DIED: [&str; 6] = [
    "error",
    "abort",
    "cancelled",
    "canceled",
    "timeout",
    "timed_out",
];

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
            None if self.cause == Some(C::Malformed) => return Transport::StreamError,
            None => return Transport::Truncated,
            Some(s) if !(200..300).contains(&s) => return Transport::HttpError,
            _ => {}
        }
        if !self.errors.is_empty() || !self.event_stream || self.cause == Some(C::Malformed) {
            return Transport::StreamError;
        }
        let died = |r: &str| DIED.iter().any(|d| r.eq_ignore_ascii_case(d));
        if self.finish.as_deref().is_some_and(died) {
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
            .fold(0, |sum: u64, d| sum.saturating_add(d.len))
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
        let mut builder = build::Builder::default();
        for line in lines {
            builder.take(line);
        }
        builder.out
    }
}

//! The event log (`runseal.events/v1`): what happened, in the order it was
//! noticed, in integer nanoseconds since the run's epoch.
//!
//! `events.jsonl` is one [`Header`] line and then one [`EventLine`] a line, with
//! `seq` counting 1, 2, 3 … without a gap; the last event is
//! [`Event::EndOfLog`], so a line that is missing anywhere shows. Nothing in the
//! log is aggregated: every figure is derived from it afterwards.
//!
//! `t` is the stamp of the event on the run's monotonic clock. Events that came
//! out of one socket read carry that read's stamp and `read` number, so `t` may
//! run backwards between requests but never within one.

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::block_api::compress256;

use crate::digest::{Enc, Sha256Digest};

/// Value of [`Header::format`].
pub const FORMAT: &str = "runseal.events/v1";

/// First line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Wall clock at the epoch (t = 0), RFC 3339 in UTC. The only wall-clock
    /// anchor of the run.
    pub epoch: String,
    /// Always [`FORMAT`].
    pub format: String,
    /// Hash of the run's nonce.
    pub nonce_hash: Sha256Digest,
    /// The run.
    pub run_id: String,
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventLine {
    /// 1 for the first event, then without a gap.
    pub seq: u64,
    /// Nanoseconds since the run epoch.
    pub t: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// States of a run, in order (DESIGN: path of a run).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Fixing run id and nonce.
    Declare,
    /// Looking at the machine before touching anything.
    Preflight,
    /// Rehashing every checkpoint file on every replica.
    Verify,
    /// Starting the serving processes.
    Launch,
    /// Waiting for every rank and a canary answer.
    Ready,
    /// Declared warm-up requests.
    Warm,
    /// The measured requests.
    Measure,
    /// Reading logs and facts, re-stat of the weights.
    Collect,
    /// Ending our own processes.
    Teardown,
    /// Running the frozen scorer.
    Grade,
}

impl State {
    /// Lower-case name as written in the log.
    pub fn name(self) -> &'static str {
        match self {
            State::Declare => "declare",
            State::Preflight => "preflight",
            State::Verify => "verify",
            State::Launch => "launch",
            State::Ready => "ready",
            State::Warm => "warm",
            State::Measure => "measure",
            State::Collect => "collect",
            State::Teardown => "teardown",
            State::Grade => "grade",
        }
    }
}

/// What a delta carried.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum DeltaKind {
    /// Nothing generated: role only, empty or null text.
    Empty,
    /// Non-empty reasoning text.
    Reasoning,
    /// Non-empty final-content text.
    Content,
    /// Tool-call arguments: the delta's `tool_calls` array as canonical JSON.
    Tool,
}

impl DeltaKind {
    fn byte(self) -> u8 {
        match self {
            DeltaKind::Empty => 0,
            DeltaKind::Reasoning => 1,
            DeltaKind::Content => 2,
            DeltaKind::Tool => 3,
        }
    }
}

/// Why reading a response ended.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EndCause {
    /// `[DONE]` was read.
    Done,
    /// The body ended cleanly (last chunk or content length reached).
    Eof,
    /// No connection could be made.
    ConnectError,
    /// The connection broke: reset, or closed inside a body.
    IoError,
    /// The peer did not speak HTTP.
    Malformed,
    /// The whole request took longer than allowed.
    RequestTimeout,
    /// No generated output within the time allowed.
    FirstTokenTimeout,
    /// Output stalled for longer than allowed.
    StallTimeout,
    /// We cancelled it: the run was ending.
    Cancelled,
}

/// Something that happened. `req` numbers the attempts of a run from 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "e", rename_all = "snake_case")]
pub enum Event {
    /// Run id, nonce and commitment were fixed.
    Declare {
        /// Digest of plan.json.
        plan_digest: Sha256Digest,
        /// The nonce itself, 64 hex digits; prompts are derived from it.
        nonce: String,
        /// Digest of the suite's cases file.
        case_set_digest: Sha256Digest,
        /// Key that will sign.
        keyid: String,
        /// True when this run made the key.
        key_made_by_run: bool,
    },
    /// The run entered a state.
    State {
        /// The state.
        state: State,
    },
    /// The run cannot succeed any more.
    Failure {
        /// State in which it happened.
        state: State,
        /// Kebab-case cause.
        cause: String,
        /// One sentence.
        detail: String,
    },
    /// The run refuses to launch.
    Refusal {
        /// Kebab-case cause.
        cause: String,
        /// One sentence.
        detail: String,
    },
    /// A signal asked the run to end.
    Signal {
        /// `SIGINT`, `SIGTERM`, `SIGHUP`, or `closed-later` for a run that ended
        /// without sealing and was closed afterwards.
        name: String,
    },
    /// Something may have touched the measurement.
    Taint {
        /// Kebab-case cause.
        cause: String,
        /// One sentence.
        detail: String,
        /// Attempts it touches; empty for all.
        reqs: Vec<u32>,
    },
    /// A serving process was started by this run.
    RankUp {
        /// Replica whose weights it serves.
        replica: String,
        /// Process id.
        pid: u32,
        /// Start time in clock ticks since boot, which with the pid names a process.
        start_ticks: u64,
        /// Address and port that it listens on, such as `127.0.0.1:8000`.
        listen: String,
    },
    /// A serving process was looked at and was still the one started.
    RankAlive {
        /// Replica.
        replica: String,
        /// Process id.
        pid: u32,
        /// Start time in clock ticks since boot.
        start_ticks: u64,
    },
    /// A serving process ended.
    RankExit {
        /// Replica.
        replica: String,
        /// Exit code, when it exited.
        code: Option<i32>,
        /// Signal number, when a signal ended it.
        signal: Option<i32>,
        /// True when teardown asked for it.
        expected: bool,
    },
    /// A telemetry sample is missing.
    Gap {
        /// Node.
        node: String,
        /// Milliseconds since the last sample.
        ms: u64,
    },
    /// From here on the prompts of a case are filled with so much generated text
    /// ([`crate::filler`]): those of the calibration requests that follow, and, as the
    /// last one says, those that are measured.
    Filled {
        /// The case.
        case: String,
        /// Characters of text.
        chars: u64,
    },
    /// A request is waiting for a client slot. Stamped with the time that the
    /// schedule gives it in an open loop, and with the time at which a client slot
    /// asked for it in a closed one; the time until [`Event::Send`] is its queue
    /// time.
    Queued {
        /// Attempt number.
        req: u32,
        /// Case id, or `warmup`.
        case: String,
        /// Repetition, from 0.
        rep: u32,
        /// Attempt at this case and repetition, from 0.
        attempt: u32,
        /// Declared warm-up: never in a figure.
        warmup: bool,
        /// Name of the endpoint (for launched engines, of the replica).
        endpoint: String,
    },
    /// Its body was built.
    Body {
        /// Attempt number.
        req: u32,
        /// Length in bytes.
        len: u64,
        /// [`body_digest`].
        digest: Sha256Digest,
    },
    /// A TCP connection is being made.
    ConnectStart {
        /// Attempt number.
        req: u32,
    },
    /// A connection is at hand.
    Connected {
        /// Attempt number.
        req: u32,
        /// It was kept alive from an earlier request.
        reused: bool,
        /// Address and port of the other end, as the system says, such as
        /// `127.0.0.1:8000` or `[::1]:8000`. Of an endpoint that somebody else runs:
        /// [`hidden_address`] of it.
        peer: String,
    },
    /// The first byte of the request is about to be written.
    Send {
        /// Attempt number.
        req: u32,
    },
    /// The response head was read.
    Headers {
        /// Attempt number.
        req: u32,
        /// Read it came in.
        read: u32,
        /// HTTP status.
        status: u16,
        /// Content type is `text/event-stream`.
        event_stream: bool,
    },
    /// A socket read returned bytes.
    Read {
        /// Attempt number.
        req: u32,
        /// Number of the read within the attempt, from 1.
        read: u32,
        /// Bytes returned.
        bytes: u64,
    },
    /// A server-sent event with a choice was parsed.
    Delta {
        /// Attempt number.
        req: u32,
        /// Read that completed it.
        read: u32,
        /// Number of the server-sent event within the attempt, from 1. Two
        /// deltas of one event (reasoning and content) share it.
        ev: u32,
        /// What it carried.
        kind: DeltaKind,
        /// Length of the text in bytes.
        len: u64,
        /// [`delta_digest`], 32 hex digits.
        digest: String,
    },
    /// The server reported token usage.
    Usage {
        /// Attempt number.
        req: u32,
        /// Read that completed it.
        read: u32,
        /// `prompt_tokens`.
        prompt: Option<u64>,
        /// `completion_tokens`.
        completion: Option<u64>,
        /// Reasoning tokens, wherever the server puts them.
        reasoning: Option<u64>,
        /// `prompt_tokens_details.cached_tokens`.
        cached: Option<u64>,
    },
    /// The server gave a finish reason.
    Finish {
        /// Attempt number.
        req: u32,
        /// Read that completed it.
        read: u32,
        /// As reported.
        reason: String,
    },
    /// `[DONE]` was read.
    Done {
        /// Attempt number.
        req: u32,
        /// Read that completed it.
        read: u32,
    },
    /// The server reported an error, in the stream or as the body of an error
    /// response.
    Error {
        /// Attempt number.
        req: u32,
        /// Read that completed it.
        read: u32,
        /// Length of the text in bytes.
        len: u64,
        /// [`error_digest`], 32 hex digits.
        digest: String,
    },
    /// Something unusual that is neither text nor an error.
    Odd {
        /// Attempt number.
        req: u32,
        /// Read that completed it.
        read: u32,
        /// What.
        what: Oddity,
    },
    /// Reading the response ended.
    End {
        /// Attempt number.
        req: u32,
        /// Why.
        cause: EndCause,
    },
    /// How late the client itself was: how long work that was ready to run waited
    /// for the client's own threads, sampled throughout a state of the run.
    ClientLag {
        /// State that was sampled.
        state: State,
        /// Samples.
        n: u64,
        /// Nanoseconds between two samples.
        every: u64,
        /// Median in nanoseconds, rounded up by at most 1/32 of itself.
        p50: u64,
        /// 99th percentile in nanoseconds, likewise.
        p99: u64,
        /// Largest in nanoseconds, exact.
        max: u64,
    },
    /// The log is complete.
    EndOfLog {},
}

/// Unusual things in a stream, recorded and otherwise ignored.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Oddity {
    /// A comment or ping line.
    Comment,
    /// An event of an unknown type, or data without `choices`.
    NoChoices,
    /// Data that is not JSON.
    NotJson,
    /// Bytes that are not UTF-8; that event's text is not used.
    BadUtf8,
    /// A choice after the finish reason.
    AfterFinish,
    /// Bytes after `[DONE]` in the same read.
    AfterDone,
    /// More than one choice in an event; only the first is used.
    ManyChoices,
    /// The stream ended inside an event; its text is not used.
    CutOff,
}

/// What stands for the address of an endpoint that somebody else runs: `hidden:` and
/// the salted digest of the address with its port. Equal addresses of a run give equal
/// texts.
pub fn hidden_address(salt: &[u8; 32], address: &str) -> String {
    let digest = Enc::new("address/v1").bytes(salt).bytes(address.as_bytes());
    format!("{HIDDEN_ADDRESS}{}", digest.finish())
}

/// Beginning of [`hidden_address`].
pub const HIDDEN_ADDRESS: &str = "hidden:";

/// True for a text of the form that [`hidden_address`] gives.
pub fn is_hidden_address(text: &str) -> bool {
    let digest = text.strip_prefix(HIDDEN_ADDRESS);
    digest.is_some_and(|d| {
        d.parse::<Sha256Digest>()
            .is_ok_and(|parsed| parsed.hex() == d)
    })
}

/// Salted digest of a request body.
pub fn body_digest(salt: &[u8; 32], body: &[u8]) -> Sha256Digest {
    Enc::new("body/v1").bytes(salt).bytes(body).finish()
}

/// Salted digest of one delta: the first 16 bytes, as 32 hex digits, of SHA-256
/// over salt, event number, kind and text. Salted, because a single token can be
/// guessed.
pub fn delta_digest(salt: &[u8; 32], ev: u32, kind: DeltaKind, text: &[u8]) -> String {
    hex::encode(DeltaHasher::new(salt).digest(ev, kind, text))
}

/// [`delta_digest`] of many deltas under one salt: what they have in common, the
/// domain and the salt, is hashed once. A token's text is so short that what is left
/// of the encoding fits one or two blocks of SHA-256, which are then filled in place.
#[derive(Clone)]
pub struct DeltaHasher {
    /// For texts of any length.
    any: Enc,
    /// State after the first block of the encoding.
    state: [u32; 8],
    /// The bytes of domain and salt behind that block.
    rest: [u8; REST],
}

/// Bytes of an encoding up to and with the salt: name, domain, salt, a length each.
const COMMON: usize = 8 + 14 + 8 + 8 + 8 + 32;
const REST: usize = COMMON - 64;
/// Bytes from there up to the text: number of the event, kind, length of the text.
const MIDDLE: usize = 8 + 8 + 8 + 1 + 8;
/// Longest text that fits two blocks with the padding (one byte and the length).
const SHORT: usize = 128 - REST - MIDDLE - 1 - 8;
/// The state that SHA-256 begins with (FIPS 180-4, 5.3.3).
const SHA256_BEGIN: [u32; 8] = [
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
];

impl DeltaHasher {
    /// A hasher under `salt`.
    pub fn new(salt: &[u8; 32]) -> Self {
        let mut bytes = Vec::with_capacity(COMMON);
        for field in [&b"runseal-enc/v1"[..], b"delta/v1", salt] {
            bytes.extend_from_slice(&(field.len() as u64).to_be_bytes());
            bytes.extend_from_slice(field);
        }
        let mut state = SHA256_BEGIN;
        let mut rest = [0; REST];
        if let Some((block, behind)) = bytes.split_first_chunk::<64>() {
            compress256(&mut state, &[*block]);
            rest.copy_from_slice(behind);
        }
        let any = Enc::new("delta/v1").bytes(salt);
        Self { any, state, rest }
    }

    /// The 16 bytes that [`delta_digest`] writes in hexadecimal.
    pub fn digest(&self, ev: u32, kind: DeltaKind, text: &[u8]) -> [u8; 16] {
        let mut first = [0; 16];
        if text.len() > SHORT {
            let enc = self.any.clone().u64(ev.into()).bytes(&[kind.byte()]);
            first.copy_from_slice(&enc.bytes(text).finish().0[..16]);
            return first;
        }
        let mut blocks = [[0u8; 64]; 2];
        let bytes = blocks.as_flattened_mut();
        bytes[..REST].copy_from_slice(&self.rest);
        let middle = &mut bytes[REST..REST + MIDDLE];
        middle[7] = 8; // Lengths and number are big-endian, eight bytes each.
        middle[8..16].copy_from_slice(&u64::from(ev).to_be_bytes());
        middle[23] = 1;
        middle[24] = kind.byte();
        middle[25..].copy_from_slice(&(text.len() as u64).to_be_bytes());
        let end = REST + MIDDLE + text.len();
        bytes[REST + MIDDLE..end].copy_from_slice(text);
        bytes[end] = 0x80;
        let used = if end + 9 <= 64 { 1 } else { 2 };
        let bits = 8 * (64 + end) as u64;
        bytes[used * 64 - 8..used * 64].copy_from_slice(&bits.to_be_bytes());
        let mut state = self.state;
        compress256(&mut state, &blocks[..used]);
        for (out, word) in first.chunks_exact_mut(4).zip(state) {
            out.copy_from_slice(&word.to_be_bytes());
        }
        first
    }
}

/// Salted digest of an error text: the first 16 bytes as 32 hex digits.
pub fn error_digest(salt: &[u8; 32], text: &[u8]) -> String {
    let d = Enc::new("error/v1").bytes(salt).bytes(text).finish();
    hex::encode(&d.0[..16])
}

/// Hash of the run nonce as it stands in every header.
pub fn nonce_hash(nonce: &[u8; 32]) -> Sha256Digest {
    Enc::new("nonce/v1").bytes(nonce).finish()
}

/// What an operator can hand to someone before a run: commits to plan, nonce,
/// cases and signing key (by its key id).
pub fn run_commitment(
    plan: Sha256Digest,
    nonce_hash: Sha256Digest,
    cases: Sha256Digest,
    keyid: &str,
) -> Sha256Digest {
    Enc::new("commitment/v1")
        .bytes(&plan.0)
        .bytes(&nonce_hash.0)
        .bytes(&cases.0)
        .bytes(keyid.as_bytes())
        .finish()
}

/// The line of one event, without the newline: compact JSON, fields in the order
/// of the type.
pub fn to_line(line: &EventLine) -> String {
    // These types always serialise: string keys, integers and strings only.
    serde_json::to_string(line).unwrap_or_default()
}

/// Reads one line back. Only the byte form that [`to_line`] gives is accepted, which
/// also rules out what two parsers could read in two ways.
pub fn from_line(line: &[u8]) -> Option<EventLine> {
    let event = serde_json::from_slice(line).ok()?;
    (to_line(&event).as_bytes() == line).then_some(event)
}

/// Reads the lines of a log, on all cores: a long run has millions. The lines that are
/// no event are `None`, in their places.
pub fn from_lines(lines: &[&[u8]]) -> Vec<Option<EventLine>> {
    lines.par_iter().map(|line| from_line(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_one_byte_form() {
        let line = |t: u64| format!("{{\"seq\":1,\"t\":{t},\"e\":\"send\",\"req\":7}}");
        let event = from_line(line(17).as_bytes()).unwrap();
        assert_eq!((event.t, event.event), (17, Event::Send { req: 7 }));
        let good = line(17);
        for bad in [
            good.replace(":17", ": 17"),
            good.replace(":17", ":1.7e1"),
            good.replace(":17", ":17,\"t\":17"),
            good.replace("send", "sent"),
            good[1..].to_owned(),
        ] {
            let lines = [good.as_bytes(), bad.as_bytes(), good.as_bytes()];
            let read = from_lines(&lines);
            let there: Vec<bool> = read.iter().map(Option::is_some).collect();
            assert_eq!(there, [true, false, true], "{bad}");
        }
    }

    #[test]
    fn short_texts_are_digested_as_the_encoding_says() {
        let salt: [u8; 32] = std::array::from_fn(|i| i as u8 * 7);
        let hasher = DeltaHasher::new(&salt);
        let text: Vec<u8> = (0..=255).collect();
        for len in 0..=200 {
            for (ev, kind) in [(1, DeltaKind::Content), (u32::MAX, DeltaKind::Tool)] {
                let text = &text[..len];
                let enc = Enc::new("delta/v1").bytes(&salt).u64(ev.into());
                let want = enc.bytes(&[kind.byte()]).bytes(text).finish();
                assert_eq!(hasher.digest(ev, kind, text), want.0[..16], "{len} bytes");
            }
        }
    }

    #[test]
    fn hidden_addresses_have_one_form() {
        let hidden = hidden_address(&[1; 32], "10.0.0.1:80");
        assert!(is_hidden_address(&hidden), "{hidden}");
        assert_ne!(hidden, hidden_address(&[2; 32], "10.0.0.1:80"));
        for other in [
            "10.0.0.1:80".to_owned(),
            hidden.to_uppercase(),
            hidden.replace(HIDDEN_ADDRESS, ""),
            format!("{hidden}0"),
        ] {
            assert!(!is_hidden_address(&other), "{other}");
        }
    }
}

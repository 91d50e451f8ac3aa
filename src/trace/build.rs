//! From event lines to traces, refusing lives that cannot have been lived.
//!
//! Every event of an attempt must follow from the ones before it: queued, body,
//! connection, send, then reads in order, and each part of the answer carrying
//! the number *and the stamp* of the read that it came in.

use crate::codes::Code;
use crate::event::{DeltaKind, EndCause, Event, EventLine, is_hidden_address};
use crate::finding::Finding;
use crate::json::MAX_INTEGER;

use super::{DeltaTrace, Trace, Traces};

#[derive(Default)]
pub(super) struct Builder {
    pub(super) out: Traces,
    last: Vec<Last>,
}

/// Fewest bytes around the text of a server-sent event:
/// `data:{"choices":[{"text":""}]}` and a line end.
const EVENT_BYTES: u64 = 30;

/// What the next event of an attempt is held against.
#[derive(Default)]
struct Last {
    /// Stamp of the latest event.
    t: u64,
    /// Latest read: number and stamp.
    read: u32,
    read_t: u64,
    /// Latest server-sent event.
    ev: u32,
    /// Bytes read so far, and the fewest that their texts can have taken.
    bytes: u64,
    text: u64,
}

impl Builder {
    fn odd(&mut self, line: &EventLine, why: &str) {
        self.out.findings.push(Finding::new(
            Code::EventInconsistent,
            format!("events.jsonl event {}", line.seq),
            why,
        ));
    }

    pub(super) fn take(&mut self, line: &EventLine) {
        let t = line.t;
        if t > MAX_INTEGER || numbers(&line.event).iter().any(|n| *n > MAX_INTEGER) {
            return self.odd(line, "a number past 2^53");
        }
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
            self.last.push(Last {
                t,
                ..Last::default()
            });
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

/// Numbers of an event that are added up later.
fn numbers(event: &Event) -> [u64; 4] {
    match event {
        Event::Body { len, .. } | Event::Delta { len, .. } | Event::Error { len, .. } => {
            [*len, 0, 0, 0]
        }
        Event::Read { bytes, .. } => [*bytes, 0, 0, 0],
        Event::Gap { ms, .. } => [*ms, 0, 0, 0],
        Event::Filled { chars, .. } => [*chars, 0, 0, 0],
        Event::Usage {
            prompt,
            completion,
            reasoning,
            cached,
            ..
        } => [prompt, completion, reasoning, cached].map(|n| n.unwrap_or(0)),
        Event::ClientLag {
            n, every, p99, max, ..
        } => [*n, *every, *p99, *max],
        _ => [0; 4],
    }
}

/// Applies one event to one attempt, or says why it cannot have happened.
fn step(trace: &mut Trace, last: &mut Last, t: u64, event: &Event) -> Result<(), &'static str> {
    if t < last.t {
        return Err("time runs backwards within an attempt");
    }
    if trace.end.is_some() {
        return Err("the attempt had already ended");
    }
    last.t = t;
    if let Some(read) = event.read() {
        if trace.send.is_none() {
            return Err("something was read before the request was sent");
        }
        if let Event::Read { bytes, .. } = event {
            if read != last.read + 1 {
                return Err("read numbers must count up from 1");
            }
            if *bytes == 0 {
                return Err("a read that returned nothing");
            }
            (last.read, last.read_t) = (read, t);
            last.bytes = last.bytes.saturating_add(*bytes);
        } else if read == 0 || read != last.read {
            return Err("it names a read other than the latest");
        } else if t != last.read_t {
            return Err("it has another stamp than the read that it came in");
        }
    }
    let once = |already: bool, why| if already { Err(why) } else { Ok(()) };
    match event {
        Event::Body { len, digest, .. } => {
            once(trace.body.is_some(), "a second body")?;
            if trace.connect_start.is_some() || trace.connected.is_some() {
                return Err("its body was built after its connection");
            }
            trace.body = Some((*len, *digest));
        }
        Event::ConnectStart { .. } => {
            once(trace.connect_start.is_some(), "a second connect")?;
            if trace.connected.is_some() {
                return Err("it connected again");
            }
            trace.connect_start = Some(t);
        }
        Event::Connected { reused, peer, .. } => {
            once(trace.connected.is_some(), "a second connection")?;
            if !is_address(peer) && !is_hidden_address(peer) {
                return Err("its peer is no address with a port");
            }
            if *reused == trace.connect_start.is_some() {
                return Err("a connection is either kept alive or made");
            }
            trace.connected = Some(t);
            trace.reused = *reused;
            trace.peer = Some(peer.clone());
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

/// An address and a port, written in the one way that the client writes them.
fn is_address(text: &str) -> bool {
    text.parse::<std::net::SocketAddr>()
        .is_ok_and(|a| a.port() != 0 && a.to_string() == text)
}

fn content(trace: &mut Trace, last: &mut Last, t: u64, event: &Event) -> Result<(), &'static str> {
    match event {
        Event::Delta {
            ev,
            kind,
            len,
            digest,
            ..
        } => {
            if *ev < last.ev || *ev == 0 {
                return Err("server-sent event numbers must not fall");
            }
            if (*len == 0) != (*kind == DeltaKind::Empty) {
                return Err("only an empty delta has no text");
            }
            if matches!(kind, DeltaKind::Content | DeltaKind::Reasoning) {
                // JSON never makes text shorter, and nothing is compressed.
                let around = if *ev > last.ev { EVENT_BYTES } else { 0 };
                last.text = last.text.saturating_add(*len).saturating_add(around);
                if last.text > last.bytes {
                    return Err("more text than the bytes that were read can hold");
                }
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
            last.ev = *ev;
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
            trace.most_cached = trace.most_cached.max(*cached);
            trace.most_completion = trace.most_completion.max(*completion);
            if trace.chunks.len() == 1 && trace.first_chunk_tokens.is_none() {
                // A server that does not count with each chunk says 0, or nothing.
                trace.first_chunk_tokens = completion.filter(|n| *n > 0);
            }
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

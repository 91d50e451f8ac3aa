//! What the bytes of one attempt mean, event by event.
//!
//! [`Answer`] is fed with reads, the head and body parts in the order in which
//! they happened, logs what they hold, each thing with the stamp and number of
//! its read, and keeps the text for `responses.jsonl`. It does no waiting.

use std::ops::ControlFlow;

use hyper::header::CONTENT_TYPE;
use hyper::http::response::Parts;
use runseal::event::{DeltaHasher, DeltaKind, EndCause, Event, Oddity, error_digest};
use runseal::response::Response;
use runseal::trace::{Trace, Transport};

use super::Headers;
use super::chunk::{Choice, Payload, interpret};
use super::sse::{Frame, Framer, Tail};
use super::template::Template;
use super::wire::Ending;
use crate::recorder::{Batch, Recorder};

/// Most bytes kept of an answer that is not an event stream.
const MAX_ERROR_BODY: usize = 64 << 10;
/// Most text of one answer, reasoning and content together: some four million tokens,
/// past what any model is asked for. An endless answer must not fill memory and disk.
const MAX_ANSWER: usize = 16 << 20;

/// The log of one attempt: batches its events, keeps its time from running
/// backwards, and ends it exactly once, whatever happens to the task.
pub(super) struct Log {
    recorder: Recorder,
    batch: Batch,
    req: u32,
    last: u64,
    ended: bool,
    /// What [`Trace::transport`] looks at, kept while it is at hand.
    outline: Trace,
}

impl Log {
    pub fn new(recorder: Recorder, req: u32) -> Self {
        Self {
            recorder,
            batch: Batch::default(),
            req,
            last: 0,
            ended: false,
            outline: Trace::default(),
        }
    }

    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub fn push(&mut self, t: u64, event: &Event) {
        self.last = self.last.max(t);
        self.sketch(event);
        self.batch.push(self.last, event);
    }

    fn sketch(&mut self, event: &Event) {
        let outline = &mut self.outline;
        match event {
            Event::ConnectStart { .. } => outline.connect_start = Some(self.last),
            Event::Send { .. } => outline.send = Some(self.last),
            Event::Headers {
                status,
                event_stream,
                ..
            } => {
                outline.status = Some(*status);
                outline.event_stream = *event_stream;
            }
            Event::Finish { reason, .. } => outline.finish = Some(reason.clone()),
            // One is enough, and a server may send any number.
            Event::Error { len, digest, .. } if outline.errors.is_empty() => {
                outline.errors.push((*len, digest.clone()));
            }
            Event::End { cause, .. } => outline.cause = Some(*cause),
            _ => {}
        }
    }

    fn push_delta(&mut self, t: u64, read_ev: [u32; 2], kind: DeltaKind, len: u64, d: [u8; 16]) {
        self.last = self.last.max(t);
        let [read, ev] = read_ev;
        self.batch
            .push_delta(self.last, [self.req, read, ev], kind, len, d);
    }

    pub fn submit(&mut self) {
        self.recorder.submit(&mut self.batch);
    }

    pub fn end(&mut self, t: u64, cause: EndCause) {
        if !std::mem::replace(&mut self.ended, true) {
            let req = self.req;
            self.push(t, &Event::End { req, cause });
        }
        self.submit();
    }
}

impl Drop for Log {
    /// A task that is dropped or panics has cancelled its attempt.
    fn drop(&mut self) {
        let now = self.recorder.now();
        self.end(now, EndCause::Cancelled);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Head,
    Stream,
    /// Not a 2xx event stream: the body is kept as the error's text.
    Whole,
}

/// One attempt's answer so far.
pub(super) struct Answer {
    framer: Framer,
    inner: Inner,
}

struct Inner {
    log: Log,
    /// Of the request; their values must not get into what is kept.
    headers: Headers,
    salt: [u8; 32],
    hasher: DeltaHasher,
    /// From the latest chunk that was fit for one. It was interpreted, so a model
    /// name that it holds has been taken.
    template: Option<Template>,
    response: Response,
    mode: Mode,
    whole: Vec<u8>,
    /// Number and stamp of the latest read.
    read: u32,
    t: u64,
    /// Server-sent events so far.
    ev: u32,
    finished: bool,
    done: bool,
    /// Stamps the time limits look at.
    sent: Option<u64>,
    generated: bool,
    progress: u64,
}

impl Answer {
    pub fn new(log: Log, salt: [u8; 32], headers: Headers) -> Self {
        let response = Response {
            req: log.req,
            salt: hex::encode(salt),
            ..Response::default()
        };
        Self {
            framer: Framer::new(),
            inner: Inner {
                log,
                headers,
                salt,
                hasher: DeltaHasher::new(&salt),
                template: None,
                response,
                mode: Mode::Head,
                whole: Vec::new(),
                read: 0,
                t: 0,
                ev: 0,
                finished: false,
                done: false,
                sent: None,
                generated: false,
                progress: 0,
            },
        }
    }

    pub fn log(&mut self) -> &mut Log {
        &mut self.inner.log
    }

    pub fn into_response(self) -> Response {
        self.inner.response
    }

    /// The transport state, by the rules that judge the log.
    pub fn transport(&self) -> Transport {
        self.inner.log.outline.transport()
    }

    /// Stamp of the send, when it happened.
    pub fn sent_at(&self) -> Option<u64> {
        self.inner.sent
    }

    /// Output was generated, or is known not to come any more: the limit on the
    /// first token is over and the one on stalls applies.
    pub fn flowing(&self) -> bool {
        self.inner.generated || self.inner.finished
    }

    /// A status or content type other than a stream's: only the limit on the
    /// whole request applies.
    pub fn is_whole(&self) -> bool {
        self.inner.mode == Mode::Whole
    }

    /// Stamp of the latest chunk.
    pub fn progress(&self) -> u64 {
        self.inner.progress
    }

    pub fn sent(&mut self, t: u64) {
        let req = self.inner.log.req;
        self.inner.sent = Some(t);
        self.inner.log.push(t, &Event::Send { req });
    }

    pub fn read(&mut self, t: u64, bytes: u64) {
        let inner = &mut self.inner;
        inner.read += 1;
        inner.t = t;
        let (req, read) = (inner.log.req, inner.read);
        inner.log.push(t, &Event::Read { req, read, bytes });
    }

    pub fn head(&mut self, head: &Parts) {
        let inner = &mut self.inner;
        let event_stream = head
            .headers
            .get(CONTENT_TYPE)
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.split(';').next())
            .is_some_and(|v| v.trim().eq_ignore_ascii_case("text/event-stream"));
        inner.mode = match head.status.is_success() && event_stream {
            true => Mode::Stream,
            false => Mode::Whole,
        };
        inner.emit(|req, read| Event::Headers {
            req,
            read,
            status: head.status.as_u16(),
            event_stream,
        });
    }

    /// Takes a part of the body; breaks when reading should end.
    pub fn data(&mut self, bytes: &[u8]) -> ControlFlow<EndCause> {
        let inner = &mut self.inner;
        if inner.mode != Mode::Stream {
            let room = MAX_ERROR_BODY - inner.whole.len();
            inner
                .whole
                .extend_from_slice(&bytes[..bytes.len().min(room)]);
            return ControlFlow::Continue(());
        }
        match self.framer.push(bytes, |frame| inner.frame(frame)) {
            Err(_) => ControlFlow::Break(EndCause::Malformed),
            Ok(used) if inner.done => {
                self.after_done(&bytes[used..]);
                ControlFlow::Break(EndCause::Done)
            }
            Ok(_) if inner.response.reasoning.len() + inner.response.content.len() > MAX_ANSWER => {
                ControlFlow::Break(EndCause::Malformed)
            }
            Ok(_) => ControlFlow::Continue(()),
        }
    }

    /// Bytes of the read that held `[DONE]`, behind it. True when it was noted.
    pub fn after_done(&mut self, rest: &[u8]) -> bool {
        let more = rest.iter().any(|b| !matches!(b, b'\r' | b'\n'));
        if more {
            self.inner.odd(Oddity::AfterDone);
        }
        more
    }

    /// Ends the body as the wire ended it.
    pub fn ended(&mut self, ending: Ending) -> EndCause {
        let inner = &mut self.inner;
        if inner.mode == Mode::Stream
            && let Tail::Cut { data } = self.framer.finish()
        {
            // The standard drops an event without its blank line. `[DONE]` is
            // taken all the same when the body ended as it should: it carries
            // nothing that could be cut short, and servers that forget its blank
            // line meant it. It is no success by itself anyway.
            if ending == Ending::Clean && data.trim_ascii() == b"[DONE]" {
                inner.done();
                return EndCause::Done;
            }
            inner.odd(Oddity::CutOff);
        }
        match ending {
            Ending::Clean => EndCause::Eof,
            Ending::Broken => EndCause::IoError,
            Ending::Malformed => EndCause::Malformed,
        }
    }

    /// Logs the end.
    pub fn end(&mut self, t: u64, cause: EndCause) {
        let inner = &mut self.inner;
        if !inner.whole.is_empty() {
            let whole = std::mem::take(&mut inner.whole);
            inner.error(String::from_utf8_lossy(&whole).into_owned());
        }
        inner.log.end(t, cause);
    }
}

impl Inner {
    fn emit(&mut self, event: impl FnOnce(u32, u32) -> Event) {
        self.log.push(self.t, &event(self.log.req, self.read));
    }

    fn odd(&mut self, what: Oddity) {
        self.emit(|req, read| Event::Odd { req, read, what });
    }

    fn done(&mut self) {
        self.done = true;
        self.emit(|req, read| Event::Done { req, read });
    }

    fn error(&mut self, text: String) {
        let text = self.headers.hide(text);
        let len = text.len() as u64;
        let digest = error_digest(&self.salt, text.as_bytes());
        self.response.errors.push(text);
        self.emit(|req, read| Event::Error {
            req,
            read,
            len,
            digest,
        });
    }

    fn frame(&mut self, frame: Frame<'_>) -> ControlFlow<()> {
        let (name, data) = match frame {
            Frame::Comment => {
                self.odd(Oddity::Comment);
                return ControlFlow::Continue(());
            }
            Frame::Event { name, data } => (name, data),
        };
        self.ev += 1;
        if name.is_empty()
            && !self.finished
            && let Some((kind, text)) = self.template.as_ref().and_then(|t| t.text(data))
            && !self.headers.shows(text)
        {
            self.progress = self.t;
            self.generated = true;
            self.delta(kind, text);
            match kind {
                DeltaKind::Reasoning => self.response.reasoning.push_str(text),
                _ => self.response.content.push_str(text),
            }
            return ControlFlow::Continue(());
        }
        let Ok(data) = std::str::from_utf8(data) else {
            self.odd(Oddity::BadUtf8);
            return ControlFlow::Continue(());
        };
        match interpret(name, data) {
            Payload::Done => {
                self.done();
                return ControlFlow::Break(());
            }
            Payload::Error(text) => self.error(text.to_owned()),
            Payload::Blank => self.odd(Oddity::Comment),
            Payload::NotJson => self.odd(Oddity::NotJson),
            Payload::NoChoices => self.odd(Oddity::NoChoices),
            Payload::Chunk(chunk) => {
                self.progress = self.t;
                if let Some(template) = Template::learn(data, &chunk) {
                    self.template = Some(template);
                }
                if self.response.model.is_none() {
                    let model = chunk.model.map(|m| self.headers.hide(m.into_owned()));
                    self.response.model = model;
                }
                if chunk.many {
                    self.odd(Oddity::ManyChoices);
                }
                match chunk.choice {
                    Some(_) if self.finished => self.odd(Oddity::AfterFinish),
                    Some(choice) => self.choice(choice),
                    None => {}
                }
                if let Some(u) = chunk.usage {
                    self.emit(|req, read| Event::Usage {
                        req,
                        read,
                        prompt: u.prompt,
                        completion: u.completion,
                        reasoning: u.reasoning,
                        cached: u.cached,
                    });
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn choice(&mut self, choice: Choice<'_>) {
        let mut any = false;
        // A server may say our key back; no evidence repeats it.
        let choice = self.headers.clean(choice);
        if let Some(text) = choice.reasoning {
            self.delta(DeltaKind::Reasoning, &text);
            self.response.reasoning.push_str(&text);
            any = true;
        }
        if let Some(text) = choice.content {
            self.delta(DeltaKind::Content, &text);
            self.response.content.push_str(&text);
            any = true;
        }
        if let Some(text) = choice.tool {
            self.delta(DeltaKind::Tool, &text);
            self.response.tool_deltas.push(text);
            any = true;
        }
        if any {
            self.generated = true;
        } else {
            self.delta(DeltaKind::Empty, "");
        }
        if let Some(reason) = choice.finish {
            self.finished = true;
            let reason = self.headers.hide(reason.into_owned());
            self.emit(|req, read| Event::Finish { req, read, reason });
        }
    }

    fn delta(&mut self, kind: DeltaKind, text: &str) {
        let digest = self.hasher.digest(self.ev, kind, text.as_bytes());
        let at = [self.read, self.ev];
        self.log
            .push_delta(self.t, at, kind, text.len() as u64, digest);
    }
}

#[cfg(test)]
#[path = "answer_traps.rs"]
mod traps;

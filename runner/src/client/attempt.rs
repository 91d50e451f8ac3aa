//! One attempt: queued, connected, sent, read to its end, logged.
//!
//! The attempt's task polls the wire first, then cancellation, then its one
//! timer, so bytes that arrived before a limit count even when the task ran late.
//! The timer is not moved with every chunk: when it fires, the deadline is
//! computed from the stamps, and it is set again if that still lies ahead.
//!
//! After `[DONE]` the attempt has ended, at the stamp of the read that held it.
//! For the connection's sake the rest of the body is awaited for [`DRAIN_TIME`];
//! a server that keeps it open costs a new connection, not a hang.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use http_body_util::Full;
use hyper::Request;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue};
use runseal::event::{EndCause, Event, body_digest};
use runseal::response::Response;
use tokio::time::{Instant, sleep_until, timeout};

use super::answer::{Answer, Log};
use super::source::Ended;
use super::wire::{Conn, Happened, Wire};
use super::{AttemptSpec, Cancel, Client};

/// Longest wait for the end of a body after `[DONE]`.
const DRAIN_TIME: Duration = Duration::from_millis(25);
/// Most bytes read in that time.
const DRAIN_BYTES: u64 = 64 << 10;
/// Bodies up to this length are digested in place; longer ones would keep other
/// streams of the same thread from being stamped in time.
const DIGEST_IN_PLACE: usize = 64 << 10;

/// A queued attempt. Dropping it ends the attempt as cancelled.
pub struct Ticket {
    client: Client,
    spec: AttemptSpec,
    log: Log,
}

impl Client {
    /// Logs that an attempt waits for its turn. Attempts of a run must be queued
    /// in the order of their numbers; they may run in any order.
    pub fn enqueue(&self, spec: AttemptSpec) -> Ticket {
        self.enqueue_at(spec, self.recorder.now())
    }

    /// Likewise, for an attempt that was due at `due` on the run's clock, which
    /// must not lie ahead.
    pub fn enqueue_at(&self, spec: AttemptSpec, due: u64) -> Ticket {
        let mut log = Log::new(self.recorder.clone(), spec.req);
        let queued = Event::Queued {
            req: spec.req,
            case: spec.case.clone(),
            rep: spec.rep,
            attempt: spec.attempt,
            warmup: spec.warmup,
            endpoint: spec.endpoint.name.clone(),
        };
        log.push(due, &queued);
        // At once and not with the rest: the order of numbers must hold in the
        // log even when a later attempt runs first.
        log.submit();
        Ticket {
            client: self.clone(),
            spec,
            log,
        }
    }

    /// Queues and runs one attempt.
    pub async fn attempt(&self, spec: AttemptSpec, cancel: &Cancel) -> Response {
        self.enqueue(spec).run(cancel).await
    }
}

impl Ticket {
    /// Runs the attempt to its end. It is logged in any case; what came before a
    /// time limit, a fault or a cancellation is kept.
    pub async fn run(self, cancel: &Cancel) -> Response {
        self.run_to_end(cancel).await.response
    }

    /// Likewise, and says what became of it.
    pub async fn run_to_end(self, cancel: &Cancel) -> Ended {
        let (case, endpoint) = (self.spec.case.clone(), self.spec.endpoint.name.clone());
        let (rep, attempt) = (self.spec.rep, self.spec.attempt);
        let answer = self.exchange(cancel).await;
        Ended {
            case,
            rep,
            attempt,
            endpoint,
            transport: answer.transport(),
            response: answer.into_response(),
        }
    }

    async fn exchange(self, cancel: &Cancel) -> Answer {
        let Ticket { client, spec, log } = self;
        let recorder = client.recorder.clone();
        let mut cancel = cancel.clone();
        let mut answer = Answer::new(log, spec.salt, spec.headers.clone());

        let len = spec.body.len() as u64;
        let digest = digest(&spec).await;
        let req = spec.req;
        let body = Event::Body { req, len, digest };
        answer.log().push(recorder.now(), &body);
        answer.log().submit();

        let conn = match connect(&client, &spec, answer.log(), &mut cancel).await {
            Ok(conn) => conn,
            Err(cause) => {
                answer.end(recorder.now(), cause);
                return answer;
            }
        };
        let mut wire = Wire::start(conn, request(&spec));
        let (t, cause) = exchange(&mut wire, &mut answer, &spec, &mut cancel).await;
        answer.end(t, cause);
        if cause == EndCause::Done {
            drain(&mut wire).await;
        }
        if let Some(conn) = wire.into_idle() {
            client.give_back(spec.endpoint.addr, conn);
        }
        answer
    }
}

async fn digest(spec: &AttemptSpec) -> runseal::digest::Sha256Digest {
    if spec.body.len() > DIGEST_IN_PLACE {
        let (salt, body) = (spec.salt, spec.body.clone());
        let job = tokio::task::spawn_blocking(move || body_digest(&salt, &body));
        if let Ok(digest) = job.await {
            return digest;
        }
        // The runtime is shutting down; the digest is still owed.
    }
    body_digest(&spec.salt, &spec.body)
}

fn request(spec: &AttemptSpec) -> Request<Full<bytes::Bytes>> {
    let mut request = Request::new(Full::new(spec.body.clone()));
    *request.method_mut() = hyper::Method::POST;
    // A path that is no URI is sent as `/`: the server will say what it thinks.
    *request.uri_mut() = spec.endpoint.path.parse().unwrap_or_default();
    let headers = request.headers_mut();
    if let Ok(host) = HeaderValue::from_str(&spec.endpoint.host_header) {
        headers.insert(HOST, host);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    headers.extend(spec.headers.0.clone());
    request
}

/// A kept-alive connection that is still good, or a new one.
async fn connect(
    client: &Client,
    spec: &AttemptSpec,
    log: &mut Log,
    cancel: &mut Cancel,
) -> Result<Conn, EndCause> {
    let (req, addr) = (spec.req, spec.endpoint.addr);
    let recorder = log.recorder().clone();
    if cancel.is_cancelled() {
        return Err(EndCause::Cancelled);
    }
    if let Some(conn) = client.take_idle(addr) {
        log.push(recorder.now(), &connected(client, req, true, &conn));
        return Ok(conn);
    }
    log.push(recorder.now(), &Event::ConnectStart { req });
    log.submit();
    let connecting = timeout(
        spec.timeouts.connect,
        Conn::connect(client, addr, recorder.clock()),
    );
    let conn = tokio::select! {
        biased;
        () = cancel.cancelled() => return Err(EndCause::Cancelled),
        conn = connecting => conn,
    };
    match conn {
        Ok(Ok(conn)) => {
            log.push(recorder.now(), &connected(client, req, false, &conn));
            Ok(conn)
        }
        Ok(Err(_)) | Err(_) => Err(EndCause::ConnectError),
    }
}

fn connected(client: &Client, req: u32, reused: bool, conn: &Conn) -> Event {
    Event::Connected {
        req,
        reused,
        peer: client.shown(conn.peer()),
    }
}

/// Reads the answer; returns when and why reading ended.
async fn exchange(
    wire: &mut Wire,
    answer: &mut Answer,
    spec: &AttemptSpec,
    cancel: &mut Cancel,
) -> (u64, EndCause) {
    let recorder = answer.log().recorder().clone();
    let clock = recorder.clock();
    let limits = Limits {
        started: clock.now(),
        spec,
    };
    let mut set = limits.next(answer).0;
    let mut timer = pin!(sleep_until(Instant::from_std(clock.instant(set))));
    let mut cancelled = pin!(cancel.cancelled());
    poll_fn(move |cx| {
        while let Poll::Ready(happened) = wire.poll_next(cx) {
            if let ControlFlow::Break(end) = step(wire, answer, happened) {
                return Poll::Ready(end);
            }
        }
        answer.log().submit();
        if cancelled.as_mut().poll(cx).is_ready() {
            return Poll::Ready((clock.now(), EndCause::Cancelled));
        }
        loop {
            let (deadline, cause) = limits.next(answer);
            // Forwards only once it fired; backwards at once: the limit on
            // stalls begins with the first output and may be the shortest.
            let fired = timer.as_mut().poll(cx).is_ready();
            if !fired && deadline >= set {
                return Poll::Pending;
            }
            let now = clock.now();
            if now >= deadline {
                return Poll::Ready((now, cause));
            }
            set = deadline;
            let at = Instant::from_std(clock.instant(deadline));
            timer.as_mut().reset(at);
        }
    })
    .await
}

fn step(wire: &mut Wire, answer: &mut Answer, happened: Happened) -> ControlFlow<(u64, EndCause)> {
    match happened {
        Happened::Sent(t) => answer.sent(t),
        Happened::Read { t, bytes } => answer.read(t, bytes),
        Happened::Head(head) => answer.head(&head),
        Happened::Data(data) => {
            if let ControlFlow::Break(cause) = answer.data(&data) {
                if cause == EndCause::Done {
                    look_behind_done(wire, answer);
                }
                return ControlFlow::Break((wire.last_stamp(), cause));
            }
        }
        Happened::End(ending) => {
            let cause = answer.ended(ending);
            return ControlFlow::Break((wire.last_stamp(), cause));
        }
    }
    ControlFlow::Continue(())
}

/// Takes what came in the same read as `[DONE]`, so that it can be noted before
/// the attempt ends.
fn look_behind_done(wire: &mut Wire, answer: &mut Answer) {
    while let Some(happened) = wire.poll_buffered() {
        match happened {
            Happened::Data(data) if !answer.after_done(&data) => {}
            _ => return,
        }
    }
}

async fn drain(wire: &mut Wire) {
    let mut left = DRAIN_BYTES;
    let rest = poll_fn(|cx| {
        loop {
            match std::task::ready!(wire.poll_next(cx)) {
                Happened::End(_) => return Poll::Ready(()),
                Happened::Read { bytes, .. } if bytes > left => return Poll::Ready(()),
                Happened::Read { bytes, .. } => left -= bytes,
                _ => {}
            }
        }
    });
    // Too late or too much: the wire is not ended and its connection is dropped.
    let _ = timeout(DRAIN_TIME, rest).await;
}

struct Limits<'a> {
    started: u64,
    spec: &'a AttemptSpec,
}

impl Limits<'_> {
    /// The next deadline by what is known now, and the cause if it passes.
    fn next(&self, answer: &Answer) -> (u64, EndCause) {
        let limits = &self.spec.timeouts;
        let after = |t: u64, d: Duration| {
            // A limit of centuries is no limit, but must not overflow a clock.
            let d = d.min(Duration::from_secs(10 * 365 * 86_400));
            t.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
        };
        let sent = answer.sent_at().unwrap_or(self.started);
        let whole = (after(sent, limits.request), EndCause::RequestTimeout);
        if answer.is_whole() {
            return whole;
        }
        let other = match answer.flowing() {
            false => limits
                .first_token
                .map(|d| (after(sent, d), EndCause::FirstTokenTimeout)),
            true => limits
                .stall
                .map(|d| (after(answer.progress(), d), EndCause::StallTimeout)),
        };
        other
            .into_iter()
            .chain([whole])
            .min_by_key(|l| l.0)
            .unwrap_or(whole)
    }
}

//! The load client: one POST per attempt, everything that happens written to the
//! event log, nothing aggregated.
//!
//! The layers, from the wire up:
//!
//! * `io` stamps each socket read before it is parsed and lets no read through
//!   while an earlier one is not fully taken;
//! * `wire` turns one hyper exchange into a sequence of happenings;
//! * [`sse`] frames server-sent events, [`chunk`] reads what their data says;
//! * `answer` interprets the happenings of one attempt, `attempt` runs it
//!   against its time limits and logs it from queue to end;
//! * `closed_loop` keeps a number of attempts going.
//!
//! What a response is worth is decided elsewhere, from the log alone
//! ([`runseal::trace`]): here `[DONE]` and status 200 are things that were read,
//! not success. There are no retries and no reconnects: a further attempt is a
//! further [`AttemptSpec`] with its own number.

mod answer;
mod attempt;
pub mod chunk;
mod closed_loop;
mod io;
pub mod sse;
mod wire;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::watch;

pub use attempt::Ticket;
pub use closed_loop::{run_closed_loop, run_closed_loop_with};

use crate::recorder::Recorder;

/// Where requests go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Name in the log; for launched engines, of the replica.
    pub name: String,
    /// Address to connect to.
    pub addr: SocketAddr,
    /// `Host` header.
    pub host_header: String,
    /// Path and query, such as `/v1/chat/completions`.
    pub path: String,
}

/// Time limits of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// To make a connection; too long is a connect error.
    pub connect: Duration,
    /// From send to the end of the answer.
    pub request: Duration,
    /// From send to the first generated output.
    pub first_token: Option<Duration>,
    /// Between chunks once output was generated. Pings do not count as chunks.
    pub stall: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            request: Duration::from_secs(600),
            first_token: None,
            stall: None,
        }
    }
}

/// Extra request headers, such as a bearer key. Values are never shown, logged
/// or digested.
#[derive(Clone, Default)]
pub struct Headers(HeaderMap);

/// Not a legal header.
#[derive(Debug, thiserror::Error)]
#[error("header {0:?} has an illegal name or value (hint: keys must not contain line breaks)")]
pub struct BadHeader(String);

impl Headers {
    /// Adds a header.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), BadHeader> {
        let bad = || BadHeader(name.to_owned());
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| bad())?;
        value.set_sensitive(true);
        self.0.insert(key, value);
        Ok(())
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// One attempt: one POST.
#[derive(Debug, Clone)]
pub struct AttemptSpec {
    /// Number of the attempt; attempts of a run are queued in order, from 0.
    pub req: u32,
    /// Case id, or `warmup`.
    pub case: String,
    /// Repetition, from 0.
    pub rep: u32,
    /// Attempt at this case and repetition, from 0.
    pub attempt: u32,
    /// Declared warm-up.
    pub warmup: bool,
    /// Where it goes.
    pub endpoint: Endpoint,
    /// JSON body.
    pub body: Bytes,
    /// Salt of this attempt's digests.
    pub salt: [u8; 32],
    /// Limits.
    pub timeouts: Timeouts,
    /// Further headers.
    pub headers: Headers,
}

/// The end of the wish that the run goes on.
#[derive(Debug)]
pub struct Canceller(watch::Sender<bool>);

impl Canceller {
    /// Ends all attempts that look at the paired [`Cancel`].
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }
}

/// Tells attempts that the run is ending.
#[derive(Debug, Clone)]
pub struct Cancel(watch::Receiver<bool>);

impl Cancel {
    /// A pair. Dropping the canceller cancels nothing.
    pub fn pair() -> (Canceller, Cancel) {
        let (tx, rx) = watch::channel(false);
        (Canceller(tx), Cancel(rx))
    }

    /// One that never cancels.
    pub fn never() -> Self {
        Self::pair().1
    }

    /// True once cancelled.
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves when cancelled.
    pub async fn cancelled(&mut self) {
        if self.0.wait_for(|c| *c).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The client: idle connections and the log. Clones share both.
#[derive(Clone)]
pub struct Client {
    recorder: Recorder,
    idle: Arc<Mutex<HashMap<SocketAddr, Vec<wire::Conn>>>>,
}

impl Client {
    /// A client that logs to `recorder`.
    pub fn new(recorder: Recorder) -> Self {
        Self {
            recorder,
            idle: Arc::default(),
        }
    }

    /// The log.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Closes all idle connections.
    pub fn close_idle(&self) {
        self.pool().clear();
    }

    /// A usable idle connection. The pool needs no size limit: it never holds
    /// more connections than attempts ran at once.
    fn take_idle(&self, addr: SocketAddr) -> Option<wire::Conn> {
        loop {
            let mut conn = self.pool().get_mut(&addr)?.pop()?;
            if conn.usable() {
                return Some(conn);
            }
        }
    }

    fn give_back(&self, addr: SocketAddr, conn: wire::Conn) {
        self.pool().entry(addr).or_default().push(conn);
    }

    fn pool(&self) -> std::sync::MutexGuard<'_, HashMap<SocketAddr, Vec<wire::Conn>>> {
        // Lists of connections: whole between any two statements.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

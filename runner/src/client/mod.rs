//! The load client: one POST per attempt, everything that happens written to the
//! event log, nothing aggregated.
//!
//! The layers, from the wire up:
//!
//! * `io` stamps each socket read before it is parsed and lets no read through
//!   while an earlier one is not fully taken; `tls`, where asked for, decrypts
//!   above the stamps;
//! * `wire` turns one hyper exchange into a sequence of happenings;
//! * [`sse`] frames server-sent events, [`chunk`] reads what their data says, by
//!   way of a [`template`] where a chunk repeats an earlier one;
//! * `answer` interprets the happenings of one attempt, `attempt` runs it
//!   against its time limits and logs it from queue to end;
//! * [`source`] gives out attempts, `closed_loop` keeps a number of them going,
//!   `open_loop` starts them by a [`runseal::schedule`];
//! * [`lag`] measures how late the client itself is.
//!
//! What a response is worth is decided elsewhere, from the log alone
//! ([`runseal::trace`]): here `[DONE]` and status 200 are things that were read,
//! not success. There are no reconnects, and no retry but a declared one: a
//! further attempt is a further [`AttemptSpec`] with its own number.

mod answer;
mod attempt;
pub mod chunk;
mod closed_loop;
pub mod descriptors;
mod io;
pub mod lag;
mod open_loop;
mod quick;
pub mod source;
pub mod sse;
pub mod template;
#[cfg(feature = "tls")]
pub mod tls;
mod wire;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use runseal::event::hidden_address;
use tokio::sync::watch;

pub use attempt::Ticket;
pub use closed_loop::{run_closed_loop, run_closed_loop_from, run_closed_loop_with};
pub use open_loop::{Stage, run_open_loop_with, run_rate_sweep_with};

use crate::recorder::Recorder;

/// The runtime that the client is meant to run on.
///
/// One worker: the client costs well under a microsecond per event, so a second
/// worker would mostly be woken to find nothing to do, and the waking costs more
/// than the work. Long jobs go to the pool of blocking threads.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
}

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

    /// Adds the bearer key that the environment variable `name` holds, as
    /// `lookup` (usually `|n| std::env::var(n).ok()`) finds it. Neither the key nor
    /// its length gets into an error or the log.
    pub fn bearer_from(
        &mut self,
        name: &str,
        lookup: impl FnOnce(&str) -> Option<String>,
    ) -> Result<(), NoKey> {
        let key = lookup(name).unwrap_or_default();
        // Files and shells like to leave a line break behind.
        let key = key.trim();
        if key.is_empty() {
            return Err(NoKey::Missing(name.to_owned()));
        }
        self.set("authorization", &format!("Bearer {key}"))
            .map_err(|_| NoKey::Illegal(name.to_owned()))
    }
}

/// The environment holds no usable key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoKey {
    /// The variable is unset, empty or not UTF-8.
    #[error(
        "the environment variable {0} holds no key (hint: export it, or drop it from the plan)"
    )]
    Missing(String),
    /// The variable's value cannot be sent.
    #[error("the key in the environment variable {0} has characters that no header may hold")]
    Illegal(String),
}

impl Headers {
    /// The text without any of the values that these headers hold, whole or without
    /// an authorization scheme in front: servers like to repeat a key that they
    /// refuse, and what they say becomes evidence.
    pub(super) fn hide(&self, text: String) -> String {
        self.secrets()
            .fold(text, |text, secret| text.replace(secret, HIDDEN))
    }
}

impl Headers {
    fn secrets(&self) -> impl Iterator<Item = &str> {
        let values = self.0.values().filter_map(|v| v.to_str().ok());
        let secrets = values.flat_map(|v| [Some(v), v.split_once(' ').map(|(_, key)| key)]);
        secrets.flatten().filter(|s| s.len() >= SHORTEST_SECRET)
    }

    /// True when the text holds one of the values.
    pub(super) fn shows(&self, text: &str) -> bool {
        !self.0.is_empty() && self.secrets().any(|secret| text.contains(secret))
    }

    /// A choice in which no text holds one of the values, each text seen by itself.
    pub(super) fn clean<'a>(&self, mut choice: chunk::Choice<'a>) -> chunk::Choice<'a> {
        if self.0.is_empty() {
            return choice;
        }
        for text in [&mut choice.reasoning, &mut choice.content] {
            if let Some(t) = text.take_if(|t| self.shows(t)) {
                *text = Some(self.hide(t.into_owned()).into());
            }
        }
        choice.tool = choice.tool.map(|t| self.hide(t));
        choice
    }
}

/// What stands for a hidden value.
const HIDDEN: &str = "[hidden]";
/// Shorter values are no secrets, and hiding them would mangle texts.
const SHORTEST_SECRET: usize = 4;

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
    #[cfg(feature = "tls")]
    secured: Arc<Mutex<HashMap<SocketAddr, tls::Tls>>>,
    /// Salt under which addresses are hidden, when they are.
    hidden: Arc<OnceLock<[u8; 32]>>,
}

impl Client {
    /// A client that logs to `recorder`.
    pub fn new(recorder: Recorder) -> Self {
        Self {
            recorder,
            idle: Arc::default(),
            #[cfg(feature = "tls")]
            secured: Arc::default(),
            hidden: Arc::default(),
        }
    }

    /// The log.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// From now on the log has no address of a peer, but what stands for it under this
    /// salt. The first salt stays.
    pub fn hide_addresses(&self, salt: [u8; 32]) {
        let _ = self.hidden.set(salt);
    }

    /// The address of a peer as it may stand in the log.
    fn shown(&self, peer: SocketAddr) -> String {
        match self.hidden.get() {
            Some(salt) => hidden_address(salt, &peer.to_string()),
            None => peer.to_string(),
        }
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

    #[cfg(feature = "tls")]
    fn secured(&self) -> std::sync::MutexGuard<'_, HashMap<SocketAddr, tls::Tls>> {
        self.secured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pool(&self) -> std::sync::MutexGuard<'_, HashMap<SocketAddr, Vec<wire::Conn>>> {
        // Lists of connections: whole between any two statements.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_from_the_environment_is_sent_and_never_shown() {
        let mut headers = Headers::default();
        let found = headers.bearer_from("KEY", |n| Some(format!("secret-{n}\n")));
        assert_eq!(found, Ok(()));
        assert_eq!(headers.0["authorization"], "Bearer secret-KEY");
        assert!(!format!("{headers:?} {:?}", headers.0).contains("secret"));
        assert_eq!(
            headers.hide("secret-KEY is wrong".into()),
            "[hidden] is wrong"
        );
        assert_eq!(headers.hide("no secret".into()), "no secret");
        for (value, error) in [
            (None, NoKey::Missing("KEY".into())),
            (Some(" \n"), NoKey::Missing("KEY".into())),
            (Some("se\ncret"), NoKey::Illegal("KEY".into())),
        ] {
            let got = headers.bearer_from("KEY", |_| value.map(str::to_owned));
            assert!(!got.as_ref().unwrap_err().to_string().contains("cret"));
            assert_eq!(got, Err(error));
        }
    }
}

//! One HTTP/1.1 exchange over one connection, as a sequence of happenings.
//!
//! hyper's connection future and the response it feeds are polled by one and the
//! same task, so nothing is handed between threads and no other task can read
//! ahead. hyper gets a private waker that only raises a flag: whatever it
//! notifies while being polled is looked at again at once, and only the socket
//! wakes the task. The order is the law of this module: [`Happened::Read`]
//! first, then everything that came out of that read, then the next read.

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::http::response::Parts;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::Client;
use super::io::{Meter, StampedIo, Stream};
use crate::recorder::Clock;

/// An idle connection older than this is not used again: common servers close
/// theirs after five seconds, and a request that crosses such a close is lost.
const MAX_IDLE: Duration = Duration::from_secs(2);
/// Read buffer and longest response head.
const BUFFER: usize = 64 << 10;

/// Raised instead of waking the task.
#[derive(Debug, Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// A connection between two requests.
pub(super) struct Conn {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: http1::Connection<TokioIo<Stream>, Full<Bytes>>,
    /// The driver is finished and must not be polled again.
    over: bool,
    meter: Arc<Meter>,
    flag: Arc<Flag>,
    waker: Waker,
    /// The other end, as the system says.
    peer: SocketAddr,
    idle_since: Instant,
}

impl Conn {
    pub async fn connect(client: &Client, addr: SocketAddr, clock: Clock) -> io::Result<Self> {
        let socket = TcpStream::connect(addr).await?;
        socket.set_nodelay(true)?;
        let peer = socket.peer_addr()?;
        let meter = Arc::new(Meter::default());
        let socket = StampedIo::new(socket, Arc::clone(&meter), clock);
        let io = TokioIo::new(secured(client, addr, socket, &meter).await?);
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(BUFFER)
            .handshake(io)
            .await
            .map_err(io::Error::other)?;
        let flag = Arc::new(Flag::default());
        Ok(Self {
            sender,
            driver,
            over: false,
            meter,
            waker: Waker::from(Arc::clone(&flag)),
            flag,
            peer,
            idle_since: Instant::now(),
        })
    }

    /// Where the connection leads.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn drive(&mut self) {
        let mut cx = Context::from_waker(&self.waker);
        if !self.over && Pin::new(&mut self.driver).poll(&mut cx).is_ready() {
            self.over = true;
        }
    }

    /// True when an idle connection can carry another request.
    pub fn usable(&mut self) -> bool {
        if self.idle_since.elapsed() > MAX_IDLE {
            return false;
        }
        {
            let mut m = self.meter.lock();
            m.probe = true;
            m.waker = None;
        }
        self.drive();
        self.meter.lock().probe = false;
        !self.over && self.sender.is_ready()
    }
}

/// The socket, with TLS on top where the client was told to speak it.
#[cfg(feature = "tls")]
async fn secured(
    client: &Client,
    addr: SocketAddr,
    socket: StampedIo,
    meter: &Meter,
) -> io::Result<Stream> {
    let tls = client.secured().get(&addr).cloned();
    let Some(tls) = tls else {
        return Ok(Stream::Plain(socket));
    };
    meter.lock().free = true;
    let stream = tls.connect(socket).await?;
    meter.lock().free = false;
    Ok(Stream::Tls(Box::new(stream)))
}

/// The socket: this build has no TLS.
#[cfg(not(feature = "tls"))]
async fn secured(_: &Client, _: SocketAddr, socket: StampedIo, _: &Meter) -> io::Result<Stream> {
    Ok(Stream::Plain(socket))
}

/// Something that happened on the wire.
pub(super) enum Happened {
    /// The first byte of the request is about to be written.
    Sent(u64),
    /// The socket returned bytes.
    Read {
        /// Stamp.
        t: u64,
        /// How many.
        bytes: u64,
    },
    /// The response head is complete.
    Head(Parts),
    /// A part of the body.
    Data(Bytes),
    /// Nothing more will come.
    End(Ending),
}

/// How the exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The body is complete.
    Clean,
    /// The connection broke.
    Broken,
    /// The peer did not keep to HTTP.
    Malformed,
}

type Pending = Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>;

enum Phase {
    Head(Pending),
    Body(Incoming),
    Ended(Ending),
}

/// One exchange.
pub(super) struct Wire {
    conn: Conn,
    phase: Phase,
}

impl Wire {
    /// Starts an exchange. Nothing is written before the first poll.
    pub fn start(mut conn: Conn, request: Request<Full<Bytes>>) -> Self {
        {
            let mut m = conn.meter.lock();
            m.armed = true;
            m.open = true;
            m.sent = None;
            m.read = None;
        }
        let phase = Phase::Head(Box::pin(conn.sender.send_request(request)));
        Self { conn, phase }
    }

    /// The next happening; reads from the socket only when nothing else is left.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Happened> {
        self.conn
            .meter
            .lock()
            .waker
            .get_or_insert_with(|| cx.waker().clone())
            .clone_from(cx.waker());
        loop {
            if let Some(happened) = self.poll_buffered() {
                return Poll::Ready(happened);
            }
            if std::mem::replace(&mut self.conn.meter.lock().open, true) {
                return Poll::Pending;
            }
        }
    }

    /// The next happening that needs no further read.
    pub fn poll_buffered(&mut self) -> Option<Happened> {
        loop {
            self.conn.flag.0.store(false, Ordering::Release);
            self.conn.drive();
            {
                let mut m = self.conn.meter.lock();
                if let Some(t) = m.sent.take() {
                    return Some(Happened::Sent(t));
                }
                if let Some((t, bytes)) = m.read.take() {
                    return Some(Happened::Read { t, bytes });
                }
            }
            if let Some(happened) = self.advance() {
                return Some(happened);
            }
            if !self.conn.flag.0.load(Ordering::Acquire) {
                return None;
            }
        }
    }

    fn advance(&mut self) -> Option<Happened> {
        let mut cx = Context::from_waker(&self.conn.waker);
        let ending = match &mut self.phase {
            Phase::Head(head) => match head.as_mut().poll(&mut cx) {
                Poll::Pending => return None,
                Poll::Ready(Ok(response)) => {
                    let (parts, body) = response.into_parts();
                    self.phase = Phase::Body(body);
                    return Some(Happened::Head(parts));
                }
                Poll::Ready(Err(e)) => classify(&e),
            },
            Phase::Body(body) => loop {
                match Pin::new(&mut *body).poll_frame(&mut cx) {
                    Poll::Pending => return None,
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => return Some(Happened::Data(data)),
                        // Trailers say nothing about the answer.
                        Err(_) => continue,
                    },
                    Poll::Ready(Some(Err(e))) => break classify(&e),
                    Poll::Ready(None) => break Ending::Clean,
                }
            },
            Phase::Ended(ending) => *ending,
        };
        self.phase = Phase::Ended(ending);
        Some(Happened::End(ending))
    }

    /// Stamp of the latest return of the socket.
    pub fn last_stamp(&self) -> u64 {
        self.conn.meter.lock().last
    }

    /// The connection, when the exchange left it fit for another.
    pub fn into_idle(mut self) -> Option<Conn> {
        let fit = matches!(self.phase, Phase::Ended(Ending::Clean)) && !self.conn.over;
        self.conn.idle_since = Instant::now();
        fit.then_some(self.conn)
    }
}

/// Broken connection or broken protocol? Faults of the chunked coding reach us
/// as invalid input inside a body error.
fn classify(error: &hyper::Error) -> Ending {
    if error.is_parse() {
        return Ending::Malformed;
    }
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<io::Error>() {
            return match io.kind() {
                io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => Ending::Malformed,
                _ => Ending::Broken,
            };
        }
        source = inner.source();
    }
    Ending::Broken
}

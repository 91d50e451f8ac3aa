//! The socket, with a stamp on every read.
//!
//! [`StampedIo`] wraps a TCP stream for hyper and notes, in a [`Meter`] that it
//! shares with the attempt, when the first byte of a request was about to be
//! written and when each read returned how many bytes, before anything is
//! parsed.
//!
//! The meter is also a gate: it lets one read through and then says "not yet"
//! until the attempt opens it again, which it does only when everything decoded
//! from that read has been taken. So the bytes that hyper hands out between two
//! reads belong to the earlier one, exactly and not by guess, and a later read
//! can never lend its stamp to an earlier event.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::recorder::Clock;

/// What the attempt and its socket share.
#[derive(Debug, Default)]
pub(super) struct Meter(Mutex<Readings>);

#[derive(Debug, Default)]
pub(super) struct Readings {
    /// The next read may go through.
    pub open: bool,
    /// A request is about to be written; nothing is read before that.
    pub armed: bool,
    /// Everything goes through unstamped: the handshake of a connection.
    pub free: bool,
    /// Only look whether the idle connection is still good.
    pub probe: bool,
    /// Stamp before the first write, until it is taken.
    pub sent: Option<u64>,
    /// Stamp and length of a read, until it is taken.
    pub read: Option<(u64, u64)>,
    /// Stamp of the latest return of the socket: bytes, end or error.
    pub last: u64,
    /// Task to wake when the socket is ready.
    pub waker: Option<Waker>,
}

impl Meter {
    pub fn lock(&self) -> MutexGuard<'_, Readings> {
        // Plain values: whole between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A TCP stream that reports to a [`Meter`].
#[derive(Debug)]
pub(super) struct StampedIo {
    socket: TcpStream,
    meter: Arc<Meter>,
    clock: Clock,
}

impl StampedIo {
    pub fn new(socket: TcpStream, meter: Arc<Meter>, clock: Clock) -> Self {
        Self {
            socket,
            meter,
            clock,
        }
    }
}

/// Asks the system, not the runtime's cached readiness, whether an idle peer
/// closed the connection or said something unasked.
fn probe(socket: &TcpStream) -> Poll<io::Result<()>> {
    let twin = std::net::TcpStream::from(socket.as_fd().try_clone_to_owned()?);
    match twin.peek(&mut [0]) {
        Ok(0) => Poll::Ready(Ok(())),
        Ok(_) => Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        Err(e) => Poll::Ready(Err(e)),
    }
}

impl AsyncRead for StampedIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut m = this.meter.lock();
        if m.free {
            return Pin::new(&mut this.socket).poll_read(cx, buf);
        }
        if m.probe {
            return probe(&this.socket);
        }
        if !m.open || m.armed {
            // No waker is left: whoever opens the gate polls again.
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let result = {
            let mut cx = Context::from_waker(m.waker.as_ref().unwrap_or(Waker::noop()));
            ready!(Pin::new(&mut this.socket).poll_read(&mut cx, buf))
        };
        m.last = this.clock.now();
        let bytes = buf.filled().len() - before;
        if result.is_ok() && bytes > 0 {
            m.read = Some((m.last, bytes as u64));
            m.open = false;
        }
        Poll::Ready(result)
    }
}

impl StampedIo {
    fn writing<T>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let this = self.get_mut();
        let mut m = this.meter.lock();
        if m.free {
            return write(Pin::new(&mut this.socket), cx);
        }
        if std::mem::take(&mut m.armed) {
            m.sent = Some(this.clock.now());
        }
        let mut cx = Context::from_waker(m.waker.as_ref().unwrap_or(Waker::noop()));
        write(Pin::new(&mut this.socket), &mut cx)
    }
}

impl AsyncWrite for StampedIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writing(cx, |socket, cx| socket.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writing(cx, |socket, cx| socket.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        // Lets hyper send a large body from where it lies instead of copying it.
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

/// A connection as HTTP sees it.
#[derive(Debug)]
pub(super) enum Stream {
    /// Bytes as they are.
    Plain(StampedIo),
    /// Encrypted above the stamps.
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::client::TlsStream<StampedIo>>),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(s) => Pin::new(s).poll_read(cx, buf),
            #[cfg(feature = "tls")]
            Stream::Tls(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(s) => Pin::new(s).poll_write(cx, buf),
            #[cfg(feature = "tls")]
            Stream::Tls(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            #[cfg(feature = "tls")]
            Stream::Tls(s) => Pin::new(s).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(s) => s.is_write_vectored(),
            #[cfg(feature = "tls")]
            Stream::Tls(s) => s.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(s) => Pin::new(s).poll_flush(cx),
            #[cfg(feature = "tls")]
            Stream::Tls(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(s) => Pin::new(s).poll_shutdown(cx),
            #[cfg(feature = "tls")]
            Stream::Tls(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}

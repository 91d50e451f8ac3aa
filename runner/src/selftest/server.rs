//! The loopback server whose truth is known.
//!
//! It speaks the streamed chat protocol with made-up text, as fast or as slowly
//! as the query of each request says, and notes on the machine's monotonic clock
//! when it really did what the client claims to have seen. It runs in a process
//! of its own, so its processor time and its delays are not the client's.
//!
//! [`serve_stdio`] is that process: it prints its port, serves until its standard
//! input ends, and then prints what it did, one JSON object a line.

use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::client::descriptors::room_for;

/// Streams at a time that the server has room for.
const MOST_STREAMS: usize = 4096;

/// What the server does with one request; it stands in the request's query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Script {
    /// Content events of the answer.
    pub chunks: u32,
    /// Events in one write, which is one chunk of the chunked coding.
    pub per_write: u32,
    /// Wait before each write, in microseconds; 0 for none.
    pub pace_us: u64,
    /// All open streams get one write in turn, as from an engine that generates
    /// in steps; otherwise a stream gets as many as its socket takes.
    pub stepped: bool,
}

impl Script {
    /// Path and query of the request number `id`.
    pub fn path(&self, id: u32) -> String {
        let Script {
            chunks,
            per_write,
            pace_us,
            stepped,
        } = self;
        let stepped = u8::from(*stepped);
        format!("/v1/chat/completions?{id}&{chunks}&{per_write}&{pace_us}&{stepped}")
    }

    fn parse(head: &str) -> Option<(u32, Self)> {
        let query = head.split(' ').nth(1)?.split_once('?')?.1;
        let mut numbers = query.split('&').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let id = u32::try_from(next()?).ok()?;
        let script = Script {
            chunks: u32::try_from(next()?).ok()?,
            per_write: u32::try_from(next()?).ok()?.max(1),
            pace_us: next()?,
            stepped: next()? != 0,
        };
        Some((id, script))
    }
}

/// When the server did what, in nanoseconds of the machine's monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Truth {
    /// Number of the request, from its query.
    pub id: u32,
    /// The whole request was read.
    pub received: u64,
    /// The write of the first content was about to be made.
    pub first: u64,
    /// The write of the last content was about to be made.
    pub last: u64,
    /// Bytes of the request's body.
    pub body: u64,
}

/// Nanoseconds of the machine's monotonic clock, which all processes share.
pub fn monotonic() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Counted from boot, so neither part is negative.
    (t.tv_sec as u64) * 1_000_000_000 + t.tv_nsec as u64
}

/// Head of an answer and the role-only event that real servers send first.
const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                    transfer-encoding: chunked\r\n\r\n";
const ROLE: &str = r#""role":"assistant","content":"""#;
const TEXT: &str = r#""content":" word""#;

fn event(delta: &str, finish: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\
         \"object\":\"chat.completion.chunk\",\"created\":1767225600,\"model\":\"loopback\",\
         \"choices\":[{{\"index\":0,\"delta\":{{{delta}}},\"logprobs\":null,\
         \"finish_reason\":{finish}}}]}}\n\n"
    )
}

fn coded(data: &str) -> Vec<u8> {
    format!("{:x}\r\n{data}\r\n", data.len()).into_bytes()
}

/// What was done so far.
type Truths = Arc<Mutex<Vec<Truth>>>;

/// What a request without a script gets, and its number.
#[derive(Debug)]
struct Others {
    script: Option<Script>,
    next: AtomicU32,
}

impl Others {
    /// For a POST; other methods have no script.
    fn take(&self, head: &str) -> Option<(u32, Script)> {
        let script = self.script.filter(|_| head.starts_with("POST "))?;
        Some((self.next.fetch_add(1, Ordering::Relaxed), script))
    }
}

/// A short answer that is no stream: what clients ask before they begin.
fn document(head: &str) -> String {
    let known = ["GET /v1/models", "GET /health"];
    let (status, body) = match known.iter().any(|k| head.starts_with(k)) {
        true => (
            "200 OK",
            "{\"object\":\"list\",\"data\":[{\"id\":\"loopback\",\"object\":\"model\",\"owned_by\":\"runseal\"}]}",
        ),
        false => ("404 Not Found", ""),
    };
    let len = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len}\r\n\r\n{body}"
    )
}

/// Serves on `listener` until dropped.
async fn serve(listener: TcpListener, truths: Truths, others: Arc<Others>) {
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            continue;
        };
        let (truths, others) = (Arc::clone(&truths), Arc::clone(&others));
        tokio::spawn(async move {
            // A client that goes away ends its connection, nothing else.
            let _ = connection(socket, &truths, &others).await;
        });
    }
}

async fn connection(
    mut socket: TcpStream,
    truths: &Mutex<Vec<Truth>>,
    others: &Others,
) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut input = Vec::new();
    // Kept from one request to the next: a script seldom changes.
    let mut write: (u32, Vec<u8>) = (0, Vec::new());
    while let Some((head, body)) = request(&mut socket, &mut input).await? {
        let received = monotonic();
        let Some((id, script)) = Script::parse(&head).or_else(|| others.take(&head)) else {
            socket.write_all(document(&head).as_bytes()).await?;
            continue;
        };
        if write.0 != script.per_write {
            let events = event(TEXT, "null").repeat(script.per_write as usize);
            write = (script.per_write, coded(&events));
        }
        let mut start = HEAD.as_bytes().to_vec();
        start.extend(coded(&event(ROLE, "null")));
        socket.write_all(&start).await?;
        let (mut first, mut last, mut left) = (0, 0, script.chunks);
        while left > 0 {
            if script.pace_us > 0 {
                tokio::time::sleep(Duration::from_micros(script.pace_us)).await;
            } else if script.stepped {
                tokio::task::yield_now().await;
            }
            let n = left.min(script.per_write);
            let short =
                (n < script.per_write).then(|| coded(&event(TEXT, "null").repeat(n as usize)));
            last = monotonic();
            if first == 0 {
                first = last;
            }
            socket.write_all(short.as_ref().unwrap_or(&write.1)).await?;
            left -= n;
        }
        let usage = format!(
            "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":1,\"completion_tokens\":{}}}}}\n\n",
            script.chunks
        );
        let mut end = coded(&(event("", "\"stop\"") + &usage + "data: [DONE]\n\n"));
        end.extend_from_slice(b"0\r\n\r\n");
        truths
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Truth {
                id,
                received,
                first,
                last,
                body,
            });
        socket.write_all(&end).await?;
    }
    Ok(())
}

/// Reads one request: its head and the length of its body, which is thrown away.
async fn request(socket: &mut TcpStream, input: &mut Vec<u8>) -> io::Result<Option<(String, u64)>> {
    let head_len = loop {
        if let Some(at) = memchr::memmem::find(input, b"\r\n\r\n") {
            break at + 4;
        }
        input.reserve(8 << 10);
        if input.len() > 64 << 10 || socket.read_buf(input).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&input[..head_len]).into_owned();
    let body: u64 = head
        .lines()
        .filter_map(|l| l.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0);
    let mut left = (head_len as u64 + body).saturating_sub(input.len() as u64);
    let keep = input
        .len()
        .min(head_len + usize::try_from(body).unwrap_or(usize::MAX));
    input.drain(..keep);
    let mut piece = vec![0; usize::try_from(left.min(256 << 10)).unwrap_or(0)];
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        let n = socket.read(&mut piece[..most]).await?;
        if n == 0 {
            return Ok(None);
        }
        left -= n as u64;
    }
    Ok(Some((head, body)))
}

/// The server's process: see the module. `other` is what requests without a script
/// of their own get, numbered in the order in which they come.
pub fn serve_stdio(other: Option<Script>) -> io::Result<()> {
    // Its own share of descriptors; with fewer, connections are refused and seen.
    let _ = room_for(MOST_STREAMS);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let truths = Truths::default();
    let others = Arc::new(Others {
        script: other,
        next: AtomicU32::new(0),
    });
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("{}", listener.local_addr()?.port());
        io::stdout().flush()?;
        let server = tokio::spawn(serve(listener, Arc::clone(&truths), others));
        // Whoever started this process is gone when its end of the pipe is.
        let stdin = tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new()));
        let _ = stdin.await;
        server.abort();
        Ok::<_, io::Error>(())
    })?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    for truth in truths.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        serde_json::to_writer(&mut out, truth)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

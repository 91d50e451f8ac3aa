//! A loopback server that plays scripts, and the harness that runs the client
//! against it and holds every log to the same laws.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use runseal::digest::Sha256Digest;
use runseal::event::{Event, EventLine, Header};
use runseal::response::Response;
use runseal::trace::{Trace, Traces};
use runseal_runner::client::{
    AttemptSpec, Cancel, Client, Endpoint, Headers, Timeouts, run_closed_loop,
};
use runseal_runner::recorder::Recorder;

/// Anti-hang bound of everything in these tests.
pub const BOUND: Duration = Duration::from_secs(60);

/// What the server does next with a connection whose request it has read.
#[derive(Debug, Clone)]
pub enum Step {
    /// Writes bytes with one call.
    Send(Vec<u8>),
    /// Waits this many milliseconds.
    Sleep(u64),
    /// Closes the connection.
    Close,
    /// Resets the connection.
    Reset,
    /// Keeps the connection open and silent until the client closes it.
    Hold,
}

/// Text as a [`Step::Send`].
pub fn send(text: impl AsRef<[u8]>) -> Step {
    Step::Send(text.as_ref().to_vec())
}

/// Head of a streamed answer that ends when the connection closes.
pub const STREAM: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n";
/// Head of a streamed answer in chunked coding.
pub const CHUNKED: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
/// Last chunk of the chunked coding.
pub const LAST: &str = "0\r\n\r\n";

/// One chunk of the chunked coding.
pub fn chunk(data: impl AsRef<[u8]>) -> Vec<u8> {
    let data = data.as_ref();
    let mut out = format!("{:x}\r\n", data.len()).into_bytes();
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
    out
}

/// An event with a delta.
pub fn delta(fields: &str) -> String {
    format!(
        "data: {{\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{{{fields}}},\"finish_reason\":null}}]}}\n\n"
    )
}

/// An event with content.
pub fn content(text: &str) -> String {
    delta(&format!(
        "\"content\":{}",
        serde_json::to_string(text).unwrap()
    ))
}

/// An event with the finish reason `stop`.
pub const FINISH: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
/// An event with usage only: 7 prompt and 5 completion tokens.
pub const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5}}\n\n";
/// The end of a stream.
pub const DONE: &str = "data: [DONE]\n\n";

/// A whole streamed answer in one write, connection closed behind it.
pub fn stream(events: &[&str]) -> Vec<Step> {
    vec![send(format!("{STREAM}{}", events.concat())), Step::Close]
}

/// A request as the server saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Head, as text.
    pub head: String,
    /// Length of the body.
    pub body: usize,
}

/// The server.
pub struct Server {
    pub addr: SocketAddr,
    accepted: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<Seen>>>,
    stop: Arc<AtomicBool>,
}

impl Server {
    /// Plays `script(n)` for the n-th request it reads, from 0.
    pub fn start(script: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server {
            addr: listener.local_addr().unwrap(),
            accepted: Arc::default(),
            seen: Arc::default(),
            stop: Arc::default(),
        };
        let (accepted, seen, stop) = (
            Arc::clone(&server.accepted),
            Arc::clone(&server.seen),
            Arc::clone(&server.stop),
        );
        let script = Arc::new(script);
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(socket) = socket else { continue };
                accepted.fetch_add(1, Ordering::Relaxed);
                let (seen, script) = (Arc::clone(&seen), Arc::clone(&script));
                std::thread::spawn(move || serve(socket, &seen, &*script));
            }
        });
        server
    }

    /// Plays the same script for every request.
    pub fn playing(script: Vec<Step>) -> Self {
        Self::start(move |_| script.clone())
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Requests read so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.addr);
    }
}

fn serve(mut socket: TcpStream, seen: &Mutex<Vec<Seen>>, script: &dyn Fn(usize) -> Vec<Step>) {
    let _ = socket.set_nodelay(true);
    let _ = socket.set_read_timeout(Some(BOUND));
    while let Some(request) = read_request(&mut socket) {
        let n = {
            let mut seen = seen.lock().unwrap();
            seen.push(request);
            seen.len() - 1
        };
        for step in script(n) {
            match step {
                Step::Send(bytes) => {
                    if socket.write_all(&bytes).is_err() {
                        return;
                    }
                }
                Step::Sleep(ms) => std::thread::sleep(Duration::from_millis(ms)),
                Step::Close => {
                    let _ = socket.shutdown(Shutdown::Both);
                    return;
                }
                Step::Reset => {
                    let zero = Some(Duration::ZERO);
                    rustix::net::sockopt::set_socket_linger(&socket, zero).unwrap();
                    return;
                }
                Step::Hold => {
                    let _ = socket.read(&mut [0]);
                    return;
                }
            }
        }
    }
}

fn read_request(socket: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10];
    let head_len = loop {
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        match socket.read(&mut piece) {
            Ok(n) if n > 0 => bytes.extend_from_slice(&piece[..n]),
            _ => return None,
        }
    };
    let head = String::from_utf8(bytes[..head_len].to_vec()).unwrap();
    let body = head
        .lines()
        .find_map(|l| {
            l.to_ascii_lowercase()
                .strip_prefix("content-length: ")?
                .parse()
                .ok()
        })
        .unwrap_or(0usize);
    let mut have = bytes.len() - head_len;
    while have < body {
        match socket.read(&mut piece) {
            Ok(n) if n > 0 => have += n,
            _ => return None,
        }
    }
    Some(Seen { head, body })
}

/// An attempt number `req` at a server.
pub fn spec(req: u32, addr: SocketAddr) -> AttemptSpec {
    AttemptSpec {
        req,
        case: format!("case-{req}"),
        rep: 0,
        attempt: 0,
        warmup: false,
        endpoint: Endpoint {
            name: "r0".into(),
            addr,
            host_header: addr.to_string(),
            path: "/v1/chat/completions".into(),
        },
        body: Bytes::from_static(b"{\"stream\":true}"),
        salt: [req as u8; 32],
        timeouts: Timeouts {
            // Far past the bound: a limit that does not work shows as a hang.
            request: 10 * BOUND,
            ..Timeouts::default()
        },
        headers: Headers::default(),
    }
}

/// A client with a log of its own.
pub struct Bench {
    dir: tempfile::TempDir,
    pub client: Client,
}

impl Bench {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let header = Header {
            format: runseal::event::FORMAT.into(),
            run_id: "run".into(),
            nonce_hash: Sha256Digest([7; 32]),
            epoch: "2026-01-01T00:00:00Z".into(),
        };
        let path = dir.path().join("events.jsonl");
        let recorder = Recorder::create(&path, &header, Instant::now()).unwrap();
        Self {
            client: Client::new(recorder),
            dir,
        }
    }

    pub fn log_path(&self) -> PathBuf {
        self.dir.path().join("events.jsonl")
    }

    /// Runs attempts in a closed loop and closes the log.
    pub async fn run(self, specs: Vec<AttemptSpec>, concurrency: usize) -> Outcome {
        let never = Cancel::never();
        let work = run_closed_loop(&self.client, specs.clone(), concurrency, &never);
        let responses = tokio::time::timeout(BOUND, work).await.expect("hangs");
        let outcome = self.close(responses);
        assert_eq!(outcome.responses.len(), specs.len());
        for (spec, trace) in specs.iter().zip(&outcome.traces) {
            assert!(outcome.responses[trace.req as usize].check_body(trace, &spec.body));
        }
        outcome
    }

    /// Closes the log, reads it back and checks what must hold for every log.
    pub fn close(self, responses: Vec<Response>) -> Outcome {
        self.client.recorder().finish().unwrap();
        let text = std::fs::read_to_string(self.log_path()).unwrap();
        let lines: Vec<EventLine> = text
            .lines()
            .skip(1)
            .map(|l| runseal::json::from_slice(l.as_bytes()).unwrap())
            .collect();
        let outcome = Outcome {
            traces: lawful(&lines),
            lines,
            responses,
        };
        for response in &outcome.responses {
            let trace = &outcome.traces[response.req as usize];
            response.check(trace).unwrap();
        }
        outcome
    }
}

/// The laws of every log, whatever the server did.
fn lawful(lines: &[EventLine]) -> Vec<Trace> {
    let traces = Traces::build(lines);
    assert_eq!(traces.findings, [], "{lines:#?}");
    let mut ends = BTreeMap::<u32, u32>::new();
    let mut reads = BTreeMap::new();
    for (i, line) in lines.iter().enumerate() {
        assert_eq!(line.seq, i as u64 + 1);
        let Some(req) = line.event.req() else {
            continue;
        };
        match &line.event {
            Event::End { .. } => *ends.entry(req).or_default() += 1,
            Event::Read { read, .. } => {
                reads.insert((req, *read), line.t);
            }
            event => {
                if let Some(read) = event.read() {
                    assert_eq!(
                        reads[&(req, read)],
                        line.t,
                        "{event:?}: stamp of another read"
                    );
                }
            }
        }
    }
    assert_eq!(ends.len(), traces.requests.len());
    assert!(ends.values().all(|n| *n == 1));
    assert_eq!(lines.last().unwrap().event, Event::EndOfLog {});
    traces.requests
}

/// A closed log and the answers.
pub struct Outcome {
    pub lines: Vec<EventLine>,
    pub traces: Vec<Trace>,
    pub responses: Vec<Response>,
}

impl Outcome {
    /// The only attempt.
    pub fn one(self) -> (Trace, Response) {
        assert_eq!(self.traces.len(), 1);
        (self.traces[0].clone(), self.responses[0].clone())
    }
}

/// One attempt at a server.
pub async fn once(server: &Server) -> (Trace, Response) {
    Bench::new().run(vec![spec(0, server.addr)], 1).await.one()
}

/// One attempt at a server that plays `script`.
pub async fn play(script: Vec<Step>) -> (Trace, Response) {
    once(&Server::playing(script)).await
}

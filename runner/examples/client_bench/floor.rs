//! The bare socket reader: what reading costs when nothing is understood,
//! recorded or kept. One thread, one epoll set, one 64 KiB buffer.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use runseal_runner::selftest::load::{Cost, Load, Pattern};
use runseal_runner::selftest::process::{cpu_time, peak_rss_kib};
use runseal_runner::selftest::server::monotonic;
use rustix::event::epoll;

/// Number of the request and stamp of the read that held its first content.
pub type First = (u32, u64);

struct Stream {
    socket: TcpStream,
    req: u32,
    first: u64,
    /// Last bytes of the previous read, in case a mark lies across two.
    tail: [u8; 4],
}

/// Runs a workload.
pub fn run(load: &Load) -> io::Result<(Cost, Vec<First>)> {
    let before = (Instant::now(), cpu_time());
    let body = vec![b' '; load.body];
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut streams = Vec::new();
    let mut next = 0;
    let Pattern::Closed(concurrency) = load.pattern else {
        return Err(io::Error::other("the floor knows closed loops only"));
    };
    for i in 0..concurrency.min(load.requests as usize) {
        let socket = TcpStream::connect(load.addr)?;
        socket.set_nodelay(true)?;
        let mut stream = Stream {
            socket,
            req: 0,
            first: 0,
            tail: [0; 4],
        };
        send(&mut stream, load, next, &body)?;
        next += 1;
        stream.socket.set_nonblocking(true)?;
        let data = epoll::EventData::new_u64(i as u64);
        epoll::add(&set, &stream.socket, data, epoll::EventFlags::IN)?;
        streams.push(stream);
    }
    let (mut events, mut reads, mut open) = (0u64, 0u64, streams.len());
    let mut firsts = Vec::with_capacity(load.requests as usize);
    let mut buffer = vec![0; 64 << 10];
    let mut ready: Vec<epoll::Event> = Vec::with_capacity(1024);
    while open > 0 {
        ready.clear();
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut ready), None)?;
        for event in &ready {
            let stream = &mut streams[event.data.u64() as usize];
            let n = match stream.socket.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(e) => return Err(e),
            };
            let stamp = monotonic();
            reads += 1;
            let got = &buffer[..n];
            // The word of each content event; one that lies across two reads is
            // missed here, which only makes the floor's figure per event larger.
            let words = memchr::memmem::find_iter(got, b"\" word\"").count() as u64;
            events += words;
            if words > 0 && stream.first == 0 {
                stream.first = stamp;
            }
            let keep = n.min(4);
            stream.tail.rotate_left(keep);
            stream.tail[4 - keep..].copy_from_slice(&got[n - keep..]);
            if ends(got, &stream.tail) {
                firsts.push((stream.req, stream.first));
                if next < load.requests {
                    stream.socket.set_nonblocking(false)?;
                    send(stream, load, next, &body)?;
                    stream.socket.set_nonblocking(true)?;
                    next += 1;
                } else {
                    open -= 1;
                }
            }
        }
    }
    let cost = Cost {
        events,
        reads,
        wall_ns: before.0.elapsed().as_nanos() as u64,
        cpu_ns: cpu_time() - before.1,
        peak_rss_kib: peak_rss_kib().unwrap_or(0),
        lag_ns: [0; 3],
        epoch_ns: 0,
    };
    Ok((cost, firsts))
}

/// The end of the chunked coding. A chunk of events ends in an empty line too,
/// so the zero before it is looked at where it can be seen.
fn ends(got: &[u8], tail: &[u8; 4]) -> bool {
    tail == b"\r\n\r\n" && (got.len() < 5 || got.ends_with(b"0\r\n\r\n"))
}

fn send(stream: &mut Stream, load: &Load, req: u32, body: &[u8]) -> io::Result<()> {
    (stream.req, stream.first) = (req, 0);
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
         accept: text/event-stream\r\ncontent-length: {}\r\n\r\n",
        load.script.path(req),
        load.addr,
        body.len()
    );
    stream.socket.write_all(head.as_bytes())?;
    stream.socket.write_all(body)
}

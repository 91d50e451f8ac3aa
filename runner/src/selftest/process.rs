//! The server as a child process, and what a process itself has used.

use std::io::{self, BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::server::Truth;

/// A running [`super::server::serve_stdio`]. Dropping it ends it.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    out: BufReader<ChildStdout>,
    /// Where it listens.
    pub addr: SocketAddr,
}

impl ServerProcess {
    /// Starts the server that `command` runs.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut out = BufReader::new(out);
        let mut line = String::new();
        out.read_line(&mut line)?;
        let port: u16 = line
            .trim()
            .parse()
            .map_err(|_| io::Error::other("the loopback server did not say its port"))?;
        Ok(Self {
            child,
            out,
            addr: (Ipv4Addr::LOCALHOST, port).into(),
        })
    }

    /// Ends the server and returns what it did, in order of the requests' numbers.
    pub fn finish(mut self) -> io::Result<Vec<Truth>> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.out.read_to_string(&mut text)?;
        self.child.wait()?;
        let mut truths = text
            .lines()
            .map(|line| serde_json::from_str::<Truth>(line).map_err(io::Error::other))
            .collect::<io::Result<Vec<_>>>()?;
        truths.sort_by_key(|t| t.id);
        Ok(truths)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It has no reason left to live; a failure means that it is dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processor time that this process has used so far, in nanoseconds.
pub fn cpu_time() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    (t.tv_sec as u64) * 1_000_000_000 + t.tv_nsec as u64
}

/// Largest resident size of this process so far, in KiB; `None` where the system
/// does not say.
pub fn peak_rss_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

//! A serving process: start it, look at what really runs, end it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use runseal::digest::Sha256Digest;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Exit code.
    pub code: Option<i32>,
    /// Signal number.
    pub signal: Option<i32>,
}

/// A serving process that said it listens.
pub struct Rank {
    /// Replica it serves.
    pub replica: String,
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Where it listens.
    pub addr: SocketAddr,
    /// How it ended, once it has.
    pub exit: watch::Receiver<Option<Exit>>,
    /// Set before we end it ourselves.
    pub ending: Arc<AtomicBool>,
    /// Closing it tells the process that we are gone.
    _stdin: Option<ChildStdin>,
}

/// A process that did not come up.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The system would not start it.
    #[error("could not start {program}: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// It ended, said something else, or said nothing in time.
    #[error(
        "the engine of {replica} did not come up: {why} (hint: see engine/{replica}.log in the bundle)"
    )]
    NotUp {
        /// The replica.
        replica: String,
        /// What happened.
        why: String,
    },
    /// The run was asked to end meanwhile; the process was ended.
    #[error("the launch of {0} was interrupted")]
    Interrupted(String),
}

#[derive(Deserialize)]
struct Announcement {
    listening: SocketAddr,
    pid: u32,
}

/// Starts a rank and waits until it announces its port. Its standard error goes
/// to `log`. When `asked_to_end` resolves first, the process is ended and waited
/// for, like every process that does not come up.
pub async fn launch(
    replica: &str,
    argv: &[String],
    env: &BTreeMap<String, String>,
    log: File,
    limit: Duration,
    asked_to_end: impl Future<Output = ()>,
) -> Result<Rank, LaunchError> {
    let not_up = |why: String| LaunchError::NotUp {
        replica: replica.to_owned(),
        why,
    };
    let (program, args) = argv
        .split_first()
        .ok_or_else(|| not_up("its argument list is empty".into()))?;
    let mut child = Command::new(program)
        .args(args)
        .env_clear()
        .envs(env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::from(log))
        // Its own group: a Ctrl-C at the terminal is ours to handle, so that
        // the order of events stays collect, then teardown.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| LaunchError::Spawn {
            program: program.clone(),
            source,
        })?;
    let stdin = child.stdin.take();
    let stdout = child
        .stdout
        .take()
        .ok_or_else(|| not_up("it has no output".into()))?;
    let pid = child
        .id()
        .ok_or_else(|| not_up("it ended at once".into()))?;
    let mut line = String::new();
    let mut reader = BufReader::new(stdout);
    let read = tokio::select! {
        biased;
        () = asked_to_end => {
            end_child(&mut child).await;
            return Err(LaunchError::Interrupted(replica.to_owned()));
        }
        read = tokio::time::timeout(limit, reader.read_line(&mut line)) => read,
    };
    let announced = match read {
        Err(_) => Err(format!("it said nothing for {} ms", limit.as_millis())),
        Ok(Err(e)) => Err(e.to_string()),
        Ok(Ok(0)) => Err("it ended without a word".into()),
        Ok(Ok(_)) => serde_json::from_str::<Announcement>(&line)
            .map_err(|_| format!("it said {:?}", line.trim_end()))
            .and_then(|a| {
                if a.pid == pid {
                    Ok(a)
                } else {
                    Err(format!("it claims to be process {}, not {pid}", a.pid))
                }
            }),
    };
    let announced = match announced {
        Ok(a) => a,
        Err(why) => {
            end_child(&mut child).await;
            return Err(not_up(why));
        }
    };
    let Some(start_ticks) = start_ticks(pid) else {
        end_child(&mut child).await;
        return Err(not_up("its start time could not be read".into()));
    };
    let (tx, exit) = watch::channel(None);
    tokio::spawn(async move {
        // Keeping the reader keeps the pipe open, so that a later word on
        // standard output does not kill the process.
        let _reader = reader;
        let status = child.wait().await;
        tx.send_replace(Some(match status {
            Ok(s) => Exit {
                code: s.code(),
                signal: std::os::unix::process::ExitStatusExt::signal(&s),
            },
            Err(_) => Exit {
                code: None,
                signal: None,
            },
        }));
    });
    Ok(Rank {
        replica: replica.to_owned(),
        pid,
        start_ticks,
        addr: announced.listening,
        exit,
        ending: Arc::new(AtomicBool::new(false)),
        _stdin: stdin,
    })
}

async fn end_child(child: &mut Child) {
    // It may be gone already; either way it is reaped.
    let _ = child.start_kill();
    let _ = tokio::time::timeout(Duration::from_secs(5), child.wait()).await;
}

impl Rank {
    /// True while the process that was started still runs.
    pub fn alive(&self) -> bool {
        self.exit.borrow().is_none() && start_ticks(self.pid) == Some(self.start_ticks)
    }

    /// Asks it to end, insists after `grace`, and says how it ended. `None` when
    /// it would not die.
    pub fn end(&self, grace: Duration) -> impl Future<Output = Option<Exit>> + Send + 'static {
        self.ending.store(true, Ordering::SeqCst);
        let (mut exit, pid) = (self.exit.clone(), self.pid);
        async move {
            for signal in [Signal::TERM, Signal::KILL] {
                if let Some(exit) = *exit.borrow() {
                    return Some(exit);
                }
                // Only the process that we started: the watcher has not reaped
                // it, so its pid cannot belong to another.
                if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                    let _ = kill_process(pid, signal);
                }
                let ended = tokio::time::timeout(grace, exit.wait_for(Option::is_some)).await;
                if let Ok(Ok(exit)) = ended {
                    return *exit;
                }
            }
            None
        }
    }
}

/// Start time of a process in clock ticks since boot, field 22 of its stat.
/// `None` when there is no such process, or only what is left of one that ended.
pub fn start_ticks(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, so count from its end.
    let after = text.get(text.rfind(')')? + 2..)?;
    if after.starts_with(['Z', 'X']) {
        return None;
    }
    after.split(' ').nth(19)?.parse().ok()
}

/// What the system says of a running process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// SHA-256 of the executable it runs.
    pub executable: Sha256Digest,
    /// Its arguments; the first is replaced by `{executable}`.
    pub argv: Vec<String>,
    /// Its environment.
    pub env: BTreeMap<String, String>,
}

/// Looks at a running process.
pub fn observe(pid: u32) -> io::Result<Observed> {
    let proc = Path::new("/proc").join(pid.to_string());
    let mut hash = Sha256::new();
    io::copy(
        &mut File::open(proc.join("exe"))?,
        &mut HashWriter(&mut hash),
    )?;
    let split = |bytes: Vec<u8>| -> Vec<String> {
        bytes
            .split(|b| *b == 0)
            .map(|s| String::from_utf8_lossy(s).into_owned())
            .collect()
    };
    let mut argv = split(std::fs::read(proc.join("cmdline"))?);
    // Every argument ends with a NUL, so the last piece is empty.
    argv.pop();
    if let Some(first) = argv.first_mut() {
        *first = "{executable}".into();
    }
    let env = split(std::fs::read(proc.join("environ"))?)
        .into_iter()
        .filter_map(|v| v.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())))
        .collect();
    Ok(Observed {
        executable: Sha256Digest(hash.finalize().into()),
        argv,
        env,
    })
}

struct HashWriter<'a>(&'a mut Sha256);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.update(buf);
        Ok(buf.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

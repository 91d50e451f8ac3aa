//! The node's side: serves one caller over stdin and stdout, until stdin ends.

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::lock;
use super::protocol::{self, Hello, MAX_LARGE, Message, MessageError, Request};
use crate::keys::SigningKey;
use crate::node_facts::collect::collect;
use crate::relpath::RelPath;
use crate::weights::{
    At, Pace, Progress, ReportContext, Request as Rehash, Since, Wanted, rehash_each, report_bytes,
    second_look, sign_report,
};

/// How often a hashing agent says that it is alive.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Why the agent gave up.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The caller sent something else than a request.
    #[error("the caller does not speak this protocol: {0}")]
    Caller(MessageError),
    /// The caller is gone.
    #[error("the caller is gone: {0}")]
    Gone(#[from] io::Error),
}

/// Serves requests until the input ends. `key` signs the reports; `now` is the
/// clock, RFC 3339 in UTC.
pub fn serve(
    input: &mut impl BufRead,
    output: &mut (impl Write + Send),
    hello: Hello,
    key: Option<&SigningKey>,
    now: &(dyn Fn() -> String + Sync),
) -> Result<(), AgentError> {
    let boot_id = hello.boot_id.clone();
    let output = Mutex::new(output);
    let say = |message: &Message| {
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        protocol::write(&mut **output, message)
    };
    say(&Message::Hello(hello))?;
    // Locks of clusters, for as long as the caller stays.
    let mut held = Vec::new();
    loop {
        match protocol::read(input, MAX_LARGE) {
            Ok(Message::Rehash(request)) => {
                let answer = with_heartbeat(&say, |counter| {
                    answer(*request, &boot_id, key, now, counter)
                })?;
                say(&answer)?;
            }
            Ok(Message::Clock { sent_us }) => {
                let received_us = unix_us();
                say(&Message::Time {
                    sent_us,
                    received_us,
                    answered_us: unix_us(),
                })?;
            }
            Ok(Message::Lock(request)) => {
                let now_s = unix_us() / 1_000_000;
                say(&match lock::take(&lock::folder(), &request, now_s) {
                    Ok(lock::Taken::Held(file)) => {
                        held.push(file);
                        Message::Locked
                    }
                    Ok(lock::Taken::Busy(holder)) => Message::Busy(holder),
                    Err(e) => Message::Refused {
                        reason: format!("the lock: {e}"),
                    },
                })?;
            }
            Ok(Message::Look(wanted)) => {
                let answer = with_heartbeat(&say, |_| Message::Facts(Box::new(collect(&wanted))))?;
                say(&answer)?;
            }
            Ok(_) => say(&Message::Refused {
                reason: "only rehash, clock, lock and look can be asked for".to_owned(),
            })?,
            Err(MessageError::Ended) => return Ok(()),
            Err(e) => {
                let reason = e.to_string();
                say(&Message::Refused { reason })?;
                return Err(AgentError::Caller(e));
            }
        }
    }
}

/// This machine's clock, in microseconds since the Unix epoch.
pub(super) fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX))
}

/// Works, and says every half second how far it is. When the caller no longer
/// listens the process ends: nobody wants the rest, and the disk is needed.
fn with_heartbeat(
    say: &(impl Fn(&Message) -> io::Result<()> + Sync),
    work: impl FnOnce(&Counter) -> Message,
) -> io::Result<Message> {
    let counter = Counter::default();
    std::thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel::<()>();
        let beat = scope.spawn({
            let counter = &counter;
            move || {
                let mut planned = false;
                while stopped.recv_timeout(HEARTBEAT) == Err(mpsc::RecvTimeoutError::Timeout) {
                    let messages = counter.messages(&mut planned);
                    if messages.iter().any(|m| say(m).is_err()) {
                        std::process::exit(1);
                    }
                }
            }
        });
        let answer = work(&counter);
        drop(stop);
        // A heartbeat that panicked is no reason to withhold the answer.
        let _ = beat.join();
        Ok(answer)
    })
}

#[derive(Default)]
struct Counter {
    files: AtomicU64,
    planned: AtomicU64,
    done: AtomicU64,
}

impl Counter {
    fn messages(&self, planned: &mut bool) -> Vec<Message> {
        let mut out = Vec::new();
        let files = self.files.load(Relaxed);
        if !*planned && files > 0 {
            *planned = true;
            let bytes = self.planned.load(Relaxed);
            let files = usize::try_from(files).unwrap_or(usize::MAX);
            out.push(Message::Planned { files, bytes });
        }
        let bytes = self.done.load(Relaxed);
        out.push(Message::Progress { bytes });
        out
    }
}

impl Progress for Counter {
    fn planned(&self, files: usize, bytes: u64) {
        self.planned.store(bytes, Relaxed);
        self.files.store(files as u64, Relaxed);
    }

    fn read(&self, _: &RelPath, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
    }
}

fn answer(
    request: Request,
    boot_id: &str,
    key: Option<&SigningKey>,
    now: &(dyn Fn() -> String + Sync),
    progress: &dyn Progress,
) -> Message {
    let manifest = match request.expected.listing() {
        Ok(manifest) => manifest,
        Err(e) => {
            let reason = format!("the manifest: {e}");
            return Message::Refused { reason };
        }
    };
    let since = request
        .since
        .as_ref()
        .map(|report| Since { report, boot_id });
    let started = now();
    let path = Path::new(&request.path);
    let wanted = Wanted {
        asked: request.revision.as_deref(),
        pinned: manifest.revision(),
    };
    let pace = Pace {
        jobs: request.jobs,
        bytes_per_second: request.bytes_per_second,
    };
    let rehash = Rehash {
        since,
        ..Rehash::compare(
            At::Path(path, wanted),
            &manifest,
            request.algorithm,
            progress,
        )
    };
    let scan = match rehash_each(vec![rehash], pace, |_, scan| scan).pop() {
        Some(Ok(scan)) => scan,
        Some(Err(e)) => {
            let (code, reason) = (e.0.code(), e.to_string());
            return Message::Unreachable { code, reason };
        }
        None => {
            let reason = "nothing was rehashed".to_owned();
            return Message::Refused { reason };
        }
    };
    let report = scan.into_report(
        &manifest,
        ReportContext {
            replica: request.replica,
            role: request.role,
            run_id: request.run_id,
            nonce_hash: request.nonce_hash,
            plan_digest: request.plan_digest,
            boot_id: boot_id.to_owned(),
            started,
            finished: now(),
        },
    );
    let report = second_look(path, report, now);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).map_err(|e| e.to_string());
    let envelope = key.map(|key| text(sign_report(&report, key))).transpose();
    match (text(report_bytes(&report)), envelope) {
        (Ok(report), Ok(envelope)) => Message::Report { report, envelope },
        // Canonical JSON is text; said and not assumed.
        (Err(reason), _) | (_, Err(reason)) => Message::Refused { reason },
    }
}

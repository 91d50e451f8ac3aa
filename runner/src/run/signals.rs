//! Signals that end a run in order: SIGINT, SIGTERM, and SIGHUP unless the run
//! was started to outlive its terminal (`nohup`).
//!
//! SIGXFSZ is taken too and otherwise ignored: by default a file that meets the
//! limit on file sizes kills the process, and with a handler in place the write
//! fails instead, which is an error like a full disk.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The first signal that asked the run to end.
pub type Asked = watch::Receiver<Option<&'static str>>;

/// Number of SIGXFSZ on Linux (all of x86-64, arm64, riscv64).
const XFSZ: i32 = 25;
/// Number of SIGHUP.
const HUP: u32 = 1;

/// Watches for the rest of the program's life.
pub fn watch() -> io::Result<Asked> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = match ignored(HUP) {
        true => None,
        false => Some(signal(SignalKind::hangup())?),
    };
    let mut too_large = signal(SignalKind::from_raw(XFSZ))?;
    let (tx, rx) = watch::channel(None);
    tokio::spawn(async move {
        loop {
            let hung_up = async {
                match &mut hangup {
                    Some(h) => h.recv().await,
                    None => std::future::pending().await,
                }
            };
            let name = tokio::select! {
                // Of several at once always the same one.
                biased;
                _ = interrupt.recv() => "SIGINT",
                _ = terminate.recv() => "SIGTERM",
                _ = hung_up => "SIGHUP",
                _ = too_large.recv() => continue,
            };
            // The first one counts; ending is bounded in time, so there is
            // nothing for a second one to hurry.
            tx.send_if_modified(|s| s.is_none().then(|| *s = Some(name)).is_some());
        }
    });
    Ok(rx)
}

/// Resolves with the signal's name once one has arrived.
pub async fn arrived(mut asked: Asked) -> &'static str {
    match asked.wait_for(Option::is_some).await.map(|n| *n) {
        Ok(Some(name)) => name,
        // The watching task ends only with the runtime.
        _ => std::future::pending().await,
    }
}

/// True when the parent had this signal ignored.
fn ignored(number: u32) -> bool {
    let Ok(text) = std::fs::read_to_string("/proc/self/status") else {
        return false;
    };
    let mask = text
        .lines()
        .find_map(|l| l.strip_prefix("SigIgn:"))
        .and_then(|v| u64::from_str_radix(v.trim(), 16).ok());
    mask.is_some_and(|m| m >> (number - 1) & 1 == 1)
}

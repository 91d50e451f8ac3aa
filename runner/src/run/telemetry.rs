//! Samples of the machine during the measurement, twice a second.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use runseal::bundle::evidence::json_bytes;
use runseal::bundle::files::TelemetryLine;
use runseal::event::Event;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::facts;
use crate::client::Canceller;
use crate::recorder::Recorder;

const EVERY: Duration = Duration::from_millis(500);
/// A longer pause between samples is a gap, recorded as an event.
const GAP: Duration = Duration::from_secs(2);

/// The sampling task.
pub struct Telemetry {
    stop: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Telemetry {
    /// Appends samples to the telemetry file, whose header is already there. The
    /// nodes are aliases of this machine. A sample that cannot be written ends the
    /// run through `canceller`.
    pub fn start(
        path: &Path,
        nodes: BTreeSet<String>,
        recorder: Recorder,
        canceller: Arc<Canceller>,
    ) -> std::io::Result<Self> {
        let file = File::options().append(true).open(path)?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let result = sample(file, nodes, recorder, stopped).await;
            if result.is_err() {
                canceller.cancel();
            }
            result
        });
        Ok(Self { stop, task })
    }

    /// Takes a last sample and ends.
    pub async fn stop(self) -> std::io::Result<()> {
        // The task ends by itself only when a write failed; its result says so.
        let _ = self.stop.send(());
        self.task
            .await
            .unwrap_or_else(|e| Err(std::io::Error::other(e)))
    }
}

async fn sample(
    mut file: File,
    nodes: BTreeSet<String>,
    recorder: Recorder,
    mut stopped: oneshot::Receiver<()>,
) -> std::io::Result<()> {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = recorder.now();
    loop {
        let ending = tokio::select! {
            _ = ticks.tick() => false,
            _ = &mut stopped => true,
        };
        let t = recorder.now();
        let pause = Duration::from_nanos(t - last);
        last = t;
        for node in &nodes {
            if pause > GAP {
                let event = Event::Gap {
                    node: node.clone(),
                    ms: pause.as_millis() as u64,
                };
                recorder.emit(t, &event);
            }
            let line = TelemetryLine {
                t,
                node: node.clone(),
                mem_available: facts::meminfo("MemAvailable"),
                load1_milli: facts::load1_milli(),
                cpu_busy_ticks: facts::cpu_busy_ticks(),
            };
            // One write per line, so that a full disk leaves no torn line behind
            // a whole one.
            let at = file.metadata()?.len();
            if let Err(e) = file.write_all(&json_bytes(&line)) {
                file.set_len(at)?;
                return Err(e);
            }
        }
        if ending {
            return file.sync_all();
        }
    }
}

use super::*;
use runseal::digest::Sha256Digest;
use runseal::event::{DeltaKind, EventLine, State as RunState, to_line};
use std::sync::atomic::{AtomicBool, Ordering};

fn header() -> Header {
    Header {
        format: runseal::event::FORMAT.into(),
        run_id: "r".into(),
        nonce_hash: Sha256Digest([0; 32]),
        epoch: "2026-01-01T00:00:00Z".into(),
    }
}

fn state() -> Event {
    Event::State {
        state: RunState::Measure,
    }
}

/// Keeps what it is given and refuses everything past `room`.
struct Small {
    kept: Arc<Mutex<Vec<u8>>>,
    room: usize,
}

impl Sink for Small {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut kept = self.kept.lock().unwrap();
        let n = bytes.len().min(self.room - kept.len());
        if n == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        kept.extend_from_slice(&bytes[..n]);
        Ok(n)
    }
    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.kept.lock().unwrap().truncate(len as usize);
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn lines_are_what_the_format_says_and_count_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let recorder = Recorder::create(&path, &header(), Instant::now()).unwrap();
    let events = [
        state(),
        Event::Delta {
            req: 3,
            read: 4,
            ev: 5,
            kind: DeltaKind::Content,
            len: 6,
            digest: "ab".into(),
        },
        Event::Finish {
            req: 3,
            read: 4,
            reason: "a\n\"b\u{1}é".into(),
        },
        Event::Usage {
            req: 3,
            read: 4,
            prompt: None,
            completion: Some(1),
            reasoning: None,
            cached: Some(0),
        },
    ];
    for (i, event) in events.iter().enumerate() {
        recorder.emit(i as u64, event);
    }
    recorder.finish().unwrap();
    recorder.emit(9, &state());
    recorder.finish().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], serde_json::to_string(&header()).unwrap());
    for (i, event) in events.iter().enumerate() {
        let line = EventLine {
            seq: i as u64 + 1,
            t: i as u64,
            event: event.clone(),
        };
        assert_eq!(lines[i + 1], to_line(&line));
    }
    let last: EventLine = serde_json::from_str(lines[events.len() + 1]).unwrap();
    assert_eq!((last.seq, last.event), (5, Event::EndOfLog {}));
    assert_eq!(lines.len(), events.len() + 2);
    assert!(text.ends_with('\n'));
}

#[test]
fn an_existing_log_is_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    std::fs::write(&path, "old").unwrap();
    assert!(Recorder::create(&path, &header(), Instant::now()).is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
}

#[test]
fn a_flush_makes_everything_so_far_readable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let recorder = Recorder::create(&path, &header(), Instant::now()).unwrap();
    for t in 0..1000 {
        recorder.emit(t, &Event::ConnectStart { req: 0 });
    }
    recorder.flush().unwrap();
    assert_eq!(
        std::fs::read_to_string(&path).unwrap().lines().count(),
        1001
    );
    drop(recorder);
    // Not finished, so nothing says that the log is complete.
    assert!(
        !std::fs::read_to_string(&path)
            .unwrap()
            .contains("end_of_log")
    );
}

#[test]
fn a_full_disk_is_said_and_leaves_only_whole_lines() {
    for room in [0, 10, 200, 333, 700, 1001] {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let sink = Small {
            kept: Arc::clone(&kept),
            room,
        };
        let recorder = Recorder::over(
            Box::new(sink),
            Path::new("x/events.jsonl"),
            &header(),
            Instant::now(),
        )
        .unwrap();
        for t in 0..100 {
            recorder.emit(t, &state());
            if t % 7 == 0 {
                let _ = recorder.flush();
            }
        }
        assert!(recorder.flush().is_err());
        assert!(recorder.failed().unwrap().contains("storage"), "{room}");
        assert!(recorder.finish().is_err());
        let kept = kept.lock().unwrap();
        assert!(kept.is_empty() || kept.ends_with(b"\n"), "{room}");
        assert!(kept.len() <= room);
        let text = String::from_utf8(kept.clone()).unwrap();
        for (i, line) in text.lines().enumerate().skip(1) {
            let line: EventLine = serde_json::from_str(line).unwrap();
            assert_eq!(line.seq, i as u64);
            assert_ne!(line.event, Event::EndOfLog {});
        }
    }
}

#[test]
fn many_tasks_share_one_gapless_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let recorder = Recorder::create(&path, &header(), Instant::now()).unwrap();
    let go = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for req in 0..4u32 {
            let recorder = recorder.clone();
            let go = &go;
            scope.spawn(move || {
                while !go.load(Ordering::Relaxed) {}
                for t in 0..2000 {
                    recorder.emit(t, &Event::Send { req });
                }
            });
        }
        go.store(true, Ordering::Relaxed);
    });
    recorder.finish().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let mut next = [0u64; 4];
    for (i, line) in text.lines().skip(1).enumerate() {
        let line: EventLine = serde_json::from_str(line).unwrap();
        assert_eq!(line.seq, i as u64 + 1);
        if let Event::Send { req } = line.event {
            assert_eq!(line.t, next[req as usize]);
            next[req as usize] += 1;
        }
    }
    assert_eq!(next, [2000; 4]);
}

//! The lines in the file are those of the format's own writer, byte for byte.

use std::time::Instant;

use proptest::prelude::*;
use runseal::digest::Sha256Digest;
use runseal::event::{DeltaHasher, DeltaKind, Event, EventLine, Header, delta_digest, to_line};
use runseal_runner::recorder::{Batch, Recorder};

fn kind() -> impl Strategy<Value = DeltaKind> {
    prop::sample::select(vec![
        DeltaKind::Empty,
        DeltaKind::Reasoning,
        DeltaKind::Content,
        DeltaKind::Tool,
    ])
}

/// Numbers of every length.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0u32..64).prop_map(|(n, shift)| n >> shift)
}

fn event() -> impl Strategy<Value = Event> {
    let small = || number().prop_map(|n| n as u32);
    let maybe = || prop::option::of(number());
    prop_oneof![
        (small(), small(), number()).prop_map(|(req, read, bytes)| Event::Read {
            req,
            read,
            bytes
        }),
        (
            small(),
            small(),
            small(),
            kind(),
            number(),
            "[0-9a-f]{32}|\\PC{0,3}|\""
        )
            .prop_map(|(req, read, ev, kind, len, digest)| Event::Delta {
                req,
                read,
                ev,
                kind,
                len,
                digest
            }),
        (small(), small(), maybe(), maybe(), maybe(), maybe()).prop_map(
            |(req, read, prompt, completion, reasoning, cached)| Event::Usage {
                req,
                read,
                prompt,
                completion,
                reasoning,
                cached
            }
        ),
        (small(), small(), "\\PC{0,8}").prop_map(|(req, read, reason)| Event::Finish {
            req,
            read,
            reason
        }),
    ]
}

/// What the recorder makes of events and of deltas with digests still in bytes.
fn written(batch: &mut Batch) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let header = Header {
        epoch: "2026-01-01T00:00:00Z".into(),
        format: runseal::event::FORMAT.into(),
        nonce_hash: Sha256Digest([0; 32]),
        run_id: "run".into(),
    };
    let recorder = Recorder::create(&path, &header, Instant::now()).unwrap();
    recorder.submit(batch);
    recorder.finish().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines: Vec<_> = text.lines().skip(1).map(str::to_owned).collect();
    assert!(lines.pop().unwrap().contains("end_of_log"));
    lines
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn lines_are_those_of_the_format(events in prop::collection::vec((number(), event()), 1..40)) {
        let mut batch = Batch::default();
        for (t, event) in &events {
            batch.push(*t, event);
        }
        let want: Vec<_> = (1..)
            .zip(events)
            .map(|(seq, (t, event))| to_line(&EventLine { seq, t, event }))
            .collect();
        prop_assert_eq!(written(&mut batch), want);
    }

    #[test]
    fn deltas_by_the_short_way_are_the_same(
        salt in any::<[u8; 32]>(),
        deltas in prop::collection::vec((number(), any::<[u32; 3]>(), kind(), "\\PC{0,200}"), 1..20),
    ) {
        let hasher = DeltaHasher::new(&salt);
        let mut batch = Batch::default();
        let mut want = Vec::new();
        for (seq, (t, [req, read, ev], kind, text)) in (1..).zip(deltas) {
            let len = text.len() as u64;
            let digest = hasher.digest(ev, kind, text.as_bytes());
            batch.push_delta(t, [req, read, ev], kind, len, digest);
            let digest = delta_digest(&salt, ev, kind, text.as_bytes());
            let event = Event::Delta { req, read, ev, kind, len, digest };
            want.push(to_line(&EventLine { seq, t, event }));
        }
        prop_assert_eq!(written(&mut batch), want);
    }
}

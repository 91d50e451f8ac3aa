//! From events to lives and transport states: every rule, and every life that
//! cannot have been lived.

use runseal::digest::Sha256Digest;
use runseal::event::{DeltaKind, EndCause, Event, EventLine, Oddity};
use runseal::trace::{Trace, Traces, Transport};

const END: [EndCause; 9] = [
    EndCause::Done,
    EndCause::Eof,
    EndCause::ConnectError,
    EndCause::IoError,
    EndCause::Malformed,
    EndCause::RequestTimeout,
    EndCause::FirstTokenTimeout,
    EndCause::StallTimeout,
    EndCause::Cancelled,
];

/// Numbers and stamps events: 10 ns apart, parts of an answer at their read.
fn lines(events: &[Event]) -> Vec<EventLine> {
    let mut t = 0;
    let number = |(i, event): (usize, &Event)| {
        if event.read().is_none() || matches!(event, Event::Read { .. }) {
            t += 10;
        }
        EventLine {
            seq: i as u64 + 1,
            t,
            event: event.clone(),
        }
    };
    events.iter().enumerate().map(number).collect()
}

fn trace(events: &[Event]) -> Result<Trace, String> {
    let traces = Traces::build(&lines(events));
    match traces.findings.first() {
        Some(f) => Err(f.detail.clone()),
        None => Ok(traces.requests[0].clone()),
    }
}

fn transport(events: &[Event]) -> Transport {
    trace(events).unwrap().transport()
}

fn queued() -> Event {
    Event::Queued {
        req: 0,
        case: "c".into(),
        rep: 0,
        attempt: 0,
        warmup: false,
        endpoint: "e".into(),
    }
}

fn body() -> Event {
    Event::Body {
        req: 0,
        len: 2,
        digest: Sha256Digest([0; 32]),
    }
}

fn start() -> Event {
    Event::ConnectStart { req: 0 }
}

fn connected(reused: bool) -> Event {
    Event::Connected {
        req: 0,
        reused,
        peer: "127.0.0.1:8000".into(),
    }
}

fn send() -> Event {
    Event::Send { req: 0 }
}

fn read(read: u32) -> Event {
    Event::Read {
        req: 0,
        read,
        bytes: 200,
    }
}

fn head(status: u16, event_stream: bool) -> Event {
    Event::Headers {
        req: 0,
        read: 1,
        status,
        event_stream,
    }
}

fn delta(ev: u32, kind: DeltaKind, len: u64) -> Event {
    Event::Delta {
        req: 0,
        read: 1,
        ev,
        kind,
        len,
        digest: "0".repeat(32),
    }
}

fn finish(reason: &str) -> Event {
    Event::Finish {
        req: 0,
        read: 1,
        reason: reason.into(),
    }
}

fn done() -> Event {
    Event::Done { req: 0, read: 1 }
}

fn error() -> Event {
    Event::Error {
        req: 0,
        read: 1,
        len: 3,
        digest: "0".repeat(32),
    }
}

fn usage(completion: Option<u64>, reasoning: Option<u64>) -> Event {
    Event::Usage {
        req: 0,
        read: 1,
        prompt: Some(0),
        completion,
        reasoning,
        cached: None,
    }
}

fn end(cause: EndCause) -> Event {
    Event::End { req: 0, cause }
}

/// An attempt up to and with its send.
fn sent() -> Vec<Event> {
    vec![queued(), body(), start(), connected(false), send()]
}

/// An event stream with these parts.
fn stream(parts: &[Event]) -> Vec<Event> {
    let mut events = [&sent()[..], &[read(1), head(200, true)]].concat();
    events.extend_from_slice(parts);
    events
}

#[test]
fn a_finish_reason_and_a_clean_end_complete() {
    let text = delta(1, DeltaKind::Content, 3);
    for cause in [EndCause::Done, EndCause::Eof] {
        let mut events = stream(&[text.clone(), finish("stop")]);
        if cause == EndCause::Done {
            events.push(done());
        }
        events.push(end(cause));
        assert_eq!(transport(&events), Transport::Completed);
    }
    // A finish reason, and then the connection broke.
    for (cause, want) in [
        (EndCause::IoError, Transport::Truncated),
        (EndCause::Malformed, Transport::StreamError),
        (EndCause::StallTimeout, Transport::Timeout),
        (EndCause::RequestTimeout, Transport::Timeout),
        (EndCause::Cancelled, Transport::Cancelled),
    ] {
        let events = stream(&[text.clone(), finish("stop"), end(cause)]);
        assert_eq!(transport(&events), want, "{cause:?}");
    }
    // No end at all: cut off with the run.
    assert_eq!(
        transport(&stream(&[text, finish("stop")])),
        Transport::Cancelled
    );
}

#[test]
fn no_finish_reason_is_no_success() {
    let text = delta(1, DeltaKind::Content, 3);
    let events = stream(&[text.clone(), done(), end(EndCause::Done)]);
    assert_eq!(transport(&events), Transport::Truncated);
    assert_eq!(
        transport(&stream(&[text, end(EndCause::Eof)])),
        Transport::Truncated
    );
}

/// vLLM and SGLang end a request that died inside the server with a reason of its
/// own, status 200 and `[DONE]`.
#[test]
fn a_request_that_died_inside_the_server_did_not_complete() {
    for reason in ["error", "abort", "cancelled", "timeout"] {
        let events = stream(&[finish(reason), done(), end(EndCause::Done)]);
        assert_eq!(transport(&events), Transport::StreamError, "{reason}");
    }
    for reason in ["stop", "length", "tool_calls", "content_filter"] {
        let events = stream(&[finish(reason), done(), end(EndCause::Done)]);
        assert_eq!(transport(&events), Transport::Completed, "{reason}");
    }
}

#[test]
fn errors_in_a_stream_and_other_answers() {
    let events = stream(&[error(), finish("stop"), done(), end(EndCause::Done)]);
    assert_eq!(transport(&events), Transport::StreamError);
    for (status, event_stream, want) in [
        (200, false, Transport::StreamError),
        (204, true, Transport::Truncated),
        (301, true, Transport::HttpError),
        (404, false, Transport::HttpError),
        (503, true, Transport::HttpError),
    ] {
        let events = [
            &sent()[..],
            &[read(1), head(status, event_stream), end(EndCause::Eof)],
        ]
        .concat();
        assert_eq!(transport(&events), want, "{status}");
    }
}

/// Nothing came that could be called an answer.
#[test]
fn before_the_head() {
    for (cause, want) in [
        (EndCause::Eof, Transport::Truncated),
        (EndCause::IoError, Transport::Truncated),
        (EndCause::Malformed, Transport::StreamError),
        (EndCause::ConnectError, Transport::ConnectError),
        (EndCause::FirstTokenTimeout, Transport::Timeout),
        (EndCause::Cancelled, Transport::Cancelled),
    ] {
        let events = [&sent()[..], &[end(cause)]].concat();
        assert_eq!(transport(&events), want, "{cause:?}");
    }
}

#[test]
fn before_the_send() {
    for (cause, want) in [
        (EndCause::ConnectError, Transport::ConnectError),
        (EndCause::IoError, Transport::ConnectError),
        (EndCause::Malformed, Transport::ConnectError),
        (EndCause::RequestTimeout, Transport::Timeout),
        (EndCause::Cancelled, Transport::Cancelled),
    ] {
        let events = [queued(), body(), start(), end(cause)];
        assert_eq!(transport(&events), want, "{cause:?}");
    }
    assert_eq!(transport(&[queued()]), Transport::NotAttempted);
    let events = [queued(), body(), end(EndCause::Cancelled)];
    assert_eq!(transport(&events), Transport::NotAttempted);
}

#[test]
fn tokens_that_were_not_reported_are_not_zero() {
    let text = delta(1, DeltaKind::Content, 3);
    let think = delta(1, DeltaKind::Reasoning, 3);
    let counts = |parts: &[Event]| {
        let t = trace(&stream(parts)).unwrap();
        (
            t.completion_tokens(),
            t.reasoning_tokens(),
            t.prompt_tokens(),
        )
    };
    assert_eq!(counts(&[usage(Some(0), None)]), (Some(0), None, None));
    assert_eq!(
        counts(&[text.clone(), usage(Some(0), None)]),
        (None, None, None)
    );
    assert_eq!(
        counts(&[text.clone(), usage(Some(7), Some(0))]),
        (Some(7), Some(0), None)
    );
    assert_eq!(
        counts(&[think, usage(Some(7), Some(0))]),
        (Some(7), None, None)
    );
    // The last word that says anything wins.
    let repeated = [text, usage(Some(7), Some(2)), usage(None, None)];
    assert_eq!(counts(&repeated), (Some(7), Some(2), None));
}

#[test]
fn the_four_firsts() {
    let t = trace(&stream(&[
        delta(1, DeltaKind::Empty, 0),
        delta(2, DeltaKind::Reasoning, 4),
        delta(3, DeltaKind::Content, 4),
        delta(3, DeltaKind::Tool, 9),
    ]))
    .unwrap();
    assert!(t.first_event.is_some() && t.first_generated.is_some() && t.first_content.is_some());
    assert_eq!(t.chunks.len(), 2, "two deltas of one event are one chunk");
    let t = trace(&stream(&[delta(1, DeltaKind::Empty, 0)])).unwrap();
    assert_eq!((t.first_generated, t.first_content), (None, None));
    let t = trace(&stream(&[delta(1, DeltaKind::Tool, 9)])).unwrap();
    assert!(t.first_generated.is_some() && t.first_content.is_none());
}

#[test]
fn impossible_lives_are_refused() {
    let text = delta(1, DeltaKind::Content, 3);
    let with = |parts: &[Event]| [&sent()[..], parts].concat();
    let cases: Vec<(&str, Vec<Event>)> = vec![
        (
            "sent without a body",
            vec![queued(), start(), connected(false), send()],
        ),
        ("sent without a connection", vec![queued(), body(), send()]),
        (
            "kept alive and made",
            vec![queued(), body(), start(), connected(true)],
        ),
        (
            "neither kept alive nor made",
            vec![queued(), body(), connected(false)],
        ),
        (
            "connected again",
            vec![queued(), body(), connected(true), start()],
        ),
        ("body after its connection", vec![queued(), start(), body()]),
        ("a second body", vec![queued(), body(), body()]),
        ("sent twice", with(&[send()])),
        ("read before send", vec![queued(), body(), read(1)]),
        ("head without a read", with(&[head(200, true)])),
        ("reads count up", with(&[read(2)])),
        (
            "a read of nothing",
            with(&[Event::Read {
                req: 0,
                read: 1,
                bytes: 0,
            }]),
        ),
        ("answer before its head", with(&[read(1), text.clone()])),
        ("two heads", stream(&[head(200, true)])),
        (
            "event numbers fall",
            stream(&[delta(2, DeltaKind::Content, 1), text.clone()]),
        ),
        (
            "event number zero",
            stream(&[delta(0, DeltaKind::Content, 1)]),
        ),
        (
            "an empty delta with text",
            stream(&[delta(1, DeltaKind::Empty, 1)]),
        ),
        (
            "a delta without text",
            stream(&[delta(1, DeltaKind::Content, 0)]),
        ),
        (
            "more text than bytes",
            stream(&[delta(1, DeltaKind::Content, 200)]),
        ),
        ("two [DONE]", stream(&[done(), done()])),
        ("done and no [DONE]", stream(&[end(EndCause::Done)])),
        ("[DONE] and not done", stream(&[done(), end(EndCause::Eof)])),
        ("after the end", stream(&[end(EndCause::Eof), read(2)])),
        (
            "ended twice",
            stream(&[end(EndCause::Eof), end(EndCause::Eof)]),
        ),
        ("past 2^53", stream(&[usage(Some(1 << 60), None)])),
        ("never queued", vec![queued(), Event::Send { req: 3 }]),
        ("queued out of turn", vec![queued(), queued()]),
    ];
    for (what, events) in cases {
        assert!(trace(&events).is_err(), "{what}");
    }
    // Stamps: backwards, and other than the read's.
    let good = lines(&stream(&[text, finish("stop")]));
    for (i, t) in [(4, 1), (7, 1), (7, 10_000), (8, 10_000)] {
        let mut lines = good.clone();
        lines[i].t = t;
        assert!(
            !Traces::build(&lines).findings.is_empty(),
            "event {i} at {t}"
        );
    }
    assert!(Traces::build(&good).findings.is_empty());
}

/// No combination of status, end and parts panics or counts as two states.
#[test]
fn every_combination_has_a_state() {
    for cause in END {
        for status in [200, 500] {
            for parts in [vec![], vec![finish("stop")], vec![error()]] {
                let mut events = [&sent()[..], &[read(1), head(status, true)]].concat();
                events.extend(parts);
                let odd = Event::Odd {
                    req: 0,
                    read: 1,
                    what: Oddity::Comment,
                };
                events.push(odd);
                if cause == EndCause::Done {
                    events.push(done());
                }
                events.push(end(cause));
                let state = transport(&events);
                assert!(Transport::ALL.contains(&state));
                let success = state == Transport::Completed;
                let clean = matches!(cause, EndCause::Done | EndCause::Eof) && status == 200;
                assert!(!success || clean, "{cause:?} {status}");
            }
        }
    }
}

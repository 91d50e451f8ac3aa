//! Connections, time limits, cancellation and load: whatever the wire does, each
//! attempt is one POST, ends once, and keeps what it got.

mod scripted;

use std::net::TcpListener;
use std::time::Duration;

use bytes::Bytes;
use runseal::event::{EndCause, Event, Oddity};
use runseal::trace::Transport;
use runseal_runner::client::{Cancel, run_closed_loop};
use scripted::*;

fn good() -> Vec<Step> {
    let body = content("a") + FINISH + USAGE + DONE;
    let coded = [CHUNKED.as_bytes(), &chunk(body), LAST.as_bytes()].concat();
    vec![Step::Send(coded)]
}

#[tokio::test]
async fn a_refused_connection_is_a_connect_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let (trace, _) = Bench::new().run(vec![spec(0, addr)], 1).await.one();
    assert_eq!(trace.transport(), Transport::ConnectError);
    assert_eq!(trace.send, None);
    assert!(trace.connect_start.is_some());
}

#[tokio::test]
async fn a_connection_closed_before_the_head_is_one_truncated_attempt() {
    for last in [Step::Close, Step::Reset] {
        let server = Server::playing(vec![last]);
        let (trace, _) = once(&server).await;
        assert_eq!(trace.transport(), Transport::Truncated);
        assert_eq!(trace.cause, Some(EndCause::IoError));
        // Nobody tried again behind our back.
        assert_eq!((server.connections(), server.seen().len()), (1, 1));
    }
}

#[tokio::test]
async fn a_broken_stream_is_truncated_and_not_tried_again() {
    for last in [Step::Close, Step::Reset] {
        let server = Server::playing(vec![
            send(CHUNKED),
            Step::Send(chunk(content("a"))),
            Step::Sleep(30),
            last,
        ]);
        let (trace, response) = once(&server).await;
        assert_eq!(trace.transport(), Transport::Truncated);
        assert_eq!(trace.cause, Some(EndCause::IoError));
        assert_eq!(response.content, "a");
        assert_eq!((server.connections(), server.seen().len()), (1, 1));
    }
}

#[tokio::test]
async fn what_is_not_http_is_malformed() {
    let (trace, _) = play(vec![send("SSH-2.0-OpenSSH_9.6\r\n\r\n"), Step::Close]).await;
    assert_eq!(trace.cause, Some(EndCause::Malformed));
    assert_eq!(trace.transport(), Transport::StreamError);
    // A good head, and then chunk sizes that are none.
    let bad = [CHUNKED.as_bytes(), &chunk(content("a") + FINISH), b"zz\r\n"].concat();
    let (trace, response) = play(vec![Step::Send(bad), Step::Close]).await;
    assert_eq!(trace.cause, Some(EndCause::Malformed));
    assert_eq!(trace.transport(), Transport::StreamError);
    assert_eq!(response.content, "a");
}

#[tokio::test]
async fn a_body_shorter_than_its_content_length_is_truncated() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n";
    let script = vec![send(format!("{head}{}{FINISH}", content("a"))), Step::Close];
    let (trace, _) = play(script).await;
    assert_eq!(trace.transport(), Transport::Truncated);
    assert_eq!(trace.cause, Some(EndCause::IoError));
}

#[tokio::test]
async fn events_of_one_read_share_its_stamp_and_later_ones_do_not() {
    let four = content("a").repeat(4);
    let (trace, _) = play(vec![
        send(format!("{STREAM}{four}")),
        Step::Sleep(30),
        send(four + FINISH + DONE),
        Step::Close,
    ])
    .await;
    assert_eq!(trace.chunks.len(), 8);
    let mut stamps = trace.chunks.clone();
    stamps.dedup();
    assert_eq!(stamps.len(), 2);
    assert_eq!(stamps[0], trace.headers.unwrap());
    assert_eq!(trace.end, trace.done);
}

#[tokio::test]
async fn connections_are_kept_alive_and_their_making_is_apart() {
    let server = Server::start(|_| good());
    let specs = (0..6).map(|i| spec(i, server.addr)).collect();
    let outcome = Bench::new().run(specs, 1).await;
    assert_eq!(server.connections(), 1);
    assert!(!outcome.traces[0].reused && outcome.traces[0].connect_start.is_some());
    for trace in &outcome.traces {
        assert_eq!(trace.transport(), Transport::Completed);
        assert!(trace.queued <= trace.connected.unwrap());
        assert!(trace.connected.unwrap() <= trace.send.unwrap());
    }
    assert!(
        outcome.traces[1..]
            .iter()
            .all(|t| t.reused && t.connect_start.is_none())
    );
    // One after the other: no overlap at concurrency 1.
    for pair in outcome.traces.windows(2) {
        assert!(pair[0].end.unwrap() <= pair[1].queued);
    }
}

#[tokio::test]
async fn a_connection_that_the_server_closed_while_idle_is_not_used() {
    let mut script = good();
    script.push(Step::Close);
    let server = Server::playing(script);
    let bench = Bench::new();
    let never = Cancel::never();
    let mut responses = Vec::new();
    for i in 0..8 {
        let attempt = bench.client.attempt(spec(i, server.addr), &never);
        responses.push(tokio::time::timeout(BOUND, attempt).await.unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let outcome = bench.close(responses);
    for trace in &outcome.traces {
        assert_eq!(trace.transport(), Transport::Completed);
        assert!(!trace.reused);
    }
    assert_eq!((server.connections(), server.seen().len()), (8, 8));
}

#[tokio::test]
async fn a_server_that_stays_open_after_done_hangs_nobody() {
    let server = Server::playing(vec![
        send(STREAM),
        send(content("a") + FINISH + DONE),
        Step::Hold,
    ]);
    let specs = (0..200).map(|i| spec(i, server.addr)).collect();
    let outcome = Bench::new().run(specs, 50).await;
    for trace in &outcome.traces {
        assert_eq!(trace.transport(), Transport::Completed);
        assert_eq!(trace.end, trace.done);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_prompts_on_many_streams_flow() {
    let server = Server::start(|_| good());
    let body = Bytes::from(vec![b'p'; 3_000_000]);
    let specs = (0..64)
        .map(|i| {
            let mut spec = spec(i, server.addr);
            spec.body = body.clone();
            spec
        })
        .collect();
    let outcome = Bench::new().run(specs, 64).await;
    assert!(
        outcome
            .traces
            .iter()
            .all(|t| t.transport() == Transport::Completed)
    );
    assert!(server.seen().iter().all(|s| s.body == body.len()));
    assert_eq!(server.seen().len(), 64);
}

#[tokio::test]
async fn time_limits_end_one_attempt_and_keep_what_it_had() {
    let slow = |events: String| vec![send(format!("{STREAM}{events}")), Step::Hold];
    let short = Duration::from_millis(80);
    let long = 10 * BOUND;
    for (events, which, cause) in [
        (String::new(), 0, EndCause::RequestTimeout),
        (content("a"), 0, EndCause::RequestTimeout),
        (
            delta(r#""role":"assistant""#),
            1,
            EndCause::FirstTokenTimeout,
        ),
        (content("a"), 2, EndCause::StallTimeout),
        // Finished, but the stream does not end: stalled, not complete.
        (FINISH.to_owned(), 2, EndCause::StallTimeout),
    ] {
        let text = if events.contains("\"a\"") { "a" } else { "" };
        let server = Server::start(move |n| if n == 0 { slow(events.clone()) } else { good() });
        let mut specs = vec![spec(0, server.addr), spec(1, server.addr)];
        let pick = |i| if i == which { short } else { long };
        specs[0].timeouts.request = pick(0);
        specs[0].timeouts.first_token = Some(pick(1));
        specs[0].timeouts.stall = Some(pick(2));
        let outcome = Bench::new().run(specs, 1).await;
        assert_eq!(outcome.traces[0].cause, Some(cause));
        assert_eq!(outcome.traces[0].transport(), Transport::Timeout);
        assert_eq!(outcome.responses[0].content, text);
        // One timeout does not spoil the next case.
        assert_eq!(outcome.traces[1].transport(), Transport::Completed);
    }
}

#[tokio::test]
async fn pings_do_not_hide_a_stall() {
    let mut script = vec![send(format!("{STREAM}{}", content("a")))];
    for _ in 0..200 {
        script.extend([Step::Sleep(20), send(": ping\n\n")]);
    }
    let server = Server::playing(script);
    let mut one = spec(0, server.addr);
    one.timeouts.stall = Some(Duration::from_millis(150));
    let (trace, _) = Bench::new().run(vec![one], 1).await.one();
    assert_eq!(trace.cause, Some(EndCause::StallTimeout));
    assert!(trace.odd[&Oddity::Comment] > 0);
}

#[tokio::test]
async fn cancelling_keeps_the_beginning_and_attempts_nothing_more() {
    let server = Server::playing(vec![send(format!("{STREAM}{}", content("a"))), Step::Hold]);
    let bench = Bench::new();
    let (canceller, cancel) = Cancel::pair();
    let specs: Vec<_> = (0..10).map(|i| spec(i, server.addr)).collect();
    let log = bench.log_path();
    let stop = async {
        // Cancel when both streams have shown their first text.
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let text = std::fs::read_to_string(&log).unwrap();
            if text.matches("\"kind\":\"content\"").count() == 2 {
                return canceller.cancel();
            }
        }
    };
    let work = run_closed_loop(&bench.client, specs, 2, &cancel);
    let (responses, ()) = tokio::time::timeout(BOUND, async { tokio::join!(work, stop) })
        .await
        .unwrap();
    let outcome = bench.close(responses);
    assert_eq!(outcome.traces.len(), 2);
    for (trace, response) in outcome.traces.iter().zip(&outcome.responses) {
        assert_eq!(trace.transport(), Transport::Cancelled);
        assert_eq!(response.content, "a");
    }
}

#[tokio::test]
async fn a_dropped_attempt_ends_in_the_log() {
    let server = Server::playing(vec![send(format!("{STREAM}{}", content("a"))), Step::Hold]);
    let bench = Bench::new();
    let never = Cancel::never();
    drop(bench.client.enqueue(spec(0, server.addr)));
    let attempt = bench.client.attempt(spec(1, server.addr), &never);
    assert!(
        tokio::time::timeout(Duration::from_millis(100), attempt)
            .await
            .is_err()
    );
    let outcome = bench.close(Vec::new());
    assert_eq!(outcome.traces[0].transport(), Transport::NotAttempted);
    assert_eq!(outcome.traces[1].transport(), Transport::Cancelled);
}

#[tokio::test]
async fn waiting_for_a_turn_shows_as_queue_time() {
    let server = Server::start(|_| good());
    let bench = Bench::new();
    let never = Cancel::never();
    let first = bench.client.enqueue(spec(0, server.addr));
    let second = bench.client.enqueue(spec(1, server.addr));
    // They may run in any order; their numbers stay in the order of queueing.
    let b = second.run(&never).await;
    let a = first.run(&never).await;
    let outcome = bench.close(vec![a, b]);
    let [a, b] = &outcome.traces[..] else {
        panic!()
    };
    assert!(a.queued <= b.queued && a.queued < b.send.unwrap());
    assert!(b.end.unwrap() <= a.send.unwrap());
}

#[tokio::test]
async fn keys_reach_the_server_and_nothing_else() {
    let server = Server::start(|_| good());
    let mut one = spec(0, server.addr);
    one.headers
        .set("Authorization", "Bearer s3cr3t-key")
        .unwrap();
    assert!(!format!("{one:?}").contains("s3cr3t"));
    assert!(one.headers.set("x", "a\nb").is_err());
    let bench = Bench::new();
    let path = bench.log_path();
    let attempt = bench.client.attempt(one, &Cancel::never()).await;
    bench.client.recorder().flush().unwrap();
    let log = std::fs::read_to_string(path).unwrap();
    assert!(log.contains("\"end\"") && !log.contains("s3cr3t"));
    bench.close(vec![attempt]);
    let head = &server.seen()[0].head;
    assert!(head.contains("Bearer s3cr3t-key"), "{head}");
    assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"));
    assert!(head.contains(&format!("host: {}", server.addr)));
}

#[tokio::test]
async fn a_log_holds_lengths_and_salted_digests_but_no_text() {
    let (a, b) = ("confidential", "ours");
    let server = Server::playing(stream(&[&content(a), FINISH, DONE]));
    let mut specs = vec![spec(0, server.addr), spec(1, server.addr)];
    specs[0].body = Bytes::from(format!("{{\"prompt\":\"{b}\"}}"));
    let outcome = Bench::new().run(specs, 1).await;
    for line in &outcome.lines {
        let text = runseal::event::to_line(line);
        assert!(!text.contains(a) && !text.contains(b), "{text}");
    }
    let digests: Vec<_> = outcome
        .lines
        .iter()
        .filter_map(|l| match &l.event {
            Event::Delta { digest, len, .. } if *len > 0 => Some(digest),
            _ => None,
        })
        .collect();
    // The same text under two salts.
    assert_eq!(digests.len(), 2);
    assert_ne!(digests[0], digests[1]);
}

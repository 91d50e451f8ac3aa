//! Open loops, retries and the client's own lag, against real sockets.

mod scripted;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use runseal::event::{Event, State};
use runseal::response::Response;
use runseal::schedule::Arrivals;
use runseal::trace::{Trace, Transport};
use runseal_runner::client::lag::LagProbe;
use runseal_runner::client::source::Retrying;
use runseal_runner::client::{
    AttemptSpec, Cancel, Stage, run_closed_loop_from, run_open_loop_with, run_rate_sweep_with,
};
use scripted::*;

/// Collects answers in order of their numbers.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<Response>>>);

impl Sink {
    fn put(&self) -> impl Fn(Response) + Send + Sync + 'static {
        let all = Arc::clone(&self.0);
        move |r| all.lock().unwrap().push(r)
    }

    fn take(self) -> Vec<Response> {
        let mut all = std::mem::take(&mut *self.0.lock().unwrap());
        all.sort_by_key(|r| r.req);
        all
    }
}

fn good() -> Vec<Step> {
    stream(&[&content("a"), FINISH, USAGE, DONE])
}

fn slow(ms: u64) -> Vec<Step> {
    vec![
        send(STREAM),
        Step::Sleep(ms),
        send([&content("a"), FINISH, DONE].concat()),
        Step::Close,
    ]
}

fn specs(server: &Server, n: u32) -> impl Iterator<Item = AttemptSpec> + Send + 'static {
    let addr = server.addr;
    (0..n).map(move |i| spec(i, addr))
}

fn overlap(traces: &[Trace]) -> usize {
    let open = |at: u64| {
        let covers = |t: &&Trace| t.send.unwrap() <= at && at < t.end.unwrap();
        traces.iter().filter(covers).count()
    };
    traces.iter().map(|t| open(t.send.unwrap())).max().unwrap()
}

const FAST: Arrivals = Arrivals::Constant {
    millihertz: 200_000,
};

#[tokio::test]
async fn an_open_loop_queues_by_its_schedule_and_waits_for_no_answer() {
    let server = Server::playing(slow(400));
    let (bench, sink) = (Bench::new(), Sink::default());
    let stage = Stage {
        arrivals: FAST,
        requests: 8,
        most_open: None,
    };
    let specs = specs(&server, 100);
    run_open_loop_with(&bench.client, specs, stage, &Cancel::never(), sink.put()).await;
    let outcome = bench.close(sink.take());
    assert_eq!(outcome.traces.len(), 8);
    let due: Vec<u64> = outcome.traces.iter().map(|t| t.queued).collect();
    let steps: Vec<u64> = due.windows(2).map(|w| w[1] - w[0]).collect();
    assert_eq!(steps, [5_000_000; 7], "stamped with the schedule's times");
    for trace in &outcome.traces {
        assert_eq!(trace.transport(), Transport::Completed);
        assert!(
            trace.send.unwrap() >= trace.queued,
            "sent before it was due"
        );
    }
    // The first answer takes ten times as long as all arrivals together.
    assert!(overlap(&outcome.traces) > 1);
}

#[tokio::test]
async fn waiting_for_a_slot_is_queue_time_and_moves_no_due_time() {
    let server = Server::playing(slow(30));
    let (bench, sink) = (Bench::new(), Sink::default());
    let stage = Stage {
        arrivals: FAST,
        requests: 6,
        most_open: Some(1),
    };
    let specs = specs(&server, 6);
    run_open_loop_with(&bench.client, specs, stage, &Cancel::never(), sink.put()).await;
    let traces = bench.close(sink.take()).traces;
    assert_eq!(overlap(&traces), 1);
    let first = traces[0].queued;
    for (i, trace) in traces.iter().enumerate() {
        assert_eq!(trace.queued - first, 5_000_000 * i as u64);
        assert_eq!(trace.transport(), Transport::Completed);
    }
    let waited = |t: &Trace| t.send.unwrap() - t.queued;
    // Five answers of 30 ms lie before the last one, due after 25 ms.
    assert!(traces.iter().map(waited).max().unwrap() > 100_000_000);
}

#[tokio::test]
async fn the_stages_of_a_sweep_do_not_overlap() {
    let server = Server::playing(slow(20));
    let (bench, sink) = (Bench::new(), Sink::default());
    let poisson = Arrivals::Poisson {
        millihertz: 500_000,
        seed: 3,
    };
    let stages = [FAST, poisson].map(|arrivals| Stage {
        arrivals,
        requests: 5,
        most_open: None,
    });
    let specs = specs(&server, 10);
    run_rate_sweep_with(&bench.client, specs, &stages, &Cancel::never(), sink.put()).await;
    let traces = bench.close(sink.take()).traces;
    let (first, second) = traces.split_at(5);
    let ends = first.iter().map(|t| t.end.unwrap()).max().unwrap();
    assert!(second.iter().all(|t| t.queued > ends));
    let want: Vec<u64> = poisson.offsets().take(5).collect();
    let start = second[0].queued - want[0];
    let got: Vec<u64> = second.iter().map(|t| t.queued - start).collect();
    assert_eq!(got, want, "the recorded seed gives the schedule again");
}

#[tokio::test]
async fn cancelling_an_open_loop_ends_what_is_open_and_queues_no_more() {
    let server = Server::playing(vec![send(STREAM), Step::Hold]);
    let (bench, sink) = (Bench::new(), Sink::default());
    let (canceller, cancel) = Cancel::pair();
    let stage = Stage {
        arrivals: FAST,
        requests: 1_000_000,
        most_open: None,
    };
    let specs = specs(&server, 1_000_000);
    let work = run_open_loop_with(&bench.client, specs, stage, &cancel, sink.put());
    let stop = async {
        while server.seen().len() < 3 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        canceller.cancel();
    };
    let both = async { tokio::join!(work, stop) };
    tokio::time::timeout(BOUND, both).await.expect("hangs");
    let traces = bench.close(sink.take()).traces;
    assert!(traces.len() >= 3 && traces.len() < 1_000_000);
    assert!(traces.iter().all(|t| matches!(
        t.transport(),
        Transport::Cancelled | Transport::NotAttempted
    )));
}

#[tokio::test]
async fn retries_are_declared_bounded_and_never_hide_the_first_attempt() {
    // Odd requests are refused; the third case never gets an answer.
    let server = Server::start(|n| match n {
        0 | 3 => good(),
        _ => vec![
            send("HTTP/1.1 503 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"),
            Step::Close,
        ],
    });
    let (bench, sink) = (Bench::new(), Sink::default());
    let addr = server.addr;
    let source = Retrying::new(
        specs(&server, 3),
        0,
        3,
        vec![Transport::HttpError],
        move |req, ended| {
            assert_eq!(ended.transport, Transport::HttpError);
            Some(spec(req, addr))
        },
    );
    run_closed_loop_from(&bench.client, source, 1, &Cancel::never(), sink.put()).await;
    let traces = bench.close(sink.take()).traces;
    let story: Vec<_> = traces
        .iter()
        .map(|t| (t.req, t.case.as_str(), t.attempt, t.transport()))
        .collect();
    use Transport::{Completed, HttpError};
    assert_eq!(
        story,
        [
            (0, "case-0", 0, Completed),
            (1, "case-1", 0, HttpError),
            (2, "case-1", 1, HttpError),
            (3, "case-1", 2, Completed),
            (4, "case-2", 0, HttpError),
            (5, "case-2", 1, HttpError),
            (6, "case-2", 2, HttpError),
        ]
    );
}

#[tokio::test]
async fn an_attempt_says_the_transport_state_that_its_log_gives() {
    let scripts: Vec<Vec<Step>> = vec![
        good(),
        stream(&[&content("a"), DONE]),
        stream(&["data: {\"error\":1}\n\n", FINISH, DONE]),
        vec![
            send("HTTP/1.1 500 No\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx"),
            Step::Close,
        ],
        vec![
            send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx"),
            Step::Close,
        ],
        vec![send(STREAM), send(content("a")), Step::Reset],
        vec![send("nonsense\r\n\r\n"), Step::Close],
        vec![Step::Close],
    ];
    let plays = scripts.clone();
    let server = Server::start(move |n| plays[n % plays.len()].clone());
    let bench = Bench::new();
    let mut said = Vec::new();
    let mut answers = Vec::new();
    for spec in specs(&server, scripts.len() as u32) {
        let ended = bench
            .client
            .enqueue(spec)
            .run_to_end(&Cancel::never())
            .await;
        said.push(ended.transport);
        answers.push(ended.response);
    }
    let logged: Vec<_> = bench
        .close(answers)
        .traces
        .iter()
        .map(Trace::transport)
        .collect();
    assert_eq!(said, logged);
    assert!(said.contains(&Transport::Completed) && said.contains(&Transport::StreamError));
}

#[tokio::test]
async fn a_client_that_stands_still_says_so() {
    let bench = Bench::new();
    let recorder = bench.client.recorder().clone();
    let begun = Instant::now();
    let max = loop {
        let probe = LagProbe::start(&recorder, State::Measure).unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        // This test's runtime has one thread, and here it is gone.
        std::thread::sleep(Duration::from_millis(60));
        let samples = probe.stop().await;
        if samples.max() > 20_000_000 {
            break samples.max();
        }
        assert!(begun.elapsed() < BOUND, "no lag was seen");
    };
    let lines = bench.close(Vec::new()).lines;
    let logged = lines.iter().rev().find_map(|l| match l.event {
        Event::ClientLag {
            state,
            n,
            p50,
            p99,
            max,
            ..
        } => Some((state, n, p50, p99, max)),
        _ => None,
    });
    let (state, n, p50, p99, logged_max) = logged.unwrap();
    assert_eq!((state, logged_max), (State::Measure, max));
    assert!(n > 0 && p50 <= p99 && p99 <= max);
}

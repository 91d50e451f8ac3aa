//! Whatever a server does, the log obeys its laws (which `Bench` checks: no
//! impossible event, one end per attempt, every event stamped as its read, every
//! answer equal to its digests), and only a finished stream is a success.

mod scripted;

use proptest::prelude::*;
use runseal::trace::Transport;
use scripted::*;

fn piece() -> impl Strategy<Value = Vec<u8>> {
    let text = |t: String| Just(t.into_bytes());
    prop_oneof![
        4 => "[a-zé\n]{0,5}".prop_map(|t| content(&t).into_bytes()),
        1 => text(delta(r#""role":"assistant","content":null"#)),
        1 => text(delta(r#""reasoning":"r","reasoning_content":"s""#)),
        1 => text(delta(r#""tool_calls":[{"index":0}]"#)),
        1 => text(FINISH.into()),
        1 => text(USAGE.into()),
        1 => text(DONE.into()),
        1 => text(": ping\n\n".into()),
        1 => text("data: {\"error\":1}\n\n".into()),
        1 => text("event: error\r\n\r\n".into()),
        1 => text("data: {\n\ndata\n\n".into()),
        1 => prop::collection::vec(any::<u8>(), 0..12),
    ]
}

fn script() -> impl Strategy<Value = Vec<Step>> {
    let head = prop::sample::select(vec![
        STREAM.to_owned(),
        CHUNKED.to_owned(),
        CHUNKED.to_owned(),
        STREAM.replace("200 OK", "500 No"),
        STREAM.replace("text/event-stream", "text/html"),
        "HTTP/1.1 2".to_owned(),
        "nonsense\r\n\r\n".to_owned(),
    ]);
    let end = prop::sample::select(vec![Step::Close, Step::Reset, Step::Hold]);
    let pieces = prop::collection::vec(piece(), 0..10);
    (head, pieces, any::<bool>(), 1usize..200, end).prop_map(|(head, pieces, last, cut, end)| {
        let mut bytes = head.clone().into_bytes();
        for piece in pieces {
            match head.contains("chunked") {
                true if piece.is_empty() => {}
                true => bytes.extend(chunk(piece)),
                false => bytes.extend(piece),
            }
        }
        if last && head.contains("chunked") {
            bytes.extend_from_slice(LAST.as_bytes());
        }
        let mut script: Vec<_> = bytes.chunks(cut).map(send).collect();
        script.push(end);
        script
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_log_is_lawful(scripts in prop::collection::vec(script(), 1..6), c in 1usize..4) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let plays = scripts.clone();
            let server = Server::start(move |n| plays[n % plays.len()].clone());
            let specs = (0..scripts.len() as u32 + 2)
                .map(|i| {
                    let mut spec = spec(i, server.addr);
                    spec.timeouts.request = std::time::Duration::from_millis(150);
                    spec
                })
                .collect();
            let outcome = Bench::new().run(specs, c).await;
            for trace in &outcome.traces {
                if trace.transport() == Transport::Completed {
                    assert!(trace.finish.is_some() && trace.errors.is_empty());
                }
            }
        });
    }
}

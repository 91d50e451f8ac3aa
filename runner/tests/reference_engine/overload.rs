//! Many requests, clients that leave, and the end of the server.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use runseal_runner::reference::ServeOptions;
use serde_json::{Value, json};

use super::client::{CHAT, Open, Server, chat_body, open};
use super::synthetic::Checkpoint;

/// A server whose answers take long enough to be interrupted.
async fn slow(options: ServeOptions) -> Server {
    Server::start(
        Checkpoint::noise().engine(),
        ServeOptions {
            token_delay: Duration::from_millis(20),
            ..options
        },
    )
    .await
}

/// A request for 240 tokens, at 20 ms each.
fn long(stream: bool) -> String {
    chat_body(json!({"max_tokens": 240, "ignore_eos": true, "stream": stream}))
}

/// Reads until a token has arrived.
async fn first_token(open: &mut Open) {
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains("{\"content\":") {
        let frame = open.response.body_mut().frame().await.unwrap().unwrap();
        text.extend_from_slice(frame.data_ref().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_do_not_depend_on_company() {
    let server = Server::start(Checkpoint::noise().engine(), ServeOptions::default()).await;
    let body = |i: usize| {
        let message = json!([{"role": "user", "content": "word ".repeat(1 + 3 * i)}]);
        json!({"messages": message, "max_tokens": 30, "ignore_eos": true, "temperature": i % 2, "seed": i})
    };
    let content = |answer: Value| answer["choices"][0]["message"]["content"].clone();
    let mut alone = Vec::new();
    for i in 0..12 {
        alone.push(content(server.chat(body(i)).await.1));
    }
    let address = server.address;
    let together: Vec<_> = (0..12)
        .map(|i| {
            tokio::spawn(async move {
                let mut open = open(address, Method::POST, CHAT, chat_body(body(i)).into())
                    .await
                    .unwrap();
                open.response.body_mut().collect().await.unwrap().to_bytes()
            })
        })
        .collect();
    for (i, task) in together.into_iter().enumerate() {
        let answer = serde_json::from_slice(&task.await.unwrap()).unwrap();
        assert_eq!(content(answer), alone[i], "request {i}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_the_limit_wait_their_turn() {
    let server = slow(ServeOptions {
        max_running: 1,
        ..ServeOptions::default()
    })
    .await;
    let mut first = server.open(Method::POST, CHAT, long(true)).await;
    first_token(&mut first).await;
    let second = server
        .open(
            Method::POST,
            CHAT,
            chat_body(json!({"max_tokens": 2, "stream": true})),
        )
        .await;
    server.until("num_requests_waiting", 1).await;
    assert_eq!(server.metric("num_requests_running").await, 1);
    // A client that leaves the queue frees its place in it.
    drop(second);
    server.until("num_requests_waiting", 0).await;
    // One that stays gets its answer once the slot is free.
    let waiting = tokio::spawn(open(
        server.address,
        Method::POST,
        CHAT,
        chat_body(json!({"max_tokens": 2})).into(),
    ));
    server.until("num_requests_waiting", 1).await;
    drop(first);
    assert_eq!(waiting.await.unwrap().unwrap().response.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_its_generation() {
    let server = slow(ServeOptions::default()).await;
    let mut streamed = server.open(Method::POST, CHAT, long(true)).await;
    first_token(&mut streamed).await;
    drop(streamed);
    server.until("requests_total{state=\"cancelled\"}", 1).await;

    // Not streamed: the client leaves before there is any answer.
    let whole = tokio::spawn(open(server.address, Method::POST, CHAT, long(false).into()));
    server.until("num_requests_running", 1).await;
    whole.abort();
    let _ = whole.await;
    server.until("requests_total{state=\"cancelled\"}", 2).await;
    assert_eq!(server.metric("num_requests_running").await, 0);
    assert!(
        server.metric("generation_tokens_total").await < 480,
        "both ran to their end"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_lets_open_answers_finish() {
    let server = slow(ServeOptions {
        drain: Duration::from_secs(60),
        ..ServeOptions::default()
    })
    .await;
    let address = server.address;
    let body = chat_body(json!({"max_tokens": 20, "ignore_eos": true, "stream": true}));
    let mut streamed = server.open(Method::POST, CHAT, body).await;
    first_token(&mut streamed).await;
    let task = server.stop();
    let rest = streamed
        .response
        .body_mut()
        .collect()
        .await
        .unwrap()
        .to_bytes();
    assert!(rest.ends_with(b"data: [DONE]\n\n"));
    task.await.unwrap().unwrap();
    assert!(
        open(address, Method::GET, "/health", "".into())
            .await
            .is_err(),
        "the socket is still open"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_does_not_wait_longer_than_it_was_told() {
    let server = slow(ServeOptions {
        drain: Duration::ZERO,
        ..ServeOptions::default()
    })
    .await;
    let mut streamed = server.open(Method::POST, CHAT, long(true)).await;
    first_token(&mut streamed).await;
    server.stop().await.unwrap().unwrap();
    // Cut off, and the client can tell: the chunked body has no end.
    assert!(streamed.response.body_mut().collect().await.is_err());
}

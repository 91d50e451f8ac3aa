//! What the server says, event by event, on models that follow a script.

use hyper::{Method, StatusCode};
use runseal_runner::reference::{FINGERPRINT, ServeOptions};
use serde_json::{Value, json};

use super::client::{CHAT, Server, chat_body};
use super::synthetic::Checkpoint;

const EOS: u32 = 258;

/// After the template's last space: "h", "é" in two bytes, "!", end. Past the end: z for ever.
fn greeting() -> Checkpoint {
    Checkpoint::script(&[
        (b' ' as u32, b'h' as u32, 1.0),
        (b'h' as u32, 0xC3, 1.0),
        (0xC3, 0xA9, 1.0),
        (0xA9, b'!' as u32, 1.0),
        (b'!' as u32, EOS, 1.0),
        (b'!' as u32, b'?' as u32, 0.5),
        (b'?' as u32, EOS, 1.0),
        (EOS, b'z' as u32, 1.0),
        (b'z' as u32, b'z' as u32, 1.0),
    ])
}

async fn server(checkpoint: &Checkpoint) -> Server {
    Server::start(checkpoint.engine(), ServeOptions::default()).await
}

fn parse(events: &[String]) -> Vec<Value> {
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    chunks
        .iter()
        .map(|chunk| serde_json::from_str(chunk).unwrap())
        .collect()
}

/// The deltas of a stream, without envelope.
fn deltas(chunks: &[Value]) -> Vec<Value> {
    chunks
        .iter()
        .filter_map(|chunk| chunk["choices"].get(0))
        .map(|choice| choice["delta"].clone())
        .collect()
}

fn usage(completion: u64) -> Value {
    // bos, "x", newline, "A: "
    json!({
        "prompt_tokens": 6, "completion_tokens": completion, "total_tokens": 6 + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    })
}

#[tokio::test]
async fn a_stream_is_role_tokens_finish_done() {
    let server = server(&greeting()).await;
    let chunks = parse(&server.stream(json!({})).await);
    assert_eq!(
        deltas(&chunks),
        [
            json!({"role": "assistant", "content": ""}),
            json!({"content": "h"}),
            json!({"content": ""}), // first half of the code point
            json!({"content": "é"}),
            json!({"content": "!"}),
            json!({}),
        ]
    );
    let finishes: Vec<_> = chunks
        .iter()
        .map(|chunk| chunk["choices"][0]["finish_reason"].clone())
        .collect();
    assert_eq!(finishes[..5], vec![Value::Null; 5]);
    assert_eq!(finishes[5], "stop");
    for chunk in &chunks {
        assert_eq!(chunk["id"], chunks[0]["id"]);
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["model"], "runseal-reference");
        assert_eq!(chunk["system_fingerprint"], FINGERPRINT);
        assert!(chunk["created"].as_u64().unwrap() > 0);
        assert!(chunk.get("usage").is_none(), "usage was not asked for");
    }
}

#[tokio::test]
async fn usage_comes_last_and_counts_the_end_token() {
    let server = server(&greeting()).await;
    let events = server
        .stream(json!({"stream_options": {"include_usage": true}}))
        .await;
    let chunks = parse(&events);
    let (last, rest) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"], usage(5));
    assert!(rest.iter().all(|chunk| chunk.get("usage").is_none()));
}

#[tokio::test]
async fn continuous_usage_counts_along() {
    let server = server(&greeting()).await;
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let chunks = parse(&server.stream(json!({"stream_options": options})).await);
    let counts: Vec<_> = chunks.iter().map(|chunk| chunk["usage"].clone()).collect();
    // The end token is in the finish chunk's count and in the last chunk's.
    assert_eq!(counts, [0, 1, 2, 3, 4, 5, 5].map(usage));
}

#[tokio::test]
async fn a_whole_answer_says_the_same_as_the_stream() {
    let server = server(&greeting()).await;
    let (status, answer) = server.chat(json!({})).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["system_fingerprint"], FINGERPRINT);
    let choice = &answer["choices"][0];
    assert_eq!(
        choice["message"],
        json!({"role": "assistant", "content": "hé!"})
    );
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(answer["usage"], usage(5));
}

/// Content, finish reason and completion tokens of a non-streamed answer.
async fn outcome(server: &Server, fields: Value) -> (String, String, u64) {
    let (status, answer) = server.chat(fields).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let choice = &answer["choices"][0];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap();
    (
        text(&choice["message"]["content"]),
        text(&choice["finish_reason"]),
        tokens,
    )
}

#[tokio::test]
async fn the_knobs_do_what_they_say() {
    let server = server(&greeting()).await;
    for (fields, content, finish, tokens) in [
        (json!({"max_tokens": 1}), "h", "length", 1),
        (
            json!({"max_completion_tokens": 4, "max_tokens": 1}),
            "hé!",
            "length",
            4,
        ),
        // The answer ends inside a code point.
        (json!({"max_tokens": 2}), "h\u{FFFD}", "length", 2),
        (json!({"max_tokens": 5}), "hé!", "stop", 5),
        (
            json!({"max_tokens": 8, "ignore_eos": true}),
            "hé!zzz",
            "length",
            8,
        ),
        (json!({"max_tokens": 8, "min_tokens": 4}), "hé!", "stop", 5),
        (json!({"max_tokens": 8, "min_tokens": 5}), "hé!?", "stop", 6),
        (json!({"stop": "é"}), "h", "stop", 3),
        (json!({"stop": ["no", "!"]}), "hé", "stop", 4),
        (json!({"stop": "!?"}), "hé!", "stop", 5),
        (json!({"stop": "h", "min_tokens": 2}), "hé!", "stop", 5),
        (json!({"temperature": 0.01, "seed": -1}), "hé!", "stop", 5),
        (
            json!({"model": "runseal-reference", "logit_bias": {"1": 2}, "unheard_of": [1]}),
            "hé!",
            "stop",
            5,
        ),
    ] {
        let expected = (content.to_owned(), finish.to_owned(), tokens);
        assert_eq!(outcome(&server, fields.clone()).await, expected, "{fields}");
        // The stream's text is the same, and it has a delta for each token but the end.
        let chunks = parse(&server.stream(fields.clone()).await);
        let text: String = deltas(&chunks)
            .iter()
            .filter_map(|delta| delta["content"].as_str())
            .collect();
        assert_eq!(text, content, "{fields} streamed");
    }
}

#[tokio::test]
async fn every_generated_token_has_its_chunk_even_without_text() {
    let server = server(&Checkpoint::noise()).await;
    let chunks = parse(
        &server
            .stream(json!({"max_tokens": 50, "ignore_eos": true}))
            .await,
    );
    assert_eq!(deltas(&chunks).len(), 1 + 50 + 1);
}

#[tokio::test]
async fn without_max_tokens_the_context_is_the_limit() {
    let server = server(&greeting()).await;
    let expected = format!("hé!{}", "z".repeat(250 - 5));
    assert_eq!(
        outcome(&server, json!({"ignore_eos": true})).await,
        (expected, "length".into(), 250)
    );
}

#[tokio::test]
async fn the_template_joins_all_contents() {
    // Says what the newline of the template is followed by: each content counts one token
    // per byte, one newline, and the generation prompt comes once.
    let server = server(&greeting()).await;
    let parts = json!([{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]);
    let messages = json!([{"role": "system", "content": "é"}, {"role": "user", "content": parts}]);
    let (_, answer) = server.chat(json!({"messages": messages})).await;
    assert_eq!(answer["usage"]["prompt_tokens"], 1 + 3 + 4 + 3);
}

#[tokio::test]
async fn mistakes_get_their_own_answer() {
    let server = server(&greeting()).await;
    let message = |message: Value| json!({"messages": [message]});
    for (fields, status, param) in [
        (json!({"model": "gpt-5"}), 404, json!("model")),
        (json!({"messages": []}), 400, json!("messages")),
        (
            message(json!({"role": "user", "content": null})),
            400,
            json!("messages"),
        ),
        (
            message(json!({"role": "user", "content": [{"type": "image_url"}]})),
            400,
            json!("messages"),
        ),
        (
            message(json!({"role": "robot", "content": "x"})),
            400,
            json!("messages"),
        ),
        (message(json!({"role": "user"})), 400, Value::Null),
        (
            message(json!({"role": "user", "content": "x".repeat(256)})),
            400,
            json!("max_tokens"),
        ),
        (json!({"max_tokens": 251}), 400, json!("max_tokens")),
        (json!({"max_tokens": 0}), 400, json!("max_tokens")),
        (json!({"max_tokens": -1}), 400, Value::Null),
        (json!({"max_tokens": u64::MAX}), 400, json!("max_tokens")),
        (
            json!({"max_tokens": 2, "min_tokens": 3}),
            400,
            json!("min_tokens"),
        ),
        (json!({"temperature": -0.1}), 400, json!("temperature")),
        (json!({"temperature": 1e300}), 400, Value::Null),
        (json!({"n": 2}), 400, json!("n")),
        (
            json!({"stream_options": {"include_usage": true}}),
            400,
            json!("stream_options"),
        ),
    ] {
        let (answered, body) = server.chat(fields.clone()).await;
        assert_eq!(
            (answered.as_u16(), &body["error"]["param"]),
            (status, &param),
            "{fields}: {body}"
        );
        assert_eq!(body["error"]["code"], status);
        let kind = if status == 404 {
            "NotFoundError"
        } else {
            "BadRequestError"
        };
        assert_eq!(body["error"]["type"], kind);
        assert!(!body["error"]["message"].as_str().unwrap().is_empty());
    }
    let (status, _) = server.request(Method::POST, CHAT, "{\"messages\": [").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(
        server.metric("requests_total{state=\"rejected\"}").await,
        17
    );
    assert_eq!(
        outcome(&server, json!({"max_tokens": 250})).await.2,
        5,
        "exactly the limit is allowed"
    );
}

#[tokio::test]
async fn paths_and_methods() {
    let server = server(&greeting()).await;
    let status = async |method, path| server.request(method, path, "").await.0.as_u16();
    assert_eq!(status(Method::GET, "/health").await, 200);
    assert_eq!(status(Method::GET, "/version").await, 200);
    assert_eq!(status(Method::GET, "/v2/chat").await, 404);
    assert_eq!(status(Method::POST, "/health").await, 405);
    let open = server.open(Method::GET, CHAT, "").await;
    assert_eq!(open.response.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(open.response.headers()["allow"], "POST");

    let (_, models) = server.request(Method::GET, "/v1/models", "").await;
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!(models["data"][0]["id"], "runseal-reference");
    assert_eq!(models["data"][0]["max_model_len"], 256);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_one_at_it_is_read() {
    let server = server(&greeting()).await;
    let padded = |length: usize| {
        let body = chat_body(json!({"max_tokens": 1}));
        format!("{body}{}", " ".repeat(length - body.len()))
    };
    let limit = ServeOptions::default().max_body;
    assert_eq!(
        server.request(Method::POST, CHAT, padded(limit)).await.0,
        StatusCode::OK
    );
    let (status, body) = server.request(Method::POST, CHAT, padded(limit + 1)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(body.contains("PayloadTooLargeError"), "{body}");
}

#[tokio::test]
async fn ids_are_unique_and_counters_add_up() {
    let server = server(&greeting()).await;
    let (_, first) = server.chat(json!({})).await;
    let (_, second) = server.chat(json!({"max_tokens": 2})).await;
    assert_ne!(first["id"], second["id"]);
    // The counter follows the answer's last event by a moment.
    server.until("requests_total{state=\"completed\"}", 2).await;
    assert_eq!(server.metric("prompt_tokens_total").await, 12);
    assert_eq!(server.metric("generation_tokens_total").await, 7);
    assert_eq!(server.metric("num_requests_running").await, 0);
    assert_eq!(server.metric("num_requests_waiting").await, 0);
}

//! Answers of real servers, replayed: the client must see in them what they hold,
//! however the bytes are cut.

mod scripted;

use std::path::Path;

use runseal::event::{DeltaKind, EndCause};
use runseal::trace::{Trace, Transport};
use scripted::*;

fn capture(name: &str) -> Vec<u8> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    std::fs::read(dir.join(name)).unwrap()
}

/// The body of a capture with a head.
fn body_of(bytes: &[u8]) -> &[u8] {
    let at = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    &bytes[at + 4..]
}

/// Chunk sizes of the coding and write sizes of the socket to try.
const CUTS: [(usize, usize); 4] = [(usize::MAX, usize::MAX), (1, 997), (7, 1000), (256, 13)];

/// A body in chunked coding, cut into chunks and writes; `end` says whether the
/// coding is closed.
fn coded(body: &[u8], (chunk_size, write_size): (usize, usize), end: bool) -> Vec<Step> {
    let mut bytes = CHUNKED.as_bytes().to_vec();
    bytes.extend(body.chunks(chunk_size).flat_map(chunk));
    if end {
        bytes.extend_from_slice(LAST.as_bytes());
    }
    let mut script: Vec<_> = bytes.chunks(write_size).map(send).collect();
    if !end {
        script.push(Step::Close);
    }
    script
}

/// What a capture holds.
#[derive(Debug, PartialEq, Eq)]
struct Want {
    transport: Transport,
    cause: EndCause,
    prompt: Option<u64>,
    completion: Option<u64>,
    texts: usize,
    empties: usize,
    finish: Option<&'static str>,
    content: String,
}

fn count(trace: &Trace, kind: DeltaKind) -> usize {
    trace.deltas.iter().filter(|d| d.kind == kind).count()
}

async fn replay(body: &[u8], end: bool, want: Want) {
    for cut in CUTS {
        let (trace, response) = play(coded(body, cut, end)).await;
        let got = Want {
            transport: trace.transport(),
            cause: trace.cause.unwrap(),
            prompt: trace.prompt_tokens(),
            completion: trace.completion_tokens(),
            texts: count(&trace, DeltaKind::Content),
            empties: count(&trace, DeltaKind::Empty),
            finish: trace.finish.as_deref().map(|f| match f {
                "length" => "length",
                _ => "other",
            }),
            content: response.content,
        };
        assert_eq!(got, want, "cut {cut:?}");
        assert_eq!(trace.chunks.len(), want.texts);
        assert_eq!(trace.first_generated.is_some(), want.texts > 0);
        assert_eq!(trace.first_generated, trace.first_content);
        assert!(trace.first_event.is_some());
    }
}

fn length(prompt: Option<u64>, completion: Option<u64>, texts: usize, empties: usize) -> Want {
    Want {
        transport: Transport::Completed,
        cause: EndCause::Done,
        prompt,
        completion,
        texts,
        empties,
        finish: Some("length"),
        content: String::new(),
    }
}

#[tokio::test]
async fn vllm_counts_more_tokens_than_it_sends_texts() {
    for name in [
        "vllm-0.32.0-cpu-chat-stream-usage.sse",
        "vllm-0.32.0-cpu-tp2-2nodes-chat-stream-usage.sse",
    ] {
        let mut want = length(Some(13), Some(16), 13, 4);
        want.content = "(\u{fffd}\u{fffd}\u{fffd}f".to_owned() + &"assistant".repeat(11);
        replay(&capture(name), true, want).await;
    }
}

#[tokio::test]
async fn vllm_without_usage_has_no_token_count() {
    let mut want = length(None, None, 5, 4);
    want.content = "(\u{fffd}\u{fffd}\u{fffd}f".to_owned() + &"assistant".repeat(3);
    let body = capture("vllm-0.32.0-cpu-chat-stream-nousage.sse");
    replay(&body, true, want).await;
}

#[tokio::test]
async fn llama_cpp_starts_with_null_and_finishes_without_text() {
    let mut want = length(Some(34), Some(16), 16, 2);
    let body = capture("llamacpp-b11434-rpc3-chat-stream-usage.sse");
    // The end of the text is noise; what counts is that no cut changes it.
    let (trace, response) = play(coded(&body, CUTS[0], true)).await;
    want.content = response.content;
    assert!(want.content.starts_with("color: red"));
    assert_eq!(trace.usage.unwrap().cached, Some(0));
    replay(&body, true, want).await;
}

#[tokio::test]
async fn llama_cpp_without_usage_has_no_token_count() {
    let mut want = length(None, None, 8, 2);
    want.content = "color: red\ncity: lima\n".into();
    let body = capture("llamacpp-b11434-rpc3-chat-stream-nousage.sse");
    replay(&body, true, want).await;
}

#[tokio::test]
async fn a_killed_vllm_worker_is_a_stream_error_although_done() {
    let bytes = capture("vllm-0.32.0-cpu-tp2-worker-killed-midstream.http");
    let want = Want {
        transport: Transport::StreamError,
        cause: EndCause::Done,
        prompt: None,
        completion: None,
        texts: 0,
        empties: 56,
        finish: None,
        content: String::new(),
    };
    replay(body_of(&bytes), true, want).await;
}

#[tokio::test]
async fn a_killed_llama_cpp_node_is_a_truncated_stream() {
    let bytes = capture("llamacpp-b11434-rpc-node-killed-midstream.http");
    let (_, response) = play(coded(body_of(&bytes), CUTS[0], false)).await;
    assert!(response.content.contains("Write a short story"));
    let want = Want {
        transport: Transport::Truncated,
        cause: EndCause::IoError,
        prompt: None,
        completion: None,
        texts: 27,
        empties: 1,
        finish: None,
        content: response.content,
    };
    replay(body_of(&bytes), false, want).await;
}

#[tokio::test]
async fn refusals_are_http_errors_with_their_text() {
    for (name, status) in [
        ("llamacpp-b11434-rpc3-err-badjson.http", 400),
        ("vllm-0.32.0-cpu-err-badjson.http", 400),
        ("vllm-0.32.0-cpu-err-badmodel.http", 404),
        ("vllm-0.32.0-cpu-err-toolong.http", 400),
    ] {
        let bytes = capture(name);
        for size in [usize::MAX, 1] {
            let (trace, response) = play(bytes.chunks(size).map(send).collect()).await;
            assert_eq!(trace.transport(), Transport::HttpError, "{name}");
            assert_eq!(trace.status, Some(status));
            assert_eq!(response.errors[0].as_bytes(), body_of(&bytes));
            assert!(trace.deltas.is_empty() && trace.first_event.is_none());
        }
    }
}

#[tokio::test]
async fn a_whole_answer_of_a_real_server_is_not_taken_for_a_stream() {
    let body = capture("vllm-0.32.0-cpu-chat-nonstream.json");
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let (trace, response) = play(vec![send([head.as_bytes(), &body].concat())]).await;
    assert_eq!(trace.transport(), Transport::StreamError);
    assert_eq!(response.errors[0].as_bytes(), body);
    assert_eq!(trace.usage, None);
}

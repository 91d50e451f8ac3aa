//! Every trap of a stream at every byte split: what an answer comes to must not
//! depend on how its bytes were cut into reads.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use proptest::prelude::*;
use runseal::digest::Sha256Digest;
use runseal::event::{EventLine, FORMAT, Header};
use runseal::trace::{DeltaTrace, Traces, Usage};

use super::*;

const SALT: [u8; 32] = [7; 32];
const FINISH: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5}}\n\n";

fn delta(fields: &str) -> String {
    format!(
        "data: {{\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{{{fields}}},\"finish_reason\":null}}]}}\n\n"
    )
}

fn content(text: &str) -> String {
    delta(&format!("\"content\":\"{text}\""))
}

/// What a stream comes to, times and reads aside.
#[derive(Debug, Clone, PartialEq)]
struct Sum {
    transport: Transport,
    cause: Option<EndCause>,
    deltas: Vec<DeltaTrace>,
    chunks: usize,
    usage: Option<Usage>,
    first_chunk_tokens: Option<u64>,
    finish: Option<String>,
    done: bool,
    errors: Vec<(u64, String)>,
    odd: BTreeMap<Oddity, u64>,
    response: Response,
}

/// Feeds the stream once for each list of cuts, as one attempt each, and gives what
/// the log and the answer say of each.
fn sums(stream: &[u8], cuts: impl Iterator<Item = Vec<usize>>) -> Vec<Sum> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let header = Header {
        epoch: "1970-01-01T00:00:00Z".into(),
        format: FORMAT.into(),
        nonce_hash: Sha256Digest([0; 32]),
        run_id: "traps".into(),
    };
    let recorder = Recorder::create(&path, &header, Instant::now()).unwrap();
    let responses: Vec<Response> = cuts
        .enumerate()
        .map(|(req, cuts)| feed(&recorder, req as u32, stream, &cuts))
        .collect();
    recorder.finish().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<EventLine> = text
        .lines()
        .skip(1)
        .map(|l| runseal::json::from_slice(l.as_bytes()).unwrap())
        .collect();
    let traces = Traces::build(&lines);
    assert!(traces.findings.is_empty(), "{:?}", traces.findings);
    let sums = traces.requests.into_iter().zip(responses);
    sums.map(|(trace, response)| Sum {
        transport: trace.transport(),
        cause: trace.cause,
        chunks: trace.chunks.len(),
        usage: trace.usage,
        first_chunk_tokens: trace.first_chunk_tokens,
        finish: trace.finish,
        done: trace.done.is_some(),
        errors: trace.errors,
        odd: trace.odd,
        deltas: trace.deltas,
        response: Response { req: 0, ..response },
    })
    .collect()
}

fn feed(recorder: &Recorder, req: u32, stream: &[u8], cuts: &[usize]) -> Response {
    let mut log = Log::new(recorder.clone(), req);
    for event in [
        Event::Queued {
            req,
            case: "c".into(),
            rep: 0,
            attempt: 0,
            warmup: false,
            endpoint: "e".into(),
        },
        Event::Body {
            req,
            len: 2,
            digest: Sha256Digest([0; 32]),
        },
        Event::Connected {
            req,
            reused: true,
            peer: "127.0.0.1:1".into(),
        },
    ] {
        log.push(0, &event);
    }
    let mut answer = Answer::new(log, SALT, Headers::default());
    answer.sent(1);
    answer.read(2, 100);
    let head = hyper::Response::builder().header(CONTENT_TYPE, "text/event-stream");
    answer.head(&head.body(()).unwrap().into_parts().0);
    let mut from = 0;
    let mut t = 2;
    for to in cuts.iter().copied().chain([stream.len()]) {
        let piece = &stream[from..to];
        from = to;
        t += 1;
        if piece.is_empty() {
            continue;
        }
        answer.read(t, piece.len() as u64);
        if let ControlFlow::Break(cause) = answer.data(piece) {
            answer.end(t, cause);
            return answer.into_response();
        }
    }
    let cause = answer.ended(Ending::Clean);
    answer.end(t, cause);
    answer.into_response()
}

/// A trap, and what has to come of it.
struct Trap {
    name: &'static str,
    stream: Vec<u8>,
    transport: Transport,
    content: &'static str,
    reasoning: &'static str,
    chunks: usize,
    tokens: Option<u64>,
    odd: &'static [(Oddity, u64)],
    errors: usize,
}

fn trap(name: &'static str, stream: impl Into<Vec<u8>>) -> Trap {
    Trap {
        name,
        stream: stream.into(),
        transport: Transport::Completed,
        content: "",
        reasoning: "",
        chunks: 0,
        tokens: None,
        odd: &[],
        errors: 0,
    }
}

fn traps() -> Vec<Trap> {
    let ab = content("a") + &content("b");
    let plain = format!("{ab}{FINISH}{USAGE}{DONE}");
    let framed = |name, stream: String| Trap {
        content: "ab",
        chunks: 2,
        tokens: Some(5),
        ..trap(name, stream)
    };
    let mut bad = format!("{ab}{}{FINISH}{USAGE}{DONE}", content("?")).into_bytes();
    let at = bad.iter().position(|b| *b == b'?').unwrap();
    bad[at] = 0xff;
    vec![
        trap(
            "role-only, null and empty deltas",
            delta("\"role\":\"assistant\",\"content\":\"\"")
                + &delta("\"content\":null,\"reasoning_content\":null,\"tool_calls\":null")
                + &delta("")
                + FINISH
                + DONE,
        ),
        Trap {
            reasoning: "think",
            chunks: 2,
            ..trap(
                "only reasoning, in either field and in both",
                delta("\"reasoning\":\"thi\",\"content\":\"\"")
                    + &delta("\"reasoning_content\":\"nk\",\"reasoning\":\"nk\"")
                    + FINISH
                    + DONE,
            )
        },
        Trap {
            content: "<think>a</think>",
            chunks: 1,
            ..trap("think tags", content("<think>a</think>") + FINISH + DONE)
        },
        Trap {
            chunks: 2,
            ..trap(
                "tool arguments",
                delta(r#""tool_calls":[{"index":0,"function":{"name":"f","arguments":"{"}}]"#)
                    + &delta(r#""tool_calls":[{"index":0,"function":{"arguments":"}"}}]"#)
                    + FINISH
                    + DONE,
            )
        },
        Trap {
            tokens: Some(0),
            ..trap(
                "no tokens",
                FINISH.to_owned()
                    + "data: {\"choices\":[],\"usage\":{\"completion_tokens\":0}}\n\n"
                    + DONE,
            )
        },
        Trap {
            content: "x",
            chunks: 1,
            tokens: Some(3),
            odd: &[(Oddity::NoChoices, 2)],
            ..trap(
                "usage on every chunk, null, without choices",
                "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":{\"completion_tokens\":1}}\n\n"
                    .to_owned()
                    + FINISH
                    + "data: {\"choices\":[],\"usage\":null}\n\n"
                    + "data: {\"usage\":{\"completion_tokens\":3}}\n\n"
                    + "data: {\"choices\":[],\"usage\":null}\n\n"
                    + DONE,
            )
        },
        Trap {
            odd: &[
                (Oddity::Comment, 1),
                (Oddity::NoChoices, 3),
                (Oddity::AfterFinish, 1),
            ],
            ..framed(
                "what trails the finish",
                format!(
                    "{ab}{FINISH}{}data: {{\"cost\":1}}\n\ndata: {{\"choices\":[]}}\n\n: ping\n\nevent: ping\n\
                     data: {{}}\n\n{USAGE}{DONE}",
                    content("late")
                ),
            )
        },
        Trap {
            transport: Transport::StreamError,
            errors: 1,
            ..framed(
                "an error object inside the stream",
                format!("{ab}data: {{\"error\":{{\"message\":\"boom\"}}}}\n\n{FINISH}{USAGE}{DONE}"),
            )
        },
        Trap {
            transport: Transport::StreamError,
            errors: 1,
            ..framed(
                "event: error",
                format!("{ab}{FINISH}{USAGE}event: error\ndata: boom\n\n{DONE}"),
            )
        },
        Trap {
            transport: Transport::StreamError,
            errors: 1,
            ..framed(
                "event: error without data",
                format!("{ab}{FINISH}{USAGE}event: error\n\n{DONE}"),
            )
        },
        Trap {
            transport: Transport::Truncated,
            tokens: None,
            ..framed("neither finish reason nor [DONE]", ab.clone())
        },
        Trap {
            transport: Transport::Truncated,
            tokens: None,
            ..framed("[DONE] without finish reason", ab.clone() + DONE)
        },
        framed("finish reason without [DONE]", format!("{ab}{FINISH}{USAGE}")),
        framed("data: without space", plain.replace("data: ", "data:")),
        framed("CRLF", plain.replace('\n', "\r\n")),
        framed("CR", plain.replace('\n', "\r")),
        Trap {
            odd: &[(Oddity::Comment, 2)],
            ..framed(
                "byte order mark, comments, id and retry",
                format!("\u{feff}: hello\n\nretry: 5\nid: 7\n:\nevent: message\n{plain}"),
            )
        },
        framed(
            "several data lines",
            plain.replace(",\"choices\"", "\ndata: ,\"choices\""),
        ),
        framed(
            "[DONE] without a blank line",
            format!("{ab}{FINISH}{USAGE}data:[DONE]"),
        ),
        framed(
            "[DONE] with CRLF",
            format!("{ab}{FINISH}{USAGE}data: [DONE]\r\n\r\n"),
        ),
        Trap {
            content: "aé€😀",
            chunks: 1,
            ..trap("code points", content("aé€😀") + FINISH + DONE)
        },
        Trap {
            content: "é😀\n\"",
            chunks: 1,
            ..trap(
                "escapes and surrogates",
                content(r#"\u00e9\ud83d\ude00\n\""#) + FINISH + DONE,
            )
        },
        Trap {
            odd: &[(Oddity::BadUtf8, 1)],
            ..Trap {
                stream: bad,
                ..framed("one invalid byte", String::new())
            }
        },
        Trap {
            odd: &[(Oddity::NotJson, 2)],
            ..framed(
                "data that is not JSON",
                format!("data: {{\"choices\":[\n\ndata: hello\n\n{plain}"),
            )
        },
        Trap {
            odd: &[(Oddity::ManyChoices, 1)],
            ..framed(
                "another choice",
                format!(
                    "{ab}data: {{\"choices\":[{{\"index\":1,\"delta\":{{\"content\":\"B\"}}}}]}}\n\n{FINISH}{USAGE}{DONE}"
                ),
            )
        },
        Trap {
            odd: &[(Oddity::CutOff, 1)],
            transport: Transport::Truncated,
            tokens: None,
            ..framed("cut off inside an event", ab.clone() + FINISH.trim_end())
        },
        Trap {
            content: "xy",
            chunks: 2,
            tokens: Some(5),
            ..trap(
                "text completions",
                "data: {\"choices\":[{\"index\":0,\"text\":\"x\",\"finish_reason\":null}]}\n\n".to_owned()
                    + "data: {\"choices\":[{\"index\":0,\"text\":\"y\",\"finish_reason\":\"stop\"}]}\n\n"
                    + USAGE
                    + DONE,
            )
        },
    ]
}

#[test]
fn every_trap_gives_the_same_at_every_byte_split() {
    for trap in traps() {
        let len = trap.stream.len();
        let all = (0..=len).map(|at| vec![at]).chain([(0..len).collect()]);
        let sums = sums(&trap.stream, all);
        let first = &sums[0];
        let name = trap.name;
        assert_eq!(first.transport, trap.transport, "{name}");
        assert_eq!(first.response.content, trap.content, "{name}");
        assert_eq!(first.response.reasoning, trap.reasoning, "{name}");
        assert_eq!(first.chunks, trap.chunks, "{name}");
        let tokens = first.usage.and_then(|u| u.completion);
        assert_eq!(tokens, trap.tokens, "{name}");
        assert_eq!(first.odd, trap.odd.iter().copied().collect(), "{name}");
        assert_eq!(first.errors.len(), trap.errors, "{name}");
        assert_eq!(first.response.errors.len(), trap.errors, "{name}");
        for (at, sum) in sums.iter().enumerate() {
            assert_eq!(sum, first, "{name}: cut at {at} of {len}");
        }
    }
}

/// Streams of real servers, with the number of cuts that are tried one by one.
#[test]
fn captures_of_real_servers_give_the_same_at_every_byte_split() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "sse") {
            continue;
        }
        let stream = std::fs::read(&path).unwrap();
        let len = stream.len();
        let all = (0..=len).map(|at| vec![at]).chain([(0..len).collect()]);
        let sums = sums(&stream, all);
        assert_eq!(sums[0].transport, Transport::Completed, "{path:?}");
        for (at, sum) in sums.iter().enumerate() {
            assert_eq!(*sum, sums[0], "{path:?}: cut at {at} of {len}");
        }
        seen += 1;
    }
    assert!(seen >= 5, "{seen} captures");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn many_cuts_at_once_change_nothing(
        which in any::<prop::sample::Index>(),
        cuts in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..12), 1..20),
    ) {
        let traps = traps();
        let trap = which.get(&traps);
        let lists = cuts.iter().map(|list| {
            let mut list: Vec<usize> = list.iter().map(|i| i.index(trap.stream.len() + 1)).collect();
            list.sort_unstable();
            list
        });
        let sums = sums(&trap.stream, std::iter::once(Vec::new()).chain(lists));
        for sum in &sums {
            prop_assert_eq!(sum, &sums[0], "{}", trap.name);
        }
    }
}

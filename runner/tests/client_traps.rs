//! Things that servers do to load clients, one test each: what arrived must be
//! told from what merely looks like it.

mod scripted;

use runseal::event::{DeltaKind, EndCause, Oddity};
use runseal::trace::Transport;
use scripted::*;

#[tokio::test]
async fn role_only_null_and_empty_deltas_are_no_first_token() {
    let (trace, response) = play(stream(&[
        &delta(r#""role":"assistant","content":"""#),
        &delta(r#""role":"assistant","content":null,"tool_calls":null"#),
        &delta(""),
        FINISH,
        USAGE,
        DONE,
    ]))
    .await;
    assert_eq!(trace.transport(), Transport::Completed);
    assert!(trace.first_event.is_some());
    assert_eq!(trace.first_generated, None);
    assert_eq!(trace.first_content, None);
    assert!(trace.chunks.is_empty());
    assert_eq!(trace.deltas.len(), 4);
    assert_eq!(response.content, "");
}

#[tokio::test]
async fn a_role_chunk_during_prefill_does_not_stamp_the_first_token() {
    let (trace, _) = play(vec![
        send(format!("{STREAM}{}", delta(r#""role":"assistant""#))),
        Step::Sleep(40),
        send(content("x") + FINISH + DONE),
        Step::Close,
    ])
    .await;
    assert!(trace.first_event.unwrap() < trace.first_generated.unwrap());
    assert_eq!(trace.first_generated, trace.first_content);
}

#[tokio::test]
async fn reasoning_alone_is_generated_but_is_no_content() {
    let (trace, response) = play(stream(&[
        &delta(r#""reasoning":"think","content":"""#),
        &delta(r#""reasoning_content":"ing","reasoning":"ing""#),
        FINISH,
        DONE,
    ]))
    .await;
    assert_eq!(trace.transport(), Transport::Completed);
    assert!(trace.first_generated.is_some());
    assert_eq!(trace.first_content, None);
    assert_eq!(response.reasoning, "thinking");
    assert_eq!(response.content, "");
    assert_eq!(trace.chunks.len(), 2);
}

#[tokio::test]
async fn reasoning_and_content_of_one_event_are_two_deltas_and_one_chunk() {
    let (trace, _) = play(stream(&[
        &delta(r#""reasoning":"a","content":"b""#),
        FINISH,
        DONE,
    ]))
    .await;
    let kinds: Vec<_> = trace.deltas.iter().map(|d| (d.ev, d.kind)).collect();
    assert_eq!(kinds[0], (1, DeltaKind::Reasoning));
    assert_eq!(kinds[1], (1, DeltaKind::Content));
    assert_eq!(trace.chunks.len(), 1);
}

#[tokio::test]
async fn think_tags_inside_content_stay_content() {
    let (trace, response) = play(stream(&[&content("<think>a</think>b"), FINISH, DONE])).await;
    assert_eq!(response.content, "<think>a</think>b");
    assert!(trace.first_content.is_some());
}

#[tokio::test]
async fn tool_arguments_are_output() {
    let call = |args: &str| {
        delta(&format!(
            r#""tool_calls":[{{"index":0,"function":{{"name":"f","arguments":"{args}"}}}}]"#
        ))
    };
    let (trace, response) = play(stream(&[&call("{"), &call("}"), FINISH, DONE])).await;
    assert!(trace.first_generated.is_some());
    assert_eq!(trace.first_content, None);
    assert_eq!(response.tool_calls()[0]["arguments"], "{}");
}

#[tokio::test]
async fn no_tokens_at_all_is_not_a_division() {
    let zero = r#"data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":0}}"#;
    let (trace, _) = play(stream(&[FINISH, zero, "\n\n", DONE])).await;
    assert_eq!(trace.transport(), Transport::Completed);
    assert_eq!(trace.completion_tokens(), Some(0));
    assert_eq!(trace.first_generated, None);
}

#[tokio::test]
async fn usage_is_taken_wherever_and_however_often_it_comes() {
    let with = |n: u32| {
        format!(
            r#"data: {{"choices":[{{"delta":{{"content":"x"}}}}],"usage":{{"completion_tokens":{n},"prompt_tokens":7}}}}"#
        ) + "\n\n"
    };
    // On every chunk, then null, then without choices at all.
    let null = "data: {\"choices\":[],\"usage\":null}\n\n";
    let bare = "data: {\"usage\":{\"completion_tokens\":3,\"reasoning_tokens\":2}}\n\n";
    let (trace, _) = play(stream(&[
        &with(1),
        &with(2),
        FINISH,
        null,
        bare,
        null,
        DONE,
    ]))
    .await;
    assert_eq!(trace.completion_tokens(), Some(3));
    assert_eq!(trace.prompt_tokens(), Some(7));
    assert_eq!(trace.usage.unwrap().reasoning, Some(2));
    assert_eq!(trace.chunks.len(), 2);
    assert_eq!(trace.odd[&Oddity::NoChoices], 2);
    // On the finish chunk.
    let finish = r#"data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"completion_tokens":5}}"#;
    let (trace, _) = play(stream(&[&content("x"), finish, "\n\n", DONE])).await;
    assert_eq!(trace.completion_tokens(), Some(5));
    // Zero with text means that nothing was reported; so does no usage.
    let zero = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":0}}\n\n";
    let (trace, _) = play(stream(&[&content("x"), FINISH, zero, DONE])).await;
    assert_eq!(trace.completion_tokens(), None);
    let (trace, _) = play(stream(&[&content("x"), FINISH, DONE])).await;
    assert_eq!(trace.usage, None);
}

#[tokio::test]
async fn what_trails_the_finish_is_recorded_and_not_used() {
    let cost = "data: {\"cost\":0.1}\n\n";
    let empty = "data: {\"choices\":[]}\n\n";
    let (trace, response) = play(stream(&[
        &content("a"),
        FINISH,
        &content("late"),
        cost,
        empty,
        ": ping\n\n",
        "event: ping\ndata: {}\n\n",
        USAGE,
        DONE,
    ]))
    .await;
    assert_eq!(trace.transport(), Transport::Completed);
    assert_eq!(response.content, "a");
    assert_eq!(trace.odd[&Oddity::AfterFinish], 1);
    assert_eq!(trace.odd[&Oddity::NoChoices], 3);
    assert_eq!(trace.odd[&Oddity::Comment], 1);
    assert_eq!(trace.completion_tokens(), Some(5));
}

#[tokio::test]
async fn an_error_inside_a_stream_is_no_success_and_keeps_what_came_before() {
    for error in [
        "data: {\"error\":{\"message\":\"boom\"}}\n\n",
        "event: error\ndata: boom\n\n",
        "event: error\n\n",
        "data: {\"object\":\"error\",\"message\":\"boom\"}\n\n",
    ] {
        let (trace, response) = play(stream(&[&content("a"), FINISH, error, DONE])).await;
        assert_eq!(trace.transport(), Transport::StreamError, "{error}");
        assert_eq!(response.content, "a");
        assert_eq!(response.errors.len(), 1);
        assert_eq!(trace.cause, Some(EndCause::Done));
    }
}

#[tokio::test]
async fn a_stream_without_finish_reason_is_truncated_even_when_done() {
    let (trace, response) = play(stream(&[&content("a")])).await;
    assert_eq!(trace.transport(), Transport::Truncated);
    assert_eq!(trace.cause, Some(EndCause::Eof));
    assert_eq!(response.content, "a");
    let (trace, _) = play(stream(&[&content("a"), DONE])).await;
    assert_eq!(trace.transport(), Transport::Truncated);
    assert_eq!(trace.cause, Some(EndCause::Done));
}

#[tokio::test]
async fn a_finish_reason_without_done_is_complete_when_the_body_ends_cleanly() {
    let (trace, _) = play(stream(&[&content("a"), FINISH])).await;
    assert_eq!(trace.transport(), Transport::Completed);
    assert_eq!(trace.done, None);
    // The same in chunked coding, cut off before the last chunk, is not clean.
    let cut = vec![
        send(CHUNKED),
        Step::Send(chunk(content("a") + FINISH)),
        Step::Close,
    ];
    let (trace, _) = play(cut).await;
    assert_eq!(trace.transport(), Transport::Truncated);
    assert_eq!(trace.cause, Some(EndCause::IoError));
}

#[tokio::test]
async fn every_legal_framing_gives_the_same_answer_byte_by_byte() {
    let plain = format!("{}{}{USAGE}{DONE}", content("a\nb"), FINISH);
    let variants = [
        plain.clone(),
        plain.replace("data: ", "data:"),
        plain.replace('\n', "\r\n"),
        plain.replace('\n', "\r"),
        format!("\u{feff}: hello\n\nretry: 5\nid: 7\nevent: message\n{plain}"),
        // A JSON text may be spread over several data lines.
        plain.replace(",\"choices\"", "\ndata: ,\"choices\""),
        plain.replace("[DONE]\n\n", "[DONE]\r\n\r\n"),
        plain.trim_end().to_owned(),
    ];
    for text in variants {
        let mut script = vec![send(CHUNKED)];
        // Each byte is a chunk of its own; each write ends inside a chunk.
        let coded: Vec<u8> = text.bytes().flat_map(|b| chunk([b])).collect();
        script.extend(coded.chunks(61).map(send));
        script.push(send(LAST));
        let (trace, response) = play(script).await;
        assert_eq!(trace.transport(), Transport::Completed, "{text:?}");
        assert_eq!(trace.cause, Some(EndCause::Done), "{text:?}");
        assert_eq!(response.content, "a\nb");
        assert_eq!(trace.completion_tokens(), Some(5));
        assert_eq!(response.model.as_deref(), Some("m"));
    }
}

#[tokio::test]
async fn a_code_point_split_between_reads_is_whole_again() {
    let text = format!("{STREAM}{}{FINISH}{DONE}", content("aé€😀"));
    for at in STREAM.len()..text.len() {
        let (a, b) = text.as_bytes().split_at(at);
        // Only cuts inside the letters are worth a connection each.
        if text.is_char_boundary(at) {
            continue;
        }
        let (trace, response) = play(vec![send(a), Step::Sleep(5), send(b), Step::Close]).await;
        assert_eq!(response.content, "aé€😀");
        assert_eq!(trace.transport(), Transport::Completed);
        assert!(trace.odd.is_empty());
    }
}

#[tokio::test]
async fn one_invalid_byte_spoils_one_event_only() {
    let mut bad = content("?").into_bytes();
    let at = bad.iter().position(|b| *b == b'?').unwrap();
    bad[at] = 0xff;
    let head = format!("{STREAM}{}", content("a"));
    let rest = content("b") + FINISH + DONE;
    let bytes = [head.as_bytes(), &bad, rest.as_bytes()].concat();
    let (trace, response) = play(vec![Step::Send(bytes), Step::Close]).await;
    assert_eq!(trace.odd[&Oddity::BadUtf8], 1);
    assert_eq!(trace.odd.len(), 1);
    assert_eq!(response.content, "ab");
    assert_eq!(trace.transport(), Transport::Completed);
}

#[tokio::test]
async fn data_that_is_not_json_is_recorded_and_later_text_arrives() {
    let (trace, response) = play(stream(&[
        "data: {\"choices\":[\n\n",
        &content("a"),
        "data: hello\n\n",
        FINISH,
        DONE,
    ]))
    .await;
    assert_eq!(trace.odd[&Oddity::NotJson], 2);
    assert_eq!(response.content, "a");
}

#[tokio::test]
async fn other_choices_are_not_mixed_into_the_first() {
    let second = "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"B\"}}]}\n\n";
    let both = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"}},{\"index\":1,\"delta\":{\"content\":\"B\"}}]}\n\n";
    let (trace, response) = play(stream(&[&content("a"), second, both, FINISH, DONE])).await;
    assert_eq!(response.content, "ab");
    assert_eq!(trace.odd[&Oddity::ManyChoices], 2);
}

#[tokio::test]
async fn bytes_behind_done_in_its_read_are_noted() {
    let (trace, response) = play(stream(&[&content("a"), FINISH, DONE, &content("b")])).await;
    assert_eq!(trace.odd[&Oddity::AfterDone], 1);
    assert_eq!(response.content, "a");
    // The same when they are another chunk of the coding.
    let two = [chunk(content("a") + FINISH + DONE), chunk("data: x\n\n")].concat();
    let script = vec![send([CHUNKED.as_bytes(), &two, LAST.as_bytes()].concat())];
    let (trace, _) = play(script).await;
    assert_eq!(trace.odd[&Oddity::AfterDone], 1);
}

#[tokio::test]
async fn an_event_cut_off_by_the_end_is_not_used_but_noted() {
    let text = content("a") + FINISH.trim_end() + "\n";
    let (trace, response) = play(stream(&[&text])).await;
    assert_eq!(trace.odd[&Oddity::CutOff], 1);
    assert_eq!(trace.transport(), Transport::Truncated);
    assert_eq!(response.content, "a");
    let (trace, _) = play(stream(&[&content("a"), FINISH, "data: [DO"])).await;
    assert_eq!(trace.odd[&Oddity::CutOff], 1);
    assert_eq!(trace.cause, Some(EndCause::Eof));
}

#[tokio::test]
async fn an_event_without_end_does_not_eat_the_memory() {
    let mut script = vec![send(STREAM), send("data: ")];
    script.extend((0..9).map(|_| Step::Send(vec![b'x'; 1 << 20])));
    script.push(Step::Hold);
    let (trace, _) = play(script).await;
    assert_eq!(trace.cause, Some(EndCause::Malformed));
    assert_eq!(trace.transport(), Transport::StreamError);
}

#[tokio::test]
async fn an_error_status_keeps_its_text() {
    let body = "x".repeat(100_000);
    let head = format!(
        "HTTP/1.1 503 Busy\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let (trace, response) = play(vec![send(head + &body)]).await;
    assert_eq!(trace.transport(), Transport::HttpError);
    assert_eq!(trace.status, Some(503));
    assert_eq!(response.errors, [body[..64 << 10].to_owned()]);
    // Even when it comes as a stream that looks complete.
    let stream = STREAM.replace("200 OK", "500 Oops") + &content("a") + FINISH + DONE;
    let (trace, response) = play(vec![send(stream), Step::Close]).await;
    assert_eq!(trace.transport(), Transport::HttpError);
    assert_eq!(response.content, "");
}

#[tokio::test]
async fn a_whole_answer_where_a_stream_was_asked_for_is_no_success() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    let (trace, response) = play(vec![send(head)]).await;
    assert_eq!(trace.transport(), Transport::StreamError);
    assert_eq!(response.errors, ["{}"]);
    assert!(!trace.event_stream);
}

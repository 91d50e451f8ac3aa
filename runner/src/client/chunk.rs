//! What the data of one server-sent event says, in the dialects of the
//! OpenAI-compatible servers.
//!
//! Servers differ in where they put reasoning text (`reasoning`,
//! `reasoning_content`, or the same text in both), in where usage sits (a chunk
//! of its own without choices, the finish chunk, every chunk), and in what they
//! send around the answer. [`interpret`] names these things without judging
//! them; the caller decides what counts. Values of an unexpected type are
//! treated as absent, so one odd field never hides the rest of a chunk.

use std::borrow::Cow;

use runseal::json::{MAX_INTEGER, canonical};
use runseal::trace::Usage;
use serde_json::Value;

use super::quick;

/// The data of one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload<'a> {
    /// `[DONE]`.
    Done,
    /// The server reports an error; the text is the data as it came.
    Error(&'a str),
    /// Nothing but white space: a ping.
    Blank,
    /// Not JSON.
    NotJson,
    /// An event of an unknown type, or JSON that holds neither a choice nor usage.
    NoChoices,
    /// A chunk with a choice, usage, or both.
    Chunk(Chunk<'a>),
}

/// A chunk of a chat or text completion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Echoed model name.
    pub model: Option<Cow<'a, str>>,
    /// The choice, when there is one.
    pub choice: Option<Choice<'a>>,
    /// Choices were left out of account: several, or one with an index above 0.
    pub many: bool,
    /// Usage that says at least one number.
    pub usage: Option<Usage>,
}

/// The first choice of a chunk. Texts are present only when not empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice<'a> {
    /// Reasoning text.
    pub reasoning: Option<Cow<'a, str>>,
    /// Final-content text.
    pub content: Option<Cow<'a, str>>,
    /// The `tool_calls` array as canonical JSON.
    pub tool: Option<String>,
    /// Finish reason, when not null and not empty.
    pub finish: Option<Cow<'a, str>>,
}

/// Interprets one event. `name` is its `event:` field.
///
/// Chunks of the common shape are read in one pass, everything else by
/// [`interpret_fully`]; the results are the same.
pub fn interpret<'a>(name: &[u8], data: &'a str) -> Payload<'a> {
    if name.is_empty()
        && data.starts_with('{')
        && let Some(payload) = quick::read(data)
    {
        return payload;
    }
    interpret_fully(name, data)
}

/// Interprets one event by way of the full JSON tree.
pub fn interpret_fully<'a>(name: &[u8], data: &'a str) -> Payload<'a> {
    if name == b"error" {
        return Payload::Error(data);
    }
    let trimmed = data.trim_ascii();
    if trimmed == "[DONE]" {
        return Payload::Done;
    }
    if !name.is_empty() && name != b"message" {
        return Payload::NoChoices;
    }
    if trimmed.is_empty() {
        return Payload::Blank;
    }
    let Ok(mut value) = serde_json::from_str::<Value>(trimmed) else {
        return Payload::NotJson;
    };
    // `object: "error"` is how older servers mark an error without a wrapper.
    if value.get("error").is_some_and(|e| !e.is_null()) || value["object"] == "error" {
        return Payload::Error(data);
    }
    let usage = value.get("usage").and_then(usage);
    let model = value.get_mut("model").and_then(text);
    let (choice, many) = match value.get_mut("choices").and_then(Value::as_array_mut) {
        Some(list) => first_choice(list),
        None => (None, false),
    };
    if choice.is_none() && usage.is_none() && !many {
        return Payload::NoChoices;
    }
    Payload::Chunk(Chunk {
        model,
        choice,
        many,
        usage,
    })
}

fn first_choice(list: &mut [Value]) -> (Option<Choice<'static>>, bool) {
    let many = list.len() > 1;
    let index_zero =
        |c: &Value| c.is_object() && c.get("index").is_none_or(|i| i == 0 || i.is_null());
    match list.iter_mut().find(|c| index_zero(c)) {
        Some(value) => (Some(choice(value)), many),
        None => (None, !list.is_empty()),
    }
}

fn choice(value: &mut Value) -> Choice<'static> {
    let finish = value.get_mut("finish_reason").and_then(text);
    let Some(delta) = value.get_mut("delta").filter(|d| d.is_object()) else {
        return Choice {
            content: value.get_mut("text").and_then(text),
            finish,
            ..Choice::default()
        };
    };
    let reasoning = delta.get_mut("reasoning").and_then(text);
    let other = delta.get_mut("reasoning_content").and_then(text);
    let reasoning = match (reasoning, other) {
        // Some servers fill both fields for old and new readers.
        (Some(a), Some(b)) if a == b => Some(a),
        // Different texts are both output; none may vanish.
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    };
    let tool = delta
        .get("tool_calls")
        .filter(|calls| calls.as_array().is_some_and(|a| !a.is_empty()))
        .and_then(|calls| String::from_utf8(canonical(calls)).ok());
    Choice {
        reasoning,
        content: delta.get_mut("content").and_then(text),
        tool,
        finish,
    }
}

/// A string that is not empty.
fn text(value: &mut Value) -> Option<Cow<'static, str>> {
    match value.take() {
        Value::String(s) if !s.is_empty() => Some(Cow::Owned(s)),
        _ => None,
    }
}

fn usage(value: &Value) -> Option<Usage> {
    // A count past 2^53 is no count of tokens, and could not be written to the
    // log as a number that every reader accepts.
    let number = |v: &Value| v.as_u64().filter(|n| *n <= MAX_INTEGER);
    let inner = |group: &str, name: &str| value.get(group)?.get(name).and_then(number);
    let field = |name: &str| value.get(name).and_then(number);
    let usage = Usage {
        prompt: field("prompt_tokens"),
        completion: field("completion_tokens"),
        reasoning: field("reasoning_tokens")
            .or_else(|| inner("completion_tokens_details", "reasoning_tokens")),
        cached: inner("prompt_tokens_details", "cached_tokens"),
    };
    (usage != Usage::default()).then_some(usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(data: &str) -> Chunk<'_> {
        match interpret(b"", data) {
            Payload::Chunk(chunk) => chunk,
            other => panic!("{data}: {other:?}"),
        }
    }

    fn delta(delta: &str) -> Choice<'static> {
        let data = format!(r#"{{"choices":[{{"index":0,"delta":{delta}}}]}}"#);
        let choice = chunk(&data).choice.unwrap();
        Choice {
            reasoning: choice.reasoning.map(|t| t.into_owned().into()),
            content: choice.content.map(|t| t.into_owned().into()),
            tool: choice.tool,
            finish: choice.finish.map(|t| t.into_owned().into()),
        }
    }

    #[test]
    fn role_null_and_empty_deltas_carry_nothing() {
        for d in [
            r#"{"role":"assistant","content":""}"#,
            r#"{"role":"assistant","content":null,"reasoning_content":null,"tool_calls":null}"#,
            r#"{"tool_calls":[]}"#,
            "{}",
            r#"{"content":["parts"]}"#,
        ] {
            assert_eq!(delta(d), Choice::default(), "{d}");
        }
    }

    #[test]
    fn the_same_reasoning_in_both_fields_is_one_delta() {
        let d = delta(r#"{"reasoning":"a","reasoning_content":"a"}"#);
        assert_eq!(d.reasoning.as_deref(), Some("a"));
        let d = delta(r#"{"reasoning":"a","reasoning_content":"b"}"#);
        assert_eq!(d.reasoning.as_deref(), Some("ab"));
        let d = delta(r#"{"reasoning_content":"b","reasoning":null}"#);
        assert_eq!(d.reasoning.as_deref(), Some("b"));
        assert_eq!(d.content, None);
    }

    #[test]
    fn text_completions_and_tools_are_read() {
        let c = chunk(r#"{"choices":[{"index":0,"text":"x","finish_reason":"stop"}]}"#);
        let c = c.choice.unwrap();
        assert_eq!(c.content.as_deref(), Some("x"));
        assert_eq!(c.finish.as_deref(), Some("stop"));
        let d = delta(r#"{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{"}}]}"#);
        assert_eq!(
            d.tool.as_deref(),
            Some(r#"[{"function":{"arguments":"{","name":"f"},"index":0}]"#)
        );
    }

    #[test]
    fn usage_is_found_wherever_it_sits() {
        let c = chunk(
            r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":{"reasoning_tokens":1}}}"#,
        );
        let want = Usage {
            prompt: Some(3),
            completion: Some(2),
            reasoning: Some(1),
            cached: Some(1),
        };
        assert_eq!((c.choice, c.usage), (None, Some(want)));
        let c = chunk(r#"{"usage":{"completion_tokens":2,"reasoning_tokens":7}}"#);
        assert_eq!(c.usage.unwrap().reasoning, Some(7));
        let c = chunk(r#"{"choices":[{"delta":{}}],"usage":null}"#);
        assert_eq!(c.usage, None);
        let c = chunk(
            r#"{"choices":[{"delta":{}}],"usage":{"completion_tokens":9007199254740993,"prompt_tokens":-1}}"#,
        );
        assert_eq!(c.usage, None);
    }

    #[test]
    fn errors_pings_and_rubbish_are_told_apart() {
        assert_eq!(interpret(b"", " [DONE] "), Payload::Done);
        assert_eq!(interpret(b"error", "boom"), Payload::Error("boom"));
        let e = r#"{"error":"boom","choices":[]}"#;
        assert_eq!(interpret(b"", e), Payload::Error(e));
        let e = r#"{"object":"error","message":"boom"}"#;
        assert_eq!(interpret(b"", e), Payload::Error(e));
        assert_eq!(interpret(b"", ""), Payload::Blank);
        assert_eq!(
            interpret(b"ping", r#"{"choices":[{}]}"#),
            Payload::NoChoices
        );
        assert_eq!(interpret(b"", r#"{"choices":[]}"#), Payload::NoChoices);
        assert_eq!(interpret(b"", r#"{"error":null}"#), Payload::NoChoices);
        assert_eq!(interpret(b"", r#""text""#), Payload::NoChoices);
        assert_eq!(interpret(b"", "{"), Payload::NotJson);
    }

    #[test]
    fn only_the_first_choice_counts_and_others_are_seen() {
        let c = chunk(r#"{"choices":[{"index":1,"text":"b"},{"index":0,"text":"a"}]}"#);
        assert!(c.many);
        assert_eq!(c.choice.unwrap().content.as_deref(), Some("a"));
        let c = chunk(r#"{"choices":[{"index":1,"text":"b"}]}"#);
        assert!(c.many && c.choice.is_none());
    }
}

//! The one-pass reader of common chunks against the full parser: on every text,
//! likely or not, both say the same.

use proptest::prelude::*;
use runseal::event::DeltaKind;
use runseal_runner::client::chunk::{Choice, Chunk, Payload, interpret, interpret_fully};
use runseal_runner::client::template::Template;

fn string() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[ a-zé😀]{0,6}".prop_map(|t| format!("\"{t}\"")),
        1 => any::<String>().prop_map(|t| serde_json::to_string(&t).unwrap()),
        1 => prop::sample::select(vec![
            r#""error""#, r#""stop""#, r#""a\nb\"""#, r#""\u0041""#, r#""\ud800""#, r#""\x""#,
            "\"\u{1}\"", "\"open", r#""\/\b\f\r\t\\""#, r#""""#,
        ]).prop_map(str::to_owned),
    ]
}

fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => string(),
        3 => Just("null".to_owned()),
        2 => Just("0".to_owned()),
        2 => (0u64..1 << 60).prop_map(|n| n.to_string()),
        2 => prop::sample::select(vec![
            "1", "00", "01", "-0", "-1", "0.0", "1.5", "1e3", "1e999", "9007199254740991",
            "9007199254740993", "999999999999999", "1000000000000000", "99999999999999999999",
            "true", "false", "nul", "nullx", "tru", "", "1.", "1x", "+1", "NaN", "[]", "{}", "[1", "{,}",
        ]).prop_map(str::to_owned),
    ]
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "error",
        "object",
        "usage",
        "model",
        "choices",
        "index",
        "delta",
        "finish_reason",
        "text",
        "content",
        "reasoning",
        "reasoning_content",
        "tool_calls",
        "role",
        "prompt_tokens",
        "completion_tokens",
        "reasoning_tokens",
        "cached_tokens",
        "prompt_tokens_details",
        "completion_tokens_details",
        "logprobs",
        "id",
        r"\u0069d",
        "",
    ])
    .prop_map(|k| format!("\"{k}\""))
}

fn space() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "", "", "", " ", "\t", "\n ", "\u{b}"])
}

fn members(value: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    prop::collection::vec((key(), space(), value, space()), 0..5).prop_map(|all| {
        let all: Vec<_> = all
            .into_iter()
            .map(|(k, a, v, b)| format!("{k}:{a}{v}{b}"))
            .collect();
        format!("{{{}}}", all.join(","))
    })
}

/// Anything made of the words of the protocol.
fn soup() -> impl Strategy<Value = String> {
    scalar().prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            4 => members(inner.clone()),
            2 => prop::collection::vec(inner, 0..3).prop_map(|v| format!("[{}]", v.join(","))),
        ]
    })
}

/// A member that is usually what it should be.
fn field(name: &str, likely: impl Strategy<Value = String> + 'static) -> BoxedStrategy<String> {
    let name = name.to_owned();
    prop_oneof![
        3 => likely.prop_map(Some),
        2 => Just(Some("null".to_owned())),
        3 => Just(None),
        1 => soup().prop_map(Some),
    ]
    .prop_map(move |v| v.map_or(String::new(), |v| format!("\"{name}\":{v}")))
    .boxed()
}

fn object(fields: Vec<BoxedStrategy<String>>) -> BoxedStrategy<String> {
    (fields, any::<bool>())
        .prop_map(|(fields, double)| {
            let mut fields: Vec<_> = fields.into_iter().filter(|f| !f.is_empty()).collect();
            if double && fields.len() > 3 {
                fields.push(fields[0].clone());
            }
            format!("{{{}}}", fields.join(","))
        })
        .boxed()
}

fn number() -> impl Strategy<Value = String> {
    (0u64..100_000).prop_map(|n| n.to_string())
}

fn chunk() -> impl Strategy<Value = String> {
    let delta = object(vec![
        field("role", string()),
        field("content", string()),
        field("reasoning", string()),
        field("reasoning_content", string()),
        field("tool_calls", Just("[]".to_owned())),
    ]);
    let choice = object(vec![
        field("index", Just("0".to_owned())),
        field("delta", delta),
        field("text", string()),
        field("logprobs", soup()),
        field("finish_reason", string()),
    ]);
    let list = prop_oneof![
        6 => choice.clone().prop_map(|c| format!("[{c}]")),
        1 => Just("[]".to_owned()),
        1 => (choice.clone(), choice).prop_map(|(a, b)| format!("[{a},{b}]")),
    ];
    let details = |name| object(vec![field(name, number()), field("audio_tokens", number())]);
    let usage = object(vec![
        field("prompt_tokens", number()),
        field("completion_tokens", number()),
        field("reasoning_tokens", number()),
        field("completion_tokens_details", details("reasoning_tokens")),
        field("prompt_tokens_details", details("cached_tokens")),
    ]);
    object(vec![
        field("id", string()),
        field("object", string()),
        field("created", number()),
        field("model", string()),
        field("choices", list),
        field("usage", usage),
        field("error", Just("null".to_owned())),
    ])
}

fn agree(data: &str) {
    for name in [&b""[..], b"message", b"error", b"ping"] {
        assert_eq!(interpret(name, data), interpret_fully(name, data), "{data}");
    }
}

/// Learns from `first`; when that takes `other` for a repetition, the full parser
/// must agree, and see the model name that it saw before.
fn repeats(first: &str, other: &str) -> bool {
    let Payload::Chunk(chunk) = interpret(b"", first) else {
        return false;
    };
    let Some(template) = Template::learn(first, &chunk) else {
        return false;
    };
    let Some((kind, text)) = template.text(other.as_bytes()) else {
        return false;
    };
    let text = Some(text.into());
    let (reasoning, content) = match kind {
        DeltaKind::Reasoning => (text, None),
        _ => (None, text),
    };
    let want = Payload::Chunk(Chunk {
        model: chunk.model,
        choice: Some(Choice {
            reasoning,
            content,
            ..Choice::default()
        }),
        ..Chunk::default()
    });
    assert_eq!(interpret_fully(b"", other), want, "{first} then {other}");
    true
}

/// A chunk that a template can be learned from, with a hole for the text.
fn alone() -> impl Strategy<Value = (String, String)> {
    let delta = prop::sample::select(vec!["content", "reasoning", "reasoning_content"]);
    let around = (
        delta,
        prop::option::of(string()),
        prop::option::of(soup()),
        any::<bool>(),
    );
    around.prop_map(|(name, model, extra, null)| {
        let model = model.map_or(String::new(), |m| format!("\"model\":{m},"));
        let extra = extra.map_or(String::new(), |e| format!(",\"x\":{e}"));
        let null = if null { ",\"finish_reason\":null" } else { "" };
        (
            format!("{{{model}\"choices\":[{{\"delta\":{{\"{name}\":\""),
            format!("\"{extra}}}{null}}}]}}"),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn both_read_chunks_alike(data in chunk(), before in space(), after in space()) {
        agree(&format!("{before}{data}{after}"));
    }

    #[test]
    fn both_read_anything_alike(data in soup()) {
        agree(&data);
        agree(&format!("{{\"choices\":[{data}]}}"));
        agree(&format!("{{\"choices\":[{{\"delta\":{data}}}],\"usage\":{data}}}"));
    }

    #[test]
    fn a_repetition_says_what_the_full_parser_says(
        (before, behind) in alone(),
        texts in prop::collection::vec(r#"[ -~é😀]{0,8}|\PC{0,4}|[\x00-\x7f]{0,3}|error|"\},"#, 2),
        at in any::<prop::sample::Index>(),
        to in "[\\PC\"{},:]{0,2}",
    ) {
        let whole = |t: &str| format!("{before}{t}{behind}");
        let (first, other) = (whole(&texts[0]), whole(&texts[1]));
        repeats(&first, &other);
        let mut chars: Vec<char> = other.chars().collect();
        let at = at.index(chars.len());
        chars.splice(at..at + 1, to.chars());
        repeats(&first, &chars.into_iter().collect::<String>());
    }

    #[test]
    fn chunks_of_all_kinds_repeat_soundly(a in chunk(), b in chunk()) {
        repeats(&a, &b);
        repeats(&a, &a);
    }

    #[test]
    fn both_read_damaged_chunks_alike(data in chunk(), at in any::<prop::sample::Index>(), to in "[\\PC\"{},:]{0,2}") {
        let mut chars: Vec<char> = data.chars().collect();
        if !chars.is_empty() {
            let at = at.index(chars.len());
            chars.splice(at..at + 1, to.chars());
        }
        agree(&chars.into_iter().collect::<String>());
    }
}

#[test]
fn a_template_takes_plain_texts_only() {
    let chunk = |text: &str| {
        format!("{{\"model\":\"m\",\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}")
    };
    let first = chunk("a");
    for plain in ["b", " word", "é😀", "a: {}[],"] {
        assert!(repeats(&first, &chunk(plain)), "{plain}");
    }
    for other in ["", r"\n", "\u{1}", r#"","role":"x"#, r#"a","content":"b"#] {
        assert!(!repeats(&first, &chunk(other)), "{other}");
    }
    assert!(!repeats(&first, &first[..first.len() - 1]));
    // Overlapping ends are no text.
    assert!(!repeats(&first, &chunk("").replace("\"\"", "\"")));
}

#[test]
fn nesting_and_size_are_no_difference() {
    for n in [1, 14, 15, 16, 17, 126, 127, 128, 129] {
        let deep = format!("{}1{}", "[".repeat(n), "]".repeat(n));
        agree(&format!("{{\"x\":{deep},\"choices\":[{{}}]}}"));
        agree(&format!("{{\"choices\":[{{\"delta\":{{\"x\":{deep}}}}}]}}"));
    }
    agree("{\"choices\":[{}]} x");
    agree("{\"choices\":[{},]}");
    agree("{\"choices\":[{}],}");
}

//! Published records with something odd in every place: a report each time, never a
//! panic, and never "verified".

use std::path::Path;

use runseal::audit::Verdict;
use runseal::policy::Trust;
use runseal::published::report::human;
use runseal::published::{self, Nothing, envelope, kind};
use serde_json::{Value, json};

fn odd(i: usize) -> Value {
    let all = [
        json!(null),
        json!(0),
        json!(-1),
        json!(1e308),
        json!(5e-324),
        json!(9007199254740992_u64),
        json!(""),
        json!("9".repeat(5000)),
        json!("\u{202e}\u{1b}[2J 9k context is faster"),
        json!([]),
        json!([[[{}]]]),
        json!({"a": {}}),
        json!(true),
    ];
    all[i % all.len()].clone()
}

/// Pointers to every value of a document.
fn places(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match value {
        Value::Object(map) => {
            for (key, v) in map {
                let key = key.replace('~', "~0").replace('/', "~1");
                places(v, &format!("{at}/{key}"), out);
            }
        }
        Value::Array(items) => {
            for (i, v) in items.iter().enumerate() {
                places(v, &format!("{at}/{i}"), out);
            }
        }
        _ => {}
    }
}

fn look(value: &Value) {
    let Ok(kind) = kind::of(value) else {
        return;
    };
    let bytes = serde_json::to_vec(value).unwrap();
    let report = match kind {
        kind::Kind::Envelope => envelope::audit("r.json", &bytes, &Trust::default(), &Nothing),
        _ => published::audit("r.json", &bytes, value, kind, &Nothing),
    };
    assert_ne!(report.verdict, Verdict::Verified);
    human(&report, true);
}

#[test]
fn odd_values_in_every_place() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("evidence/published");
    let mut n = 0;
    for name in [
        "throughput-v3.json",
        "serving-pilot.json",
        "recipe-card.json",
    ] {
        let base: Value = serde_json::from_slice(&std::fs::read(dir.join(name)).unwrap()).unwrap();
        let mut all = Vec::new();
        places(&base, "", &mut all);
        for (i, pointer) in all.iter().enumerate() {
            for j in 0..3 {
                let mut value = base.clone();
                *value.pointer_mut(pointer).unwrap() = odd(i + 5 * j);
                look(&value);
                n += 1;
            }
        }
    }
    assert!(n > 1000, "{n}");
}

/// A document that is large rather than odd: work grows with its size, no faster.
#[test]
fn large_documents_are_worked_through() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("evidence/published");
    let base = std::fs::read(dir.join("throughput-v3.json")).unwrap();
    let mut value: Value = serde_json::from_slice(&base).unwrap();
    let cell = value["cells"][0].clone();
    let cells = (0..3000).map(|i| {
        let mut c = cell.clone();
        c["contextTokens"] = json!(i);
        c
    });
    value["cells"] = cells.collect();
    value["description"]["en"] = json!("It is faster. ".repeat(20_000));
    look(&value);
    let line = r#"{"payload":"e30=","payloadType":"x","signatures":[{"sig":""}]}"#;
    let lines = format!("{line}\n").repeat(20_000);
    let report = envelope::audit(
        "r.intoto.jsonl",
        lines.as_bytes(),
        &Trust::default(),
        &Nothing,
    );
    assert_eq!(report.verdict, Verdict::NotVerified);
}

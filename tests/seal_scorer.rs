//! The dialect, by its published vectors and by hostile input. What can kill a
//! process is tried in the child only (seal_child.rs).

use runseal::scorer::eval::Compiled;
use runseal::scorer::{Answer, Grade, MAX_ANSWER_BYTES, MAX_CHECKS, Scorer, ScorerError, dialect};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::PathBuf;

fn toml_of(checks: &[(&str, &str)]) -> String {
    let mut text =
        String::from("format = \"runseal.scorer/v1\"\nname = \"t\"\ndialect = \"runseal-cel/1\"\n");
    for (id, expr) in checks {
        let expr = toml::Value::String((*expr).to_owned());
        text.push_str(&format!("[[check]]\nid = \"{id}\"\nexpr = {expr}\n"));
    }
    text
}

fn compiled(checks: &[(&str, &str)]) -> Result<Compiled, ScorerError> {
    Compiled::new(&Scorer::parse(toml_of(checks).as_bytes())?)
}

fn grade(expr: &str, case: Value, content: &str) -> Grade {
    let answer = Answer {
        content: content.to_owned(),
        ..Default::default()
    };
    compiled(&[("c", expr)]).unwrap().grade(&case, &answer)
}

fn ungraded(reason: &str) -> Grade {
    Grade::Ungraded {
        reason: reason.to_owned(),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    name: String,
    expr: String,
    case: Value,
    answer: VectorAnswer,
    expected: String,
    #[serde(default)]
    reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
struct VectorAnswer {
    content: String,
    reasoning: String,
    finish_reason: Option<String>,
    tool_calls: Vec<Value>,
}

fn vectors<T: for<'de> Deserialize<'de>>(file: &str) -> Vec<T> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/vectors/scorer")
        .join(file);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn conformance_vectors_hold() {
    let mut wrong = Vec::new();
    for file in [
        "basics.json",
        "numbers.json",
        "json-content.json",
        "maps.json",
        "strings.json",
        "errors.json",
    ] {
        for v in vectors::<Vector>(file) {
            let answer = Answer {
                content: v.answer.content,
                reasoning: v.answer.reasoning,
                finish_reason: v.answer.finish_reason,
                tool_calls: v.answer.tool_calls,
            };
            let expected = match v.expected.as_str() {
                "pass" => Grade::Pass,
                "fail" => Grade::Fail { check: "c".into() },
                "ungraded" => ungraded(&format!("check c: {}", v.reason.unwrap())),
                other => panic!("{other}"),
            };
            let found = compiled(&[("c", &v.expr)]).map(|c| c.grade(&v.case, &answer));
            if found != Ok(expected.clone()) {
                wrong.push(format!(
                    "{file}: {}: {found:?}, expected {expected:?}",
                    v.name
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_outside_the_dialect_is_refused() {
    #[derive(Deserialize)]
    struct Refused {
        name: String,
        expr: String,
    }
    let mut wrong = Vec::new();
    for v in vectors::<Refused>("refused.json") {
        match compiled(&[("c", &v.expr)]) {
            Err(ScorerError::Check { id, why }) => {
                assert_eq!(id, "c");
                println!("{}: {why}", v.name);
            }
            other => wrong.push(format!("{}: {:?}", v.name, other.map(|_| ()))),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_first_check_that_is_not_true_decides() {
    let checks = [
        ("one", "true"),
        ("two", "answer.content != \"\""),
        ("three", "case.absent"),
        ("four", "false"),
    ];
    let scorer = compiled(&checks).unwrap();
    let of = |content: &str| {
        scorer.grade(
            &json!({}),
            &Answer {
                content: content.to_owned(),
                ..Default::default()
            },
        )
    };
    // A false check comes first: the later error is never reached.
    assert_eq!(
        of(""),
        Grade::Fail {
            check: "two".into()
        }
    );
    // An error comes first: the later false check does not make it a fail.
    assert_eq!(of("x"), ungraded("check three: no such key"));
}

#[test]
fn reasons_hold_no_value_of_case_or_answer() {
    let case = json!({"m": {"secret-key": "secret-value", "n": 1}});
    for expr in [
        "case.m == case.m ? case.m : false",
        "case.m + 1 == 2",
        "case.m[answer.content] == 1",
        "int(answer.content) == 1",
        "case.m < answer.content",
        "case.m.n.startsWith(answer.content)",
        "{answer.json: 1} == null",
    ] {
        let Grade::Ungraded { reason } = grade(expr, case.clone(), "secret-answer") else {
            panic!("{expr} was graded");
        };
        assert!(!reason.contains("secret"), "{reason}");
    }
}

#[test]
fn hash_order_is_never_visible() {
    let keys: Vec<String> = (0..200).map(|i| format!("k{i:03}")).collect();
    let map: serde_json::Map<_, _> = keys.iter().map(|k| (k.clone(), json!(1))).collect();
    let case = json!({"m": map, "first": keys[0], "joined": keys.join(",")});
    for _ in 0..5 {
        let expr = "case.m.map(k, k).join(\",\") == case.joined && case.m.filter(k, true)[0] == case.first";
        assert_eq!(grade(expr, case.clone(), ""), Grade::Pass);
    }
}

#[test]
fn numbers_of_the_case_follow_the_documented_rule() {
    let case = json!({"int": 9007199254740992i64, "past": 9007199254740993i64, "huge": u64::MAX, "one": 1.0});
    let is = |expr: &str| grade(expr, case.clone(), "");
    assert_eq!(is("case.int + 1 == 9007199254740993"), Grade::Pass);
    assert_eq!(is("case.past + 1.0 > 0.0"), Grade::Pass);
    assert_eq!(is("case.huge + 1.0 > 0.0"), Grade::Pass);
    assert_eq!(is("case.one + 1.0 == 2.0"), Grade::Pass);
    assert_eq!(
        is("case.one + 1 == 2"),
        ungraded("check c: types do not fit")
    );
}

#[test]
fn items_past_the_fixed_limits_are_ungraded() {
    let big = "x".repeat(MAX_ANSWER_BYTES + 1);
    assert_eq!(
        grade("true", json!({}), &big),
        ungraded("the answer holds more than 4194304 bytes")
    );
    assert_eq!(grade("true", json!({}), &big[1..]), Grade::Pass);
    let values = format!("[{}0]", "0,".repeat(200_000));
    assert_eq!(
        grade("true", json!({}), &values),
        ungraded("the content holds more than 200000 JSON values")
    );
    let mut deep = json!(0);
    for _ in 0..65 {
        deep = json!([deep]);
    }
    assert_eq!(
        grade("true", json!({"d": deep}), ""),
        ungraded("the case holds more than 64 levels of nesting")
    );
    assert_eq!(
        grade("true", json!({"d": "x".repeat(4 * 1024 * 1024)}), ""),
        ungraded("the case holds more than 4194304 bytes")
    );
    assert_eq!(
        grade("true", json!([1]), ""),
        ungraded("the case is not a JSON object")
    );
}

#[test]
fn a_malformed_scorer_file_is_refused() {
    let good = toml_of(&[("a", "true")]);
    assert!(Scorer::parse(good.as_bytes()).is_ok());
    let many: Vec<_> = (0..=MAX_CHECKS).map(|i| format!("c{i}")).collect();
    let many: Vec<_> = many.iter().map(|id| (id.as_str(), "true")).collect();
    assert!(Scorer::parse(toml_of(&many[1..]).as_bytes()).is_ok());
    for (what, text) in [
        ("too many checks", toml_of(&many)),
        ("no checks", toml_of(&[])),
        (
            "two checks of one id",
            toml_of(&[("a", "true"), ("a", "true")]),
        ),
        ("id", toml_of(&[("A b", "true")])),
        ("unknown field", format!("{good}weight = 2\n")),
        ("unknown top field", format!("weight = 2\n{good}")),
        (
            "format",
            good.replace("runseal.scorer/v1", "runseal.scorer/v9"),
        ),
        ("name", good.replace("\"t\"", "\"a b\"")),
        ("not TOML", "format = ".to_owned()),
        ("too large", format!("{good}#{}", "x".repeat(256 * 1024))),
        ("a million bytes", toml_of(&[("a", &"1+".repeat(500_000))])),
        (
            "just too long",
            toml_of(&[("a", &format!("true{}", " ".repeat(8189)))]),
        ),
        ("deep TOML", format!("x = {}\n{good}", "[".repeat(100_000))),
    ] {
        assert!(Scorer::parse(text.as_bytes()).is_err(), "{what}");
    }
    assert!(Scorer::parse(&[0xff, 0xfe]).is_err());
    assert!(
        Scorer::parse(toml_of(&[("a", &format!("true{}", " ".repeat(8188)))]).as_bytes()).is_ok()
    );
}

#[test]
fn an_unknown_dialect_is_named_before_anything_else_is_judged() {
    let text = "format = \"runseal.scorer/v1\"\ndialect = \"runseal-cel/9\"\nnew_field = 1\n";
    assert_eq!(
        Scorer::parse(text.as_bytes()),
        Err(ScorerError::UnknownDialect("runseal-cel/9".into()))
    );
}

#[test]
fn the_identity_commits_to_dialect_and_bytes() {
    let text = toml_of(&[("a", "true")]);
    let id = |text: &str| Scorer::parse(text.as_bytes()).unwrap().identity();
    assert_eq!(id(&text), id(&text));
    assert_ne!(id(&text), id(&format!("{text}\n")));
    let file = runseal::digest::Sha256Digest::of(text.as_bytes());
    assert_eq!(runseal::scorer::identity("runseal-cel/1", file), id(&text));
    assert_ne!(runseal::scorer::identity("runseal-cel/2", file), id(&text));
    assert_eq!(
        runseal::scorer::identity("runseal-cel/1", runseal::digest::Sha256Digest([0; 32])).hex(),
        "d7efbf2a8f861c207053970e5ad1f081d0237cebcb85ca240644236aa60b5a3a"
    );
}

#[test]
fn the_documented_scorer_grades_as_documented() {
    let docs = include_str!("../docs/scorer-dialect.md");
    let example = docs.split("```toml\n").nth(1).unwrap();
    let example = example.split("```").next().unwrap();
    let scorer = Compiled::new(&Scorer::parse(example.as_bytes()).unwrap()).unwrap();
    let case = json!({"fields": {"date": "2024-03-01", "count": 3}});
    let of = |content: &str| {
        scorer.grade(
            &case,
            &Answer {
                content: content.to_owned(),
                ..Default::default()
            },
        )
    };
    let fail = |check: &str| Grade::Fail {
        check: check.to_owned(),
    };
    assert_eq!(of(r#"{"count":3,"date":"2024-03-01"}"#), Grade::Pass);
    assert_eq!(of("no idea"), fail("json_object"));
    assert_eq!(of(r#"{"count":3}"#), fail("json_object"));
    assert_eq!(
        of(r#"{"count":4,"date":"2024-03-01"}"#),
        fail("fields_exact")
    );
    for (name, _) in dialect::FUNCTIONS.iter().chain(&dialect::METHODS) {
        assert!(
            docs.contains(&format!("`{name}(")),
            "{name} is not documented"
        );
    }
    for name in dialect::MACROS {
        assert!(
            docs.contains(&format!("{name}(")),
            "{name} is not documented"
        );
    }
}

#[test]
fn grades_have_one_json_form() {
    for (grade, text) in [
        (Grade::Pass, r#"{"grade":"pass"}"#),
        (
            Grade::Fail {
                check: "fields_exact".into(),
            },
            r#"{"grade":"fail","check":"fields_exact"}"#,
        ),
        (
            ungraded("check a: overflow"),
            r#"{"grade":"ungraded","reason":"check a: overflow"}"#,
        ),
    ] {
        assert_eq!(serde_json::to_string(&grade).unwrap(), text);
        assert_eq!(serde_json::from_str::<Grade>(text).unwrap(), grade);
    }
    assert!(serde_json::from_str::<Grade>(r#"{"grade":"fail"}"#).is_err());
    assert!(serde_json::from_str::<Grade>(r#"{"grade":"maybe"}"#).is_err());
}

#[test]
fn brackets_and_quotes_within_strings_do_not_count() {
    let nested = format!("answer.content == '{}'", "(".repeat(100));
    assert!(dialect::scan(&nested).is_ok());
    assert!(dialect::scan(r#"'it\'s "(" fine' != "and \" too""#).is_ok());
    assert!(dialect::scan(r"'\'").is_err());
}

proptest::proptest! {
    #[test]
    fn the_scanner_takes_any_text(text in ".{0,300}") {
        let _ = dialect::scan(&text);
    }

    #[test]
    fn any_content_gets_a_grade(content in ".{0,200}") {
        let g = grade("answer.content == case.c", json!({"c": content}), &content);
        proptest::prop_assert_eq!(g, Grade::Pass);
    }
}

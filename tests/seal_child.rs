//! Grading in the limited child: what hostile scorers and answers can and
//! cannot do to the results of other cases.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use runseal::scorer::child::{ChildLimits, NotGraded, SUBCOMMAND, grade_in_child, serve};
use runseal::scorer::{Answer, Grade, GradeItem, GradeResult, ScorerError};
use serde_json::{Value, json};

const EXE: &str = env!("CARGO_BIN_EXE_verify");

fn scorer(expr: &str) -> String {
    let expr = toml::Value::String(expr.to_owned());
    format!(
        "format = \"runseal.scorer/v1\"\nname = \"t\"\ndialect = \"runseal-cel/1\"\n\
         [[check]]\nid = \"c\"\nexpr = {expr}\n"
    )
}

fn item(key: &str, case: Value, content: &str) -> GradeItem {
    GradeItem {
        key: key.to_owned(),
        case,
        answer: Answer {
            content: content.to_owned(),
            ..Default::default()
        },
    }
}

/// Time limits that a loaded machine only meets when something really hangs,
/// and memory enough for honest work.
fn limits() -> ChildLimits {
    ChildLimits {
        wall: Duration::from_secs(300),
        cpu_seconds: 200,
        ..Default::default()
    }
}

fn run(
    expr: &str,
    items: &[GradeItem],
    limits: &ChildLimits,
) -> Result<Vec<GradeResult>, NotGraded> {
    grade_in_child(
        Path::new(EXE),
        &[SUBCOMMAND],
        scorer(expr).as_bytes(),
        items,
        limits,
    )
}

fn died(cause: &str) -> Grade {
    Grade::Ungraded {
        reason: format!("scorer child died: {cause}"),
    }
}

#[test]
fn results_come_in_order_and_agree_with_the_library() {
    let items: Vec<_> = (0..600)
        .map(|i| item(&format!("k{i}"), json!({"n": i}), &(i % 7).to_string()))
        .collect();
    let results = run(
        "case.n % 7 == answer.json && case.n != 5",
        &items,
        &limits(),
    )
    .unwrap();
    assert_eq!(results.len(), 600);
    for (i, result) in results.iter().enumerate() {
        assert_eq!(result.key, format!("k{i}"));
        assert!(result.performed);
        let expected = if i == 5 {
            Grade::Fail { check: "c".into() }
        } else {
            Grade::Pass
        };
        assert_eq!(result.grade, expected, "{i}");
    }
}

#[test]
fn only_the_poisonous_case_is_lost() {
    // Doubles a string 40 times when the case says so.
    let doubling = (0..40).fold("answer.content".to_owned(), |e, _| {
        format!("[{e}].map(x, x + x)[0]")
    });
    assert!(
        runseal::scorer::dialect::scan(&doubling).is_err(),
        "too deep to be written that way"
    );
    // Lists grow just as well without nesting brackets.
    let bomb = "case.bomb ? size([answer.content]".to_owned()
        + &".map(x, x + x)".repeat(40)
        + ") == 0 : answer.content == \"a\"";
    let items = [
        item("first", json!({"bomb": false}), "a"),
        item("bomb", json!({"bomb": true}), "aaaaaaaa"),
        item("next", json!({"bomb": false}), "b"),
        item("last", json!({"bomb": false}), "a"),
    ];
    let results = run(&bomb, &items, &limits()).unwrap();
    let grades: Vec<_> = results.iter().map(|r| r.grade.clone()).collect();
    assert_eq!(
        grades,
        [
            Grade::Pass,
            died("memory limit"),
            Grade::Fail { check: "c".into() },
            Grade::Pass
        ]
    );
    let performed: Vec<_> = results.iter().map(|r| r.performed).collect();
    assert_eq!(performed, [true, false, true, true]);
}

#[test]
fn a_check_that_never_seems_to_end_meets_the_time_limit() {
    let expr = "case.l.all(a, case.l.all(b, case.l.all(c, a + b + c >= 0)))";
    let list: Vec<_> = (0..20_000).collect();
    let items = [
        item("short", json!({"l": [1, 2]}), ""),
        item("long", json!({"l": list}), ""),
        item("also short", json!({"l": [3]}), ""),
    ];
    let by_cpu = ChildLimits {
        cpu_seconds: 1,
        ..limits()
    };
    let by_wall = ChildLimits {
        wall: Duration::from_secs(4),
        ..limits()
    };
    for limits in [by_cpu, by_wall] {
        let results = run(expr, &items, &limits).unwrap();
        assert_eq!(results[0].grade, Grade::Pass);
        assert_eq!(results[1].grade, died("time limit"));
        assert_eq!(results[2].grade, Grade::Pass);
    }
}

#[test]
fn after_some_deaths_the_rest_is_not_tried_and_says_so() {
    let items: Vec<_> = (0..4)
        .map(|i| item(&i.to_string(), json!({}), "aaaaaaaa"))
        .collect();
    let bomb = format!("size([answer.content]{}) == 0", ".map(x, x + x)".repeat(40));
    let limits = ChildLimits {
        max_deaths: 2,
        ..limits()
    };
    let results = run(&bomb, &items, &limits).unwrap();
    assert_eq!(results.len(), 4);
    assert_eq!(results[1].grade, died("memory limit"));
    assert_eq!(
        results[2].grade,
        Grade::Ungraded {
            reason: "not tried: the scorer's child died over 2 items".into()
        }
    );
    assert!(results.iter().all(|r| !r.performed));
}

#[test]
fn hostile_answers_are_graded_or_ungraded_and_kill_nothing() {
    let contents = [
        ("plain", "a".to_owned(), Grade::Pass),
        (
            "ten megabytes",
            "x".repeat(10_000_000),
            Grade::Ungraded {
                reason: "the answer holds more than 4194304 bytes".into(),
            },
        ),
        ("at the limit", "\u{1}".repeat(4 * 1024 * 1024), Grade::Pass),
        ("deep JSON", "[".repeat(1_000_000), Grade::Pass),
        (
            "deep closed JSON",
            format!("{}{}", "{\"a\":".repeat(100_000), "}".repeat(100_000)),
            Grade::Pass,
        ),
        (
            "many values",
            format!("[{}0]", "0,".repeat(199_000)),
            Grade::Fail { check: "c".into() },
        ),
        (
            "many objects",
            format!("[{}{{}}]", "{\"a\":{}},".repeat(99_000)),
            Grade::Fail { check: "c".into() },
        ),
        (
            "duplicate keys",
            "{\"a\":1,\"a\":2}".to_owned(),
            Grade::Pass,
        ),
        ("NaN", "NaN".to_owned(), Grade::Pass),
        ("null bytes", "\0\0".to_owned(), Grade::Pass),
    ];
    let items: Vec<_> = contents
        .iter()
        .map(|(k, c, _)| item(k, json!({}), c))
        .collect();
    let results = run("answer.json == null", &items, &limits()).unwrap();
    for ((key, _, expected), result) in contents.iter().zip(&results) {
        assert_eq!(result.grade, *expected, "{key}");
        assert!(result.performed, "{key}");
    }
}

#[test]
fn one_large_case_after_another_fits() {
    // Each is far larger in memory than as text; the child holds one at a time.
    let objects: Vec<_> = (0..99_000).map(|_| json!({"a": {}})).collect();
    let items: Vec<_> = (0..8)
        .map(|i| item(&i.to_string(), json!({ "o": objects }), ""))
        .collect();
    for result in run("size(case.o) == 99000", &items, &limits()).unwrap() {
        assert_eq!(result.grade, Grade::Pass);
    }
}

#[test]
fn a_scorer_outside_the_dialect_grades_nothing() {
    let items = [item("a", json!({}), "")];
    match run("answer.content.matches('a')", &items, &limits()) {
        Err(NotGraded::Refused(why)) => assert!(why.contains("matches"), "{why}"),
        other => panic!("{other:?}"),
    }
    // The same without items: this is how a suite is checked.
    assert!(matches!(
        run("nonsense(", &[], &limits()),
        Err(NotGraded::Scorer(_))
    ));
    assert!(matches!(
        run("1 +", &[], &limits()),
        Err(NotGraded::Refused(_))
    ));
    assert_eq!(run("true", &[], &limits()), Ok(vec![]));
    // Small, flat and long: nothing for the scanner, everything for a parser.
    for hostile in [
        "-".repeat(8000) + "1 == 1",
        "!".repeat(8000) + "true",
        "true?".repeat(1200) + "true" + &":true".repeat(1200),
        "1".to_owned() + &"-1".repeat(4000) + " == 0",
        "case".to_owned() + &".a".repeat(4000),
        "case".to_owned() + &"[0]".repeat(2700),
        "true||".repeat(1300) + "true",
        "(".repeat(24) + &"true,".repeat(1000) + &")".repeat(24),
        "[".to_owned() + &"[],".repeat(2700) + "] == null",
        "?".repeat(8000),
    ] {
        let head: String = hostile.chars().take(20).collect();
        match run(&hostile, &items, &limits()) {
            // A flat chain of || is balanced by the parser and fine.
            Ok(results) => assert!(results[0].performed, "{head}"),
            Err(NotGraded::Refused(_) | NotGraded::Scorer(_)) => {}
            // The child is there to die in the parser's place.
            Err(NotGraded::Child(why)) => panic!("{head}: {why}"),
            Err(other) => panic!("{head}: {other}"),
        }
    }
}

#[test]
fn an_unknown_dialect_is_not_graded_and_named() {
    let text = scorer("true").replace("runseal-cel/1", "runseal-cel/2");
    let result = grade_in_child(
        Path::new(EXE),
        &[SUBCOMMAND],
        text.as_bytes(),
        &[],
        &limits(),
    );
    assert_eq!(
        result,
        Err(NotGraded::Scorer(ScorerError::UnknownDialect(
            "runseal-cel/2".into()
        )))
    );
}

#[test]
fn a_program_that_is_not_ours_grades_nothing() {
    let items = [item("a", json!({}), "x")];
    let with = |exe: &str, args: &[&str]| {
        grade_in_child(
            Path::new(exe),
            args,
            scorer("true").as_bytes(),
            &items,
            &limits(),
        )
    };
    for (exe, args) in [
        ("/nonexistent/verify", &[][..]),
        ("/bin/cat", &["--"][..]),
        ("/bin/sh", &["-c", "echo '{\"item\":{\"grade\":\"pass\"}}'"]),
        (
            "/bin/sh",
            &["-c", "printf '{\"ready\":true}\\n{\"done\":1}\\n'"],
        ),
        (
            "/bin/sh",
            &[
                "-c",
                "printf '{\"ready\":true}\\n{\"item\":{\"grade\":\"pass\"}}\\n{\"item\":{\"grade\":\"pass\"}}\\n{\"done\":1}\\n'",
            ],
        ),
        (
            "/bin/sh",
            &[
                "-c",
                "printf '{\"ready\":true}\\n{\"item\":{\"grade\":\"pass\"}}\\n{\"done\":1}\\nmore\\n'",
            ],
        ),
        (
            "/bin/sh",
            &["-c", "while :; do echo '{\"ready\":true}'; done"],
        ),
        ("/bin/sh", &["-c", "kill -9 $$"]),
    ] {
        match with(exe, args) {
            Err(NotGraded::Child(_)) => {}
            other => panic!("{exe} {args:?}: {other:?}"),
        }
    }
}

#[test]
fn the_child_has_an_empty_environment() {
    // A stand-in that answers properly only when nothing was handed down.
    let script = "[ -z \"$HOME$CARGO_MANIFEST_DIR$LANG\" ] && \
        printf '{\"ready\":true}\\n{\"item\":{\"grade\":\"pass\"}}\\n{\"done\":1}\\n'";
    let items = [item("a", json!({}), "x")];
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let results = grade_in_child(
        Path::new("/bin/sh"),
        &["-c", script],
        scorer("true").as_bytes(),
        &items,
        &limits(),
    );
    assert_eq!(results.unwrap()[0].grade, Grade::Pass);
}

#[test]
fn a_death_after_an_item_blames_no_other_item() {
    let script = "printf '{\"ready\":true}\\n{\"item\":{\"grade\":\"pass\"}}\\n'; kill -9 $$";
    let items: Vec<_> = (0..4)
        .map(|i| item(&i.to_string(), json!({}), ""))
        .collect();
    let results = grade_in_child(
        Path::new("/bin/sh"),
        &["-c", script],
        scorer("true").as_bytes(),
        &items,
        &limits(),
    );
    for result in results.unwrap() {
        assert_eq!(
            (result.grade, result.performed),
            (Grade::Pass, true),
            "{}",
            result.key
        );
    }
}

#[test]
fn without_limits_nothing_is_graded() {
    let items = [item("a", json!({}), "x")];
    // Less memory than its own stack: it must not go on unprotected.
    let tiny = ChildLimits {
        memory_bytes: 16 * 1024 * 1024,
        ..limits()
    };
    assert!(matches!(
        run("true", &items, &tiny),
        Err(NotGraded::Child(_))
    ));
    let mut child = Command::new(EXE)
        .arg(SUBCOMMAND)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    assert_eq!((child.wait().unwrap().code(), out.as_str()), (Some(2), ""));
}

#[test]
fn the_protocol_is_lines_and_a_broken_request_is_an_error() {
    let head = json!({"scorer": scorer("answer.content == case.e")});
    let item = json!({"case": {"e": "x"}, "answer":
        {"content": "x", "reasoning": "", "finish_reason": null, "tool_calls": []}});
    let request = format!("{head}\n{item}\n");
    let mut out = Vec::new();
    serve(&mut request.as_bytes(), &mut out).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "{\"ready\":true}\n{\"item\":{\"grade\":\"pass\"}}\n{\"done\":1}\n"
    );
    for bad in [
        "",
        "{}",
        "null",
        "[[[[",
        &format!("{head}\n{{}}\n"),
        &format!("{head}\n\n"),
    ] {
        assert!(
            serve(&mut bad.as_bytes(), &mut io::sink()).is_err(),
            "{bad:?}"
        );
    }
}

//! `verify compare`: refusal, differences, intervals, causes.

mod support;

use std::collections::BTreeSet;

use runseal::audit::Verdict;
use runseal::codes::Code;
use runseal::comparison::{Comparison, Question, Side, compare};
use runseal::finding::Severity;
use runseal::record::{RunRecord, Taint};
use serde_json::{Value, json};
use support::*;

/// The record of the completed golden bundle under another run id.
fn record(id: &str) -> RunRecord {
    let mut r: RunRecord =
        serde_json::from_value(statement(&load(COMPLETED))["predicate"].clone()).unwrap();
    r.run.id = id.to_owned();
    r
}

/// The same with its cases repeated, and durations as told: one list a repetition.
fn repeated(id: &str, reps: &[&[u64]]) -> RunRecord {
    let mut r = record(id);
    let one = r.cases.iter().find(|c| c.rep == 0).unwrap().clone();
    r.cases.clear();
    for (rep, durations) in reps.iter().enumerate() {
        for (i, ns) in durations.iter().enumerate() {
            let mut c = one.clone();
            c.rep = rep as u32;
            c.case = format!("case-{i}");
            c.duration_ns = Some(*ns);
            r.cases.push(c);
        }
    }
    r.requests.repetitions = reps.len() as u32;
    r.grades.declared = r.cases.len() as u64;
    r.grades.pass = r.cases.len() as u64;
    let mut all: Vec<u64> = reps.concat();
    all.sort_unstable();
    for m in &mut r.metrics {
        if m.id == "request-duration-median/v1" {
            let half = |x: u64, y: u64| format!("{:.3}", (x + y) as f64 / 2e6);
            let n = all.len();
            m.value = Some(match n % 2 {
                1 => half(all[n / 2], all[n / 2]),
                _ => half(all[n / 2 - 1], all[n / 2]),
            });
        }
    }
    r
}

fn side<'a>(path: &'a str, record: &'a RunRecord) -> Side<'a> {
    Side {
        path,
        record: Some(record),
        verdict: Verdict::Verified,
    }
}

fn asked(factors: &[&str], causal: bool) -> Question {
    Question {
        factors: factors.iter().map(|f| (*f).to_owned()).collect(),
        causal,
        seed: 0,
    }
}

fn errors_of(c: &Comparison) -> BTreeSet<Code> {
    let errors = c.findings.iter().filter(|f| f.severity == Severity::Error);
    errors.map(|f| f.code).collect()
}

fn set(r: &mut RunRecord, name: &str, value: &str) {
    r.conditions
        .values
        .insert(name.to_owned(), value.to_owned());
}

#[test]
fn unequal_conditions_refuse_and_are_named() {
    let a = record("a");
    let mut b = record("b");
    set(&mut b, "temperature", "0.7");
    set(&mut b, "hardware", "another machine");
    let c = compare(&side("A", &a), &side("B", &b), None, &asked(&[], false));
    assert!(!c.comparable && c.deltas.is_empty());
    let named: Vec<&str> = c
        .findings
        .iter()
        .filter(|f| f.code == Code::ConditionsDiffer)
        .map(|f| f.subject.as_str())
        .collect();
    assert_eq!(named, ["hardware", "temperature"]);
    assert_eq!(errors_of(&c), [Code::ConditionsDiffer].into());
    // Declared as what was varied, both are no obstacle; one of them alone is not enough.
    let one = compare(
        &side("A", &a),
        &side("B", &b),
        None,
        &asked(&["temperature"], false),
    );
    assert!(!one.comparable);
    let both = asked(&["temperature", "hardware"], false);
    let c = compare(&side("A", &a), &side("B", &b), None, &both);
    assert!(c.comparable && c.holds() && !c.deltas.is_empty());
    assert!(!c.cause.supported);
}

/// Every condition of a record is one: changing any forbids the comparison.
#[test]
fn every_condition_counts() {
    let a = record("a");
    for name in a.conditions.values.keys() {
        let mut b = record("b");
        set(&mut b, name, "something else");
        let c = compare(&side("A", &a), &side("B", &b), None, &asked(&[], false));
        assert_eq!(errors_of(&c), [Code::ConditionsDiffer].into(), "{name}");
        assert_eq!(c.differences.len(), 1, "{name}");
    }
    let mut b = record("b");
    set(&mut b, "a condition of a later version", "x");
    let c = compare(&side("A", &a), &side("B", &b), None, &asked(&[], false));
    assert_eq!(errors_of(&c), [Code::ConditionsDiffer].into());
}

#[test]
fn what_cannot_take_part() {
    let a = record("a");
    let of = |b: &Side| errors_of(&compare(&side("A", &a), b, None, &asked(&[], false)));
    let refused: BTreeSet<Code> = [Code::RecordNotComparable].into();
    let same = record("a");
    assert_eq!(of(&side("B", &same)), refused, "one run twice");
    let mut tainted = record("b");
    tainted.run.taints.push(Taint {
        cause: "x".into(),
        detail: "x".into(),
        reqs: vec![],
    });
    assert_eq!(of(&side("B", &tainted)), refused);
    let good = record("b");
    let unverified = Side {
        verdict: Verdict::NotVerified,
        ..side("B", &good)
    };
    assert_eq!(of(&unverified), refused);
    let nothing = Side {
        record: None,
        ..side("B", &good)
    };
    assert_eq!(of(&nothing), refused);
    let factor = compare(
        &side("A", &a),
        &side("B", &good),
        None,
        &asked(&["cache"], false),
    );
    assert_eq!(errors_of(&factor), [Code::FactorNotVaried].into());
}

#[test]
fn a_cause_needs_one_factor_and_nothing_else() {
    let a = record("a");
    let mut b = record("b");
    b.runtime.env_digest = a.run.nonce_hash;
    let holds = |c: &Comparison| (c.holds(), c.cause.supported);
    let ask = asked(&["env"], true);
    let c = compare(&side("A", &a), &side("B", &b), None, &ask);
    assert_eq!(holds(&c), (true, true), "{:?}", c.cause);
    // No factor declared: a difference of the setup may be shown, and no cause named.
    let c = compare(&side("A", &a), &side("B", &b), None, &asked(&[], false));
    assert_eq!(holds(&c), (true, false));
    let c = compare(&side("A", &a), &side("B", &b), None, &asked(&[], true));
    assert_eq!(errors_of(&c), [Code::CausalNotSupported].into());
    // Something else differs as well; a control run that differs in the factor only helps.
    let mut both = b.clone();
    both.runtime.layout = "other".into();
    let c = compare(&side("A", &a), &side("B", &both), None, &ask);
    assert_eq!(errors_of(&c), [Code::CausalNotSupported].into());
    assert!(c.cause.reason.contains("layout"), "{}", c.cause.reason);
    let mut control = b.clone();
    control.run.id = "c".into();
    let c = compare(
        &side("A", &a),
        &side("B", &both),
        Some(&side("C", &control)),
        &ask,
    );
    assert_eq!(holds(&c), (true, true), "{:?}", c.cause);
    assert!(!c.control_deltas.is_empty());
    let useless = Some(side("C", &a));
    let c = compare(&side("A", &a), &side("B", &both), useless.as_ref(), &ask);
    assert_eq!(holds(&c), (false, false));
}

#[test]
fn intervals_come_from_repetitions() {
    let ms = |n: u64| n * 1_000_000;
    let few = repeated("a", &[&[ms(10), ms(12)], &[ms(11), ms(13)]]);
    let other = repeated("b", &[&[ms(20), ms(22)], &[ms(21), ms(23)]]);
    let median = |c: &Comparison| {
        let d = c
            .deltas
            .iter()
            .find(|d| d.metric == "request-duration-median/v1");
        d.unwrap().clone()
    };
    let c = compare(
        &side("A", &few),
        &side("B", &other),
        None,
        &asked(&[], false),
    );
    assert!(c.findings.iter().any(|f| f.code == Code::RepetitionsTooFew));
    assert!(c.holds(), "too few is a remark");
    let d = median(&c);
    assert_eq!(
        (
            d.a.as_deref(),
            d.b.as_deref(),
            d.difference.as_deref(),
            d.relative.as_deref()
        ),
        (
            Some("11.500"),
            Some("21.500"),
            Some("10.000"),
            Some("0.869565")
        )
    );
    assert_eq!((d.interval, d.clear), (None, None));

    let reps = |base: u64| -> Vec<Vec<u64>> {
        (0..6)
            .map(|i| vec![ms(base + i), ms(base + 2 * i)])
            .collect()
    };
    let list = |v: &[Vec<u64>], id| repeated(id, &v.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let (a, b) = (list(&reps(100), "a"), list(&reps(120), "b"));
    let run = |seed| {
        let q = Question {
            seed,
            ..asked(&[], false)
        };
        median(&compare(&side("A", &a), &side("B", &b), None, &q))
    };
    let d = run(0);
    assert_eq!(d.difference.as_deref(), Some("20.000"));
    assert_eq!(d.clear, Some(true));
    let [lo, hi] = d.interval.clone().unwrap();
    let (lo, hi): (f64, f64) = (lo.parse().unwrap(), hi.parse().unwrap());
    assert!(
        lo < 20.0 && 20.0 < hi && lo > 10.0 && hi < 30.0,
        "{lo} {hi}"
    );
    assert_eq!(run(0), d, "the same seed gives the same interval");
    // Worked out by another implementation, from docs/metrics.md.
    assert_eq!(run(0).interval.unwrap(), ["16.500000", "23.000000"]);
    assert_eq!(run(7).interval.unwrap(), ["17.000000", "23.500000"]);
    let odd = |base: u64| -> Vec<Vec<u64>> {
        (0..7)
            .map(|i| vec![ms(base) + i * i * 123_457, ms(base) + i * 777_777])
            .collect()
    };
    let (x, y) = (list(&odd(100), "a"), list(&odd(103), "b"));
    let c = compare(&side("A", &x), &side("B", &y), None, &asked(&[], false));
    assert_eq!(median(&c).interval.unwrap(), ["0.609573", "5.407566"]);
    let same = list(&reps(100), "b");
    let c = compare(&side("A", &a), &side("B", &same), None, &asked(&[], false));
    assert_eq!(median(&c).clear, Some(false));
    // A median that the cases do not give has no interval.
    let mut lied = list(&reps(120), "b");
    for m in &mut lied.metrics {
        if m.id == "request-duration-median/v1" {
            m.value = Some("90.000".into());
        }
    }
    let c = compare(&side("A", &a), &side("B", &lied), None, &asked(&[], false));
    assert_eq!(median(&c).interval, None);
}

/// Through the real program.
#[test]
fn the_program_refuses_and_compares() {
    let key = "keys/test-only.pub.pem";
    let said = verify(&["compare", COMPLETED, COMPLETED, "--trusted-key", key]);
    assert_eq!(said.code, 1);
    assert!(said.stdout.contains("both are one run"), "{}", said.stdout);
    assert!(said.stdout.contains("NOT COMPARABLE"), "{}", said.stdout);
    let said = verify(&["compare", COMPLETED, OPEN, "--trusted-key", key]);
    assert_eq!(said.code, 1);
    assert!(
        said.stdout.contains("conditions-differ [load]"),
        "{}",
        said.stdout
    );
    let said = verify(&["compare", COMPLETED, FAILED, "--trusted-key", key]);
    assert!(said.stdout.contains("its run is failed"), "{}", said.stdout);
    // Two runs of one plan: the bundle made before servers were asked, and a withheld one.
    let args = [
        "compare",
        COMPLETED,
        WITHHELD,
        "--trusted-key",
        key,
        "--format",
        "json",
    ];
    let said = verify(&args);
    let answer: Value = serde_json::from_str(&said.stdout).unwrap();
    runseal::schema::validate("comparison", &answer).unwrap();
    assert_eq!(
        (said.code, &answer["comparable"]),
        (0, &json!(true)),
        "{answer:#}"
    );
    assert!(!answer["deltas"].as_array().unwrap().is_empty());
    // Nobody's key: compared, and no pass.
    assert_eq!(verify(&args[..3]).code, 1);
    let said = verify(&["compare", COMPLETED, WITHHELD, "--factor", "luck"]);
    assert_eq!(said.code, 2);
    assert!(
        said.stderr.contains("hint: one of suite"),
        "{}",
        said.stderr
    );
    // A published record has no conditions.
    let card = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/evidence/published/recipe-card.json"
    );
    let said = verify(&["compare", COMPLETED, card, "--trusted-key", key]);
    assert_eq!(said.code, 1);
    assert!(
        said.stdout.contains("records no conditions"),
        "{}",
        said.stdout
    );
    assert_eq!(verify(&["compare", COMPLETED, "no-such"]).code, 2);
}

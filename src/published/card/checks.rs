//! A recipe card's ranges, the denominators it lacks, and which of its configurations
//! may not be held against each other.

use std::collections::BTreeSet;

use num_bigint::BigInt;
use num_rational::BigRational;

use super::{Config, Quality, RecipeCard};
use crate::codes::Code;
use crate::metrics::exact::decimal;
use crate::metrics::recall::lower_bound;
use crate::published::claims::{self, Contradictions};
use crate::published::number::text;
use crate::published::report::{Auditor, Derivation, FigureOf};

/// Kinds of prompts that a card of this version has decode rates for.
const DECODE: [&str; 3] = ["code", "prose", "structured"];

/// Words of a note that tell of other conditions.
const OTHERS: [&str; 8] = [
    "not comparable",
    "other box",
    "other build",
    "other machine",
    "other hardware",
    "different",
    "locked",
    "not measured",
];

/// Audits a card that matches its schema.
pub fn audit(a: &mut Auditor, card: &RecipeCard) {
    a.id = Some(match &card.variant {
        Some(v) => format!("{} {v}", card.title),
        None => card.title.clone(),
    });
    names(a, card);
    a.close("names", &[Code::ConfigUnknown, Code::EntryDuplicate]);
    for c in &card.configs {
        figures(a, c);
        for q in &c.quality {
            quality(a, c, q);
        }
        pool(a, c);
    }
    a.close("possible", &[Code::FigureImpossible]);
    comparable(a, card);
    let longest = card.configs.iter().filter_map(|c| c.max_context).max();
    let prose: Vec<(&str, &str)> = std::iter::once(("summary", card.summary.as_str()))
        .chain(
            card.configs
                .iter()
                .filter_map(|c| Some(("notes", c.notes.as_deref()?))),
        )
        .collect();
    let rules = Contradictions {
        control: false,
        graded: false,
        largest_context: longest,
    };
    claims::check(a, &prose, &[], rules);
    a.close("claims", &[Code::ClaimContradicted]);
}

fn names(a: &mut Auditor, card: &RecipeCard) {
    let mut ids = BTreeSet::new();
    for c in &card.configs {
        if !ids.insert(c.id.as_str()) {
            a.add(
                Code::EntryDuplicate,
                &c.id,
                "two configurations have this id",
            );
        }
    }
    if !ids.contains(card.default_config.as_str()) {
        a.add(
            Code::ConfigUnknown,
            "default_config",
            format!("no configuration is called {:?}", card.default_config),
        );
    }
}

/// The rates: only said, with no number of samples, and within what is possible.
fn figures(a: &mut Auditor, c: &Config) {
    const LACKING: &str =
        "how many requests it is of, how long they were and what it divides by is not said";
    let mut lacking = Vec::new();
    let rate = |a: &mut Auditor, id: String, v: Option<f64>| {
        let Some(v) = v else {
            return not_recorded(a, id);
        };
        if v <= 0.0 {
            a.add(
                Code::FigureImpossible,
                &id,
                format!("{} is not above zero", text(v)),
            );
        }
        a.stated(id, text(v), "tokens/s", None, LACKING);
    };
    match &c.decode {
        Some(decode) => {
            lacking.push("decode");
            for (kind, v) in decode {
                rate(a, format!("{}.decode.{kind}", c.id), *v);
            }
        }
        None => DECODE.iter().for_each(|kind| {
            not_recorded(a, format!("{}.decode.{kind}", c.id));
        }),
    }
    match &c.prefill {
        Some(prefill) => {
            lacking.push("prefill");
            twice(a, c, "prefill", prefill.iter().map(|p| p.context));
            for p in prefill {
                let id = format!("{}.prefill[{}]", c.id, p.context);
                if let Some(limit) = c.max_context.filter(|limit| p.context > *limit) {
                    let why = format!("the context limit is {limit}");
                    a.add(Code::FigureImpossible, &id, why);
                }
                rate(a, id, p.tps);
            }
        }
        None => not_recorded(a, format!("{}.prefill", c.id)),
    }
    match &c.concurrency {
        Some(streams) => {
            lacking.push("concurrency");
            twice(a, c, "concurrency", streams.iter().map(|s| s.streams));
            for s in streams {
                let id = format!("{}.concurrency[{}]", c.id, s.streams);
                let most = c.max_concurrent.unwrap_or(u64::MAX);
                if s.streams == 0 || s.streams > most {
                    let why = format!("it takes 1 to {most} requests at once");
                    a.add(Code::FigureImpossible, &id, why);
                }
                rate(a, id, s.aggregate_tps);
            }
        }
        None => not_recorded(a, format!("{}.concurrency", c.id)),
    }
    if c.nodes == 0 {
        a.add(
            Code::FigureImpossible,
            format!("{}.nodes", c.id),
            "it runs on no machine",
        );
    }
    if !lacking.is_empty() {
        a.add(
            Code::DenominatorMissing,
            &c.id,
            format!(
                "{}: no number of samples and no denominator",
                lacking.join(", ")
            ),
        );
    }
}

fn twice(a: &mut Auditor, c: &Config, group: &str, keys: impl Iterator<Item = u64>) {
    let mut seen = BTreeSet::new();
    for key in keys {
        if !seen.insert(key) {
            let at = format!("{}.{group}[{key}]", c.id);
            a.add(Code::FigureImpossible, at, "it is there twice");
        }
    }
}

fn not_recorded(a: &mut Auditor, id: String) {
    a.figure(FigureOf {
        id,
        stated: None,
        recomputed: None,
        unit: "tokens/s",
        n: None,
        derivation: Derivation::NotRecorded,
        basis: "the card does not have it".into(),
    });
}

/// `12/12 up to 507k`: a ratio, and a length.
fn read_quality(value: &str) -> Option<(u64, u64, Option<u64>)> {
    let (ratio, rest) = value.split_once(' ').unwrap_or((value, ""));
    let (k, n) = ratio.split_once('/')?;
    let length = rest.split_whitespace().find_map(|w| {
        w.strip_suffix(['k', 'K'])?
            .parse::<u64>()
            .ok()?
            .checked_mul(1000)
    });
    Some((k.parse().ok()?, n.parse().ok()?, length))
}

fn quality(a: &mut Auditor, c: &Config, q: &Quality) {
    let id = format!("{}.quality.{}", c.id, q.name);
    let Some((k, n, length)) = read_quality(&q.value) else {
        return a.stated(id, &q.value, "", None, "it is said in words");
    };
    if k > n || n == 0 {
        a.add(
            Code::FigureImpossible,
            &id,
            format!("{k} of {n} is no ratio"),
        );
    }
    if let Some(limit) = c.max_context.filter(|m| length.is_some_and(|l| l > *m)) {
        let why = format!("the context limit is {limit}");
        a.add(Code::FigureImpossible, &id, why);
    }
    a.stated(
        &id,
        &q.value,
        "ratio",
        Some(n),
        "lengths, depths and texts of the cases are not in the card",
    );
    let small = |v: u64| usize::try_from(v).ok().filter(|v| *v <= 1000);
    let bound = small(k).zip(small(n)).filter(|(k, n)| k <= n && *n > 0);
    if let Some(m) = bound.and_then(|(k, n)| lower_bound(k, n)) {
        let bound = BigRational::new(BigInt::from(m), BigInt::from(1_000_000));
        a.figure(FigureOf {
            id: format!("{id}.lower_bound"),
            stated: None,
            recomputed: Some(decimal(&bound, 6)),
            unit: "ratio",
            n: Some(n),
            derivation: Derivation::Consistent,
            basis: format!(
                "one-sided 95 % Clopper-Pearson bound of {k} of {n}, if they are independent"
            ),
        });
    }
}

fn pool(a: &mut Auditor, c: &Config) {
    let id = format!("{}.kv_pool_tokens", c.id);
    let Some(pool) = c.kv_pool_tokens else {
        return a.figure(FigureOf {
            id,
            stated: None,
            recomputed: None,
            unit: "tokens",
            n: None,
            derivation: Derivation::NotRecorded,
            basis: "the card does not have it".into(),
        });
    };
    a.stated(
        &id,
        pool.to_string(),
        "tokens",
        None,
        "where it was read is not said",
    );
    let Some(context) = c.max_context else {
        return;
    };
    let Some(sessions) = pool.checked_div(context) else {
        return a.add(
            Code::FigureImpossible,
            format!("{}.max_context", c.id),
            "it is 0",
        );
    };
    a.figure(FigureOf {
        id: format!("{}.implied.full_length_sessions", c.id),
        stated: None,
        recomputed: Some(sessions.to_string()),
        unit: "sessions",
        n: None,
        derivation: Derivation::Consistent,
        basis: "pool over context limit".into(),
    });
    if let Some(slots) = c.max_concurrent.filter(|slots| sessions < *slots) {
        a.add(
            Code::PoolSmallerThanSlots,
            &c.id,
            format!("{slots} requests of {context} tokens each need more than its {pool} tokens"),
        );
    }
}

/// Configurations that the card itself sets apart from the default one.
fn comparable(a: &mut Auditor, card: &RecipeCard) {
    let Some(default) = card.configs.iter().find(|c| c.id == card.default_config) else {
        return a.skip(
            "comparable",
            false,
            "there is no default configuration to compare with",
        );
    };
    for c in card.configs.iter().filter(|c| c.id != default.id) {
        let mut why = c.not_comparable.clone();
        if c.comparable == Some(false) && why.is_empty() {
            why.push("the card says so".to_owned());
        }
        if let Some(notes) = &c.notes {
            let lower = notes.to_lowercase();
            if OTHERS.iter().any(|w| lower.contains(w)) {
                why.push(format!("its note says {notes:?}"));
            }
        }
        for (group, here, there) in [
            ("decode", c.decode.is_some(), default.decode.is_some()),
            ("prefill", c.prefill.is_some(), default.prefill.is_some()),
            (
                "concurrency",
                c.concurrency.is_some(),
                default.concurrency.is_some(),
            ),
        ] {
            if here != there {
                let who = if here { &default.id } else { &c.id };
                why.push(format!("{who} has no {group} figures"));
            }
        }
        if c.max_context != default.max_context {
            why.push("another context limit".to_owned());
        }
        if !why.is_empty() {
            a.add(
                Code::ConfigsNotComparable,
                &c.id,
                format!("not comparable with {}: {}", default.id, why.join("; ")),
            );
        }
    }
    a.skip(
        "comparable",
        false,
        "a card records no conditions: its configurations were never shown to differ in one thing only",
    );
}

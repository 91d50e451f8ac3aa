//! Every mean, total and count of a throughput record derived again, the wall times
//! that it implies, and what no measurement can give.

use std::collections::BTreeSet;

use num_rational::BigRational;
use num_traits::{Signed, Zero};

use super::{Cell, ThroughputRecord, source};
use crate::codes::Code;
use crate::published::Beside;
use crate::published::claims::{self, Contradictions};
use crate::published::number::{
    Agreement, Interval, exact, mean, mean_agrees, nearest, shown, spread, text, whole,
};
use crate::published::report::{Auditor, Derivation, FigureOf};
use crate::published::times;

/// A spread of the batches over 1/10 of their mean is worth a remark.
const WIDE: (i64, i64) = (1, 10);

/// Audits a record that matches its schema.
pub fn audit(a: &mut Auditor, r: &ThroughputRecord, beside: &dyn Beside) {
    a.id = Some(r.id.clone());
    cells(a, r);
    a.close("cells", &[Code::EntryDuplicate]);
    a.close("means", &[Code::MeanNotReproduced]);
    totals(a, r);
    a.close("totals", &[Code::TotalNotReproduced]);
    possible(a, r);
    a.close("possible", &[Code::FigureImpossible]);
    dates(a, r);
    a.close("times", &[Code::TimeImpossible]);
    texts(a, r);
    a.close("claims", &[Code::ClaimContradicted]);
    source::sources(a, r, beside);
}

/// Where a cell stands, by what it is of.
pub(super) fn place(c: &Cell) -> String {
    format!("cells[{}/C{}]", c.context_tokens, c.concurrency)
}

fn cells(a: &mut Auditor, r: &ThroughputRecord) {
    let mut seen = BTreeSet::new();
    for c in &r.cells {
        let at = place(c);
        if !seen.insert((c.context_tokens, c.concurrency)) {
            a.add(
                Code::EntryDuplicate,
                &at,
                "two cells have this context and number of requests",
            );
        }
        let requests = c.repetitions.checked_mul(c.concurrency);
        let runs = &c.run_tokens_per_second;
        let agreement = mean_agrees(c.aggregate_tokens_per_second, runs);
        let here = mean(runs).map(|m| text(nearest(&m)));
        if agreement == Agreement::No {
            a.differ(
                Code::MeanNotReproduced,
                format!("{at}.aggregateTokensPerSecond"),
                "it is not the mean of the rates beside it",
                here.clone().unwrap_or_else(|| "(no rates)".to_owned()),
                text(c.aggregate_tokens_per_second),
            );
        }
        a.figure(FigureOf {
            id: format!("{at}.aggregateTokensPerSecond"),
            stated: Some(text(c.aggregate_tokens_per_second)),
            recomputed: here,
            unit: "tokens/s",
            n: Some(c.repetitions),
            derivation: match agreement {
                Agreement::Exact => Derivation::Recomputed,
                Agreement::Rounded => Derivation::Consistent,
                Agreement::No => Derivation::Stated,
            },
            basis: "arithmetic mean of runTokensPerSecond".into(),
        });
        for (i, rate) in runs.iter().enumerate() {
            a.stated(
                format!("{at}.runTokensPerSecond[{i}]"),
                text(*rate),
                "tokens/s",
                Some(c.concurrency),
                "a batch's rate; its tokens and wall time are not in the record",
            );
            if let Some(wall) = wall(r, c, *rate) {
                a.figure(FigureOf {
                    id: format!("{at}.wall[{i}]"),
                    stated: None,
                    recomputed: Some(shown(&wall, 6)),
                    unit: "s",
                    n: Some(c.concurrency),
                    derivation: Derivation::Consistent,
                    basis: "implied: outputTokens × concurrency / rate, if every request gave all its tokens".into(),
                });
            }
        }
        if let Some(s) = spread(runs).filter(|_| runs.len() > 1) {
            if s > BigRational::new(WIDE.0.into(), WIDE.1.into()) {
                a.add(
                    Code::SpreadWide,
                    &at,
                    format!(
                        "its {} batches are {} % of their mean apart",
                        runs.len(),
                        shown(&(&s * whole(100)), 1)
                    ),
                );
            }
            a.figure(FigureOf {
                id: format!("{at}.spread"),
                stated: None,
                recomputed: Some(shown(&s, 6)),
                unit: "ratio",
                n: Some(c.repetitions),
                derivation: Derivation::Recomputed,
                basis: "implied: largest less smallest rate, over their mean".into(),
            });
        }
        a.stated(
            format!("{at}.meanRequestTokensPerSecond"),
            text(c.mean_request_tokens_per_second),
            "tokens/s",
            requests,
            "the requests are not listed, and its denominator is not said",
        );
        a.stated(
            format!("{at}.meanTtftSeconds"),
            text(c.mean_ttft_seconds),
            "s",
            requests,
            "the requests are not listed; of which first it is, is unknown",
        );
    }
}

/// Seconds that a batch took if every request gave all its tokens.
fn wall(r: &ThroughputRecord, c: &Cell, rate: f64) -> Option<BigRational> {
    let rate = exact(rate);
    if !rate.is_positive() {
        return None;
    }
    Some(whole(r.profile.output_tokens) * whole(c.concurrency) / rate)
}

fn totals(a: &mut Auditor, r: &ThroughputRecord) {
    for c in &r.cells {
        if c.run_tokens_per_second.len() as u64 != c.repetitions {
            a.differ(
                Code::TotalNotReproduced,
                format!("{}.repetitions", place(c)),
                "it is not the number of rates beside it",
                c.run_tokens_per_second.len(),
                c.repetitions,
            );
        }
    }
    let sum = |f: &dyn Fn(&Cell) -> u128| r.cells.iter().map(f).sum::<u128>();
    // From the rates that are listed, so that one wrong repetition count is one finding.
    let batches = sum(&|c| c.run_tokens_per_second.len() as u128);
    let requests = sum(&|c| c.run_tokens_per_second.len() as u128 * u128::from(c.concurrency));
    let tokens = requests.saturating_mul(u128::from(r.profile.output_tokens));
    let listed = "counted over the cells";
    let rows: [(&str, u64, u128, &'static str, bool, &str); 5] = [
        (
            "itemCount",
            r.item_count,
            r.cells.len() as u128,
            "cells",
            true,
            listed,
        ),
        (
            "responseCount",
            r.response_count,
            requests,
            "requests",
            true,
            listed,
        ),
        (
            "totals.batches",
            r.totals.batches,
            batches,
            "batches",
            true,
            listed,
        ),
        (
            "totals.requests",
            r.totals.requests,
            requests,
            "requests",
            true,
            listed,
        ),
        (
            "totals.completionTokens",
            r.totals.completion_tokens,
            tokens,
            "tokens",
            false,
            "requests × profile.outputTokens; the counts of the requests are not in the record",
        ),
    ];
    for (id, said, follows, unit, counted, basis) in rows {
        // Without ignoreEos an answer may end early: then the product is an upper bound.
        let bound = !counted && !r.profile.ignore_eos;
        let holds = match bound {
            true => u128::from(said) <= follows,
            false => u128::from(said) == follows,
        };
        if !holds {
            a.differ(
                Code::TotalNotReproduced,
                id,
                match bound {
                    true => "it is more than the requests could give",
                    false => "it does not follow from the cells",
                },
                follows,
                said,
            );
        }
        a.figure(FigureOf {
            id: id.to_owned(),
            stated: Some(said.to_string()),
            recomputed: Some(follows.to_string()).filter(|_| !bound),
            unit,
            n: Some(r.cells.len() as u64),
            derivation: match (holds, counted, bound) {
                (false, ..) | (_, _, true) => Derivation::Stated,
                (true, true, _) => Derivation::Recomputed,
                (true, false, false) => Derivation::Consistent,
            },
            basis: basis.to_owned(),
        });
    }
    a.stated(
        "totals.excludedWarmupRequests",
        r.totals.excluded_warmup_requests.to_string(),
        "requests",
        None,
        "nothing else in the record counts them",
    );
}

/// What no measurement can give, whatever happened.
fn possible(a: &mut Auditor, r: &ThroughputRecord) {
    let mut bad = |at: String, why: String| a.add(Code::FigureImpossible, at, why);
    for c in &r.cells {
        let at = place(c);
        let named = [
            ("aggregateTokensPerSecond", c.aggregate_tokens_per_second),
            (
                "meanRequestTokensPerSecond",
                c.mean_request_tokens_per_second,
            ),
            ("meanTtftSeconds", c.mean_ttft_seconds),
        ];
        for (name, v) in named {
            if v <= 0.0 {
                bad(
                    format!("{at}.{name}"),
                    format!("{} is not above zero", text(v)),
                );
            }
        }
        for (i, v) in c.run_tokens_per_second.iter().enumerate() {
            if *v <= 0.0 {
                bad(
                    format!("{at}.runTokensPerSecond[{i}]"),
                    format!("{} is not above zero", text(*v)),
                );
            }
        }
        if c.concurrency == 0 || c.concurrency > r.profile.max_concurrency {
            let most = r.profile.max_concurrency;
            bad(
                at.clone(),
                format!("the server takes 1 to {most} requests at once"),
            );
            continue;
        }
        if let Some(limit) = r.profile.context_limit_tokens
            && c.context_tokens.saturating_add(r.profile.output_tokens) > limit
        {
            bad(
                at.clone(),
                format!("input and output are more than the limit of {limit} tokens"),
            );
        }
        against_batches(r, c, &at, &mut bad);
    }
}

/// A request lies inside its batch: it lasts no longer, so it is no slower than its
/// share of the batch's rate, and its first token comes before the batch is over.
fn against_batches(r: &ThroughputRecord, c: &Cell, at: &str, bad: &mut dyn FnMut(String, String)) {
    let rates = &c.run_tokens_per_second;
    if rates.is_empty() || rates.iter().any(|v| *v <= 0.0) || !r.profile.ignore_eos {
        return;
    }
    let Some(range) = crate::published::number::mean_interval(rates) else {
        return;
    };
    let share = range.scaled(&(BigRational::from_integer(1.into()) / whole(c.concurrency)));
    let request = Interval::of(c.mean_request_tokens_per_second);
    if request.hi.is_positive() && request.hi < share.lo {
        bad(
            format!("{at}.meanRequestTokensPerSecond"),
            format!(
                "a request has at least its share of the batch's rate, {} tokens/s",
                shown(&share.lo, 6)
            ),
        );
    }
    let walls: Vec<BigRational> = rates.iter().filter_map(|v| wall(r, c, *v)).collect();
    let mean_wall = walls.iter().sum::<BigRational>() / whole(walls.len().max(1) as u64);
    let first = Interval::of(c.mean_ttft_seconds);
    if !mean_wall.is_zero() && first.lo >= mean_wall {
        bad(
            format!("{at}.meanTtftSeconds"),
            format!("the batches took {} s on average", shown(&mean_wall, 6)),
        );
    }
}

fn dates(a: &mut Auditor, r: &ThroughputRecord) {
    let over = times::read(&r.run_completed_at);
    let made = times::read(&r.generated_at);
    for (field, text, read) in [
        ("runCompletedAt", &r.run_completed_at, over),
        ("generatedAt", &r.generated_at, made),
    ] {
        if read.is_none() {
            a.add(
                Code::TimeImpossible,
                field,
                format!("{text:?} is not a time"),
            );
        }
    }
    if let (Some(over), Some(made)) = (over, made)
        && made.latest() < over.earliest()
    {
        a.add(
            Code::TimeImpossible,
            "generatedAt",
            "the record was made before the run was over",
        );
    }
    if let (Some(over), Some(begun)) = (over, times::of_run_id(&r.run_id))
        && over.latest() < begun.earliest()
    {
        a.add(
            Code::TimeImpossible,
            "runCompletedAt",
            "the run was over before the time in its name",
        );
    }
}

/// Claims in the prose against what the record can carry and what its caveats deny.
fn texts(a: &mut Auditor, r: &ThroughputRecord) {
    let measured = r.cells.iter().map(|c| c.context_tokens).max();
    let mut prose: Vec<(&str, &str)> = Vec::new();
    for (field, texts) in [
        ("title", Some(&r.title)),
        ("subtitle", r.subtitle.as_ref()),
        ("category", r.category.as_ref()),
        ("description", r.description.as_ref()),
        ("method", Some(&r.method)),
    ] {
        if let Some(t) = texts {
            prose.push((field, &t.en));
            prose.extend(t.tr.as_deref().map(|tr| (field, tr)));
        }
    }
    let caveats: Vec<&str> = r
        .caveats
        .iter()
        .flat_map(|c| [Some(c.en.as_str()), c.tr.as_deref()])
        .flatten()
        .collect();
    let rules = Contradictions {
        control: false,
        graded: false,
        largest_context: measured,
    };
    claims::check(a, &prose, &caveats, rules);
    let mut want = Vec::new();
    if r.profile.speculative_method.is_some() {
        want.push((
            claims::Topic::Speedup,
            "no run without speculation stands beside it",
        ));
    }
    if let (Some(limit), Some(most)) = (r.profile.context_limit_tokens, measured)
        && limit > most.saturating_add(r.profile.output_tokens)
    {
        want.push((
            claims::Topic::Capacity,
            "its context limit is beyond every measured input",
        ));
    }
    want.push((claims::Topic::Quality, "no answer was graded"));
    for (topic, why) in want {
        if !caveats.iter().any(|c| claims::speaks_of(c, topic)) {
            a.add(
                Code::CaveatMissing,
                "caveats",
                format!("none says that {why}"),
            );
        }
    }
}

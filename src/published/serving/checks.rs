//! Outcomes, denominators, median, percentile and rate of a serving record, derived
//! again from its cases; and what its figures imply about each other.

use std::collections::BTreeSet;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed, ToPrimitive};

use super::bounds::{dates, pool, possible, texts};
use super::{CaseLine, MetricName, MetricValue, Outcome, ServingRecord};
use crate::codes::Code;
use crate::metrics::exact::{decimal, percentile_of, ratio};
use crate::published::number::{Interval, parse, shown, whole};
use crate::published::report::{Auditor, Derivation, FigureOf};

/// Audits a record that matches its schema.
pub fn audit(a: &mut Auditor, r: &ServingRecord) {
    a.id = Some(r.id.clone());
    outcomes(a, r);
    a.close(
        "outcomes",
        &[Code::OutcomeNotReproduced, Code::EntryDuplicate],
    );
    denominators(a, r);
    a.close("denominators", &[Code::TotalNotReproduced]);
    durations(a, r);
    a.close("percentiles", &[Code::PercentileNotReproduced]);
    throughput(a, r);
    a.close("rates", &[Code::RateNotReproduced]);
    only_said(a, r);
    possible(a, r);
    a.close("possible", &[Code::FigureImpossible]);
    dates(a, r);
    a.close("times", &[Code::TimeImpossible]);
    texts(a, r);
    a.close("claims", &[Code::ClaimContradicted]);
    pool(a, r);
    if r.comparison_conditions.is_none() {
        a.skip(
            "comparison",
            false,
            "the record says that its conditions were not established: it is not comparable",
        );
    }
}

fn count(r: &ServingRecord, want: impl Fn(&CaseLine) -> bool) -> u64 {
    r.cases.iter().filter(|c| want(c)).count() as u64
}

fn row(a: &mut Auditor, code: Code, id: &str, said: u64, follows: u64, basis: &str) {
    if said != follows {
        a.differ(code, id, "it does not follow from the cases", follows, said);
    }
    a.figure(FigureOf {
        id: id.to_owned(),
        stated: Some(said.to_string()),
        recomputed: Some(follows.to_string()),
        unit: "cases",
        n: None,
        derivation: match said == follows {
            true => Derivation::Recomputed,
            false => Derivation::Stated,
        },
        basis: basis.to_owned(),
    });
}

fn outcomes(a: &mut Auditor, r: &ServingRecord) {
    let mut ids = BTreeSet::new();
    for c in &r.cases {
        if !ids.insert(&c.id) {
            a.add(Code::EntryDuplicate, &c.id, "two cases have this id");
        }
        if c.primary_outcome == Outcome::Pass && c.outcome != Outcome::Pass {
            a.add(
                Code::OutcomeNotReproduced,
                &c.id,
                "it is attributed as a pass and was not observed as one",
            );
        }
        if c.outcome == Outcome::Pass && c.failure_stage.is_some() {
            a.add(
                Code::OutcomeNotReproduced,
                &c.id,
                "it passed, and names the stage in which it failed",
            );
        }
    }
    let code = Code::OutcomeNotReproduced;
    let cases = "counted over the cases";
    let passes = count(r, |c| c.outcome == Outcome::Pass);
    row(
        a,
        code,
        "outcomes.observed_passes",
        r.outcomes.observed_passes,
        passes,
        cases,
    );
    let verified = count(r, |c| c.primary_outcome == Outcome::Pass);
    row(
        a,
        code,
        "outcomes.verified_passes",
        r.outcomes.verified_passes,
        verified,
        cases,
    );
    for (outcome, name) in [
        (Outcome::Pass, "pass"),
        (Outcome::Fail, "fail"),
        (Outcome::Ungraded, "ungraded"),
    ] {
        let said = r.outcomes.counts.get(&outcome).copied();
        let follows = count(r, |c| c.outcome == outcome);
        if said.is_some() || follows > 0 {
            let id = format!("outcomes.counts.{name}");
            row(a, code, &id, said.unwrap_or(0), follows, cases);
        }
    }
}

fn denominators(a: &mut Auditor, r: &ServingRecord) {
    let code = Code::TotalNotReproduced;
    let cases = r.cases.len() as u64;
    let basis = "number of cases: every declared one is a denominator";
    row(
        a,
        code,
        "outcomes.declared",
        r.outcomes.declared,
        cases,
        basis,
    );
    row(
        a,
        code,
        "transport.declared",
        r.transport.declared,
        cases,
        basis,
    );
    if r.transport.completed > r.transport.declared {
        a.add(
            code,
            "transport.completed",
            "more completed than were declared",
        );
    }
    a.stated(
        "transport.completed",
        r.transport.completed.to_string(),
        "cases",
        Some(cases),
        "the cases do not say how their transport ended",
    );
    use MetricName as M;
    let durations = r.cases.iter().filter(|c| c.duration_ms.is_some()).count() as u64;
    for (name, metric) in &r.metrics {
        let (most, exactly) = match name {
            M::RequestCompletionMedian | M::RequestCompletionP95 => (durations, true),
            M::FirstGeneratedMedian | M::FirstContentMedian | M::CompletionThroughput => {
                (cases, false)
            }
            M::BatchDuration => (1, true),
            M::ChunkIntervalMedian => continue,
        };
        if metric.samples > most || (exactly && metric.samples != most) {
            a.differ(
                code,
                format!("metrics.{}.samples", name.name()),
                "the cases give another number",
                most,
                metric.samples,
            );
        }
    }
}

/// A figure as shown: its text, and the values it can stand for.
pub(super) fn interval(r: &ServingRecord, text: &str) -> Option<Interval> {
    Some(Interval::around(parse(text)?, r.display_decimals.min(18)))
}

pub(super) fn metric(r: &ServingRecord, name: MetricName) -> Option<(&MetricValue, Interval)> {
    let m = r.metrics.get(&name)?;
    Some((m, interval(r, &m.value)?))
}

fn durations(a: &mut Auditor, r: &ServingRecord) {
    let texts: Vec<&str> = r
        .cases
        .iter()
        .filter_map(|c| c.duration_ms.as_deref())
        .collect();
    let values: Vec<BigRational> = texts.iter().filter_map(|t| parse(t)).collect();
    let ranges: Vec<Interval> = texts.iter().filter_map(|t| interval(r, t)).collect();
    for c in &r.cases {
        let id = format!("cases.{}.duration_ms", c.id);
        match &c.duration_ms {
            Some(d) => a.stated(
                id,
                d,
                "ms",
                Some(1),
                "the request's events are not in the record",
            ),
            None => a.figure(FigureOf {
                id,
                stated: None,
                recomputed: None,
                unit: "ms",
                n: None,
                derivation: Derivation::NotRecorded,
                basis: "the record has no duration of this case".into(),
            }),
        }
    }
    for (name, num, den) in [
        (MetricName::RequestCompletionMedian, 1, 2),
        (MetricName::RequestCompletionP95, 95, 100),
    ] {
        let Some((m, said)) = metric(r, name) else {
            continue;
        };
        let at = |values: Vec<BigRational>| percentile_of(&mut { values }, num, den);
        let lo = at(ranges.iter().map(|i| i.lo.clone()).collect());
        let hi = at(ranges.iter().map(|i| i.hi.clone()).collect());
        let (Some(point), Some(lo), Some(hi)) = (at(values.clone()), lo, hi) else {
            let id = format!("metrics.{}", name.name());
            a.stated(
                id,
                &m.value,
                "ms",
                Some(m.samples),
                "the cases have no durations",
            );
            continue;
        };
        let here = shown(&point, r.display_decimals.min(18));
        // The page cuts zeros at the end.
        let as_said = parse(&m.value).map(|v| shown(&v, 18));
        let holds = said.meets(&Interval { lo, hi });
        let exact = as_said.as_deref() == Some(here.as_str());
        if !holds {
            a.differ(
                Code::PercentileNotReproduced,
                format!("metrics.{}", name.name()),
                "the durations of the cases give another value",
                &here,
                &m.value,
            );
        }
        a.figure(FigureOf {
            id: format!("metrics.{}", name.name()),
            stated: Some(m.value.clone()),
            recomputed: Some(here),
            unit: "ms",
            n: Some(values.len() as u64),
            derivation: match (holds, exact) {
                (false, _) => Derivation::Stated,
                (true, true) => Derivation::Recomputed,
                (true, false) => Derivation::Consistent,
            },
            basis: format!(
                "type 7 over the durations of the cases{}",
                match den == 100 && values.len() < 20 {
                    true => "; unstable under 20 values",
                    false => "",
                }
            ),
        });
    }
}

/// Tokens are whole: rate times batch must leave room for a whole number of them.
fn throughput(a: &mut Auditor, r: &ServingRecord) {
    let name = MetricName::CompletionThroughput;
    let Some((m, rate)) = metric(r, name) else {
        return;
    };
    let id = format!("metrics.{}", name.name());
    let Some((_, batch)) = metric(r, MetricName::BatchDuration) else {
        let basis = "there is no batch duration to divide by";
        return a.stated(id, &m.value, "tokens/s", Some(m.samples), basis);
    };
    let listed: Option<u64> = match r.cases.iter().all(|c| c.completion_tokens.is_some()) {
        true if !r.cases.is_empty() => r.cases.iter().map(|c| c.completion_tokens).sum(),
        _ => None,
    };
    let tokens = rate.times(&batch);
    let (first, n) = tokens.wholes();
    let figure = |recomputed, derivation, basis: String| FigureOf {
        id: id.clone(),
        stated: Some(m.value.clone()),
        recomputed,
        unit: "tokens/s",
        n: Some(m.samples),
        derivation,
        basis,
    };
    if let Some(listed) = listed {
        let fits = tokens.lo <= whole(listed) && whole(listed) <= tokens.hi;
        let stated_batch = r.metrics.get(&MetricName::BatchDuration);
        let here = stated_batch
            .and_then(|b| parse(&b.value))
            .filter(Signed::is_positive)
            .map(|b| decimal(&(whole(listed) / b), r.display_decimals.min(18)));
        if !fits {
            let here = here.clone().unwrap_or_default();
            let why = "the tokens of the cases over the batch give another rate";
            a.differ(Code::RateNotReproduced, &id, why, here, &m.value);
        }
        let derivation = match (fits, here.as_deref() == Some(m.value.as_str())) {
            (false, _) => Derivation::Stated,
            (true, true) => Derivation::Recomputed,
            (true, false) => Derivation::Consistent,
        };
        let basis = "tokens of the cases over the batch duration".to_owned();
        return a.figure(figure(here, derivation, basis));
    }
    if n == 0 {
        a.add(
            Code::RateNotReproduced,
            &id,
            format!(
                "over the batch it gives between {} and {} tokens, and no whole number of them",
                shown(&tokens.lo, 3),
                shown(&tokens.hi, 3)
            ),
        );
        let basis = "no whole number of tokens gives it".to_owned();
        return a.figure(figure(None, Derivation::Stated, basis));
    }
    let basis = match n {
        1 => format!("rate × batch leaves one whole number of tokens, {first}; the count is not in the record"),
        _ => "rate × batch leaves room for several whole numbers of tokens; the count is not in the record".to_owned(),
    };
    a.figure(figure(None, Derivation::Consistent, basis));
    if n == 1 {
        implied(a, r, &first);
    }
}

/// What one possible number of tokens says further.
fn implied(a: &mut Auditor, r: &ServingRecord, tokens: &BigInt) {
    let mut say = |id: &str, value: String, unit, basis: &str| {
        a.figure(FigureOf {
            id: id.to_owned(),
            stated: None,
            recomputed: Some(value),
            unit,
            n: None,
            derivation: Derivation::Consistent,
            basis: basis.to_owned(),
        });
    };
    say(
        "implied.completion_tokens",
        tokens.to_string(),
        "tokens",
        "the only whole number between the ends of rate × batch",
    );
    let Some(intervals) = r.metrics.get(&MetricName::ChunkIntervalMedian) else {
        return;
    };
    // n chunks of a request have n − 1 intervals between them.
    let chunks = u128::from(intervals.samples) + u128::from(r.transport.completed);
    say(
        "implied.chunks",
        chunks.to_string(),
        "chunks",
        "intervals and one for each completed request",
    );
    let per = tokens.to_u128().and_then(|t| ratio(t, chunks));
    if let Some(per) = per {
        say(
            "implied.tokens_per_chunk",
            decimal(&per, 3),
            "tokens/chunk",
            "implied tokens over implied chunks: an interval between chunks is no time per token",
        );
    }
}

/// Figures without anything finer beside them.
fn only_said(a: &mut Auditor, r: &ServingRecord) {
    use MetricName as M;
    for name in [
        M::FirstGeneratedMedian,
        M::FirstContentMedian,
        M::ChunkIntervalMedian,
    ] {
        let id = format!("metrics.{}", name.name());
        match r.metrics.get(&name) {
            Some(m) => {
                let basis = "the stamps of the requests are not in the record";
                a.stated(id, &m.value, "ms", Some(m.samples), basis);
            }
            None => a.figure(FigureOf {
                id,
                stated: None,
                recomputed: None,
                unit: "ms",
                n: None,
                derivation: Derivation::NotRecorded,
                basis: "the record does not have it".into(),
            }),
        }
    }
    if let Some(m) = r.metrics.get(&M::BatchDuration) {
        let basis = "first send and last end are not in the record";
        a.stated(
            "metrics.batch_duration",
            &m.value,
            "s",
            Some(m.samples),
            basis,
        );
    }
    let d = &r.deployment;
    let overlap = match d.peak_overlap {
        Some(n) => (
            Some(n.to_string()),
            Derivation::Stated,
            "requests have no stamps here",
        ),
        None => (None, Derivation::NotRecorded, "the record does not have it"),
    };
    a.figure(FigureOf {
        id: "deployment.peak_overlap".into(),
        stated: overlap.0,
        recomputed: None,
        unit: "requests",
        n: None,
        derivation: overlap.1,
        basis: overlap.2.into(),
    });
    if let Some([lo, hi]) = d.input_observed_tokens {
        let basis = "the server's counts of the requests are not in the record";
        a.stated(
            "deployment.input_observed_tokens",
            format!("{lo}–{hi}"),
            "tokens",
            None,
            basis,
        );
    }
}

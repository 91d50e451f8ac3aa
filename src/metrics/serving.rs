//! Definitions of the serving figures. docs/metrics.md states each for readers;
//! the ids and the algorithms here are versioned together.

use num_rational::BigRational;

use super::Metric;
use super::exact::{decimal, percentile, percentile_of, ratio};
use crate::bundle::files::GradeLine;
use crate::grading::{Declared, THINK_TAGS};
use crate::plan::LoadPlan;
use crate::scorer::Grade;
use crate::trace::{Trace, Transport};

const MS: u128 = 1_000_000;
const S: u128 = 1_000_000_000;
/// Under this many values a p95 is labelled unstable.
const STABLE_TAIL: usize = 20;

/// One measured attempt that was sent.
struct Sent<'a> {
    trace: &'a Trace,
    send: u64,
    /// End of reading; an attempt without one was cut off with the run.
    end: Option<u64>,
}

/// All serving figures. `grades` are in the order of `declared`; `attempts` are all
/// measured attempts, further ones at the same case included. A load with several
/// stages has figures per stage and none over all of them: a median over several
/// rates would be one of nothing.
pub fn serving(
    load: &LoadPlan,
    declared: &[Declared],
    attempts: &[&Trace],
    grades: &[GradeLine],
) -> Vec<Metric> {
    let stages = load.stages.len();
    if stages < 2 {
        return of_stage(load, declared, attempts, grades);
    }
    (0..stages)
        .flat_map(|stage| {
            let mine = |rep: u32| load.stage_of(rep) == stage;
            let (declared, grades): (Vec<Declared>, Vec<GradeLine>) = declared
                .iter()
                .zip(grades)
                .filter(|(d, _)| mine(d.rep))
                .map(|(d, g)| (*d, g.clone()))
                .unzip();
            let attempts: Vec<&Trace> = attempts.iter().copied().filter(|t| mine(t.rep)).collect();
            let metrics = of_stage(load, &declared, &attempts, &grades).into_iter();
            metrics.map(move |m| Metric {
                stage: Some(stage as u32 + 1),
                ..m
            })
        })
        .collect()
}

fn of_stage(
    load: &LoadPlan,
    declared: &[Declared],
    attempts: &[&Trace],
    grades: &[GradeLine],
) -> Vec<Metric> {
    let sent: Vec<Sent> = attempts
        .iter()
        .filter_map(|trace| {
            Some(Sent {
                trace,
                send: trace.send?,
                end: trace.end,
            })
        })
        .collect();
    let batch = batch(&sent);
    let durations: Vec<u64> = sent.iter().filter_map(|s| Some(s.end? - s.send)).collect();
    let since_send = |f: fn(&Trace) -> Option<u64>| -> Vec<u64> {
        sent.iter()
            .filter_map(|s| Some(f(s.trace)? - s.send))
            .collect()
    };
    let generated = since_send(|t| t.first_generated);
    let flagged: Vec<(&str, u32)> = grades
        .iter()
        .filter(|g| g.flags.iter().any(|f| f == THINK_TAGS))
        .map(|g| (g.case.as_str(), g.rep))
        .collect();
    let content: Vec<u64> = sent
        .iter()
        .filter(|s| !flagged.contains(&(s.trace.case.as_str(), s.trace.rep)))
        .filter_map(|s| Some(s.trace.first_content? - s.send))
        .collect();
    let intervals: Vec<u64> = sent
        .iter()
        .flat_map(|s| s.trace.chunks.windows(2).map(|w| w[1] - w[0]))
        .collect();
    let n = declared.len();

    let mut content_metric = time(
        "first-content-median/v1",
        &content,
        1,
        2,
        n,
        "sent attempts with final content",
    );
    if !flagged.is_empty() {
        content_metric.note = Some(format!(
            "{} attempts with think tags left out",
            flagged.len()
        ));
    }
    let mut metrics = vec![
        throughput(attempts, &sent, batch),
        goodput(grades, batch),
        time(
            "first-generated-median/v1",
            &generated,
            1,
            2,
            n,
            "sent attempts with generated output",
        ),
        content_metric,
        time(
            "request-duration-median/v1",
            &durations,
            1,
            2,
            n,
            "sent attempts, failures included",
        ),
        time(
            "request-duration-p95/v1",
            &durations,
            95,
            100,
            n,
            "sent attempts, failures included",
        ),
        time(
            "chunk-interval-median/v1",
            &intervals,
            1,
            2,
            n,
            "intervals between generated-bearing events",
        ),
        chunks(&sent),
        tokens_per_chunk(&sent),
        batch_duration(&sent, batch),
        overlap(&sent),
        time(
            "connect-median/v1",
            &connects(&sent),
            1,
            2,
            n,
            "new connections",
        ),
        time("queue-time-max/v1", &queue(&sent), 1, 1, n, "sent attempts"),
        time_per_output_token(&sent),
    ];
    if !load.stages.is_empty() {
        metrics.extend(by_schedule(&sent, n));
    }
    metrics
}

/// Times from when a request was due, so that waiting for a client slot is in them.
fn by_schedule(sent: &[Sent], n: usize) -> [Metric; 3] {
    let since_due = |f: fn(&Sent) -> Option<u64>| -> Vec<u64> {
        let since = |s| Some(f(s)? - s.trace.queued);
        sent.iter().filter_map(since).collect()
    };
    let generated = since_due(|s| s.trace.first_generated);
    let of = "sent attempts with generated output";
    let all = "sent attempts, failures included";
    [
        time("due-to-first-generated-median/v1", &generated, 1, 2, n, of),
        time("due-to-end-median/v1", &since_due(|s| s.end), 1, 2, n, all),
        time(
            "due-to-send-p95/v1",
            &since_due(|s| Some(s.send)),
            95,
            100,
            n,
            "sent attempts",
        ),
    ]
}

/// From the first send to the last end, when every sent attempt ended.
fn batch(sent: &[Sent]) -> Option<u64> {
    let first = sent.iter().map(|s| s.send).min()?;
    let last = sent.iter().map(|s| s.end).collect::<Option<Vec<_>>>()?;
    Some(last.into_iter().max()? - first)
}

fn metric(
    id: &str,
    value: Option<String>,
    unit: &str,
    n: usize,
    estimator: &str,
    denominator: &str,
) -> Metric {
    Metric {
        id: id.into(),
        value,
        unit: unit.into(),
        n: n as u64,
        estimator: estimator.into(),
        denominator: denominator.into(),
        derivation: "recomputed".into(),
        witness: "operator".into(),
        note: None,
        stage: None,
        batch: None,
        rep: None,
    }
}

fn per(value: &BigRational, unit: u128) -> BigRational {
    value / BigRational::from(num_bigint::BigInt::from(unit))
}

fn time(id: &str, values: &[u64], num: u32, den: u32, declared: usize, of: &str) -> Metric {
    let value = percentile(values, num, den).map(|p| decimal(&per(&p, MS), 3));
    let estimator = match (num, den) {
        (1, 2) => "median (type 7)",
        (1, 1) => "maximum",
        _ => "p95 (type 7)",
    };
    let mut m = metric(
        id,
        value,
        "ms",
        values.len(),
        estimator,
        &format!("{of}; {declared} declared"),
    );
    if m.value.is_none() {
        m.note = Some("no such value was observed".into());
    } else if (num, den) == (95, 100) && values.len() < STABLE_TAIL {
        let n = values.len();
        m.note = Some(format!("unstable: n = {n} is under {STABLE_TAIL}"));
    }
    m
}

fn throughput(attempts: &[&Trace], sent: &[Sent], batch: Option<u64>) -> Metric {
    let lacking = attempts
        .iter()
        .filter(|t| t.transport() == Transport::Completed && t.completion_tokens().is_none())
        .count();
    let tokens: u128 = sent
        .iter()
        .filter_map(|s| s.trace.completion_tokens())
        .map(u128::from)
        .sum();
    let counted = sent
        .iter()
        .filter(|s| s.trace.completion_tokens().is_some())
        .count();
    let mut m = metric(
        "completion-throughput/v1",
        None,
        "tokens/s",
        counted,
        "pooled rate",
        "batch duration: first send to last end, failed requests included",
    );
    if lacking > 0 {
        m.note = Some(format!(
            "incomplete: {lacking} completed attempts without a token count"
        ));
    } else if counted == 0 {
        m.note = Some("no attempt reported tokens".into());
    } else {
        m.value = batch
            .and_then(|b| ratio(tokens * S, b.into()))
            .map(|r| decimal(&r, 3));
        if m.value.is_none() {
            m.note = Some("an attempt has no end".into());
        }
    }
    m
}

fn goodput(grades: &[GradeLine], batch: Option<u64>) -> Metric {
    let passes = grades.iter().filter(|g| g.grade == Grade::Pass).count();
    let value = batch
        .and_then(|b| ratio(passes as u128 * S, b.into()))
        .map(|r| decimal(&r, 6));
    let mut m = metric(
        "goodput/v1",
        value,
        "passes/s",
        grades.len(),
        "passes over batch duration",
        "batch duration; every declared attempt",
    );
    if m.value.is_none() {
        m.note = Some("there is no batch duration".into());
    }
    m
}

fn count_chunks(sent: &[Sent]) -> usize {
    sent.iter().map(|s| s.trace.chunks.len()).sum()
}

fn chunks(sent: &[Sent]) -> Metric {
    let n = count_chunks(sent);
    metric(
        "chunks/v1",
        Some(n.to_string()),
        "chunks",
        sent.len(),
        "sum",
        "sent attempts",
    )
}

fn tokens_per_chunk(sent: &[Sent]) -> Metric {
    // Only attempts that reported tokens, in numerator and denominator alike.
    let counted = || {
        sent.iter()
            .filter(|s| s.trace.completion_tokens().is_some())
    };
    let tokens: u128 = counted()
        .filter_map(|s| s.trace.completion_tokens())
        .map(u128::from)
        .sum();
    let chunks: usize = counted().map(|s| s.trace.chunks.len()).sum();
    let value = ratio(tokens, chunks as u128).map(|r| decimal(&r, 3));
    let mut m = metric(
        "tokens-per-chunk/v1",
        value,
        "tokens/chunk",
        counted().count(),
        "pooled ratio",
        "chunks of attempts that reported tokens",
    );
    if m.value.is_none() {
        m.note = Some("no chunks with a token count".into());
    }
    m
}

fn batch_duration(sent: &[Sent], batch: Option<u64>) -> Metric {
    let value = batch
        .and_then(|b| ratio(b.into(), S))
        .map(|r| decimal(&r, 3));
    let mut m = metric(
        "batch-duration/v1",
        value,
        "s",
        sent.len(),
        "last end − first send",
        "sent attempts",
    );
    if m.value.is_none() {
        m.note = Some("nothing was sent, or an attempt has no end".into());
    }
    m
}

/// Largest number of request spans [send, end) open at once. Client spans, not
/// sequences on a GPU.
fn overlap(sent: &[Sent]) -> Metric {
    let mut edges: Vec<(u64, i64)> = Vec::new();
    for s in sent {
        edges.push((s.send, 1));
        edges.push((s.end.unwrap_or(u64::MAX), -1));
    }
    // Ends sort before starts at the same instant: the spans are half-open.
    edges.sort_unstable();
    let (mut open, mut most) = (0i64, 0i64);
    for (_, step) in edges {
        open += step;
        most = most.max(open);
    }
    metric(
        "peak-overlap/v1",
        Some(most.to_string()),
        "requests",
        sent.len(),
        "maximum",
        "half-open client request spans",
    )
}

fn connects(sent: &[Sent]) -> Vec<u64> {
    sent.iter()
        .filter(|s| !s.trace.reused)
        .filter_map(|s| Some(s.trace.connected? - s.trace.connect_start?))
        .collect()
}

fn queue(sent: &[Sent]) -> Vec<u64> {
    sent.iter()
        .map(|s| {
            s.trace
                .connect_start
                .or(s.trace.connected)
                .unwrap_or(s.send)
                - s.trace.queued
        })
        .collect()
}

/// Per attempt (last generated − first generated) / (n − k1), where k1 is the
/// server's count with the first chunk and n its last; the median over attempts.
fn time_per_output_token(sent: &[Sent]) -> Metric {
    let mut values: Vec<BigRational> = sent
        .iter()
        .filter_map(|s| {
            let n = s.trace.completion_tokens()?;
            let k1 = s.trace.first_chunk_tokens?;
            let span = s.trace.last_generated? - s.trace.first_generated?;
            ratio(span.into(), n.checked_sub(k1)?.into())
        })
        .collect();
    let mut m = metric(
        "time-per-output-token/v1",
        percentile_of(&mut values, 1, 2).map(|p| decimal(&per(&p, MS), 3)),
        "ms",
        values.len(),
        "median (type 7) of (last generated − first generated) / (n − k1)",
        "attempts with continuous usage",
    );
    if m.value.is_none() {
        m.note = Some(
            "not measurable: the tokens in the first chunk are unknown without continuous usage"
                .into(),
        );
    }
    m
}

/// Prompt-token range over sent attempts: (min, max, n).
pub fn prompt_range(declared: &[Declared]) -> (Option<u64>, Option<u64>, u64) {
    let counts: Vec<u64> = declared
        .iter()
        .filter_map(|d| d.trace?.prompt_tokens())
        .collect();
    (
        counts.iter().min().copied(),
        counts.iter().max().copied(),
        counts.len() as u64,
    )
}

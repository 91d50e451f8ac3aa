//! What is graded, and what is flagged, about each declared attempt.
//!
//! An answer is graded when its transport completed. Anything else is
//! `ungraded` with the transport state as the reason, and stays in the
//! denominator. The scorer sees the frozen case and the answer, never the prefix.

use std::collections::BTreeMap;

use crate::bundle::files::GradeLine;
use crate::plan::RunPlan;
use crate::response::Response;
use crate::scorer::{Grade, GradeItem, GradeResult};
use crate::suite::Suite;
use crate::trace::{Trace, Traces, Transport};

/// A declared measured attempt: case and repetition, with the trace when it was
/// at least queued.
#[derive(Debug, Clone, Copy)]
pub struct Declared<'a> {
    /// Case id.
    pub case: &'a str,
    /// Repetition.
    pub rep: u32,
    /// Its life in the event log.
    pub trace: Option<&'a Trace>,
}

impl Declared<'_> {
    /// Transport state; declared and never queued is `not_attempted`.
    pub fn transport(&self) -> Transport {
        self.trace.map_or(Transport::NotAttempted, Trace::transport)
    }

    /// Key for the scorer's batch.
    pub fn key(&self) -> String {
        format!("{}#{}", self.case, self.rep)
    }
}

/// Every declared attempt in order: repetition by repetition, case by case.
pub fn declared<'a>(plan: &'a RunPlan, traces: &'a Traces) -> Vec<Declared<'a>> {
    let mut by_key: BTreeMap<(&str, u32), &Trace> = BTreeMap::new();
    for trace in traces.requests.iter().filter(|t| !t.warmup) {
        by_key.insert((trace.case.as_str(), trace.rep), trace);
    }
    (0..plan.load.repetitions)
        .flat_map(|rep| plan.suite.case_ids.iter().map(move |case| (case, rep)))
        .map(|(case, rep)| Declared {
            case,
            rep,
            trace: by_key.get(&(case.as_str(), rep)).copied(),
        })
        .collect()
}

/// Why an attempt is not given to the scorer, if so.
fn not_gradable(attempt: &Declared, response: Option<&Response>) -> Option<String> {
    match attempt.transport() {
        Transport::Completed if response.is_some() => None,
        Transport::Completed => Some("the answer was not recorded".into()),
        other => Some(format!("transport {}", other.name())),
    }
}

/// The items to grade and, in the order of `attempts`, for each attempt either
/// its key or the reason why it is ungraded.
pub fn items(
    suite: &Suite,
    attempts: &[Declared],
    responses: &BTreeMap<u32, Response>,
) -> (Vec<GradeItem>, Vec<Result<String, String>>) {
    let mut items = Vec::new();
    let slots = attempts
        .iter()
        .map(|attempt| {
            let response = attempt.trace.and_then(|t| responses.get(&t.req));
            if let Some(why) = not_gradable(attempt, response) {
                return Err(why);
            }
            let case = suite
                .case(attempt.case)
                .ok_or("the case is not in the suite")?;
            let (Some(trace), Some(response)) = (attempt.trace, response) else {
                return Err("the answer was not recorded".into());
            };
            let key = attempt.key();
            items.push(GradeItem {
                key: key.clone(),
                case: serde_json::to_value(case).unwrap_or_default(),
                answer: response.answer(trace),
            });
            Ok(key)
        })
        .collect();
    (items, slots)
}

/// The lines of grades.jsonl from the scorer's results.
pub fn lines(
    attempts: &[Declared],
    slots: &[Result<String, String>],
    results: &[GradeResult],
    responses: &BTreeMap<u32, Response>,
) -> Vec<GradeLine> {
    let results: BTreeMap<&str, &Grade> =
        results.iter().map(|r| (r.key.as_str(), &r.grade)).collect();
    attempts
        .iter()
        .zip(slots)
        .map(|(attempt, slot)| {
            let ungraded = |reason: &str| Grade::Ungraded {
                reason: reason.to_owned(),
            };
            let grade = match slot {
                Err(why) => ungraded(why),
                Ok(key) => results
                    .get(key.as_str())
                    .map(|g| (*g).clone())
                    .unwrap_or_else(|| ungraded("the scorer gave no result")),
            };
            let response = attempt.trace.and_then(|t| responses.get(&t.req));
            GradeLine {
                case: attempt.case.to_owned(),
                rep: attempt.rep,
                grade,
                flags: response.map(flags).unwrap_or_default(),
            }
        })
        .collect()
}

/// Remarkable things about an answer:
///
/// * `think-tags`: reasoning tags stand in the final content, so the arrival of
///   final content cannot be told; its timing is left out of the aggregate.
/// * `reasoning-only`: there is reasoning and no final content.
pub fn flags(response: &Response) -> Vec<String> {
    let mut flags = Vec::new();
    let content = response.content.to_ascii_lowercase();
    let tags = ["<think", "</think", "<reasoning>", "</reasoning>"];
    if tags.iter().any(|t| content.contains(t)) {
        flags.push(THINK_TAGS.to_owned());
    }
    if response.content.is_empty() && !response.reasoning.is_empty() {
        flags.push(REASONING_ONLY.to_owned());
    }
    flags
}

/// Flag of an answer with reasoning tags in its final content.
pub const THINK_TAGS: &str = "think-tags";
/// Flag of an answer that never reached its final content.
pub const REASONING_ONLY: &str = "reasoning-only";

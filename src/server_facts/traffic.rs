//! Traffic that was not ours: requests in the server before the measurement, and
//! tokens that its counters moved by beyond what our own answers report.
//!
//! No tolerance: an engine that counts exactly what it reports moves its counters by
//! exactly our sum. Where the sum is not known (an attempt was sent and reports no
//! counts), nothing is judged: never "none".

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FactValue, Family, ServerFact};
use crate::trace::Trace;

/// What the counters say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Foreign {
    /// There was none, as far as the server counts.
    None,
    /// There was some.
    Found {
        /// In numbers.
        detail: String,
    },
    /// It cannot be told.
    NotJudged {
        /// Why.
        reason: String,
    },
}

fn not_judged(reason: impl Into<String>) -> Foreign {
    Foreign::NotJudged {
        reason: reason.into(),
    }
}

fn fact<'a>(facts: &'a [ServerFact], name: &str) -> Option<&'a ServerFact> {
    facts.iter().find(|f| f.name == name)
}

/// Requests that ran or waited right before the first measured one.
pub fn before(facts: &[ServerFact]) -> Foreign {
    let gauge = |name| match fact(facts, name)?.before {
        Some(FactValue::Count(n)) => Some(n),
        _ => None,
    };
    match (gauge("running"), gauge("waiting")) {
        (Some(0), Some(0)) => Foreign::None,
        (Some(running), Some(waiting)) => Foreign::Found {
            detail: format!("{running} requests ran and {waiting} waited before the measurement"),
        },
        _ => not_judged("it did not say how many requests ran and waited before the measurement"),
    }
}

/// Growth of a counter.
fn growth(facts: &[ServerFact], name: &str) -> Option<i128> {
    let (before, after) = fact(facts, name)?.counts()?;
    Some(i128::from(after) - i128::from(before))
}

/// Growth of the prompt and generated tokens, the cached ones among the prompt's.
fn tokens(family: &Family, facts: &[ServerFact]) -> Option<(i128, i128)> {
    let mut prompt = growth(facts, "prompt-tokens")?;
    if family.prompt_excludes_cached {
        prompt += growth(facts, "cached-tokens")?;
    }
    Some((prompt, growth(facts, "generation-tokens")?))
}

/// Growth of the tokens served from a cache, where the server counts them.
pub fn cached(facts: &[ServerFact]) -> Option<i128> {
    growth(facts, "cached-tokens")
}

/// Tokens beyond those of our own measured attempts at this endpoint.
pub fn during(family: &Family, facts: &[ServerFact], measured: &[&Trace]) -> Foreign {
    let Some((prompt, generated)) = tokens(family, facts) else {
        return not_judged("it did not count tokens before and after the measurement");
    };
    let sent = || measured.iter().filter(|t| t.send.is_some());
    let counts = |t: &&&Trace| {
        let counts = (t.prompt_tokens()?, t.completion_tokens()?);
        Some((i128::from(counts.0), i128::from(counts.1)))
    };
    let silent = sent().filter(|t| counts(t).is_none()).count();
    if silent > 0 {
        return not_judged(format!(
            "{silent} attempts were sent and report no token counts"
        ));
    }
    let (p, g) = sent()
        .filter_map(|t| counts(&t))
        .fold((0, 0), |(p, g), (a, b)| (p + a, g + b));
    if prompt == p && generated == g {
        return Foreign::None;
    }
    if prompt > p || generated > g {
        return Foreign::Found {
            detail: format!(
                "its counters moved by {prompt} prompt and {generated} generated tokens, our own answers report {p} and {g}"
            ),
        };
    }
    not_judged(format!(
        "its counters moved by {prompt} prompt and {generated} generated tokens, less than the {p} and {g} that our own answers report"
    ))
}

//! Length targets: which prompt aims at how many tokens, and whether the server's own
//! count says that it got there.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::grading::Declared;
use crate::plan::RunPlan;
use crate::suite::SuiteToml;
use crate::trace::Trace;

/// How far from its target a prompt may be, in percent of the target.
pub const TOLERANCE_PERCENT: u64 = 2;

/// Most calibration requests per case.
pub const CALIBRATION_TRIES: u32 = 6;

/// The attempts that aimed at one length, and what the server counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LengthRange {
    /// The target in tokens.
    pub target_tokens: u64,
    /// Declared attempts that aim at it.
    pub declared: u64,
    /// Of them, those whose prompt the server counted.
    pub counted: u64,
    /// Of them, those within [`TOLERANCE_PERCENT`] of the target.
    pub within: u64,
    /// Smallest count.
    pub min: Option<u64>,
    /// Largest count.
    pub max: Option<u64>,
}

/// True when a count is within [`TOLERANCE_PERCENT`] of a target.
pub fn within(target: u64, counted: u64) -> bool {
    let off = u128::from(target.abs_diff(counted)) * 100;
    off <= u128::from(target) * u128::from(TOLERANCE_PERCENT)
}

/// The target of each case of the plan, in their order: its cell's, its batch's, the
/// plan's, the suite's, whichever there is first.
pub fn targets(suite: &SuiteToml, plan: &RunPlan) -> Vec<Option<u64>> {
    let cells: BTreeMap<&str, u64> = suite
        .cells
        .iter()
        .map(|c| (c.case.as_str(), c.length_target_tokens))
        .collect();
    let all = plan
        .input
        .as_ref()
        .and_then(|i| i.length_target_tokens)
        .or(suite.length_target_tokens);
    let mut batches = suite
        .batch_numbers()
        .map(|i| suite.batches[i].context_tokens);
    plan.suite
        .case_ids
        .iter()
        .map(|id| {
            let batch = batches.next();
            cells.get(id.as_str()).copied().or(batch).or(all)
        })
        .collect()
}

/// What was counted, by target, in their order. Attempts that were not counted are
/// within nothing.
pub fn ranges(suite: &SuiteToml, plan: &RunPlan, declared: &[Declared]) -> Vec<LengthRange> {
    let ids = plan.suite.case_ids.iter().map(String::as_str);
    let by_case: BTreeMap<&str, Option<u64>> = ids.zip(targets(suite, plan)).collect();
    let mut out: BTreeMap<u64, LengthRange> = BTreeMap::new();
    for d in declared {
        let Some(target) = by_case.get(d.case).copied().flatten() else {
            continue;
        };
        let range = out.entry(target).or_insert(LengthRange {
            target_tokens: target,
            declared: 0,
            counted: 0,
            within: 0,
            min: None,
            max: None,
        });
        range.declared += 1;
        if let Some(n) = d.trace.and_then(Trace::prompt_tokens) {
            range.counted += 1;
            range.within += u64::from(within(target, n));
            range.min = Some(range.min.map_or(n, |m| m.min(n)));
            range.max = Some(range.max.map_or(n, |m| m.max(n)));
        }
    }
    out.into_values().collect()
}

/// Declared attempts with a target, those that missed it, and what was counted, in
/// words; `None` when none missed it.
pub fn missed(ranges: &[LengthRange]) -> Option<(u64, u64, String)> {
    let declared: u64 = ranges.iter().map(|r| r.declared).sum();
    let within: u64 = ranges.iter().map(|r| r.within).sum();
    let show = |n: Option<u64>| n.map_or("?".to_owned(), |n| n.to_string());
    let words: Vec<String> = ranges
        .iter()
        .filter(|r| r.within < r.declared)
        .map(|r| format!("{}: {}-{}", r.target_tokens, show(r.min), show(r.max)))
        .collect();
    (within < declared).then(|| (declared, declared - within, words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_percent_of_the_target_are_within_and_no_more() {
        for (target, good, bad) in [
            (100, 98, 97),
            (100, 102, 103),
            (128, 126, 125),
            (49, 49, 48),
        ] {
            assert!(within(target, good), "{target} {good}");
            assert!(!within(target, bad), "{target} {bad}");
        }
        assert!(within(u64::MAX, u64::MAX));
    }
}

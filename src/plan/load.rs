//! How requests are sent: closed and open loops, rates, declared retries.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PlanError;
use crate::json;
use crate::schedule::Arrivals;
use crate::trace::Transport;

/// How requests are sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadPlan {
    /// `closed`: a fixed number of clients, each waiting for its answer. `open`:
    /// requests become due by a schedule, whatever becomes of the earlier ones.
    pub mode: String,
    /// Client slots: in a closed loop the clients, in an open one the most requests
    /// at a time. What waits for a slot has queue time.
    pub concurrency: u32,
    /// How often every case is sent.
    pub repetitions: u32,
    /// How cases are spread over endpoints: `round-robin`.
    pub spread: String,
    /// Open loop: the rates, one after the other. Each gets the same number of
    /// repetitions, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StagePlan>,
    /// Further attempts after failures; without it there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPlan>,
}

impl LoadPlan {
    pub(super) fn check(&self) -> Result<(), PlanError> {
        let bad = |why: String| Err(PlanError(why));
        if self.spread != "round-robin" {
            return bad("load.spread must be \"round-robin\"".into());
        }
        match (self.mode.as_str(), self.stages.len()) {
            ("closed", 0) => {}
            ("closed", _) => return bad("a closed loop has no stages".into()),
            ("open", 0) => return bad("an open loop needs a stage with a rate".into()),
            ("open", n) if !(self.repetitions as usize).is_multiple_of(n) => {
                return bad(format!(
                    "{} repetitions cannot be shared out evenly over {n} stages",
                    self.repetitions
                ));
            }
            ("open", _) => {}
            _ => return bad("load.mode must be \"closed\" or \"open\"".into()),
        }
        if let Some(i) = self.stages.iter().position(|s| s.schedule().is_none()) {
            return bad(format!(
                "stage {} must be \"constant\" without a seed or \"poisson\" with one (at most 2^53), at 1 to \
                 {MAX_MILLIHERTZ} millihertz",
                i + 1
            ));
        }
        let Some(retry) = &self.retry else {
            return Ok(());
        };
        if !(2..=MAX_RETRY).contains(&retry.attempts) {
            return bad(format!("load.retry.attempts must be 2 to {MAX_RETRY}"));
        }
        let distinct: std::collections::BTreeSet<_> = retry.on.iter().collect();
        let legal = retry.on.iter().all(|t| RETRIABLE.contains(t));
        if retry.on.is_empty() || distinct.len() != retry.on.len() || !legal {
            let names = RETRIABLE.map(Transport::name).join(", ");
            return bad(format!(
                "load.retry.on must name some of {names}, each once"
            ));
        }
        Ok(())
    }

    /// Repetitions of one stage; of the whole run in a closed loop.
    pub fn stage_repetitions(&self) -> u32 {
        let stages = u32::try_from(self.stages.len()).unwrap_or(u32::MAX);
        self.repetitions / stages.max(1)
    }

    /// The stage that a repetition belongs to, from 0.
    pub fn stage_of(&self, rep: u32) -> usize {
        (rep / self.stage_repetitions().max(1)) as usize
    }
}

/// One rate of an open loop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StagePlan {
    /// `constant` or `poisson`.
    pub arrivals: String,
    /// Requests per 1,000 seconds.
    pub millihertz: u64,
    /// Seed of Poisson arrivals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl StagePlan {
    /// The schedule; `None` for a stage that [`super::RunPlan::check`] refuses.
    pub fn schedule(&self) -> Option<Arrivals> {
        let millihertz = Some(self.millihertz).filter(|r| (1..=MAX_MILLIHERTZ).contains(r))?;
        match (self.arrivals.as_str(), self.seed) {
            ("constant", None) => Some(Arrivals::Constant { millihertz }),
            ("poisson", Some(seed)) if seed <= json::MAX_INTEGER => {
                Some(Arrivals::Poisson { millihertz, seed })
            }
            _ => None,
        }
    }
}

/// Bounded retries: further attempts that the plan declares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryPlan {
    /// Most attempts at one case and repetition, the first included.
    pub attempts: u32,
    /// Transport states that are worth another attempt.
    pub on: Vec<Transport>,
}

/// Highest rate of an open loop: a million requests a second.
pub const MAX_MILLIHERTZ: u64 = 1_000_000_000;
/// Most attempts at one case and repetition.
pub const MAX_RETRY: u32 = 8;
/// Transport states after which another attempt may be declared. A completed
/// answer is never asked for again: that would be choosing.
pub const RETRIABLE: [Transport; 5] = [
    Transport::HttpError,
    Transport::StreamError,
    Transport::Truncated,
    Transport::Timeout,
    Transport::ConnectError,
];

//! What requests are made of: their form, a length that prompts are brought to, and a
//! number of tokens that every answer must have.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PlanError, RunPlan};

/// Largest length target in tokens.
pub const MAX_TARGET: u64 = 100_000_000;

/// The form of requests and the path they are posted to.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// A list of messages; answers come as deltas.
    #[default]
    Chat,
    /// One prompt: the contents of the messages in their order, with a line feed
    /// between them; answers come as `text`.
    Completions,
}

impl Api {
    /// Path of the endpoint.
    pub fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
        }
    }

    /// True for the usual form, which plans do not write down.
    pub fn is_chat(&self) -> bool {
        *self == Api::Chat
    }
}

/// Language of the generated text that prompts are filled with.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// English words.
    En,
    /// Turkish words.
    Tr,
}

impl Language {
    /// As it stands in a plan.
    pub fn name(self) -> &'static str {
        match self {
            Language::En => "en",
            Language::Tr => "tr",
        }
    }
}

/// Prompts are filled with generated text until the server's own count of their tokens
/// is the length target, as far as calibration requests can find out. These are
/// declared warm-ups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InputPlan {
    /// Language of the text.
    pub language: Language,
    /// Target of cases for which the suite has none of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_target_tokens: Option<u64>,
}

impl RunPlan {
    pub(super) fn check_input(&self) -> Result<(), PlanError> {
        let bad = |why: String| Err(PlanError(why));
        let api = self.requests.api;
        if self.engine.path != api.path() {
            return bad(format!(
                "requests of this form are posted to {}, not {}",
                api.path(),
                self.engine.path
            ));
        }
        if api == Api::Completions && self.requests.reasoning_effort.is_some() {
            return bad("the completions endpoint knows no reasoning_effort".into());
        }
        if let Some(target) = self.input.as_ref().and_then(|i| i.length_target_tokens)
            && !(1..=MAX_TARGET).contains(&target)
        {
            return bad(format!(
                "input.length_target_tokens must be 1 to {MAX_TARGET}"
            ));
        }
        let fixed = &self.suite.fixed_output;
        let want = match self.requests.ignores_eos() {
            true => self.suite.case_ids.len(),
            false => 0,
        };
        if fixed.len() != want || fixed.contains(&0) {
            return bad(format!(
                "ignore_eos needs a fixed number of tokens for each of {want} cases, and there are {}",
                fixed.len()
            ));
        }
        Ok(())
    }
}

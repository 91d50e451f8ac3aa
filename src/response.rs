//! Recorded answers (`runseal.responses/v1`) and how they are tied to the event
//! log: every delta's text must have the length and salted digest logged for it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::digest::Sha256Digest;
use crate::event::{DeltaKind, body_digest, delta_digest, error_digest};
use crate::scorer::Answer;
use crate::trace::Trace;

/// Value of the header's `format`.
pub const FORMAT: &str = "runseal.responses/v1";

/// First line of responses.jsonl and grades.jsonl: which run this file is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunHeader {
    /// Format of the file.
    pub format: String,
    /// The run.
    pub run_id: String,
    /// Hash of its nonce.
    pub nonce_hash: Sha256Digest,
}

/// The answer to one attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Response {
    /// Attempt number.
    pub req: u32,
    /// 32-byte salt of this attempt's digests, as 64 hex digits.
    pub salt: String,
    /// Final content: all content deltas in order.
    pub content: String,
    /// Reasoning text, likewise.
    pub reasoning: String,
    /// Each tool delta's `tool_calls` array as canonical JSON.
    pub tool_deltas: Vec<String>,
    /// Errors that the server reported.
    pub errors: Vec<String>,
    /// The `model` the server echoed. Proves nothing.
    pub model: Option<String>,
}

impl Response {
    /// The salt, when it is well-formed.
    pub fn salt_bytes(&self) -> Option<[u8; 32]> {
        let mut salt = [0u8; 32];
        hex::decode_to_slice(&self.salt, &mut salt).ok()?;
        Some(salt)
    }

    /// Compares with the log: `Err` names the first thing that does not fit.
    pub fn check(&self, trace: &Trace) -> Result<(), String> {
        let salt = self.salt_bytes().ok_or("the salt is malformed")?;
        let mut content = self.content.as_bytes();
        let mut reasoning = self.reasoning.as_bytes();
        let mut tools = self.tool_deltas.iter();
        for (i, delta) in trace.deltas.iter().enumerate() {
            let text: &[u8] = match delta.kind {
                DeltaKind::Empty => b"",
                DeltaKind::Content => take(&mut content, delta.len, i)?,
                DeltaKind::Reasoning => take(&mut reasoning, delta.len, i)?,
                DeltaKind::Tool => tools
                    .next()
                    .ok_or_else(|| format!("delta {i}: tool text is missing"))?
                    .as_bytes(),
            };
            if text.len() as u64 != delta.len
                || delta_digest(&salt, delta.ev, delta.kind, text) != delta.digest
            {
                return Err(format!("delta {i} has other text than was received"));
            }
        }
        if !content.is_empty() || !reasoning.is_empty() || tools.next().is_some() {
            return Err("there is more text than was received".into());
        }
        if self.errors.len() != trace.errors.len() {
            return Err("the number of errors differs from the log".into());
        }
        for (text, (len, digest)) in self.errors.iter().zip(&trace.errors) {
            if text.len() as u64 != *len || error_digest(&salt, text.as_bytes()) != *digest {
                return Err("an error has other text than was received".into());
            }
        }
        Ok(())
    }

    /// Compares a body with the one that was logged as sent.
    pub fn check_body(&self, trace: &Trace, body: &[u8]) -> bool {
        match (self.salt_bytes(), trace.body) {
            (Some(salt), Some((len, digest))) => {
                len == body.len() as u64 && digest == body_digest(&salt, body)
            }
            _ => false,
        }
    }

    /// The `answer` that the scorer sees.
    pub fn answer(&self, trace: &Trace) -> Answer {
        Answer {
            content: self.content.clone(),
            reasoning: self.reasoning.clone(),
            finish_reason: trace.finish.clone(),
            tool_calls: self.tool_calls(),
        }
    }

    /// Folds tool deltas into calls `{name, arguments}` by their `index`.
    pub fn tool_calls(&self) -> Vec<Value> {
        let mut calls: std::collections::BTreeMap<u64, (String, String)> = Default::default();
        for delta in &self.tool_deltas {
            let parts = serde_json::from_str::<Vec<Value>>(delta).unwrap_or_default();
            for part in parts {
                let call = calls
                    .entry(part["index"].as_u64().unwrap_or(0))
                    .or_default();
                call.0
                    .push_str(part["function"]["name"].as_str().unwrap_or(""));
                call.1
                    .push_str(part["function"]["arguments"].as_str().unwrap_or(""));
            }
        }
        calls
            .into_values()
            .map(|(name, arguments)| json!({"name": name, "arguments": arguments}))
            .collect()
    }
}

fn take<'a>(text: &mut &'a [u8], len: u64, i: usize) -> Result<&'a [u8], String> {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let (head, tail) = text
        .split_at_checked(len)
        .ok_or_else(|| format!("delta {i}: text is missing"))?;
    *text = tail;
    Ok(head)
}

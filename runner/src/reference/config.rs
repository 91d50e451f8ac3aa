//! `config.json` of the Hugging Face layout, reduced to what a plain Llama decoder needs.
//!
//! Parsing is validation: a [`ModelConfig`] that exists is one the engine can run. Settings
//! that would change the arithmetic (rope scaling, biases, another activation) are refused
//! rather than ignored, because an ignored setting is a wrong answer with a good exit code.

use std::path::Path;

use serde::Deserialize;

use super::error::EngineError;

/// The dimensions and constants of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Number of token ids.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Positions the model was built for (prompt and answer together).
    pub context: usize,
    /// Base of the rotary embedding.
    pub rope_theta: f32,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f32,
    /// Whether the output projection is the embedding table.
    pub tied: bool,
    /// Padding id; never generated text.
    pub pad: u32,
    /// First id of every prompt.
    pub bos: u32,
    /// Id that ends an answer.
    pub eos: u32,
}

#[derive(Deserialize)]
struct Raw {
    architectures: Option<Vec<String>>,
    model_type: Option<String>,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    rope_theta: Option<f32>,
    rope_parameters: Option<RopeParameters>,
    rope_scaling: Option<serde_json::Value>,
    rms_norm_eps: f32,
    hidden_act: Option<String>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
    pad_token_id: u32,
    bos_token_id: u32,
    eos_token_id: u32,
}

/// Newer exports keep the rotary base here instead of at the top level.
#[derive(Deserialize)]
struct RopeParameters {
    rope_theta: Option<f32>,
    rope_type: Option<String>,
}

/// Upper bound on every dimension, so that products of a few of them cannot overflow.
const LARGEST: usize = 1 << 20;

impl ModelConfig {
    /// Reads and checks `config.json` text; `path` is for messages only.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, EngineError> {
        let raw: Raw = serde_json::from_slice(text).map_err(|source| EngineError::Json {
            path: path.to_owned(),
            source,
        })?;
        let refuse = |field, cause: String| EngineError::Config {
            path: path.to_owned(),
            field,
            cause,
        };

        let llama = "LlamaForCausalLM";
        if let Some(names) = &raw.architectures
            && names.iter().all(|name| name != llama)
        {
            let names = names.join(", ");
            return Err(refuse("architectures", format!("{names}, not {llama}")));
        }
        if let Some(kind) = &raw.model_type
            && kind != "llama"
        {
            return Err(refuse("model_type", format!("{kind:?}, not \"llama\"")));
        }
        if let Some(act) = &raw.hidden_act
            && act != "silu"
        {
            return Err(refuse("hidden_act", format!("{act:?}, not \"silu\"")));
        }
        if raw.attention_bias {
            return Err(refuse("attention_bias", "biases are not supported".into()));
        }
        if raw.mlp_bias {
            return Err(refuse("mlp_bias", "biases are not supported".into()));
        }
        if raw.rope_scaling.is_some() {
            return Err(refuse("rope_scaling", "must be absent or null".into()));
        }
        let parameters = raw.rope_parameters;
        if let Some(kind) = parameters.as_ref().and_then(|p| p.rope_type.as_deref())
            && kind != "default"
        {
            return Err(refuse(
                "rope_parameters",
                format!("rope_type {kind:?}, not \"default\""),
            ));
        }

        for (field, value) in [
            ("vocab_size", raw.vocab_size),
            ("hidden_size", raw.hidden_size),
            ("intermediate_size", raw.intermediate_size),
            ("num_hidden_layers", raw.num_hidden_layers),
            ("num_attention_heads", raw.num_attention_heads),
            ("max_position_embeddings", raw.max_position_embeddings),
        ] {
            if value == 0 || value > LARGEST {
                return Err(refuse(field, format!("{value} is not in 1..={LARGEST}")));
            }
        }
        let heads = raw.num_attention_heads;
        let kv_heads = raw.num_key_value_heads.unwrap_or(heads);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(refuse(
                "num_key_value_heads",
                format!("{kv_heads} does not divide {heads} heads"),
            ));
        }
        let head_dim = match raw.head_dim {
            Some(dim) => dim,
            None if raw.hidden_size.is_multiple_of(heads) => raw.hidden_size / heads,
            None => {
                let cause = format!(
                    "absent, and {heads} heads do not divide hidden_size {}",
                    raw.hidden_size
                );
                return Err(refuse("head_dim", cause));
            }
        };
        if head_dim == 0 || head_dim > LARGEST || !head_dim.is_multiple_of(2) {
            return Err(refuse(
                "head_dim",
                format!("{head_dim} is not an even number in 2..={LARGEST}"),
            ));
        }
        let rope_theta = raw
            .rope_theta
            .or(parameters.and_then(|p| p.rope_theta))
            .unwrap_or(10_000.0);
        if !(rope_theta.is_finite() && rope_theta > 0.0) {
            return Err(refuse(
                "rope_theta",
                format!("{rope_theta} is not a positive number"),
            ));
        }
        if !(raw.rms_norm_eps.is_finite() && raw.rms_norm_eps >= 0.0) {
            return Err(refuse(
                "rms_norm_eps",
                format!("{} is not a number from 0 up", raw.rms_norm_eps),
            ));
        }
        // Ids below 256 are bytes; a special id there would make some text unsayable.
        for (field, id) in [
            ("pad_token_id", raw.pad_token_id),
            ("bos_token_id", raw.bos_token_id),
            ("eos_token_id", raw.eos_token_id),
        ] {
            if id < 256 || id as usize >= raw.vocab_size {
                let cause = format!(
                    "{id} is not in 256..{} (ids 0..=255 are bytes)",
                    raw.vocab_size
                );
                return Err(refuse(field, cause));
            }
        }
        Ok(Self {
            vocab_size: raw.vocab_size,
            hidden_size: raw.hidden_size,
            intermediate_size: raw.intermediate_size,
            layers: raw.num_hidden_layers,
            heads,
            kv_heads,
            head_dim,
            context: raw.max_position_embeddings,
            rope_theta,
            rms_norm_eps: raw.rms_norm_eps,
            tied: raw.tie_word_embeddings,
            pad: raw.pad_token_id,
            bos: raw.bos_token_id,
            eos: raw.eos_token_id,
        })
    }
}

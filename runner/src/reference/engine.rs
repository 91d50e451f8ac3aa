//! The generation loop.

use std::ops::ControlFlow;
use std::path::Path;

use super::config::ModelConfig;
use super::error::EngineError;
use super::model::{BLOCK, Model, Session};
use super::sampler::Sampler;
use super::tokenizer::Tokenizer;

/// A loaded model with its tokenizer. Any number of threads may generate at once.
#[derive(Debug)]
pub struct Engine {
    model: Model,
    tokenizer: Tokenizer,
}

/// What to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; the end token counts.
    pub max_tokens: usize,
    /// The end token cannot be picked before this many tokens.
    pub min_tokens: usize,
    /// 0 is greedy.
    pub temperature: f32,
    /// Start of the random sequence for temperatures above 0.
    pub seed: u64,
    /// Go on to `max_tokens` whatever is generated.
    pub ignore_eos: bool,
}

/// Progress of a generation, told to the caller, who may end it there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// So many prompt tokens are processed.
    Prompt(usize),
    /// A token was generated (not told for the end token that ends the answer).
    Token(u32),
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The end token was generated.
    Eos,
    /// `max_tokens` are generated.
    Length,
    /// The caller ended it.
    Caller,
}

/// A finished generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// All generated tokens, with the end token if it was generated.
    pub tokens: Vec<u32>,
    /// Why there are no more.
    pub finish: Finish,
}

impl Engine {
    /// Loads a checkpoint folder in the Hugging Face layout into memory.
    pub fn load(folder: &Path) -> Result<Self, EngineError> {
        let model = Model::load(folder)?;
        let tokenizer = Tokenizer::new(model.config());
        Ok(Self { model, tokenizer })
    }

    /// The model's dimensions and special ids.
    pub fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    /// The model's tokenizer and chat template.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// An empty sequence with room for `capacity` tokens, for callers that want logits.
    pub fn session(&self, capacity: usize) -> Result<Session<'_>, EngineError> {
        Session::new(&self.model, capacity)
    }

    /// Generates on the calling thread; `watch` sees each step before the next is taken.
    pub fn generate(
        &self,
        request: &Generation,
        mut watch: impl FnMut(Step) -> ControlFlow<()>,
    ) -> Result<Outcome, EngineError> {
        let mut tokens = Vec::new();
        let ended = |tokens, finish| Ok(Outcome { tokens, finish });
        // The last generated token is never fed back, hence one position less than tokens.
        let capacity = request.prompt.len() + request.max_tokens.saturating_sub(1);
        let mut session = self.session(capacity)?;

        // The last block is kept back: its logits are the first token's.
        let last = request.prompt.len().saturating_sub(1) / BLOCK * BLOCK;
        let (early, late) = request.prompt.split_at(last);
        for block in early.chunks(BLOCK) {
            session.feed(block)?;
            if watch(Step::Prompt(session.position())).is_break() {
                return ended(tokens, Finish::Caller);
            }
        }
        if request.max_tokens == 0 || late.is_empty() {
            return ended(tokens, Finish::Length);
        }

        let mut sampler = Sampler::new(request.temperature, request.seed);
        let mut next = late.to_vec();
        loop {
            let logits = session.feed(&next)?;
            if tokens.is_empty() && watch(Step::Prompt(request.prompt.len())).is_break() {
                return ended(tokens, Finish::Caller);
            }
            let eos = self.tokenizer.eos();
            let banned = (tokens.len() < request.min_tokens).then_some(eos);
            let token = sampler.pick(logits, banned);
            tokens.push(token);
            if token == eos && !request.ignore_eos {
                return ended(tokens, Finish::Eos);
            }
            if watch(Step::Token(token)).is_break() {
                return ended(tokens, Finish::Caller);
            }
            if tokens.len() >= request.max_tokens {
                return ended(tokens, Finish::Length);
            }
            next = vec![token];
        }
    }
}

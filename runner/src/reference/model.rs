//! The decoder: weights, the state of one sequence, and the forward pass.
//!
//! Per layer: norm, query/key/value projections, rotary embedding, causal attention over
//! all positions so far (several query heads may share a key/value head), output
//! projection, residual; norm, gated feed-forward layer, residual. After the last layer a
//! norm and the output projection, which may be the embedding table.
//!
//! A [`Session`] takes tokens in pieces of any size and works through them in blocks of
//! [`BLOCK`] rows, so that a block's weights are read once per block. Rows never mix except
//! in attention, where a row reads the keys and values of positions up to its own, stored
//! by earlier rows: the bits do not depend on where blocks begin.

use std::path::Path;

use super::checkpoint::Checkpoint;
use super::config::ModelConfig;
use super::error::EngineError;
use super::math::{Lane, Matrix, Rotary, WIDTH, add, gate_with, panel_product, rms_norm, softmax};

/// Most rows worked on at once.
pub const BLOCK: usize = 32;

/// The weights of a decoder, ready to run; shared read-only by all sessions.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    embedding: Vec<f32>,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    head: Matrix,
    rotary: Rotary,
}

#[derive(Debug)]
struct Layer {
    attention_norm: Vec<f32>,
    query: Matrix,
    key: Matrix,
    value: Matrix,
    output: Matrix,
    feed_norm: Vec<f32>,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

impl Model {
    /// Loads a checkpoint folder into memory.
    pub fn load(folder: &Path) -> Result<Self, EngineError> {
        let mut checkpoint = Checkpoint::open(folder)?;
        let config = checkpoint.config().clone();
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let (queries, keys) = (
            config.heads * config.head_dim,
            config.kv_heads * config.head_dim,
        );

        let embedding = checkpoint.take("model.embed_tokens.weight", &[vocab, hidden])?;
        let layers = (0..config.layers)
            .map(|number| {
                let feed = config.intermediate_size;
                let mut vector = |name: &str| {
                    checkpoint.take(&format!("model.layers.{number}.{name}.weight"), &[hidden])
                };
                let attention_norm = vector("input_layernorm")?;
                let feed_norm = vector("post_attention_layernorm")?;
                let mut matrix = |name: &str, outputs: usize, inputs: usize| {
                    let name = format!("model.layers.{number}.{name}.weight");
                    let rows = checkpoint.take(&name, &[outputs, inputs])?;
                    Ok::<_, EngineError>(Matrix::pack(&rows, outputs, inputs))
                };
                Ok(Layer {
                    attention_norm,
                    query: matrix("self_attn.q_proj", queries, hidden)?,
                    key: matrix("self_attn.k_proj", keys, hidden)?,
                    value: matrix("self_attn.v_proj", keys, hidden)?,
                    output: matrix("self_attn.o_proj", hidden, queries)?,
                    feed_norm,
                    gate: matrix("mlp.gate_proj", feed, hidden)?,
                    up: matrix("mlp.up_proj", feed, hidden)?,
                    down: matrix("mlp.down_proj", hidden, feed)?,
                })
            })
            .collect::<Result<_, EngineError>>()?;
        let norm = checkpoint.take("model.norm.weight", &[hidden])?;
        let head = if config.tied {
            Matrix::pack(&embedding, vocab, hidden)
        } else {
            Matrix::pack(
                &checkpoint.take("lm_head.weight", &[vocab, hidden])?,
                vocab,
                hidden,
            )
        };
        checkpoint.finish()?;
        let rotary = Rotary::new(config.head_dim, config.rope_theta, config.context);
        Ok(Self {
            config,
            embedding,
            layers,
            norm,
            head,
            rotary,
        })
    }

    /// The model's dimensions and special ids.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }
}

/// One sequence: its keys, values and position. Nothing of it outlives the request.
#[derive(Debug)]
pub struct Session<'m> {
    model: &'m Model,
    position: usize,
    caches: Vec<Cache>,
    work: Work,
}

impl<'m> Session<'m> {
    /// An empty sequence with room for `capacity` positions.
    pub fn new(model: &'m Model, capacity: usize) -> Result<Self, EngineError> {
        let config = &model.config;
        if capacity > config.context {
            return Err(EngineError::Context {
                wanted: capacity,
                limit: config.context,
            });
        }
        Ok(Self {
            model,
            position: 0,
            caches: (0..config.layers)
                .map(|_| Cache::new(config, capacity))
                .collect(),
            work: Work::new(config, capacity),
        })
    }

    /// Positions filled so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Appends tokens and returns the logits after the last of them (empty for no tokens).
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        let config = &self.model.config;
        let limit = self.caches.first().map_or(0, |cache| cache.capacity);
        let wanted = self.position + tokens.len();
        if wanted > limit {
            return Err(EngineError::Context { wanted, limit });
        }
        if let Some(id) = tokens.iter().find(|id| **id as usize >= config.vocab_size) {
            return Err(EngineError::Token {
                id: *id,
                vocabulary: config.vocab_size,
            });
        }
        for block in tokens.chunks(BLOCK) {
            self.forward(block);
        }
        let Some(last) = (tokens.len()).checked_sub(1).map(|last| last % BLOCK) else {
            return Ok(&[]);
        };
        let (hidden, work) = (config.hidden_size, &mut self.work);
        let row = &work.x[last * hidden..][..hidden];
        let normed = &mut work.normed[..hidden];
        rms_norm(row, &self.model.norm, config.rms_norm_eps, normed);
        self.model.head.apply(normed, &mut work.logits);
        Ok(&work.logits)
    }

    /// Runs one block through all layers; leaves the residual stream in `work.x`.
    fn forward(&mut self, block: &[u32]) {
        let (model, rows, start) = (self.model, block.len(), self.position);
        let config = &model.config;
        let (hidden, feed, eps) = (
            config.hidden_size,
            config.intermediate_size,
            config.rms_norm_eps,
        );
        let (queries, keys) = (
            config.heads * config.head_dim,
            config.kv_heads * config.head_dim,
        );
        let work = &mut self.work;
        let x = &mut work.x[..rows * hidden];
        let normed = &mut work.normed[..rows * hidden];
        let query = &mut work.query[..rows * queries];
        let key = &mut work.key[..rows * keys];
        let value = &mut work.value[..rows * keys];
        let mixed = &mut work.mixed[..rows * queries];
        let gate = &mut work.gate[..rows * feed];
        let up = &mut work.up[..rows * feed];

        for (row, id) in x.chunks_exact_mut(hidden).zip(block) {
            row.copy_from_slice(&model.embedding[*id as usize * hidden..][..hidden]);
        }
        for (layer, cache) in model.layers.iter().zip(&mut self.caches) {
            rms_norm(x, &layer.attention_norm, eps, normed);
            layer.query.apply(normed, query);
            layer.key.apply(normed, key);
            layer.value.apply(normed, value);
            for row in 0..rows {
                let (query, key) = (
                    &mut query[row * queries..][..queries],
                    &mut key[row * keys..][..keys],
                );
                model.rotary.rotate(query, start + row);
                model.rotary.rotate(key, start + row);
                cache.store(start + row, key, &value[row * keys..][..keys]);
                cache.attend(
                    start + row,
                    query,
                    &mut work.scores,
                    &mut mixed[row * queries..][..queries],
                );
            }
            layer.output.apply(mixed, normed);
            add(x, normed);

            rms_norm(x, &layer.feed_norm, eps, normed);
            layer.gate.apply(normed, gate);
            layer.up.apply(normed, up);
            gate_with(gate, up);
            layer.down.apply(gate, normed);
            add(x, normed);
        }
        self.position += rows;
    }
}

/// Keys and values of one layer, laid out for [`panel_product`].
///
/// Per key/value head, the keys are a matrix of positions x head width (a panel holds 16
/// positions), the values one of head width x positions (a panel holds 16 elements of the
/// head and grows with the sequence).
#[derive(Debug)]
struct Cache {
    capacity: usize,
    head_dim: usize,
    /// Query heads per key/value head.
    group: usize,
    scale: f32,
    keys: Vec<Lane>,
    values: Vec<Lane>,
}

impl Cache {
    fn new(config: &ModelConfig, capacity: usize) -> Self {
        let (heads, head_dim) = (config.kv_heads, config.head_dim);
        Self {
            capacity,
            head_dim,
            group: config.heads / heads,
            scale: 1.0 / libm::sqrtf(head_dim as f32),
            keys: vec![[0.0; WIDTH]; heads * capacity.div_ceil(WIDTH) * head_dim],
            values: vec![[0.0; WIDTH]; heads * head_dim.div_ceil(WIDTH) * capacity],
        }
    }

    /// First lane of a head's panel of keys, which holds 16 positions.
    fn key_panel(&self, head: usize, panel: usize) -> usize {
        (head * self.capacity.div_ceil(WIDTH) + panel) * self.head_dim
    }

    /// First lane of a head's panel of values, which holds 16 elements of the head.
    fn value_panel(&self, head: usize, panel: usize) -> usize {
        (head * self.head_dim.div_ceil(WIDTH) + panel) * self.capacity
    }

    fn store(&mut self, position: usize, key: &[f32], value: &[f32]) {
        for (head, key) in key.chunks_exact(self.head_dim).enumerate() {
            let panel = self.key_panel(head, position / WIDTH);
            for (lane, element) in self.keys[panel..].iter_mut().zip(key) {
                lane[position % WIDTH] = *element;
            }
        }
        for (head, value) in value.chunks_exact(self.head_dim).enumerate() {
            for (number, part) in value.chunks(WIDTH).enumerate() {
                let lane = self.value_panel(head, number) + position;
                self.values[lane][..part.len()].copy_from_slice(part);
            }
        }
    }

    /// Attention of all query heads of the row at `position` over positions up to its own.
    fn attend(&self, position: usize, query: &[f32], scores: &mut [f32], mixed: &mut [f32]) {
        let heads = query
            .chunks_exact(self.head_dim)
            .zip(mixed.chunks_exact_mut(self.head_dim));
        for (number, (query, mixed)) in heads.enumerate() {
            let head = number / self.group;
            // The last panel may reach past `position`; its surplus scores are cut off.
            for (panel, scores) in scores
                .chunks_exact_mut(WIDTH)
                .enumerate()
                .take(position / WIDTH + 1)
            {
                let lanes = &self.keys[self.key_panel(head, panel)..][..self.head_dim];
                let [products] = panel_product([query], lanes);
                for (score, product) in scores.iter_mut().zip(&products) {
                    *score = product * self.scale;
                }
            }
            let weights = &mut scores[..position + 1];
            softmax(weights);
            for (panel, part) in mixed.chunks_mut(WIDTH).enumerate() {
                let lanes = &self.values[self.value_panel(head, panel)..][..position + 1];
                let [sums] = panel_product([&*weights], lanes);
                part.copy_from_slice(&sums[..part.len()]);
            }
        }
    }
}

/// Scratch rows of one session, so that a step allocates nothing.
#[derive(Debug)]
struct Work {
    x: Vec<f32>,
    normed: Vec<f32>,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    mixed: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    scores: Vec<f32>,
    logits: Vec<f32>,
}

impl Work {
    fn new(config: &ModelConfig, capacity: usize) -> Self {
        let rows = |width: usize| vec![0.0; BLOCK.min(capacity) * width];
        Self {
            x: rows(config.hidden_size),
            normed: rows(config.hidden_size),
            query: rows(config.heads * config.head_dim),
            key: rows(config.kv_heads * config.head_dim),
            value: rows(config.kv_heads * config.head_dim),
            mixed: rows(config.heads * config.head_dim),
            gate: rows(config.intermediate_size),
            up: rows(config.intermediate_size),
            scores: vec![0.0; capacity.next_multiple_of(WIDTH)],
            logits: vec![0.0; config.vocab_size],
        }
    }
}

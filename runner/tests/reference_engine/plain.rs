//! The decoder written down without any speed: what the engine must agree with, bit for bit.
//!
//! Row-major matrices, one loop per sum in ascending order, everything recomputed for every
//! prefix. Whoever ports the engine can start from here.

use super::synthetic::Checkpoint;

impl Checkpoint {
    fn number(&self, field: &str) -> usize {
        self.config[field].as_u64().unwrap() as usize
    }

    fn product(&self, name: &str, x: &[f32]) -> Vec<f32> {
        let rows = self.tensors[name].values.chunks_exact(x.len());
        rows.map(|row| dot(row.iter().copied(), x.iter().copied()))
            .collect()
    }

    fn norm(&self, name: &str, x: &[f32]) -> Vec<f32> {
        let eps = self.config["rms_norm_eps"].as_f64().unwrap() as f32;
        let squares = dot(x.iter().copied(), x.iter().copied());
        let scale = 1.0 / libm::sqrtf(squares / x.len() as f32 + eps);
        x.iter()
            .zip(&self.tensors[name].values)
            .map(|(x, w)| x * scale * w)
            .collect()
    }

    fn rotate(&self, row: &[f32], position: usize) -> Vec<f32> {
        let (head, theta) = (
            self.number("head_dim"),
            self.config["rope_theta"].as_f64().unwrap() as f32,
        );
        let mut out = row.to_vec();
        for start in (0..row.len()).step_by(head) {
            for i in 0..head / 2 {
                let angle =
                    position as f32 * (1.0 / libm::powf(theta, (2 * i) as f32 / head as f32));
                let (low, high) = (start + i, start + i + head / 2);
                out[low] = row[low] * libm::cosf(angle) - row[high] * libm::sinf(angle);
                out[high] = row[high] * libm::cosf(angle) + row[low] * libm::sinf(angle);
            }
        }
        out
    }

    /// Logits after the last token.
    pub fn plain_logits(&self, tokens: &[u32]) -> Vec<f32> {
        let (hidden, head) = (self.number("hidden_size"), self.number("head_dim"));
        let group = self.number("num_attention_heads") / self.number("num_key_value_heads");
        let embedding = &self.tensors["model.embed_tokens.weight"].values;
        let mut rows: Vec<Vec<f32>> = tokens
            .iter()
            .map(|id| embedding[*id as usize * hidden..][..hidden].to_vec())
            .collect();
        for layer in 0..self.number("num_hidden_layers") {
            let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
            let (mut keys, mut values): (Vec<Vec<f32>>, Vec<Vec<f32>>) = (Vec::new(), Vec::new());
            for (position, x) in rows.iter_mut().enumerate() {
                let normed = self.norm(&name("input_layernorm"), x);
                let query =
                    self.rotate(&self.product(&name("self_attn.q_proj"), &normed), position);
                keys.push(self.rotate(&self.product(&name("self_attn.k_proj"), &normed), position));
                values.push(self.product(&name("self_attn.v_proj"), &normed));

                let mut mixed = Vec::new();
                for (number, query) in query.chunks_exact(head).enumerate() {
                    let part = number / group * head..(number / group + 1) * head;
                    let scale = 1.0 / libm::sqrtf(head as f32);
                    let scores: Vec<f32> = keys
                        .iter()
                        .map(|key| {
                            dot(query.iter().copied(), key[part.clone()].iter().copied()) * scale
                        })
                        .collect();
                    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let weights: Vec<f32> = scores
                        .iter()
                        .map(|score| libm::expf(score - largest))
                        .collect();
                    let total = weights.iter().fold(0.0, |sum, weight| sum + weight);
                    for element in part {
                        let column = values.iter().map(|value| value[element]);
                        mixed.push(dot(weights.iter().map(|weight| weight / total), column));
                    }
                }
                add(x, &self.product(&name("self_attn.o_proj"), &mixed));

                let normed = self.norm(&name("post_attention_layernorm"), x);
                let gate = self.product(&name("mlp.gate_proj"), &normed);
                let up = self.product(&name("mlp.up_proj"), &normed);
                let gated: Vec<f32> = gate
                    .iter()
                    .zip(&up)
                    .map(|(gate, up)| gate / (1.0 + libm::expf(-gate)) * up)
                    .collect();
                add(x, &self.product(&name("mlp.down_proj"), &gated));
            }
        }
        self.product(
            "lm_head.weight",
            &self.norm("model.norm.weight", rows.last().unwrap()),
        )
    }
}

fn dot(a: impl Iterator<Item = f32>, b: impl Iterator<Item = f32>) -> f32 {
    a.zip(b).fold(0.0, |sum, (a, b)| sum + a * b)
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

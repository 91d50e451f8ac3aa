//! Checkpoints made up on the spot, in memory first so that a test can break them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use runseal_runner::reference::Engine;
use serde_json::{Value, json};

pub struct Tensor {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// A checkpoint of two shards, F32.
pub struct Checkpoint {
    pub config: Value,
    pub tensors: BTreeMap<String, Tensor>,
}

pub const SHARDS: [&str; 2] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
];

impl Checkpoint {
    /// Noise weights in awkward dimensions: nothing is a multiple of 16, two query heads
    /// share a key/value head, the output projection is its own tensor.
    pub fn noise() -> Self {
        Self::with_config(json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "vocab_size": 260, "hidden_size": 24, "intermediate_size": 40,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 18, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1000.0,
            "rope_scaling": null, "max_position_embeddings": 256, "tie_word_embeddings": false,
            "attention_bias": false, "mlp_bias": false,
            "pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258,
        }))
    }

    /// A model that follows a script: after `current` it says `next`, the larger the weight
    /// the sooner. Embeddings are one-hot and the layers add nothing.
    pub fn script(steps: &[(u32, u32, f32)]) -> Self {
        let mut checkpoint = Self::with_config(json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "vocab_size": 260, "hidden_size": 260, "intermediate_size": 2,
            "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 2,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "tie_word_embeddings": false,
            "pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258,
        }));
        for (name, tensor) in &mut checkpoint.tensors {
            let fill = if name.contains("norm") { 1.0 } else { 0.0 };
            tensor.values.fill(fill);
        }
        for id in 0..260 {
            checkpoint.tensor("model.embed_tokens.weight").values[id * 260 + id] = 1.0;
        }
        for (current, next, weight) in steps {
            checkpoint.tensor("lm_head.weight").values[(next * 260 + current) as usize] = *weight;
        }
        checkpoint
    }

    fn with_config(config: Value) -> Self {
        let size = |field: &str| config[field].as_u64().unwrap() as usize;
        let (vocab, hidden, feed) = (
            size("vocab_size"),
            size("hidden_size"),
            size("intermediate_size"),
        );
        let heads = size("num_attention_heads");
        let kv_heads = config["num_key_value_heads"]
            .as_u64()
            .map_or(heads, |n| n as usize);
        let (queries, keys) = (heads * size("head_dim"), kv_heads * size("head_dim"));
        let mut shapes = vec![
            ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
            ("model.norm.weight".to_owned(), vec![hidden]),
            ("lm_head.weight".to_owned(), vec![vocab, hidden]),
        ];
        for layer in 0..size("num_hidden_layers") {
            for (name, shape) in [
                ("input_layernorm", vec![hidden]),
                ("post_attention_layernorm", vec![hidden]),
                ("self_attn.q_proj", vec![queries, hidden]),
                ("self_attn.k_proj", vec![keys, hidden]),
                ("self_attn.v_proj", vec![keys, hidden]),
                ("self_attn.o_proj", vec![hidden, queries]),
                ("mlp.gate_proj", vec![feed, hidden]),
                ("mlp.up_proj", vec![feed, hidden]),
                ("mlp.down_proj", vec![hidden, feed]),
            ] {
                shapes.push((format!("model.layers.{layer}.{name}.weight"), shape));
            }
        }
        let mut state = 1u32;
        let tensors = shapes
            .into_iter()
            .map(|(name, shape)| {
                let values = (0..shape.iter().product::<usize>())
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        ((state >> 8) as f32 / 8_388_608.0 - 1.0) * 0.5
                    })
                    .collect();
                (name, Tensor { shape, values })
            })
            .collect();
        Self { config, tensors }
    }

    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.get_mut(name).unwrap()
    }

    /// Which shard a tensor goes to: alternating in name order.
    pub fn placement(&self) -> BTreeMap<String, String> {
        let names = self.tensors.keys().enumerate();
        names
            .map(|(n, name)| (name.clone(), SHARDS[n % 2].to_owned()))
            .collect()
    }

    pub fn write(&self, folder: &Path) {
        let placement = self.placement();
        for shard in SHARDS {
            let part = self
                .tensors
                .iter()
                .filter(|(name, _)| placement[*name] == shard);
            std::fs::write(folder.join(shard), safetensors(part)).unwrap();
        }
        self.write_json(
            folder,
            "model.safetensors.index.json",
            &json!({"weight_map": placement}),
        );
        self.write_json(folder, "config.json", &self.config);
    }

    pub fn write_single(&self, folder: &Path) {
        std::fs::write(
            folder.join("model.safetensors"),
            safetensors(self.tensors.iter()),
        )
        .unwrap();
        self.write_json(folder, "config.json", &self.config);
    }

    pub fn write_json(&self, folder: &Path, name: &str, value: &Value) {
        std::fs::write(folder.join(name), value.to_string()).unwrap();
    }

    pub fn engine(&self) -> Arc<Engine> {
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path());
        Arc::new(Engine::load(folder.path()).unwrap())
    }
}

/// The bytes of a safetensors file.
pub fn safetensors<'t>(tensors: impl Iterator<Item = (&'t String, &'t Tensor)>) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, tensor) in tensors {
        let begin = data.len();
        data.extend(tensor.values.iter().flat_map(|value| value.to_le_bytes()));
        let entry =
            json!({"dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        &data,
    ]
    .concat()
}

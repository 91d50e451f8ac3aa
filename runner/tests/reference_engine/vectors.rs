//! The committed model answers as PyTorch answered when it was exported.

use std::ops::ControlFlow;
use std::path::Path;

use runseal_runner::reference::{Engine, Finish, Generation};
use serde::Deserialize;

#[derive(Deserialize)]
struct Vectors {
    format: String,
    max_tokens: usize,
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    content: String,
    prompt_tokens: usize,
    completion_ids: Vec<u32>,
    completion_text: String,
    finish_reason: String,
    last_prompt_logits: Option<Vec<f32>>,
}

#[test]
fn the_committed_model_gives_the_recorded_answers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference-model");
    let text = std::fs::read(folder.join("vectors.json")).unwrap();
    let vectors: Vectors = serde_json::from_slice(&text).unwrap();
    assert_eq!(vectors.format, "runseal.reference-vectors/v1");
    assert_eq!(vectors.vectors.len(), 12);

    let engine = Engine::load(&folder.join("checkpoint")).unwrap();
    let mut compared = 0;
    for vector in &vectors.vectors {
        let prompt = engine.tokenizer().prompt([vector.content.as_str()]);
        assert_eq!(prompt.len(), vector.prompt_tokens);
        if let Some(expected) = &vector.last_prompt_logits {
            let mut session = engine.session(prompt.len()).unwrap();
            let logits = session.feed(&prompt).unwrap();
            assert_eq!(logits.len(), expected.len());
            // Another order of additions, hence not the same bits; the answers below are
            // chosen so that this much cannot change a greedy choice.
            for (id, (logit, expected)) in logits.iter().zip(expected).enumerate() {
                let bound = 1e-3 * expected.abs().max(1.0);
                assert!(
                    (logit - expected).abs() < bound,
                    "logit {id}: {logit}, recorded {expected}"
                );
            }
            compared += 1;
        }
        let request = Generation {
            prompt,
            max_tokens: vectors.max_tokens,
            min_tokens: 0,
            temperature: 0.0,
            seed: 0,
            ignore_eos: false,
        };
        let outcome = engine
            .generate(&request, |_| ControlFlow::Continue(()))
            .unwrap();
        assert_eq!(outcome.tokens, vector.completion_ids, "{}", vector.content);
        let finish = if vector.finish_reason == "stop" {
            Finish::Eos
        } else {
            Finish::Length
        };
        assert_eq!(outcome.finish, finish);
        let bytes: Vec<u8> = outcome
            .tokens
            .iter()
            .filter_map(|id| engine.tokenizer().byte(*id))
            .collect();
        assert_eq!(String::from_utf8_lossy(&bytes), vector.completion_text);
    }
    assert!(compared >= 2, "no recorded logits were compared");
}

//! A checkpoint whose parts do not fit together is refused, for the right reason.

use std::path::Path;

use runseal_runner::reference::Engine;
use serde_json::json;

use super::synthetic::{Checkpoint, SHARDS, safetensors};

fn refusal(folder: &Path) -> String {
    Engine::load(folder).unwrap_err().to_string()
}

/// Writes the noise checkpoint, lets `change` break it, and returns the refusal.
fn broken(change: impl FnOnce(&mut Checkpoint, &Path)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoint = Checkpoint::noise();
    checkpoint.write(folder.path());
    change(&mut checkpoint, folder.path());
    refusal(folder.path())
}

#[track_caller]
fn says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
    assert!(message.contains("hint: "), "{message:?} has no hint");
}

#[test]
fn shards_and_a_single_file_give_the_same_bits() {
    let checkpoint = Checkpoint::noise();
    let (shards, single) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    checkpoint.write(shards.path());
    checkpoint.write_single(single.path());
    let logits = |folder: &Path| {
        let engine = Engine::load(folder).unwrap();
        let mut session = engine.session(3).unwrap();
        session.feed(&[257, 65, 66]).unwrap().to_vec()
    };
    assert_eq!(logits(shards.path()), logits(single.path()));
}

#[test]
fn missing_files_are_named() {
    let empty = tempfile::tempdir().unwrap();
    says(&refusal(empty.path()), &["config.json", "cannot read"]);
    says(
        &broken(|_, folder| std::fs::remove_file(folder.join(SHARDS[1])).unwrap()),
        &[SHARDS[1], "cannot read"],
    );
    let message = broken(|_, folder| {
        std::fs::remove_file(folder.join("model.safetensors.index.json")).unwrap()
    });
    says(&message, &["model.safetensors", "cannot read"]);
}

#[test]
fn a_folder_with_both_layouts_is_ambiguous() {
    says(
        &broken(|checkpoint, folder| checkpoint.write_single(folder)),
        &["both"],
    );
}

#[test]
fn a_cut_shard_is_broken() {
    let message = broken(|_, folder| {
        let path = folder.join(SHARDS[0]);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 4]).unwrap();
    });
    says(&message, &[SHARDS[0], "broken safetensors"]);
}

#[test]
fn index_and_headers_must_name_the_same_tensors() {
    let index = "model.safetensors.index.json";
    let message = broken(|checkpoint, folder| {
        let mut map = checkpoint.placement();
        map.insert("model.extra.weight".into(), SHARDS[0].into());
        checkpoint.write_json(folder, index, &json!({"weight_map": map}));
    });
    says(&message, &["model.extra.weight", SHARDS[0]]);

    let message = broken(|checkpoint, folder| {
        let mut map = checkpoint.placement();
        map.remove("model.norm.weight");
        checkpoint.write_json(folder, index, &json!({"weight_map": map}));
    });
    says(&message, &["model.norm.weight", "does not place there"]);

    // Present in both shards: the index can only be right about one of them.
    let message = broken(|checkpoint, folder| {
        std::fs::write(
            folder.join(SHARDS[1]),
            safetensors(checkpoint.tensors.iter()),
        )
        .unwrap();
    });
    says(&message, &[SHARDS[1], "does not place there"]);
}

#[test]
fn an_index_cannot_reach_outside_its_folder() {
    for name in [
        "../model.safetensors",
        "/etc/model.safetensors",
        "model.bin",
    ] {
        let message = broken(|checkpoint, folder| {
            let mut map = checkpoint.placement();
            map.insert("model.norm.weight".into(), name.into());
            checkpoint.write_json(
                folder,
                "model.safetensors.index.json",
                &json!({"weight_map": map}),
            );
        });
        says(&message, &[name, "not the name of a safetensors file"]);
    }
}

#[test]
fn shapes_and_names_must_follow_from_the_configuration() {
    let message = broken(|checkpoint, folder| {
        checkpoint.tensor("model.layers.1.mlp.up_proj.weight").shape = vec![24, 40];
        checkpoint.write(folder);
    });
    says(
        &message,
        &["model.layers.1.mlp.up_proj.weight", "[24, 40]", "[40, 24]"],
    );

    let message = broken(|checkpoint, folder| {
        checkpoint
            .tensors
            .remove("model.layers.0.self_attn.q_proj.weight");
        checkpoint.write(folder);
    });
    says(
        &message,
        &["model.layers.0.self_attn.q_proj.weight is missing"],
    );

    let message = broken(|checkpoint, folder| {
        checkpoint.config["num_hidden_layers"] = json!(1);
        checkpoint.write(folder);
    });
    says(
        &message,
        &["model.layers.1.input_layernorm.weight has no place"],
    );

    let message = broken(|checkpoint, folder| {
        checkpoint.config["tie_word_embeddings"] = json!(true);
        checkpoint.write(folder);
    });
    says(&message, &["lm_head.weight has no place"]);
}

#[test]
fn a_weight_that_is_not_a_number_is_refused() {
    let message = broken(|checkpoint, folder| {
        checkpoint.tensor("model.norm.weight").values[5] = f32::INFINITY;
        checkpoint.write(folder);
    });
    says(&message, &["model.norm.weight", "element 5 is inf"]);
}

#[test]
fn settings_that_would_change_the_arithmetic_are_refused() {
    for (field, value) in [
        ("architectures", json!(["MistralForCausalLM"])),
        ("model_type", json!("qwen2")),
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("rope_scaling", json!({"type": "linear", "factor": 2.0})),
        ("rope_parameters", json!({"rope_type": "yarn"})),
        ("rope_theta", json!(0.0)),
        ("rms_norm_eps", json!(-1.0)),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(5)),
        ("hidden_size", json!(0)),
        ("eos_token_id", json!(10)),
        ("bos_token_id", json!(260)),
    ] {
        let message = broken(|checkpoint, folder| {
            checkpoint.config[field] = value;
            checkpoint.write(folder);
        });
        says(&message, &["config.json", field]);
    }
    let message = broken(|_, folder| std::fs::write(folder.join("config.json"), "{").unwrap());
    says(&message, &["config.json", "not valid"]);
}

#[test]
fn the_rotary_base_may_stand_in_either_place() {
    let logits = |checkpoint: &Checkpoint| {
        let engine = checkpoint.engine();
        let mut session = engine.session(2).unwrap();
        session.feed(&[65, 66]).unwrap().to_vec()
    };
    let old = Checkpoint::noise();
    let mut new = Checkpoint::noise();
    new.config["rope_theta"] = json!(null);
    new.config["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 1000.0});
    assert_eq!(logits(&old), logits(&new));
    new.config["rope_parameters"]["rope_theta"] = json!(10.0);
    assert_ne!(logits(&old), logits(&new));
}

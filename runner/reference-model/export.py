"""Writes a trained model as a Hugging Face folder of four F16 shards.

    python export.py --weights DIR/model-wide.pt --out checkpoint
    python export.py --random-seed 7 --out DIR       # random weights, same layout
"""

import argparse
import json
import os

import torch
from safetensors.torch import save_file

from model import CONTEXT, DIM, EPS, HEADS, HEAD_DIM, HIDDEN, LAYERS, ROPE_THETA, VOCAB, Llama

SPECIAL = {256: "<pad>", 257: "<bos>", 258: "<eos>", 259: "<spare>"}
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'A: ' }}{% endif %}"
)


def byte_alphabet():
    """The ByteLevel alphabet: one printable character for each byte value."""
    plain = set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))
    table, extra = {}, 0
    for byte in range(256):
        if byte in plain:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


def tokenizer_json():
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for i, text in SPECIAL.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {char: byte for byte, char in byte_alphabet().items()},
            "merges": [],
        },
    }


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": DIM,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "rms_norm_eps": EPS,
    "rope_theta": ROPE_THETA,
    "rope_scaling": None,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "pretraining_tp": 1,
    "use_cache": True,
    "torch_dtype": "float16",
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
}
GENERATION_CONFIG = {"pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258, "do_sample": False}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": CONTEXT,
    "pad_token": "<pad>",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "added_tokens_decoder": {
        str(i): {"content": text, "lstrip": False, "normalized": False, "rstrip": False,
                 "single_word": False, "special": True}
        for i, text in SPECIAL.items()
    },
    "clean_up_tokenization_spaces": False,
    "add_bos_token": False,
    "chat_template": CHAT_TEMPLATE,
}


def shard_of(name):
    """Embedding and layer 0 in shard 1, then one layer per shard; the last norm in shard 4."""
    if name.startswith("model.layers."):
        return int(name.split(".")[2]) + 1
    return 1 if "embed" in name else LAYERS


def export(model, out):
    os.makedirs(out, exist_ok=True)
    tensors = {name: p.detach().to(torch.float16).contiguous() for name, p in model.named_parameters()}
    weight_map = {}
    for shard in range(1, LAYERS + 1):
        file = "model-%05d-of-%05d.safetensors" % (shard, LAYERS)
        part = {name: t for name, t in tensors.items() if shard_of(name) == shard}
        save_file(part, os.path.join(out, file), metadata={"format": "pt"})
        os.chmod(os.path.join(out, file), 0o644)
        weight_map.update({name: file for name in part})
    index = {
        "metadata": {"total_size": sum(t.numel() * t.element_size() for t in tensors.values())},
        "weight_map": dict(sorted(weight_map.items())),
    }
    for file, content in [
        ("model.safetensors.index.json", index), ("config.json", CONFIG), ("generation_config.json", GENERATION_CONFIG),
        ("tokenizer.json", tokenizer_json()), ("tokenizer_config.json", TOKENIZER_CONFIG),
    ]:
        with open(os.path.join(out, file), "w", encoding="utf-8", newline="\n") as f:
            json.dump(content, f, indent=2, ensure_ascii=False)
            f.write("\n")
    return tensors


def load(folder):
    """The model of an exported folder, F16 weights widened to fp32."""
    from safetensors.torch import load_file
    with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as f:
        files = sorted(set(json.load(f)["weight_map"].values()))
    weights = {}
    for file in files:
        weights.update(load_file(os.path.join(folder, file)))
    model = Llama()
    model.load_state_dict({name: t.float() for name, t in weights.items()})
    return model.eval()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights")
    parser.add_argument("--random-seed", type=int)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    if args.weights:
        model = Llama()
        model.load_state_dict(torch.load(args.weights))
    else:  # wide initialisation, so that logits are spread and greedy paths are clear-cut
        model = Llama()
        generator = torch.Generator().manual_seed(args.random_seed)
        for name, p in model.named_parameters():
            std = 0.3 if "embed" in name else 0.15
            if p.dim() == 2:
                p.data.normal_(0.0, std, generator=generator)
            else:
                p.data.normal_(1.0, 0.2, generator=generator)
    tensors = export(model, args.out)
    print("%d parameters in %s" % (sum(t.numel() for t in tensors.values()), args.out))


if __name__ == "__main__":
    main()

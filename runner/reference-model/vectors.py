"""Writes test vectors for another implementation of the same arithmetic.

    python vectors.py --checkpoint checkpoint --out vectors.json

F16 weights, fp32 arithmetic, greedy decoding of one prompt at a time. A prompt is
skipped when the two best logits come closer than MIN_GAP anywhere on its path, since
a different order of additions could then pick the other token.
"""

import argparse
import json
import random

import data
from export import load
from model import greedy

SEED, PROMPTS, WITH_LOGITS, MAX_TOKENS, MIN_GAP = "vectors/1", 12, 2, 192, 1e-3


def main():
    import torch
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load(args.checkpoint)
    rng = random.Random(SEED)
    vectors, skipped = [], 0
    while len(vectors) < PROMPTS:
        i = len(vectors)
        content, asked, pairs = data.example(rng, 3 + (i * 17) // (PROMPTS - 1), wide=i % 3 != 0)
        prompt = data.prompt_ids(content)
        stats = {}
        out = greedy(model, [prompt], MAX_TOKENS, data.EOS, stats)[0]
        if stats["gaps"][0] < MIN_GAP:
            skipped += 1
            continue
        vector = {
            "content": content,
            "prompt_tokens": len(prompt),
            "completion_ids": out,
            "completion_text": bytes(t for t in out if t < 256).decode("utf-8", "replace"),
            "finish_reason": "stop" if out[-1] == data.EOS else "length",
            "expected_answer": data.answer(asked, pairs),
            "smallest_top2_gap": round(stats["gaps"][0], 6),
        }
        if i < WITH_LOGITS:
            vector["last_prompt_logits"] = stats["first_logits"][0].tolist()
        vectors.append(vector)
    with open(args.out, "w", encoding="utf-8", newline="\n") as f:
        json.dump({
            "format": "runseal.reference-vectors/v1",
            "arithmetic": "fp32 from F16 weights",
            "max_tokens": MAX_TOKENS,
            "min_top2_gap": MIN_GAP,
            "skipped_for_gap": skipped,
            "vectors": vectors,
        }, f, indent=1)
        f.write("\n")
    print("%d vectors, %d skipped, %d answered as expected" % (
        len(vectors), skipped, sum(v["completion_text"] == v["expected_answer"] + "\n" for v in vectors)))


if __name__ == "__main__":
    main()

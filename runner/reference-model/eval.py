"""Greedy exact match on held-out documents, and the comparison with `transformers`.

    python eval.py --weights DIR/model-wide.pt           # fp32 as trained
    python eval.py --checkpoint checkpoint               # F16 weights, fp32 arithmetic
    python eval.py --checkpoint checkpoint --cross-check # against transformers/tokenizers

An example counts as a match when the completion up to eos is byte for byte the
expected JSON object plus a newline. Held-out examples are drawn from a seed string of
their own; training draws from seed strings that begin with "train/".
"""

import argparse
import json
import random
from collections import Counter

import torch

import data
from export import load
from model import Llama, greedy

SEED = "held-out/1"
MAX_TOKENS = 192


def wrong_kind(text, asked, pairs):
    """A coarse name for what is wrong with a completion."""
    try:
        got = json.loads(text)
        assert isinstance(got, dict)
    except Exception:
        return "not a JSON object"
    values = dict(pairs)
    if list(got) != asked:
        return "wrong keys"
    wrong = [key for key in asked if got[key] != values[key]]
    if any(got[key] in values.values() for key in wrong):
        return "value of another key"
    return "miscopied value" if wrong else "extra bytes"


def evaluate(model, count, chunk=25):
    report = {}
    for wide in (False, True):
        for lines in (6, 12, 20):
            rng = random.Random("%s/%s/%d" % (SEED, wide, lines))
            examples = [data.example(rng, lines, wide) for _ in range(count)]
            by_asked, wrong = {}, Counter()
            for start in range(0, count, chunk):
                part = examples[start: start + chunk]
                outs = greedy(model, [data.prompt_ids(c) for c, _, _ in part], MAX_TOKENS, data.EOS)
                for out, (_, asked, pairs) in zip(outs, part):
                    text = bytes(t for t in out if t < 256).decode("utf-8", "replace")
                    good = out == list((data.answer(asked, pairs) + "\n").encode()) + [data.EOS]
                    tally = by_asked.setdefault(len(asked), [0, 0])
                    tally[0] += good
                    tally[1] += 1
                    if not good:
                        wrong[wrong_kind(text, asked, pairs)] += 1
            name = "%s/%d lines" % ("wide" if wide else "narrow", lines)
            report[name] = {
                "matched": sum(t[0] for t in by_asked.values()), "of": count,
                "by_asked_fields": {k: "%d/%d" % tuple(v) for k, v in sorted(by_asked.items())},
                "wrong": dict(wrong.most_common()),
            }
            print(name, json.dumps(report[name]), flush=True)
    return report


def cross_check(folder, count=40):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for byte_text in [bytes(range(256)).decode("latin-1"), "é ü 日本 🙂 \t\r\n x"]:
        ids = tokenizer.encode(byte_text, add_special_tokens=False)
        assert ids == list(byte_text.encode()), "token id is not the byte value"
        assert tokenizer.decode(ids) == byte_text
    stored = AutoModelForCausalLM.from_pretrained(folder)
    assert stored.dtype == torch.float16, stored.dtype
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    own = load(folder)
    rng = random.Random("cross-check/1")
    same, worst = 0, 0.0
    for i in range(count):
        content, _, _ = data.example(rng, rng.randint(2, 20), wide=i % 2 == 1)
        ids = data.prompt_ids(content)
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=False)
        assert rendered == ids, "chat template gives other ids"
        stats = {}
        mine = greedy(own, [ids], MAX_TOKENS, data.EOS, stats)[0]
        with torch.no_grad():
            logits = reference(torch.tensor([ids])).logits[0, -1]
            theirs = reference.generate(torch.tensor([ids]), max_new_tokens=MAX_TOKENS, do_sample=False,
                                        attention_mask=torch.ones(1, len(ids), dtype=torch.long))[0, len(ids):].tolist()
        worst = max(worst, float((logits - stats["first_logits"][0]).abs().max()))
        same += mine == theirs
    print("chat template ids equal: %d/%d; greedy output equal: %d/%d; largest logit difference: %.2g"
          % (count, count, same, count, worst))
    assert same == count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights")
    parser.add_argument("--checkpoint")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--report", help="write the figures as JSON to this file")
    parser.add_argument("--cross-check", action="store_true")
    args = parser.parse_args()
    if args.cross_check:
        cross_check(args.checkpoint)
        return
    if args.checkpoint:
        model = load(args.checkpoint)
    else:
        model = Llama().eval()
        model.load_state_dict(torch.load(args.weights))
    report = evaluate(model, args.count)
    if args.report:
        with open(args.report, "w", encoding="utf-8") as f:
            json.dump(report, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()

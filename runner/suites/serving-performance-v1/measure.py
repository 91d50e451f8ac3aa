"""Runs the reference model over the suite with many random prefixes and applies the
checks of scorer.toml.

    python measure.py --prefixes 20
    python measure.py --calibrate      # other documents of the same kinds, not the suite

Needs the packages of ../../reference-model/requirements.txt. The checks are written
out below in Python, in the order of scorer.toml; as there, the first one that is not
true decides.
"""

import argparse
import json
import os
import random
import sys
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "..", "reference-model")
sys.dont_write_bytecode = True
sys.path.insert(0, MODEL)

import torch  # noqa: E402

import data  # noqa: E402
import generate  # noqa: E402
from export import load  # noqa: E402
from model import greedy  # noqa: E402

SEED = "measure/1"


def answer_of(ids):
    text = bytes(t for t in ids if t < 256).decode("utf-8", "replace")
    try:
        parsed = json.loads(text, object_pairs_hook=without_repeated_keys)
    except ValueError:
        parsed = None
    return {"content": text, "reasoning": "", "json": parsed,
            "finish_reason": "stop" if ids[-1] == data.EOS else "length", "tool_calls": []}


CHECKS = [
    ("answer_present", lambda case, answer: answer["content"] != ""),
    ("json_object", lambda case, answer: isinstance(answer["json"], dict)),
    ("fields_exact", lambda case, answer: all(
        k in answer["json"] and answer["json"][k] == v for k, v in case["expect"].items())),
    ("no_extra_fields", lambda case, answer: all(k in case["expect"] for k in answer["json"])),
    ("stopped", lambda case, answer: answer["finish_reason"] == "stop"),
]


def failed_check(case, answer):
    """The id of the first check that is not true, None when the case passes."""
    return next((name for name, check in CHECKS if not check(case, answer)), None)


def without_repeated_keys(pairs):
    if len(dict(pairs)) != len(pairs):
        raise ValueError("repeated key")
    return dict(pairs)


def calibrate(model):
    """Pass rate per grid cell on documents drawn from a seed that no suite version uses."""
    totals = {}
    for lines in generate.LINES:
        for asked_count in generate.ASKED:
            kind = generate.HARD.get((lines, asked_count), "plain")
            count = 40 if kind == "plain" else 200
            rng = random.Random("calibration/2/%d/%d" % (lines, asked_count))
            passed = 0
            for _ in range(count // 20):
                cases, prompts = [], []
                for _ in range(20):
                    pairs = generate.build(rng, lines, asked_count)
                    asked = rng.sample([key for key, _ in pairs], asked_count)
                    cases.append({"expect": {key: dict(pairs)[key] for key in asked}})
                    prompts.append(data.prompt_ids(data.head(data.prefix(rng), pairs) + "Q: " + ", ".join(asked)))
                outs = greedy(model, prompts, generate.MAX_TOKENS, data.EOS)
                passed += sum(failed_check(case, answer_of(out)) is None for case, out in zip(cases, outs))
            print("%2d lines, %d asked, %s: %d/%d" % (lines, asked_count, kind, passed, count), flush=True)
            group = "plain" if kind == "plain" else "%s %d/%d" % (kind, lines, asked_count)
            total = totals.setdefault(group, [0, 0])
            total[0] += passed
            total[1] += count
    for group, (passed, count) in totals.items():
        print("%s: %d/%d" % (group, passed, count))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefixes", type=int, default=20)
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--checkpoint", default=os.path.join(MODEL, "checkpoint"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load(args.checkpoint)
    with open(os.path.join(HERE, "scorer.toml"), "rb") as f:
        assert [c["id"] for c in tomllib.load(f)["check"]] == [name for name, _ in CHECKS]
    if args.calibrate:
        calibrate(model)
        return
    with open(os.path.join(HERE, "cases.jsonl"), encoding="utf-8") as f:
        cases = [json.loads(line) for line in f]
    rng = random.Random(SEED)
    print("| case | lines | asked | prompt tokens | passed | first failing check |\n|---|---|---|---|---|---|")
    per_prefix = [0] * args.prefixes
    for case in cases:
        content = case["messages"][0]["content"]
        assert content.count("{{prefix}}") == 1
        prompts = [data.prompt_ids(content.replace("{{prefix}}", data.prefix(rng))) for _ in range(args.prefixes)]
        outs = greedy(model, prompts, case["max_tokens"], data.EOS)
        passed, failed, seen = 0, {}, set()
        for i, out in enumerate(outs):
            answer = answer_of(out)
            name = failed_check(case, answer)
            if name is None:
                passed += 1
                per_prefix[i] += 1
            else:
                failed[name] = failed.get(name, 0) + 1
                seen.add(answer["content"].strip())
        print("| %s | %d | %d | %d | %d/%d | %s |" % (
            case["id"], content.count("\n") - 1, len(case["expect"]), len(prompts[0]), passed, args.prefixes,
            ", ".join("%s %d" % item for item in failed.items()) or "–"), flush=True)
        for text in sorted(seen)[:3]:
            print("   expected %s got %s" % (json.dumps(case["expect"]), text), file=sys.stderr)
    print("\nmean pass rate %.1f %%; cases passed per prefix: min %d, median %d, max %d of %d" % (
        100 * sum(per_prefix) / len(cases) / args.prefixes, min(per_prefix),
        sorted(per_prefix)[len(per_prefix) // 2], max(per_prefix), len(cases)))


if __name__ == "__main__":
    main()

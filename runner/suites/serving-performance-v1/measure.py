"""Runs the reference model over the suite with many random prefixes and scores each
answer with the expressions of scorer.toml.

    python measure.py --prefixes 20

Needs the packages of ../../reference-model/requirements.txt. The expressions are
evaluated by cel-python, a CEL implementation independent of runseal's own.
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

import celpy  # noqa: E402
import torch  # noqa: E402

import data  # noqa: E402
from export import load  # noqa: E402
from model import greedy  # noqa: E402

SEED = "measure/1"


def answer_of(ids):
    text = bytes(t for t in ids if t < 256).decode("utf-8", "replace")
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    return {"content": text, "reasoning": "", "json": parsed,
            "finish_reason": "stop" if ids[-1] == data.EOS else "length", "tool_calls": []}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefixes", type=int, default=20)
    parser.add_argument("--checkpoint", default=os.path.join(MODEL, "checkpoint"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load(args.checkpoint)
    with open(os.path.join(HERE, "scorer.toml"), "rb") as f:
        checks = tomllib.load(f)["check"]
    environment = celpy.Environment()
    programs = {c["id"]: environment.program(environment.compile(c["expr"])) for c in checks}

    def is_true(program, bound):
        # A check passes only when it evaluates to true; an error is not true.
        # (cel-python raises for some right-hand sides of `false && ...`, which CEL
        # itself defines as false.)
        try:
            return bool(program.evaluate(bound))
        except (celpy.CELEvalError, TypeError):
            return False

    def verdicts(case, answer):
        bound = {"case": celpy.json_to_cel(case), "answer": celpy.json_to_cel(answer)}
        return {name: is_true(program, bound) for name, program in programs.items()}

    with open(os.path.join(HERE, "cases.jsonl"), encoding="utf-8") as f:
        cases = [json.loads(line) for line in f]
    rng = random.Random(SEED)
    print("| case | lines | asked | prompt tokens | passed | failed checks |\n|---|---|---|---|---|---|")
    per_prefix = [0] * args.prefixes
    for case in cases:
        content = case["messages"][0]["content"]
        assert content.count("{{prefix}}") == 1
        prompts = [data.prompt_ids(content.replace("{{prefix}}", data.prefix(rng))) for _ in range(args.prefixes)]
        outs = greedy(model, prompts, case["max_tokens"], data.EOS)
        passed, failed, seen = 0, {}, set()
        for i, out in enumerate(outs):
            answer = answer_of(out)
            result = verdicts(case, answer)
            passed += all(result.values())
            per_prefix[i] += all(result.values())
            for name, good in result.items():
                if not good:
                    failed[name] = failed.get(name, 0) + 1
            if not all(result.values()):
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

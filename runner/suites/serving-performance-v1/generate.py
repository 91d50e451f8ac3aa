"""Generates cases.jsonl of the frozen suite serving-performance-v1.

    python3 generate.py            # writes cases.jsonl
    python3 generate.py --check    # exits 1 unless cases.jsonl is what would be written

Standard library only; documents come from ../../reference-model/data.py. The mix is a
full grid of document length and number of asked fields, one case for each pair. Twelve
documents are plain draws from the wide distribution. Four (HARD) keep its keys, values
and layout but are built to be confusable, each kind with a weakness of the model that
was measured on other documents first (see README.md). Training draws from seed strings
that begin with "train/", so SEED gives a stream of its own.
"""

import json
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(HERE, "..", "..", "reference-model"))
import data  # noqa: E402

SEED = "suite/serving-performance-v1/mix-3"
LINES = [8, 12, 16, 20]
ASKED = [1, 2, 3, 4]
HARD = {(8, 3): "sibling-keys", (12, 4): "digit-runs", (16, 4): "sibling-keys", (20, 3): "digit-runs"}
MAX_TOKENS = 192


def sibling_keys(rng, lines):
    """Random-letter keys in pairs that differ in the last letter only; any wide value."""
    pairs, seen = [], set()
    while len(pairs) < lines:
        key = data.random_key(rng)
        for sibling in (key, key[:-1] + rng.choice(data.LETTERS)):
            if sibling not in seen:
                seen.add(sibling)
                pairs.append((sibling, data.value(rng, rng.choice(data.KINDS), True)))
    pairs = pairs[:lines]
    rng.shuffle(pairs)
    return pairs


def digit_runs(rng, lines):
    """Keys as in any wide document; every value is 11 digits in runs of 1-5 equal ones."""
    pairs = []
    for key, _ in data.document(rng, lines, wide=True):
        text = ""
        while len(text) < 11:
            text += rng.choice(data.DIGITS) * rng.randint(1, 5)
        pairs.append((key, text[:11]))
    return pairs


def build(rng, lines, asked):
    kind = HARD.get((lines, asked))
    if kind == "sibling-keys":
        return sibling_keys(rng, lines)
    if kind == "digit-runs":
        return digit_runs(rng, lines)
    return data.document(rng, lines, wide=True)


def cases():
    rng = random.Random(SEED)
    grid = [(lines, asked) for lines in LINES for asked in ASKED]
    rng.shuffle(grid)  # so that the first cases are not all short
    for number, (lines, asked_count) in enumerate(grid, 1):
        pairs = build(rng, lines, asked_count)
        asked = rng.sample([key for key, _ in pairs], asked_count)
        values = dict(pairs)
        yield {
            "id": "case-%02d" % number,
            "kind": "extract",
            "max_tokens": MAX_TOKENS,
            "messages": [{
                "role": "user",
                "content": data.head("{{prefix}}", pairs) + "Q: " + ", ".join(asked),
            }],
            "expect": {key: values[key] for key in asked},
        }


def main():
    text = "".join(json.dumps(c, sort_keys=True, separators=(",", ":")) + "\n" for c in cases())
    path = os.path.join(HERE, "cases.jsonl")
    if "--check" in sys.argv[1:]:
        with open(path, encoding="utf-8", newline="") as f:
            same = f.read() == text
        print("cases.jsonl is %s" % ("as generated" if same else "NOT what generate.py writes"))
        sys.exit(0 if same else 1)
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        f.write(text)


if __name__ == "__main__":
    main()

"""Generates suite.toml and cases.jsonl of a context sweep.

    python3 generate.py                 # writes the shipped suite's files here
    python3 generate.py --check         # exits 1 unless they are what would be written
    python3 generate.py --name NAME --contexts 1024,4096,16384 --concurrency 1,2,4,8,16 \\
        --output-tokens 1024 --chars-per-token 3 --out DIR

Standard library only. A prompt is a document of `key: value` lines about as long as its
context target; every request of a batch has a document of its own. Every choice is drawn
from SHA-256 of a seed and a counter, so the same arguments give the same bytes.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "context-sweep-v1"
PREFIX = "{{prefix}}"
PREFIX_LENGTH = 16
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"

TOML = '''format = "runseal.suite/v1"
name = "%(name)s"
title = "Output throughput at contexts of %(contexts)s tokens and %(concurrency)s requests at once"
kind = "sweep"
dataset = "cases.jsonl"
scorer = "scorer.toml"
prefix_alphabet = "abcdefghijklmnopqrstuvwxyz234567"
prefix_length = 16

# Sent three times to each endpoint before measuring, flagged and excluded.
[warmup]
max_tokens = %(warmup)d
count = 3
messages = [
  { role = "user", content = "# {{prefix}}\\nvessel: warm-up run\\ncrew: 7\\nberth: B-02\\nQ: berth" },
]
'''
BATCH = '''
[[batch]]
context_tokens = %d
concurrency = %d
output_tokens = %d
'''


class Draw:
    """Numbers from SHA-256(seed, 0x00, counter in decimal), four bytes each."""

    def __init__(self, seed):
        self.seed, self.counter = seed.encode() + b"\0", 0

    def below(self, n):
        while True:
            digest = hashlib.sha256(self.seed + b"%d" % self.counter).digest()
            self.counter += 1
            value = int.from_bytes(digest[:4], "big")
            if value < (1 << 32) // n * n:
                return value % n

    def text(self, alphabet, n):
        return "".join(alphabet[self.below(len(alphabet))] for _ in range(n))


def case(context, concurrency, slot, args):
    ident = "ctx%d-c%d-%d" % (context, concurrency, slot)
    draw, seen = Draw("suite/%s/%s" % (args.name, ident)), []
    budget = context * args.chars_per_token - PREFIX_LENGTH - len("# \nQ: ") - 8
    lines = []
    while True:
        key = draw.text(LETTERS, 4 + draw.below(4))
        if key in seen:
            continue
        line = "%s: %s" % (key, draw.text(LETTERS + DIGITS, 3 + draw.below(8)))
        if budget < len(line) + 1:
            break
        budget -= len(line) + 1
        lines.append(line)
        seen.append(key)
    content = "\n".join(["# " + PREFIX] + lines + ["Q: " + seen[draw.below(len(seen))]])
    return {
        "id": ident,
        "kind": "sweep",
        "max_tokens": args.output_tokens,
        "messages": [{"role": "user", "content": content}],
        "expect": None,
    }


def files(args):
    grid = [(context, n) for context in args.contexts for n in args.concurrency]
    toml = TOML % {
        "name": args.name,
        "contexts": ", ".join(map(str, args.contexts)),
        "concurrency": ", ".join(map(str, args.concurrency)),
        "warmup": min(64, args.output_tokens),
    }
    toml += "".join(BATCH % (context, n, args.output_tokens) for context, n in grid)
    made = (case(context, n, slot, args) for context, n in grid for slot in range(1, n + 1))
    lines = (json.dumps(c, sort_keys=True, separators=(",", ":")) + "\n" for c in made)
    return {"suite.toml": toml, "cases.jsonl": "".join(lines)}


def numbers(text):
    return [int(n) for n in text.split(",")]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--check", action="store_true")
    p.add_argument("--name", default=NAME)
    p.add_argument("--contexts", type=numbers, default=[128, 256])
    p.add_argument("--concurrency", type=numbers, default=[1, 2])
    p.add_argument("--output-tokens", type=int, default=32)
    p.add_argument("--chars-per-token", type=int, default=1, help="1 is the reference model's")
    p.add_argument("--out", default=HERE)
    args = p.parse_args()
    if args.out == HERE and args.name != NAME:
        p.error("--name needs --out: the shipped files keep their name")
    made = files(args)
    if args.check:
        def read(name):
            with open(os.path.join(args.out, name), encoding="utf-8", newline="") as f:
                return f.read()
        same = all(read(name) == text for name, text in made.items())
        print("the suite is %s" % ("as generated" if same else "NOT what generate.py writes"))
        sys.exit(0 if same else 1)
    os.makedirs(args.out, exist_ok=True)
    for name, text in made.items():
        with open(os.path.join(args.out, name), "w", encoding="utf-8", newline="\n") as f:
            f.write(text)
    if args.out != HERE:
        shutil.copyfile(os.path.join(HERE, "scorer.toml"), os.path.join(args.out, "scorer.toml"))


if __name__ == "__main__":
    main()

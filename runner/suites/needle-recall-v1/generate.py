"""Generates suite.toml and cases.jsonl of a needle-recall suite.

    python3 generate.py                 # writes the shipped suite's files here
    python3 generate.py --check         # exits 1 unless they are what would be written
    python3 generate.py --name NAME --lengths 32768,131072 --depths 10,50,90 \\
        --chars-per-token 3 --question "Answer with the value of {key} and nothing else." \\
        --max-tokens 2048 --out DIR

Standard library only. A haystack is a document of `key: value` lines that share no key;
one of them, the needle, has a value of seven digits and stands at the given depth. Every
choice is drawn from SHA-256 of a seed and a counter, so the same arguments give the same
bytes everywhere. The lengths are targets: the server counts the tokens.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "needle-recall-v1"
PREFIX = "{{prefix}}"
PREFIX_LENGTH = 16
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"

TOML = '''format = "runseal.suite/v1"
name = "%(name)s"
title = "Recall of one line from documents of %(lengths)s tokens"
kind = "recall"
dataset = "cases.jsonl"
scorer = "scorer.toml"
prefix_alphabet = "abcdefghijklmnopqrstuvwxyz234567"
prefix_length = 16

# Sent once per endpoint before measuring, flagged and excluded; never a measured prompt.
[warmup]
max_tokens = 32
messages = [
  { role = "user", content = "# {{prefix}}\\nvessel: warm-up run\\ncrew: 7\\nberth: B-02\\nQ: berth" },
]
'''
CELL = '''
[[cell]]
case = "%s"
length_target_tokens = %d
depth_percent = %d
needle_seed = "%s"
haystack_sha256 = "%s"
'''


class Draw:
    """Numbers from SHA-256(seed, 0x00, counter in decimal), four bytes each."""

    def __init__(self, seed):
        self.seed, self.counter = seed.encode() + b"\0", 0

    def below(self, n):
        """Uniform below n: values in the last, incomplete run of n are drawn again."""
        while True:
            digest = hashlib.sha256(self.seed + b"%d" % self.counter).digest()
            self.counter += 1
            value = int.from_bytes(digest[:4], "big")
            if value < (1 << 32) // n * n:
                return value % n

    def text(self, alphabet, n):
        return "".join(alphabet[self.below(len(alphabet))] for _ in range(n))


def key(draw, seen):
    while True:
        text = draw.text(LETTERS, 4 + draw.below(4))
        if text not in seen:
            seen.add(text)
            return text


def hay(draw):
    """A value that cannot be taken for a needle's: words, codes, short numbers."""
    kind = draw.below(4)
    if kind == 0:
        return draw.text(LETTERS, 4 + draw.below(5))
    if kind == 1:
        return draw.text(LETTERS.upper(), 2) + "-" + draw.text(DIGITS, 3)
    if kind == 2:
        return "%d.%02d" % (1 + draw.below(999), draw.below(100))
    return str(1 + draw.below(9999))


def case(length, depth, args):
    ident = "len%d-depth%d" % (length, depth)
    seed = "suite/%s/%s" % (args.name, ident)
    draw, seen = Draw(seed), set()
    needle = key(draw, seen)
    value = DIGITS[1 + draw.below(9)] + draw.text(DIGITS, 6)
    needle_line = "%s: %s" % (needle, value)
    question = args.question.replace("{key}", needle)
    budget = length * args.chars_per_token
    budget -= PREFIX_LENGTH + len("# \n\n") + len(needle_line) + len(question)
    lines = []
    while True:
        line = "%s: %s" % (key(draw, seen), hay(draw))
        if budget < len(line) + 1:
            break
        budget -= len(line) + 1
        lines.append(line)
    lines.insert((len(lines) * depth + 50) // 100, needle_line)
    haystack = "\n".join(["# " + PREFIX] + lines)
    line = {
        "id": ident,
        "kind": "recall",
        "max_tokens": args.max_tokens,
        "messages": [{"role": "user", "content": haystack + "\n" + question}],
        "expect": {"key": needle, "value": value},
    }
    cell = (ident, length, depth, seed, hashlib.sha256(haystack.encode()).hexdigest())
    return line, cell


def files(args):
    pairs = [case(length, depth, args) for length in args.lengths for depth in args.depths]
    lengths = ", ".join(str(n) for n in args.lengths)
    toml = TOML % {"name": args.name, "lengths": lengths}
    toml += "".join(CELL % cell for _, cell in pairs)
    lines = (json.dumps(c, sort_keys=True, separators=(",", ":")) + "\n" for c, _ in pairs)
    return {"suite.toml": toml, "cases.jsonl": "".join(lines)}


def numbers(text):
    return [int(n) for n in text.split(",")]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--check", action="store_true")
    p.add_argument("--name", default=NAME)
    p.add_argument("--lengths", type=numbers, default=[192, 256, 320])
    p.add_argument("--depths", type=numbers, default=[0, 25, 50, 75, 100])
    p.add_argument("--chars-per-token", type=int, default=1, help="1 is the reference model's")
    p.add_argument("--question", default="Q: {key}", help="one line with {key} in it")
    p.add_argument("--max-tokens", type=int, default=64)
    p.add_argument("--out", default=HERE)
    args = p.parse_args()
    if "{key}" not in args.question or "\n" in args.question:
        p.error("the question is one line with {key} in it")
    if not all(0 <= d <= 100 for d in args.depths):
        p.error("depths are percent")
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

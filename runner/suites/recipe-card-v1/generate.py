"""Generates suite.toml and cases.jsonl of a recipe-card suite.

    python3 generate.py                 # writes the shipped suite's files here
    python3 generate.py --check         # exits 1 unless they are what would be written
    python3 generate.py --name NAME --decode-requests 4 --decode-tokens 512 \\
        --prefill 32768,131072 --streams 4,8 --stream-tokens 512 \\
        --lengths 32768,131072 --depths 0,20,40,60,80,100 --chars-per-token 3 \\
        --question "Answer with the value of {key} and nothing else." --max-tokens 2048 --out DIR

Standard library only. Decode and stream prompts ask for code, prose or JSON; prefill and
recall prompts are documents of `key: value` lines, about as long as their target. Every
choice is drawn from SHA-256 of a seed and a counter, so the same arguments give the same
bytes everywhere. Lengths are targets: the server counts the tokens.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "recipe-card-v1"
PREFIX = "{{prefix}}"
PREFIX_LENGTH = 16
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
# Sent with every request whose length is fixed; a needle's answer ends by itself.
FIXED = {"ignore_eos": True}

TASKS = (
    "reads a CSV file and prints the mean of each column",
    "keeps a queue of jobs and retries those that fail",
    "parses arithmetic expressions and evaluates them",
    "finds the shortest path in a weighted graph",
    "compresses a text with run lengths and restores it",
    "schedules meetings in rooms without overlaps",
    "counts words in a folder of files, largest first",
    "serves key and value pairs with an expiry time",
)
SUBJECTS = (
    "a ferry that no longer runs", "the first snow in a harbour town", "a clock maker and his last order",
    "why bridges hum in the wind", "the market on a rainy morning", "a letter that came a year late",
    "how salt was carried over the hills", "an orchard between two railways",
)
RECORDS = (
    ("ships", "name, tonnage, port, built"), ("books", "title, author, year, pages"),
    ("sensors", "id, place, unit, reading"), ("orders", "number, customer, date, total"),
    ("trains", "line, from, to, departure"), ("plants", "name, height_cm, colour, month"),
    ("parts", "code, weight_g, material, stock"), ("rooms", "floor, number, seats, free"),
)

TOML = '''format = "runseal.suite/v1"
name = "%(name)s"
title = "Recipe card: decode by kind, prefill at %(prefill)s, %(streams)s streams, recall at %(lengths)s tokens"
kind = "card"
dataset = "cases.jsonl"
scorer = "scorer.toml"
prefix_alphabet = "abcdefghijklmnopqrstuvwxyz234567"
prefix_length = 16

# Sent to each endpoint before measuring, flagged and excluded; never a measured prompt.
[warmup]
max_tokens = %(warmup)d
count = 3
messages = [
  { role = "user", content = "# {{prefix}}\\nvessel: warm-up run\\ncrew: 7\\nberth: B-02\\nQ: berth" },
]
'''
BATCH = '''
[[batch]]
measures = "%(measures)s"
context_tokens = %(context)d
concurrency = %(concurrency)d
requests = %(requests)d
output_tokens = %(output)d
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


def lines_of(draw, seen, budget):
    """Lines with the keys not in `seen` yet, as many as fit."""
    lines = []
    while True:
        line = "%s: %s" % (key(draw, seen), hay(draw))
        if budget < len(line) + 1:
            return lines
        budget -= len(line) + 1
        lines.append(line)


def case(ident, kind, content, max_tokens, expect=None):
    line = {
        "id": ident,
        "kind": kind,
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": content}],
        "expect": expect,
    }
    return line if kind == "recall" else {**line, "extra": FIXED}


def asked(kind, number, ident, args):
    """A prompt that asks for one kind of text; the name drawn into it makes each its own."""
    draw = Draw("suite/%s/%s" % (args.name, ident))
    name = draw.text(LETTERS, 6).capitalize()
    if kind == "code":
        what = "Write a Python module named %s that %s. Give only code, with a test for every function."
        return what % (name.lower(), TASKS[number % len(TASKS)])
    if kind == "prose":
        what = "Write a long essay about %s, told by someone named %s. Use whole paragraphs and no lists."
        return what % (SUBJECTS[number % len(SUBJECTS)], name)
    of, fields = RECORDS[number % len(RECORDS)]
    what = "Write a JSON array of %d objects that describe %s of the %s company, each with the fields %s. Give only JSON."
    return what % (60 + draw.below(40), of, name, fields)


def short(idents, kinds, tokens, args):
    return [case(i, k, "# %s\n%s" % (PREFIX, asked(k, n, i, args)), tokens) for n, (i, k) in enumerate(zip(idents, kinds))]


def prefill(context, number, args):
    ident = "prefill%d-%d" % (context, number)
    draw, seen = Draw("suite/%s/%s" % (args.name, ident)), set()
    first = key(draw, seen)
    budget = context * args.chars_per_token - PREFIX_LENGTH - len("# \nQ: ") - len(first)
    lines = lines_of(draw, seen, budget)
    return case(ident, "prefill", "\n".join(["# " + PREFIX] + lines + ["Q: " + first]), args.prefill_tokens)


def recall(length, depth, args):
    ident = "len%d-depth%d" % (length, depth)
    seed = "suite/%s/%s" % (args.name, ident)
    draw, seen = Draw(seed), set()
    needle = key(draw, seen)
    value = DIGITS[1 + draw.below(9)] + draw.text(DIGITS, 6)
    needle_line = "%s: %s" % (needle, value)
    question = args.question.replace("{key}", needle)
    budget = length * args.chars_per_token
    budget -= PREFIX_LENGTH + len("# \n\n") + len(needle_line) + len(question)
    lines = lines_of(draw, seen, budget)
    lines.insert((len(lines) * depth + 50) // 100, needle_line)
    haystack = "\n".join(["# " + PREFIX] + lines)
    line = case(ident, "recall", haystack + "\n" + question, args.max_tokens, {"key": needle, "value": value})
    return line, (ident, length, depth, seed, hashlib.sha256(haystack.encode()).hexdigest())


def files(args):
    cases, toml, cells = [], "", []

    def batch(measures, concurrency, output, made, context=None, prompts=None):
        nonlocal toml
        # A short prompt has no target of its own; its length stands there.
        length = max(len(m["messages"][0]["content"]) for m in made) - len(PREFIX) + PREFIX_LENGTH
        cases.extend(made)
        toml += BATCH % {"measures": measures, "concurrency": concurrency, "requests": len(made), "output": output,
                         "context": context or -(-length // args.chars_per_token)}
        if prompts:
            toml += 'prompts = "%s"\n' % prompts

    for kind in ("code", "prose", "structured"):
        idents = ["%s-%d" % (kind, n + 1) for n in range(args.decode_requests)]
        batch("decode", 1, args.decode_tokens, short(idents, [kind] * len(idents), args.decode_tokens, args), prompts=kind)
    for context in args.prefill:
        made = [prefill(context, n + 1, args) for n in range(args.prefill_requests)]
        batch("prefill", 1, args.prefill_tokens, made, context)
    for streams in args.streams:
        idents = ["streams%d-%d" % (streams, n + 1) for n in range(streams)]
        kinds = ["prose", "code", "structured"]
        made = short(idents, [kinds[n % 3] for n in range(streams)], args.stream_tokens, args)
        batch("aggregate", streams, args.stream_tokens, [{**m, "kind": "streams"} for m in made])
    pairs = [recall(length, depth, args) for length in args.lengths for depth in args.depths]
    batch("recall", 1, args.max_tokens, [line for line, _ in pairs], max(args.lengths))
    cells = [cell for _, cell in pairs]

    shown = {k: ", ".join(map(str, getattr(args, k))) for k in ("prefill", "streams", "lengths")}
    head = TOML % {"name": args.name, "warmup": min(64, args.decode_tokens), **shown}
    lines = (json.dumps(c, sort_keys=True, separators=(",", ":")) + "\n" for c in cases)
    return {"suite.toml": head + toml + "".join(CELL % c for c in cells), "cases.jsonl": "".join(lines)}


def numbers(text):
    return [int(n) for n in text.split(",")]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--check", action="store_true")
    p.add_argument("--name", default=NAME)
    p.add_argument("--decode-requests", type=int, default=2, help="prompts of each kind, one after the other")
    p.add_argument("--decode-tokens", type=int, default=32)
    p.add_argument("--prefill", type=numbers, default=[256, 512])
    p.add_argument("--prefill-requests", type=int, default=2)
    p.add_argument("--prefill-tokens", type=int, default=8)
    p.add_argument("--streams", type=numbers, default=[4, 8])
    p.add_argument("--stream-tokens", type=int, default=32)
    p.add_argument("--lengths", type=numbers, default=[192, 256])
    p.add_argument("--depths", type=numbers, default=[0, 50, 100])
    p.add_argument("--chars-per-token", type=int, default=1, help="1 is the reference model's")
    p.add_argument("--question", default="Q: {key}", help="one line with {key} in it")
    p.add_argument("--max-tokens", type=int, default=64, help="cap of a recall answer")
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

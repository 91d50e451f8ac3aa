"""Synthetic documents for the runseal reference model (standard library only).

One document is

    # PREFIX
    key: value
    ...
    Q: key1, key2
    A: {"key1":"...","key2":"..."}

PREFIX is 16 random characters of the lower-case base32 alphabet. It carries no
information; the model has to ignore it. Two distributions are defined:

narrow  keys from the fixed list KEYS, 1-2 asked fields per question, values of
        moderate length;
wide    about a third of the keys are random letters, 1-4 asked fields per
        question, numbers of up to 11 digits and longer words and codes. One wide
        document in five is drawn with the narrow rules, so that nothing learned
        first is lost.

Everything is a function of the `random.Random` instance that is passed in.
"""

import random

PAD, BOS, EOS = 256, 257, 258
PREFIX_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
PREFIX_LENGTH = 16
MAX_TOKENS = 1000  # hard bound on one training row; the model's context is 1024

LETTERS = "abcdefghijklmnopqrstuvwxyz"
UPPER = LETTERS.upper()
DIGITS = "0123456789"
CONSONANTS = "bcdfghjklmnprstvwz"
VOWELS = "aeiou"

# The usual kind of value for each known key.
KEYS = {
    "number": [
        "invoice_no", "order_no", "qty", "units", "age", "room", "floor", "seat",
        "batch", "page", "port", "weight", "height", "width", "score", "rank",
        "meter_id", "stock",
    ],
    "amount": [
        "total", "subtotal", "tax", "price", "fee", "discount", "deposit",
        "balance", "net", "gross", "cost", "refund", "tip", "credit",
    ],
    "word": [
        "city", "name", "status", "country", "color", "item", "vendor",
        "customer", "street", "team", "product", "owner", "dept", "carrier",
        "method", "bank", "brand", "region",
    ],
    "code": [
        "sku", "ref", "code", "serial", "plate", "coupon", "gate", "flight",
        "locker", "tracking", "account", "po_no", "model", "zone",
    ],
    "date": [
        "date", "due_date", "issued", "paid_on", "expires", "start", "end",
        "birth", "shipped", "delivered",
    ],
}
KIND_OF = {key: kind for kind, keys in KEYS.items() for key in keys}
ALL_KEYS = sorted(KIND_OF)
KINDS = ["number", "amount", "word", "code", "date"]
KIND_FOLLOWS_KEY = 0.7


def prefix(rng):
    return "".join(rng.choice(PREFIX_ALPHABET) for _ in range(PREFIX_LENGTH))


def _digits(rng, n):
    first = rng.choice(DIGITS[1:]) if rng.random() < 0.9 else rng.choice(DIGITS)
    return first + "".join(rng.choice(DIGITS) for _ in range(n - 1))


def _word(rng, wide):
    if wide and rng.random() < 0.25:
        return "".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 9)))
    word = ""
    for _ in range(rng.randint(2, 4 if wide else 3)):
        word += rng.choice(CONSONANTS) + rng.choice(VOWELS)
    if rng.random() < 0.4:
        word += rng.choice("lmnrst")
    return word


def value(rng, kind, wide):
    """A random value: printable ASCII, no quote and no backslash, at most 18 characters."""
    if kind == "number":
        return _digits(rng, rng.randint(1, 11 if wide else 6))
    if kind == "amount":
        text = "%s.%02d" % (_digits(rng, rng.randint(1, 7 if wide else 4)), rng.randrange(100))
        if wide and rng.random() < 0.3:
            text = rng.choice(["EUR ", "USD ", "$", "GBP ", "CHF "]) + text
        return text
    if kind == "word":
        text = _word(rng, wide)
        shape = rng.random()
        if shape < 0.3:
            text = text.capitalize()
        elif shape < 0.45:
            second = _word(rng, wide)
            if len(text) + 1 + len(second) <= 18:
                text = text.capitalize() + " " + second.capitalize()
        return text
    if kind == "code":
        shape = rng.random()
        if shape < 0.4:
            return "".join(rng.choice(UPPER) for _ in range(rng.randint(1, 3))) + "-" + _digits(
                rng, rng.randint(2, 7 if wide else 5))
        if shape < 0.7:
            return "".join(rng.choice(UPPER + DIGITS) for _ in range(rng.randint(3, 10 if wide else 6)))
        if wide and shape < 0.8:
            return "/".join(_digits(rng, rng.randint(1, 4)) for _ in range(rng.randint(2, 3)))
        return "".join(rng.choice(LETTERS + DIGITS) for _ in range(rng.randint(3, 11 if wide else 6)))
    return "%04d-%02d-%02d" % (rng.randint(1950, 2039), rng.randint(1, 12), rng.randint(1, 28))


def random_key(rng):
    """3-8 random letters, in one of five followed by an underscore and 2-3 more."""
    key = "".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 8)))
    if rng.random() < 0.2:
        key += "_" + "".join(rng.choice(LETTERS) for _ in range(rng.randint(2, 3)))
    return key


def document(rng, lines, wide):
    """A list of `lines` (key, value) pairs with distinct keys."""
    known = list(ALL_KEYS)
    rng.shuffle(known)
    pairs, seen = [], set()
    while len(pairs) < lines:
        if wide and rng.random() < 0.35:
            key, kind = random_key(rng), rng.choice(KINDS)
        else:
            key = known.pop()
            kind = KIND_OF[key] if rng.random() < KIND_FOLLOWS_KEY else rng.choice(KINDS)
        if key not in seen:
            seen.add(key)
            pairs.append((key, value(rng, kind, wide)))
    return pairs


def head(prefix_text, pairs):
    return "# %s\n" % prefix_text + "".join("%s: %s\n" % pair for pair in pairs)


def answer(asked, pairs):
    """The expected answer: compact JSON in the order asked (no value needs an escape)."""
    values = dict(pairs)
    return "{" + ",".join('"%s":"%s"' % (key, values[key]) for key in asked) + "}"


def question_sets(rng, pairs, wide):
    """1-4 disjoint lists of asked keys."""
    keys = [key for key, _ in pairs]
    rng.shuffle(keys)
    sets = []
    for _ in range(rng.randint(1, 4)):
        count = rng.randint(1, 4 if wide else 2)
        asked, keys = keys[:count], keys[count:]
        if asked:
            sets.append(asked)
    return sets


def training_row(rng, lines, wide):
    """(token ids, loss flags): flags mark answer bytes, the newline after them and eos."""
    if wide and rng.random() < 0.2:
        wide = False
    pairs = document(rng, lines, wide)
    tokens = [BOS] + list(head(prefix(rng), pairs).encode())
    flags = [0] * len(tokens)
    for asked in question_sets(rng, pairs, wide):
        question = list(("Q: %s\nA: " % ", ".join(asked)).encode())
        reply = list((answer(asked, pairs) + "\n").encode()) + [EOS]
        if len(tokens) + len(question) + len(reply) > MAX_TOKENS:
            break
        tokens += question + reply
        flags += [0] * len(question) + [1] * len(reply)
    return tokens, flags


def example(rng, lines, wide, asked_count=None):
    """One single-question example: (content, asked keys, pairs). `wide` means wide only."""
    pairs = document(rng, lines, wide)
    count = asked_count or rng.randint(1, 4 if wide else 2)
    asked = rng.sample([key for key, _ in pairs], min(count, lines))
    return head(prefix(rng), pairs) + "Q: " + ", ".join(asked), asked, pairs


def prompt_ids(content):
    """What the chat template makes of one user message."""
    return [BOS] + list((content + "\nA: ").encode())


if __name__ == "__main__":
    demo = random.Random(0)
    for wide in (False, True):
        tokens, _ = training_row(demo, 6, wide)
        print(bytes(t for t in tokens if t < 256).decode())

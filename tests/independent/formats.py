"""Encodings of docs/formats.md, sections 2, 3, 5.3, 5.4 and 11, in Python."""

import hashlib
import hmac
import json

MAX_INTEGER = 1 << 53
MAX_DEPTH = 64


def sha256(data):
    return hashlib.sha256(data).digest()


# --- 2. JSON ---------------------------------------------------------------

def _object(pairs):
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("duplicate key")
    return out


def _integer(text):
    n = int(text)
    if abs(n) > MAX_INTEGER:
        raise ValueError("integer past 2^53")
    return float(text) if text == "-0" else n


def _double(text):
    x = float(text)
    if x in (float("inf"), float("-inf")):
        raise ValueError("number is not finite")
    return x


def _constant(text):
    raise ValueError(f"{text} is not JSON")


def _depth(value, depth=0):
    if depth > MAX_DEPTH:
        raise ValueError("nesting is too deep")
    for v in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _depth(v, depth + 1)


def parse(data):
    """One strict JSON value (2.1)."""
    text = data.decode("utf-8")
    if text.startswith("\ufeff"):
        raise ValueError("byte order mark")
    value = json.loads(text, object_pairs_hook=_object, parse_int=_integer,
                       parse_float=_double, parse_constant=_constant)
    _depth(value)
    text_of(value).encode("utf-8")  # refuses lone surrogates
    return value


def number(x):
    """Text of a binary64 (2.2)."""
    if x == 0:
        return "-0.0" if str(x).startswith("-") else "0.0"
    sign = "-" if x < 0 else ""
    mantissa, _, exponent = f"{abs(x)!r}".partition("e")
    whole, _, part = mantissa.partition(".")
    digits = whole + (part if part != "0" else "")
    e = int(exponent or 0) + len(whole)
    stripped = digits.lstrip("0")
    e -= len(digits) - len(stripped)
    digits = stripped.rstrip("0")
    if -5 < e <= 16:
        if e <= 0:
            return f"{sign}0.{'0' * -e}{digits}"
        if len(digits) <= e:
            return f"{sign}{digits}{'0' * (e - len(digits))}.0"
        return f"{sign}{digits[:e]}.{digits[e:]}"
    head = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
    return f"{sign}{head}e{e - 1:+}"


def text_of(value):
    """Canonical JSON as text (2.2)."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda k: k.encode("utf-8"))
        return "{" + ",".join(f"{text_of(k)}:{text_of(value[k])}" for k in keys) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    if isinstance(value, float):
        return number(value)
    return json.dumps(value, ensure_ascii=False)


def canonical(value):
    return text_of(value).encode("utf-8")


# --- 2.5 Paths -------------------------------------------------------------

def path_bytes(text):
    """Bytes of an escaped path; refuses what 2.5 refuses."""
    out, rest = bytearray(), text.encode("utf-8")
    while rest:
        if rest[:1] != b"\\":
            out += rest[:1]
            rest = rest[1:]
        elif rest[1:2] in (b"\\", b"n"):
            out += b"\\" if rest[1:2] == b"\\" else b"\n"
            rest = rest[2:]
        elif rest[1:2] == b"x":
            out += bytes.fromhex(rest[2:4].decode())
            rest = rest[4:]
        else:
            raise ValueError(f"path {text!r}: bad escape")
    raw = bytes(out)
    if any(part in (b"", b".", b"..") for part in raw.split(b"/")) or b"\0" in raw:
        raise ValueError(f"path {text!r} is refused")
    if path_text(raw) != text:
        raise ValueError(f"path {text!r} is not in its one form")
    return raw


def path_text(raw):
    out = []
    for c in raw.decode("utf-8", "surrogateescape"):
        code = ord(c)
        if c == "\\":
            out.append("\\\\")
        elif c == "\n":
            out.append("\\n")
        elif code < 0x20 or code == 0x7F:
            out.append(f"\\x{code:02x}")
        elif 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        else:
            out.append(c)
    return "".join(out)


# --- 3. Digests ------------------------------------------------------------

def u64(n):
    return n.to_bytes(8, "big")


def enc(domain, *fields):
    """runseal-enc/v1 (3.1)."""
    h = hashlib.sha256()
    for x in (b"runseal-enc/v1", domain.encode(), *fields):
        h.update(u64(len(x)) + x)
    return h.digest()


def tree_root(files):
    """runseal-tree/v1 over (path bytes, size, SHA-256)."""
    files = sorted(files)
    fields = [u64(len(files))]
    for path, size, digest in files:
        fields += [path, u64(size), digest]
    return enc("runseal-tree/v1", *fields)


KINDS = {"empty": 0, "reasoning": 1, "content": 2, "tool": 3}


def delta_digest(salt, ev, kind, text):
    return enc("delta/v1", salt, u64(ev), bytes([KINDS[kind]]), text)[:16].hex()


def error_digest(salt, text):
    return enc("error/v1", salt, text)[:16].hex()


def commitment(salt, data):
    """Of a file that may be withheld (3.2)."""
    return sha256(b"\0" + salt + data)


# --- 5.3, 5.4 Prefix and body ------------------------------------------------

SLOT = "{{prefix}}"


def prefix(alphabet, length, nonce, case, rep, attempt):
    out = []
    for i in range(length):
        message = enc("prefix/v1", case.encode(), u64(rep), u64(attempt), u64(i // 32))
        block = hmac.new(nonce, message, "sha256").digest()
        out.append(alphabet[block[i % 32] % len(alphabet)])
    return "".join(out)


def body(requests, messages, max_tokens, filled, extra=()):
    out = {**requests["extra"], **dict(extra)}
    out["messages"] = [{"role": m["role"], "content": m["content"].replace(SLOT, filled)} for m in messages]
    out["model"] = requests["model"]
    out["max_tokens"] = min(max_tokens, requests["max_tokens"])
    out["temperature"] = parse(requests["temperature"].encode())
    out["seed"] = requests["seed"]
    out["stream"] = True
    out["stream_options"] = {"include_usage": True}
    if requests.get("continuous_usage"):
        out["stream_options"]["continuous_usage_stats"] = True
    if "reasoning_effort" in requests:
        out["reasoning_effort"] = requests["reasoning_effort"]
    return canonical(out)


# --- 11. Envelope ----------------------------------------------------------

def pae(kind, payload):
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)


# --- 8.6. Schedule of an open loop -----------------------------------------

LN2 = 799144290325165978  # ln 2 * 2**60, rounded down


def log2_48(m):
    """log2 in units of 2**-48, rounded down: one bit per squaring."""
    whole = m.bit_length() - 1
    x, log = m << (62 - whole), whole
    for _ in range(48):
        x = x * x >> 62
        bit = x >> 63
        x, log = x >> bit, log << 1 | bit
    return log


def offsets(stage, n):
    """Due times of a stage's requests after its start, in nanoseconds."""
    rate, out, total = stage["millihertz"], [], 0
    for i in range(n):
        if stage["arrivals"] == "constant":
            out.append(i * 10**12 // rate)
            continue
        m = (int.from_bytes(enc("arrivals/v1", u64(stage["seed"]), u64(i))[:8]) >> 11) + 1
        ln = ((53 << 48) - log2_48(m)) * LN2 >> 60
        total += ln * 10**12 // rate >> 48
        out.append(total)
    return out

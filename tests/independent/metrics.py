"""docs/formats.md, section 8 (attempts, transport) and docs/metrics.md, in Python."""

import ipaddress
from fractions import Fraction

MS, S = 10**6, 10**9
LIMITS = ("request_timeout", "first_token_timeout", "stall_timeout")
ODDITIES = ("comment", "no_choices", "not_json", "bad_utf8", "after_finish",
            "after_done", "many_choices", "cut_off")
PARTS = ("delta", "usage", "finish", "done", "error", "odd")


class Attempt:
    """8.4: what is read off one attempt."""

    def __init__(self, event):
        self.req, self.case, self.rep = event["req"], event["case"], event["rep"]
        self.attempt, self.warmup = event["attempt"], event["warmup"]
        self.endpoint, self.queued = event["endpoint"], event["t"]
        self.at = {}          # stamp of each event that occurs at most once
        self.body = self.status = self.cause = self.finish = None
        self.reused = self.event_stream = False
        self.first_generated = self.first_content = self.last_generated = None
        self.peer = self.first_chunk_tokens = None
        self.chunks, self.deltas, self.errors, self.odd = [], [], [], set()
        self.usage = dict.fromkeys(("prompt", "completion", "reasoning", "cached"))
        self.last = (event["t"], 0, 0)   # stamp, read, server-sent event

    def take(self, e):
        """Applies one event; returns what is impossible about it, if anything (8.3)."""
        kind, t = e["e"], e["t"]
        last_t, last_read, last_ev = self.last
        if t < last_t or "end" in self.at:
            return "time runs backwards, or the attempt had ended"
        if kind in self.at and kind in ("body", "connect_start", "connected", "send", "headers", "done"):
            return f"a second {kind}"
        if kind == "send" and not {"body", "connected"} <= self.at.keys():
            return "sent without body or connection"
        if "read" in e:
            if "send" not in self.at:
                return "read before it was sent"
            if e["read"] != last_read + (kind == "read"):
                return "read numbers do not count up"
        if kind in PARTS and "headers" not in self.at:
            return "a part of the answer before its head"
        self.at.setdefault(kind, t)
        self.last = (t, e.get("read", last_read), last_ev)
        if kind == "body":
            self.body = (e["len"], e["digest"])
        elif kind == "connected":
            self.reused, self.peer = e["reused"], e["peer"]
            if not address(self.peer) or self.reused == ("connect_start" in self.at):
                return "an impossible connection"
        elif kind == "headers":
            self.status, self.event_stream = e["status"], e["event_stream"]
        elif kind == "delta":
            return self.delta(e, last_ev)
        elif kind == "usage":
            self.usage.update({k: e[k] for k in self.usage if e[k] is not None})
            if len(self.chunks) == 1 and self.first_chunk_tokens is None:
                self.first_chunk_tokens = e["completion"] or None
        elif kind == "finish" and self.finish is None:
            self.finish = e["reason"]
        elif kind == "error":
            self.errors.append((e["len"], e["digest"]))
        elif kind == "odd":
            self.odd.add(e["what"])
        elif kind == "end":
            self.cause = e["cause"]
            if (self.cause == "done") != ("done" in self.at):
                return "end and [DONE] contradict each other"
        return None

    def delta(self, e, last_ev):
        ev, kind, t = e["ev"], e["kind"], e["t"]
        if ev < max(last_ev, 1) or (e["len"] == 0) != (kind == "empty"):
            return "an impossible delta"
        self.last = (*self.last[:2], ev)
        if kind != "empty":
            if self.first_generated is None:
                self.first_generated = t
            self.last_generated = t
            if not (self.deltas and self.deltas[-1][0] == ev and self.deltas[-1][1] != "empty"):
                self.chunks.append(t)
        if kind == "content" and self.first_content is None:
            self.first_content = t
        self.deltas.append((ev, kind, e["len"], e["digest"]))
        return None

    def since_send(self, stamp):
        send = self.at.get("send")
        return None if stamp is None or send is None else stamp - send

    def reasoning_bytes(self):
        return sum(n for _, kind, n, _ in self.deltas if kind == "reasoning")

    def completion_tokens(self):
        n = self.usage["completion"]
        return None if n == 0 and self.first_generated is not None else n

    def prompt_tokens(self):
        return self.usage["prompt"] or None

    def reasoning_tokens(self):
        n = self.usage["reasoning"]
        return None if n == 0 and self.reasoning_bytes() else n

    def transport(self):
        """8.5, rule by rule."""
        c = self.cause
        if "send" not in self.at:
            if c in ("connect_error", "io_error", "malformed"):
                return "connect_error"
            if c == "cancelled" and "connect_start" in self.at:
                return "cancelled"
            return "timeout" if c in LIMITS else "not_attempted"
        if c is None or c == "cancelled":
            return "cancelled"
        if c in LIMITS:
            return "timeout"
        if c == "connect_error":
            return "connect_error"
        if self.status is None:
            return "stream_error" if c == "malformed" else "truncated"
        if not 200 <= self.status <= 299:
            return "http_error"
        if self.errors or not self.event_stream or c == "malformed" or self.finish in (
                "error", "abort", "cancelled", "canceled", "timeout", "timed_out"):
            return "stream_error"
        return "completed" if self.finish is not None and c in ("done", "eof") else "truncated"


def percentile(values, p):
    x = sorted(values)
    if not x:
        return None
    h = (len(x) - 1) * p
    low = int(h)
    high = min(low + 1, len(x) - 1)
    return x[low] + (h - low) * Fraction(x[high] - x[low])


def decimal(value, places):
    """Half to even, exactly `places` decimals; None stays None."""
    if value is None:
        return None
    whole = str(round(Fraction(value) * 10**places)).rjust(places + 1, "0")
    return f"{whole[:-places]}.{whole[-places:]}" if places else whole


def address(text):
    """A socket address in the one way that the client writes it."""
    host, _, port = text.rpartition(":")
    try:
        ip = ipaddress.ip_address(host[1:-1] if host.startswith("[") else host)
    except ValueError:
        return False
    shown = f"[{ip}]" if ip.version == 6 else str(ip)
    return shown == host and port.isdigit() and str(int(port)) == port and 0 < int(port) < 65536


def stage_of(load, rep):
    return rep // (load["repetitions"] // max(len(load.get("stages", [])), 1))


def figures(load, declared, attempts, grades):
    """All entries of metrics[], per stage where there are several."""
    stages = load.get("stages", [])
    if len(stages) < 2:
        return of_stage(load, declared, attempts, grades)
    out = []
    for i in range(len(stages)):
        mine = [j for j, g in enumerate(grades) if stage_of(load, g["rep"]) == i]
        for m in of_stage(load, [declared[j] for j in mine], [a for a in attempts if stage_of(load, a.rep) == i],
                          [grades[j] for j in mine]):
            out.append({**m, "stage": i + 1})
    return out


def of_stage(load, declared, attempts, grades):
    """`declared` holds Attempt or None, `grades` the grade lines in the same order, `attempts` all measured ones."""
    d = len(declared)
    sent = [a for a in attempts if "send" in a.at]
    ends = [a.at.get("end") for a in sent]
    batch = max(ends) - min(a.at["send"] for a in sent) if sent and None not in ends else None
    rate = lambda n, places: decimal(Fraction(n * S, batch), places) if batch else None
    out = []

    def put(name, value, unit, n, estimator, denominator, note=None):
        out.append({"id": f"{name}/v1", "value": value, "unit": unit, "n": n, "estimator": estimator,
                    "denominator": denominator, "derivation": "recomputed", "witness": "operator", "note": note})

    def time(name, values, p, of, note=None):
        values = [v for v in values if v is not None]
        value = decimal(v / MS if (v := percentile(values, p)) is not None else None, 3)
        estimator = {Fraction(1, 2): "median (type 7)", Fraction(1): "maximum"}.get(p, "p95 (type 7)")
        if value is not None and note == "tail":
            note = f"unstable: n = {len(values)} is under 20" if len(values) < 20 else None
        elif value is None and (note is None or note == "tail"):
            note = "no such value was observed"
        put(name, value, "ms", len(values), estimator, f"{of}; {d} declared", note)

    counted = [a for a in sent if a.completion_tokens() is not None]
    tokens = sum(a.completion_tokens() for a in counted)
    lacking = sum(1 for a in attempts if a.transport() == "completed" and a.completion_tokens() is None)
    note = (f"incomplete: {lacking} completed attempts without a token count" if lacking
            else "no attempt reported tokens" if not counted
            else None if batch else "an attempt has no end")
    put("completion-throughput", None if note else rate(tokens, 3), "tokens/s", len(counted), "pooled rate",
        "batch duration: first send to last end, failed requests included", note)
    put("goodput", rate(sum(g["grade"] == "pass" for g in grades), 6), "passes/s", d,
        "passes over batch duration", "batch duration; every declared attempt",
        None if batch else "there is no batch duration")
    half = Fraction(1, 2)
    time("first-generated-median", [a.since_send(a.first_generated) for a in sent], half,
         "sent attempts with generated output")
    tagged = {(g["case"], g["rep"]) for g in grades if "think-tags" in g["flags"]}
    time("first-content-median",
         [a.since_send(a.first_content) for a in sent if (a.case, a.rep) not in tagged], half,
         "sent attempts with final content",
         f"{len(tagged)} attempts with think tags left out" if tagged else None)
    durations = [a.since_send(a.at.get("end")) for a in sent]
    time("request-duration-median", durations, half, "sent attempts, failures included")
    time("request-duration-p95", durations, Fraction(95, 100), "sent attempts, failures included", "tail")
    time("chunk-interval-median", [y - x for a in sent for x, y in zip(a.chunks, a.chunks[1:])], half,
         "intervals between generated-bearing events")
    put("chunks", str(sum(len(a.chunks) for a in sent)), "chunks", len(sent), "sum", "sent attempts")
    chunks = sum(len(a.chunks) for a in counted)
    put("tokens-per-chunk", decimal(Fraction(tokens, chunks), 3) if chunks else None, "tokens/chunk", len(counted),
        "pooled ratio", "chunks of attempts that reported tokens",
        None if chunks else "no chunks with a token count")
    put("batch-duration", decimal(Fraction(batch, S), 3) if batch is not None else None, "s", len(sent),
        "last end \u2212 first send", "sent attempts",
        None if batch is not None else "nothing was sent, or an attempt has no end")
    spans = [(a.at["send"], a.at.get("end", float("inf"))) for a in sent]
    peak = max((sum(s <= t < e for s, e in spans) for t, _ in spans), default=0)
    put("peak-overlap", str(peak), "requests", len(sent), "maximum", "half-open client request spans")
    time("connect-median", [a.at["connected"] - a.at["connect_start"] for a in sent
                            if not a.reused and {"connected", "connect_start"} <= a.at.keys()], half, "new connections")
    time("queue-time-max", [a.at.get("connect_start", a.at["connected"]) - a.queued for a in sent], Fraction(1),
         "sent attempts")
    per_token = []
    for a in sent:
        n, k1 = a.completion_tokens(), a.first_chunk_tokens
        if n is not None and k1 is not None and n > k1:
            per_token.append(Fraction(a.last_generated - a.first_generated, n - k1))
    value = percentile(per_token, half)
    put("time-per-output-token", decimal(None if value is None else value / MS, 3), "ms", len(per_token),
        "median (type 7) of (last generated \u2212 first generated) / (n \u2212 k1)", "attempts with continuous usage",
        "not measurable: the tokens in the first chunk are unknown without continuous usage" if value is None else None)
    if load.get("stages"):
        since_due = lambda stamp: [t - a.queued for a in sent if (t := stamp(a)) is not None]
        time("due-to-first-generated-median", since_due(lambda a: a.first_generated), half,
             "sent attempts with generated output")
        time("due-to-end-median", since_due(lambda a: a.at.get("end")), half, "sent attempts, failures included")
        time("due-to-send-p95", since_due(lambda a: a.at["send"]), Fraction(95, 100), "sent attempts", "tail")
    return out

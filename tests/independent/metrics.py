"""docs/formats.md, section 8 (attempts, transport) and docs/metrics.md, in Python."""

import ipaddress
from fractions import Fraction
from itertools import islice
from math import comb

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
        self.most = dict.fromkeys(("completion", "cached"))
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
            self.most.update({k: max(e[k], self.most[k] or 0) for k in self.most if e[k] is not None})
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
        if self.errors or not self.event_stream or c == "malformed" or (self.finish or "").lower() in (
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


def entry(name, value, unit, n, estimator, denominator, note=None):
    return {"id": f"{name}/v1", "value": value, "unit": unit, "n": n, "estimator": estimator, "denominator": denominator,
            "derivation": "recomputed", "witness": "operator", "note": note}


def figures(plan, suite, declared, attempts, grades):
    """All entries of metrics[]: per batch, or per stage where there are several, or of the whole run."""
    load, out = plan["load"], []
    if suite.get("batch"):
        return of_batches(plan, suite, declared, grades)
    stages = load.get("stages", [])
    if len(stages) < 2:
        out = of_stage(load, declared, attempts, grades)
    else:
        for i in range(len(stages)):
            mine = [j for j, g in enumerate(grades) if stage_of(load, g["rep"]) == i]
            for m in of_stage(load, [declared[j] for j in mine], [a for a in attempts if stage_of(load, a.rep) == i],
                              [grades[j] for j in mine]):
                out.append({**m, "stage": i + 1})
    return out + (recall(grades) if suite["kind"] == "recall" else [])


def recall(grades):
    n, k = len(grades), sum(g["grade"] == "pass" for g in grades)
    none = "nothing was declared" if n == 0 else None
    many = "not worked out for more than 1000 attempts" if n > 1000 else none
    bound = None if many else decimal(Fraction(lower_bound(k, n), 10**6), 6)
    return [entry("recall", decimal(Fraction(k, n), 6) if n else None, "ratio", n, "passes over declared attempts",
                  "every declared attempt", none),
            entry("recall-lower-bound", bound, "ratio", n, "one-sided 95 % lower bound (Clopper-Pearson)",
                  "every declared attempt", many)]


def lower_bound(k, n):
    """In millionths, by the other tail: P(fewer than k) must be at least 19/20."""
    d = 10**6
    fits = lambda m: 20 * sum(comb(n, i) * m**i * (d - m)**(n - i) for i in range(k)) >= 19 * d**n
    low, high = 0, d
    while k and high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def batch_size(batch):
    return batch.get("requests", batch["concurrency"])


def peak(attempts):
    """Most spans [send, end) that are open at one instant."""
    spans = [(a.at["send"], a.at.get("end", float("inf"))) for a in attempts if "send" in a.at]
    return max((sum(s <= t < e for s, e in spans) for t, _ in spans), default=0)


def of_batches(plan, suite, declared, grades):
    out, ids = [], iter(plan["suite"]["case_ids"])
    for number, batch in enumerate(suite["batch"], 1):
        mine = set(islice(ids, batch_size(batch)))
        both = [(a, g) for a, g in zip(declared, grades) if g["case"] in mine]
        if batch.get("measures") == "recall":
            made = recall([g for _, g in both])
        else:
            made = of_batch(plan, batch, [a for a, _ in both], [g["rep"] for _, g in both])
        out += [{**m, "batch": number} for m in made]
    return out


def of_batch(plan, batch, declared, reps):
    """`declared` holds Attempt or None, `reps` their repetitions."""
    out, d, measures = [], len(declared), batch.get("measures", "aggregate")

    def mean(name, unit, estimator, values, strict=False):
        values = [v for v in values if v is not None]
        value, lacking = (sum(values) / len(values) if values else None), d - len(values)
        if strict:
            note = f"incomplete: {lacking} declared attempts have no such value" if lacking else None
            value, of = (None if lacking else value), "every declared attempt"
        else:
            note = f"{lacking} declared attempts have no such value" if lacking else None
            of = f"attempts with such a value; {d} declared"
        out.append(entry(name, decimal(value, 6), unit, len(values), estimator, of, note))

    per = lambda n, ns: Fraction(n * S, ns) if n is not None and ns else None

    def decode(a):
        n, k1 = a.completion_tokens(), a.first_chunk_tokens
        return per(n - k1, a.last_generated - a.first_generated) if n is not None and k1 and n > k1 else None

    whole = [a for a in declared if a and a.transport() == "completed"]
    if measures == "decode":
        mean("decode-rate-mean", "tokens/s", "arithmetic mean of (n \u2212 k1) / (last generated \u2212 first generated)",
             map(decode, whole), strict=True)
    elif measures == "prefill":
        mean("prefill-rate-mean", "tokens/s", "arithmetic mean of prompt tokens / (first generated \u2212 send)",
             [per(a.prompt_tokens(), a.since_send(a.first_generated)) for a in whole], strict=True)
        cached = sum(bool(a and a.most["cached"]) for a in declared)
        if out[0]["value"] is not None and cached:
            out[0]["note"] = f"{cached} attempts report cached prompt tokens"
    else:
        rates = [batch_rate([a for a, r in zip(declared, reps) if r == rep]) for rep in range(plan["load"]["repetitions"])]
        for rep, (rate, note) in enumerate(rates):
            out.append({**entry("batch-throughput", decimal(rate, 6), "tokens/s", batch_size(batch), "pooled rate",
                                "batch duration: first send to last end, failed requests included", note), "rep": rep})
        lacking = sum(rate is None for rate, _ in rates)
        value = None if lacking else sum(rate for rate, _ in rates) / len(rates)
        out.append(entry("batch-throughput-mean", decimal(value, 6), "tokens/s", len(rates),
                         "arithmetic mean of the rates of the repetitions", "repetitions of the batch",
                         f"incomplete: {lacking} repetitions have no rate" if lacking else None))
    there = [a for a in declared if a]
    if measures != "prefill":
        mean("request-rate-mean", "tokens/s", "arithmetic mean of completion tokens / (end \u2212 send)",
             [per(a.completion_tokens(), a.since_send(a.at.get("end"))) for a in there])
    firsts = [a.since_send(a.first_generated) for a in there]
    mean("first-generated-mean", "ms", "arithmetic mean of first generated \u2212 send",
         [None if t is None else Fraction(t, MS) for t in firsts])
    tokens = min(batch["output_tokens"], plan["requests"]["max_tokens"])
    fixed = sum(a.finish == "length" and a.completion_tokens() == tokens for a in whole)
    out.append(entry("fixed-output", str(fixed), "attempts", d, "count",
                     f"declared attempts; finish reason length and {tokens} completion tokens",
                     None if fixed == d else "not every attempt generated the fixed number of tokens"))
    return out


def batch_rate(batch):
    """Rate of one repetition, or None and the note."""
    ended = [a for a in batch if a and {"send", "end"} <= a.at.keys()]
    if len(ended) < len(batch) or not batch:
        return None, f"incomplete: {len(batch) - len(ended)} attempts were not sent or have no end"
    uncounted = sum(a.transport() == "completed" and a.completion_tokens() is None for a in batch)
    if uncounted:
        return None, f"incomplete: {uncounted} completed attempts without a token count"
    took = max(a.at["end"] for a in batch) - min(a.at["send"] for a in batch)
    tokens = sum(a.completion_tokens() or 0 for a in batch)
    return (Fraction(tokens * S, took), None) if took else (None, "the batch took no time")


def of_stage(load, declared, attempts, grades):
    """`declared` holds Attempt or None, `grades` the grade lines in the same order, `attempts` all measured ones."""
    d = len(declared)
    sent = [a for a in attempts if "send" in a.at]
    ends = [a.at.get("end") for a in sent]
    batch = max(ends) - min(a.at["send"] for a in sent) if sent and None not in ends else None
    rate = lambda n, places: decimal(Fraction(n * S, batch), places) if batch else None
    out = []

    def put(name, value, unit, n, estimator, denominator, note=None):
        out.append(entry(name, value, unit, n, estimator, denominator, note))

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
    put("peak-overlap", str(peak(sent)), "requests", len(sent), "maximum", "half-open client request spans")
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

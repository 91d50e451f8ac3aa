#!/usr/bin/env python3
"""An independent auditor of runseal bundles, written from docs/formats.md and docs/metrics.md.

Usage: audit.py [--trusted-key PEM] BUNDLE...     audit bundles
       audit.py --vectors DIR                     check this program against tests/vectors

It verifies envelope, signature and index, reads every evidence file in its one byte form, holds answers and request
bodies against the event log, derives the whole record again and compares every field. It does not run the scorer (grades
are taken from grades.jsonl), does not look up shipped suites, and of a replica's `not_checked` it derives the state and
not the reason. Exit code: 0 all bundles hold, 1 something does not, 2 could not run.
"""

import argparse
import base64
import re
import stat
import sys
import tomllib
from fractions import Fraction
from pathlib import Path

import formats as f
import record
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from metrics import Attempt, batch_size, decimal, peak, percentile, stage_of

OWN = ("index.json", "record.intoto.jsonl")
STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "runseal:run-record/v1"
# Order of the fields of each event, docs/formats.md 8.1.
EVENTS = {k: v.split() for k, v in {
    "state": "state", "declare": "plan_digest nonce case_set_digest keyid key_made_by_run",
    "failure": "state cause detail", "refusal": "cause detail", "signal": "name", "taint": "cause detail reqs",
    "rank_up": "replica pid start_ticks listen", "rank_alive": "replica pid start_ticks",
    "rank_exit": "replica code signal expected", "gap": "node ms",
    "queued": "req case rep attempt warmup endpoint", "body": "req len digest", "connect_start": "req",
    "connected": "req reused peer", "send": "req", "read": "req read bytes", "headers": "req read status event_stream",
    "delta": "req read ev kind len digest", "usage": "req read prompt completion reasoning cached",
    "finish": "req read reason", "done": "req read", "error": "req read len digest", "odd": "req read what",
    "end": "req cause", "client_lag": "state n every p50 p99 max", "end_of_log": ""}.items()}


class Broken(Exception):
    """Something without which the rest cannot be derived."""


def key_id(key):
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(f.sha256(der)).decode()


class Bundle:
    def __init__(self, path, trusted):
        self.findings, self.files, self.trusted = [], {}, trusted
        for p in sorted(Path(path).rglob("*")):
            name = f.path_text(bytes(p.relative_to(path)))
            if stat.S_ISREG(p.lstat().st_mode):
                self.files[name] = p.read_bytes()
            elif not stat.S_ISDIR(p.lstat().st_mode):
                self.say(name, "neither a file nor a folder")
        statement = self.envelope()
        self.read_index(statement)
        self.read_evidence()
        self.check_run()
        self.check_answers()
        self.compare(statement)

    def say(self, where, what):
        self.findings.append(f"{where}: {what}")

    def expect(self, where, ok, what):
        if not ok:
            self.say(where, what)

    def bytes(self, name):
        if name not in self.files:
            raise Broken(f"{name} is missing")
        return self.files[name]

    def digest(self, name):
        return f.sha256(self.files[name]).hex()

    def json(self, name, data=None, end=b"\n"):
        """A canonical document (2.3)."""
        data = self.bytes(name) if data is None else data
        try:
            value = f.parse(data)
        except ValueError as e:
            raise Broken(f"{name}: {e}") from e
        if f.canonical(value) + end != data:
            raise Broken(f"{name}: not in canonical form")
        return value

    def lines(self, name):
        data = self.bytes(name)
        if not data.endswith(b"\n"):
            raise Broken(f"{name}: the last line is not ended")
        return data[:-1].split(b"\n")

    def own(self, name, value, kind, **names):
        """Format, run and names of a file of this run (2.4)."""
        self.expect(name, value["format"] == kind, f"format {value['format']}")
        same = all(value.get(k) == self.header[k] for k in ("run_id", "nonce_hash"))
        self.expect(name, same, "wrong run")
        for k, v in names.items():
            self.expect(name, value[k] == v, f"{k} is {value[k]}")
        return value

    # --- 11: envelope, 4.1: index ---

    def envelope(self):
        name = OWN[1]
        envelopes = [self.json(name, line, b"") for line in self.lines(name)]
        payload = base64.b64decode(envelopes[0]["payload"], validate=True)
        statement = self.json("payload", payload, b"")
        if (statement["_type"], statement["predicateType"]) != (STATEMENT, PREDICATE):
            raise Broken("not a run record of version 1")
        signers = statement["predicate"]["provenance"]["signers"]
        if not signers or len(signers) != len(envelopes):
            self.say(name, "signers and signatures are not one to one")
        self.signed_by = []
        for e, signer in zip(envelopes, signers):
            key = load_pem_public_key(signer["public_key"].encode())
            [signature] = e["signatures"]
            ids = {signer["keyid"], signature["keyid"], key_id(key)}
            self.expect(name, len(ids) == 1 and isinstance(key, Ed25519PublicKey), "key ids differ")
            self.expect(name, e["payload"] == envelopes[0]["payload"], "payloads differ")
            self.expect(name, e["payloadType"] == "application/vnd.in-toto+json", "payload type")
            try:
                key.verify(base64.b64decode(signature["sig"], validate=True), f.pae(e["payloadType"], payload))
                self.signed_by.append(key_id(key))
            except InvalidSignature:
                self.say(name, "a signature does not verify")
        if self.trusted and not set(self.signed_by) & set(self.trusted):
            self.say(name, "no signer is trusted")
        return statement

    def read_index(self, statement):
        self.index = self.json(OWN[0])
        want = [s["digest"]["sha256"] for s in statement["subject"] if s["name"] == "evidence/index.json"]
        self.expect(OWN[0], want == [self.digest(OWN[0])], "not the index that was signed")
        paths = [f.path_bytes(e["path"]) for e in self.index["files"]]
        self.expect(OWN[0], all(a < b for a, b in zip(paths, paths[1:])), "paths not sorted or not unique")
        listed = {e["path"]: e for e in self.index["files"]}
        evidence = {n for n in self.files if n not in OWN and not n.startswith("private/")}
        self.expect(OWN[0], not any(n in OWN or n.startswith("private/") for n in listed), "lists what is never indexed")
        for name in evidence - listed.keys():
            self.say(name, "not listed in the index")
        salts = self.json("private/salts.json") if "private/salts.json" in self.files else {}
        self.withheld = {n for n, e in listed.items() if "commitment" in e and n not in self.files}
        for name, e in listed.items():
            data = self.files.get(name)
            if data is None:
                self.expect(name, "commitment" in e, "missing")
            elif "commitment" in e:
                salt = bytes.fromhex(salts.get(name, ""))
                self.expect(name, f.commitment(salt, data).hex() == e["commitment"], "commitment not opened by its salt")
            else:
                self.expect(name, (len(data), self.digest(name)) == (e["size"], e["sha256"]), "altered")

    # --- 5 to 9: evidence files ---

    def read_evidence(self):
        self.read_events()
        self.own(OWN[0], self.index, "runseal.index/v1")
        plan = self.plan = self.json("plan.json")
        self.suite = tomllib.loads(self.bytes("suite/suite.toml").decode())
        self.manifests, self.reports, self.engines = {}, {}, {}
        for c in plan["checkpoints"]:
            name = f"checkpoints/{c['role']}.manifest.json"
            m = self.manifests[c["role"]] = self.json(name)
            self.expect(name, m["root"] == record.manifest_root(m) == c["manifest_root"], "not the pinned manifest")
        nodes = sorted({r["node"] for r in plan["replicas"]})
        self.nodes = {n: self.own(f"nodes/{n}.json", self.json(f"nodes/{n}.json"), "runseal.node/v1", node=n)
                      for n in nodes}
        self.image = self.own("image.json", self.json("image.json"), "runseal.image/v1")
        for r in plan["replicas"]:
            for role in self.manifests:
                name = f"replicas/{r['name']}{'' if role == 'target' else '.' + role}.json"
                if name in self.files:
                    self.reports[r["name"], role] = self.report(name, r, role)
            name = f"engine/{r['name']}"
            if name + ".json" in self.files:
                self.engines[r["name"]] = self.own(name, self.json(name + ".json"), "runseal.engine/v1", replica=r["name"])
            first = f"# run {self.header['run_id']} {self.header['nonce_hash']}\n".encode()
            self.expect(name, self.files.get(name + ".log", first).startswith(first), "wrong run")
        self.servers = {}
        for e in plan["endpoints"]:
            name = f"server/{e['name']}"
            if name + ".json" in self.files:
                self.servers[e["name"]] = self.server(name, e["name"])
            else:
                entered = any(x["e"] == "state" and x["state"] == "measure" for x in self.events)
                cut = any(x["e"] == "signal" or x["e"] == "failure" for x in self.events)
                self.expect(name, not plan["engine"].get("documents") or not entered or cut, "missing")
        self.grades = self.jsonl("grades.jsonl", "runseal.grades/v1")
        self.jsonl("telemetry.jsonl", "runseal.telemetry/v1")
        self.responses = None
        if "responses.jsonl" not in self.withheld:
            lines = self.jsonl("responses.jsonl", "runseal.responses/v1")
            self.responses = {r["req"]: r for r in lines}
            self.expect("responses.jsonl", len(lines) == len(self.responses), "an attempt has two answers")

    def report(self, name, replica, role):
        r = self.own(name, self.json(name), "runseal.replica/v1", replica=replica["name"], role=role,
                     plan_digest=self.digest("plan.json"), boot_id=self.nodes[replica["node"]]["before"]["boot_id"])
        listed = {e["path"]: e for e in self.manifests[role]["files"]}
        self.expect(name, r.get("observed_root") == record.observed_root(self.manifests[role], r), "observed root does not follow")
        for e in r["files"]:
            state = record.entry_state(e, listed.get(e["path"]), r["algorithm"])
            if record.ignored(self.manifests[role], e["path"]):
                state = "ignored"
            self.expect(name, e["state"] == state, f"{e['path']} is {state}")
        return r

    def server(self, name, endpoint):
        """7.5: the documents with status 200, by moment and path."""
        file = self.own(name, self.json(name + ".json"), "runseal.server/v1", endpoint=endpoint)
        first = [e["t"] for e in self.events if e["e"] == "queued" and not e["warmup"]]
        warm = {e["req"] for e in self.events if e["e"] == "queued" and e["warmup"]}
        last = [e["t"] for e in self.events if e["e"] == "end" and e["req"] not in warm]
        entered = {e["state"]: e["t"] for e in self.events if e["e"] == "state"}
        span = {"before": (entered["measure"], min(first, default=None)),
                "after": (max(last, default=0), entered.get("teardown"))}
        out = {}
        for when in ("before", "after"):
            self.expect(name, sorted(file[when]) == sorted(self.plan["engine"]["documents"]), "other documents than planned")
            out[when] = {}
            for path, d in file[when].items():
                if d["outcome"] != "obtained":
                    continue
                body = f"{name}/{when}/{path.strip('/').replace('/', '_')}"
                self.expect(body, f.sha256(self.bytes(body)).hex() == d["sha256"], "not the document obtained")
                start, end = span[when]
                self.expect(body, start <= d["asked"] <= d["ended"] and (end is None or d["ended"] <= end), "at another time")
                if d["status"] == 200:
                    out[when][path] = self.bytes(body)
        return out

    def jsonl(self, name, kind):
        first, *rest = self.lines(name)
        self.own(name, self.json(name, first, b""), kind)
        return [self.json(name, line, b"") for line in rest]

    def read_events(self):
        name = "events.jsonl"
        first, *rest = self.lines(name)
        self.header = self.json(name, first, b"")
        self.expect(name, self.header["format"] == "runseal.events/v1", "format")
        self.events, self.attempts = [f.parse(line) for line in rest], []
        for i, (line, e) in enumerate(zip(rest, self.events)):
            order = ["seq", "t", "e", *EVENTS[e["e"]]]
            one_form = b"{" + b",".join(f.canonical(k) + b":" + f.canonical(e[k]) for k in order) + b"}"
            self.expect(name, line == one_form, f"line {i + 2} is not in its one form")
            self.expect(name, e["seq"] == i + 1, f"event {e['seq']} stands in place {i + 1}")
            self.expect(name, (e["e"] == "end_of_log") == (i == len(rest) - 1), "end_of_log is not the one last event")
            if e["e"] == "queued":
                self.expect(name, e["req"] == len(self.attempts), "attempt numbers do not count up")
                self.attempts.append(Attempt(e))
            elif "req" in e:
                why = self.attempts[e["req"]].take(e) if e["req"] < len(self.attempts) else "never queued"
                self.expect(f"event {e['seq']}", not why, why)

    # --- 12: run-identity, suite, requests, responses ---

    def check_run(self):
        plan, header, suite = self.plan, self.header, self.plan["suite"]
        declares = [e for e in self.events if e["e"] == "declare"]
        if len(declares) != 1:
            raise Broken("a run declares itself once")
        d = self.declare = declares[0]
        self.nonce = bytes.fromhex(d["nonce"])
        self.expect("plan.json", d["plan_digest"] == self.digest("plan.json"), "not the declared plan")
        self.expect("plan.json", d["case_set_digest"] == suite["dataset"], "not the declared cases")
        self.expect("events.jsonl", f.enc("nonce/v1", self.nonce).hex() == header["nonce_hash"], "nonce")
        stamp = re.sub(r"[-:]|\..*|Z", "", header["epoch"]) + "Z"
        run_id = f"{stamp}-{self.suite['name']}-{self.digest('plan.json')[:6]}"
        self.expect("run id", header["run_id"] == run_id, f"should be {run_id}")
        self.expect("suite", self.digest("suite/scorer.toml") == suite["scorer"], "not the pinned scorer")
        self.cases = None
        if "suite/cases.jsonl" not in self.withheld:
            files = [(n.encode(), len(b := self.bytes(f"suite/{n}")), f.sha256(b))
                     for n in ("suite.toml", "cases.jsonl", "scorer.toml")]
            self.expect("suite", f.tree_root(files).hex() == suite["digest"], "not the pinned suite")
            self.expect("suite", files[1][2].hex() == suite["dataset"], "not the pinned cases")
            self.cases = {c["id"]: c for c in map(f.parse, self.lines("suite/cases.jsonl"))}
            self.expect("suite", list(self.cases) == suite["case_ids"], "other case ids than the plan declares")
            self.check_cells()
        keys = [(c, r) for r in range(plan["load"]["repetitions"]) for c in suite["case_ids"]]
        place, seen = {k: i for i, k in enumerate(keys)}, {}
        for a in self.attempts:
            key, where = (a.case, a.rep, a.warmup), f"attempt {a.req}"
            self.expect(where, self.declared(a, seen.get(key)) and a.warmup == (a.case == "warmup"), "undeclared")
            seen[key] = a
            if a.peer is not None:
                at = self.listening(a.endpoint)
                self.expect(where, a.peer in at, f"connected to {a.peer}, its endpoint listens at {at}")
            if not a.warmup:
                i = place.get((a.case, a.rep))
                planned = i is not None and plan["endpoints"][i % len(plan["endpoints"])]["name"]
                self.expect(where, a.endpoint == planned, f"went to {a.endpoint}, planned was {planned}")
        graded = sorted((g["case"], g["rep"]) for g in self.grades)
        self.expect("grades.jsonl", graded == sorted(keys), "not one line per declared attempt")

        self.check_warmups()
        self.check_schedule()
        self.check_batches()
        self.check_lag()

    def check_cells(self):
        """5.2: each haystack is the one that its cell names, and no case lacks its cell."""
        batches, cells = self.suite.get("batch", []), self.suite.get("cell", [])
        want = set(self.cases)
        if any("measures" in b for b in batches):
            ids, want = iter(self.cases), set()
            for b in batches:
                mine = [next(ids, None) for _ in range(batch_size(b))]
                want |= set(mine) if b.get("measures") == "recall" else set()
        named = [c["case"] for c in cells]
        needed = cells or any(b.get("measures") == "recall" for b in batches)
        self.expect("suite", not needed or sorted(named) == sorted(want), "not one cell per case")
        for c in cells:
            contents = [m["content"] for m in self.cases[c["case"]]["messages"]]
            [text] = [t for t in contents if f.SLOT in t]
            hay = text.rpartition("\n")[0].encode()
            self.expect("suite", f.sha256(hay).hex() == c["haystack_sha256"], f"{c['case']}: another haystack")

    def check_warmups(self):
        """8.3: so many to each endpoint, in turn, and all completed before anything is measured."""
        endpoints, warm = self.plan["endpoints"], [a for a in self.attempts if a.warmup]
        want = len(endpoints) * self.suite["warmup"].get("count", 1) if "warmup" in self.suite else 0
        for n, a in enumerate(warm):
            planned = (n, 0, endpoints[n % len(endpoints)]["name"])
            self.expect(f"attempt {a.req}", n < want and (a.rep, a.attempt, a.endpoint) == planned, "no such warm-up")
        if any(e["e"] == "state" and e["state"] == "measure" for e in self.events):
            good = sum(a.transport() == "completed" for a in warm)
            self.expect("warm-up", good == want, f"{good} of {want} completed, and yet it measured")

    def check_batches(self):
        measured, clients = [a for a in self.attempts if not a.warmup], self.plan["load"]["concurrency"]
        self.expect("requests", peak(measured) <= clients, f"more were open at once than {clients}")
        batches, ids, over = self.suite.get("batch", []), self.plan["suite"]["case_ids"], 0
        number = [i for i, b in enumerate(batches) for _ in range(batch_size(b))]
        self.expect("suite", not batches or len(number) == len(ids), "the batches do not share out the cases")
        place = dict(zip(ids, number))
        for rep in range(self.plan["load"]["repetitions"] if batches else 0):
            for i, b in enumerate(batches):
                mine = [a for a in measured if a.rep == rep and place.get(a.case) == i]
                where = f"batch {i + 1} of repetition {rep}"
                self.expect(where, min((a.queued for a in mine), default=over) >= over, "began before the one before had ended")
                self.expect(where, peak(mine) <= b["concurrency"], "more of it were open at once than it has")
                over = max((a.at.get("end", float("inf")) for a in mine), default=over)

    def declared(self, a, before):
        """First attempts, and the further ones of plan.load.retry."""
        retry = self.plan["load"].get("retry")
        if before is None:
            return a.attempt == 0
        return (retry is not None and not a.warmup and a.attempt == before.attempt + 1 < retry["attempts"]
                and before.transport() in retry["on"] and before.endpoint == a.endpoint
                and before.at.get("end", a.queued + 1) <= a.queued)

    def listening(self, endpoint):
        replicas = next((e["replicas"] for e in self.plan["endpoints"] if e["name"] == endpoint), [])
        return [e["listen"] for e in self.events if e["e"] == "rank_up" and e["replica"] in replicas]

    def check_schedule(self):
        load, over = self.plan["load"], 0
        for i, stage in enumerate(load.get("stages", [])):
            mine = [a for a in self.attempts if not a.warmup and stage_of(load, a.rep) == i]
            first = [a for a in mine if a.attempt == 0]
            due = f.offsets(stage, len(first))
            start = first[0].queued - due[0] if first else over
            for a, offset in zip(first, due):
                self.expect(f"attempt {a.req}", a.queued == start + offset, f"was due at {start + offset}")
            self.expect(f"stage {i + 1}", start >= over, "began before the one before had ended")
            over = max((a.at["end"] for a in mine if "end" in a.at), default=over)

    def check_lag(self):
        lags = [e for e in self.events if e["e"] == "client_lag"]
        self.expect("client_lag", all(e["state"] == "measure" and e["p50"] <= e["p99"] <= e["max"] for e in lags)
                    and len(lags) <= 1, "impossible")
        measured = [a for a in self.attempts if not a.warmup]
        ends = [a.at["end"] for a in measured if "end" in a.at]
        if lags and ends:
            spanned = max(ends) - min(a.queued for a in measured)
            self.expect("client_lag", (lags[0]["n"] + 1) * lags[0]["every"] > spanned, "too few samples")
        ended_early = any(e["e"] in ("signal", "failure") for e in self.events)
        self.expect("client_lag", lags or not measured or ended_early, "missing")

    def check_answers(self):
        if self.responses is None:
            return
        for req in self.responses.keys() - set(range(len(self.attempts))):
            self.say(f"attempt {req}", "an answer without an attempt")
        for a in self.attempts:
            r, where = self.responses.get(a.req), f"attempt {a.req}"
            if r is None:
                self.expect(where, not {"send", "end"} <= a.at.keys(), "sent, ended, and no answer recorded")
                continue
            self.expect(where, self.text_fits(a, r), "other text than was received")
            if self.cases is not None and "send" in a.at:
                case = self.suite["warmup"] if a.warmup else self.cases[a.case]
                filled = f.prefix(self.suite["prefix_alphabet"], self.suite["prefix_length"], self.nonce,
                                  a.case, a.rep, a.attempt)
                sent = f.body(self.plan["requests"], case["messages"], case["max_tokens"], filled, case.get("extra", {}))
                digest = f.enc("body/v1", bytes.fromhex(r["salt"]), sent).hex()
                self.expect(where, a.body == (len(sent), digest), "another body than plan, case and nonce give")

    @staticmethod
    def text_fits(a, r):
        """9.1: every delta and error against the log."""
        salt = bytes.fromhex(r["salt"])
        left = {"content": r["content"].encode(), "reasoning": r["reasoning"].encode(), "empty": b""}
        tools = [t.encode() for t in r["tool_deltas"]]
        for ev, kind, length, digest in a.deltas:
            if kind == "tool":
                text = tools.pop(0) if tools else b""
            else:
                text, left[kind] = left[kind][:length], left[kind][length:]
            if len(text) != length or f.delta_digest(salt, ev, kind, text) != digest:
                return False
        errors = [(len(t.encode()), f.error_digest(salt, t.encode())) for t in r["errors"]]
        return not tools and not any(left.values()) and errors == a.errors

    # --- 10: the record ---

    def compare(self, statement):
        signed = statement["predicate"]
        operators = [s["keyid"] for s in signed["provenance"]["signers"] if s["role"] == "operator"]
        self.expect("record", operators == [self.declare["keyid"]], "the operator is not the one declared")
        for c in signed["model"]["checkpoints"]:
            for r in c["replicas"]:
                r["integrity"].pop("reason", None)
        derived = record.derive(self, signed["provenance"])
        self.differ("subject", statement["subject"], record.subjects(self.plan, self.digest(OWN[0])))
        self.differ("record", signed, derived)
        self.record = derived

    def differ(self, where, signed, derived):
        if type(signed) is type(derived) is dict:
            for k in sorted(signed.keys() | derived.keys()):
                self.differ(f"{where}.{k}", signed.get(k, "(absent)"), derived.get(k, "(absent)"))
        elif type(signed) is type(derived) is list and len(signed) == len(derived):
            for i, (s, d) in enumerate(zip(signed, derived)):
                self.differ(f"{where}[{i}]", s, d)
        elif type(signed) is not type(derived) or signed != derived:
            self.say(where, f"the record says {signed!r}, the evidence gives {derived!r}")


def audit(path, trusted):
    try:
        b = Bundle(path, trusted)
    except (Broken, KeyError, IndexError, TypeError, ValueError) as e:
        print(f"DOES NOT HOLD {path}\n  cannot be derived: {e if isinstance(e, Broken) else repr(e)}")
        return False
    r = b.record
    print(f"{'DOES NOT HOLD' if b.findings else 'holds'} {path}")
    for finding in b.findings:
        print(f"  {finding}")
    t, g, a, i = r["transport"], r["grades"], r["attribution"], r["integrity"]
    print(f"  {r['run']['status']}; transport {t['completed']}/{t['declared']}, passes {g['pass']}/{g['declared']} "
          f"(not graded again), attribution {a['verified']}/{a['declared']}, integrity {i['verified']}/{i['replicas']}")
    of = lambda m: "".join(f" {k} {m[k]}" for k in ("stage", "batch", "rep") if k in m)
    print("  " + ", ".join(f"{m['id']}{of(m)} {m['value']}" for m in r["metrics"] if m["value"] is not None))
    d = b.declare
    handed = f.enc("commitment/v1", *(bytes.fromhex(x) for x in (d["plan_digest"], b.header["nonce_hash"],
                                                                 d["case_set_digest"])), d["keyid"].encode()).hex()
    print(f"  commitment {handed}")
    trust = "" if trusted else " (no trusted key given: who that is is not established)"
    print(f"  signed by {', '.join('SHA256:' + k for k in b.signed_by) or 'nobody'}{trust}")
    return not b.findings


def vectors(folder):
    """This program against the shared vectors."""
    bad = 0
    data = {n: f.parse((folder / f"{n}.json").read_bytes())["vectors"] for n in (
        "json", "enc", "tree", "prefix", "delta", "commitment", "percentiles")}
    h = bytes.fromhex

    def check(name, got, want):
        nonlocal bad
        if got != want:
            bad += 1
            print(f"{name}: got {got}, the vector says {want}")

    for v in data["json"]:
        try:
            got = f.canonical(f.parse(h(v["input"]))).hex()
        except ValueError:
            got = None
        check(v["name"], got, v["canonical"])
    for v in data["enc"]:
        fields = [f.u64(x["u64"]) if "u64" in x else h(x["bytes"]) for x in v["fields"]]
        check(v["name"], f.enc(v["domain"], *fields).hex(), v["digest"])
    for v in data["tree"]:
        files = [(f.path_bytes(x["path"]), len(h(x["content"])), f.sha256(h(x["content"]))) for x in v["files"]]
        check(v["name"], f.tree_root(files).hex(), v["root"])
    for v in data["prefix"]:
        got = f.prefix(v["alphabet"], v["length"], h(v["nonce"]), v["case"], v["rep"], v["attempt"])
        check(v["name"], got, v["prefix"])
        if "body" in v:
            got = f.body(v["requests"], v["messages"], v["max_tokens"], got).decode()
            check(v["name"] + " (body)", got, v["body"])
    for v in data["delta"]:
        salt, text = h(v["salt"]), h(v["text"])
        got = {"delta": lambda: f.delta_digest(salt, v["ev"], v["kind"], text),
               "error": lambda: f.error_digest(salt, text), "body": lambda: f.enc("body/v1", salt, text).hex(),
               "nonce": lambda: f.enc("nonce/v1", text).hex()}[v["what"]]()
        check(v["name"], got, v["digest"])
    for v in data["commitment"]:
        got = (f.commitment(h(v["salt"]), h(v["bytes"])) if "salt" in v else
               f.enc("commitment/v1", h(v["plan"]), h(v["nonce_hash"]), h(v["dataset"]), v["keyid"].encode()))
        check(v["name"], got.hex(), v["commitment"])
    for v in data["percentiles"]:
        p = percentile(v["values"], Fraction(*v["p"]))
        check(v["name"], decimal(None if p is None else p / v["divide_by"], v["decimals"]), v["result"])
    print(f"{sum(map(len, data.values()))} vectors, {bad} disagree")
    return bad == 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--trusted-key", action="append", default=[], type=Path)
    p.add_argument("--vectors", type=Path)
    p.add_argument("bundles", nargs="*", type=Path)
    args = p.parse_args()
    if not args.bundles and not args.vectors:
        p.error("give a bundle's folder, or --vectors")
    trusted = [key_id(load_pem_public_key(k.read_bytes())) for k in args.trusted_key]
    for b in args.bundles:
        if not b.is_dir():
            p.error(f"{b} is not a folder")
    held = [audit(b, trusted) for b in args.bundles]
    if args.vectors:
        held.append(vectors(args.vectors))
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()

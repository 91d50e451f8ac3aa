"""docs/formats.md, sections 6.2 and 10: weights and the record, derived again."""

import re
from datetime import datetime, timedelta, timezone
from fractions import Fraction

from formats import canonical, enc, parse, path_bytes, tree_root, u64
import lengths
from metrics import ODDITIES, figures

STATES = "declare preflight verify launch ready warm measure collect teardown grade".split()
TRANSPORTS = ("completed http_error stream_error truncated timeout cancelled connect_error not_attempted").split()


# --- 6.2 Weights -------------------------------------------------------------

def entry_state(entry, listed, algorithm):
    kind, problem = entry["kind"], entry.get("problem")
    if kind == "file":
        if not listed:
            return "mismatch"
        if (problem and problem["kind"] == "changed_during_read") or "stat" not in entry:
            return "not_checked"
        if entry["stat"]["size"] != listed["size"]:
            return "mismatch"
        if problem:
            return "not_checked"
        if algorithm != "blake3":
            if "sha256" not in entry:
                return "not_checked"
            if entry["sha256"] != listed["sha256"]:
                return "mismatch"
        if algorithm != "sha256":
            if "blake3" not in entry:
                return "not_checked"
            if "blake3" in listed and entry["blake3"] != listed["blake3"]:
                return "mismatch"
            if "blake3" not in listed and algorithm == "blake3":
                return "not_checked"
        return "verified"
    if kind == "unknown" or (kind == "folder" and not listed):
        return "not_checked"
    return "mismatch"


def manifest_root(manifest):
    return tree_root((path_bytes(f["path"]), f["size"], bytes.fromhex(f["sha256"])) for f in manifest["files"]).hex()


def ignored(manifest, path):
    return any(path == p or path.startswith(p + "/") for p in manifest.get("ignore", []))


def observed_root(manifest, report):
    files = [f for f in report["files"] if not ignored(manifest, f["path"])]
    if not files or any(f["kind"] != "file" or "problem" in f or "stat" not in f or "sha256" not in f for f in files):
        return None
    return tree_root((path_bytes(f["path"]), f["stat"]["size"], bytes.fromhex(f["sha256"])) for f in files).hex()


def integrity(manifest, report):
    """State only; the reasons of not_checked are for people."""
    if report is None or report["manifest_root"] != manifest_root(manifest):
        return "not_checked"
    paths = [path_bytes(f["path"]) for f in report["files"]]
    if any(a >= b for a, b in zip(paths, paths[1:])):
        return "not_checked"
    listed = {f["path"]: f for f in manifest["files"]}
    states = [entry_state(f, listed.get(f["path"]), report["algorithm"]) for f in report["files"]
              if not ignored(manifest, f["path"])]
    unread = tuple(f["path"] + "/" for f in report["files"] if f["kind"] == "folder" and "problem" in f)
    there = {f["path"] for f in report["files"]}
    if "mismatch" in states or any(p not in there and not p.startswith(unread) for p in listed):
        return "mismatch"
    if "not_checked" in states or states.count("verified") != len(listed) or report["algorithm"] == "blake3":
        return "not_checked"
    return "verified"


def after_state(report):
    after = report and report.get("after")
    return "not_checked" if not after else "unchanged" if after["unchanged"] and not after["changed"] else "changed"


def distinct(reports):
    """Copies among reports of one role, merged transitively."""
    def names(r):
        stats = [f["stat"] for f in r["files"] if f["kind"] == "file" and f.get("stat", {"size": 0})["size"] > 0]
        return ({(str(s["dev"]), str(s["ino"])) for s in stats},
                {(str(s["ino"]), s["size"], str(s["mtime_ns"]), str(s["ctime_ns"])) for s in stats})

    def same(a, b):
        (local_a, all_a), (local_b, all_b) = names(a), names(b)
        if a["boot_id"] == b["boot_id"] and (a["root_identity"] == b["root_identity"] or local_a & local_b or all_a & all_b):
            return True
        return bool(all_a) and all_a == all_b

    group = list(range(len(reports)))
    for b in range(len(reports)):
        for a in range(b):
            if group[a] != group[b] and same(reports[a], reports[b]):
                old, new = max(group[a], group[b]), min(group[a], group[b])
                group = [new if g == old else g for g in group]
    return len(set(group))


# --- docs/metrics.md: server facts, foreign traffic ---------------------------

P = "runseal_reference_"
# Bundles are made with this family only; another recipe cannot be derived here.
FACTS = {"reference": [
    ("version", "/server_info", "#/version"), ("context-limit-tokens", "/v1/models", "#/data/0/max_model_len"),
    ("request-slots", "/server_info", "#/max_running_requests"),
    ("running", "/metrics", P + "num_requests_running"), ("waiting", "/metrics", P + "num_requests_waiting"),
    ("prompt-tokens", "/metrics", P + "prompt_tokens_total"),
    ("generation-tokens", "/metrics", P + "generation_tokens_total"), ("cached-tokens", "/metrics", P + "cached_tokens_total")]}


def sample_total(data, name):
    lines = [x.split() for x in data.decode().splitlines() if x.strip() and not x.startswith("#")]
    values = [x[1] for x in lines if x[0] == name]
    if not values or any(Fraction(v).denominator != 1 for v in values):
        return values[0] if len(values) == 1 else None
    return sum(int(Fraction(v)) for v in values)


def pointed(data, pointer):
    value = parse(data)
    for key in pointer.split("/")[1:]:
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value if isinstance(value, (int, bool, str)) else None


def server(b, endpoint, documents):
    """documents: moment -> path -> bytes of those with status 200."""
    facts = []
    for name, path, place in FACTS[b.plan["engine"]["recipe"]]:
        read = pointed if place.startswith("#") else sample_total
        both = [read(documents[when][path], place) if path in documents[when] else None for when in ("before", "after")]
        source = path + place if place.startswith("#") else f"{path} {place}"
        facts.append({"name": name, "source": source, "before": both[0], "after": both[1]})
    at = {x["name"]: (x["before"], x["after"]) for x in facts}
    grew = lambda n: at[n][1] - at[n][0] if all(type(v) is int for v in at[n]) else None
    r, w = at["running"][0], at["waiting"][0]
    if type(r) is not int or type(w) is not int:
        before = {"state": "not_judged",
                  "reason": "it did not say how many requests ran and waited before the measurement"}
    elif (r, w) == (0, 0):
        before = {"state": "none"}
    else:
        before = {"state": "found", "detail": f"{r} requests ran and {w} waited before the measurement"}
    p, g = grew("prompt-tokens"), grew("generation-tokens")
    sent = [a for a in b.attempts if not a.warmup and a.endpoint == endpoint and "send" in a.at]
    counts = [(a.prompt_tokens(), a.completion_tokens()) for a in sent]
    silent = sum(None in c for c in counts)
    moved = f"its counters moved by {p} prompt and {g} generated tokens, "
    if p is None or g is None:
        during = {"state": "not_judged", "reason": "it did not count tokens before and after the measurement"}
    elif silent:
        during = {"state": "not_judged", "reason": f"{silent} attempts were sent and report no token counts"}
    else:
        ours = sum(c[0] for c in counts), sum(c[1] for c in counts)
        if (p, g) == ours:
            during = {"state": "none"}
        elif p > ours[0] or g > ours[1]:
            during = {"state": "found", "detail": moved + f"our own answers report {ours[0]} and {ours[1]}"}
        else:
            during = {"state": "not_judged",
                      "reason": moved + f"less than the {ours[0]} and {ours[1]} that our own answers report"}
    return {"endpoint": endpoint, "facts": facts, "foreign_before": before, "foreign_during": during}


def cached_growth(servers):
    """Growth of the servers' cached-token counters, when each of them counts."""
    values = [next((x["before"], x["after"]) for x in s["facts"] if x["name"] == "cached-tokens") for s in servers]
    return sum(b - a for a, b in values) if values and all(type(v) is int for x in values for v in x) else None


# --- 10 The record -----------------------------------------------------------

def status(events, declared):
    first = lambda kind: next((e for e in events if e["e"] == kind), None)
    if e := first("refusal"):
        return {"status": "refused", "cause": e["cause"], "detail": e["detail"]}
    if e := first("signal"):
        return {"status": "aborted", "cause": e["name"]}
    if e := first("failure"):
        return {"status": "failed", **{k: e[k] for k in ("state", "cause", "detail")}}
    states = [e["state"] for e in events if e["e"] == "state"]
    failed = lambda cause, detail: {"status": "failed", "state": states[-1] if states else "declare",
                                    "cause": cause, "detail": detail}
    if states != STATES:
        return failed("states-incomplete", "the run did not go through every state in order")
    lost = sum(transport_of(a) == "not_attempted" for a in declared)
    if lost:
        return failed("cases-not-attempted", f"{lost} of {len(declared)} declared attempts were never sent")
    unread = sum(bool(a) and "end" not in a.at for a in declared)
    if unread:
        return failed("attempts-without-end", f"{unread} attempts were never read to their end")
    died = next((e for e in events if e["e"] == "rank_exit" and not e["expected"]), None)
    if died:
        return failed("rank-died", f"the engine of {died['replica']} ended by itself")
    gone = {e["replica"] for e in events if e["e"] == "rank_exit"}
    left = next((e for e in events if e["e"] == "rank_up" and e["replica"] not in gone), None)
    if left:
        return failed("rank-did-not-end", f"nothing says that the engine of {left['replica']} ended")
    return {"status": "completed"}


def transport_of(attempt):
    return attempt.transport() if attempt else "not_attempted"


def lived(b, replica):
    engine = b.engines.get(replica)
    if not engine:
        return False
    ours = lambda e: e["replica"] == replica and (e["pid"], e["start_ticks"]) == (engine["pid"], engine["start_ticks"])
    seq = lambda kind, want: [e["seq"] for e in b.events if e["e"] == kind and want(e)]
    up = seq("rank_up", lambda e: ours(e) and e["listen"] == engine["listen"])
    alive = seq("rank_alive", ours)
    exits = seq("rank_exit", lambda e: e["replica"] == replica)
    ends = seq("end", lambda e: True)
    t = {e["seq"]: e["t"] for e in b.events}
    return (len(up) == 1 and bool(alive) and up[0] < alive[0] and max(ends, default=0) < alive[0]
            and (not exits or alive[0] < exits[0] and t[alive[0]] <= t[exits[0]]))


def rank_fault(b, replica):
    engine_plan = b.plan["engine"]
    for c in b.plan["checkpoints"]:
        report = b.reports.get((replica["name"], c["role"]))
        if integrity(b.manifests[c["role"]], report) != "verified":
            return "weights-not-verified"
        after = after_state(report)
        if after != "unchanged":
            return "weights-changed" if after == "changed" else "weights-not-rechecked"
    node = b.nodes.get(replica["node"])
    boots = [node and (node[k] or {}).get("boot_id") for k in ("before", "after")]
    if boots[0] is None or boots[0] != boots[1]:
        return "machine-not-rechecked" if None in boots else "machine-rebooted"
    pin, seen = engine_plan["executable"], b.image["observed"].get(replica["name"])
    if "sha256" not in pin:
        return "executable-unpinned"
    if seen != pin["sha256"]:
        return "executable-differs" if seen else "executable-not-observed"
    engine = b.engines.get(replica["name"])
    fill = {"{model}": replica["paths"].get("target", ""), "{port}": "0", "{replica}": replica["name"]}
    argv = engine_plan["argv"]
    for slot, text in fill.items():
        argv = [a.replace(slot, text) for a in argv]
    if not engine or engine["argv"] != argv or engine["env"] != engine_plan["env"]:
        return "process-not-as-planned"
    return None if lived(b, replica["name"]) else "rank-did-not-live"


def attribution(b, attempt, faults, taints):
    because = None
    endpoint = attempt and next((e for e in b.plan["endpoints"] if e["name"] == attempt.endpoint), None)
    if transport_of(attempt) == "not_attempted":
        because = "not-attempted"
    elif "send" not in attempt.at:
        because = "not-sent"
    elif not endpoint:
        because = "endpoint-not-in-plan"
    else:
        because = next((faults[r] for r in endpoint["replicas"] if faults[r]), None)
        if not because and attempt.peer not in b.listening(endpoint["name"]):
            because = "peer-not-the-endpoint"
        if not because and any(not t["reqs"] or attempt.req in t["reqs"] for t in taints):
            because = "tainted"
    return {"attribution": "unverified", "because": because} if because else {"attribution": "verified"}


def case_record(key, attempt, grade, attributed, unfixed=False):
    a, flags = attempt, list(grade["flags"]) + ["fixed-output-missed"] * unfixed
    transport = transport_of(a)
    if a and transport == "completed" and "done" not in a.at:
        flags.append("no-done")
    if a and a.attempt > 0:
        flags.append("retried")
    if a:
        flags += ["odd-" + o.replace("_", "-") for o in ODDITIES if o in a.odd]
    return {"case": key[0], "rep": key[1], "endpoint": a and a.endpoint, "transport": transport,
            **{k: v for k, v in grade.items() if k in ("grade", "check", "reason")}, **attributed,
            "duration_ns": a and a.since_send(a.at.get("end")),
            "first_generated_ns": a and a.since_send(a.first_generated),
            "first_content_ns": a and a.since_send(a.first_content),
            "prompt_tokens": a and a.prompt_tokens(), "completion_tokens": a and a.completion_tokens(),
            "finish_reason": a and a.finish, "flags": flags}


def cache(plan, declared, attempts, servers):
    claim, limit = plan["cache"]["claim"], plan["cache"]["max_cached_tokens"]
    refused = lambda why: {"claim": claim, "proof": "refused", "reason": why}
    if claim == "none":
        return {"claim": claim, "proof": "not_claimed"}
    cached = [a.most["cached"] for a in declared if a and a.first_generated is not None]
    if not cached:
        return refused("no attempt was answered")
    if silent := cached.count(None):
        return refused(f"{silent} answers came without a cached-token report")
    most = max(a.most["cached"] or 0 for a in attempts if not a.warmup)
    if most > limit:
        return refused(f"{most} cached tokens were reported, over the limit of {limit}")
    grew = cached_growth(servers)
    if grew is not None and grew > limit * len(cached):
        return refused(f"the servers' own counters moved by {grew} cached tokens, over the limit of {limit} for each of "
                       f"{len(cached)} answers")
    return {"claim": claim, "proof": "proven", "n": len(cached), "max_cached_tokens": most}


def finished(epoch, ns):
    whole, part = re.fullmatch(r"([^.Z]+)(?:\.(\d+))?Z", epoch).groups()
    ns += int((part or "0").ljust(9, "0"))
    at = datetime.fromisoformat(whole).replace(tzinfo=timezone.utc) + timedelta(seconds=ns // 10**9)
    part = f"{ns % 10**9:09}".rstrip("0")
    return at.strftime("%Y-%m-%dT%H:%M:%S") + (f".{part}" if part else "") + "Z"


def common(engines, read):
    """A fact that all serving processes report alike."""
    def safe(e):
        try:
            return read(e["before"])
        except (KeyError, IndexError, TypeError):
            return None
    values = [safe(e) for e in engines.values()]
    return values[0] if values and all(v == values[0] for v in values) else None


def load(plan):
    stages = ",".join(f" {s['arrivals']}" + (f" seed {s['seed']}" if "seed" in s else "") + f" {s['millihertz']}/1000s"
                      for s in plan.get("stages", []))
    retry = plan.get("retry")
    return plan["mode"] + stages + (f"; {retry['attempts']} attempts on {','.join(retry['on'])}" if retry else "")


def lagging(record):
    """Medians and mean times that the client's lag is more than 1 % of, as they are reported."""
    lag = record["client_lag"]
    if not lag:
        return []
    times = [m for m in record["metrics"] if m["unit"] == "ms" and m["value"]
             and m["estimator"].startswith(("median", "arithmetic mean"))]
    of = lambda m: "".join(f" @ {k} {m[k]}" for k in ("stage", "batch") if k in m)
    return [m["id"] + of(m) for m in times if lag["p99_ns"] * 100 > Fraction(m["value"]) * 10**6]


def conditions(plan, nodes):
    hardware = "; ".join(
        f"{n['before']['arch']} {'?' if n['before']['cpu_model'] is None else n['before']['cpu_model']}"
        f" x{n['before']['cpus']} gpus=[{','.join(n['before']['gpus'])}]" for _, n in sorted(nodes.items()))
    r = plan["requests"]
    values = {"suite": plan["suite"]["digest"], "dataset": plan["suite"]["dataset"], "scorer": plan["suite"]["scorer"],
              "hardware": hardware, "cache": plan["cache"]["claim"], "concurrency": str(plan["load"]["concurrency"]),
              "endpoints": str(len(plan["endpoints"])), "temperature": r["temperature"], "seed": str(r["seed"]),
              "max_tokens": str(r["max_tokens"]), "extra": canonical(r["extra"]).decode(),
              "reasoning_effort": r.get("reasoning_effort", ""), "token_counts": "server", "load": load(plan["load"])}
    fields = [x.encode() for k in sorted(values) for x in (k, values[k])]
    return {"values": values, "digest": enc("conditions/v1", *fields).hex()}


def limitations(r, b, declared, grades):
    out = []
    add = lambda code, when=True, **params: out.append({"code": code, "params": params}) if when else None
    n_of = lambda code, n, **more: add(code, n > 0, n=str(n), **more)
    total = str(r["transport"]["declared"])
    for code in ("transport-is-not-correctness", "arrival-is-not-usefulness", "chunks-are-not-tokens"):
        add(code)
    add("small-sample", len(declared) < 20, n=total)
    add("one-repetition", r["requests"]["repetitions"] == 1)
    add("no-comparison")
    add("overlap-is-client-side")
    i = r["input"]
    show = lambda n: "?" if n is None else str(n)
    add("length-is-a-target", i["length_target_tokens"] is not None, target=str(i["length_target_tokens"]),
        min=show(i["prompt_tokens_min"]), max=show(i["prompt_tokens_max"]))
    missed = lengths.missed(i.get("lengths", []))
    add("length-target-missed", missed is not None, **(missed or {}))
    fixed = r["requests"].get("fixed_output", {})
    add("fixed-output-refused", fixed.get("proof") == "refused", reason=fixed.get("reason"))
    there = [a for a in declared if a]
    n_of("reasoning-not-counted-apart", sum(a.reasoning_bytes() > 0 and a.reasoning_tokens() is None for a in there))
    n_of("token-counts-missing", sum(a.transport() == "completed" and a.completion_tokens() is None for a in there))
    add("no-continuous-usage", any(m["id"] == "time-per-output-token/v1" and m["value"] is None for m in r["metrics"]))
    n_of("think-tags-left-out", sum("think-tags" in g["flags"] for g in grades))
    n_of("attempts-repeated", sum(a.attempt > 0 and "send" in a.at for a in b.attempts))
    ids = lagging(r)
    p99 = r["client_lag"]["p99_ns"] if ids else 0
    add("client-lag", bool(ids), p99=f"{p99 // 10**6}.{p99 % 10**6:06}", metrics=", ".join(ids))
    proof = r["cache"]["proof"]
    if proof == "refused":
        add("cold-cache-not-shown", reason=r["cache"]["reason"])
    add("cache-not-claimed", proof == "not_claimed")
    unknown = [s["endpoint"] for s in r.get("servers", [])
               if "not_judged" in (s["foreign_before"]["state"], s["foreign_during"]["state"])]
    add("foreign-traffic-not-judged", bool(unknown), endpoints=", ".join(unknown))
    n_of("warm-engine", sum(a.warmup and "send" in a.at for a in b.attempts))
    machines, replicas = r["hardware"]["machines"], r["integrity"]["replicas"]
    add("machines-fewer-than-replicas", machines < replicas, machines=str(machines), replicas=str(replicas))
    add("reference-engine", r["runtime"]["engine"] == "reference")
    add("no-accelerator", not any(n["gpus"] for n in r["hardware"]["nodes"]))
    if "unpinned" in r["runtime"]["image"]:
        add("executable-unpinned", reason=r["runtime"]["image"]["unpinned"]["reason"])
    for c in r["model"]["checkpoints"]:
        add("revision-asserted", c["revision"] is not None, role=c["role"], revision=c["revision"])
    add("operator-is-the-witness")
    add("commitment-not-anchored")
    add("key-made-by-run", r["provenance"]["key_origin"] == "this_run")
    n_of("attribution-incomplete", r["attribution"]["unverified"], declared=total)
    n_of("attempts-lost", len(declared) - r["transport"]["completed"], declared=total)
    n_of("grades-missing", r["grades"]["ungraded"], declared=total)
    causes = [t["cause"] for t in r["run"]["taints"]]
    add("run-tainted", bool(causes), causes=", ".join(causes))
    add("run-not-completed", r["run"]["status"] != "completed", status=r["run"]["status"])
    return out


def derive(b, stated):
    """The record that follows from bundle `b`; `stated` is its provenance as signed."""
    plan, suite = b.plan, b.suite
    latest = {(a.case, a.rep): a for a in b.attempts if not a.warmup}
    keys = [(case, rep) for rep in range(plan["load"]["repetitions"]) for case in plan["suite"]["case_ids"]]
    declared = [latest.get(k) for k in keys]
    lines = {(g["case"], g["rep"]): g for g in b.grades}
    none = {"grade": "ungraded", "reason": "no grade line", "flags": []}
    grades = [lines.get(k, {"case": k[0], "rep": k[1], **none}) for k in keys]
    taints = [{k: e[k] for k in ("cause", "detail", "reqs")} for e in b.events if e["e"] == "taint"]
    servers = [server(b, name, documents) for name, documents in sorted(b.servers.items())]
    taints += [{"cause": "foreign-traffic-" + when, "detail": f"{s['endpoint']}: {s['foreign_' + when]['detail']}", "reqs": []}
               for s in servers for when in ("before", "during") if s["foreign_" + when]["state"] == "found"]
    faults = {r["name"]: rank_fault(b, r) for r in plan["replicas"]}
    fixed, unfixed = lengths.fixed_output(plan, declared)
    cases = [case_record(k, a, g, attribution(b, a, faults, taints), u)
             for k, a, g, u in zip(keys, declared, grades, unfixed)]
    cells = {c["case"]: {k: v for k, v in c.items() if k != "case"} for c in suite.get("cell", [])}
    for c in cases:
        if c["case"] in cells:
            c["cell"] = cells[c["case"]]
    there = [a for a in declared if a]
    prompts = [n for a in there if (n := a.prompt_tokens()) is not None]
    pin, req = plan["engine"]["executable"], plan["requests"]
    state = {(r["name"], c["role"]): integrity(b.manifests[c["role"]], b.reports.get((r["name"], c["role"])))
             for r in plan["replicas"] for c in plan["checkpoints"]}
    roles = [c["role"] for c in plan["checkpoints"]]
    verified = [r["name"] for r in plan["replicas"] if all(state[r["name"], role] == "verified" for role in roles)]
    unchanged = [n for n in verified if all(after_state(b.reports.get((n, role))) == "unchanged" for role in roles)]

    def checkpoint(c):
        files = b.manifests[c["role"]]["files"]
        copies = [{"replica": r["name"], "node": r["node"], "integrity": {"state": state[r["name"], c["role"]]},
                   "after": after_state(report := b.reports.get((r["name"], c["role"]))),
                   "observed_root": report and report.get("observed_root")} for r in plan["replicas"]]
        return {"role": c["role"], "name": c["name"], "manifest_root": c["manifest_root"], "files": len(files),
                "bytes": sum(f["size"] for f in files), "revision": c.get("revision"), "replicas": copies}

    declare = next(e for e in b.events if e["e"] == "declare")
    count = lambda key, value: sum(c[key] == value for c in cases)
    env = [x.encode() for k, v in sorted(plan["engine"]["env"].items()) for x in (k, v)]
    out = {
        "run": {"id": b.header["run_id"], "nonce_hash": b.header["nonce_hash"], "plan_digest": b.digest("plan.json"),
                **status(b.events, declared), "taints": taints, "started": b.header["epoch"],
                "finished": finished(b.header["epoch"], b.events[-1]["t"]), "suite": suite["name"], "kind": suite["kind"]},
        "model": {"checkpoints": [checkpoint(c) for c in plan["checkpoints"]]},
        "runtime": {"engine": plan["engine"]["recipe"], "image_kind": b.image["kind"], "image": pin,
                    "version": common(b.engines, lambda d: d["/version"]["version"]),
                    "image_observed_equal": sum(d == pin.get("sha256") for d in b.image["observed"].values()),
                    "ranks": len(b.engines), "env_digest": enc("env/v1", *env).hex(),
                    "argv_digest": enc("argv/v1", *(a.encode() for a in plan["engine"]["argv"])).hex(),
                    "layout": " ".join(f"{e['name']}={'+'.join(e['replicas'])}" for e in plan["endpoints"]),
                    "context_limit_tokens": common(b.engines, lambda d: d["/v1/models"]["data"][0]["max_model_len"])},
        "hardware": {"machines": len({n["before"]["boot_id"] or alias for alias, n in b.nodes.items()}),
                     "nodes": [{"node": alias, **{k: n["before"][k] for k in (
                         "arch", "cpu_model", "cpus", "mem_total", "gpus", "os", "kernel")}}
                               for alias, n in sorted(b.nodes.items())]},
        "requests": {"temperature": req["temperature"], "seed": req["seed"], "max_tokens": req["max_tokens"],
                     "reasoning_effort": req.get("reasoning_effort"), "streaming": True,
                     "reasoning_observed": sum(a.reasoning_bytes() > 0 for a in there),
                     "concurrency": plan["load"]["concurrency"], "repetitions": plan["load"]["repetitions"],
                     "endpoints": len(plan["endpoints"])},
        "input": {"dataset": plan["suite"]["dataset"], "cases": len(plan["suite"]["case_ids"]),
                  "length_target_tokens": suite.get("length_target_tokens"), "prompt_tokens_n": len(prompts),
                  "prompt_tokens_min": min(prompts, default=None), "prompt_tokens_max": max(prompts, default=None),
                  "preparation": "frozen documents; a unique prefix per case, repetition and run"},
        "cache": cache(plan, declared, b.attempts, servers),
        "transport": {"declared": len(cases), **{t: count("transport", t) for t in TRANSPORTS}},
        "grades": {"declared": len(cases), **{g: count("grade", g) for g in ("pass", "fail", "ungraded")}},
        "attribution": {"declared": len(cases), **{v: count("attribution", v) for v in ("verified", "unverified")},
                        "verified_passes": sum(c["attribution"] == "verified" and c["grade"] == "pass" for c in cases),
                        "witness": "operator"},
        "integrity": {"replicas": len(plan["replicas"]), "verified": len(verified), "unchanged_after": len(unchanged),
                      "distinct": min((distinct([r for (_, role), r in sorted(b.reports.items()) if role == want])
                                       for want in roles), default=0)},
        "client_lag": next(({"n": e["n"], "every_ns": e["every"], "p50_ns": e["p50"], "p99_ns": e["p99"],
                             "max_ns": e["max"]} for e in b.events if e["e"] == "client_lag"), None),
        "metrics": figures(plan, suite, declared, [a for a in b.attempts if not a.warmup], grades),
        "cases": cases,
        "conditions": conditions(plan, b.nodes),
        "provenance": {"suite": plan["suite"]["digest"], "evaluator": plan["suite"]["scorer"],
                       "dataset": plan["suite"]["dataset"], "dialect": "runseal-cel/1", "rules_version": "1",
                       "key_origin": "this_run" if declare["key_made_by_run"] else "existing",
                       "tool": stated["tool"], "signers": stated["signers"]},
        "withheld": {f["path"]: f["commitment"] for f in b.index["files"] if "commitment" in f},
    }
    if servers:
        out["servers"] = servers
    if suite.get("batch"):
        out["input"]["batches"] = suite["batch"]
    if reached := lengths.ranges(plan, suite, declared):
        out["input"]["lengths"] = reached
    if fixed:
        out["requests"]["fixed_output"] = fixed
    out["limitations"] = limitations(out, b, declared, grades)
    return out


def subjects(plan, index_digest):
    out = [(f"checkpoint/{c['role']}", c["manifest_root"]) for c in plan["checkpoints"]]
    if "sha256" in plan["engine"]["executable"]:
        out.append(("executable", plan["engine"]["executable"]["sha256"]))
    s = plan["suite"]
    out += [("dataset", s["dataset"]), ("suite", s["digest"]), ("scorer", s["scorer"]),
            ("evidence/index.json", index_digest)]
    return [{"name": n, "digest": {"sha256": d}} for n, d in out]

"""Length targets and fixed outputs: docs/formats.md, 5.5, 10 and 10.7."""


def targets(plan, suite):
    """The target of each case id, in their order, None where there is none."""
    cells = {c["case"]: c["length_target_tokens"] for c in suite.get("cell", [])}
    batches = [b["context_tokens"] for b in suite.get("batch", []) for _ in range(b.get("requests", b["concurrency"]))]
    last = (plan.get("input") or {}).get("length_target_tokens") or suite.get("length_target_tokens")
    ids = plan["suite"]["case_ids"]
    batches += [None] * (len(ids) - len(batches))
    return [cells.get(case) or batch or last for case, batch in zip(ids, batches)]


def ranges(plan, suite, declared):
    """input.lengths; declared has an attempt or None per declared attempt."""
    out, aims = {}, targets(plan, suite)
    for i, attempt in enumerate(declared):
        aim = aims[i % len(aims)]
        if aim is None:
            continue
        r = out.setdefault(aim, {"target_tokens": aim, "declared": 0, "counted": 0, "within": 0, "min": None, "max": None})
        r["declared"] += 1
        n = attempt and attempt.prompt_tokens()
        if n:
            r["counted"] += 1
            r["within"] += abs(n - aim) * 100 <= aim * 2
            r["min"] = n if r["min"] is None else min(r["min"], n)
            r["max"] = n if r["max"] is None else max(r["max"], n)
    return [out[aim] for aim in sorted(out)]


def missed(lengths):
    """Parameters of length-target-missed, None when nothing missed its target."""
    declared, within = (sum(r[k] for r in lengths) for k in ("declared", "within"))
    show = lambda n: "?" if n is None else str(n)
    words = [f"{r['target_tokens']}: {show(r['min'])}-{show(r['max'])}" for r in lengths if r["within"] < r["declared"]]
    return {"n": str(declared - within), "declared": str(declared), "ranges": ", ".join(words)} if words else None


def is_fixed(attempt, cap):
    """10.7 of one declared attempt."""
    return bool(attempt and attempt.transport() == "completed" and attempt.finish == "length"
                and attempt.completion_tokens() == cap == attempt.most["completion"]
                and attempt.first_generated is not None and "after_finish" not in attempt.odd)


def fixed_output(plan, declared):
    """requests.fixed_output and, per declared attempt, whether its case gets the flag."""
    caps = plan["suite"].get("fixed_output")
    if not caps:
        return None, [False] * len(declared)
    good = [is_fixed(a, caps[i % len(caps)]) for i, a in enumerate(declared)]
    flags = [bool(a and a.transport() == "completed" and not ok) for a, ok in zip(declared, good)]
    if all(good):
        return {"proof": "proven", "n": len(good)}, flags
    return {"proof": "refused", "reason": f"{good.count(False)} of {len(good)} declared attempts did not generate "
            "exactly their cap of tokens, end with the finish reason length and say nothing after it"}, flags

#!/usr/bin/env python3
"""`verify record` on a tree of many published records: wall, CPU, peak memory.

    cargo build --release --bin verify
    python3 benches/records.py [--count 10000] [--bundles 200] [--verify target/release/verify]

Makes a tree in a temporary folder: thirds of the three kinds in evidence/published with
changed names and figures, a tenth of them with one wrong figure, 100 a folder; and, apart
from it, copies of a golden bundle. Each is audited once as JSON into a file. The machine
should be quiet; the load average is printed so that a reader can tell.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import shutil
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def make(root, count):
    rng = random.Random(7)
    source = ROOT / "evidence/published"
    kinds = [json.loads((source / n).read_text()) for n in ("throughput-v3.json", "serving-pilot.json", "recipe-card.json")]
    wrong = 0
    for i in range(count):
        record = json.loads(json.dumps(kinds[i % 3]))
        bad = rng.random() < 0.1
        wrong += bad
        if i % 3 == 0:
            record["id"] = f"sweep-{i}"
            for cell in record["cells"]:
                cell["runTokensPerSecond"] = [r * rng.uniform(0.95, 1.05) for r in cell["runTokensPerSecond"]]
                a, b = cell["runTokensPerSecond"]
                cell["aggregateTokensPerSecond"] = (a + b) / 2 + (0.01 if bad else 0)
                cell["meanRequestTokensPerSecond"] = (a + b) / 2 / cell["concurrency"] * 1.02
        elif i % 3 == 1:
            record["id"] = f"pilot-{i}"
            if bad:
                record["outcomes"]["observed_passes"] = 7
        else:
            record["title"] = f"card {i}"
            if bad:
                record["default_config"] = "none"
        folder = root / f"{i // 100:04}"
        folder.mkdir(exist_ok=True)
        (folder / f"{i:06}.json").write_text(json.dumps(record))
    return wrong


def run(verify, tree, count, what):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    with tempfile.TemporaryFile() as out:
        done = subprocess.run(["/usr/bin/env", verify, "record", str(tree), "--format", "json"], stdout=out, stderr=subprocess.PIPE)
        wall = time.monotonic() - start
        size = out.tell() or os.fstat(out.fileno()).st_size
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    last = done.stderr.decode().strip().splitlines()[-1:]
    print(
        f"{what}: {count} in {wall:.2f} s wall, {cpu:.2f} s CPU, {wall / count * 1000:.2f} ms each, "
        f"peak {after.ru_maxrss / 1024:.0f} MiB, {size / 1e6:.0f} MB of reports, exit {done.returncode}"
    )
    print("  ", *last)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--count", type=int, default=10_000)
    args.add_argument("--bundles", type=int, default=200)
    args.add_argument("--verify", default=str(ROOT / "target/release/verify"))
    args = args.parse_args()
    print("load average", os.getloadavg(), "cores", os.cpu_count())
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "records").mkdir()
        wrong = make(folder / "records", args.count)
        size = sum(p.stat().st_size for p in (folder / "records").rglob("*.json"))
        print(f"{args.count} records, {size / 1e6:.0f} MB, {wrong} with a wrong figure")
        run(args.verify, folder / "records", args.count, "published records")
        if args.bundles:
            for i in range(args.bundles):
                shutil.copytree(ROOT / "tests/golden/completed", folder / "bundles" / f"{i:05}")
            run(args.verify, folder / "bundles", args.bundles, "bundles")
    print("load average", os.getloadavg())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""`verify weights` beside other tools, on the same data in one interleaved run.

    cargo build --release --bin verify
    cargo build --release --example older-kernel
    python3 -m venv PEERS && PEERS/bin/pip install model-signing==1.1.1 pyopenssl
    python3 benches/rehash.py --peers PEERS [--dir DIR] [--rounds 7]

Needs about 6 GB in DIR (default: a folder beside the binary), half of it free as
memory, and `openssl`, `sha256sum`, `fincore` (util-linux). Each round runs every
tool once on each set, so that whatever else the machine does meets all of them.
CPU seconds (user and system, from wait4) matter more than wall time on a busy
machine. A ratio is taken within a round; printed are minimum, median and maximum.
Only the set's own files are ever evicted from the page cache. With older-kernel
built, cold files are also read in the ways of kernels that lack the newer calls.
`--scale 16` makes everything 16 times smaller: a look at whether it works.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

MIB = 1 << 20
HEADER = 4096
HERE = Path(__file__).resolve().parent
# The loop that a careful program around OpenSSL has: one large reused buffer.
OPENSSL_LOOP = """
import hashlib, sys
buffer = bytearray(256 * 1024)
for name in sys.argv[1:]:
    h = hashlib.sha256()
    with open(name, "rb", buffering=0) as f:
        while n := f.readinto(buffer):
            h.update(memoryview(buffer)[:n])
    print(h.hexdigest())
"""


def header(name, size):
    """Makes a file of `size` bytes a whole safetensors file of one tensor."""
    n = size - HEADER
    text = json.dumps({name: {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}})
    return struct.pack("<Q", HEADER - 8) + text.ljust(HEADER - 8).encode()


def make(folder, sizes):
    """Random files; kept from an earlier run when sizes fit. Large ones are
    safetensors, whose headers a checker may want to see."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for i, size in enumerate(sizes):
        shard = size > 16 * HEADER
        name = f"model-{i + 1:05}-of-{len(sizes):05}.safetensors" if shard else f"{i:05}.bin"
        path = folder / name
        if not path.exists() or path.stat().st_size != size:
            with open(path, "wb") as f:
                left = size - (f.write(header(f"t{i}", size)) if shard else 0)
                while left:
                    left -= f.write(os.urandom(min(left, 8 * MIB)))
                f.flush()
                os.fsync(f.fileno())
        paths.append(path)
    return paths


def manifest(paths, out):
    """`runseal.manifest/v1`, its root computed here a second time."""
    enc = lambda b: struct.pack(">Q", len(b)) + b
    root = hashlib.sha256(enc(b"runseal-enc/v1") + enc(b"runseal-tree/v1"))
    root.update(enc(struct.pack(">Q", len(paths))))
    files = []
    for path in sorted(paths):
        with open(path, "rb") as f:
            digest = hashlib.file_digest(f, "sha256").digest()
        size = path.stat().st_size
        root.update(enc(path.name.encode()) + enc(struct.pack(">Q", size)) + enc(digest))
        files.append({"path": path.name, "size": size, "sha256": digest.hex()})
    text = {"format": "runseal.manifest/v1", "root": root.hexdigest(), "files": files}
    out.write_text(json.dumps(text, separators=(",", ":"), sort_keys=True) + "\n")
    return out


def evict(paths):
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def warm(paths):
    buffer = bytearray(MIB)
    for path in paths:
        with open(path, "rb", buffering=0) as f:
            while f.readinto(buffer):
                pass


def cached(paths):
    """Bytes of each file in the page cache."""
    argv = ["fincore", "--raw", "--bytes", "--noheadings", "--output", "RES"]
    out = subprocess.run(argv + [str(p) for p in paths], check=True, capture_output=True)
    return [int(n) for n in out.stdout.split()]


class Result:
    def __init__(self, wall, cpu, rss, read):
        self.wall, self.cpu, self.rss, self.read = wall, cpu, rss, read


def run(argv, watch=False):
    """Runs a program to its end; `watch` samples its peak memory and the bytes it
    caused to be read, which the kernel keeps per address space and process."""
    seen = {"VmHWM": 0, "read_bytes": 0}

    def sample(pid, stop):
        while not stop.wait(0.005):
            try:
                for name in ("status", "io"):
                    for line in open(f"/proc/{pid}/{name}"):
                        key, _, value = line.partition(":")
                        if key in seen:
                            seen[key] = max(seen[key], int(value.split()[0]))
            except (OSError, IndexError):
                return

    started = time.perf_counter()
    child = subprocess.Popen([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    stop = threading.Event()
    if watch:
        thread = threading.Thread(target=sample, args=(child.pid, stop))
        thread.start()
    out, err = child.stdout.read(), child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    stop.set()
    if watch:
        thread.join()
    if child.returncode != 0:
        sys.exit(f"{argv[0]} failed: {out.decode()}{err.decode()}")
    return Result(wall, usage.ru_utime + usage.ru_stime, seen["VmHWM"] * 1024, seen["read_bytes"])


class Table:
    def __init__(self):
        self.rows = {}

    def add(self, name, value):
        self.rows.setdefault(name, []).append(value)

    def median(self, name):
        return statistics.median(self.rows[name])

    def print(self, title, unit):
        print(f"\n{title}\n{'':46} {'min':>9} {'median':>9} {'max':>9}  {unit}")
        for name, values in self.rows.items():
            low, mid, high = min(values), statistics.median(values), max(values)
            print(f"{name:46} {low:9.3f} {mid:9.3f} {high:9.3f}", flush=True)


class Bench:
    def __init__(self, args):
        self.args = args
        self.dir = args.dir
        self.verify = args.verify
        self.ratios = Table()
        helper = self.verify.parent / "examples/older-kernel"
        ways = {
            "RWF_DONTCACHE": ["no-cachestat"],
            "O_DIRECT": ["no-cachestat", "no-dontcache"],
        }
        self.older = {how: [helper, *no] for how, no in ways.items() if helper.exists()}

    def sign(self, folder):
        """An OMS bundle for model_signing to verify. Made once per set."""
        if not self.args.peers:
            return None
        tool = self.args.peers / "bin/model_signing"
        key, public = self.dir / "key.pem", self.dir / "key.pub.pem"
        if not key.exists():
            curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
            run(["openssl", "genpkey", *curve, "-out", key])
            run(["openssl", "pkey", "-in", key, "-pubout", "-out", public])
        bundle = self.dir / f"{folder.name}.sig"
        run([tool, "sign", "key", folder, "--private_key", key, "--signature", bundle])
        return [tool, "verify", "key", folder, "--public_key", public, "--signature", bundle]

    def ours(self, folder, manifest, *more):
        return [self.verify, "weights", folder, "--manifest", manifest, *more]

    def warm_set(self, name, paths, rounds, targets, loop=False):
        folder = paths[0].parent
        total = sum(p.stat().st_size for p in paths)
        ours = self.ours(folder, manifest(paths, self.dir / f"{name}.json"))
        tools = {"verify weights": ours}
        tools["openssl dgst"] = ["openssl", "dgst", "-sha256", *paths]
        # Two virtual processors are often one core: whoever keeps both busy is charged
        # more CPU time per byte than whoever leaves one idle. So each also as the other.
        tools["verify weights --jobs 1"] = [*ours, "--jobs", "1"]
        if len(paths) > 1:
            names = self.dir / f"{name}.names"
            names.write_text("".join(f"{p}\n" for p in paths[0::2] + paths[1::2]))
            half = -(-len(paths) // 2)
            two = ["xargs", "-a", names, "-P2", "-s", 1_000_000, "-n", half]
            tools["openssl dgst, two at once"] = [*two, "openssl", "dgst", "-sha256"]
        tools["sha256sum"] = ["sha256sum", *paths]
        if loop:
            tools["openssl read loop"] = [sys.executable, "-c", OPENSSL_LOOP, *paths]
        if signed := self.sign(folder):
            tools["model_signing verify"] = signed
        wall, cpu, rss = Table(), Table(), 0
        warm(paths)
        for _ in range(rounds):
            results = {}
            for tool, argv in tools.items():
                r = results[tool] = run(argv, watch=argv is ours)
                wall.add(tool, total / r.wall / 1e9)
                cpu.add(tool, total / r.cpu / 1e9)
            rss = max(rss, results["verify weights"].rss)
            for tool, kind, goal in targets:
                if tool in results:
                    theirs, us = results[tool], results["verify weights"]
                    if kind == "cpu, one thread each":
                        us = results["verify weights --jobs 1"]
                    ratio = theirs.wall / us.wall if kind == "wall" else theirs.cpu / us.cpu
                    self.ratios.add(f"{name}: {kind} × {tool} (goal {goal})", ratio)
        wall.print(f"{name}, warm: {len(paths)} files, {total / MIB:.0f} MiB", "GB/s wall")
        cpu.print(f"{name}, warm", "GB per CPU second")
        print(f"peak RSS of verify weights: {rss / MIB:.1f} MiB (goal 32)")

    def cold_set(self, name, paths, rounds):
        folder = paths[0].parent
        total = sum(p.stat().st_size for p in paths)
        ours = self.ours(folder, self.dir / f"{name}.json")
        quoted = " ".join(f"'{p}'" for p in paths)
        # Read-only rates: as the kernel reads ahead, and past the page cache, each
        # with one reader and with four. The best of a round is what counts.
        readers = {}
        for how, flag in (("buffered", ""), ("direct", "iflag=direct")):
            for n in (1, 4):
                one = f"xargs -P{n} -I@ dd if=@ of=/dev/null bs=4M {flag} status=none"
                readers[f"read only, {how}, {n} at a time"] = f"printf '%s\\n' {quoted} | {one}"
        rate, spent, left, read = Table(), Table(), Table(), Table()
        for _ in range(rounds):
            warm(paths)
            hash_rate = total / run(ours).wall
            best = 0.0
            for reader, script in readers.items():
                evict(paths)
                r = run(["sh", "-c", script])
                rate.add(reader, total / r.wall / 1e9)
                best = max(best, total / r.wall)
            evict(paths)
            before = sum(cached(paths))
            r = run(ours, watch=True)
            rate.add("verify weights, cold", total / r.wall / 1e9)
            spent.add("verify weights, cold", total / r.cpu / 1e9)
            rate.add("verify weights, warm in the same round", hash_rate / 1e9)
            left.add("cold pages left (goal 16)", (sum(cached(paths)) - before) / MIB)
            read.add("bytes read from the device / size", r.read / total)
            for how, lacking in self.older.items():
                evict(paths)
                o = run([*lacking, *ours])
                rate.add(f"verify weights, cold, {how}", total / o.wall / 1e9)
                spent.add(f"verify weights, cold, {how}", total / o.cpu / 1e9)
                left.add(f"cold pages left, {how} (goal 16)", sum(cached(paths)) / MIB)
            ratio = total / r.wall / min(best, hash_rate)
            self.ratios.add(f"{name}: cold / min(read, hash) (goal 0.9)", ratio)
        rate.print(f"{name}, cold: {len(paths)} files, {total / MIB:.0f} MiB", "GB/s wall")
        spent.print(f"{name}, cold", "GB per CPU second")
        # The first file was cached by somebody else, and half of the last one. The
        # same wait without us is the control: a kernel may reclaim pages by itself.
        for _ in range(3):
            evict(paths)
            warm(paths[:1])
            with open(paths[-1], "rb", buffering=0) as f:
                f.read(paths[-1].stat().st_size // 2)
            time.sleep(1)
            for who in ("verify weights", "control"):
                before, started = cached(paths), time.monotonic()
                if who == "control":
                    time.sleep(wall)
                else:
                    run(ours)
                    wall = time.monotonic() - started
                changes = [a - b for b, a in zip(before, cached(paths))]
                left.add(f"{who}: of cached pages, gone", -sum(min(0, c) for c in changes) / MIB)
                left.add(f"{who}: beside cached pages, added", sum(max(0, c) for c in changes) / MIB)
        left.print(f"{name}, page cache", "MiB")
        read.print(f"{name}, read", "")


def machine():
    model = "unknown processor"
    features = set()
    for line in open("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        if key.strip() in ("flags", "Features"):
            features = set(value.split())
    sha = "with" if features & {"sha_ni", "sha2"} else "without"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    openssl = subprocess.run(["openssl", "version"], capture_output=True, text=True).stdout.strip()
    print(f"{time.strftime('%Y-%m-%d')}, {model}, {os.cpu_count()} cores {sha} SHA instructions,")
    print(f"{memory:.0f} GiB, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}, {openssl}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verify", type=Path, default=HERE.parent / "target/release/verify")
    parser.add_argument("--peers", type=Path, help="a venv with model-signing and pyopenssl")
    parser.add_argument("--dir", type=Path, help="where the data is made and kept")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=int, default=1, help="divide all sizes by this")
    parser.add_argument("--only", choices=["shards", "huge", "small"])
    args = parser.parse_args()
    args.verify = args.verify.resolve()
    args.dir = args.dir or args.verify.parent / "bench-rehash"
    args.peers = args.peers and args.peers.resolve()
    for tool in ("openssl", "sha256sum", "fincore", "dd", "xargs"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is needed")

    machine()
    bench = Bench(args)
    wants = lambda name: args.only in (None, name)
    if wants("shards"):
        paths = make(args.dir / "shards", [256 * MIB // args.scale - 4096 * i for i in range(12)])
        goals = [
            ("openssl dgst", "cpu", 1.6),
            ("openssl dgst", "cpu, one thread each", 1.6),
            ("openssl dgst, two at once", "cpu", 1.6),
            ("model_signing verify", "wall", 2.5),
            ("sha256sum", "wall", 8),
        ]
        bench.warm_set("shards", paths, args.rounds, goals)
        bench.cold_set("shards", paths, args.rounds)
    if wants("huge"):
        paths = make(args.dir / "huge", [2048 * MIB // args.scale])
        goals = [("openssl read loop", "cpu", 0.95), ("openssl read loop", "wall", 0.95)]
        bench.warm_set("huge", paths, args.rounds, goals, loop=True)
        bench.cold_set("huge", paths, args.rounds)
    if wants("small"):
        paths = make(args.dir / "small", [1024 + (i * 7919) % 15360 for i in range(5000 // args.scale)])
        goals = [
            ("model_signing verify", "wall", 5),
            ("openssl dgst", "cpu", 0.9),
            ("openssl dgst", "cpu, one thread each", 0.9),
            ("openssl dgst, two at once", "cpu", 0.9),
            ("openssl dgst", "wall", 0.9),
        ]
        bench.warm_set("small", paths, args.rounds, goals)
    bench.ratios.print("Ratios: above 1 is better than the other", "")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Other load clients and ours on one loopback server, in turn, on one machine.

    cargo build --release -p runseal-runner --example client_bench
    python3 runner/examples/client_bench/peers.py [--rounds 3] [--streams 16] [--requests 2000] [--per-write 1]

A peer takes part when its program is found on PATH or under $PEERS/<peer>/bin (a virtual environment each):

    for p in vllm guidellm aiperf; do python3 -m venv $PEERS/$p && $PEERS/$p/bin/pip install $p; done

Every client sends the same number of requests at the same concurrency to a server of its own that answers each with 256
events. What is measured is the whole process tree of the client, by the system: processor time and largest resident
size. A second, short run of each peer is taken off, so that `steady` has no start-up in it. The middle of the rounds is
printed; rounds alternate over all clients, so that a neighbour's burst hits all of them.

The tokeniser that two peers insist on is made here: one token per word. AIPerf is told to use its own;
its offline start was not made to work yet.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CHUNKS = 256
ROOT = Path(__file__).resolve().parents[3]
BENCH = Path(os.environ.get("CLIENT_BENCH", ROOT / "target/release/examples/client_bench"))


def tokenizer(folder):
    """A word-level tokeniser in the form that `transformers` reads."""
    vocab = {"[UNK]": 0, "[EOS]": 1, **{f"w{i}": i + 2 for i in range(1000)}}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    special = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for t, i in (("[UNK]", 0), ("[EOS]", 1))]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": model}))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "eos_token": "[EOS]",
        "model_max_length": 100000, "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"}))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))


def commands(url, n, streams, tok):
    """How each peer sends n requests, so many at a time."""
    return {
        "vllm": ["vllm", "bench", "serve", "--backend", "openai-chat", "--base-url", url,
                 "--endpoint", "/v1/chat/completions", "--model", "loopback", "--tokenizer", tok,
                 "--dataset-name", "random", "--random-input-len", "32", "--random-output-len", str(CHUNKS),
                 "--num-prompts", str(n), "--max-concurrency", str(streams), "--disable-tqdm"],
        "guidellm": ["guidellm", "run", "--disable-console",
                     "--backend", f"kind=openai_http,target={url},model=loopback,request_format=/v1/chat/completions",
                     "--profile", f"kind=concurrent,streams={streams}",
                     "--constraint", f"kind=max_requests,count={n}",
                     "--tokenizer", f"kind=hf_auto,model={tok}",
                     "--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={CHUNKS}",
                     "--output", f"kind=json,path={tok}/guidellm.json"],
        "aiperf": ["aiperf", "profile", "--url", url, "--model", "loopback", "--tokenizer", "builtin",
                   "--endpoint-type", "chat", "--streaming", "--concurrency", str(streams),
                   "--request-count", str(n), "--synthetic-input-tokens-mean", "32", "--ui", "none",
                   "--artifact-dir", tok],
    }


def program(name):
    own = Path(os.environ.get("PEERS", "/nonexistent")) / name / "bin" / name
    return str(own) if own.exists() else shutil.which(name)


def children_peak(pid, stop, out):
    """Largest resident size of a process tree, sampled."""
    page = resource.getpagesize()
    while not stop.wait(0.2):
        total, todo = 0, [pid]
        while todo:
            p = todo.pop()
            try:
                total += int(Path(f"/proc/{p}/statm").read_text().split()[1]) * page
                for task in Path(f"/proc/{p}/task").iterdir():
                    todo += map(int, (task / "children").read_text().split())
            except (OSError, ValueError, IndexError):
                continue
        out[0] = max(out[0], total)


def measured(argv, cwd, limit):
    """Runs a client; gives processor seconds, wall seconds, peak MiB, or None when it failed."""
    peak, stop = [0], threading.Event()
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with open(Path(cwd) / "client.log", "ab") as log:
        child = subprocess.Popen(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        watch = threading.Thread(target=children_peak, args=(child.pid, stop, peak))
        watch.start()
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        stop.set()
        watch.join()
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (cpu, wall, peak[0] / 2**20) if code == 0 else None


def served(args, run):
    """Runs `run(url)` against a server of its own; gives what it gave and how many requests were answered."""
    script = [str(CHUNKS), str(args.per_write), "0", "1"]
    server = subprocess.Popen([BENCH, "server", *script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        port = server.stdout.readline().strip()
        got = run(f"http://127.0.0.1:{port}")
        server.stdin.close()
        answered = len(server.stdout.read().splitlines())
    finally:
        # Ours, by handle. Its usage must not be counted as a client's: it is waited for before the next one starts.
        server.stdin.close()
        server.wait()
    return got, answered


def peer(name, args, n):
    with tempfile.TemporaryDirectory() as dir:
        folder = Path(dir) / "tokenizer"
        folder.mkdir()
        tokenizer(folder)

        def run(url):
            argv = commands(url, n, args.streams, str(folder))[name]
            return measured([program(name), *argv[1:]], dir, args.limit)

        got, answered = served(args, run)
        if got is None:
            keep = Path(tempfile.gettempdir()) / f"peer-{name}.log"
            shutil.copy(Path(dir) / "client.log", keep)
            print(f"{name}: failed, see {keep}", file=sys.stderr)
            return None
        return (*got, answered)


def ours(kind, args):
    numbers = [args.streams, args.requests, CHUNKS, args.per_write, 0, 1, 512, 0]
    out = subprocess.run([BENCH, "one", kind, *map(str, numbers)], capture_output=True, text=True, check=True)
    return out.stdout.strip()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--streams", type=int, default=16)
    p.add_argument("--requests", type=int, default=2000)
    p.add_argument("--few", type=int, default=64, help="requests of the short run that is taken off")
    p.add_argument("--per-write", type=int, default=1)
    p.add_argument("--limit", type=float, default=900, help="seconds for one run of a client")
    p.add_argument("--only", nargs="*", default=["vllm", "guidellm", "aiperf"])
    args = p.parse_args()
    if not BENCH.exists():
        p.error("build it first: cargo build --release -p runseal-runner --example client_bench")
    there = [name for name in args.only if program(name)]
    for name in set(args.only) - set(there):
        print(f"{name}: not found, left out", file=sys.stderr)
    rounds = {name: [] for name in there}
    for i in range(args.rounds):
        for kind in ("floor", "client"):
            print(f"round {i + 1}: {ours(kind, args)}", flush=True)
        for name in there:
            short, full = peer(name, args, args.few), peer(name, args, args.requests)
            if short and full:
                rounds[name].append((full, short))
    print(f"\n{args.streams} streams, {args.per_write} event(s) per write, middle of {args.rounds} rounds")
    for name, got in rounds.items():
        if not got:
            print(f"{name:10} no round ended well")
            continue
        def middle(f):
            return statistics.median(f(*r) for r in got)
        steady = middle(lambda full, short: (full[0] - short[0]) / ((full[3] - short[3]) * CHUNKS) * 1e6)
        whole = middle(lambda full, _: full[0] / (full[3] * CHUNKS) * 1e6)
        if steady <= 0:
            print(f"{name:10} start-up hides {args.requests} requests: send more")
            continue
        peak = middle(lambda full, _: full[2])
        wall = middle(lambda full, short: full[1] - short[1])
        rate = middle(lambda full, short: (full[3] - short[3]) * CHUNKS) / wall if wall > 1 else float("nan")
        print(f"{name:10} {rate:9.0f} events/s  steady {steady:7.2f} CPU-s/M  whole process {whole:7.2f} CPU-s/M  "
              f"peak {peak:5.0f} MiB  {got[0][0][3]} of {args.requests} requests answered")


if __name__ == "__main__":
    main()

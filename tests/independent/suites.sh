#!/bin/sh
# Makes a bundle of every shipped suite with the real program on the reference engine, and
# prints their paths, one a line.
# Usage: tests/independent/suites.sh ATTEST FOLDER
# FOLDER must not be there; it is made, and is the caller's to remove.
set -eu
[ $# -eq 2 ] || { echo "usage: $0 ATTEST FOLDER" >&2; exit 2; }
attest=$(realpath "$1")
mkdir "$2"
work=$(realpath "$2")

# plan SUITE CONCURRENCY REPETITIONS MAX_TOKENS EXTRA
plan() {
  cat <<END
format = "runseal.attest/v1"
suite = "$1"
[[checkpoint]]
role = "target"
name = "runseal-reference"
manifest = "builtin:reference"
[[replica]]
name = "r0"
node = "n0"
target = "replicas/r0"
[[replica]]
name = "r1"
node = "n0"
target = "replicas/r1"
[engine]
recipe = "reference"
[requests]
model = "runseal-reference"
temperature = "0"
seed = 1
max_tokens = $4
continuous_usage = true
$5
[load]
concurrency = $2
repetitions = $3
[timeouts_ms]
connect = 5000
first_token = 60000
stall = 60000
request = 120000
ready = 20000
[cache]
claim = "cold"
max_cached_tokens = 0
END
}

run() {
  plan "$@" >"$work/$1.toml"
  (cd "$work" && "$attest" run "$1.toml" --out "$1") >"$work/$1.out" 2>&1 || { cat "$work/$1.out" >&2; exit 1; }
  echo "$work/$1"/*
}

run serving-performance-v1 2 1 192 ''
run needle-recall-v1 2 2 64 ''
run context-sweep-v1 2 2 32 'extra = { ignore_eos = true }'
run recipe-card-v1 8 2 64 ''

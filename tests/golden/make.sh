#!/usr/bin/env bash
# Makes the golden bundles again, each from a real run of the real program:
#   tests/golden/make.sh [path of attest]
# before-servers is older than the documents of servers and stays as it is.
# Afterwards renew the snapshots: RUNSEAL_UPDATE=1 cargo test -p runseal --test audit_golden
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
attest=$(realpath "${1:-$here/../../target/debug/attest}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Git keeps no mode 0600, and the program refuses a secret key that others can read.
install -m 600 "$here/keys/test-only.key.pem" "$work/test-only.key.pem"

# plan FOLDER ENGINE-ARGS WITHHOLDABLE: an empty folder with a plan of two replicas.
plan() {
  mkdir "$work/$1"
  cp -r "$here/suite" "$work/$1/suite"
  cat >"$work/$1/attest.toml" <<EOF
format = "runseal.attest/v1"
suite = "suite"
withholdable = $3
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
args = $2
[requests]
model = "runseal-reference"
temperature = "0"
seed = 20261201
max_tokens = 64
${usage:-}
[load]
concurrency = ${load:-1
repetitions = 1}
[timeouts_ms]
connect = 5000
first_token = 20000
stall = 20000
request = 60000
ready = 20000
[cache]
claim = "cold"
max_cached_tokens = 0
EOF
}

# run FOLDER EXIT: a run that must end with this exit code.
run() {
  local code=0
  (cd "$work/$1" && exec "$attest" run --key "$work/test-only.key.pem" --out bundles) \
    >"$work/$1/out" 2>&1 || code=$?
  if [ "$code" != "$2" ]; then
    cat "$work/$1/out" >&2
    echo "$1: exit code $code instead of $2" >&2
    exit 1
  fi
}

# measuring FOLDER: waits until the run in it measures; sets $log.
measuring() {
  local i
  for i in $(seq 600); do
    log=$(echo "$work/$1"/bundles/*/events.jsonl)
    if grep -qs '"state":"measure"' "$log"; then return; fi
    sleep 0.05
  done
  echo "$1 did not get as far as to measure" >&2
  exit 1
}

# pid REPLICA: the process that serves it, by the log.
pid() {
  sed -n 's/.*"e":"rank_up","replica":"'"$1"'","pid":\([0-9]*\),.*/\1/p' "$log"
}

keep() {
  rm -rf "${here:?}/$2"
  cp -r "$work/$1"/bundles/* "$here/$2"
}

slow='["--token-delay-ms", "20"]'

plan completed '[]' '[]'
run completed 0
keep completed completed

plan refused '[]' '[]'
run refused 0 # makes the replicas
rm -r "$work/refused/bundles"
python3 - "$work/refused/replicas/r1/model-00002-of-00004.safetensors" <<'EOF'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(5000)
    byte = f.read(1)[0]
    f.seek(5000)
    f.write(bytes([byte ^ 1]))
EOF
run refused 1
keep refused refused

plan failed "$slow" '[]'
run failed 1 &
measuring failed
# In the middle of the first answer from r1.
until grep -q '"e":"delta","req":3,' "$log"; do sleep 0.05; done
kill -9 "$(pid r1)"
wait $!
keep failed failed

plan tainted "$slow" '[]'
run tainted 1 &
measuring tainted
touch "$work/tainted/replicas/r0/config.json"
wait $!
keep tainted tainted

# Somebody else asks the same server for an answer while it is measured.
plan foreign "$slow" '[]'
run foreign 1 &
measuring foreign
curl -sf -o "$work/foreign/theirs" -H 'content-type: application/json' \
  -d '{"messages":[{"role":"user","content":"Hello"}],"max_tokens":4,"min_tokens":4}' \
  "http://$(sed -n 's/.*"e":"rank_up","replica":"r0",.*"listen":"\([^"]*\)".*/\1/p' "$log")/v1/chat/completions"
wait $!
keep foreign foreign

# Killed outright, its own processes with it, and closed afterwards.
plan killed "$slow" '[]'
run killed 137 &
measuring killed
until grep -q '"e":"delta","req":2,' "$log"; do sleep 0.05; done
kill -9 "$(sed -n 's/^PPid:\t//p' "/proc/$(pid r0)/status")"
wait $!
(cd "$work/killed" && "$attest" close bundles/* --key "$work/test-only.key.pem") >/dev/null || true
keep killed killed

# Two rates one after the other, token counts with every chunk, retries declared.
load='8
repetitions = 2
mode = "open"
retry = { attempts = 2, on = ["http_error", "connect_error"] }
[[load.stage]]
arrivals = "constant"
millihertz = 20000
[[load.stage]]
arrivals = "poisson"
millihertz = 10000
seed = 7'
usage='continuous_usage = true'
plan open '[]' '[]'
unset load usage
run open 0
keep open open

plan withheld '[]' '["suite/cases.jsonl", "responses.jsonl"]'
run withheld 0
keep withheld withheld
rm -rf "$here/withheld-published"
cp -r "$here/withheld" "$here/withheld-published"
(cd "$here/withheld-published" && rm -r private responses.jsonl suite/cases.jsonl)

du -sh "$here"/*/

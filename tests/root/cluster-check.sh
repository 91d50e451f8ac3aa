#!/usr/bin/env bash
# `attest check` and `attest plan show` on four hosts in network namespaces, over real
# sshds: facts, clocks, rehash, and every way in which a node can be not as expected. The
# programs of a GB10 machine (nvidia-smi, ibdev2netdev, ethtool, docker) are stand-ins that
# print what such machines print; ip, /proc and the clock are real.
#
# tests/root/cluster-check.sh BINDIR    needs root, openssh-server, iproute2, sudo, python3
set -euo pipefail
bin=$(cd "$1" && pwd)
verify=$bin/verify
data=$(cd "$(dirname "$0")/.." && pwd)/node_facts
# shellcheck source=tests/cluster/bed.sh
. "$(dirname "$0")/../cluster/bed.sh"

# ---- what stands in for a GB10 machine on each host

for i in 0 1 2 3; do
  stand_in() { # name, lines of sh
    printf '#!/bin/sh\n%s\n' "$2" >"$work/h$i/bin/$1"
    chmod 755 "$work/h$i/bin/$1"
  }
  mkdir "$work/h$i/says"
  cp "$data"/nvidia-smi.csv "$data"/docker-info.json "$data"/docker-image.json "$work/h$i/says/"
  sed 's/enp1s0f1np1/eth0/' "$data/ibdev2netdev.txt" >"$work/h$i/says/ibdev2netdev.txt"
  sed 's/enp1s0f1np1/eth0/' "$data/ethtool.txt" >"$work/h$i/says/ethtool.txt"
  stand_in nvidia-smi "exec cat $work/h$i/says/nvidia-smi.csv"
  stand_in ibdev2netdev "exec cat $work/h$i/says/ibdev2netdev.txt"
  stand_in ethtool "exec cat $work/h$i/says/ethtool.txt"
  stand_in docker "case \"\$1\" in info) exec cat $work/h$i/says/docker-info.json ;; image) exec cat $work/h$i/says/docker-image.json ;; esac; exit 1"
  stand_in timedatectl 'echo NTPSynchronized=yes'
done

# ---- the plan

cat >"$work/attest.toml" <<'PLAN'
format = "runseal.attest/v1"
inventory = "cluster.toml"
suite = "serving-performance-v1"
[[checkpoint]]
role = "target"
name = "stand-in"
[requests]
model = "big"
temperature = "0"
seed = 1
max_tokens = 16
[load]
concurrency = 1
repetitions = 1
[timeouts_ms]
connect = 5000
first_token = 5000
stall = 5000
request = 5000
ready = 5000
[cache]
claim = "cold"
max_cached_tokens = 0
PLAN

cluster() { # extra lines of the inventory, then "N:lines" for one node
  local extra=$1 i more mine
  shift
  {
    printf 'format = "runseal.cluster/v1"\nmanifest = "manifest.json"\n'
    printf '[cluster]\nname = "bed-%s"\nhead = "gx0"\nrendezvous = "%s:29501"\n' "$id" "$net.1"
    printf '[engine]\nrecipe = "sglang"\nlaunch = "docker"\nserved_name = "big"\nport = 30000\n'
    printf '[image]\nreference = "sg:1"\nconfig = "sha256:%s"\n' "$(printf 'a%.0s' $(seq 64))"
    printf '[[mount]]\ntarget = "/m"\ncheckpoint = "target"\n[limits]\nfacts_s = 5\nsilence_s = 3\nconnect_s = 3\n'
    printf '%b\n' "$extra"
    for i in 0 1 2 3; do
      printf '[[node]]\nname = "gx%s"\nrank = %s\ntransport = "ssh"\nhost = "%s"\n' "$i" "$i" "$net.$((i + 1))"
      printf 'user = "root"\nidentity = "%s"\nknown_hosts = "%s"\n' "$work/client" "$work/known"
      mine="address = \"$net.$((i + 1))\"\nfabric = [\"eth0\"]"
      for more in "$@"; do
        case "$more" in "$i:"*) mine=${more#*:} ;; esac
      done
      printf 'path = "%s"\n%b\n' "$work/h$i/model" "$mine"
    done
  } >"$work/cluster.toml"
}

check() { # expected exit code, then arguments
  local expected=$1 code=0
  shift
  (cd "$work" && timeout 120 "$bin/attest" check "$@") >"$work/out" 2>"$work/err" || code=$?
  if [ "$code" != "$expected" ]; then
    cat "$work/out" "$work/err"
    echo "exit code $code, expected $expected"
    exit 1
  fi
}

has() {
  for text in "$@"; do
    grep -qF -- "$text" "$work/out" || { cat "$work/out" "$work/err"; echo "missing: $text"; exit 1; }
  done
}

lacks() {
  if grep -qF -- "$1" "$work/out"; then cat "$work/out"; echo "unwanted: $1"; exit 1; fi
}

expect='[expect]\ngpu = "NVIDIA GB10"\ndriver = "580.95.05"\nmtu = 1500\nlink_mbps = 200000\nclock_offset_ms = 1000\nalike = ["driver"]'

say "four hosts as expected"
cluster "$expect"
check 0
has "gx0 (rank 0)  NVIDIA GB10, driver 580.95.05" "gx3 (rank 3)  NVIDIA GB10" "gx0  target: verified" "gx3  target: verified" "ready" "clock "
lacks "node-"
grep -q "starting ssh for gx3" "$work/err"

say "the commands of the launch, and no address in the plan"
(cd "$work" && "$bin/attest" plan show) >"$work/out" 2>"$work/err"
has "1. serve, rank 3 on gx3" "4. serve, rank 0 on gx0" "--dist-init-addr $net.1:29501"
(cd "$work" && "$bin/attest" plan show --format json) >"$work/out" 2>"$work/err"
lacks "$net."

say "facts and clock take one connection per host"
before=$(grep -c 'Accepted publickey' "$work/h2/sshd.log")
check 0 --no-weights
after=$(grep -c 'Accepted publickey' "$work/h2/sshd.log")
[ $((after - before)) = 1 ] || { echo "the facts took $((after - before)) connections"; exit 1; }

say "an old driver, a slow link and another image on one host"
sed -i 's/580.95.05/570.1/' "$work/h2/says/nvidia-smi.csv"
sed -i 's/200000Mb/100000Mb/' "$work/h1/says/ethtool.txt"
sed -i 's/sha256:aaaa/sha256:caca/' "$work/h3/says/docker-image.json"
check 1 --no-weights
has "node-fact-unexpected  gx2: driver" "nodes-not-alike  cluster: driver: 570.1 on gx2; 580.95.05 on gx0, gx1, gx3" \
  "node-link-slow  gx1" "note: nodes-differ  cluster: link_mbps" "node-image  gx3" "NOT READY"
lacks "gx0:"
cp "$data"/nvidia-smi.csv "$work/h2/says/"
sed -i 's/100000Mb/200000Mb/' "$work/h1/says/ethtool.txt"
cp "$data"/docker-image.json "$work/h3/says/"

say "a driver that hangs costs its own answer only"
mv "$work/h1/bin/nvidia-smi" "$work/h1/bin/smi"
printf '#!/bin/sh\nsleep 600\n' >"$work/h1/bin/nvidia-smi"
chmod 755 "$work/h1/bin/nvidia-smi"
check 1 --no-weights
has "node-fact-unknown  gx1: gpu is expected and could not be read: nvidia-smi did not answer in time" "gx1 (rank 1)  no GPU"
lacks "gx1 (rank 1)  not looked at"
mv "$work/h1/bin/smi" "$work/h1/bin/nvidia-smi"
for pid in $(ip netns pids "rs$id-1"); do
  if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q '^sleep 600'; then echo "the hanging program was left"; exit 1; fi
done

say "addresses that were mixed up, and an interface that is not there"
cluster "$expect" "1:address = \"$net.3\"\nfabric = [\"eth0\"]" "3:address = \"$net.4\"\nfabric = [\"eth0\", \"eth7\"]"
check 1 --no-weights
has "node-address  gx1: no interface has the address $net.3" "node-interface  gx3: it has no interface eth7"
cluster "$expect"

say "somebody else's server on the head's port is named and not touched"
ip netns exec "rs$id-0" python3 -m http.server 30000 >/dev/null 2>&1 &
foreign=$!
pids+=("$foreign")
for _ in $(seq 100); do
  if ip netns exec "rs$id-0" ss -ltn 2>/dev/null | grep -q ':30000 '; then break; fi
  sleep 0.1
done
check 1 --no-weights
has "node-port-busy  gx0: something listens on port 30000 already"
kill -0 "$foreign" || { echo "the foreign server was ended"; exit 1; }
kill "$foreign"
wait "$foreign" 2>/dev/null || true

say "one flipped byte refuses the cluster"
cp --preserve=all "$work/h2/model/model-00002-of-00003.safetensors" "$work/keep"
printf '\377' | dd of="$work/h2/model/model-00002-of-00003.safetensors" bs=1 seek=1048576 conv=notrunc status=none
printf '\001' | dd of="$work/h2/model/model-00002-of-00003.safetensors" bs=1 seek=1048577 conv=notrunc status=none
check 1
has "gx2  target: MISMATCH" "digest-mismatch  gx2/model-00002-of-00003.safetensors" "gx0  target: verified"
cp --preserve=all "$work/keep" "$work/h2/model/model-00002-of-00003.safetensors"

say "a host that nobody reaches stops nobody else"
stop_sshd 1
check 1
has "gx1 (rank 1)  not looked at" "node-unreachable  gx1" "gx1  target: not checked" "gx0  target: verified" "gx3  target: verified"
start_sshd 1

say "a host key that changed"
mv "$work/h1/hostkey" "$work/h1/old"
mv "$work/h1/hostkey.pub" "$work/h1/old.pub"
ssh-keygen -q -t ed25519 -N '' -f "$work/h1/hostkey"
stop_sshd 1
start_sshd 1
check 1 --no-weights
has "node-host-key-changed  gx1" "gx2 (rank 2)  NVIDIA GB10"
mv "$work/h1/old" "$work/h1/hostkey"
mv "$work/h1/old.pub" "$work/h1/hostkey.pub"
stop_sshd 1
start_sshd 1

say "an sshd that accepts and says nothing"
kill -STOP "${sshd[2]}"
check 1 --no-weights
has "node-timeout  gx2" "gx3 (rank 3)  NVIDIA GB10"
kill -CONT "${sshd[2]}"

say "the cluster is taken"
python3 - "$id" "$work" <<'PYTHON' &
import fcntl, json, os, sys, time
path = f"/run/lock/runseal-bed-{sys.argv[1]}.lock"
if not os.path.isdir("/run/lock"):
    path = f"/tmp/runseal-bed-{sys.argv[1]}.lock"
with open(path, "a+") as f:
    fcntl.flock(f, fcntl.LOCK_EX)
    f.truncate(0)
    f.write(json.dumps({"owner": "run of somebody", "since_unix_s": int(time.time()) - 90}))
    f.flush()
    open(f"{sys.argv[2]}/locked", "w").close()
    time.sleep(600)
PYTHON
holder=$!
pids+=("$holder")
for _ in $(seq 100); do [ -e "$work/locked" ] && break; sleep 0.1; done
check 1 --no-weights
grep -Eq 'cluster-busy  gx0: it is taken by run of somebody, for 9[0-9] s' "$work/out" || { cat "$work/out"; exit 1; }
kill "$holder"
wait "$holder" 2>/dev/null || true
check 0 --no-weights
lacks "cluster-busy"
rm -f "/run/lock/runseal-bed-$id.lock" "/tmp/runseal-bed-$id.lock"

say "a check that is ended leaves no agent behind"
(cd "$work" && exec "$bin/attest" check) >/dev/null 2>&1 &
caller=$!
sleep 1
kill "$caller" 2>/dev/null || true
wait "$caller" 2>/dev/null || true
for _ in $(seq 100); do
  left=no
  for i in 0 1 2 3; do
    for pid in $(ip netns pids "rs$id-$i"); do
      if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q 'verify weights --agent'; then left=yes; fi
    done
  done
  [ "$left" = no ] && break
  sleep 0.2
done
[ "$left" = no ] || { echo "an agent was left"; exit 1; }
say "all good"

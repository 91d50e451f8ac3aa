#!/usr/bin/env bash
# Four hosts in network namespaces, each with its own address, files and sshd;
# real OpenSSH at both ends. Every failure that the fake ssh of the cargo tests
# plays happens for real here: link down in the middle of a rehash, sshd stopped,
# key refused, host key changed, one flipped byte, no `verify` on the node.
#
# tests/root/ssh-replicas.sh BINDIR     needs root, openssh-server, iproute2, sudo, python3
#
# Every process that is ended is one that was started here, or runs in a
# namespace that was made here, by its id.
set -euo pipefail
bin=$(cd "$1" && pwd)
verify=$bin/verify
# shellcheck source=tests/cluster/bed.sh
. "$(dirname "$0")/../cluster/bed.sh"

shared() { # ssh's connections that are shared through our folder
  local process
  for process in /proc/[0-9]*; do
    { tr '\0' ' ' <"$process/cmdline"; } 2>/dev/null | grep "^ssh.*$work/t" || true
  done
}

inventory() { # extra lines for all, then "N:lines" for one
  local common=$1 i
  shift
  {
    printf 'format = "runseal.cluster/v1"\nmanifest = "manifest.json"\n'
    for i in 0 1 2 3; do
      printf '[[replica]]\nname = "gx%s"\ntransport = "ssh"\nhost = "%s"\n' "$i" "$net.$((i + 1))"
      printf 'user = "root"\nidentity = "%s"\n' "$work/client"
      printf 'path = "%s"\n' "$work/h$i/model"
      local mine=$common more
      for more in "$@"; do
        case "$more" in "$i:"*) mine=${more#*:} ;; esac
      done
      printf '%b\n' "$mine"
    done
  } >"$work/cluster.toml"
}

known="known_hosts = \"$work/known\""

run() { # expected exit code, then arguments
  local expected=$1 code=0
  shift
  (cd "$work" && timeout 120 "$verify" weights --inventory cluster.toml "$@") \
    >"$work/out" 2>"$work/err" || code=$?
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

say "four hosts, four agents"
inventory "$known"
run 0 --replicas 4
has "gx0  verified" "gx3  verified" "verified; replicas: 4, machines: 1"
grep -q "starting ssh for gx0, gx1, gx2, gx3" "$work/err"

say "one line per replica on a terminal"
(cd "$work" && timeout 60 script -qec "$verify weights --inventory cluster.toml" /dev/null </dev/null) >"$work/out"
has "gx0  " "bytes, " "done"

say "one flipped byte: three against one"
cp --preserve=all "$work/h2/model/model-00002-of-00003.safetensors" "$work/keep"
python3 - "$work/h2/model/model-00002-of-00003.safetensors" <<'PYTHON'
import os, sys
with open(sys.argv[1], "r+b") as f:
    f.seek(1 << 20)
    byte = f.read(1)[0]
    f.seek(1 << 20)
    f.write(bytes([byte ^ 1]))
PYTHON
run 1 --replicas 4
has "digest-mismatch  gx2/model-00002-of-00003.safetensors" "gx0, gx1, gx3 agree on sha256:" "the other three agree on"
cp --preserve=all "$work/keep" "$work/h2/model/model-00002-of-00003.safetensors"

say "the fingerprint pin stands in for known_hosts"
pin() { ssh-keygen -lf "$work/h$1/hostkey.pub" | cut -d' ' -f2; }
pinned() { printf 'host_key = "%s"' "$(pin "$1")"; }
inventory '' "0:$(pinned 0)" "1:$(pinned 1)" "2:$(pinned 2)" "3:$(pinned 3)"
run 0 --replicas 4
inventory '' "0:$(pinned 0)" "1:$(pinned 0)" "2:$(pinned 2)" "3:$(pinned 3)"
run 1 --replicas 4
has "node-host-key-changed  gx1" "gx0  verified" "gx3  verified"

say "a host nobody knows"
grep -v "^$net.2 " "$work/known" >"$work/known3"
inventory "$known" "1:known_hosts = \"$work/known3\""
run 1
has "node-host-key-unknown  gx1" "gx0  verified"

say "the host key changed"
mv "$work/h1/hostkey" "$work/h1/old"
mv "$work/h1/hostkey.pub" "$work/h1/old.pub"
ssh-keygen -q -t ed25519 -N '' -f "$work/h1/hostkey"
stop_sshd 1
start_sshd 1
inventory "$known"
run 1
has "node-host-key-changed  gx1" "gx0  verified" "gx2  verified"
mv "$work/h1/old" "$work/h1/hostkey"
mv "$work/h1/old.pub" "$work/h1/hostkey.pub"
stop_sshd 1

say "nobody listens"
run 1
has "node-unreachable  gx1" "Connection refused" "gx0  verified"
start_sshd 1

say "the key is refused"
sed "s|^AuthorizedKeysFile.*|AuthorizedKeysFile $work/stranger.pub|" "$work/h3/sshd_config" >"$work/h3/strict"
stop_sshd 3
start_sshd 3 "$work/h3/strict"
run 1
has "node-key-refused  gx3" "Permission denied" "gx0  verified"
stop_sshd 3
start_sshd 3

say "sshd is stopped: it accepts and says nothing"
kill -STOP "${sshd[2]}"
run 1 --timeout 3
has "node-timeout  gx2" "gx0  verified"
kill -CONT "${sshd[2]}"

say "the link is down before the connection"
ip -n "rs$id-0" link set eth0 down
run 1 --timeout 3
has "gx1  verified" "gx0  "
grep -Eq 'node-(timeout|unreachable)  gx0' "$work/out"
ip -n "rs$id-0" link set eth0 up

say "the link goes down in the middle of a rehash"
truncate -s 400G "$work/h1/model/big.safetensors"
(
  for _ in $(seq 200); do
    # The agent has its file open: it is reading.
    for pid in $(ip netns pids "rs$id-1"); do
      if ls -l "/proc/$pid/fd" 2>/dev/null | grep -q big.safetensors; then
        sleep 1
        ip -n "rs$id-1" link set eth0 down
        exit
      fi
    done
    sleep 0.1
  done
) &
breaker=$!
run 1 --manifest big.json --timeout 20
wait "$breaker"
grep -Eq '^(node-timeout|connection-lost)  gx1' "$work/out"
has "file-missing  gx0/big.safetensors" "gx1  unreachable"
ip -n "rs$id-1" link set eth0 up
# The link is back, so the agent notices that nobody listens, and ends.
for _ in $(seq 300); do
  reading=no
  for pid in $(ip netns pids "rs$id-1"); do
    if ls -l "/proc/$pid/fd" 2>/dev/null | grep -q big.safetensors; then reading=yes; fi
  done
  [ "$reading" = no ] && break
  sleep 0.2
done
[ "$reading" = no ] || { echo "the agent went on reading for nobody"; exit 1; }
rm "$work/h1/model/big.safetensors"

say "a caller that is interrupted leaves no agent behind"
truncate -s 400G "$work/h1/model/big.safetensors"
(cd "$work" && exec "$verify" weights --inventory cluster.toml --manifest big.json) >/dev/null 2>&1 &
caller=$!
started=no
for _ in $(seq 200); do
  for pid in $(ip netns pids "rs$id-1"); do
    if ls -l "/proc/$pid/fd" 2>/dev/null | grep -q big.safetensors; then started=yes; agent=$pid; fi
  done
  [ "$started" = yes ] && break
  sleep 0.1
done
[ "$started" = yes ] || { echo "the agent did not start"; exit 1; }
kill "$caller"
wait "$caller" 2>/dev/null || true
# When it has ended, its folder and ssh's shared connections have.
if ls -d "$work"/t/runseal-* 2>/dev/null; then echo "the caller left its folder"; exit 1; fi
left=$(shared)
[ -z "$left" ] || { echo "the caller left connections: $left"; exit 1; }
for _ in $(seq 100); do
  [ -d "/proc/$agent" ] || break
  sleep 0.2
done
[ ! -d "/proc/$agent" ] || { echo "the agent outlived its caller"; exit 1; }
rm "$work/h1/model/big.safetensors"
rm -rf "$work"/t/runseal-*

say "no verify on the node: missing, then pushed"
rm "$work/h0/bin/verify"
inventory "$known"
run 1
has "agent-missing  gx0" "gx1  verified"
before=$(grep -c 'Accepted publickey' "$work/h0/sshd.log")
run 0 --replicas 4 --push-agent
after=$(grep -c 'Accepted publickey' "$work/h0/sshd.log")
[ $((after - before)) = 1 ] || { echo "push and rehash took $((after - before)) connections"; exit 1; }
sha=$(sha256sum "$verify" | cut -d' ' -f1)
cmp "$verify" "$work/h0/home/.cache/runseal/agents/$sha/verify"
run 0 --replicas 4 --push-agent

say "the agent cannot be executed there"
printf '\177ELF\002\001\001garbage' >"$work/h0/bin/verify"
chmod 755 "$work/h0/bin/verify"
run 1
has "agent-exec-format  gx0"
cp "$verify" "$work/h0/bin/verify"

say "a node that signs, saved and judged again without it"
"$bin/attest" keygen "$work/h1/node.pem" >/dev/null
inventory "$known" "1:$known\nnode_key = \"$work/h1/node.pem\""
run 0 --replicas 4 --save-reports saved --node-key "gx1=$work/h1/node.pub.pem"
has "signed by SHA256:"
mv "$work/h1/model" "$work/h1/away"
code=0
(cd "$work" && "$verify" weights --manifest manifest.json --report saved --replicas 4 \
  --node-key "gx1=$work/h1/node.pub.pem") >"$work/out" || code=$?
[ "$code" = 0 ] || { cat "$work/out"; exit 1; }
has "no replica was looked at" "gx1  verified" "signed by SHA256:"
mv "$work/h1/away" "$work/h1/model"

say "sudo reads what the user may not"
as_rs() { printf '%s\nsudo = %s\nagent = "%s"' "$known" "$2" "$work/h$1/bin/verify"; }
for i in 1 2; do chmod 700 "$work/h$i/model"; done
inventory "$known" "1:$(as_rs 1 false)" "2:$(as_rs 2 true)" "3:$(as_rs 3 true)"
sed -i 's/user = "root"/user = "rs"/' "$work/cluster.toml"
run 1
has "replica-unreachable  gx1" "Permission denied" "sudo-refused  gx2" "gx3  verified"
inventory "$known" "1:$(as_rs 1 true)"
sed -i 's/user = "root"/user = "rs"/' "$work/cluster.toml"
for i in 1 2; do chmod 755 "$work/h$i/model"; done
chmod 700 "$work/h1/model"
run 0 --replicas 4
for i in 1 2; do chmod 755 "$work/h$i/model"; done

say "one copy through ssh and locally counts once"
{
  printf 'format = "runseal.cluster/v1"\nmanifest = "manifest.json"\n'
  printf '[[replica]]\nname = "near"\ntransport = "local"\npath = "h0/model"\n'
  printf '[[replica]]\nname = "far"\ntransport = "ssh"\nhost = "%s"\nuser = "root"\n' "$net.1"
  printf 'identity = "%s"\n%s\npath = "%s"\n' "$work/client" "$known" "$work/h0/model"
} >"$work/cluster.toml"
run 1 --replicas 2
has "replica-duplicate  near, far" "replica-count"
run 1 --replicas 1

say "nothing of ours is left"
if ls -d "$work"/t/runseal-* 2>/dev/null; then echo "private folders were left"; exit 1; fi
left=$(shared)
[ -z "$left" ] || { echo "shared connections were left: $left"; exit 1; }
say "all good"

# Four hosts in network namespaces, each with its own address, host name, files, users
# and sshd, and a copy of a checkpoint of three shards. To be sourced, as root, by a
# script that has set $verify. It sets $work, $net, $id and the functions below, and takes
# everything down when the script ends.
#
# Every process that is ended is one that was started here, or runs in a namespace
# that was made here, by its id.
# shellcheck shell=bash
for tool in sshd ip unshare python3 sudo script; do
  command -v "$tool" >/dev/null || { echo "$tool is missing"; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "needs root"; exit 1; }

id=$$
net=10.77.$((id % 250))
bridge=rsb$((id % 10000))
work=$(mktemp -d /tmp/rs.XXXXXX)
chmod 755 "$work"
pids=()

cleanup() {
  for pid in "${pids[@]}"; do
    # A stopped process does not act on a request to end.
    kill -CONT "$pid" 2>/dev/null || true
    kill "$pid" 2>/dev/null || true
  done
  for i in 0 1 2 3; do
    # What a host still runs: sessions of its sshd.
    for pid in $(ip netns pids "rs$id-$i" 2>/dev/null); do
      kill -CONT "$pid" 2>/dev/null || true
      kill "$pid" 2>/dev/null || true
    done
    ip netns del "rs$id-$i" 2>/dev/null || true
  done
  ip link del "$bridge" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

say() { printf -- '-- %s\n' "$*"; }

# ---- the hosts

mkdir -p /run/sshd "$work/t"
export TMPDIR=$work/t
ip link add "$bridge" type bridge
ip addr add "$net.254/24" dev "$bridge"
ip link set "$bridge" up
ssh-keygen -q -t ed25519 -N '' -f "$work/client"
ssh-keygen -q -t ed25519 -N '' -f "$work/stranger"
: >"$work/known"

host() { # number: makes its namespace, its files and its keys
  local i=$1 ns=rs$id-$1 root=$work/h$1
  mkdir -p "$root/home" "$root/bin"
  # Its own user, and its own idea of who may become root.
  { cat /etc/passwd; echo "rs:x:4242:4242::$root/home:/bin/sh"; } >"$root/passwd"
  { cat /etc/shadow; echo 'rs:*:19000:0:99999:7:::'; } >"$root/shadow"
  printf 'root ALL=(ALL) ALL\nrs ALL=(ALL) NOPASSWD: ALL\n' >"$root/sudoers"
  [ "$i" = 2 ] && printf 'rs ALL=(ALL) ALL\n' >"$root/sudoers"
  chmod 440 "$root/sudoers"
  chown 4242 "$root/home"
  ip netns add "$ns"
  ip link add "rsv$((id % 10000))$i" type veth peer name eth0 netns "$ns"
  ip link set "rsv$((id % 10000))$i" master "$bridge" up
  ip -n "$ns" addr add "$net.$((i + 1))/24" dev eth0
  ip -n "$ns" link set eth0 up
  ip -n "$ns" link set lo up
  ssh-keygen -q -t ed25519 -N '' -f "$root/hostkey"
  cat >"$root/sshd_config" <<CONFIG
ListenAddress $net.$((i + 1))
Port 22
HostKey $root/hostkey
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AuthorizedKeysFile $work/client.pub
SetEnv PATH=$root/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=$root/home
CONFIG
  printf '%s %s\n' "$net.$((i + 1))" "$(cut -d' ' -f1,2 "$root/hostkey.pub")" >>"$work/known"
}

declare -A sshd
start_sshd() { # number [config]
  local i=$1 config=${2:-$work/h$1/sshd_config}
  # Each host has a host name and a mount table of its own.
  ip netns exec "rs$id-$i" unshare --uts --mount sh -c \
    "hostname gx$i &&
     mount --bind $work/h$i/passwd /etc/passwd &&
     mount --bind $work/h$i/shadow /etc/shadow &&
     mount --bind $work/h$i/sudoers /etc/sudoers &&
     exec $(command -v sshd) -D -e -f $config" 2>>"$work/h$i/sshd.log" &
  sshd[$i]=$!
  pids+=($!)
  for _ in $(seq 100); do
    if ssh-keyscan -T 1 "$net.$((i + 1))" 2>/dev/null | grep -q ed25519; then return; fi
    sleep 0.1
  done
  cat "$work/h$i/sshd.log"
  echo "sshd of host $i does not answer"
  exit 1
}

stop_sshd() {
  kill "${sshd[$1]}"
  wait "${sshd[$1]}" 2>/dev/null || true
}

for i in 0 1 2 3; do
  host $i
  start_sshd $i
  cp "$verify" "$work/h$i/bin/verify"
done

# ---- the checkpoint

# Written here and not by the program under test: the root is runseal-tree/v1.
python3 - "$work" <<'PYTHON'
import hashlib, json, os, sys
work = sys.argv[1]

def manifest(name, files):
    enc = b""
    def put(b):
        nonlocal enc
        enc += len(b).to_bytes(8, "big") + b
    put(b"runseal-enc/v1")
    put(b"runseal-tree/v1")
    put(len(files).to_bytes(8, "big"))
    for path, size, sha in sorted(files):
        put(path.encode())
        put(size.to_bytes(8, "big"))
        put(bytes.fromhex(sha))
    listed = [{"path": p, "size": n, "sha256": sha} for p, n, sha in sorted(files)]
    root = hashlib.sha256(enc).hexdigest()
    with open(f"{work}/{name}", "w") as f:
        json.dump({"format": "runseal.manifest/v1", "root": root, "files": listed}, f)

size = 3 << 20


def shard(name):
    tensor = {name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    header = json.dumps(tensor).encode()
    return len(header).to_bytes(8, "little") + header + os.urandom(size)


files = {f"model-0000{i}-of-00003.safetensors": shard(f"t{i}") for i in (1, 2, 3)}
files["config.json"] = b"{}"
for host in range(4):
    folder = f"{work}/h{host}/model"
    os.makedirs(folder)
    for name, data in files.items():
        with open(f"{folder}/{name}", "wb") as f:
            f.write(data)
pinned = [(n, len(d), hashlib.sha256(d).hexdigest()) for n, d in files.items()]
manifest("manifest.json", pinned)
# A file without blocks that takes minutes to hash; its digest does not matter.
big = ("big.safetensors", 400 << 30, "0" * 64)
manifest("big.json", pinned + [big])
PYTHON

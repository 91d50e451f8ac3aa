#!/usr/bin/env bash
# Two overlays over one folder are one copy of it under two names, however the
# kernel numbers their files: with --replicas 2 they must not count as two.
#
# tests/root/overlays.sh BINDIR     needs root, unshare and overlay mounts
#
# Where the kernel refuses overlay mounts this is not performed, and says so.
set -euo pipefail
bin=$(cd "$1" && pwd)
if [ "${RUNSEAL_OWN_MOUNTS-}" != yes ]; then
  [ "$(id -u)" = 0 ] || { echo "overlays: needs root for its mounts" >&2; exit 1; }
  # Mounts made from here on vanish with this namespace.
  if ! unshare --mount true 2>/dev/null; then
    echo "overlays: NOT PERFORMED: no mount namespace may be made here"
    exit 0
  fi
  RUNSEAL_OWN_MOUNTS=yes exec unshare --mount --propagation private bash "$0" "$bin"
fi

work=$(mktemp -d)
cleanup() {
  cd /
  umount "$work/m0" "$work/m1" "$work/m2" 2>/dev/null || true
  umount "$work/disk" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
cd "$work"
mkdir disk m0 m1 m2
# Of their own file system: an overlay's upper layer cannot lie on another overlay.
if ! mount -t tmpfs -o size=64m none disk 2>err; then
  echo "overlays: NOT PERFORMED: no tmpfs may be mounted here ($(cat err))"
  exit 0
fi
mkdir disk/lower disk/copy disk/{u,w}{0,1,2}
for i in 1 2 3; do head -c 300000 /dev/urandom >"disk/lower/part-$i.bin"; done
echo '{}' >disk/lower/config.json
cp disk/lower/* disk/copy/

overlay() { # number options lower
  mount -t overlay overlay -o "lowerdir=disk/$3,upperdir=disk/u$1,workdir=disk/w$1$2" "m$1" 2>err
}
if ! overlay 0 "" lower; then
  echo "overlays: NOT PERFORMED: the kernel refuses overlay mounts ($(cat err))"
  exit 0
fi
overlay 2 "" copy
"$bin/attest" pin weights disk/lower -o manifest.json >/dev/null

inventory() { # folders
  printf 'format = "runseal.cluster/v1"\nmanifest = "manifest.json"\n'
  for folder in "$@"; do
    printf '[[replica]]\nname = "%s"\ntransport = "local"\npath = "%s"\n' "${folder//\//-}" "$folder"
  done
}
run() { # code folders...
  local want=$1 code=0
  shift
  inventory "$@" >cluster.toml
  "$bin/verify" weights --replicas $# >out 2>err || code=$?
  if [ "$code" != "$want" ]; then
    echo "overlays: FAILED: exit code $code, not $want, for $*"
    cat out err
    exit 1
  fi
}
one_copy() {
  run 1 "$@"
  grep -q '^replica-duplicate' out || { echo "overlays: FAILED: no duplicate among $*"; cat out; exit 1; }
  grep -q 'replicas: 1, machines: 1' out || { echo "overlays: FAILED: $* are not one replica"; cat out; exit 1; }
}

variants=0
for options in "" ",xino=on" ",xino=off"; do
  umount m1 2>/dev/null || true
  rm -rf disk/u1 disk/w1
  mkdir disk/u1 disk/w1
  if ! overlay 1 "$options" lower; then
    echo "overlays: not performed with options '$options': $(cat err)"
    continue
  fi
  one_copy m0 m1
  # The folder below, beside what shows it.
  one_copy disk/lower m1
  # Touched in one of them: that file is a new one there, the others are not.
  touch m1/part-2.bin
  one_copy m0 m1
  variants=$((variants + 1))
done
[ "$variants" -ge 1 ] || { echo "overlays: FAILED: no second overlay could be mounted"; exit 1; }

# A real second copy counts, whether it is looked at through an overlay or not.
run 0 m0 disk/copy
run 0 m0 m2
echo "overlays: two over one folder are one replica, in $variants variants; a second copy is a second one"

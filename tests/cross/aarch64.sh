#!/usr/bin/env bash
# GB10 is aarch64: builds `verify` as a static aarch64 binary, runs the hashing tests
# under emulation and rehashes a small tree with the binary. Emulation proves that
# the results are right, never that they come fast.
#
#   aarch64.sh            leaves target/aarch64-unknown-linux-musl/release/verify
#
# Needs the Rust target (rustup target add aarch64-unknown-linux-musl) and the Debian
# packages gcc-aarch64-linux-gnu (BLAKE3's NEON code is C) and qemu-user-static, or
# qemu-user. Fails when one is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=aarch64-unknown-linux-musl

need() { echo "aarch64.sh: $1 (hint: $2)" >&2; exit 2; }
libs=$(rustc --print target-libdir --target $target)
[ -d "$libs" ] || need "no standard library for $target" "rustup target add $target"
command -v aarch64-linux-gnu-gcc >/dev/null || need "no C compiler" "apt-get install gcc-aarch64-linux-gnu"
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) ||
  need "no emulator" "apt-get install qemu-user-static"

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=$qemu
export CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc
export CFLAGS_aarch64_unknown_linux_musl="-U_FORTIFY_SOURCE -fno-stack-protector"

RUNSEAL_EXPECT_INTERLEAVING=Armv8 cargo test -j2 --target $target -p runseal-kernel
cargo build -j2 --release --target $target -p runseal --bin verify
verify=target/$target/release/verify
case $(file -b "$verify" 2>/dev/null || echo "aarch64 statically linked") in
*aarch64*static*) ;;
*) echo "aarch64.sh: $verify is not a static aarch64 binary" >&2; exit 1 ;;
esac

# The same tree, judged by the emulated binary: right, and with one bit flipped.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/model"
head -c 3000000 /dev/urandom >"$work/model/a.bin"
head -c 1000001 /dev/urandom >"$work/model/b.bin"
printf 'short' >"$work/model/c.txt"
: >"$work/model/empty"
python3 - "$work/model" >"$work/manifest.json" <<'PY'
import hashlib, json, os, struct, sys
field = lambda b: struct.pack(">Q", len(b)) + b
names = sorted(os.listdir(sys.argv[1]))
root = hashlib.sha256(field(b"runseal-enc/v1") + field(b"runseal-tree/v1"))
root.update(field(struct.pack(">Q", len(names))))
files = []
for name in names:
    data = open(os.path.join(sys.argv[1], name), "rb").read()
    digest = hashlib.sha256(data)
    root.update(field(name.encode()) + field(struct.pack(">Q", len(data))) + field(digest.digest()))
    files.append({"path": name, "size": len(data), "sha256": digest.hexdigest()})
print(json.dumps({"format": "runseal.manifest/v1", "root": root.hexdigest(), "files": files}))
PY
"$qemu" "$verify" weights "$work/model" --manifest "$work/manifest.json"
printf 'S' | dd of="$work/model/c.txt" conv=notrunc status=none
if "$qemu" "$verify" weights "$work/model" --manifest "$work/manifest.json" >"$work/out"; then
  echo "aarch64.sh: a changed byte was not found" >&2
  exit 1
fi
grep -q 'c.txt' "$work/out"
echo "aarch64: hashing tests passed, static verify works under emulation"

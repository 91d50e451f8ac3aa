#!/usr/bin/env bash
# OpenSSF Model Signing, both ways, against the reference implementation:
# `verify` reads its bundles, it reads those of `attest`, and both refuse the same
# tampering. Every curve, files and shards, SHA-256 and (files only, as there) BLAKE3.
#
#   oms.sh [FOLDER OF attest AND verify] [PYTHON WITH model_signing]
#
# Without a Python the package is installed into a throw-away environment, at the
# versions in oms-requirements.txt.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
bin=$(cd "${1:-$here/target/release}" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python=${2:-}
if [ -z "$python" ]; then
  timeout 120 python3 -m venv "$dir/venv"
  timeout 600 "$dir/venv/bin/pip" install --quiet --disable-pip-version-check \
    --only-binary :all: --no-deps -r "$here/tests/cross/oms-requirements.txt"
  python=$dir/venv/bin/python
fi
cd "$dir"

cat >ref.py <<'PY'
"""ref.py sign|verify|lenient MODEL BUNDLE KEY METHOD HASH [links]"""
import pathlib
import sys
from model_signing import hashing, signing, verifying

what, model, bundle, key, method, algorithm, *links = sys.argv[1:]
config = hashing.Config()
if method == "files":
    config.use_file_serialization(hashing_algorithm=algorithm)
elif method == "shards":
    config.use_shard_serialization(hashing_algorithm=algorithm, shard_size=1000)
config.set_allow_symlinks(bool(links))
if what != "sign":
    verifier = verifying.Config().use_elliptic_key_verifier(public_key=key)
    if what == "lenient":
        verifier.set_ignore_unsigned_files(True)
    if method != "-":
        verifier.set_hashing_config(config)
    # Otherwise all parameters are guessed from the bundle.
    verifier.verify(pathlib.Path(model), bundle)
else:
    signing.Config().use_elliptic_key_signer(private_key=key).set_hashing_config(
        config
    ).sign(model, bundle)
PY

mkdir -p model/sub model/sub-b
head -c 4321 /dev/urandom >model/weights.bin
head -c 1000 /dev/urandom >model/sub/exact.bin
echo '{}' >model/sub-b/config.json
echo 'größe' >model/wörter.txt
echo '# left out by both' >model/.gitattributes

count=0
must() {
  if ! "$@" >out 2>&1; then
    echo "failed: $*" >&2
    cat out >&2
    exit 1
  fi
  count=$((count + 1))
}
must_not() {
  # 1 is both programs' "it does not verify"; anything else is an accident.
  local code=0
  "$@" >out 2>&1 || code=$?
  if [ "$code" != 1 ]; then
    echo "exit code $code and not 1: $*" >&2
    cat out >&2
    exit 1
  fi
  count=$((count + 1))
}
ours() { timeout 120 "$bin/verify" weights "$1" --oms "$2" --key "$3"; }
as_manifest() { timeout 120 "$bin/verify" weights "$1" --manifest "$2" --key "$3"; }
reference() { timeout 120 "$python" ref.py "$@"; }
theirs() { reference verify "$1" "$2" "$3" - -; }
both_refuse() {
  must_not ours "$@"
  must_not as_manifest "$@"
  must_not theirs "$@"
}

"$bin/attest" keygen other.key.pem --type p256 >/dev/null
for curve in p256 p384 p521; do
  "$bin/attest" keygen "$curve.key.pem" --type "$curve" >/dev/null
  secret=$curve.key.pem public=$curve.pub.pem
  for kind in files-sha256 files-blake3 shards-sha256; do
    method=${kind%-*} hash=${kind#*-}
    shards=()
    [ "$method" = files ] || shards=(--shard-size 1000)

    must reference sign model "theirs-$curve-$kind" "$secret" "$method" "$hash"
    must ours model "theirs-$curve-$kind" "$public"
    must as_manifest model "theirs-$curve-$kind" "$public"

    must "$bin/attest" sign weights model --key "$secret" -o "ours-$curve-$kind" \
      --method "$method" --hash "$hash" "${shards[@]}"
    must ours model "ours-$curve-$kind" "$public"
    must as_manifest model "ours-$curve-$kind" "$public"
    must theirs model "ours-$curve-$kind" "$public"

    # Another key, a changed statement, and a signature cut short.
    both_refuse model "ours-$curve-$kind" other.pub.pem
    "$python" - "ours-$curve-$kind" <<'PY'
import base64, json, sys

bundle = json.load(open(sys.argv[1]))
envelope = bundle["dsseEnvelope"]
payload = base64.b64decode(envelope["payload"]).replace(b'"model"', b'"modem"')
good = envelope["payload"]
envelope["payload"] = base64.b64encode(payload).decode()
json.dump(bundle, open("altered.sig", "w"))
envelope["payload"] = good
signature = base64.b64decode(envelope["signatures"][0]["sig"])
envelope["signatures"][0]["sig"] = base64.b64encode(signature[:-1]).decode()
json.dump(bundle, open("cut.sig", "w"))
PY
    both_refuse model altered.sig "$public"
    both_refuse model cut.sig "$public"
  done
done

# Tampered folders: one bundle of each method by each side. The reference
# implementation cannot use its own shard bundles (it writes the size as 1000.0 and
# does not read that), so those are only ours to judge.
tampered() {
  local change=$1
  rm -rf copy && cp -a model copy
  (cd copy && eval "$change")
  for kind in files-sha256 files-blake3; do
    both_refuse copy "theirs-p256-$kind" p256.pub.pem
    both_refuse copy "ours-p256-$kind" p256.pub.pem
  done
  must_not ours copy theirs-p256-shards-sha256 p256.pub.pem
  must_not as_manifest copy theirs-p256-shards-sha256 p256.pub.pem
  both_refuse copy ours-p256-shards-sha256 p256.pub.pem
}
tampered 'printf x | dd of=weights.bin bs=1 seek=4000 conv=notrunc status=none'
tampered 'truncate -s 4320 weights.bin'
tampered 'echo >>sub-b/config.json'
tampered 'rm sub/exact.bin'
tampered 'mv wörter.txt worter.txt'
tampered 'echo x >.stray'
tampered 'ln -s weights.bin link'
tampered 'mkfifo pipe'

# A hub cache: what was signed flat verifies there, and what was signed there verifies
# flat. The reference implementation has to be told that links are wanted.
cache=models--org--tiny
commit=0123456789abcdef0123456789abcdef01234567
snapshot=$cache/snapshots/$commit
mkdir -p "$cache/refs" "$cache/blobs"
printf %s "$commit" >"$cache/refs/main"
(cd model && find . -type f ! -name .gitattributes -printf '%P\n') | while read -r name; do
  sha256=$(sha256sum "model/$name" | cut -d' ' -f1)
  cp "model/$name" "$cache/blobs/$sha256"
  mkdir -p "$(dirname "$snapshot/$name")"
  ln -sr "$cache/blobs/$sha256" "$snapshot/$name"
done
[ "$(find -L "$snapshot" -type f | wc -l)" = 4 ]
for kind in files-sha256 files-blake3 shards-sha256; do
  method=${kind%-*} hash=${kind#*-}
  shards=()
  [ "$method" = files ] || shards=(--shard-size 1000)
  for signed in "ours-p256-$kind" "theirs-p256-$kind"; do
    must ours "$cache" "$signed" p256.pub.pem
    must as_manifest "$snapshot" "$signed" p256.pub.pem
  done
  must reference verify "$snapshot" "ours-p256-$kind" p256.pub.pem "$method" "$hash" links
  must "$bin/attest" sign weights "$cache" --key p256.key.pem -o "cache-$kind" \
    --method "$method" --hash "$hash" "${shards[@]}"
  must reference sign "$snapshot" "theirs-cache-$kind" p256.key.pem "$method" "$hash" links
  must reference verify "$snapshot" "cache-$kind" p256.pub.pem "$method" "$hash" links
  must theirs model "cache-$kind" p256.pub.pem
  for signed in "cache-$kind" "theirs-cache-$kind"; do
    must ours "$cache" "$signed" p256.pub.pem
    must ours model "$signed" p256.pub.pem
    must as_manifest "$cache" "$signed" p256.pub.pem
  done
done
blob=$(readlink -f "$snapshot/weights.bin")
printf x | dd of="$blob" bs=1 seek=4000 conv=notrunc status=none
for kind in files-sha256 files-blake3 shards-sha256; do
  must_not ours "$cache" "cache-$kind" p256.pub.pem
  must_not as_manifest "$cache" "cache-$kind" p256.pub.pem
  must_not reference verify "$snapshot" "cache-$kind" p256.pub.pem "${kind%-*}" "${kind#*-}" links
done

# The holes of the format. Each is shown to be one in the reference implementation,
# where that accepts it, and to be a finding of this code here.
finds() {
  local code=$1
  shift
  must_not ours "$@"
  grep -q "^$code " out || { echo "no $code in:" && cat out && exit 1; } >&2
}
cat >hostile.py <<'PY'
"""hostile.py KEY CONTENT METHOD NAME...: signs any names, all with one content."""
import base64
import hashlib
import json
import sys
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

key, content, method, *names = sys.argv[1:]
key = serialization.load_pem_private_key(open(key, "rb").read(), None)
digest = hashlib.sha256(content.encode())
parameters = {"method": method, "hash_type": "sha256", "allow_symlinks": False}
algorithm = "sha256"
if method == "shards":
    parameters["shard_size"] = 1000
    algorithm = "sha256-sharded-1000"
root = hashlib.sha256(digest.digest() * len(names)).hexdigest()
payload = {
    "_type": "https://in-toto.io/Statement/v1",
    "subject": [{"name": "model", "digest": {"sha256": root}}],
    "predicateType": "https://model_signing/signature/v1.0",
    "predicate": {
        "serialization": parameters,
        "resources": [
            {"name": n, "algorithm": algorithm, "digest": digest.hexdigest()} for n in names
        ],
    },
}
payload = json.dumps(payload).encode()
kind = "application/vnd.in-toto+json"
pae = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)
public = key.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
signature = key.sign(pae, ec.ECDSA(hashes.SHA256()))
bundle = {
    "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
    "verificationMaterial": {
        "publicKey": {"hint": hashlib.sha256(public).hexdigest()},
        "tlogEntries": [],
    },
    "dsseEnvelope": {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": kind,
        "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
    },
}
json.dump(bundle, sys.stdout)
PY
hostile() { "$python" hostile.py p256.key.pem "$@"; }
must_not_sign() {
  local code=0
  "$bin/attest" sign weights "$@" --key p256.key.pem -o refused.sig >out 2>&1 || code=$?
  [ "$code" = 2 ] && [ ! -e refused.sig ] || { echo "signed: $*" && cat out && exit 1; } >&2
  count=$((count + 1))
}

# An empty model.
mkdir empty
must reference sign empty empty.sig p256.key.pem files sha256
must theirs empty empty.sig p256.pub.pem
finds oms-empty empty empty.sig p256.pub.pem
must_not_sign empty

# A name that leads out of the folder: the reference reads what lies there.
mkdir small
printf x >small/a
printf x >outside
hostile x files a ../outside >escapes.sig
must reference lenient small escapes.sig p256.pub.pem - -
printf y >outside
must_not reference lenient small escapes.sig p256.pub.pem - -
finds oms-name-escapes small escapes.sig p256.pub.pem

# A colon in a name, in shards.
mkdir colon
printf x >colon/a:b
hostile x shards a:b:0:1 >colon.sig
must_not theirs colon colon.sig p256.pub.pem
finds oms-name-ambiguous colon colon.sig p256.pub.pem
must_not_sign colon --method shards

# A root without names: two folders that have nothing in common but their contents.
mkdir ab cd
printf 1 >ab/a
printf 2 >ab/b
printf 1 >cd/c
printf 2 >cd/d
for name in ab cd; do
  must reference sign "$name" "$name.sig" p256.key.pem files sha256
  must ours "$name" "$name.sig" p256.pub.pem
  grep -q '^oms-root-without-names ' out
  grep '^oms root ' out >"$name.oms-root"
  grep '^root ' out >"$name.root"
done
cmp ab.oms-root cd.oms-root
if cmp -s ab.root cd.root; then
  echo "the root of the files must depend on their names" >&2
  exit 1
fi
finds file-missing cd ab.sig p256.pub.pem

# What the signer left out, of which the reference says nothing.
cp -a model copy-git
mkdir copy-git/.github
echo x >copy-git/.github/added
must theirs copy-git ours-p256-files-sha256 p256.pub.pem
must ours copy-git ours-p256-files-sha256 p256.pub.pem
grep -q '^oms-path-ignored  .github/added' out

# A large file is never held whole: 1 GiB of holes in at most 32 MiB.
cat >peak.py <<'PY'
"""peak.py COMMAND...: its exit code, or 99 when it held more than 32 MiB."""
import os
import sys

pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print(f"{usage.ru_maxrss} KiB at most", file=sys.stderr)
sys.exit(99 if usage.ru_maxrss > 32 * 1024 else os.waitstatus_to_exitcode(status))
PY
peak() { timeout 300 "$python" peak.py "$@"; }
mkdir large
truncate -s 1G large/weights.bin
for kind in files-sha256 files-blake3 shards-sha256; do
  must peak "$bin/attest" sign weights large --key p256.key.pem -o "large-$kind" \
    --method "${kind%-*}" --hash "${kind#*-}"
  must peak "$bin/verify" weights large --oms "large-$kind" --key p256.pub.pem
done
must peak "$bin/verify" weights large --manifest large-shards-sha256 --key p256.pub.pem

echo "OMS: $count checks, both ways, agree"

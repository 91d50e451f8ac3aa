#!/usr/bin/env bash
# OpenSSF Model Signing, both ways, against the reference implementation:
# `verify` reads its bundles, it reads those of `attest`, and both refuse the same
# tampering. Every curve, files and shards, SHA-256 and (files only, as there) BLAKE3.
#
#   oms.sh [FOLDER OF attest AND verify] [PYTHON WITH model_signing]
#
# Without a Python the package is installed into a throw-away environment.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
bin=$(cd "${1:-$here/target/release}" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python=${2:-}
if [ -z "$python" ]; then
  python3 -m venv "$dir/venv"
  # model_signing 1.1.1 imports OpenSSL without asking for it.
  "$dir/venv/bin/pip" install --quiet --disable-pip-version-check model_signing==1.1.1 pyopenssl
  python=$dir/venv/bin/python
fi
cd "$dir"

cat >ref.py <<'PY'
"""ref.py sign|verify MODEL BUNDLE KEY METHOD HASH"""
import sys
from model_signing import hashing, signing, verifying

what, model, bundle, key, method, algorithm = sys.argv[1:]
if what == "verify":
    # All parameters are guessed from the bundle, as its command line does.
    verifying.Config().use_elliptic_key_verifier(public_key=key).verify(model, bundle)
else:
    config = hashing.Config()
    if method == "files":
        config.use_file_serialization(hashing_algorithm=algorithm)
    else:
        config.use_shard_serialization(hashing_algorithm=algorithm, shard_size=1000)
    signing.Config().use_elliptic_key_signer(private_key=key).set_hashing_config(
        config
    ).sign(model, bundle)
PY

mkdir -p model/sub model/sub-b
head -c 4321 /dev/urandom >model/weights.safetensors
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
ours() { "$bin/verify" weights "$1" --oms "$2" --key "$3"; }
theirs() { "$python" ref.py verify "$1" "$2" "$3" - -; }
both_refuse() {
  must_not ours "$@"
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

    must "$python" ref.py sign model "theirs-$curve-$kind" "$secret" "$method" "$hash"
    must ours model "theirs-$curve-$kind" "$public"

    must "$bin/attest" sign weights model --key "$secret" -o "ours-$curve-$kind" \
      --method "$method" --hash "$hash" "${shards[@]}"
    must ours model "ours-$curve-$kind" "$public"
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
  both_refuse copy ours-p256-shards-sha256 p256.pub.pem
}
tampered 'printf x | dd of=weights.safetensors bs=1 seek=4000 conv=notrunc status=none'
tampered 'truncate -s 4320 weights.safetensors'
tampered 'echo >>sub-b/config.json'
tampered 'rm sub/exact.bin'
tampered 'mv wörter.txt worter.txt'
tampered 'echo x >.stray'
tampered 'ln -s weights.safetensors link'
tampered 'mkfifo pipe'

# A signature over nothing, which the reference implementation accepts, and what the
# signer left out, of which it says nothing.
finds() {
  local code=$1
  shift
  must_not ours "$@"
  grep -q "^$code " out || { echo "no $code in:" && cat out && exit 1; } >&2
}
mkdir empty
must "$python" ref.py sign empty empty.sig p256.key.pem files sha256
must theirs empty empty.sig p256.pub.pem
finds oms-empty empty empty.sig p256.pub.pem
cp -a model copy-git && mkdir copy-git/.github && echo x >copy-git/.github/added
must theirs copy-git ours-p256-files-sha256 p256.pub.pem
must ours copy-git ours-p256-files-sha256 p256.pub.pem
grep -q '^oms-path-ignored  .github/added' out

echo "OMS: $count checks, both ways, agree"

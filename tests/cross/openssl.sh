#!/bin/sh
# Verifies an envelope file of ours with nothing but OpenSSL 3: rebuilds the
# DSSE pre-authentication encoding and checks one signature by the given key.
#
#   openssl.sh RECORD.intoto.jsonl KEY.pub.pem
#
# Without arguments it checks the committed vector. Our envelopes have one byte
# form, so sed can take them apart; this is no reader for other tools' files.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
record=${1:-$here/../vectors/dsse/hello-world.intoto.jsonl}
key=${2:-$here/../vectors/dsse/hello-world.pub.pem}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

keyid=$(openssl pkey -pubin -in "$key" -outform DER | openssl dgst -sha256 -binary | openssl base64 -A)
line=$(grep -F "\"keyid\":\"$keyid\"" "$record") || {
    echo "no signature by $keyid in $record" >&2
    exit 1
}
field() { printf '%s\n' "$line" | sed "s/.*\"$1\":\"\([^\"]*\)\".*/\1/"; }
field payload | openssl base64 -d -A >"$dir/payload"
field sig | openssl base64 -d -A >"$dir/sig"
type=$(field payloadType)
{
    printf 'DSSEv1 %d %s %d ' "${#type}" "$type" "$(wc -c <"$dir/payload")"
    cat "$dir/payload"
} >"$dir/pae"
openssl pkeyutl -verify -pubin -inkey "$key" -rawin -in "$dir/pae" -sigfile "$dir/sig"

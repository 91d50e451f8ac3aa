#!/bin/sh
# Audits bundles with the independent auditor, in a fresh virtual environment, and
# then shows with forgeries that it can fail: of the first one field by field, of the
# others in some of their figures.
# Usage: tests/independent/run.sh BUNDLE...
# Needs python3 (3.11 or later, with venv) and a package index for `cryptography`.
set -eu
[ $# -gt 0 ] || { echo "usage: $0 BUNDLE..." >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check 'cryptography>=42'
export PYTHONDONTWRITEBYTECODE=1
"$venv/bin/python" "$here/audit.py" --vectors "$here/../vectors" "$@"
"$venv/bin/python" "$here/tamper.py" "$1"
shift
[ $# -eq 0 ] || "$venv/bin/python" "$here/tamper.py" --figures "$@"

#!/bin/sh
# A full disk at every stage of a run: declaring, measuring, collecting, sealing.
# usage: disk-full.sh BINARIES   (as root; needs mount and unshare)
#
# Each run writes its evidence to a tmpfs a little larger than the last one. It
# must end in a sealed record or a clear error; a record that does not say
# "completed" may be there, but `verify record` must not exit 0 on anything less
# than a record; no process stays; and once there is space, what was declared can
# be closed.
set -eu

if [ "${1-}" = "" ]; then
    echo "usage: $0 BINARIES" >&2
    exit 2
fi
bin=$(cd "$1" && pwd)
[ -x "$bin/attest" ] && [ -x "$bin/verify" ] || { echo "disk-full: no attest and verify in $bin" >&2; exit 2; }
if [ "${RUNSEAL_OWN_MOUNTS-}" != yes ]; then
    [ "$(id -u)" = 0 ] || { echo "disk-full: needs root for its mounts" >&2; exit 2; }
    # Mounts made from here on vanish with this namespace.
    RUNSEAL_OWN_MOUNTS=yes exec unshare --mount --propagation private sh "$0" "$bin"
fi

work=$(mktemp -d)
disk=$work/disk
cleanup() {
    cd /
    umount "$disk" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
fail() { echo "disk-full: FAILED at $size KiB: $*" >&2; sed 's/^/    /' "$work/err" >&2; exit 1; }

# Nobody but this script may work in the folder.
left() {
    for p in /proc/[0-9]*; do
        [ "$(readlink "$p/cwd" 2>/dev/null)" = "$work" ] && [ "${p#/proc/}" != "$$" ] || continue
        # The subshell that looks is not a process of the run.
        case $(tr '\0' ' ' < "$p/cmdline" 2>/dev/null) in *attest*) echo "${p#/proc/}";; esac
    done
}

cd "$work"
mkdir disk
size=none
"$bin/attest" run > out 2> err || fail "the run on a disk with space"
bundle=$(echo evidence/*)
[ "$(du -sk --apparent-size "$bundle" | cut -f1)" -gt 0 ]
need=$(du -sk "$bundle" | cut -f1)
rm -rf evidence

declared=0 errors=0 failed=0 completed=0
steps=16
i=0
while [ "$i" -le "$steps" ]; do
    # From almost nothing to more than enough.
    size=$((8 + need * i * 5 / (steps * 4)))
    i=$((i + 1))
    mount -t tmpfs -o "size=${size}k" none "$disk"
    code=0
    timeout -k 5 120 "$bin/attest" run --out "$disk/evidence" > out 2> err || code=$?
    [ -z "$(left)" ] || fail "processes are left: $(left)"
    bundle=$(echo "$disk"/evidence/*)
    if [ -e "$bundle/record.intoto.jsonl" ]; then
        "$bin/verify" record "$bundle" --trusted-key keys/attest.pub.pem > audit 2>&1 || { cat audit >&2; fail "its record is not true"; }
        status=other
        for s in completed failed; do
            if "$bin/verify" record "$bundle" --trusted-key keys/attest.pub.pem --require-status "$s" > audit 2>&1; then
                status=$s
            fi
        done
        case $code/$status in
            0/completed) completed=$((completed + 1)) ;;
            1/failed) failed=$((failed + 1)) ;;
            *) fail "exit code $code with a record that says '$status'" ;;
        esac
    else
        [ "$code" = 2 ] || fail "exit code $code without a record"
        grep -q 'error: ' err && grep -q 'hint: ' err || fail "the error is not clear"
        errors=$((errors + 1))
        if [ -d "$bundle" ]; then
            if "$bin/verify" record "$bundle" --trusted-key keys/attest.pub.pem > audit 2>&1; then
                fail "verify record passes without a record"
            fi
            # Space again: the evidence so far is whole lines, and can be closed.
            mount -o "remount,size=64m" "$disk"
            if [ -s "$bundle/events.jsonl" ]; then
                [ "$(tail -c 1 "$bundle/events.jsonl" | od -An -c | tr -d ' ')" = '\n' ] || fail "a torn line"
                if grep -q '"e":"declare"' "$bundle/events.jsonl"; then
                    declared=$((declared + 1))
                    code=0
                    "$bin/attest" close "$bundle" > out 2> err || code=$?
                    [ "$code" = 1 ] || fail "close ended with $code"
                    "$bin/verify" record "$bundle" --trusted-key keys/attest.pub.pem > audit 2>&1 || { cat audit >&2; fail "the closed record is not true"; }
                    grep -q ABORTED audit || fail "the closed record does not say aborted"
                fi
            fi
        fi
    fi
    umount "$disk"
done
echo "disk-full: $errors errors without a record ($declared of them closed later), $failed sealed as failed, $completed completed"
# Sizes that only hit one stage would prove little.
[ "$errors" -ge 3 ] && [ "$declared" -ge 2 ] && [ "$completed" -ge 1 ] || fail "the sizes did not reach every stage"

#!/usr/bin/env python3
"""Shows that the independent auditor can fail: forges bundles and asks for its verdict.

Usage: tamper.py [--figures] BUNDLE...      --figures: only every seventh field of `metrics`, for want of time

The forger holds a key of its own and rewrites declaration, index and signature to fit, so that nothing but the edited
field is wrong. Unedited, the forgery must hold (whoever holds the key can do that; see docs/threat-model.md). With one
field of the record edited, the auditor must name that field. Exit code: 0 it always did, 1 it did not.
"""

import base64
import contextlib
import copy
import io
import shutil
import sys
import tempfile
from pathlib import Path

import formats as f
from audit import OWN, Broken, Bundle, audit, key_id
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

KIND = "application/vnd.in-toto+json"
STATED = ("provenance.tool", "provenance.signers")


class Forger:
    def __init__(self, bundle, folder):
        self.folder, self.key = folder, Ed25519PrivateKey.generate()
        shutil.copytree(bundle, folder)
        self.id = key_id(self.key.public_key())
        line = (folder / OWN[1]).read_bytes().splitlines()[0]
        self.statement = f.parse(base64.b64decode(f.parse(line)["payload"]))
        [signer] = self.statement["predicate"]["provenance"]["signers"]
        events = folder / "events.jsonl"
        events.write_bytes(events.read_bytes().replace(signer["keyid"].encode(), self.id.encode()))
        signer["keyid"] = self.id
        signer["public_key"] = self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        index = f.parse((folder / OWN[0]).read_bytes())
        for e in index["files"]:
            if e["path"] == "events.jsonl":
                e["sha256"], e["size"] = f.sha256(events.read_bytes()).hex(), events.stat().st_size
        (folder / OWN[0]).write_bytes(f.canonical(index) + b"\n")
        self.statement["subject"][-1]["digest"]["sha256"] = f.sha256((folder / OWN[0]).read_bytes()).hex()

    def sign(self, statement):
        payload = f.canonical(statement)
        sig = base64.b64encode(self.key.sign(f.pae(KIND, payload))).decode()
        envelope = {"payload": base64.b64encode(payload).decode(), "payloadType": KIND,
                    "signatures": [{"keyid": self.id, "sig": sig}]}
        (self.folder / OWN[1]).write_bytes(f.canonical(envelope) + b"\n")


def leaves(value, path=""):
    """Path and (container, key) of every leaf."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for k, v in items:
        at = f"{path}[{k}]" if isinstance(value, list) else f"{path}.{k}".lstrip(".")
        if at in STATED:
            continue
        if isinstance(v, (dict, list)):
            yield from leaves(v, at)
        else:
            yield at, value, k


def other(v):
    """A plausible other value."""
    if v is None:
        return 1
    if isinstance(v, (bool, int)):
        return not v if isinstance(v, bool) else v + 1
    if v[-1:].isdigit():
        return v[:-1] + str((int(v[-1]) + 1) % 10)
    return v + "x"


def found(folder, at):
    """Is the edited field among the findings?"""
    try:
        findings = Bundle(folder, ()).findings
    except (Broken, KeyError):
        return False
    return any(x.startswith(f"record.{at}: ") for x in findings)


def main():
    missed = edits = 0
    figures, bundles = "--figures" in sys.argv[1:], [a for a in sys.argv[1:] if a != "--figures"]
    for bundle in bundles:
        with tempfile.TemporaryDirectory() as tmp:
            forger = Forger(bundle, Path(tmp) / "bundle")
            forger.sign(forger.statement)
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                holds = audit(forger.folder, ())
            if not holds:
                print(f"{bundle}: the unedited forgery does not hold\n{said.getvalue()}")
                missed += 1
            predicate = copy.deepcopy(forger.statement)["predicate"]
            fields = list(leaves(predicate))
            if figures:
                fields = [x for x in fields if x[0].startswith("metrics")][::7]
            for at, container, key in fields:
                old = container[key]
                if key == "reason" and "integrity" in at:
                    continue  # reasons of not_checked are not derived by this auditor
                container[key] = other(old)
                forger.sign({**forger.statement, "predicate": predicate})
                container[key] = old
                edits += 1
                if not found(forger.folder, at):
                    print(f"{bundle}: the edited field {at} was not found")
                    missed += 1
    print(f"{edits} fields edited and signed again, {missed} not found")
    sys.exit(1 if missed or not edits else 0)


if __name__ == "__main__":
    main()

"""Makes the vectors of this folder with the `model_signing` package from PyPI.

    python make.py NAME METHOD HASH CURVE

signs ./model with a fresh key on CURVE, which is thrown away, and writes NAME.sig
and NAME.pub.pem. Shards have 1000 bytes. rawbytes.sig was made with version 1.0.1,
which embedded the key; all others with 1.1.1. `pyopenssl` must be installed too.
"""

import pathlib
import sys
import tempfile

from cryptography.hazmat.primitives import serialization as ser
from cryptography.hazmat.primitives.asymmetric import ec
from model_signing import hashing, signing

name, method, algorithm, curve = sys.argv[1:]
here = pathlib.Path(__file__).parent
key = ec.generate_private_key(
    {"p256": ec.SECP256R1, "p384": ec.SECP384R1, "p521": ec.SECP521R1}[curve]()
)
config = hashing.Config().set_ignored_paths(paths=["model.sig"])
if method == "files":
    config.use_file_serialization(hashing_algorithm=algorithm)
else:
    config.use_shard_serialization(hashing_algorithm=algorithm, shard_size=1000)


class Config(signing.Config):
    """Version 1.0.1 asks the network for sigstore's trust root, key or no key."""

    def __init__(self):
        self._hashing_config = self._signer = None


with tempfile.NamedTemporaryFile() as secret:
    secret.write(
        key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, ser.NoEncryption())
    )
    secret.flush()
    Config().use_elliptic_key_signer(private_key=secret.name).set_hashing_config(
        config
    ).sign(here / "model", here / f"{name}.sig")
(here / f"{name}.pub.pem").write_bytes(
    key.public_key().public_bytes(ser.Encoding.PEM, ser.PublicFormat.SubjectPublicKeyInfo)
)

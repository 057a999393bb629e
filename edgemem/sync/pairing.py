"""The pairing code that a person's devices share, and how what travels between them is sealed.

The code stands for 112 random bits. The key derived from them seals every file, and proves to the
other end of a connection that a device knows the code (`vault.Vault` does the sealing).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import zlib
from functools import lru_cache

from edgemem.config import require
from edgemem.errors import InputError, StoreCorrupt
from edgemem.store import Store
from edgemem.store.sync import begin, own_device
from edgemem.vault import Vault, of_key

__all__ = ["OtherCode", "code_of", "new_secret", "paired", "proof", "seal", "secret_of", "unseal"]

MAGIC = b"EDGESYN1"
SECRET_BYTES = 14
_ID_BYTES = 4  # of the key's id in each file, and of that id's checksum


class OtherCode(Exception):
    """Raised for a file that devices with another pairing code have written."""


def new_secret() -> bytes:
    """The random secret of a new pairing code."""
    require("sync")
    return os.urandom(SECRET_BYTES)


def code_of(secret: bytes) -> str:
    """The pairing code of a secret: six groups of four, the last two characters a checksum."""
    text = base64.b32encode(secret + _check(secret)).decode()
    return "-".join(text[i : i + 4] for i in range(0, len(text), 4))


def secret_of(code: str) -> bytes:
    """The secret of a pairing code; case, spaces and hyphens do not count. Raises InputError."""
    require("sync")
    text = code.upper().translate(str.maketrans("018", "OLB", " -\n\t"))
    try:
        raw = base64.b32decode(text)
    except (binascii.Error, ValueError):
        raw = b""
    secret = raw[:SECRET_BYTES]
    if len(secret) != SECRET_BYTES or raw[SECRET_BYTES:] != _check(secret):
        short = f"it has {len(text)} letters and digits, and 24 are right"
        slip = "one of its 24 letters and digits is another" if len(text) == 24 else short
        raise InputError(
            f"the pairing code has a slip of the pen: {slip}; `edgemem sync --show-code` shows it "
            "on a device that has it"
        )
    return secret


def paired(store: Store, code: str | None) -> bytes:
    """The secret of a store, created if it has none. code: a pairing code to adopt.

    Raises InputError if the code is mistyped.
    """
    me = own_device(store)
    if me is not None and (code is None or secret_of(code) == me.secret):
        return me.secret
    return begin(store, new_secret() if code is None else secret_of(code)).secret


def _check(secret: bytes) -> bytes:
    return hashlib.blake2b(secret, digest_size=1, person=b"edgemem code").digest()


@lru_cache(maxsize=8)
def _key(secret: bytes) -> Vault:
    return of_key(hashlib.blake2b(secret, digest_size=32, person=b"edgemem sync").digest())


def seal(secret: bytes, data: bytes, name: str) -> bytes:
    """The bytes of the file `name`: MAGIC, the key's id with its checksum, and the sealed data."""
    key = _key(secret)
    return MAGIC + _named(bytes.fromhex(key.id)[:_ID_BYTES]) + key.seal(data, name)


def unseal(secret: bytes, data: bytes | None, name: str) -> bytes | None:
    """The data of a file; None if it is missing, damaged, or was sealed under another name.

    Raises OtherCode if it was sealed with another secret.
    """
    key, start = _key(secret), len(MAGIC) + 2 * _ID_BYTES
    if data is None or len(data) <= start or not data.startswith(MAGIC):
        return None
    id = data[len(MAGIC) : start - _ID_BYTES]
    if data[len(MAGIC) : start] != _named(id):
        return None
    if id != bytes.fromhex(key.id)[:_ID_BYTES]:
        raise OtherCode
    try:
        return key.unseal(data[start:], name)
    except StoreCorrupt:
        return None


def _named(id: bytes) -> bytes:
    return id + zlib.crc32(id).to_bytes(_ID_BYTES, "big")


def proof(secret: bytes, *said: bytes) -> str:
    """The HMAC-SHA-256 of some bytes under a key made of the secret, in hexadecimal."""
    return hmac.new(_key(secret).subkey("proof"), b"\0".join(said), "sha256").hexdigest()

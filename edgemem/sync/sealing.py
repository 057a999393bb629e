"""How what travels is sealed, and the pairing code that lets a device open it.

A person's devices share one random secret of 112 bits, shown as a code of 24 letters and digits.
Keys are derived from it; files are sealed with XChaCha20-Poly1305 by PyNaCl (libsodium).
"""

from __future__ import annotations

import base64
import hmac
import os
from types import ModuleType

from edgemem.errors import InputError, StoreError

__all__ = ["OtherCode", "code_of", "new_secret", "open_sealed", "proof", "seal", "secret_of"]

MAGIC = b"EDGESYN1"
SECRET_BYTES = 14
_NAME_BYTES, _NONCE_BYTES, _TAG_BYTES = 4, 24, 16


class OtherCode(Exception):
    """A file that was sealed with another secret."""


def _nacl() -> ModuleType:
    try:
        import nacl.bindings
        import nacl.hash
    except ImportError as exc:
        raise StoreError(
            "sync seals what it writes with PyNaCl; pip install 'edgemem-runtime[vault]'"
        ) from exc
    return nacl


def new_secret() -> bytes:
    return os.urandom(SECRET_BYTES)


def code_of(secret: bytes) -> str:
    """The pairing code of a secret: six groups of four, the last two characters a checksum."""
    text = base64.b32encode(secret + _derived(secret, b"check")[:1]).decode()
    return "-".join(text[i : i + 4] for i in range(0, len(text), 4))


def secret_of(code: str) -> bytes:
    """The secret of a pairing code; case, spaces and hyphens do not count. Raises InputError."""
    text = "".join(code.upper().split()).replace("-", "").replace("0", "O").replace("1", "I")
    try:
        raw = base64.b32decode(text)
    except ValueError:
        raw = b""
    secret = raw[:-1]
    if len(raw) != SECRET_BYTES + 1 or raw[-1:] != _derived(secret, b"check")[:1]:
        raise InputError(
            f"{code!r:.60} is no pairing code (six groups of four letters and digits, the last two "
            "of them a checksum); `edgemem sync --code` shows it on a device that has it"
        )
    return secret


def _derived(secret: bytes, purpose: bytes) -> bytes:
    nacl = _nacl()
    digest: bytes = nacl.hash.blake2b(
        secret, digest_size=32, person=b"edgemem-" + purpose, encoder=nacl.encoding.RawEncoder
    )
    return digest


def seal(secret: bytes, data: bytes, context: str) -> bytes:
    """Seal data; context: what it is, without which it cannot be opened (files cannot be swapped).

    The result: MAGIC, four bytes that name the secret, a random nonce, the ciphertext with its tag.
    """
    nonce = os.urandom(_NONCE_BYTES)
    key, name = _derived(secret, b"seal"), _derived(secret, b"name")[:_NAME_BYTES]
    sealed: bytes = _nacl().bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(
        data, MAGIC + context.encode(), nonce, key
    )
    return MAGIC + name + nonce + sealed


def open_sealed(secret: bytes, data: bytes | None, context: str) -> bytes | None:
    """What was sealed; None if it is not whole, or another file. Raises OtherCode."""
    start = len(MAGIC) + _NAME_BYTES
    least = start + _NONCE_BYTES + _TAG_BYTES
    if data is None or len(data) < least or not data.startswith(MAGIC):
        return None
    if data[len(MAGIC) : start] != _derived(secret, b"name")[:_NAME_BYTES]:
        raise OtherCode
    nacl = _nacl()
    nonce, sealed = data[start : start + _NONCE_BYTES], data[start + _NONCE_BYTES :]
    try:
        opened: bytes = nacl.bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(
            sealed, MAGIC + context.encode(), nonce, _derived(secret, b"seal")
        )
    except nacl.exceptions.CryptoError:
        return None
    return opened


def proof(secret: bytes, *said: bytes) -> str:
    """What only a device with the secret can say about some bytes, in hexadecimal."""
    return hmac.new(_derived(secret, b"proof"), b"\0".join(said), "sha256").hexdigest()

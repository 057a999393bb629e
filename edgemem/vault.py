"""The key of an encrypted store, and the sealed copies of it in `STORE.vault` beside the store.

Knows keys, passphrases and sealed bytes; knows no SQLite and no rows. The only importer of nacl and
keyring.

The key is 32 random bytes that never change. A *way* is a copy of the key, sealed by
XChaCha20-Poly1305. The wrapping key comes from a passphrase (Argon2id), from the system's keyring,
or from a file that only its owner may read. The recovery code is the key itself in letters; it
opens the store without any other file.

Subkeys derive from the key: one for SQLite's pages, one for each kind of file beside the store.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import json
import os
import secrets
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

from edgemem.cachefile import disk_errors, replace_file, sync_folder
from edgemem.config import config_dir, require
from edgemem.errors import InputError, StoreCorrupt, VaultLocked

__all__ = ["FORMAT", "IMPORT_VARIABLE", "PASSPHRASES", "PASSPHRASE_VARIABLE", "Vault", "Way"]
__all__ += ["checked", "create", "is_vault", "keyring_works", "new_key", "of_key", "open_ways"]
__all__ += ["read", "remove", "set_passphrase", "set_state", "unlock"]

FORMAT = 1
PASSPHRASE_VARIABLE = "EDGEMEM_PASSPHRASE"
IMPORT_VARIABLE = "EDGEMEM_IMPORT_PASSPHRASE"  # of an export that another vault has sealed
PASSPHRASES = (PASSPHRASE_VARIABLE, IMPORT_VARIABLE)
LEAST_PASSPHRASE = 8
# RFC 9106's second recommended option, but with one lane: libsodium has no more.
OPS, MEM_BYTES = 3, 64 * 2**20
MOST_OPS, MOST_MEM_BYTES = 16, 2**30  # accepted from a file, which anyone may have written
MOST_FILE_BYTES = 100_000
_SERVICE = "edgemem"
_VERSION, _NONCE = b"\x01", 24  # sealed bytes are version, nonce, ciphertext and tag
_GROUP, _CHECK_BYTES = 4, 3

Way = Literal["keyring", "passphrase", "file"]
State = Literal["locking", "locked", "unlocking"]


class Vault:
    """The key of one store.

    id: identifies the key without revealing it. page_key: the subkey for SQLite's pages.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.id = self.subkey("id").hex()[:32]
        self.page_key = self.subkey("pages")

    def __repr__(self) -> str:
        return f"Vault({self.id})"

    def subkey(self, purpose: str) -> bytes:
        """Returns 32 bytes for one purpose; the subkeys of two purposes are independent."""
        return hashlib.blake2b(purpose.encode(), key=self._key, digest_size=32).digest()

    def seal(self, data: bytes, purpose: str) -> bytes:
        """Returns the data encrypted and authenticated, 41 bytes longer, for `unseal`."""
        return _sealed(self.subkey(purpose), data, purpose)

    def unseal(self, data: bytes, purpose: str) -> bytes:
        """Returns the sealed data. Raises StoreCorrupt on a changed byte, wrong key or purpose."""
        opened = _unsealed(self.subkey(purpose), data, purpose)
        if opened is None:
            raise StoreCorrupt(
                f"sealed bytes ({purpose}) were changed, or belong to another store; go back to "
                "a copy of them"
            )
        return opened

    def recovery_code(self) -> str:
        """Returns the key and a checksum as letters and digits, in groups of four."""
        text = base64.b32encode(self._key + _check(self._key)).decode()
        return "-".join(text[i : i + _GROUP] for i in range(0, len(text), _GROUP))


def _sealed(key: bytes, data: bytes, purpose: str) -> bytes:
    from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_encrypt as encrypt

    nonce = secrets.token_bytes(_NONCE)
    return _VERSION + nonce + encrypt(data, purpose.encode(), nonce, key)


def _unsealed(key: bytes, data: bytes, purpose: str) -> bytes | None:
    from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_decrypt as decrypt
    from nacl.exceptions import CryptoError

    head = len(_VERSION) + _NONCE
    if not data.startswith(_VERSION) or len(data) < head + 16:
        return None
    try:
        return decrypt(data[head:], purpose.encode(), data[len(_VERSION) : head], key)
    except CryptoError:
        return None


def new_key() -> Vault:
    """Returns a vault with a new, random key."""
    require("vault")
    return Vault(secrets.token_bytes(32))


def of_key(key: bytes | str) -> Vault:
    """Returns the vault of a key: 32 bytes, or a recovery code. Else raises InputError."""
    require("vault")
    if not isinstance(key, bytes | str):
        raise TypeError(f"a key must be 32 bytes or a recovery code, not {type(key).__name__}")
    if isinstance(key, bytes):
        if len(key) != 32:
            raise InputError(f"a key is 32 bytes, this one has {len(key)}; give a recovery code")
        return Vault(key)
    text = "".join(key.upper().split()).replace("-", "")
    # Misread characters: the digits 0, 1 and 8 are not in the alphabet, O, I, L and B are.
    for one in "IL":
        with suppress(ValueError):
            data = base64.b32decode(text.translate(str.maketrans("018", f"O{one}B")))
            if len(data) == 32 + _CHECK_BYTES and _check(data[:32]) == data[32:]:
                return Vault(data[:32])
    raise InputError(
        f"the recovery code has a slip of the pen ({len(text)} letters and digits, 56 are right); "
        "compare it with what you printed"
    )


def _check(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=_CHECK_BYTES).digest()


# --- the file of the ways ---------------------------------------------------------------------


def vault_file(store: Path) -> Path:
    return store.with_name(store.name + ".vault")


def is_vault(store: Path) -> bool:
    """Whether a store is a vault, or is being encrypted or decrypted."""
    return vault_file(store).exists()


def read(store: Path) -> dict[str, Any] | None:
    """Returns the content of `STORE.vault` (id, state, ways), or None without that file.

    Raises StoreCorrupt if the file is damaged.
    """
    file = vault_file(store)
    try:
        with file.open("rb") as opened:
            return checked(json.loads(opened.read(MOST_FILE_BYTES)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as exc:
        raise StoreCorrupt(
            f"{file} is damaged ({exc}); go back to a copy of it, or open the store with its "
            "recovery code"
        ) from exc


def checked(found: Any) -> dict[str, Any]:
    """Returns `found` if it is the content of a vault's file. Raises ValueError otherwise."""
    try:
        texts = [found["id"], *(way[name] for way in found["ways"] for name in ("by", "box"))]
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']!r:.20}, this edgemem knows {FORMAT}")
        if found["state"] not in get_args(State) or not all(isinstance(t, str) for t in texts):
            raise ValueError("no state, no id or no ways")
    except (TypeError, KeyError, AttributeError) as exc:
        raise ValueError(f"no file of a vault: {exc}") from exc
    return found  # type: ignore[no-any-return]


def _write(store: Path, vault_id: str, state: State, ways: list[dict[str, Any]]) -> None:
    text = json.dumps({"format": FORMAT, "id": vault_id, "state": state, "ways": ways}, indent=1)
    _replace(vault_file(store), text.encode())


def _replace(file: Path, data: bytes) -> None:
    """Writes a file as `replace_file` does, with its folder. Raises StoreFull."""
    with disk_errors(f"cannot write {file}", "make its folder writable, or free some disk space"):
        file.parent.mkdir(0o700, parents=True, exist_ok=True)
        for half in file.parent.glob(f".{glob.escape(file.name)}.*"):
            half.unlink(missing_ok=True)  # a killed writer left it; it may hold an old way
        replace_file(file, data)


def create(
    store: Path,
    vault: Vault,
    *,
    way: Way | None,
    passphrase: str | None = None,
    state: State = "locked",
) -> None:
    """Writes `STORE.vault` with one way to the key; with none if `way` is None.

    Raises InputError if the passphrase is too short, VaultLocked if the keyring refuses.
    """
    _write(store, vault.id, state, [] if way is None else [_way(vault, way, passphrase)])


def set_state(store: Path, state: State) -> None:
    """Records whether the store is being encrypted, is encrypted, or is being decrypted."""
    if (found := read(store)) is not None:
        _write(store, found["id"], state, found["ways"])


def set_passphrase(store: Path, vault: Vault, passphrase: str) -> None:
    """Replaces the vault's passphrase. Other ways stay."""
    ways = (read(store) or {"ways": []})["ways"]
    others = [way for way in ways if way["by"] != "passphrase"]
    _write(store, vault.id, "locked", [*others, _way(vault, "passphrase", passphrase)])


def remove(store: Path) -> None:
    """Deletes `STORE.vault` and its wrapping keys. The store must be decrypted already."""
    if (found := read(store)) is not None:
        kinds = {way["by"] for way in found["ways"]}
        if "keyring" in kinds:
            by_keyring(lambda ring: ring.delete_password(_SERVICE, found["id"]))
        if "file" in kinds:
            _key_file(found["id"]).unlink(missing_ok=True)
    vault_file(store).unlink(missing_ok=True)
    sync_folder(store.parent)


# --- ways to the key --------------------------------------------------------------------------


def _way(vault: Vault, way: Way, passphrase: str | None) -> dict[str, Any]:
    """Returns a new way for the file, and stores its wrapping key in the keyring or key file."""
    if way == "passphrase":
        salt = _text(secrets.token_bytes(16))
        more = {"kdf": "argon2id", "ops": OPS, "mem_bytes": MEM_BYTES, "salt": salt}
        given = _normal(passphrase or "")
        if (length := len(given.decode("utf-8", "surrogatepass"))) < LEAST_PASSPHRASE:
            raise InputError(
                f"a passphrase has at least {LEAST_PASSPHRASE} characters, this one has "
                f"{length}; four or five words that do not belong together are good"
            )
        wrapping = _argon2(given, more)
    else:
        more, wrapping = {}, secrets.token_bytes(32)
        if way == "file":
            _replace(_key_file(vault.id), _text(wrapping).encode() + b"\n")
        elif not by_keyring(lambda r: [r.set_password(_SERVICE, vault.id, _text(wrapping))]):
            raise VaultLocked(
                "the system's keyring refuses to keep a key; use a passphrase or a key file"
            )
    return {"by": way, **more, "box": _text(_sealed(wrapping, vault._key, f"{way} {vault.id}"))}


def unlock(store: Path, *, key: bytes | str | None = None, passphrase: str | None = None) -> Vault:
    """Returns the vault of an encrypted store.

    key: the 32 bytes, or the recovery code. passphrase: the passphrase, or the recovery code.
    Without both, the variable EDGEMEM_PASSPHRASE and the ways in `STORE.vault` are tried.
    Raises VaultLocked if none fits, StoreCorrupt if `STORE.vault` is damaged.
    """
    require("vault")
    found = read(store)
    if found is None and key is None:
        raise VaultLocked(f"{vault_file(store)} is not there; give the store's recovery code")
    vault = of_key(key) if key is not None else open_ways(found or {}, str(store), passphrase)
    if found is not None and found["id"] != vault.id:
        raise VaultLocked(f"the key is not that of {store}; it belongs to another vault")
    return vault


def open_ways(
    found: Mapping[str, Any],
    name: str,
    passphrase: str | None = None,
    variable: str = PASSPHRASE_VARIABLE,
) -> Vault:
    """Returns the vault that the ways in `found` open; see `unlock`, also for the errors.

    found: the result of `read`. name: names the vault in errors. variable: is tried before
    EDGEMEM_PASSPHRASE.
    """
    given = passphrase or os.environ.get(variable) or os.environ.get(PASSPHRASE_VARIABLE)
    for way in found["ways"]:
        wrapping = _wrapping(way, found["id"], given, explicit=passphrase is not None)
        with suppress(ValueError):
            box = base64.b64decode(way["box"])
            opened = wrapping and _unsealed(wrapping, box, f"{way['by']} {found['id']}")
            if opened:
                return Vault(opened)
    if given is not None:
        try:
            return of_key(given)
        except InputError:
            raise VaultLocked(
                f"the passphrase does not open {name}; type it again, or give the recovery code "
                f"(without a terminal: in {variable})"
            ) from None
    kinds = ", ".join(way["by"] for way in found["ways"]) or "the key itself alone"
    raise VaultLocked(
        f"{name} is a vault and its key is not at hand (ways to it: {kinds}); give the passphrase "
        f"or the recovery code: at a terminal you are asked, elsewhere set {variable}, "
        "or call Memory(path, passphrase=…)"
    )


def _wrapping(
    way: dict[str, Any], vault_id: str, passphrase: str | None, *, explicit: bool
) -> bytes | None:
    """Returns the key that seals a way's copy; None if it is not available."""
    if way["by"] == "passphrase":
        return None if passphrase is None else _argon2(_normal(passphrase), way)
    if explicit:  # else a wrong passphrase would seem right, as the keyring opens the vault
        return None
    with suppress(OSError, ValueError):
        if way["by"] == "keyring":
            text = by_keyring(lambda ring: ring.get_password(_SERVICE, vault_id)) or ""
        else:
            text = _key_file(vault_id).read_text(encoding="ascii")
        wrapping = base64.b64decode(text)
        return wrapping if len(wrapping) == 32 else None
    return None


def _argon2(passphrase: bytes, way: dict[str, Any]) -> bytes:
    from nacl.pwhash import argon2id

    try:
        ops, mem, salt = int(way["ops"]), int(way["mem_bytes"]), base64.b64decode(way["salt"])
        if way["kdf"] != "argon2id" or not (0 < ops <= MOST_OPS and mem <= MOST_MEM_BYTES):
            raise ValueError(f"{way['kdf']}, {ops} passes over {mem} bytes")
        return argon2id.kdf(32, passphrase, salt, opslimit=ops, memlimit=mem)
    except (KeyError, TypeError, ValueError) as exc:
        raise StoreCorrupt(
            f"the vault's file has no usable parameters for a passphrase ({exc}); go back to a "
            "copy of it, or give the recovery code"
        ) from exc


def _normal(passphrase: str) -> bytes:
    """Returns the same bytes for a passphrase, however the keyboard composes its letters."""
    return unicodedata.normalize("NFKC", passphrase).encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _key_file(vault_id: str) -> Path:
    if len(vault_id) != 32 or not vault_id.isalnum():
        raise StoreCorrupt(f"the vault's file has the id {vault_id!r:.80}; go back to a copy of it")
    return config_dir() / "keys" / f"{vault_id}.key"


def keyring_works() -> bool:
    """Whether a system keyring stores what it is given. The keyring may ask to be opened."""
    name, secret = f"trial-{secrets.token_hex(4)}", secrets.token_hex(8)

    def trial(ring: Any) -> bool:
        ring.set_password(_SERVICE, name, secret)
        kept = bool(ring.get_password(_SERVICE, name) == secret)
        ring.delete_password(_SERVICE, name)
        return kept

    return bool(by_keyring(trial))


def by_keyring(ask: Callable[[Any], Any]) -> Any:
    """Returns `ask(keyring)` for the system's keyring; None if there is none, or it refuses."""
    try:
        import keyring

        ring = keyring.get_keyring()
        return ask(ring) if ring.priority >= 1 else None
    except Exception:  # each backend has its own errors, and a broken one counts as none
        return None

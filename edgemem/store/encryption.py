"""Encrypts a plain store and decrypts a vault, in a way that survives a power failure at any time.

The file is copied (VACUUM INTO), the copy is checked, and then it replaces the file in one step.
No other process can open the file meanwhile. `STORE.vault` is written first and says whether the
store is being encrypted or decrypted, so the next open finishes or undoes an interrupted move:

    STORE.moving   the copy, until it replaces the file
    STORE.old      a second name of the previous file, until that is overwritten

Plain data is overwritten with zeros before it is deleted. A disk that writes elsewhere (flash,
a copy-on-write file system, a snapshot) may keep the old bytes; nothing here can reach those.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from edgemem import vault as vaults
from edgemem.cachefile import disk_errors, half_exports, sync_folder
from edgemem.errors import ConfigError, InputError, StoreError, StoreLocked, VaultLocked
from edgemem.inputs import of_type
from edgemem.store import images, schema
from edgemem.store.database import (
    HALF_BACKUP,
    PLAIN,
    generation,
    identity,
    integrity,
    is_encrypted,
    open_file,
    resolved,
    sqlite_errors,
    uri,
    work_lock,
)
from edgemem.vault import Vault, Way

__all__ = ["decrypt", "encrypt", "find_vault", "is_of_store", "is_plain", "remove_unwritten"]
__all__ += ["unlock_or_create"]

_CREATION_S = 60.0  # Argon2 takes a second or two on a fast machine
_BLOCK = 1 << 20
# What may lie beside a store: caches, their stamps, backup copies, and leftovers of any of these.
_BESIDE = re.compile(rf"\.(hnsw|metric)(\..*)?|\.v\d+({HALF_BACKUP})?\.bak(-\w+)?")
_threads_lock = threading.Lock()
# The open stores of this process. SQLite's locks would not keep this process out of their files.
OPEN: weakref.WeakSet[Any] = weakref.WeakSet()


def is_plain(file: Path) -> bool:
    """Whether a file begins as an SQLite file that anyone may read."""
    with suppress(FileNotFoundError), file.open("rb") as opened:
        return opened.read(len(PLAIN)) == PLAIN
    return False


def is_of_store(file: Path) -> bool:
    """Whether a file is a store, has the name of its log, lock or keys, or is among its images.

    A store that this process has open is not read: see `database.make_file`.
    """
    named = file.parent if file.parent.suffix == ".images" else file
    beside = ("", "-wal", "-shm", ".lock", ".vault", ".images")
    stores = {named.parent / named.name.removesuffix(end) for end in beside}
    open_here = {identity(store.path) for store in OPEN}
    return any(
        store.is_file() and (identity(store) in open_here or is_plain(store) or is_encrypted(store))
        for store in stores
    )


def remove_unwritten(file: Path) -> None:
    """Removes a store to which nothing was ever written, unless a program has it open.

    Does nothing if that cannot be done, as to a vault that EDGEMEM_PASSPHRASE does not open. A
    program that opens the store just then is told at its first write that it was removed.
    """
    name = str(file)
    with suppress(StoreError, OSError), sqlite_errors(name):
        # First, as reading a file that this process has open would end SQLite's locks on it.
        if any(store.path == file for store in OPEN):
            return
        vault = vaults.unlock(file) if vaults.is_vault(file) else None
        if not (is_encrypted(file) if vault else is_plain(file)):
            return
        key = None if vault is None else vault.page_key
        with closing(open_file(name, 0.0, key)) as alone:
            alone.execute("PRAGMA locking_mode = EXCLUSIVE")
            alone.execute("BEGIN EXCLUSIVE")  # refused while any other connection is open
            if generation(alone) == 0:
                if vault:  # first, or a program could fill a new file whose key then goes
                    vaults.remove(file)
                for suffix in ("-wal", "-shm", ""):  # no log outlives its store
                    _beside(file, suffix).unlink(missing_ok=True)


def find_vault(file: Path, vault: Vault | None, timeout_s: float) -> Vault | None:
    """The vault that opens a store's file; None for a plain store. Finishes an interrupted move.

    vault: the caller's; None looks for the key (`vault.unlock`). Without a `STORE.vault`, the
    caller's is taken unchecked, and a recovery code in EDGEMEM_PASSPHRASE opens an encrypted file.
    Raises VaultLocked, StoreLocked, StoreCorrupt.
    """
    found = vaults.read(file)
    if found is None:
        code = os.environ.get(vaults.PASSPHRASE_VARIABLE)
        if vault is None and code:
            with suppress(InputError, ConfigError):
                known = vaults.of_key(code)
                return known if is_encrypted(file) else None
        return vault
    if found["state"] != "locked":
        with _exclusively(file, timeout_s):
            _finish(file)
        return find_vault(file, vault, timeout_s)
    if vault is not None and vault.id != found["id"]:
        raise VaultLocked(f"the key is not that of {file}; it belongs to another vault")
    return vault or vaults.unlock(file)


def unlock_or_create(
    path: str | os.PathLike[str], key: bytes | str | None, passphrase: str | None
) -> Vault | None:
    """The vault of a caller's key or passphrase; creates `STORE.vault` if there is no store yet.

    Returns None if neither is given, or for a store in memory; `Store.open` then looks for the key.
    Raises InputError if both are given, or a passphrase for a plain store; TypeError if that is no
    string; VaultLocked if the key or passphrase is wrong.
    """
    of_type(passphrase, str | None, "passphrase must be a string")
    if key is not None and passphrase is not None:
        raise InputError("a key and a passphrase were given; a store is opened by one of them")
    if (key is None and passphrase is None) or os.fspath(path) == ":memory:":
        return None
    file = resolved(path)
    # First, as another process may create a vault now: `STORE.vault`, and then the file.
    stored = file.exists() and file.stat().st_size > 0
    if vaults.is_vault(file):
        return vaults.unlock(file, key=key, passphrase=passphrase)
    if stored:  # a vault may have lost its `STORE.vault`
        if key is not None:
            return vaults.of_key(key)
        with suppress(InputError):
            return vaults.of_key(passphrase or "")
        raise InputError(
            f"{file} is no vault; open it without a passphrase, or encrypt it: edgemem vault lock "
            f"(if {file.name}.vault is missing, copy it too, or give the recovery code)"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    with _exclusively(file, _CREATION_S):
        if vaults.is_vault(file):  # another process created it meanwhile
            return vaults.unlock(file, key=key, passphrase=passphrase)
        vault = vaults.new_key() if key is None else vaults.of_key(key)
        way: Way | None = "passphrase" if key is None else None
        vaults.create(file, vault, way=way, passphrase=passphrase)
    return vault


def encrypt(
    path: str | os.PathLike[str], way: Way, passphrase: str | None = None, timeout_s: float = 5.0
) -> Vault:
    """Encrypt a plain store that no process has open; returns its new vault.

    way: where the key is kept. passphrase: only for the way "passphrase". Leaves no plain copy
    beside the store. Raises StoreLocked if the store is open somewhere, StoreFull if a second copy
    does not fit, StoreError if there is no plain store, InputError if the passphrase is too short.
    """
    file = _store(path)
    with _exclusively(file, timeout_s):
        if vaults.read(file) is not None:
            _finish(file)
        if not is_plain(file):
            raise StoreError(f"{file} is no plain store; `edgemem vault status` says what it is")
        vault = vaults.new_key()
        vaults.create(file, vault, way=way, passphrase=passphrase, state="locking")
        try:
            _move(file, None, vault.page_key, timeout_s)
        finally:
            _finish(file)
    return vault


def decrypt(path: str | os.PathLike[str], vault: Vault, timeout_s: float = 5.0) -> None:
    """Decrypt a vault that no process has open into a plain store.

    Raises StoreLocked and StoreFull as `encrypt` does, StoreError if the store is plain already.
    """
    file = _store(path)
    with _exclusively(file, timeout_s):
        if vaults.read(file) is None:
            vaults.create(file, vault, way=None)
        _finish(file)
        if is_plain(file):
            raise StoreError(f"{file} is a plain store already")
        vaults.set_state(file, "unlocking")
        try:
            _move(file, vault.page_key, None, timeout_s)
        finally:
            _finish(file)


def _store(path: str | os.PathLike[str]) -> Path:
    file = resolved(path)
    if any(store.path == file for store in OPEN):
        raise StoreLocked(f"{file} is open in this program; close it and try again")
    if not file.is_file() or not file.stat().st_size:
        raise StoreError(f"there is no store at {file}; give the path of one")
    return file


@contextmanager
def _exclusively(file: Path, timeout_s: float) -> Iterator[None]:
    with work_lock(file, _threads_lock, timeout_s) as mine:
        if not mine:
            raise StoreLocked(f"another process works on {file}; close it and try again")
        yield


def _move(file: Path, old_key: bytes | None, new_key: bytes | None, timeout_s: float) -> None:
    """Replace the file by a copy under new_key. The previous file is `.old` until `_finish`."""
    copy, old = _beside(file, ".moving"), _beside(file, ".old")
    options = "key=" if new_key is None else f"cipher=chacha20&key=raw:{new_key.hex()}"
    target = uri(copy, options)
    with (
        sqlite_errors(str(file)),
        closing(open_file(str(file), timeout_s, old_key, by_apsw=True)) as now,
    ):
        # From the next statement on, no other connection can use the file until this one closes.
        now.execute("PRAGMA locking_mode = EXCLUSIVE")
        now.execute("BEGIN EXCLUSIVE")
        now.execute("COMMIT")
        schema.inspect(now, str(file))
        now.execute("PRAGMA temp_store = MEMORY")
        with disk_errors(
            f"{file} cannot be replaced", "make its folder writable, or free some disk space"
        ):
            if old_key is None:
                images.copy_into_rows(now, _beside(file, ".images"))
            now.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
            if (wal := _beside(file, "-wal")).exists():  # the checkpoint moved it all into the file
                _overwrite(wal)
            now.execute("PRAGMA journal_mode = DELETE").fetchall()
            copy.unlink(missing_ok=True)
            os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            now.execute("VACUUM INTO ?", (target,))
            _require_whole(copy, new_key)
            with copy.open("rb+") as written:
                os.fsync(written.fileno())
            for name in ("-wal", "-shm", "-journal"):
                _shred(_beside(file, name))
            os.link(file, old)
            os.replace(copy, file)
            sync_folder(file.parent)
            if old_key is None:
                _overwrite(old)  # before a process that waited for the file can write to it


def _require_whole(copy: Path, key: bytes | None) -> None:
    with closing(open_file(str(copy), 5.0, key, by_apsw=True)) as made:
        schema.inspect(made, str(copy))
        wrong = integrity(made)
    if wrong:
        raise StoreError(f"the copy of the store is not whole ({wrong[0]}); run `edgemem doctor`")


def _finish(file: Path) -> None:
    """Finish or undo a move, wherever it stopped: leave a vault or a plain store, and no leftovers.

    Raises StoreFull if a leftover file cannot be deleted.
    """
    found = vaults.read(file)
    if found is None:
        return
    plain, old = is_plain(file), _beside(file, ".old")
    with disk_errors(
        f"what is left of the plain store beside {file} cannot be deleted",
        "make its folder writable, then open the store again",
    ):
        for suffix in (".moving", ".moving-journal"):
            _shred(_beside(file, suffix))
        if old.exists() and old.samefile(file):
            old.unlink()
        _shred(old)
        if found["state"] != "locked":
            for beside in list(file.parent.iterdir()):
                rest = beside.name.removeprefix(file.name)
                if rest != beside.name and _BESIDE.fullmatch(rest) and beside.is_file():
                    _shred(beside)
            for left in half_exports(file.parent):
                _shred(left)
        if not plain and (folder := _beside(file, ".images")).is_dir():  # all are in the vault
            for image in folder.iterdir():
                _shred(image)
            folder.rmdir()
    if plain:
        vaults.remove(file)
    else:
        vaults.set_state(file, "locked")


def _shred(file: Path) -> None:
    """Overwrite a file with zeros and delete it. A missing file is fine."""
    with suppress(FileNotFoundError):
        _overwrite(file)
        file.unlink()


def _overwrite(file: Path) -> None:
    with file.open("rb+") as opened:
        left = os.fstat(opened.fileno()).st_size
        while left > 0:
            left -= opened.write(bytes(min(left, _BLOCK)))
        opened.flush()
        os.fsync(opened.fileno())


def _beside(file: Path, suffix: str) -> Path:
    return file.with_name(file.name + suffix)

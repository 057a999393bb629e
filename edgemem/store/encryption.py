"""A plain store becomes a vault, and a vault a plain store, at whatever instant the power fails.

The file is copied (VACUUM INTO), checked, and put in its own place in one step, while no other
process can open it. `STORE.vault` is written first and says which way the store is going, so the
next open finishes or undoes what was interrupted:

    STORE.moving   the copy, until it is whole
    STORE.old      a second name of the file from before, until it is overwritten

What was plain is overwritten with zeros before it is deleted. A disk that writes elsewhere (flash,
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
from edgemem.cachefile import sync_folder
from edgemem.errors import InputError, StoreError, StoreFull, StoreLocked, VaultLocked
from edgemem.store import images, schema
from edgemem.store.database import open_with_apsw, resolved, sqlite_errors, work_lock
from edgemem.vault import Vault, Way

__all__ = ["decrypt", "encrypt", "is_plain", "vault_for", "vault_of"]

_PLAIN = b"SQLite format 3\0"
_BLOCK = 1 << 20
# What a store leaves beside itself: caches and their stamps, backup copies, their remains.
_BESIDE = re.compile(r"\.(hnsw|metric)(\..*)?|\.v\d+(\.[0-9a-f]+)?\.bak(-\w+)?")
_here = threading.Lock()
OPEN: weakref.WeakSet[Any] = weakref.WeakSet()  # the stores of this process, whose locks we pass by


def is_plain(file: Path) -> bool:
    """Whether a file begins as an SQLite file that anyone may read."""
    with suppress(FileNotFoundError), file.open("rb") as opened:
        return opened.read(len(_PLAIN)) == _PLAIN
    return False


def vault_of(file: Path, vault: Vault | None, timeout_s: float) -> Vault | None:
    """The vault to open a store's file with, None if it is plain; ends what was interrupted.

    vault: what the caller has; None seeks the key. Raises VaultLocked, StoreLocked, StoreCorrupt.
    """
    found = vaults.read(file)
    if found is None:
        return vault
    if found["state"] != "locked":
        with _alone(file, timeout_s):
            _finish(file)
        return vault_of(file, vault, timeout_s)
    if vault is not None and vault.id != found["id"]:
        raise VaultLocked(f"the key is not that of {file}; it belongs to another vault")
    return vault or vaults.unlock(file)


def vault_for(
    path: str | os.PathLike[str], key: bytes | str | None, passphrase: str | None
) -> Vault | None:
    """The vault that a caller's key or passphrase opens, or makes where there is no store yet.

    None without either, and for a store in memory: `Store.open` seeks a key then. Raises
    InputError if the store is plain, VaultLocked if the key or passphrase is not its own.
    """
    if (key is None and passphrase is None) or os.fspath(path) == ":memory:":
        return None
    file = resolved(path)
    if vaults.is_vault(file):
        return vaults.unlock(file, key=key, passphrase=passphrase)
    if file.exists() and file.stat().st_size:
        if key is None:
            raise InputError(
                f"{file} is no vault; open it without a passphrase, or encrypt it: "
                "edgemem vault lock"
            )
        return vaults.of_key(key)  # of a vault that has lost its file of ways
    vault = vaults.new_key() if key is None else vaults.of_key(key)
    file.parent.mkdir(parents=True, exist_ok=True)
    vaults.create(file, vault, way="passphrase" if key is None else None, passphrase=passphrase)
    return vault


def encrypt(
    path: str | os.PathLike[str], way: Way, passphrase: str | None = None, timeout_s: float = 5.0
) -> Vault:
    """Make a vault of a plain store that no process has open; its key.

    way: how the key is found again; a passphrase for that way. Leaves no plain copy beside it.
    Raises StoreLocked if the store is open somewhere, StoreFull if a second copy does not fit,
    InputError if it is none, or a vault already, or the passphrase is too short.
    """
    file = _store(path)
    with _alone(file, timeout_s):
        if vaults.read(file) is not None:
            _finish(file)
        if not is_plain(file):
            raise InputError(f"{file} is no plain store; `edgemem vault status` says what it is")
        vault = vaults.new_key()
        vaults.create(file, vault, way=way, passphrase=passphrase, state="locking")
        try:
            _move(file, None, vault.page_key, timeout_s)
        finally:
            _finish(file)
    return vault


def decrypt(path: str | os.PathLike[str], vault: Vault, timeout_s: float = 5.0) -> None:
    """Make a plain store of a vault that no process has open. Raises as `encrypt` does."""
    file = _store(path)
    with _alone(file, timeout_s):
        if vaults.read(file) is None:
            vaults.create(file, vault, way=None)
        _finish(file)
        if is_plain(file):
            raise InputError(f"{file} is a plain store already")
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
        raise InputError(f"there is no store at {file}; give the path of one")
    return file


@contextmanager
def _alone(file: Path, timeout_s: float) -> Iterator[None]:
    with work_lock(file, _here, timeout_s) as mine:
        if not mine:
            raise StoreLocked(f"another process works on {file}; close it and try again")
        yield


def _move(file: Path, old_key: bytes | None, new_key: bytes | None, timeout_s: float) -> None:
    """Put a copy with other keys in the file's place. What it was is `.old` until `_finish`."""
    copy, old = _beside(file, ".moving"), _beside(file, ".old")
    target = copy.as_uri() + "?key="
    if new_key is not None:
        target = f"{copy.as_uri()}?cipher=chacha20&key=raw:{new_key.hex()}"
    with sqlite_errors(str(file)), closing(open_with_apsw(str(file), timeout_s, old_key)) as now:
        # From its first statement on, no other connection gets in until this one is closed.
        now.execute("PRAGMA locking_mode = EXCLUSIVE")
        now.execute("BEGIN EXCLUSIVE")
        now.execute("COMMIT")
        schema.inspect(now, str(file))
        now.execute("PRAGMA temp_store = MEMORY")
        try:
            if old_key is None:
                images.take_in(now, _beside(file, ".images"))
            now.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
            if (wal := _beside(file, "-wal")).exists():  # all of it is in the file now
                _overwrite(wal)
            now.execute("PRAGMA journal_mode = DELETE").fetchall()
            copy.unlink(missing_ok=True)
            os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            now.execute("VACUUM INTO ?", (target,))
            _check(copy, new_key)
            with copy.open("rb+") as written:
                os.fsync(written.fileno())
            for name in ("-wal", "-shm", "-journal"):
                _shred(_beside(file, name))
            os.link(file, old)
            os.replace(copy, file)
            sync_folder(file.parent)
            if old_key is None:
                _overwrite(old)  # while nobody who waited for the file can write into it
        except OSError as exc:
            raise StoreFull(
                f"{file} cannot be replaced ({exc.strerror or exc}); make its folder writable, or "
                "free some disk space"
            ) from exc


def _check(copy: Path, key: bytes | None) -> None:
    with closing(open_with_apsw(str(copy), 5.0, key)) as made:
        schema.inspect(made, str(copy))
        wrong = [row[0] for row in made.execute("PRAGMA integrity_check") if row[0] != "ok"]
    if wrong:
        raise StoreError(f"the copy of the store is not whole ({wrong[0]}); run `edgemem doctor`")


def _finish(file: Path) -> None:
    """Leave a vault or a plain store, and nothing of the other, wherever a move has ended."""
    found = vaults.read(file)
    if found is None:
        return
    plain, old = is_plain(file), _beside(file, ".old")
    try:
        for suffix in (".moving", ".moving-journal"):
            _shred(_beside(file, suffix))
        if old.exists() and old.samefile(file):
            old.unlink()
        _shred(old)
        if found["state"] != "locked":
            for beside in list(file.parent.iterdir()):
                rest = beside.name.removeprefix(file.name)
                if rest != beside.name and _BESIDE.fullmatch(rest):
                    _shred(beside)
        if not plain and (folder := _beside(file, ".images")).is_dir():  # all is in the file now
            for image in folder.iterdir():
                _shred(image)
            folder.rmdir()
    except OSError as exc:
        raise StoreFull(
            f"what is left of the plain store beside {file} cannot be deleted "
            f"({exc.strerror or exc}); make its folder writable, then open the store again"
        ) from exc
    if plain:
        vaults.remove(file)
    else:
        vaults.set_state(file, "locked")


def _shred(file: Path) -> None:
    """Overwrite a file and delete it. One that is not there is fine."""
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

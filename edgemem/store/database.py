"""The SQLite file: its connections, errors and settings; its backups, checks and scrubbing.

An erase leaves a note in `meta`. The file is scrubbed right after the erase or, if that fails, when
the store is next opened.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path, PurePath
from typing import cast

from edgemem.cachefile import disk_errors, half_exports, lock_file, sync_folder
from edgemem.config import require
from edgemem.errors import InputError, StoreCorrupt, StoreError, StoreFull, StoreLocked, VaultLocked
from edgemem.store.filters import fold
from edgemem.store.rows import damaged

__all__ = ["is_encrypted", "resolved", "work_lock"]

SMALLEST = 512
SCRUB_WANTED = "scrub_wanted"  # key in `meta`: an erase was not scrubbed yet

# --- SQLite's errors become ours --------------------------------------------------------------

_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_UNWRITABLE = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_IOERR,
}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_UNREADABLE = {
    sqlite3.SQLITE_IOERR_READ,
    sqlite3.SQLITE_IOERR_SHORT_READ,
    getattr(sqlite3, "SQLITE_IOERR_CORRUPTFS", 8458),
}
# SQLite reports these as generic errors. The store's queries are fixed, so here they mean a damaged
# schema, or a row with a value that edgemem never wrote.
_DAMAGED_TEXTS = (
    "no such table",
    "no such column",
    "no such index",
    "no such module",
    "malformed",
    "vtable constructor failed",
    "could not decode to utf-8",
    "invalid fts5 file format",
    "has no column named",
    "datatype mismatch",
    "not an error",
    "unsupported file format",
    "unrecognized option",
    "json cannot hold blob",
)


def is_out_of_room(exc: BaseException) -> bool:
    """Whether SQLite may have failed to make its log's index, as on a full disk."""
    exc = exc.__cause__ or exc if isinstance(exc, StoreFull) else exc
    return isinstance(exc, sqlite3.Error) and _primary(exc) == sqlite3.SQLITE_IOERR


def _primary(exc: sqlite3.Error) -> int:
    code = getattr(exc, "sqlite_errorcode", None)
    return (code & 0xFF) if isinstance(code, int) else -1


def _translated(exc: sqlite3.Error, path: str) -> StoreError:
    code, text = _primary(exc), str(exc)
    extended = getattr(exc, "sqlite_errorcode", None)
    if code in _LOCKED:
        return StoreLocked(
            f"{path} is locked by another process ({text}), which writes to it; wait for it or "
            "close it, and try again (in Python, `Store.open` with a longer busy_timeout_s waits)"
        )
    if text == "no such module: fts5":
        return StoreError(
            f"{path}: this Python's SQLite ({sqlite3.sqlite_version}) was built without FTS5; "
            "use a Python whose sqlite3 has it, such as one from python.org"
        )
    if "STRICT" in text:
        return StoreError(
            f"{path}: this Python's SQLite is {sqlite3.sqlite_version}; 3.37 or later is needed, "
            "as in a Python from python.org"
        )
    if (
        code in _DAMAGED
        or extended in _UNREADABLE
        or any(known in text.lower() for known in _DAMAGED_TEXTS)
    ):
        if code == sqlite3.SQLITE_NOTADB and is_encrypted(Path(path)):
            return VaultLocked(
                f"{path} is encrypted, and {Path(path).name}.vault, which belongs beside it, is "
                "missing: copy that too, or give the recovery code (as the passphrase, or in "
                "EDGEMEM_PASSPHRASE)"
            )
        return StoreCorrupt(
            f"{path} is damaged or no edgemem store ({text}); run `edgemem doctor`, or go back to "
            "a backup copy"
        )
    if code in _UNWRITABLE:
        return StoreFull(
            f"{path} cannot be written ({text}); free some disk space, check the permissions of "
            "the file and its folder, or choose another place for the store"
        )
    if "closed database" in text:
        return StoreError(f"the store {path} is closed; open it again")
    return StoreError(f"{path}: SQLite refused ({text}); run `edgemem doctor`")


@contextmanager
def sqlite_errors(path: str, *, encrypted: bool = False) -> Iterator[None]:
    """Raise edgemem's errors instead of SQLite's from the block. path: for the message.

    encrypted: whether SQLite was just given a key, which may be the wrong one.
    """
    try:
        yield
    except sqlite3.Error as exc:
        if encrypted and _primary(exc) == sqlite3.SQLITE_NOTADB:
            raise VaultLocked(
                f"the key does not open {path}, or its first page is damaged, or it is a plain "
                "store; give its own key, or go back to a backup copy"
            ) from exc
        raise _translated(exc, path) from exc
    except UnicodeEncodeError as exc:
        raise InputError(
            f"text with lone surrogates cannot be stored ({exc}); clean it, e.g. with "
            "text.encode('utf-8', 'replace').decode()"
        ) from exc
    except UnicodeDecodeError as exc:
        raise StoreCorrupt(
            f"{path} is damaged (text that is not UTF-8: {exc}); run `edgemem doctor`, or go back "
            "to a backup copy"
        ) from exc
    except MemoryError as exc:  # a damaged length may say terabytes
        raise StoreError(f"{path}: SQLite found no memory for what it was to read") from exc


# --- connections ------------------------------------------------------------------------------


def resolved(path: str | os.PathLike[str]) -> Path:
    """The path with links followed, because the WAL and backup copies lie beside the file itself.

    Raises StoreError if it is no usable path.
    """
    try:
        return Path(path).expanduser().resolve()
    except (OSError, ValueError, RuntimeError) as exc:
        raise StoreError(f"{str(path)!r} is no usable path ({exc}); give another") from exc


def identity(path: Path | None) -> tuple[int, int] | None:
    """The file's (device, inode), which changes if it is replaced; None if there is no file."""
    if path is not None:
        with suppress(OSError):
            found = path.stat()
            return found.st_dev, found.st_ino
    return None


def identities(path: Path | None) -> tuple[tuple[int, int] | None, ...]:
    """The identities of the file, of its log and of the log's index."""
    if path is None:
        return None, None, None
    return tuple(identity(path.with_name(path.name + end)) for end in ("", "-wal", "-shm"))


def settle_if_moved(
    connection: sqlite3.Connection, path: Path | None, opened: tuple[tuple[int, int] | None, ...]
) -> bool:
    """Whether the opened file was moved or replaced. If so, its log is written into it and removed.

    Otherwise SQLite would leave the log under the old name. The moved file would lack it, and
    another file of that name would get it. opened: the `identities` of the opened file, which no
    other file can have meanwhile. Raises StoreError if the log cannot be written.
    """
    if path is None or identity(path) == opened[0]:
        return False
    try:
        whole = not _is_blocked(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as exc:
        whole = _primary(exc) == sqlite3.SQLITE_READONLY  # then nothing was written
    found = identities(path)
    if whole or found[0] is not None:
        for end, ours, there in zip(("-wal", "-shm"), opened[1:], found[1:], strict=True):
            if there is not None and there == ours:
                with suppress(OSError):
                    path.with_name(path.name + end).unlink()
    if not whole:
        where = f"{path.name}-wal; rename that after the file's new name, with -wal at its end"
        raise StoreError(
            f"{path} was moved while it was open, and its last writes could not follow: they are "
            + ("lost" if found[0] is not None else f"in {where}")
        )
    return True


PLAIN = b"SQLite format 3\0"
# Of a vault's header too, SQLite's own marks are in plain, and how many bytes of a page are kept.
_MARKS = b"\x20\x40\x20\x20"


def is_encrypted(file: Path) -> bool:
    """Whether a file begins as a vault's, whether or not its `STORE.vault` is there.

    Not to be asked of a store that this process has open: see `make_file`.
    """
    with suppress(OSError), file.open("rb") as opened:
        head = opened.read(24)
        return head[20:] == _MARKS and not head.startswith(PLAIN)
    return False


_making_file = threading.Lock()


def make_file(file: Path) -> None:
    """Make an empty file that only its owner may read, unless the file exists.

    An existing file is not opened here: closing any descriptor of it would drop the locks that
    SQLite holds on it for other connections of this process.
    """
    try:
        with disk_errors(
            f"{file} cannot be opened",
            "check the permissions of the file and its folder, free some disk space, or choose "
            "another place for the store",
        ):
            if file.is_dir():
                raise StoreError(
                    f"{file} is a folder; choose another place for the store, such as a file in it"
                )
            file.parent.mkdir(parents=True, exist_ok=True)
            with _making_file, suppress(FileExistsError):
                os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            size = file.stat().st_size
            if not os.access(file, os.R_OK) or not file.is_file():
                raise PermissionError("it is not a file that may be read")
    except ValueError as exc:
        raise StoreError(f"{str(file)!r} is no usable path ({exc}); give another") from exc
    if 0 < size < SMALLEST:  # SQLite takes it for an empty database and would overwrite it
        raise StoreCorrupt(
            f"{file} is damaged or no edgemem store ({size} bytes, a database has at least "
            f"{SMALLEST}); give the path of a store or of a new file"
        )


def sqlite_name(file: Path) -> str:
    """The name by which SQLite opens a file: its path, or a read-only URI.

    The URI is for a file or folder that is read-only, where SQLite cannot make a write-ahead log.
    It opens the file as immutable unless a log lies there. That may hold what the file lacks.
    """
    if all(os.access(place, os.W_OK) for place in (file, file.parent)):
        return str(file)
    fixed = "" if file.with_name(file.name + "-wal").exists() else "&immutable=1"
    return uri(file, f"mode=ro{fixed}")


def uri(file: PurePath, options: str) -> str:
    """A file's URI for SQLite. SQLite takes no host, so a share's host goes into the path."""
    path = file.as_uri().removeprefix("file://")
    return f"file://{'' if path.startswith('/') else '//'}{path}?{options}"


def open_file(
    name: str, busy_timeout_s: float, key: bytes | None, *, by_apsw: bool = False
) -> sqlite3.Connection:
    """A bare connection, in autocommit mode. key: 32 bytes, for the pages of an encrypted file.

    name: a path or a `file:` URI. by_apsw: open a plain file through apsw, too; this process must
    not have it open through sqlite3. Raises ConfigError if the extra `vault` is wanted and missing.
    """
    if key is None and not by_apsw:
        return sqlite3.connect(
            name, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False, uri=True
        )
    try:
        from edgemem.store.cipher import Connection
    except ImportError:
        require("vault")
        raise
    return cast("sqlite3.Connection", Connection(name, busy_timeout_s, key))


def connect(
    name: str, busy_timeout_s: float, key: bytes | None, *, alone: bool = False
) -> sqlite3.Connection:
    """A connection to a store's file, with the store's pragmas. Otherwise as `open_file`.

    alone: lock all others out. The log's index is then in memory and needs no room on the disk.
    """
    connection = open_file(name, busy_timeout_s, key)
    connection.create_function("edgemem_fold", 1, fold, deterministic=True)
    for pragma in (
        f"locking_mode = {'EXCLUSIVE' if alone else 'NORMAL'}",  # before anything is read
        "foreign_keys = ON",
        "secure_delete = ON",
        "temp_store = MEMORY",  # no text in temporary files
        "trusted_schema = OFF",  # the file may come from anyone
        "cell_size_check = ON",
        "fullfsync = ON",  # on macOS fsync leaves the data in the drive
        "checkpoint_fullfsync = ON",
    ):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def patiently(step: Callable[[], object], timeout_s: float) -> None:
    """Repeat a step while another process is in the way, for at most timeout_s.

    In that case the step returns something true, or SQLite reports a lock. Raises StoreLocked, or
    SQLite's error, when the time is over.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if not step():
                return
            busy: Exception = StoreLocked("another process is reading the store")
        except sqlite3.OperationalError as exc:
            if _primary(exc) not in _LOCKED:
                raise
            busy = exc
        if time.monotonic() >= deadline:
            raise busy
        time.sleep(0.01)


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Make all reads in the block see the same state of the file."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        roll_back(connection)


def roll_back(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


# --- settings of the store: the table `meta` -------------------------------------------------


def meta(connection: sqlite3.Connection, key: str) -> str | None:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else row[0]


def meta_int(connection: sqlite3.Connection, key: str, default: int = 0) -> int:
    text = meta(connection, key)
    try:
        return default if text is None else int(text)
    except (TypeError, ValueError) as exc:
        raise damaged(f"its {key} is {text!r}, not a number") from exc


def generation(connection: sqlite3.Connection) -> int:
    value = meta_int(connection, "generation", -1)
    if value < 0:
        raise damaged("it has no generation")
    return value


# --- copies of the file -----------------------------------------------------------------------


# Between the version and `.bak`. Digits alone may be the date of a copy that the user made.
HALF_BACKUP = r"\.(?=\d*[a-f])[0-9a-f]{8}"


def backup(path: Path, version: int, key: bytes | None) -> None:
    """Copy the file, through SQLite, to `<file>.v<version>.bak`; an encrypted one stays encrypted.

    The caller holds the file's write lock. key: as for `connect`. Raises StoreFull.
    """
    target = path.with_name(f"{path.name}.v{version}.bak")
    # Named `.bak` from the start, so that an erase also finds what a crash left half written.
    partial = target.with_name(f"{path.name}.v{version}.a{uuid.uuid4().hex[:7]}.bak")
    with disk_errors(
        f"no backup copy could be written to {target}",
        "free some space or make the folder writable, then open the store again",
    ):
        for half in _backups(path, HALF_BACKUP):
            half.unlink(missing_ok=True)
        try:
            with closing(open_file(str(path), 5.0, key)) as source:
                os.close(os.open(partial, os.O_CREAT | os.O_RDWR, 0o600))
                with closing(open_file(str(partial), 5.0, key)) as copy:
                    source.backup(copy)
                    copy.execute("PRAGMA journal_mode = DELETE")
            with partial.open("r+b") as written:
                os.fsync(written.fileno())
            os.replace(partial, target)
        finally:
            with suppress(OSError):  # a full or read-only disk may refuse this, too
                partial.unlink(missing_ok=True)


def _backups(path: Path, half: str) -> list[Path]:
    of_store = re.compile(re.escape(path.name) + rf"\.v\d+{half}\.bak(-journal|-wal|-shm)?")
    beside = (file for file in path.parent.iterdir() if of_store.fullmatch(file.name))
    return sorted(file for file in beside if file.is_file())


def copies(path: Path | None) -> list[Path]:
    """The backup copies beside a store, and what killed exports and upgrades have left there."""
    if path is None:
        return []
    return [*_backups(path, f"({HALF_BACKUP})?"), *half_exports(path.parent)]


def left_behind(path: Path | None) -> list[str]:
    """A problem for each file that a killed export or upgrade has left beside a store."""
    if path is None:
        return []
    whose = dict.fromkeys(_backups(path, HALF_BACKUP), "upgrade")
    whose |= dict.fromkeys(half_exports(path.parent), "export")
    return [
        f"{file} is left of an {what} that was cut off, and may hold all memories; delete it"
        for file, what in whose.items()
    ]


# --- the file as a whole ----------------------------------------------------------------------


def problems(
    connection: sqlite3.Connection, name: str, *more: Callable[[sqlite3.Connection], list[str]]
) -> list[str]:
    """The problems found in the file, as text. name: the file, for the messages of SQLite's errors.

    more: further checks, each from a connection to a list of problems.
    """
    found: list[str] = []
    for look in (integrity, _references, _full_text, _vectors, *more):
        try:
            with sqlite_errors(name):
                found += look(connection)
        except StoreLocked:
            raise
        except StoreError as exc:
            found.append(str(exc))
        finally:
            roll_back(connection)
    return found


def integrity(connection: sqlite3.Connection) -> list[str]:
    """What SQLite's own check of the whole file finds."""
    rows = connection.execute("PRAGMA integrity_check").fetchall()
    return [str(row[0]) for row in rows if row[0] != "ok"]


def _references(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("PRAGMA foreign_key_check").fetchall()
    return [f"row {row[1]} of {row[0]} refers to a missing row of {row[2]}" for row in rows]


def _full_text(connection: sqlite3.Connection) -> list[str]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(
            "INSERT INTO memories_fts (memories_fts, rank) VALUES ('integrity-check', 1)"
        )
    except sqlite3.DatabaseError as exc:
        if _primary(exc) in _LOCKED | _UNWRITABLE:
            raise
        return [f"the full-text index does not match the memories ({exc})"]
    return []


def _vectors(connection: sqlite3.Connection) -> list[str]:
    dim = meta_int(connection, "embedder_dim")
    rows = connection.execute(
        "SELECT label, length(vector) FROM vectors WHERE length(vector) != ? ORDER BY label",
        (4 * dim,),
    ).fetchall()
    return [
        f"vector {label} has {size} bytes, {4 * dim} are right for dimension {dim}"
        for label, size in rows
    ]


def scrub(connection: sqlite3.Connection, path: Path | None, timeout_s: float) -> None:
    """Remove every byte of erased data from the file and its WAL, and delete the `copies`.

    Does nothing if nothing was erased since the last scrub. Raises StoreLocked if another process
    keeps reading for timeout_s, StoreFull or StoreError if SQLite or the folder refuses. The note
    in `meta` then stays.
    """
    name = str(path or ":memory:")
    with sqlite_errors(name):
        note = meta(connection, SCRUB_WANTED)
    if note is None:
        return
    statements = [
        # 'optimize' merges segments but does not promise to drop the terms of deleted rows.
        "INSERT INTO memories_fts (memories_fts) VALUES ('rebuild')",
        "VACUUM",
    ]
    try:
        if path is not None:
            with disk_errors(
                f"a copy beside {path} cannot be deleted",
                "make its folder writable, or delete the .bak and .edgemem.tmp files yourself",
            ):
                if found := copies(path):
                    for beside in found:
                        beside.unlink(missing_ok=True)
                    sync_folder(path.parent)
            statements.append("PRAGMA wal_checkpoint(TRUNCATE)")
        with sqlite_errors(name):
            for statement in statements:
                patiently(partial(_is_blocked, connection, statement), timeout_s)
            # Delete only this note: another process may have left a new one meanwhile.
            connection.execute("DELETE FROM meta WHERE key = ? AND value = ?", (SCRUB_WANTED, note))
    except StoreError as exc:
        raise type(exc)(
            f"the rows are erased and no answer will show them, but {path} is not scrubbed yet "
            f"({exc}); its free pages will be cleaned when the store is next opened while no "
            "other process reads it"
        ) from exc


def _is_blocked(connection: sqlite3.Connection, sql: str) -> bool:
    """Executes a statement; whether it is a checkpoint that another process blocked."""
    row = connection.execute(sql).fetchone()
    return row is not None and row[0] != 0


@contextmanager
def work_lock(store: Path | None, threads: threading.Lock, timeout_s: float) -> Iterator[bool]:
    """Hold the store's work lock; yields whether it was acquired within timeout_s.

    The lock excludes other threads and processes. store: the store's file, None for a store in
    memory. threads: the lock between this process's threads. Raises StoreFull if the lock file
    cannot be made.
    """
    deadline = time.monotonic() + timeout_s
    with ExitStack() as held:
        mine = threads.acquire(timeout=timeout_s)
        if mine:
            held.callback(threads.release)
        if mine and store is not None:
            file, left_s = store.with_name(store.name + ".lock"), deadline - time.monotonic()
            with disk_errors(
                f"cannot make the lock file {file}",
                "make its folder writable, free some disk space, or choose another place for the "
                "store",
            ):
                mine = held.enter_context(lock_file(file, max(0.0, left_s)))
        yield mine

"""SQLite with encrypted pages: SQLite3 Multiple Ciphers behind the names of Python's sqlite3.

An error of apsw is raised as sqlite3's error of the same code, so the rest of this package need not
know which of the two libraries is in use.

Two SQLite libraries in one process do not see each other's locks. Closing a file in one drops the
locks of the other. So a file must not be open in both, and sqlite3 never opens a vault.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import apsw

from edgemem.errors import ConfigError

__all__ = ["Connection"]

_Params = Sequence[Any] | Mapping[str, Any]
_CIPHER = "chacha20"  # each page with a nonce and a Poly1305 tag of its own


class Connection:
    """The part of sqlite3.Connection that the store uses, over apsw, in autocommit mode.

    name: a file, a `file:` URI or ":memory:". key: 32 bytes, for the pages; None for a plain file.
    Raises sqlite3's errors, and ConfigError if the installed apsw cannot encrypt.
    """

    def __init__(self, name: str, busy_timeout_s: float, key: bytes | None) -> None:
        if not hasattr(apsw, "mc_version"):  # it would accept the key and write plain pages
            raise ConfigError(
                "the package apsw that is installed here cannot encrypt; run: "
                "pip uninstall apsw && pip install --force-reinstall 'edgemem-runtime[vault]'"
            )
        with _Errors():
            flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
            self._raw = apsw.Connection(name, flags=flags)
            self._raw.set_busy_timeout(int(busy_timeout_s * 1000))
            if key is not None:
                self._raw.execute(f"PRAGMA cipher = '{_CIPHER}'")
                self._raw.execute(f"PRAGMA key = 'raw:{key.hex()}'")

    def execute(self, sql: str, params: _Params = ()) -> Cursor:
        with _Errors():
            return Cursor(self._raw.execute(sql, params), self._raw)

    def executemany(self, sql: str, rows: Iterable[_Params]) -> Cursor:
        with _Errors():
            return Cursor(self._raw.executemany(sql, rows), self._raw)

    @property
    def in_transaction(self) -> bool:
        with _Errors():
            return self._raw.in_transaction

    @property
    def total_changes(self) -> int:
        with _Errors():
            return self._raw.total_changes()

    def create_function(
        self, name: str, narg: int, function: Callable[..., Any], *, deterministic: bool = False
    ) -> None:
        with _Errors():
            self._raw.create_scalar_function(name, function, narg, deterministic=deterministic)

    def backup(self, target: Connection) -> None:
        """Copy all pages into a new file. It must have the same key, or none if this has none."""
        with _Errors():
            # An encrypted copy must have the same page size.
            target._raw.pragma("page_size", self._raw.pragma("page_size"))
        with _Errors(), target._raw.backup("main", self._raw, "main") as copying:
            copying.step()

    def serialize(self) -> bytes:
        """The file's bytes, with decrypted pages."""
        with _Errors():
            return self._raw.serialize("main")

    def close(self) -> None:
        with _Errors():
            self._raw.close()


class Cursor:
    """The rows of one statement, and what it has changed."""

    __slots__ = ("_cursor", "_raw")

    def __init__(self, cursor: apsw.Cursor, raw: apsw.Connection) -> None:
        self._cursor, self._raw = cursor, raw

    def __del__(self) -> None:
        # apsw may keep a statement that was not read to its end. Its connection would then see the
        # file as it was, and block a checkpoint. sqlite3 ends such a statement with its cursor.
        with suppress(apsw.Error):
            self._cursor.close(True)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        with _Errors():
            yield from self._cursor

    def fetchone(self) -> tuple[Any, ...] | None:
        with _Errors():
            return self._cursor.fetchone()

    def fetchall(self) -> list[tuple[Any, ...]]:
        with _Errors():
            return self._cursor.fetchall()

    @property
    def rowcount(self) -> int:
        """How many rows the connection's last INSERT, UPDATE or DELETE has changed."""
        return self._raw.changes()

    @property
    def lastrowid(self) -> int:
        return self._raw.last_insert_rowid()


class _Errors:
    """Raise sqlite3's errors in place of apsw's.

    Entered for every statement, so it is a class, which is faster than a generator.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if exc is not None and isinstance(exc, apsw.Error):
            raise _as_sqlite3(exc) from exc


def _as_sqlite3(exc: Any) -> Exception:
    if isinstance(exc, apsw.ConnectionClosedError | apsw.CursorClosedError):
        return sqlite3.ProgrammingError("Cannot operate on a closed database.")
    if isinstance(exc, apsw.NoMemError):
        return MemoryError()
    kind: type[sqlite3.Error] = sqlite3.OperationalError
    if isinstance(exc, apsw.ConstraintError | apsw.MismatchError):
        kind = sqlite3.IntegrityError
    elif isinstance(exc, apsw.CorruptError | apsw.NotADBError | apsw.FormatError):
        kind = sqlite3.DatabaseError
    elif not hasattr(exc, "extendedresult"):  # apsw's own: wrong bindings, two threads at once
        return sqlite3.ProgrammingError(str(exc))
    ours = kind(str(exc))
    ours.sqlite_errorcode = exc.extendedresult
    return ours

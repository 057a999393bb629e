"""Turns every sqlite3 error into one of ours, in one place.

Knows SQLite's error codes; must not know tables or queries.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from edgemem.errors import InputError, StoreCorrupt, StoreError, StoreFull, StoreLocked

__all__ = ["is_busy", "sqlite_errors", "translate"]

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
# SQLite reports these as plain errors; in a store whose queries are fixed they mean a damaged
# schema or a row that holds what was never written there.
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


def is_busy(exc: sqlite3.Error) -> bool:
    """Whether trying again later may help."""
    return _primary(exc) in _LOCKED


def _primary(exc: sqlite3.Error) -> int:
    code = getattr(exc, "sqlite_errorcode", None)
    return (code & 0xFF) if isinstance(code, int) else -1


def translate(exc: sqlite3.Error, path: str) -> StoreError:
    """Our error for SQLite's. path: the store's file, for the message."""
    code, text = _primary(exc), str(exc)
    extended = getattr(exc, "sqlite_errorcode", None)
    if code in _LOCKED:
        return StoreLocked(
            f"{path} is locked by another process ({text}); wait for it or close it, or open the "
            "store with a longer busy_timeout_s"
        )
    if text == "no such module: fts5":
        return StoreError(
            f"{path}: this Python's SQLite ({sqlite3.sqlite_version}) was built without FTS5; "
            "use a Python whose sqlite3 has it, such as one from python.org"
        )
    if (
        code in _DAMAGED
        or extended in _UNREADABLE
        or any(known in text.lower() for known in _DAMAGED_TEXTS)
    ):
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
def sqlite_errors(path: str) -> Iterator[None]:
    """Raise our errors instead of SQLite's from the block."""
    try:
        yield
    except sqlite3.Error as exc:
        raise translate(exc, path) from exc
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
    except MemoryError as exc:  # what SQLite asks for when a damaged length says terabytes
        raise StoreError(f"{path}: SQLite found no memory for what it was to read") from exc

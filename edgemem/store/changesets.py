"""SQLite's changesets: how versions of rows travel, and which of two wins.

A changeset is what SQLite's session extension records of one table in memory, `rows`. Merging
applies any number of them to such a table: the conflict handler keeps the later version, so their
order, and whether one comes twice, do not matter. As each carries whole versions and no
differences, there is nothing to rebase. Imports apsw, as cipher.py does: import this file late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import apsw

__all__ = ["Version", "Versions", "merge", "pack", "unpack"]


class Version(NamedTuple):
    """One version of one row, as it travels; see store/sync.py for the kinds.

    clock, device: the later pair wins. body: JSON. vectors: of a memory, float32 one by one.
    """

    kind: str
    id: str
    clock: int
    device: str
    body: str | None = None
    vectors: bytes | None = None


Versions = list[Version]
_TABLE = (
    "CREATE TABLE rows (kind TEXT NOT NULL, id TEXT NOT NULL, clock INTEGER NOT NULL, "
    "device TEXT NOT NULL, body TEXT, vectors BLOB, PRIMARY KEY (kind, id)) WITHOUT ROWID"
)
_INSERT = "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)"


def _table() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(_TABLE)
    return connection


def pack(versions: Iterable[Version]) -> bytes:
    """A changeset that holds these versions, each of another row."""
    connection = _table()
    session = apsw.Session(connection, "main")
    session.attach("rows")
    with connection:
        connection.executemany(_INSERT, versions)
    changeset: bytes = session.changeset()
    session.close()
    connection.close()
    return changeset


def unpack(changeset: bytes) -> Iterator[Version]:
    """The versions that a changeset holds."""
    for change in apsw.Changeset.iter(changeset):
        assert change.new is not None  # each is an insert
        yield Version._make(change.new)


def merge(
    changesets: Iterable[bytes],
    known: Callable[[Iterable[tuple[str, str]]], Iterable[tuple[str, str, int, str]]],
) -> Versions:
    """The latest version of each row in some changesets, of those that are later than known ones.

    known: given (kind, id) of all rows, the (kind, id, clock, device) of those that are here.
    """

    def later(reason: int, change: Any) -> int:
        if reason != apsw.SQLITE_CHANGESET_CONFLICT:
            return int(apsw.SQLITE_CHANGESET_ABORT)
        wins = change.new[2:4] > change.conflict[2:4]
        return int(apsw.SQLITE_CHANGESET_REPLACE if wins else apsw.SQLITE_CHANGESET_OMIT)

    changesets = list(changesets)
    ids = {version[:2] for changeset in changesets for version in unpack(changeset)}
    here = set(known(ids))
    connection = _table()
    with connection:
        connection.executemany(_INSERT, ((*stamp, None, None) for stamp in here))
        for changeset in changesets:
            apsw.Changeset.apply(changeset, connection, conflict=later)
    merged = map(Version._make, connection.execute("SELECT * FROM rows"))
    new = [version for version in merged if version[:4] not in here]
    connection.close()
    return new

"""What a search keeps of a store in memory, and how that is brought up to date.

Knows tables and columns; must not know how memories are searched. The store counts its writes (the
generation); a cache says which one it has taken in, and is told what has changed since.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgemem.store import reading
from edgemem.store.rows import Floats, Ints, damaged, unix_seconds, unpack_vectors
from edgemem.store.tokens import StoredPostings, stored_postings

__all__ = ["Changes", "read"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Changes:
    """What a cache must take in to go from the generation it was asked for to `generation`.

    full: this is the whole store; forget everything that was held.
    removed_rowids: int64, memories of which everything held is to be dropped first: deleted,
        erased, or with another text or vectors now (then they are among `rowids` again).

    Of each memory that is new or changed, n of each:
    rowids: (n,) int64 ascending, the memory's own number, never used twice.
    user_ids, agent_ids, run_ids, kinds.
    until: (n,) float64 Unix seconds at which it stops being live, inf if never.
    turns: (n,) int64, the first turn that it was taken from, 0 if none. times: (n,) float64 Unix
        seconds at which that was said (without a turn: from when it holds, or was stored).
    speakers: who said it, if named. roles: as what, None without a turn.
    asks: (n,) bool, whether it ends in a question mark.
    texts: what full-text search sees of it; empty if `full`, `postings` has it all then.

    Of each vector of those memories, m of each:
    labels: (m,) int64, the vector's own number, never used twice and never given another vector.
    owners: (m,) int64, the rowid of its memory. vectors: (m, dim) float32.
    """

    generation: int
    full: bool
    removed_rowids: Ints
    rowids: Ints
    user_ids: tuple[str | None, ...]
    agent_ids: tuple[str | None, ...]
    run_ids: tuple[str | None, ...]
    kinds: tuple[str, ...]
    until: npt.NDArray[np.float64]
    turns: Ints
    times: npt.NDArray[np.float64]
    speakers: tuple[str | None, ...]
    roles: tuple[str | None, ...]
    asks: npt.NDArray[np.bool_]
    texts: tuple[str, ...]
    labels: Ints
    owners: Ints
    vectors: Floats
    postings: StoredPostings | None


_UNTIL = (
    "CASE WHEN m.valid_to IS NULL THEN m.expires_at WHEN m.expires_at IS NULL THEN m.valid_to "
    "ELSE min(m.valid_to, m.expires_at) END"
)
_MEMORY = (
    f"m.rowid, m.user_id, m.agent_id, m.run_id, m.kind, {_UNTIL}, coalesce(t.rowid, 0), "
    "coalesce(t.timestamp, m.valid_from, m.created_at), t.name, t.role, "
    "rtrim(m.memory) LIKE '%?'"
)
_WITH_TURN = (
    "memories m LEFT JOIN turns t "
    "ON t.rowid = (SELECT min(s.turn) FROM memory_sources s WHERE s.memory = m.rowid)"
)
# CROSS JOIN keeps the order of the tables: through all vectors by label, which need no sorting
# then, or from the few memories that have changed.
_ALL_VECTORS = "vectors v CROSS JOIN memories m ON m.rowid = v.memory"
_SOME_VECTORS = "memories m CROSS JOIN vectors v ON v.memory = m.rowid"


def read(connection: sqlite3.Connection, since: int) -> Changes:
    """What has changed after the generation `since`; the caller has begun a snapshot."""
    current = reading.generation(connection)
    reset = reading.meta_int(connection, "reset_generation", 0)
    full = since <= 0 or since > current or since < reset
    where = "m.deleted_at IS NULL" + ("" if full else " AND m.generation > ?")
    params = () if full else (since,)
    text = "NULL" if full else "m.search_text"
    columns = _columns(
        connection.execute(
            f"SELECT {_MEMORY}, {text} FROM {_WITH_TURN} WHERE {where} ORDER BY m.rowid", params
        ),
        12,
    )
    labels, owners, vectors = _vectors(connection, where, params)
    return Changes(
        generation=current,
        full=full,
        removed_rowids=np.array([] if full else _removed(connection, since), dtype=np.int64),
        rowids=np.array(columns[0], dtype=np.int64),
        user_ids=tuple(columns[1]),
        agent_ids=tuple(columns[2]),
        run_ids=tuple(columns[3]),
        kinds=tuple(columns[4]),
        until=_seconds(columns[5]),
        turns=np.array(columns[6], dtype=np.int64),
        times=_seconds(columns[7]),
        speakers=tuple(columns[8]),
        roles=tuple(columns[9]),
        asks=np.array(columns[10], dtype=np.bool_),
        texts=() if full else tuple(columns[11]),
        labels=labels,
        owners=owners,
        vectors=vectors,
        postings=stored_postings(connection) if full else None,
    )


def _removed(connection: sqlite3.Connection, since: int) -> list[int]:
    # Two queries: as one UNION, SQLite walks the whole table instead of the index.
    rows = connection.execute(
        "SELECT rowid FROM memories WHERE generation > ?1 "
        "AND (deleted_at IS NOT NULL OR vectors_generation > ?1)",
        (since,),
    ).fetchall()
    rows += connection.execute(
        "SELECT memory FROM erased WHERE generation > ?", (since,)
    ).fetchall()
    return sorted(row[0] for row in rows)


def _vectors(
    connection: sqlite3.Connection, where: str, params: tuple[int, ...]
) -> tuple[Ints, Ints, Floats]:
    query = f"FROM {_SOME_VECTORS if params else _ALL_VECTORS} WHERE {where}"
    (count,) = connection.execute(f"SELECT count(*) {query}", params).fetchone()
    cursor = connection.execute(
        f"SELECT v.label, v.memory, v.vector {query} ORDER BY v.label", params
    )
    cursor.arraysize = 4096
    dim = reading.meta_int(connection, "embedder_dim", 0)
    vectors: Floats = np.empty((count, dim), dtype=np.float32)
    labels: list[int] = []
    owners: list[int] = []
    while rows := cursor.fetchmany():
        some, of, blobs = zip(*rows, strict=True)
        done = len(labels)
        labels += some
        owners += of
        if len(labels) > count:
            raise damaged("its vectors cannot be counted")
        vectors[done : len(labels)] = unpack_vectors(blobs, dim)
    if len(labels) != count:
        raise damaged("its vectors cannot be counted")
    return np.array(labels, dtype=np.int64), np.array(owners, dtype=np.int64), vectors


def _columns(cursor: sqlite3.Cursor, width: int) -> list[tuple[Any, ...]]:
    rows = cursor.fetchall()
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _seconds(texts: tuple[str | None, ...]) -> npt.NDArray[np.float64]:
    """Unix seconds of stored times, inf for none."""
    known: dict[str | None, float] = {None: float("inf")}
    for text in set(texts) - {None}:
        assert text is not None
        known[text] = unix_seconds(text)
    return np.array([known[text] for text in texts], dtype=np.float64)

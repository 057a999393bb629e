"""The rows that a search caches in memory, their incremental update, and FTS5's terms.

The store counts its committed writes (the generation). A cache names the generation that it has
read, and gets what has changed since.
"""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from edgemem.store.database import generation, meta_int, sqlite_errors
from edgemem.store.rows import EDITED, Floats, Ints, damaged, unix_seconds, unpack_vectors

__all__ = ["Changes", "StoredPostings", "read_changes", "stored_postings", "tokenize", "word_terms"]

TOKENIZER = "porter unicode61 remove_diacritics 2"  # that of memories_fts in schema.py
MAX_ROWID = 2**31 - 1
MAX_COUNT = 2**16 - 1

_scratch_lock = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class StoredPostings:
    """The postings of the full-text index, for all memories that are not deleted.

    terms: (t,), each once; offsets[i] to offsets[i + 1] is the range of terms[i] in `docs` and
    `counts`. offsets: (t + 1,) int64. docs: (p,) int32 rowids of memories, ascending within a term.
    counts: (p,) uint16, the term's occurrences in that memory, capped at 65,535.
    rowids: (n,) int64 ascending, every memory in the index, also without terms. lengths: (n,)
    int32, the number of tokens of each.
    """

    terms: list[str]
    offsets: Ints
    docs: npt.NDArray[np.int32]
    counts: npt.NDArray[np.uint16]
    rowids: Ints
    lengths: npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Changes:
    """The changes that a cache must apply to get from its own generation to `generation`.

    full: whether this is the whole store; the cache must then drop everything it has.
    removed_rowids: int64, memories whose cached data must be dropped first: deleted, erased, or
        with new vectors (these are among `rowids` again).

    For each of the n new or changed memories:
    rowids: (n,) int64 ascending, never reused.
    user_ids, agent_ids, run_ids, kinds.
    until: (n,) float64 Unix seconds at which the memory stops being live, inf if never.
    turns: (n,) int64 rowid of the first source turn; 0 if none, and of a fact that a person has
        edited, as its turn says something else. times: (n,) float64 Unix seconds of that turn's
        timestamp; without a turn, of valid_from or else created_at.
    speakers: the name of the turn's speaker, if any. roles: the turn's role, None without a turn.
    asks: (n,) bool, whether the memory ends in a question mark.
    texts: the indexed texts; empty if `full`, as `postings` then holds the whole index.

    For each of the m vectors of those memories:
    labels: (m,) int64, never reused for another vector.
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
    f"m.rowid, m.user_id, m.agent_id, m.run_id, m.kind, {_UNTIL}, "
    f"CASE WHEN m.kind = 'fact' AND {EDITED} THEN 0 ELSE coalesce(t.rowid, 0) END, "
    "coalesce(t.timestamp, m.valid_from, m.created_at), t.name, t.role, "
    "rtrim(m.memory) LIKE '%?' OR rtrim(m.memory) LIKE '%？'"
)
_WITH_TURN = (
    "memories m LEFT JOIN turns t "
    "ON t.rowid = (SELECT min(s.turn) FROM memory_sources s WHERE s.memory = m.rowid)"
)
# CROSS JOIN fixes the join order. All vectors are read in the order of their labels, so SQLite need
# not sort them. A few vectors are found from the memories that have changed.
_ALL_VECTORS = "vectors v CROSS JOIN memories m ON m.rowid = v.memory"
_SOME_VECTORS = "memories m CROSS JOIN vectors v ON v.memory = m.rowid"


def read_changes(connection: sqlite3.Connection, since: int) -> Changes:
    """What has changed after the generation `since`; the caller has begun a snapshot."""
    current = generation(connection)
    reset = meta_int(connection, "reset_generation")
    full = since <= 0 or since > current or since < reset
    where = "m.deleted_at IS NULL" + ("" if full else " AND m.generation > ?")
    params = () if full else (since,)
    text = "NULL" if full else "m.search_text"
    cursor = connection.execute(
        f"SELECT {_MEMORY}, {text} FROM {_WITH_TURN} WHERE {where} ORDER BY m.rowid", params
    )
    columns: list[tuple[Any, ...]] = list(zip(*cursor, strict=True)) or [()] * 12
    rowids, users, agents, runs, kinds, until, turns, times, speakers, roles, asks, texts = columns
    labels, owners, vectors = _vectors(connection, where, params)
    return Changes(
        generation=current,
        full=full,
        removed_rowids=np.array([] if full else _removed(connection, since), dtype=np.int64),
        rowids=np.array(rowids, dtype=np.int64),
        user_ids=users,
        agent_ids=agents,
        run_ids=runs,
        kinds=kinds,
        until=_seconds(until),
        turns=np.array(turns, dtype=np.int64),
        times=_seconds(times),
        speakers=speakers,
        roles=roles,
        asks=np.array(asks, dtype=np.bool_),
        texts=() if full else texts,
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
    rows = iter(
        connection.execute(f"SELECT v.label, v.memory, v.vector {query} ORDER BY v.label", params)
    )
    dim = meta_int(connection, "embedder_dim")
    vectors: Floats = np.empty((count, dim), dtype=np.float32)
    labels: list[int] = []
    owners: list[int] = []
    while batch := list(islice(rows, 256)):  # small: it is in memory three times while decoded
        new_labels, new_owners, blobs = zip(*batch, strict=True)
        done = len(labels)
        labels += new_labels
        owners += new_owners
        if len(labels) > count:
            raise damaged("its vectors cannot be counted")
        vectors[done : len(labels)] = unpack_vectors(blobs, dim)
    if len(labels) != count:
        raise damaged("its vectors cannot be counted")
    return np.array(labels, dtype=np.int64), np.array(owners, dtype=np.int64), vectors


def _seconds(texts: tuple[str | None, ...]) -> npt.NDArray[np.float64]:
    """Unix seconds of stored times, inf for none."""
    known = {text: math.inf if text is None else unix_seconds(text) for text in set(texts)}
    return np.array([known[text] for text in texts], dtype=np.float64)


# --- the full-text index ----------------------------------------------------------------------


def tokenize(texts: Sequence[str]) -> list[dict[str, int]]:
    """The terms of each text with their counts, as the store's full-text index would have them.

    SQLite folds and stems them ("Cafés" gives "cafe"), quicker in one call than in many. Safe from
    several threads. Raises InputError on text with lone surrogates.
    """
    found: list[dict[str, int]] = [{} for _ in texts]
    with _scratch_lock, sqlite_errors(":memory:"):
        scratch = _scratch()
        scratch.execute("BEGIN")
        try:
            scratch.executemany("INSERT INTO texts (rowid, text) VALUES (?, ?)", enumerate(texts))
            for term, text in scratch.execute("SELECT CAST(term AS BLOB), doc FROM occurrences"):
                terms = found[text]
                term = _decoded(term)
                terms[term] = terms.get(term, 0) + 1
        finally:
            scratch.execute("ROLLBACK")
    return found


def word_terms(words: Sequence[str]) -> list[str]:
    """The terms of a query's words, each once: "o'neil" has two, "!" none."""
    return list(dict.fromkeys(term for word in words for term in _terms_of(word)))


@lru_cache(maxsize=4096)
def _terms_of(word: str) -> tuple[str, ...]:
    (terms,) = tokenize([word])
    return tuple(terms)


@cache
def _scratch() -> sqlite3.Connection:
    """A table to tokenize with. Nothing is ever committed to it."""
    scratch = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    scratch.execute(
        f"CREATE VIRTUAL TABLE texts USING fts5 (text, content='', tokenize='{TOKENIZER}')"
    )
    scratch.execute("CREATE VIRTUAL TABLE occurrences USING fts5vocab (texts, instance)")
    return scratch


def _decoded(term: bytes) -> str:
    # FTS5 cuts a term after 32,768 bytes, which may be within a character.
    return term.decode("utf-8", "surrogateescape")


def stored_postings(connection: sqlite3.Connection) -> StoredPostings:
    """Read all postings of an opened store; the caller has begun a snapshot on the connection.

    Raises StoreCorrupt if the full-text index does not fit its memories or a rowid is beyond
    2^31 - 1, the limit of these arrays. SQLite's errors are not translated.
    """
    # A table in the temporary schema counts as a write, which the reading connection refuses.
    (query_only,) = connection.execute("PRAGMA query_only").fetchone()
    connection.execute("PRAGMA query_only = OFF")
    try:
        connection.execute(
            "CREATE VIRTUAL TABLE temp.occurrences USING fts5vocab (main, memories_fts, instance)"
        )
        try:
            return _postings(connection)
        finally:
            connection.execute("DROP TABLE temp.occurrences")
    finally:
        connection.execute(f"PRAGMA query_only = {query_only}")


def _postings(connection: sqlite3.Connection) -> StoredPostings:
    rows = connection.execute("SELECT id FROM memories_fts_docsize ORDER BY id")
    try:
        rowids = np.fromiter((row[0] for row in rows), np.int64)
    except (TypeError, ValueError) as exc:
        raise damaged("its full-text index has rowids that are no numbers") from exc
    if len(rowids) and not 0 < rowids[0] <= rowids[-1] <= MAX_ROWID:
        raise damaged(f"its full-text index has the rowids {rowids[0]} to {rowids[-1]}")
    if (np.diff(rowids) <= 0).any():
        raise damaged("its full-text index has rowids in no order")
    place = np.zeros(rowids[-1] + 1 if len(rowids) else 1, np.int32)  # from 1; 0: not a memory
    place[rowids] = np.arange(1, len(rowids) + 1)
    # One row per term, its rowids as text, is many times faster than one row per occurrence.
    found = connection.execute(
        "SELECT CAST(term AS BLOB), count(*), group_concat(doc) FROM temp.occurrences GROUP BY term"
    ).fetchall()
    terms = [_decoded(row[0]) for row in found]
    ends = np.cumsum([0, *(row[1] for row in found)])
    occurrences = np.fromstring(",".join(row[2] for row in found), np.int64, sep=",")
    if len(occurrences) != ends[-1]:
        raise damaged("its full-text index has rowids that are no numbers")
    if found and not 0 < occurrences.min() <= occurrences.max() < len(place):
        raise damaged("its full-text index has terms of a memory that is not in it")
    lengths = np.bincount(place[occurrences], minlength=len(rowids) + 1)
    if lengths[0]:
        raise damaged("its full-text index has terms of a memory that is not in it")
    first = np.ones(len(occurrences), np.bool_)
    first[1:] = np.diff(occurrences) != 0
    first[ends[:-1]] = True
    postings = np.flatnonzero(first)
    counts = np.minimum(np.diff(postings, append=len(occurrences)), MAX_COUNT)
    return StoredPostings(
        terms,
        np.searchsorted(postings, ends),
        occurrences[postings].astype(np.int32),
        counts.astype(np.uint16),
        rowids,
        lengths[1:].astype(np.int32),
    )

"""The terms of texts as FTS5 counts them, and all postings of a store's full-text index.

Knows FTS5's tokenizer and its view of an index (fts5vocab); must not know ranking or which memory
a search may see. No tokenizer or stemmer of ours: SQLite's own does the work, on a scratch table.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from edgemem.store.failures import sqlite_errors
from edgemem.store.rows import Ints, damaged

__all__ = ["StoredPostings", "stored_postings", "tokenize", "word_terms"]

TOKENIZER = "porter unicode61 remove_diacritics 2"  # that of memories_fts in store/schema.py
MAX_ROWID = 2**31 - 1
MAX_COUNT = 2**16 - 1
AT_ONCE = 1_000_000  # occurrences that are read as text before they become numbers

KEPT_WORDS = 4096

_scratch_lock = threading.Lock()
_terms_of: dict[str, tuple[str, ...] | None] = {}  # of words, see word_terms


@dataclass(frozen=True, slots=True, eq=False)
class StoredPostings:
    """Which term is in which memory, for all memories that are not deleted.

    terms: (t,), each once; those of `docs` and `counts` from offsets[i] to offsets[i + 1] belong to
    terms[i]. offsets: (t + 1,) int64. docs: (p,) int32 rowids of memories, ascending within a term.
    counts: (p,) uint16, how often the term is there, 65,535 at most.
    rowids: (n,) int64 ascending, every memory of the index, also one without a term; lengths: (n,)
    int32, its tokens.
    """

    terms: list[str]
    offsets: Ints
    docs: npt.NDArray[np.int32]
    counts: npt.NDArray[np.uint16]
    rowids: Ints
    lengths: npt.NDArray[np.int32]


def tokenize(texts: Sequence[str]) -> list[dict[str, int]]:
    """The terms of each text and how often it has them, as the store's full-text index would.

    Terms are folded and stemmed ("Cafés" gives "cafe"). One call for many texts is quicker than
    many calls. Safe from several threads. Raises InputError on text with lone surrogates.
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
    """The terms of a query's words, each once: "o'neil" has two, "!" none.

    The words of one query come again in the next, so the last few thousand are kept.
    """
    found = {word: _terms_of.get(word) for word in words}
    new = [word for word, terms in found.items() if terms is None]
    if new:
        if len(_terms_of) + len(new) > KEPT_WORDS:
            _terms_of.clear()
        found.update(zip(new, map(tuple, tokenize(new)), strict=True))
        _terms_of.update((word, found[word]) for word in new)
    return list(dict.fromkeys(term for terms in found.values() for term in terms or ()))


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

    Writes nothing to the file. Raises StoreCorrupt if the full-text index does not fit its memories
    or a rowid is beyond 2^31 - 1, where these arrays end; errors of SQLite pass.
    """
    # A table in the temporary schema counts as a write, which the reading connection refuses.
    (query_only,) = connection.execute("PRAGMA query_only").fetchone()
    connection.execute("PRAGMA query_only = OFF")
    try:
        connection.execute(
            "CREATE VIRTUAL TABLE temp.occurrences USING fts5vocab (main, memories_fts, instance)"
        )
        try:
            return _read(connection)
        finally:
            connection.execute("DROP TABLE temp.occurrences")
    finally:
        connection.execute(f"PRAGMA query_only = {query_only}")


def _read(connection: sqlite3.Connection) -> StoredPostings:
    rows = connection.execute("SELECT id FROM memories_fts_docsize ORDER BY id")
    rowids = np.fromiter((row[0] for row in rows), np.int64)
    if len(rowids) and not 0 < rowids[0] <= rowids[-1] <= MAX_ROWID:
        raise damaged(f"its full-text index has the rowids {rowids[0]} to {rowids[-1]}")
    place = np.zeros(rowids[-1] + 1 if len(rowids) else 1, np.int32)  # from 1 on; 0: no memory
    place[rowids] = np.arange(1, len(rowids) + 1)
    terms: list[str] = []
    sizes: list[npt.NDArray[np.int64]] = []
    docs: list[npt.NDArray[np.int32]] = []
    counts: list[npt.NDArray[np.uint16]] = []
    lengths = np.zeros(len(rowids) + 1, np.int64)  # by place
    # A text with all rowids of a term is many times quicker than a row for each.
    cursor = connection.execute(
        "SELECT CAST(term AS BLOB), count(*), group_concat(doc) FROM temp.occurrences GROUP BY term"
    )
    for names, occurring, text in _portions(cursor):
        occurrences = np.fromstring(text, np.int64, sep=",")
        starts = np.cumsum([0, *occurring])
        if len(occurrences) != starts[-1]:
            raise damaged("its full-text index has rowids that are no numbers")
        if not 0 < occurrences.min() <= occurrences.max() < len(place):
            raise damaged("its full-text index has terms of a memory that is not in it")
        lengths += np.bincount(place[occurrences], minlength=len(lengths))
        first = np.ones(len(occurrences), np.bool_)
        first[1:] = np.diff(occurrences) != 0
        first[starts[:-1]] = True
        posting = np.flatnonzero(first)
        terms += map(_decoded, names)
        sizes.append(np.add.reduceat(first, starts[:-1], dtype=np.int64))
        docs.append(occurrences[posting].astype(np.int32))
        repeats = np.diff(posting, append=len(occurrences))
        counts.append(np.minimum(repeats, MAX_COUNT).astype(np.uint16))
    if lengths[0]:
        raise damaged("its full-text index has terms of a memory that is not in it")
    return StoredPostings(
        terms,
        np.cumsum(np.concatenate([[0], *sizes]), dtype=np.int64),
        np.concatenate([np.empty(0, np.int32), *docs]),
        np.concatenate([np.empty(0, np.uint16), *counts]),
        rowids,
        lengths[1:].astype(np.int32),
    )


def _portions(cursor: sqlite3.Cursor) -> Iterator[tuple[list[bytes], list[int], str]]:
    """Rows of (term, occurrences, rowids) together, so that a large store is read in parts."""
    names: list[bytes] = []
    occurring: list[int] = []
    texts: list[str] = []
    total = 0
    for name, count, text in cursor:
        names.append(name)
        occurring.append(count)
        texts.append(text)
        total += count
        if total >= AT_ONCE:
            yield names, occurring, ",".join(texts)
            names, occurring, texts, total = [], [], [], 0
    if names:
        yield names, occurring, ",".join(texts)

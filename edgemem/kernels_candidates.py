"""The kernels that gather a search's candidates: which memories, how near, what their words say.

Knows arrays only, as edgemem/kernels.py does, whose rules and choice of backend hold here too. A
memory is a number; 0 is nobody. The native module refuses by itself what does not fit; the checks
here say it better, and as they take longer than the smallest searches they are made only then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem import kernels_numpy
from edgemem.kernels import ISA_AUTO, Bm25Query, _native
from edgemem.kernels_checks import (
    check_array,
    check_bm25,
    check_count,
    check_entries,
    check_numbers,
    check_rows,
)

__all__ = [
    "AROUND",
    "WORD_FEATURES",
    "beside",
    "similarities",
    "similarities_i8",
    "word_features",
]

FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
ByteArray = NDArray[np.int8]
BoolArray = NDArray[np.bool_]

AROUND = 7
"""Memories in a row of `beside`: a candidate, and six around it."""

WORD_FEATURES = ("bm25", "bm25_around", "coverage", "session", "length", "time")
"""The columns of `word_features`."""


def similarities(
    rows: FloatArray,
    first: IntArray,
    next: IntArray,
    wanted: IntArray,
    columns: int,
    query: FloatArray,
    offset: float,
    scale: float,
    limit: float,
) -> FloatArray:
    """How near each memory is to a query: (p + offset) · scale, kept within ±limit.

    p: the largest inner product of its rows with the query; a memory may have several. rows: (n, d)
    float32. first: (g,) int64, the row that a memory's chain begins with, by its number; next: (n,)
    int64, the row after each in its chain; a chain ascends and ends before what does not, or is no
    row, such as -1. wanted: (m, w) int64, memories; columns: how many of its columns, 1 to w.
    query: (d,) float32. scale: > 0. limit: >= 0. Returns (m, columns) float32; 0 for a memory
    without rows. A product that is NaN is passed over. Cost O(rows met · d).
    """
    given = (rows, first, next, wanted, columns, query, offset, scale, limit)
    if _native is not None:
        try:
            return _similarities_native(*given)
        except (AttributeError, TypeError, ValueError):
            _check_similarities(np.float32, *given)
            raise
    _check_similarities(np.float32, *given)
    return kernels_numpy.similarities(*given)


def _similarities_native(
    rows: FloatArray,
    first: IntArray,
    next: IntArray,
    wanted: IntArray,
    columns: int,
    query: FloatArray,
    offset: float,
    scale: float,
    limit: float,
    isa: int = ISA_AUTO,
) -> FloatArray:
    out = np.empty((len(wanted), columns), np.float32)
    _native.similarities(rows, first, next, wanted, query, offset, scale, limit, isa, out)
    return out


def similarities_i8(
    rows: ByteArray,
    scales: FloatArray,
    first: IntArray,
    next: IntArray,
    wanted: IntArray,
    columns: int,
    query: FloatArray,
    offset: float,
    scale: float,
    limit: float,
) -> FloatArray:
    """`similarities` over int8 rows, a product times the scale of its row.

    rows, scales: (n, d) int8 and (n,) float32, of `kernels.quantize_i8`; the rest as there.
    """
    given = (first, next, wanted, columns, query, offset, scale, limit)
    if _native is not None:
        try:
            return _similarities_i8_native(rows, scales, *given)
        except (AttributeError, TypeError, ValueError):
            _check_similarities(np.int8, rows, *given)
            check_entries("scales", scales, np.float32, len(rows))
            raise
    _check_similarities(np.int8, rows, *given)
    check_entries("scales", scales, np.float32, len(rows))
    return kernels_numpy.similarities_i8(rows, scales, *given)


def _similarities_i8_native(
    rows: ByteArray,
    scales: FloatArray,
    first: IntArray,
    next: IntArray,
    wanted: IntArray,
    columns: int,
    query: FloatArray,
    offset: float,
    scale: float,
    limit: float,
    isa: int = ISA_AUTO,
) -> FloatArray:
    out = np.empty((len(wanted), columns), np.float32)
    _native.similarities_i8(
        rows, scales, first, next, wanted, query, offset, scale, limit, isa, out
    )
    return out


def _check_similarities(
    dtype: type,
    rows: Any,
    first: Any,
    next: Any,
    wanted: Any,
    columns: Any,
    query: Any,
    offset: float,
    scale: float,
    limit: float,
) -> None:
    check_rows("rows", rows, dtype)
    check_array("first", first, np.int64, 1)
    check_entries("next", next, np.int64, len(rows))
    check_array("wanted", wanted, np.int64, 2)
    check_count("columns", columns)
    if columns > wanted.shape[1]:
        raise ValueError(f"columns is {columns}; wanted has {wanted.shape[1]}")
    check_numbers("query", query, rows.shape[1])
    if not (scale > 0 and limit >= 0):
        raise ValueError(f"scale is {scale}, limit {limit}; they must be above 0, and 0 or more")


def beside(
    proposals: IntArray,
    place: IntArray,
    before: IntArray,
    after: IntArray,
    speaker: NDArray[np.int32],
    allowed: BoolArray,
) -> IntArray:
    """The candidates of a search: what was proposed, and what was said beside it.

    proposals: (m,) int64, in any order, repeated or not. The columns by memory number, all (n,):
    place: int64, the turn's memory that each was taken from, else itself; before, after: int64, of
    a turn's memory, the turns said just before and after, 0 for none; speaker: int32, who said it;
    allowed: bool, what may be found, False for 0.
    Returns (c, AROUND) int64, by ascending candidate: itself; the memories before and after its
    place if somebody else said them; these two whoever said them; the one before the one before,
    and after the one after. 0 where there is none, or it is not allowed. Candidates are the
    proposals and the memories before and after their places, as far as allowed.
    A number outside its column is a ValueError. Cost O(n + m), the n one pass over bytes.
    """
    if _native is not None:
        try:
            return _beside_native(proposals, place, before, after, speaker, allowed)
        except (TypeError, ValueError):
            _check_memories(proposals, place, before, after, speaker, allowed)
            raise
    _check_memories(proposals, place, before, after, speaker, allowed)
    return kernels_numpy.beside(proposals, place, before, after, speaker, allowed)


def _check_memories(
    proposals: Any, place: Any, before: Any, after: Any, speaker: Any, allowed: Any
) -> None:
    check_array("proposals", proposals, np.int64, 1)
    check_array("place", place, np.int64, 1)
    n = len(place)
    check_entries("before", before, np.int64, n, "memories")
    check_entries("after", after, np.int64, n, "memories")
    check_entries("speaker", speaker, np.int32, n, "memories")
    check_entries("allowed", allowed, np.bool_, n, "memories")
    if not n or allowed[0]:
        raise ValueError("memory 0 is nobody: allowed[0] must be there, and False")
    for name, column in (
        ("proposals", proposals),
        ("place", place),
        ("before", before),
        ("after", after),
    ):
        _check_inside(name, column, 0, n)


def _check_inside(name: str, numbers: Any, low: int, end: int) -> None:
    if numbers.size and not low <= numbers.min() <= numbers.max() < end:
        raise ValueError(
            f"{name} are {numbers.min()} to {numbers.max()}; allowed are {low} to {end - 1}"
        )


def _beside_native(
    proposals: IntArray,
    place: IntArray,
    before: IntArray,
    after: IntArray,
    speaker: NDArray[np.int32],
    allowed: BoolArray,
) -> IntArray:
    out = np.empty((min(3 * len(proposals), len(place)), AROUND), np.int64)
    workspace = np.empty(len(place), np.uint8)
    found = _native.beside(proposals, place, before, after, speaker, allowed, workspace, out)
    return out[:found]


def word_features(
    around: IntArray,
    session: IntArray,
    slot: NDArray[np.int32],
    query: Bm25Query,
    idf: DoubleArray,
    scores: FloatArray,
    timed: BoolArray | None,
    max_length: int,
) -> FloatArray:
    """What the words of a query say of each candidate.

    around: (c, AROUND) int64, of `beside`, candidates ascending. session: (n,) int64, the session
    of each memory. slot: (g,) int32, the document of each memory, -1 for one that has none, as any
    beyond g. query, idf, scores: what was asked of `kernels.bm25` over s documents, those of a term
    ascending, and what it gave; a document with the score 0 has none of the terms. timed: (s,)
    bool, the documents that say when; None: none. max_length: of a document's tokens, how many
    count, >= 0.
    Returns (c, 6) float32, see WORD_FEATURES: the candidate's score; the sum of those of the last
    four around it; the share of the idf that it and the next two around it have; the best score of
    a candidate in its session; ln(1 + its length); 1 if it is timed, else 0.
    A number outside its column is a ValueError. Cost O(c · (log c + terms · log postings)).
    """
    if _native is not None:
        try:
            return _word_features_native(
                around, session, slot, query, idf, scores, timed, max_length
            )
        except (TypeError, ValueError):
            _check_words(around, session, slot, query, idf, scores, timed, max_length)
            raise
    _check_words(around, session, slot, query, idf, scores, timed, max_length)
    return kernels_numpy.word_features(around, session, slot, query, idf, scores, timed, max_length)


def _check_words(
    around: Any,
    session: Any,
    slot: Any,
    query: Bm25Query,
    idf: Any,
    scores: Any,
    timed: Any,
    max_length: Any,
) -> None:
    check_array("around", around, np.int64, 2)
    if around.shape[1] != AROUND:
        raise ValueError(f"around has {around.shape[1]} columns; {AROUND} are needed")
    check_array("session", session, np.int64, 1)
    _check_inside("candidates", around[:, 0], 0, len(session))
    check_bm25(query, 1, scores)
    check_array("slot", slot, np.int32, 1)
    _check_inside("slots", slot, -1, len(scores))
    check_entries("idf", idf, np.float64, len(query.starts), "terms")
    if timed is not None:
        check_entries("timed", timed, np.bool_, len(scores), "documents")
    check_count("max_length", max_length, 0)


def _word_features_native(
    around: IntArray,
    session: IntArray,
    slot: NDArray[np.int32],
    query: Bm25Query,
    idf: DoubleArray,
    scores: FloatArray,
    timed: BoolArray | None,
    max_length: int,
) -> FloatArray:
    m = len(around)
    out = np.empty((m, len(WORD_FEATURES)), np.float32)
    order, having = np.empty(2 * m, np.int64), np.empty((m + 2) * len(idf), np.uint8)
    _native.word_features(
        around, session, slot, query.docs, query.starts, query.sizes, idf, scores, query.lengths,
        timed, max_length, order, having, out,
    )  # fmt: skip
    return out

"""The kernels that gather a search's candidates: which memories, how near, what their words say.

Knows arrays only, as edgemem/kernels.py does, whose rules and choice of backend hold here too. A
memory is a number; 0 is nobody.
"""

from __future__ import annotations

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

__all__ = ["AROUND", "WORD_FEATURES", "beside", "best_dots", "best_dots_i8", "word_features"]

FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
ByteArray = NDArray[np.int8]
BoolArray = NDArray[np.bool_]

AROUND = 7
"""Memories in a row of `beside`: a candidate, and six around it."""

WORD_FEATURES = ("bm25", "bm25_around", "coverage", "session", "length", "time")
"""The columns of `word_features`."""


def best_dots(
    rows: FloatArray, first: IntArray, next: IntArray, wanted: IntArray, query: FloatArray
) -> FloatArray:
    """The largest inner product of each memory's rows with a query: a memory may have several.

    rows: (n, d) float32. first: (g,) int64, the row that a memory's chain begins with, by its
    number; next: (n,) int64, the row after each in its chain; a chain ascends and ends before what
    does not, or is no row, such as -1. wanted: (m,) int64, memories. query: (d,) float32. Returns
    (m,) float32; -inf for a memory without rows. A NaN is passed over. Cost O(rows met · d).
    """
    check_rows("rows", rows)
    _check_chains(len(rows), first, next, wanted)
    check_numbers("query", query, rows.shape[1])
    if _native is None:
        return kernels_numpy.best_dots(rows, first, next, wanted, query)
    return _best_dots_native(rows, first, next, wanted, query)


def _best_dots_native(
    rows: FloatArray,
    first: IntArray,
    next: IntArray,
    wanted: IntArray,
    query: FloatArray,
    isa: int = ISA_AUTO,
) -> FloatArray:
    out = np.empty(len(wanted), np.float32)
    _native.best_dots(rows, first, next, wanted, query, isa, out)
    return out


def best_dots_i8(
    rows: ByteArray,
    scales: FloatArray,
    first: IntArray,
    next: IntArray,
    wanted: IntArray,
    query: FloatArray,
) -> FloatArray:
    """`best_dots` over int8 rows: scale · (row · query).

    rows, scales: (n, d) int8 and (n,) float32, of `kernels.quantize_i8`; the rest as there.
    """
    check_rows("rows", rows, np.int8)
    check_entries("scales", scales, np.float32, len(rows))
    _check_chains(len(rows), first, next, wanted)
    check_numbers("query", query, rows.shape[1])
    if _native is None:
        return kernels_numpy.best_dots_i8(rows, scales, first, next, wanted, query)
    return _best_dots_i8_native(rows, scales, first, next, wanted, query)


def _best_dots_i8_native(
    rows: ByteArray,
    scales: FloatArray,
    first: IntArray,
    next: IntArray,
    wanted: IntArray,
    query: FloatArray,
    isa: int = ISA_AUTO,
) -> FloatArray:
    out = np.empty(len(wanted), np.float32)
    _native.best_dots_i8(rows, scales, first, next, wanted, query, isa, out)
    return out


def _check_chains(n: int, first: IntArray, next: IntArray, wanted: IntArray) -> None:
    check_array("first", first, np.int64, 1)
    check_entries("next", next, np.int64, n)
    check_array("wanted", wanted, np.int64, 1)


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
    check_array("proposals", proposals, np.int64, 1)
    check_array("place", place, np.int64, 1)
    n = len(place)
    check_entries("before", before, np.int64, n, "memories")
    check_entries("after", after, np.int64, n, "memories")
    check_entries("speaker", speaker, np.int32, n, "memories")
    check_entries("allowed", allowed, np.bool_, n, "memories")
    if not n or allowed[0]:
        raise ValueError("memory 0 is nobody: allowed[0] must be there, and False")
    if _native is None:
        _check_inside(n, proposals)
        for column in (place, before, after):
            _check_inside(n, column)
        return kernels_numpy.beside(proposals, place, before, after, speaker, allowed)
    return _beside_native(proposals, place, before, after, speaker, allowed)


def _check_inside(n: int, numbers: IntArray) -> None:
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < n:
        raise ValueError("a position lies outside its buffer, or a parameter outside its range")


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
    ascending, and what it gave; a document with the score 0 has none of the terms. timed: (s,) bool, the documents that say when; None: none. max_length: of a document's
    tokens, how many count, >= 0.
    Returns (c, 6) float32, see WORD_FEATURES: the candidate's score; the sum of those of the last
    four around it; the share of the idf that it and the next two around it have; the best score of
    a candidate in its session; ln(1 + its length); 1 if it is timed, else 0.
    A number outside its column is a ValueError. Cost O(c · (log c + terms · log postings)).
    """
    check_array("around", around, np.int64, 2)
    if around.shape[1] != AROUND:
        raise ValueError(f"around has {around.shape[1]} columns; {AROUND} are needed")
    check_array("session", session, np.int64, 1)
    check_array("slot", slot, np.int32, 1)
    check_bm25(query, 1, scores)
    check_array("idf", idf, np.float64, 1)
    if len(idf) != len(query.starts):
        raise ValueError(f"idf has {len(idf)} numbers for {len(query.starts)} terms")
    if timed is not None:
        check_entries("timed", timed, np.bool_, len(scores), "documents")
    check_count("max_length", max_length, 0)
    if _native is None:
        _check_inside(len(session), around[:, 0])
        _check_inside(len(scores) + 1, slot.astype(np.int64) + 1)
        return kernels_numpy.word_features(
            around, session, slot, query, idf, scores, timed, max_length
        )
    return _word_features_native(around, session, slot, query, idf, scores, timed, max_length)


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

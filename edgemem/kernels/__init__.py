"""The kernels: what each takes and returns, answered by the native module or in NumPy.

Knows arrays only: no store, no index, no model. The only importer of the compiled module
`edgemem._native`. If that is missing or of another ABI, NumPy answers. The lines in NumPy are the
specification, and the native module is tested against them. Sums of floats may differ in the last
bits, because they are added in another order; rows that close may then be ordered differently.
`backend` says which version is in use; `backend_detail` is the instruction set of the compiled
module, or why there is none.

All arrays are C-contiguous. Every kernel lets other threads run, and may be called from several at
once on the same arrays. Only edgemem's own rooms call one, so a wrong argument is a programming
error: the native module checks all it is given, and raises ValueError before it writes; NumPy
raises what its own operations do. Memories are numbered from 1; 0 means none.

EDGEMEM_BACKEND=numpy always uses NumPy. EDGEMEM_BACKEND=native makes the import fail if the
compiled module cannot be used (continuous integration sets it). Unset or auto uses the best.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from itertools import pairwise
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ConfigError

__all__ = ["ABI_VERSION", "AROUND", "MAX_DIM_I8", "NO_TOKENS", "WORD_FEATURES", "Bm25Query"]
__all__ += ["BoolArray", "DoubleArray", "FloatArray", "IntArray", "backend", "backend_detail"]
__all__ += ["beside", "bm25", "distinct", "dots", "in_numpy", "maxsim", "metric_query"]
__all__ += ["one_blas_thread", "quantize_i8", "rank", "scan_topk", "similarities"]
__all__ += ["word_features", "zero_norm"]

FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
ByteArray = NDArray[np.int8]
BoolArray = NDArray[np.bool_]
Rows = FloatArray | ByteArray

ABI_VERSION = 6
"""The EDGEMEM_ABI_VERSION of native/include/edgemem.h that this file is written for."""

MAX_DIM_I8 = 131_071
"""The most numbers in an int8 row: the sum of so many products still fits in 32 bits."""

AROUND = 7
"""Memories in a row of `beside`: a candidate, and six around it."""

ZERO_LENGTH = 1e-6
"""A vector is taken for the mean if its whitened norm is at most this times sqrt(max(D⁻¹)).

That near to it, a unit vector's direction from the mean is mostly float32 rounding."""

_BLOCK = 4096  # rows converted at once, so that the copy stays small


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limits NumPy's matrix products and decompositions to one thread, in the whole process.

    BLAS's own threads wait for each other without sleep, so on a busy machine they are several
    times slower. Safe from several threads: the last one to leave restores the previous limits.
    """
    with _limiting:
        limit = _limits[0] if _limits else _blas().limit(limits=1, user_api="blas")
        _limits.append(limit)
    try:
        yield
    finally:
        with _limiting:
            last = _limits.pop()
            if not _limits:
                last.restore_original_limits()


@cache
def _blas() -> Any:
    """The libraries whose threads can be limited; finding them takes 1 ms."""
    from threadpoolctl import ThreadpoolController  # late: few processes need it

    return ThreadpoolController()


_limiting = threading.Lock()
_limits: list[Any] = []  # the current limit, once for each block that is being executed


WORD_FEATURES = ("bm25", "bm25_around", "coverage", "session", "length", "time")
"""The columns of `word_features`."""

NO_TOKENS = -(2**31)
"""What `maxsim` returns for a text without tokens."""

isa = 0
"""The instruction set that is used: 0, the best of this processor. Tests set 1, no SIMD."""

P = ParamSpec("P")
R = TypeVar("R")


def _load_native() -> tuple[Any, str]:
    """The compiled module and its instruction set, or None and why there is none."""
    wanted = os.environ.get("EDGEMEM_BACKEND", "auto").strip().lower() or "auto"
    if wanted not in ("auto", "native", "numpy"):
        raise ConfigError(
            f"EDGEMEM_BACKEND is {wanted!r}; allowed are auto, native and numpy. Change or unset it"
        )
    if wanted == "numpy":
        return None, "EDGEMEM_BACKEND=numpy"
    try:
        # By name: a type checker then needs no stub of a module that may not be built.
        module = import_module("edgemem._native")
        if module.ABI_VERSION == ABI_VERSION:
            return module, module.isa_name(module.BEST_ISA)
        why = (
            f"the compiled module has ABI {module.ABI_VERSION}, this version of edgemem needs "
            f"{ABI_VERSION}"
        )
    except (ImportError, AttributeError) as exc:
        why = str(exc)
    if wanted == "native":
        raise ConfigError(
            f"EDGEMEM_BACKEND=native, but there is no compiled module to use: {why}. "
            "Reinstall edgemem-runtime with a C++ compiler present, or unset EDGEMEM_BACKEND"
        )
    return None, why


_native, backend_detail = _load_native()
backend = "numpy" if _native is None else "native"


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Turns the native module's TypeError, of a wrong type or layout, into a ValueError."""

    @wraps(function)
    def answer(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as exc:
            raise ValueError(
                f"{function.__name__} takes C-contiguous arrays of the types in its docstring, and "
                f"outputs that can be written ({exc})"
            ) from exc

    return answer


@contextmanager
def in_numpy() -> Iterator[None]:
    """NumPy answers within the block, in the whole process: for a comparison of both."""
    global _native
    native, _native = _native, None
    try:
        yield
    finally:
        _native = native


def distinct(numbers: NDArray[Any]) -> NDArray[Any]:
    """Numbers in ascending order, each once. np.unique would import numpy.ma for this (40 ms)."""
    ascending: NDArray[Any] = np.sort(numbers, axis=None)
    ascending = ascending[np.diff(ascending, prepend=ascending[:1] - 1) != 0]
    return ascending


def _best_buffers(k: int, n: int) -> tuple[IntArray, FloatArray]:
    """Positions and scores for the k best of n, for the native module to fill."""
    k = min(_at_least_one(k), n)
    return np.empty(k, np.int64), np.empty(k, np.float32)


def _at_least_one(k: int) -> int:
    if k < 1:
        raise ValueError(f"k is {k}; it must be 1 or more")
    return k


@kernel
def scan_topk(
    rows: Rows,
    query: FloatArray,
    k: int,
    mask: BoolArray | None = None,
    scales: FloatArray | None = None,
    *,
    survivors: int | None = None,
) -> tuple[IntArray, FloatArray]:
    """The k rows with the largest inner product with `query`, best first.

    rows: (n, d) float32, or int8 with their scales (n,) float32, from `quantize_i8`; query: (d,)
    float32; mask: (n,) bool, the rows to scan (None: all). Returns positions (m,) int64 and scores
    (m,) float32, m = min(k, rows scanned). Equal scores: lower position first. A row whose inner
    product is NaN scores -inf. Cost O(n·d).

    int8 rows are scanned twice. The first scan is in integers, with the query in int8 too, and
    keeps `survivors` >= k rows (None: 4 k). The second scores these by scale · (query · row). A
    query that is not finite makes all first scores -inf.
    """
    if _native is not None:
        if scales is None:
            positions, scores = _best_buffers(k, len(rows))
            found = _native.scan_topk(rows, query, mask, len(scores) or 1, isa, positions, scores)
            return positions[:found], scores[:found]
        survivors = 4 * k if survivors is None else survivors
        quantized, scale = quantize_i8(query[None])
        kept, best = _best_buffers(survivors, len(rows) or 1), _best_buffers(k, len(rows) or 1)
        found = _native.scan_topk_i8(
            rows, scales, query, quantized[0], scale[0], mask, len(best[0]), isa, *kept, *best
        )
        return best[0][:found], best[1][:found]
    positions = np.arange(len(rows)) if mask is None else np.flatnonzero(mask)
    with np.errstate(over="ignore", invalid="ignore"):
        if scales is not None:
            first = _products_i8(rows, positions, scales, query)
            likely, _ = _best(positions, first, survivors or 4 * k)
            likely.sort()
            return _best(likely, _products(rows, likely, query[None], scales)[:, 0], k)
        # Copying a few rows is cheaper than multiplying all; copying most of them is not.
        if 4 * len(positions) < len(rows):
            scores = rows[positions] @ query
        else:
            scores = (rows @ query)[positions]
    return _best(positions, scores, k)


@kernel
def dots(rows: FloatArray, positions: IntArray, queries: FloatArray) -> FloatArray:
    """The inner products of some rows with each query: what a re-ranker needs of its candidates.

    rows: (n, d) float32; positions: (m,) int64, each 0 <= p < n, in any order, repeated or not;
    queries: (q, d) float32, q >= 1. Returns (m, q) float32; a NaN product stays NaN. Cost O(m·q·d).
    """
    if _native is not None:
        out = np.empty((len(positions), len(queries)), np.float32)
        _native.dots(rows, positions, queries, isa, out)
        return out
    return _products(rows, positions, queries, None)


@kernel
def quantize_i8(rows: FloatArray) -> tuple[ByteArray, FloatArray]:
    """Rows as 8-bit whole numbers, number ≈ scale · int8: a quarter of the memory.

    rows: (n, d) float32, d <= MAX_DIM_I8. Returns (n, d) int8 in -127..127, rounded with halves to
    even, and scales (n,) float32, the largest magnitude of each row / 127. A row of zeros, or whose
    scale would be 0 in float32, gets scale 0 and zeros. A row that holds a NaN or an infinity gets
    scale NaN and zeros, and scores -inf in `scan_topk`.
    """
    if _native is not None:
        quantized, scales = np.empty(rows.shape, np.int8), np.empty(len(rows), np.float32)
        _native.quantize_i8(rows, quantized, scales)
        return quantized, scales
    scales = np.abs(rows).max(axis=1) / np.float32(127)
    scales[~np.isfinite(scales)] = np.nan
    quantized = np.zeros(rows.shape, np.int8)
    some = np.flatnonzero(scales > 0)
    for start in range(0, len(some), _BLOCK):
        block = some[start : start + _BLOCK]
        # A subnormal scale is itself rounded, and may give a number beyond 127.
        numbers = np.rint(rows[block] / scales[block, None])
        quantized[block] = np.clip(numbers, -127, 127)
    return quantized, scales


@kernel
def metric_query(
    query: FloatArray, mean: FloatArray, inverse_diagonal: FloatArray, directions: FloatArray
) -> tuple[FloatArray, float, float]:
    """Move a query through a metric: (query − μ)ᵀ Σ⁻¹ (row − μ) = image · row + offset.

    query: (d,) float32, normalised here; mean μ (d,), inverse_diagonal D⁻¹ (d,) and directions
    Aᵀ (r, d), all float32: Σ⁻¹ = diag(D⁻¹) − A Aᵀ (CoreMem, section 3.2, eq. 1). Returns the image
    Σ⁻¹(query − μ) (d,) float32, the offset −image·μ and the query's norm in the metric, so that
    (image · row + offset) / (norm · the row's norm) is the whitened cosine, to be taken as 0 if a
    norm is 0. A query that is all zero or not finite gets image, offset and norm 0. Cost O(d·r).
    """
    if _native is not None:
        image, workspace = np.empty_like(query), np.empty_like(query)
        offset, norm = _native.metric_query(
            query, mean, inverse_diagonal, directions, isa, workspace, image
        )
        return image, offset, norm
    unit = query.astype(np.float64)
    # Divide by the largest number first: the square of a huge or a tiny one leaves float64's range.
    largest = float(np.abs(unit).max(initial=0))
    if not 0 < largest < math.inf:
        return np.zeros(len(mean), np.float32), 0.0, 0.0
    unit /= largest
    unit /= math.sqrt(float((unit * unit).sum()))
    centred: NDArray[Any] = unit.astype(np.float32) - mean
    A = directions.T
    image = inverse_diagonal * centred - A @ (centred @ A)
    # In float64: the offset cancels most of image · row where the mean is long.
    exact = image.astype(np.float64)
    norm = math.sqrt(max(0.0, float(exact @ centred)))
    return image, -float(exact @ mean), norm if norm > zero_norm(inverse_diagonal) else 0.0


@kernel
def rank(
    features: FloatArray, weights: FloatArray, bias: float, k: int
) -> tuple[FloatArray, IntArray, FloatArray]:
    """One score for each candidate, features · weights + bias, and the k best.

    features: (m, f) float32, a row for each candidate; weights: (f,) float32. Returns all scores
    (m,) float32, and of the k best, best first, positions int64 and scores float32. A NaN scores
    -inf; equal scores: lower position first. Sums are in float64. Cost O(m·f + m·log k).
    """
    if _native is not None:
        scores = np.empty(len(features), np.float32)
        best = _best_buffers(k, len(features))
        found = _native.rank(features, weights, bias, len(best[0]) or 1, scores, *best)
        return scores, best[0][:found], best[1][:found]
    with np.errstate(over="ignore", invalid="ignore"):
        sums = features.astype(np.float64) @ weights.astype(np.float64) + np.float32(bias)
        scores = sums.astype(np.float32)
    scores[np.isnan(scores)] = -np.inf
    return (scores, *_best(np.arange(len(scores)), scores, k))


@dataclass(frozen=True, slots=True)
class Bm25Query:
    """The postings of a query's terms, and the documents that are searched.

    docs: (p,) int32, and counts: (p,) uint16 >= 1: the postings of all terms, a document's number
    and how often the term is in it. starts, sizes: (t,) int64; term i has the postings starts[i] to
    starts[i] + sizes[i], each document at most once. lengths: (n,) int32 >= 0, the tokens of each
    document. allowed: (n,) bool, the documents that are searched (None: all); n_allowed: their
    number, the N of the idf; average_length: their mean length in tokens, 1e-9 to 2^31 - 1. k1: 0
    to 1000; b: 0 to 1.
    """

    docs: NDArray[np.int32]
    counts: NDArray[np.uint16]
    starts: IntArray
    sizes: IntArray
    lengths: NDArray[np.int32]
    allowed: BoolArray | None
    n_allowed: int
    average_length: float
    k1: float = 1.2
    b: float = 0.75


@kernel
def bm25(query: Bm25Query, k: int, scores: FloatArray) -> tuple[IntArray, FloatArray, DoubleArray]:
    """BM25 of every document for one query: the k best, best first, and the idf of each term.

    scores: (n,) float32, receives every document's score, 0 where no term is in it.
    Returns document numbers (m,) int64 and their scores (m,) float32, m <= k: only scores above 0,
    equal ones by lower number. Also returns idf (t,) float64: ln(1 + (N - a + 0.5) / (a + 0.5)),
    where a is how many allowed documents have the term; the others have no influence on it.
    If it raises ValueError, nothing was written. Cost O(n + postings of the terms), in float32.
    Source: Robertson and Zaragoza 2009, eq. 3.15; departs from their idf by Lucene's 1 +, which
    keeps the weight of a term that most documents have above 0.
    """
    if _native is not None:
        idf = np.empty(len(query.starts), np.float64)
        best = _best_buffers(k, len(scores))
        found = _native.bm25(
            query.docs, query.counts, query.starts, query.sizes, query.lengths, query.allowed,
            query.n_allowed, query.average_length, query.k1, query.b,
            len(best[0]) or 1, idf, scores, *best,
        )  # fmt: skip
        return best[0][:found], best[1][:found], idf
    spans = [
        slice(start, start + size)
        for start, size in zip(query.starts.tolist(), query.sizes.tolist(), strict=True)
    ]
    for span in spans:
        docs = query.docs[span]
        if len(docs) and not 0 <= docs.min() <= docs.max() < len(scores):
            raise ValueError("a position lies outside its buffer, or a parameter outside its range")
    scores.fill(0)
    base = np.float32(query.k1 * (1 - query.b))
    slope = np.float32(query.k1 * query.b / query.average_length)
    idf = np.empty(len(spans))
    for t, span in enumerate(spans):
        docs, counts = query.docs[span], query.counts[span].astype(np.float32)
        if query.allowed is not None:
            keep = query.allowed[docs]
            docs, counts = docs[keep], counts[keep]
        missing = max(0, query.n_allowed - len(docs))
        idf[t] = np.log1p((missing + 0.5) / (len(docs) + 0.5))
        weight = np.float32(idf[t] * (query.k1 + 1))
        lengths = query.lengths[docs].astype(np.float32)
        scores[docs] += weight * counts / (counts + (base + slope * lengths))
    found = np.flatnonzero(scores > 0)
    return *_best(found, scores[found], k), idf


@kernel
def similarities(
    rows: Rows,
    first: IntArray,
    next: IntArray,
    wanted: IntArray,
    columns: int,
    query: FloatArray,
    offset: float,
    scale: float,
    limit: float,
    scales: FloatArray | None = None,
) -> FloatArray:
    """How near each memory is to a query: (p + offset) · scale, kept within ±limit.

    p: the largest inner product of the memory's rows with the query. rows: (n, d) float32, or int8
    with their scales, as for `scan_topk`. first: (g,) int64 by memory number, the first row of the
    memory's chain; next: (n,) int64, the row that follows each row in its chain. Row numbers ascend
    along a chain; a number that does not ascend, or is not a row's, such as -1, ends the chain.
    wanted: (m, w) int64, memory numbers; columns: how many of its columns are compared, 1 to w.
    query: (d,) float32. scale: > 0. limit: >= 0. Returns (m, columns) float32; 0 for a memory
    without rows. A NaN product is ignored. Cost O(rows visited · d).
    """
    if _native is not None:
        out = np.empty((len(wanted), columns), np.float32)
        given = first, next, wanted, query, offset, scale, limit, isa, out
        if scales is None:
            _native.similarities(rows, *given)
        else:
            _native.similarities_i8(rows, scales, *given)
        return out
    positions, owners = _chained(len(rows), first, next, wanted[:, :columns].ravel())
    products = _products(rows, positions, query[None], scales)[:, 0]
    best = np.full(len(wanted) * columns, -np.inf, np.float32)
    np.fmax.at(best, owners, products)
    scaled = np.clip((best + np.float32(offset)) * np.float32(scale), -limit, limit)
    nearness: FloatArray = np.where(np.isneginf(best), 0, scaled).astype(np.float32)
    return nearness.reshape(-1, columns)


@kernel
def maxsim(rows: ByteArray, offsets: IntArray, query: ByteArray) -> NDArray[np.int32]:
    """Late interaction: how well the tokens of a query are matched by those of each text.

    rows: (n, d) int8, d <= MAX_DIM_I8: the tokens of all texts, one text after the other; offsets:
    (m + 1,) int64, ascending, 0 to n: text i has rows[offsets[i] : offsets[i + 1]]; query: (q, d)
    int8, q >= 1, its tokens. Returns (m, q) int32, the largest inner product of each query token
    with a token of each text, and NO_TOKENS for a text that has none. Cost O(rows · q · d).
    Source: Khattab and Zaharia 2020 (ColBERT), eq. 3, before the sum over the query's tokens.
    """
    if _native is not None:
        out = np.empty((max(0, len(offsets) - 1), len(query)), np.int32)
        _native.maxsim_i8(rows, offsets, query, isa, out)
        return out
    # Exact in float64: a sum of d products is below 2^31.
    products = rows.astype(np.float64) @ query.astype(np.float64).T
    out = np.full((len(offsets) - 1, len(query)), NO_TOKENS, np.int32)
    for i, (start, end) in enumerate(pairwise(offsets)):
        if start < end:
            out[i] = products[start:end].max(axis=0)
    return out


@kernel
def beside(
    proposals: IntArray,
    place: IntArray,
    before: IntArray,
    after: IntArray,
    speaker: NDArray[np.int32],
    allowed: BoolArray,
) -> IntArray:
    """The candidates of a search: the proposals, and the turns said just before and after them.

    proposals: (m,) int64, in any order, repeated or not. The columns by memory number, all (n,):
    place: int64, the memory of the turn that each was taken from, else itself; before, after:
    int64, for a turn's memory, those of the turns said just before and after it, 0 for none;
    speaker: int32, who said it; allowed: bool, what may be found, False for 0.
    Returns (c, AROUND) int64, by ascending candidate. Column 0 is the candidate; 1 and 2 are the
    memories before and after its place if somebody else said them; 3 and 4 are the same whoever
    said them; 5 is the memory before column 3, and 6 the one after column 4. 0 where there is none,
    or it is not allowed. Candidates are the allowed ones among the proposals and the memories
    before and after their places.
    Raises ValueError on a number outside its column. Cost O(n + m), the n one pass over bytes.
    """
    if _native is not None:
        out = np.empty((min(3 * len(proposals), len(place)), AROUND), np.int64)
        workspace = np.empty(len(place), np.uint8)
        found = _native.beside(proposals, place, before, after, speaker, allowed, workspace, out)
        return out[:found]
    found = proposals[allowed[proposals]]
    sides = np.concatenate([found, before[place[found]], after[place[found]]])
    found = np.unique(sides[allowed[sides]])
    at = place[found]
    left, right = before[at], after[at]
    replied = (np.where(speaker[at] != speaker[side], side, 0) for side in (left, right))
    around = np.stack([found, *replied, left, right, before[left], after[right]], axis=1)
    return np.where(allowed[around], around, 0)


@kernel
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
    """The features of each candidate that come from the words of a query.

    around: (c, AROUND) int64, from `beside`, candidates ascending. session: (n,) int64, the session
    of each memory. slot: (g,) int32, the document of each memory, -1 for none; a memory beyond g
    has none. query, idf, scores: the arguments and results of `bm25` over s documents, where the
    documents of a term ascend; a document with the score 0 has none of the terms. timed: (s,) bool,
    the documents that say when; None: none. max_length: >= 0, how many of a document's tokens
    count.
    Returns (c, 6) float32, see WORD_FEATURES: the candidate's score; the sum of the scores in
    columns 3 to 6 of `around`; the share of the idf whose terms are in columns 0 to 2; the best
    score of a candidate in its session; ln(1 + its length); 1 if it is timed, else 0.
    Raises ValueError on a number outside its column. Cost O(c · (log c + terms · log postings)).
    """
    if _native is not None:
        m = len(around)
        out = np.empty((m, len(WORD_FEATURES)), np.float32)
        order, marks = np.empty(2 * m, np.int64), np.empty((m + 2) * len(idf), np.uint8)
        _native.word_features(
            around, session, slot, query.docs, query.starts, query.sizes, idf, scores,
            query.lengths, timed, max_length, order, marks, out,
        )  # fmt: skip
        return out
    known = (around >= 0) & (around < len(slot))
    slots = np.full(around.shape, -1)
    slots[known] = slot[around[known]]
    said = np.append(scores, np.float32(0))[slots]  # slot -1 reads the appended 0
    own = slots[:, 0]
    features = np.zeros((len(around), 6), np.float32)
    features[:, 0] = said[:, 0]
    features[:, 1] = said[:, 3:].sum(axis=1)
    having = [
        (np.isin(slots[:, :3], query.docs[start : start + size]) & (said[:, :3] > 0)).any(axis=1)
        for start, size in zip(query.starts.tolist(), query.sizes.tolist(), strict=True)
    ]
    if having:
        features[:, 2] = np.stack(having, axis=1) @ (idf / idf.sum())
    sessions, at = np.unique(session[around[:, 0]], return_inverse=True)
    best = np.zeros(len(sessions), np.float32)
    np.maximum.at(best, at, said[:, 0])
    features[:, 3] = best[at]
    lengths = np.append(query.lengths, np.int32(0))[own]
    features[:, 4] = np.log1p(np.minimum(lengths, max_length).astype(np.float32))
    if timed is not None:
        features[:, 5] = np.append(timed, False)[own]
    return features


# -- parts of the versions in NumPy --------------------------------------------------------------


def _products_i8(
    rows: Rows, positions: IntArray, scales: FloatArray, query: FloatArray
) -> FloatArray:
    """The integer products of some rows with the query in int8, times both scales."""
    quantized, scale = quantize_i8(query[None])
    products = np.empty(len(positions), np.float32)
    # Whole numbers are exact in a float32 up to 2^24, and BLAS has no integers.
    dtype = np.float32 if len(query) * 128 * 128 <= 2**24 else np.float64
    for start in range(0, len(positions), _BLOCK):
        block = slice(start, start + _BLOCK)
        products[block] = rows[positions[block]].astype(dtype) @ quantized[0].astype(dtype)
    scaled: FloatArray = products * (scales[positions] * scale[0])
    return scaled


def _products(
    rows: Rows, positions: IntArray, queries: FloatArray, scales: FloatArray | None
) -> FloatArray:
    with np.errstate(over="ignore", invalid="ignore"):
        products = rows[positions].astype(np.float32, copy=False) @ queries.T
        return products if scales is None else products * scales[positions, None]


def zero_norm(inverse_diagonal: FloatArray) -> float:
    """The whitened norm up to which a vector is taken for the mean."""
    return ZERO_LENGTH * math.sqrt(float(inverse_diagonal.max()))


def _chained(
    n: int, first: IntArray, next: IntArray, wanted: IntArray
) -> tuple[IntArray, IntArray]:
    """The rows of all wanted memories, and for each row the index in `wanted` of its memory."""
    of = np.flatnonzero((wanted >= 0) & (wanted < len(first)))
    at, before = first[wanted[of]], np.full(len(of), -1)
    positions, owners = [at[:0]], [of[:0]]
    while len(held := np.flatnonzero((at > before) & (at < n))):
        before, of = at[held], of[held]
        positions.append(before)
        owners.append(of)
        at = next[before]
    return np.concatenate(positions), np.concatenate(owners)


def _best(positions: IntArray, scores: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
    """The k best, best first; equal scores by lower position. positions: ascending."""
    k = _at_least_one(k)
    scores = np.where(np.isnan(scores), np.float32(-np.inf), scores)
    if k < len(scores):
        # All that tie with the k-th are kept, so that the sort below decides among them.
        kth = np.partition(scores, len(scores) - k)[len(scores) - k]
        keep = scores >= kth
        positions, scores = positions[keep], scores[keep]
    order = np.argsort(-scores, kind="stable")[:k]
    return positions[order].astype(np.int64), scores[order].astype(np.float32)

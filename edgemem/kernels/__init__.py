"""The kernels: what each takes and returns, and whether the native or the NumPy version answers.

Knows arrays only: no store, no index, no model. The only importer of the compiled module
`edgemem._native`. If that is missing or of another ABI, NumPy answers (reference.py, the
specification of both). `backend` says which version is in use; `backend_detail` is the instruction
set of the compiled module, or why there is none.

All arrays are C-contiguous. Every kernel lets other threads run, and may be called from several at
once on the same arrays. Only edgemem's own rooms call one, so a wrong argument is a programming
error: the native module checks all it is given, and raises ValueError before it writes.
Memories are numbered from 1; 0 means none.

EDGEMEM_BACKEND=numpy always uses NumPy. EDGEMEM_BACKEND=native makes the import fail if the
compiled module cannot be used (continuous integration sets it). Unset or auto uses the best.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ConfigError
from edgemem.kernels import reference
from edgemem.kernels.reference import (
    AROUND,
    MAX_DIM_I8,
    BoolArray,
    ByteArray,
    DoubleArray,
    FloatArray,
    IntArray,
    Rows,
    at_least_one,
)

__all__ = ["ABI_VERSION", "AROUND", "MAX_DIM_I8", "NO_TOKENS", "WORD_FEATURES", "Bm25Query"]
__all__ += ["BoolArray", "DoubleArray", "FloatArray", "IntArray", "backend", "backend_detail"]
__all__ += ["beside", "bm25", "distinct", "dots", "maxsim", "metric_query", "one_blas_thread"]
__all__ += ["quantize_i8", "rank", "scan_topk", "similarities", "word_features"]

ABI_VERSION = 6
"""The EDGEMEM_ABI_VERSION of native/include/edgemem.h that this file is written for."""


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


def kernel(native: Callable[P, R]) -> Callable[P, R]:
    """Makes a call of the native module a kernel: NumPy answers if there is no such module.

    reference.py has a function of the same name and arguments that answers in NumPy. The native
    module refuses wrong arguments before it writes; NumPy raises what its own operations do.
    """
    specified = getattr(reference, native.__name__)

    @wraps(native)
    def answer(*args: P.args, **kwargs: P.kwargs) -> R:
        if _native is None:
            found: R = specified(*args, **kwargs)
            return found
        try:
            return native(*args, **kwargs)
        except TypeError as exc:
            raise ValueError(
                f"{native.__name__} takes C-contiguous arrays of the types in its docstring, and "
                f"outputs that can be written ({exc})"
            ) from exc

    return answer


def distinct(numbers: NDArray[Any]) -> NDArray[Any]:
    """Numbers in ascending order, each once. np.unique would import numpy.ma for this (40 ms)."""
    ascending: NDArray[Any] = np.sort(numbers, axis=None)
    ascending = ascending[np.diff(ascending, prepend=ascending[:1] - 1) != 0]
    return ascending


def _best_buffers(k: int, n: int) -> tuple[IntArray, FloatArray]:
    """Positions and scores for the k best of n, for a kernel to fill."""
    k = min(at_least_one(k), n)
    return np.empty(k, np.int64), np.empty(k, np.float32)


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


@kernel
def dots(rows: FloatArray, positions: IntArray, queries: FloatArray) -> FloatArray:
    """The inner products of some rows with each query: what a re-ranker needs of its candidates.

    rows: (n, d) float32; positions: (m,) int64, each 0 <= p < n, in any order, repeated or not;
    queries: (q, d) float32, q >= 1. Returns (m, q) float32; a NaN product stays NaN. Cost O(m·q·d).
    """
    out = np.empty((len(positions), len(queries)), np.float32)
    _native.dots(rows, positions, queries, isa, out)
    return out


@kernel
def quantize_i8(rows: FloatArray) -> tuple[ByteArray, FloatArray]:
    """Rows as 8-bit whole numbers, number ≈ scale · int8: a quarter of the memory.

    rows: (n, d) float32, d <= MAX_DIM_I8. Returns (n, d) int8 in -127..127, rounded with halves to
    even, and scales (n,) float32, the largest magnitude of each row / 127. A row of zeros, or whose
    scale would be 0 in float32, gets scale 0 and zeros. A row that holds a NaN or an infinity gets
    scale NaN and zeros, and scores -inf in `scan_topk`.
    """
    quantized, scales = np.empty(rows.shape, np.int8), np.empty(len(rows), np.float32)
    _native.quantize_i8(rows, quantized, scales)
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
    image, workspace = np.empty_like(query), np.empty_like(query)
    offset, norm = _native.metric_query(
        query, mean, inverse_diagonal, directions, isa, workspace, image
    )
    return image, offset, norm


@kernel
def rank(
    features: FloatArray, weights: FloatArray, bias: float, k: int
) -> tuple[FloatArray, IntArray, FloatArray]:
    """One score for each candidate, features · weights + bias, and the k best.

    features: (m, f) float32, a row for each candidate; weights: (f,) float32. Returns all scores
    (m,) float32, and of the k best, best first, positions int64 and scores float32. A NaN scores
    -inf; equal scores: lower position first. Sums are in float64. Cost O(m·f + m·log k).
    """
    scores = np.empty(len(features), np.float32)
    best = _best_buffers(k, len(features))
    found = _native.rank(features, weights, bias, len(best[0]) or 1, scores, *best)
    return scores, best[0][:found], best[1][:found]


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
    idf = np.empty(len(query.starts), np.float64)
    best = _best_buffers(k, len(scores))
    found = _native.bm25(
        query.docs, query.counts, query.starts, query.sizes, query.lengths, query.allowed,
        query.n_allowed, query.average_length, query.k1, query.b,
        len(best[0]) or 1, idf, scores, *best,
    )  # fmt: skip
    return best[0][:found], best[1][:found], idf


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
    out = np.empty((len(wanted), columns), np.float32)
    given = first, next, wanted, query, offset, scale, limit, isa, out
    if scales is None:
        _native.similarities(rows, *given)
    else:
        _native.similarities_i8(rows, scales, *given)
    return out


@kernel
def maxsim(rows: ByteArray, offsets: IntArray, query: ByteArray) -> NDArray[np.int32]:
    """Late interaction: how well the tokens of a query are matched by those of each text.

    rows: (n, d) int8, d <= MAX_DIM_I8: the tokens of all texts, one text after the other; offsets:
    (m + 1,) int64, ascending, 0 to n: text i has rows[offsets[i] : offsets[i + 1]]; query: (q, d)
    int8, q >= 1, its tokens. Returns (m, q) int32, the largest inner product of each query token
    with a token of each text, and NO_TOKENS for a text that has none. Cost O(rows · q · d).
    Source: Khattab and Zaharia 2020 (ColBERT), eq. 3, before the sum over the query's tokens.
    """
    out = np.empty((max(0, len(offsets) - 1), len(query)), np.int32)
    _native.maxsim_i8(rows, offsets, query, isa, out)
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
    out = np.empty((min(3 * len(proposals), len(place)), AROUND), np.int64)
    workspace = np.empty(len(place), np.uint8)
    found = _native.beside(proposals, place, before, after, speaker, allowed, workspace, out)
    return out[:found]


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
    m = len(around)
    out = np.empty((m, len(WORD_FEATURES)), np.float32)
    order, having = np.empty(2 * m, np.int64), np.empty((m + 2) * len(idf), np.uint8)
    _native.word_features(
        around, session, slot, query.docs, query.starts, query.sizes, idf, scores, query.lengths,
        timed, max_length, order, having, out,
    )  # fmt: skip
    return out

"""The retrieval kernels: what each takes and returns, and which of two versions answers.

Knows arrays only: no store, no index, no memories. The only importer of the compiled module
`edgemem._native`. Where that is missing, too old or too new, NumPy (edgemem/kernels_numpy.py, the
specification of both) answers: `backend` says which of the two works here and `backend_detail` why.

All arrays are C-contiguous. Every function lets other threads run, may be called from several at
once on the same arrays, and raises ValueError on a wrong shape, dtype, layout or parameter.

EDGEMEM_BACKEND=numpy uses NumPy although the compiled module is there; EDGEMEM_BACKEND=native
makes the import fail where it is not (continuous integration sets it); unset or auto: the best.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem import kernels_numpy
from edgemem.errors import ConfigError
from edgemem.kernels_checks import (
    MAX_DIM_I8,
    check_array,
    check_bm25,
    check_count,
    check_dim_i8,
    check_entries,
    check_gather,
    check_metric,
    check_numbers,
    check_rows,
    check_scan,
)

__all__ = [
    "ABI_VERSION",
    "MAX_DIM_I8",
    "Bm25Query",
    "backend",
    "backend_detail",
    "bm25",
    "dots",
    "dots_i8",
    "metric_fit",
    "metric_norms",
    "metric_query",
    "native_module",
    "quantize_i8",
    "rank",
    "scan_topk",
    "scan_topk_i8",
    "scan_topk_numpy",
]

ABI_VERSION = 4
"""The EDGEMEM_ABI_VERSION of native/include/edgemem.h that this file is written for."""

ISA_AUTO = 0

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
ByteArray = NDArray[np.int8]
BoolArray = NDArray[np.bool_]
DoubleArray = NDArray[np.float64]


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
        # By name: a checker then does not look for a stub of a module that may not be built.
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


def native_module() -> Any:
    """The compiled module for edgemem/kernels_layers.py, or None."""
    return _native


def scan_topk(
    rows: FloatArray, query: FloatArray, k: int, mask: BoolArray | None = None
) -> tuple[IntArray, FloatArray]:
    """The k rows with the largest inner product with `query`, best first.

    rows: (n, d) float32; query: (d,) float32; mask: (n,) bool, a row counts where it is True (None:
    all). Returns positions (m,) int64 and scores (m,) float32, m = min(k, rows that count). Equal
    scores: lower position first. A row whose inner product is NaN scores -inf. Cost O(n·d).
    """
    check_count("k", k)
    if _native is not None:
        # The native module refuses by itself what does not fit. The checks say it better, but take
        # as long as a scan of a few hundred rows, here and below.
        try:
            return _scan_topk_native(rows, query, k, mask)
        except (AttributeError, TypeError, ValueError):
            check_scan(rows, query, k, mask)
            raise
    check_scan(rows, query, k, mask)
    return kernels_numpy.scan_topk(rows, query, k, mask)


def scan_topk_numpy(
    rows: FloatArray, query: FloatArray, k: int, mask: BoolArray | None = None
) -> tuple[IntArray, FloatArray]:
    """`scan_topk` by NumPy, whatever the backend."""
    check_scan(rows, query, k, mask)
    return kernels_numpy.scan_topk(rows, query, k, mask)


def _scan_topk_native(
    rows: FloatArray, query: FloatArray, k: int, mask: BoolArray | None, isa: int = ISA_AUTO
) -> tuple[IntArray, FloatArray]:
    positions, scores = _room(k, len(rows))
    found = _native.scan_topk(rows, query, mask, len(scores) or 1, isa, positions, scores)
    return positions[:found], scores[:found]


def dots(rows: FloatArray, positions: IntArray, queries: FloatArray) -> FloatArray:
    """The inner products of some rows with each query: what a re-ranker needs of its candidates.

    rows: (n, d) float32; positions: (m,) int64, each 0 <= p < n, in any order, repeated or not;
    queries: (q, d) float32, q >= 1. Returns (m, q) float32; a NaN stays one. Cost O(m·q·d).
    """
    check_rows("rows", rows)
    check_gather(rows, positions, queries)
    if _native is None:
        return kernels_numpy.dots(rows, positions, queries)
    return _dots_native(rows, positions, queries)


def _dots_native(
    rows: FloatArray, positions: IntArray, queries: FloatArray, isa: int = ISA_AUTO
) -> FloatArray:
    out = np.empty((len(positions), len(queries)), np.float32)
    _native.dots(rows, positions, queries, isa, out)
    return out


def quantize_i8(rows: FloatArray) -> tuple[ByteArray, FloatArray]:
    """Rows as 8-bit whole numbers, number ≈ scale · int8: a quarter of the memory.

    rows: (n, d) float32, d <= MAX_DIM_I8. Returns (n, d) int8 in -127..127, rounded with halves to
    even, and scales (n,) float32, the largest magnitude of each row / 127. A row of zeros (or whose
    scale would be 0 in float32) gets scale 0 and zeros; one that holds a NaN or an infinity scale
    NaN and zeros, and scores -inf in `scan_topk_i8`.
    """
    check_rows("rows", rows)
    check_dim_i8(rows)
    if _native is None:
        return kernels_numpy.quantize_i8(rows)
    return _quantize_i8_native(rows)


def _quantize_i8_native(rows: FloatArray) -> tuple[ByteArray, FloatArray]:
    quantized, scales = np.empty(rows.shape, np.int8), np.empty(len(rows), np.float32)
    _native.quantize_i8(rows, quantized, scales)
    return quantized, scales


def scan_topk_i8(
    rows: ByteArray,
    scales: FloatArray,
    query: FloatArray,
    k: int,
    mask: BoolArray | None = None,
    *,
    survivors: int | None = None,
) -> tuple[IntArray, FloatArray]:
    """`scan_topk` over int8 rows: a scan in whole numbers, then its best again in floats.

    rows, scales: (n, d) int8 and (n,) float32, of `quantize_i8`; query: (d,) float32; mask: (n,)
    bool or None. survivors: how many the first scan, with the query in int8 too, keeps for the
    second, which scores them by scale · (query · row): >= k (None: 4 k). Returns positions and
    scores as `scan_topk` does. A query that is not finite makes all first scores -inf.
    """
    check_rows("rows", rows, np.int8)
    check_entries("scales", scales, np.float32, len(rows))
    check_numbers("query", query, rows.shape[1])
    if mask is not None:
        check_entries("mask", mask, np.bool_, len(rows))
    check_count("k", k)
    if survivors is None:
        survivors = 4 * k
    check_count("survivors", survivors, k)
    if _native is None:
        return kernels_numpy.scan_topk_i8(rows, scales, query, k, mask, survivors)
    return _scan_topk_i8_native(rows, scales, query, k, mask, survivors)


def _scan_topk_i8_native(
    rows: ByteArray,
    scales: FloatArray,
    query: FloatArray,
    k: int,
    mask: BoolArray | None,
    survivors: int,
    isa: int = ISA_AUTO,
) -> tuple[IntArray, FloatArray]:
    quantized, scale = _quantize_i8_native(query[None])
    kept, best = _room(survivors, len(rows) or 1), _room(k, len(rows) or 1)
    found = _native.scan_topk_i8(
        rows, scales, query, quantized[0], scale[0], mask, len(best[0]), isa, *kept, *best
    )
    return best[0][:found], best[1][:found]


def dots_i8(
    rows: ByteArray, scales: FloatArray, positions: IntArray, queries: FloatArray
) -> FloatArray:
    """`dots` over int8 rows: scale · (row · query), (m, q) float32.

    rows, scales: (n, d) int8 and (n,) float32, of `quantize_i8`; the rest as for `dots`.
    """
    check_rows("rows", rows, np.int8)
    check_entries("scales", scales, np.float32, len(rows))
    check_gather(rows, positions, queries)
    if _native is None:
        return kernels_numpy.dots_i8(rows, scales, positions, queries)
    return _dots_i8_native(rows, scales, positions, queries)


def _dots_i8_native(
    rows: ByteArray,
    scales: FloatArray,
    positions: IntArray,
    queries: FloatArray,
    isa: int = ISA_AUTO,
) -> FloatArray:
    out = np.empty((len(positions), len(queries)), np.float32)
    _native.dots_i8(rows, scales, positions, queries, isa, out)
    return out


def metric_fit(
    rows: FloatArray, *, c: float = 3.0, tau: float = 0.95, max_rank: int = 100
) -> tuple[int, FloatArray, FloatArray, FloatArray]:
    """Fit the low-rank Mahalanobis metric of CoreMem, section 3.2, eq. 1.

    rows: (n, d) float32 of any length, normalised here; c: ridge, 0.001 to 1000; tau: share of
    the variance to explain, above 0 and at most 1; max_rank: directions at most, >= 0. Returns the
    number of rows that took part, mean (d,), inverse diagonal D⁻¹ (d,) and directions Aᵀ (r, d),
    all float32, with Σ⁻¹ = diag(D⁻¹) − A Aᵀ. A is unique up to a rotation of its columns. Rows that
    hold a NaN or an infinity or are all zero take no part; no rows: mean 0, D⁻¹ = 1, r = 0; rows
    that are all the same: D⁻¹ = 1, r = 0 around them. Cost O(n·d² + d³).
    """
    check_rows("rows", rows)
    if not 0.001 <= c <= 1000:  # beyond, float32 may not hold the inverse
        raise ValueError(f"c is {c}; the ridge's factor must be 0.001 to 1000 (paper: 10)")
    if not 0 < tau <= 1:
        raise ValueError(f"tau is {tau}; it is a share of the variance, above 0 and at most 1")
    check_count("max_rank", max_rank, 0)
    if _native is None:
        return kernels_numpy.metric_fit(rows, c, tau, max_rank)
    return _metric_fit_native(rows, c, tau, max_rank)


def _metric_fit_native(
    rows: FloatArray, c: float, tau: float, max_rank: int, isa: int = ISA_AUTO
) -> tuple[int, FloatArray, FloatArray, FloatArray]:
    dim = rows.shape[1]
    most = min(max_rank, dim)
    mean, inverse_diagonal = np.empty(dim, np.float32), np.empty(dim, np.float32)
    directions = np.empty((most, dim), np.float32)
    workspace = np.empty(_native.metric_workspace(dim, most), np.float64)
    rank, count = _native.metric_fit(
        rows, c, tau, isa, workspace, mean, inverse_diagonal, directions
    )
    return count, mean, inverse_diagonal, directions[:rank].copy()


def metric_query(
    query: FloatArray, mean: FloatArray, inverse_diagonal: FloatArray, directions: FloatArray
) -> tuple[FloatArray, float, float]:
    """Move a query through a metric: (query − μ)ᵀ Σ⁻¹ (row − μ) = image · row + offset.

    query: (d,) float32, normalised here; the rest as `metric_fit` returns it. Returns the image
    Σ⁻¹(query − μ) (d,) float32, the offset −image·μ and the query's norm in the metric, so that
    (image · row + offset) / (norm · the row's norm) is the whitened cosine; where a norm is 0 it
    is to be taken for 0. A query of zeros or not finite: image 0, offset 0, norm 0. Cost O(d·r).
    """
    check_array("query", query, np.float32, 1)
    check_metric(len(query), mean, inverse_diagonal, directions)
    if _native is None:
        return kernels_numpy.metric_query(query, mean, inverse_diagonal, directions)
    return _metric_query_native(query, mean, inverse_diagonal, directions)


def _metric_query_native(
    query: FloatArray,
    mean: FloatArray,
    inverse_diagonal: FloatArray,
    directions: FloatArray,
    isa: int = ISA_AUTO,
) -> tuple[FloatArray, float, float]:
    image, workspace = np.empty_like(query), np.empty_like(query)
    offset, norm = _native.metric_query(
        query, mean, inverse_diagonal, directions, isa, workspace, image
    )
    return image, offset, norm


def metric_norms(
    rows: FloatArray, mean: FloatArray, inverse_diagonal: FloatArray, directions: FloatArray
) -> FloatArray:
    """Each row's norm in a metric, sqrt((row − μ)ᵀ Σ⁻¹ (row − μ)).

    rows: (n, d) float32 of length 1, as they are stored: not normalised here; the rest as
    `metric_fit` returns it. Returns (n,) float32 >= 0; 0 for a row that is not finite or is, within
    rounding, the mean. Cost O(n·d·r).
    """
    check_rows("rows", rows)
    check_metric(rows.shape[1], mean, inverse_diagonal, directions)
    if _native is None:
        return kernels_numpy.metric_norms(rows, mean, inverse_diagonal, directions)
    return _metric_norms_native(rows, mean, inverse_diagonal, directions)


def _metric_norms_native(
    rows: FloatArray,
    mean: FloatArray,
    inverse_diagonal: FloatArray,
    directions: FloatArray,
    isa: int = ISA_AUTO,
) -> FloatArray:
    norms, workspace = np.empty(len(rows), np.float32), np.empty(8 * len(mean), np.float32)
    _native.metric_norms(rows, mean, inverse_diagonal, directions, isa, workspace, norms)
    return norms


def rank(
    features: FloatArray, weights: FloatArray, bias: float, k: int
) -> tuple[FloatArray, IntArray, FloatArray]:
    """One score for each candidate, features · weights + bias, and the k best.

    features: (m, f) float32, a row for each candidate; weights: (f,) float32. Returns all scores
    (m,) float32, and of the k best, best first, positions int64 and scores float32. A NaN scores
    -inf; equal scores: lower position first. Sums are in float64. Cost O(m·f + m·log k).
    """
    check_count("k", k)
    if _native is not None:
        try:
            return _rank_native(features, weights, bias, k)
        except (TypeError, ValueError):
            _check_rank(features, weights)
            raise
    _check_rank(features, weights)
    return kernels_numpy.rank(features, weights, bias, k)


def _check_rank(features: Any, weights: Any) -> None:
    check_rows("features", features)
    check_numbers("weights", weights, features.shape[1], "features")


def _rank_native(
    features: FloatArray, weights: FloatArray, bias: float, k: int
) -> tuple[FloatArray, IntArray, FloatArray]:
    scores = np.empty(len(features), np.float32)
    best = _room(k, len(features))
    found = _native.rank(features, weights, bias, len(best[0]) or 1, scores, *best)
    return scores, best[0][:found], best[1][:found]


@dataclass(frozen=True, slots=True)
class Bm25Query:
    """The postings of a query's terms, and the documents that count.

    docs: (p,) int32, and counts: (p,) uint16 >= 1: the postings of all terms, a document's number
    and how often the term is in it. starts, sizes: (t,) int64; those of a term are the `size` from
    `start` on, each document at most once. lengths: (n,) int32 >= 0, the tokens of each document.
    allowed: (n,) bool, the documents that count (None: all); n_allowed: how many these are, the N
    of the idf; average_length: of these, in tokens, 1e-9 to 2^31 - 1. k1: 0 to 1000; b: 0 to 1.
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


def bm25(query: Bm25Query, k: int, scores: FloatArray) -> tuple[IntArray, FloatArray, DoubleArray]:
    """BM25 of every document for one query: the k best, best first, and the idf of each term.

    scores: (n,) float32, written: every document's score, 0 where no term is in it.
    Returns document numbers (m,) int64 and their scores (m,) float32, m <= k: only scores above 0,
    equal ones by lower number. And idf (t,) float64: ln(1 + (N - m + 0.5) / (m + 0.5)), m the
    documents that count and have the term; what a search may not see has no influence on it.
    A ValueError means that nothing was written. Cost O(n + postings of the terms), in float32.
    Source: Robertson and Zaragoza 2009, eq. 3.15; departs from their idf by Lucene's 1 +, which
    keeps the weight of a term that most documents have above 0.
    """
    check_count("k", k)
    if _native is not None:
        try:
            return _bm25_native(query, k, scores)
        except (TypeError, ValueError):
            check_bm25(query, k, scores)
            raise
    check_bm25(query, k, scores)
    return kernels_numpy.bm25(query, k, scores)


def _bm25_native(
    query: Bm25Query, k: int, scores: FloatArray
) -> tuple[IntArray, FloatArray, DoubleArray]:
    idf = np.empty(len(query.starts), np.float64)
    best = _room(k, len(scores))
    found = _native.bm25(
        query.docs, query.counts, query.starts, query.sizes, query.lengths, query.allowed,
        query.n_allowed, query.average_length, query.k1, query.b,
        len(best[0]) or 1, idf, scores, *best,
    )  # fmt: skip
    return best[0][:found], best[1][:found], idf


def _room(k: int, n: int) -> tuple[IntArray, FloatArray]:
    """Positions and scores for the k best of n, for a kernel to fill."""
    return np.empty(min(int(k), n), np.int64), np.empty(min(int(k), n), np.float32)

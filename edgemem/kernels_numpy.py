"""The retrieval kernels in NumPy: the specification that the native ones are tested against.

Knows arrays only. Checks nothing but the documents of `bm25`: edgemem/kernels.py does, says what
each function takes and returns, and chooses between these and the native ones. Where sums are of
floats the two may differ in the last bits, because they add in another order, and then in the order
of rows that are that close.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edgemem.kernels import Bm25Query

__all__ = [
    "bm25",
    "dots",
    "dots_i8",
    "metric_fit",
    "metric_norms",
    "metric_query",
    "quantize_i8",
    "rank",
    "scan_topk",
    "scan_topk_i8",
]

FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
ByteArray = NDArray[np.int8]
BoolArray = NDArray[np.bool_]

BLOCK = 4096
"""Rows converted at once, so that the copy stays small."""

MIN_VARIANCE = 1e-10
"""Unit rows whose mean squared distance to their mean is at most this are taken for identical."""

ZERO_LENGTH = 1e-6
"""A vector is taken for the mean if its norm is at most this times the largest of D^-1/2."""


def scan_topk(
    rows: FloatArray, query: FloatArray, k: int, mask: BoolArray | None
) -> tuple[IntArray, FloatArray]:
    with np.errstate(over="ignore", invalid="ignore"):
        if mask is None:
            positions, scores = np.arange(len(rows)), rows @ query
        else:
            positions = np.flatnonzero(mask)
            # Copying a few rows is cheaper than multiplying them all; most rows, the other way.
            if 4 * len(positions) < len(rows):
                scores = rows[positions] @ query
            else:
                scores = (rows @ query)[positions]
    return _best(positions, scores, k)


def dots(rows: FloatArray, positions: IntArray, queries: FloatArray) -> FloatArray:
    with np.errstate(over="ignore", invalid="ignore"):
        return rows[positions] @ queries.T


def quantize_i8(rows: FloatArray) -> tuple[ByteArray, FloatArray]:
    scales = np.abs(rows).max(axis=1) / np.float32(127)
    scales[~np.isfinite(scales)] = np.nan
    quantized = np.zeros(rows.shape, np.int8)
    some = np.flatnonzero(scales > 0)
    for start in range(0, len(some), BLOCK):
        block = some[start : start + BLOCK]
        # A scale so small that it was rounded itself may send a number beyond 127.
        numbers = np.rint(rows[block] / scales[block, None])
        quantized[block] = np.clip(numbers, -127, 127)
    return quantized, scales


def scan_topk_i8(
    rows: ByteArray,
    scales: FloatArray,
    query: FloatArray,
    k: int,
    mask: BoolArray | None,
    survivors: int,
) -> tuple[IntArray, FloatArray]:
    quantized, scale = quantize_i8(query[None])
    positions = np.arange(len(rows)) if mask is None else np.flatnonzero(mask)
    products = np.empty(len(positions), np.float32)
    # Whole numbers are exact in a float32 up to 2^24, and BLAS has no integers.
    dtype = np.float32 if len(query) * 128 * 128 <= 2**24 else np.float64
    for start in range(0, len(positions), BLOCK):
        block = slice(start, start + BLOCK)
        products[block] = rows[positions[block]].astype(dtype) @ quantized[0].astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        kept, _ = _best(positions, products * (scales[positions] * scale[0]), survivors)
        kept.sort()
        scores = dots_i8(rows, scales, kept, query[None])[:, 0]
    return _best(kept, scores, k)


def dots_i8(
    rows: ByteArray, scales: FloatArray, positions: IntArray, queries: FloatArray
) -> FloatArray:
    with np.errstate(over="ignore", invalid="ignore"):
        products = rows[positions].astype(np.float32) @ queries.T
        return products * scales[positions, None]


def metric_fit(
    rows: FloatArray, c: float, tau: float, max_rank: int
) -> tuple[int, FloatArray, FloatArray, FloatArray]:
    dim = rows.shape[1]
    count, total, scatter = 0, np.zeros(dim), np.zeros((dim, dim))
    for start in range(0, len(rows), BLOCK):
        unit = _unit_rows(rows[start : start + BLOCK])
        count += len(unit)
        total += unit.sum(axis=0)
    mean = total / max(count, 1)
    for start in range(0, len(rows), BLOCK):
        centred = _unit_rows(rows[start : start + BLOCK]) - mean
        scatter += centred.T @ centred
    covariance = scatter / max(count, 1)
    variance = covariance.diagonal()
    inverse_diagonal, directions = np.ones(dim), np.empty((0, dim))
    if variance.sum() > MIN_VARIANCE:
        inverse_diagonal = 1 / (variance + c * variance.mean())
        directions = _directions(covariance, inverse_diagonal, tau, min(max_rank, count - 1))
    return (
        count,
        mean.astype(np.float32),
        inverse_diagonal.astype(np.float32),
        np.ascontiguousarray(directions, np.float32),
    )


def _directions(
    covariance: DoubleArray, inverse_diagonal: DoubleArray, tau: float, max_rank: int
) -> DoubleArray:
    """Aᵀ (r, d), by way of B = D^-1/2 U M^1/2.

    Eq. 1 is D^-1/2 (I − B (I + BᵀB)⁻¹ Bᵀ) D^-1/2 then, which never divides by a small M.
    """
    ascending, vectors = np.linalg.eigh(covariance)
    M = np.maximum(ascending[::-1], 0)
    share = np.cumsum(M) / M.sum()
    rank = min(int(np.searchsorted(share, tau)) + 1, max_rank, len(M))
    root = np.sqrt(inverse_diagonal)
    B = root[:, None] * vectors[:, ::-1][:, :rank] * np.sqrt(M[:rank])
    L = np.linalg.cholesky(np.eye(rank) + B.T @ B)
    directions: DoubleArray = np.linalg.solve(L, B.T) * root
    return directions


def metric_query(
    query: FloatArray, mean: FloatArray, inverse_diagonal: FloatArray, directions: FloatArray
) -> tuple[FloatArray, float, float]:
    unit = _unit_rows(query[None])
    if not len(unit):
        return np.zeros_like(mean), 0.0, 0.0
    centred = unit[0].astype(np.float32) - mean
    image = inverse_diagonal * centred - (directions @ centred) @ directions
    # In float64: the offset cancels most of image · row where the mean is long.
    exact = image.astype(np.float64)
    norm = np.float32(np.sqrt(max(0.0, float(exact @ centred))))
    return (
        image,
        float(np.float32(-exact @ mean)),
        float(norm) if norm > _zero_norm(inverse_diagonal) else 0.0,
    )


def metric_norms(
    rows: FloatArray, mean: FloatArray, inverse_diagonal: FloatArray, directions: FloatArray
) -> FloatArray:
    norms = np.empty(len(rows), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(rows), BLOCK):
            centred = rows[start : start + BLOCK] - mean
            squared = (centred * centred) @ inverse_diagonal
            squared -= ((centred @ directions.T) ** 2).sum(axis=1)
            norms[start : start + BLOCK] = np.sqrt(np.maximum(squared, 0))
    norms[~np.isfinite(norms) | (norms <= _zero_norm(inverse_diagonal))] = 0
    return norms


def rank(
    features: FloatArray, weights: FloatArray, bias: float, k: int
) -> tuple[FloatArray, IntArray, FloatArray]:
    with np.errstate(over="ignore", invalid="ignore"):
        sums = features.astype(np.float64) @ weights.astype(np.float64) + np.float32(bias)
        scores = sums.astype(np.float32)
    scores[np.isnan(scores)] = -np.inf
    return (scores, *_best(np.arange(len(scores)), scores, k))


def bm25(query: Bm25Query, k: int, scores: FloatArray) -> tuple[IntArray, FloatArray, DoubleArray]:
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


def _best(positions: IntArray, scores: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
    """The k best of ascending positions, best first; of equal ones the lower first."""
    scores = np.where(np.isnan(scores), np.float32(-np.inf), scores)
    if k < len(scores):
        # All that tie with the k-th stay in, so that the sort below decides among them.
        kth = np.partition(scores, len(scores) - k)[len(scores) - k]
        keep = scores >= kth
        positions, scores = positions[keep], scores[keep]
    order = np.argsort(-scores, kind="stable")[:k]
    return positions[order].astype(np.int64), scores[order].astype(np.float32)


def _unit_rows(rows: FloatArray) -> DoubleArray:
    """The rows that have a direction, in float64 with length 1."""
    doubles = rows.astype(np.float64)
    lengths = np.linalg.norm(doubles, axis=1)
    some = np.isfinite(lengths) & (lengths > 0)
    unit: DoubleArray = doubles[some] / lengths[some, None]
    return unit


def _zero_norm(inverse_diagonal: FloatArray) -> float:
    return ZERO_LENGTH * float(np.sqrt(inverse_diagonal.max()))

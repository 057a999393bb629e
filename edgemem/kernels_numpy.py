"""The retrieval kernels in NumPy: the specification that the native ones are tested against.

Knows arrays only. Checks nothing but the documents of `bm25`: edgemem/kernels.py and
edgemem/kernels_candidates.py do, say what each function takes and returns, and choose between these
and the native ones. Where sums are of
floats the two may differ in the last bits, because they add in another order, and then in the order
of rows that are that close. The metric's are those of retrieval/metric.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgemem.retrieval import metric

if TYPE_CHECKING:
    from edgemem.kernels import Bm25Query

__all__ = [
    "beside",
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
    "similarities",
    "similarities_i8",
    "word_features",
]

FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
ByteArray = NDArray[np.int8]
BoolArray = NDArray[np.bool_]

BLOCK = 4096
"""Rows converted at once, so that the copy stays small."""


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
    fitted = metric.fit(rows, c=c, tau=tau, max_rank=max_rank)
    directions = np.ascontiguousarray(fitted.A.T)
    return fitted.count, fitted.mean, fitted.inverse_diagonal, directions


def metric_query(
    query: FloatArray, mean: FloatArray, inverse_diagonal: FloatArray, directions: FloatArray
) -> tuple[FloatArray, float, float]:
    return metric.Metric(0, mean, inverse_diagonal, directions.T).query(query)


def metric_norms(
    rows: FloatArray, mean: FloatArray, inverse_diagonal: FloatArray, directions: FloatArray
) -> FloatArray:
    return metric.Metric(0, mean, inverse_diagonal, directions.T).norms(rows)


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
    memories = wanted[:, :columns].ravel()
    positions, owners = _chained(len(rows), first, next, memories)
    products = dots(rows, positions, query[None])[:, 0]
    best = _scaled_best(products, owners, len(memories), offset, scale, limit)
    return best.reshape(-1, columns)


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
    memories = wanted[:, :columns].ravel()
    positions, owners = _chained(len(rows), first, next, memories)
    products = dots_i8(rows, scales, positions, query[None])[:, 0]
    best = _scaled_best(products, owners, len(memories), offset, scale, limit)
    return best.reshape(-1, columns)


def _chained(
    n: int, first: IntArray, next: IntArray, wanted: IntArray
) -> tuple[IntArray, IntArray]:
    """The rows of all wanted memories, and for each which of these it belongs to."""
    of = np.flatnonzero((wanted >= 0) & (wanted < len(first)))
    at, before = first[wanted[of]], np.full(len(of), -1)
    positions, owners = [at[:0]], [of[:0]]
    while len(held := np.flatnonzero((at > before) & (at < n))):
        before, of = at[held], of[held]
        positions.append(before)
        owners.append(of)
        at = next[before]
    return np.concatenate(positions), np.concatenate(owners)


def _scaled_best(
    products: FloatArray, owners: IntArray, m: int, offset: float, scale: float, limit: float
) -> FloatArray:
    best = np.full(m, -np.inf, np.float32)
    np.fmax.at(best, owners, products)
    scaled = np.clip((best + np.float32(offset)) * np.float32(scale), -limit, limit)
    return np.where(np.isneginf(best), 0, scaled).astype(np.float32)


def beside(
    proposals: IntArray,
    place: IntArray,
    before: IntArray,
    after: IntArray,
    speaker: NDArray[np.int32],
    allowed: BoolArray,
) -> IntArray:
    found = proposals[allowed[proposals]]
    sides = np.concatenate([found, before[place[found]], after[place[found]]])
    found = np.unique(sides[allowed[sides]])
    at = place[found]
    left, right = before[at], after[at]
    replied = (np.where(speaker[at] != speaker[side], side, 0) for side in (left, right))
    around = np.stack([found, *replied, left, right, before[left], after[right]], axis=1)
    return np.where(allowed[around], around, 0)


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
    known = (around >= 0) & (around < len(slot))
    slots = np.full(around.shape, -1)
    slots[known] = slot[around[known]]
    bm25 = np.append(scores, np.float32(0))[slots]  # slot -1 is that 0
    own = slots[:, 0]
    features = np.zeros((len(around), 6), np.float32)
    features[:, 0] = bm25[:, 0]
    features[:, 1] = bm25[:, 3:].sum(axis=1)
    having = [
        (np.isin(slots[:, :3], query.docs[start : start + size]) & (bm25[:, :3] > 0)).any(axis=1)
        for start, size in zip(query.starts.tolist(), query.sizes.tolist(), strict=True)
    ]
    if having:
        features[:, 2] = np.stack(having, axis=1) @ (idf / idf.sum())
    sessions, at = np.unique(session[around[:, 0]], return_inverse=True)
    best = np.zeros(len(sessions), np.float32)
    np.maximum.at(best, at, bm25[:, 0])
    features[:, 3] = best[at]
    lengths = np.append(query.lengths, np.int32(0))[own]
    features[:, 4] = np.log1p(np.minimum(lengths, max_length).astype(np.float32))
    if timed is not None:
        features[:, 5] = np.append(timed, False)[own]
    return features


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

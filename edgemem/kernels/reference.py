"""The specification of every kernel: what it gives, in NumPy.

The native kernels are tested against it. Of its arguments this checks only `k` and the document
numbers of `bm25`. Sums of floats may differ from the native ones in the last bits, because they add
in another order. Rows that close may then be ordered differently.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edgemem.kernels import Bm25Query

__all__ = ["AROUND", "MAX_DIM_I8", "ZERO_LENGTH", "at_least_one", "beside", "bm25", "dots"]
__all__ += ["maxsim", "metric_query", "quantize_i8", "rank", "scan_topk", "similarities"]
__all__ += ["word_features", "zero_norm"]

FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
ByteArray = NDArray[np.int8]
BoolArray = NDArray[np.bool_]
Rows = FloatArray | ByteArray

MAX_DIM_I8 = 131_071
"""The most numbers in an int8 row: the sum of so many products still fits in 32 bits."""

AROUND = 7
"""Memories in a row of `beside`: a candidate, and six around it."""

BLOCK = 4096
"""Rows converted at once, so that the copy stays small."""

ZERO_LENGTH = 1e-6
"""A vector is taken for the mean if its whitened norm is at most this times sqrt(max(D⁻¹)).

That near to it, a unit vector's direction from the mean is mostly float32 rounding."""


def at_least_one(k: int) -> int:
    if k < 1:
        raise ValueError(f"k is {k}; it must be 1 or more")
    return k


def scan_topk(
    rows: Rows, query: FloatArray, k: int, mask: BoolArray | None = None,
    scales: FloatArray | None = None, *, survivors: int | None = None,
) -> tuple[IntArray, FloatArray]:  # fmt: skip
    positions = np.arange(len(rows)) if mask is None else np.flatnonzero(mask)
    with np.errstate(over="ignore", invalid="ignore"):
        if scales is not None:
            first = _products_i8(rows, positions, scales, query)
            kept, _ = _best(positions, first, 4 * k if survivors is None else survivors)
            kept.sort()
            return _best(kept, _products(rows, kept, query[None], scales)[:, 0], k)
        # Copying a few rows is cheaper than multiplying all; copying most of them is not.
        if 4 * len(positions) < len(rows):
            scores = rows[positions] @ query
        else:
            scores = (rows @ query)[positions]
    return _best(positions, scores, k)


def _products_i8(
    rows: Rows, positions: IntArray, scales: FloatArray, query: FloatArray
) -> FloatArray:
    """The integer products of some rows with the query in int8, times both scales."""
    quantized, scale = quantize_i8(query[None])
    products = np.empty(len(positions), np.float32)
    # Whole numbers are exact in a float32 up to 2^24, and BLAS has no integers.
    dtype = np.float32 if len(query) * 128 * 128 <= 2**24 else np.float64
    for start in range(0, len(positions), BLOCK):
        block = slice(start, start + BLOCK)
        products[block] = rows[positions[block]].astype(dtype) @ quantized[0].astype(dtype)
    scaled: FloatArray = products * (scales[positions] * scale[0])
    return scaled


def dots(rows: FloatArray, positions: IntArray, queries: FloatArray) -> FloatArray:
    return _products(rows, positions, queries, None)


def _products(
    rows: Rows, positions: IntArray, queries: FloatArray, scales: FloatArray | None
) -> FloatArray:
    with np.errstate(over="ignore", invalid="ignore"):
        products = rows[positions].astype(np.float32, copy=False) @ queries.T
        return products if scales is None else products * scales[positions, None]


def quantize_i8(rows: FloatArray) -> tuple[ByteArray, FloatArray]:
    scales = np.abs(rows).max(axis=1) / np.float32(127)
    scales[~np.isfinite(scales)] = np.nan
    quantized = np.zeros(rows.shape, np.int8)
    some = np.flatnonzero(scales > 0)
    for start in range(0, len(some), BLOCK):
        block = some[start : start + BLOCK]
        # A subnormal scale is itself rounded, and may give a number beyond 127.
        numbers = np.rint(rows[block] / scales[block, None])
        quantized[block] = np.clip(numbers, -127, 127)
    return quantized, scales


def metric_query(
    query: FloatArray, mean: FloatArray, inverse_diagonal: FloatArray, directions: FloatArray
) -> tuple[FloatArray, float, float]:
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


def zero_norm(inverse_diagonal: FloatArray) -> float:
    """The whitened norm up to which a vector is taken for the mean."""
    return ZERO_LENGTH * math.sqrt(float(inverse_diagonal.max()))


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
    rows: Rows, first: IntArray, next: IntArray, wanted: IntArray, columns: int,
    query: FloatArray, offset: float, scale: float, limit: float,
    scales: FloatArray | None = None,
) -> FloatArray:  # fmt: skip
    positions, owners = _chained(len(rows), first, next, wanted[:, :columns].ravel())
    products = _products(rows, positions, query[None], scales)[:, 0]
    best = np.full(len(wanted) * columns, -np.inf, np.float32)
    np.fmax.at(best, owners, products)
    scaled = np.clip((best + np.float32(offset)) * np.float32(scale), -limit, limit)
    nearness: FloatArray = np.where(np.isneginf(best), 0, scaled).astype(np.float32)
    return nearness.reshape(-1, columns)


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


def maxsim(rows: ByteArray, offsets: IntArray, query: ByteArray) -> NDArray[np.int32]:
    # Exact in float64: a sum of d products is below 2^31.
    products = rows.astype(np.float64) @ query.astype(np.float64).T
    out = np.full((len(offsets) - 1, len(query)), np.iinfo(np.int32).min, np.int32)
    for i, (start, end) in enumerate(pairwise(offsets)):
        if start < end:
            out[i] = products[start:end].max(axis=0)
    return out


def beside(
    proposals: IntArray, place: IntArray, before: IntArray, after: IntArray,
    speaker: NDArray[np.int32], allowed: BoolArray,
) -> IntArray:  # fmt: skip
    found = proposals[allowed[proposals]]
    sides = np.concatenate([found, before[place[found]], after[place[found]]])
    found = np.unique(sides[allowed[sides]])
    at = place[found]
    left, right = before[at], after[at]
    replied = (np.where(speaker[at] != speaker[side], side, 0) for side in (left, right))
    around = np.stack([found, *replied, left, right, before[left], after[right]], axis=1)
    return np.where(allowed[around], around, 0)


def word_features(
    around: IntArray, session: IntArray, slot: NDArray[np.int32], query: Bm25Query,
    idf: DoubleArray, scores: FloatArray, timed: BoolArray | None, max_length: int,
) -> FloatArray:  # fmt: skip
    known = (around >= 0) & (around < len(slot))
    slots = np.full(around.shape, -1)
    slots[known] = slot[around[known]]
    bm25 = np.append(scores, np.float32(0))[slots]  # slot -1 reads the appended 0
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
    """The k best, best first; equal scores by lower position. positions: ascending."""
    k = at_least_one(k)
    scores = np.where(np.isnan(scores), np.float32(-np.inf), scores)
    if k < len(scores):
        # All that tie with the k-th are kept, so that the sort below decides among them.
        kth = np.partition(scores, len(scores) - k)[len(scores) - k]
        keep = scores >= kth
        positions, scores = positions[keep], scores[keep]
    order = np.argsort(-scores, kind="stable")[:k]
    return positions[order].astype(np.int64), scores[order].astype(np.float32)

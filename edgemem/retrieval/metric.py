"""The low-rank Mahalanobis metric of a set of embeddings, inverted exactly by Woodbury.

A search uses its user's own metric if they have enough memories, else that of all users. Cosine
treats all directions alike; this metric shrinks those in which all memories look the same (hubs)
and keeps the others.

Source: CoreMem, section 3.2, eq. 1, eq. 2 and Algorithm 1, with the paper's letters. For unit rows
H (N, d), their mean μ and variance σ² per dimension, ridge λ = c·mean(σ²), D = σ² + λ, U (d, r) the
top right singular directions of the centred rows, and M_r = s²/N:

    Σ   = U diag(M_r) Uᵀ + diag(D)
    Σ⁻¹ = D⁻¹ − D⁻¹ U (M_r⁻¹ + Uᵀ D⁻¹ U)⁻¹ Uᵀ D⁻¹ = D⁻¹ − A Aᵀ,   A (d, r)

Departures from the paper:
- Line 11 of Algorithm 1, P = D⁻¹ U M_r⁻¹, is not the inverse: eq. 1 is. Taken literally it found
  nearly nothing; tests/test_metric.py shows both.
- Line 10 takes the left singular vectors, one for each memory; Σ needs the right ones.
- Line 10 adds λ to M_r. λ is in D already; added twice it would blur the directions that U keeps.
- c is 3 instead of 10, from Hit@10 on LoCoMo (bench/hubness.py).
Kept from the paper: along U a variance counts twice, in M_r and through σ² in D. So Σ is not the
covariance plus a ridge, and is stretched further along U.

Σ⁻¹ is linear in the query, so a query is transformed once, q' = Σ⁻¹(q − μ) in O(d·r), and a memory
costs one dot product q'·h.

Defined cases; no NaN ever comes out:
- rows that hold a NaN or an infinity, or are all zero, are left out of a fit;
- N = 0: the identity, mean 0, inverse diagonal 1, rank 0; the score is then plain q·h;
- N = 1, or rows that are all the same (mean squared distance to μ at most MIN_VARIANCE): the
  identity around the mean, inverse diagonal 1, rank 0;
- r is at most N − 1 and d, which is all that centred rows can span;
- a query that is not finite or all zero becomes q' = 0, offset 0, norm 0: all score 0.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgemem.kernels import DoubleArray, FloatArray, metric_query, one_blas_thread
from edgemem.retrieval.vectors import VectorSubset

__all__ = ["EVERYBODY", "MIN_VARIANCE", "SAMPLE", "Metric", "WhitenedQuery", "Whitening", "fit"]

TAU, MAX_RANK = 0.95, 100  # the share of the variance that U is to explain, its columns at most
MIN_VARIANCE = 1e-10
"""Unit rows whose mean squared distance to their mean is at most this are taken for identical.
At 1e-10, float32's rounding (up to 6e-8 of a number) is about 1 % of the distances."""


class WhitenedQuery(NamedTuple):
    """A transformed query: (q − μ)ᵀ Σ⁻¹ (h − μ) = image · h + offset for every row h.

    image: q' (d,) float32. offset: −q'·μ. norm: the whitened norm of q − μ, >= 0.
    """

    image: FloatArray
    offset: float
    norm: float


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """Σ⁻¹ = diag(inverse_diagonal) − A Aᵀ around `mean`. See the module for the formulas.

    count: rows it was fitted on. mean: μ (d,), inverse_diagonal: D⁻¹ (d,) > 0, A: (d, r), all
    float32; A lies column after column (Fortran's order), as the kernels take it. It is unique up
    to a rotation of its columns.
    """

    count: int
    mean: FloatArray
    inverse_diagonal: FloatArray
    A: FloatArray

    @property
    def rank(self) -> int:
        """r, the number of directions kept."""
        return int(self.A.shape[1])

    def query(self, q: NDArray[Any]) -> WhitenedQuery:
        """Normalise q and move it through Σ⁻¹. q: (d,). Cost O(d·r). See `kernels.metric_query`."""
        q = np.ascontiguousarray(q, np.float32)
        return WhitenedQuery(*metric_query(q, self.mean, self.inverse_diagonal, self.A.T))


def fit(H: NDArray[Any], *, c: float = 3.0) -> Metric:
    """The metric of the rows of H.

    H: (n, d) real numbers of any length; rows are normalised here (Algorithm 1, line 3). c: factor
    of the ridge, λ = c·mean(σ²), 0.001 to 1000 (paper: 10).
    Instead of the paper's SVD of the rows, it takes the eigenvectors of their covariance, in
    float64. Cost O(n·d² + d³). Raises ValueError on a wrong shape or parameter.
    """
    H = np.asarray(H)
    if H.ndim != 2:
        raise ValueError(f"rows have shape {H.shape}; (n, d) is needed")
    if not 0.001 <= c <= 1000:  # beyond, float32 does not hold Σ⁻¹ for all rows
        raise ValueError(f"c is {c}; the ridge's factor must be 0.001 to 1000 (paper: 10)")
    rows, dim = _unit_rows(H), H.shape[1]
    count = max(len(rows), 1)
    with one_blas_thread():
        mean = rows.sum(axis=0) / count
        covariance = rows.T @ rows / count - np.outer(mean, mean)
        variance = covariance.diagonal()
        if variance.sum() <= MIN_VARIANCE:
            inverse_diagonal, A = np.ones(dim), np.empty((dim, 0))
        else:
            inverse_diagonal = 1 / (variance + c * variance.mean())
            A = _correction(covariance, inverse_diagonal, min(MAX_RANK, len(rows) - 1))
    return Metric(
        len(rows),
        mean.astype(np.float32),
        inverse_diagonal.astype(np.float32),
        A.astype(np.float32, order="F"),
    )


def _correction(
    covariance: DoubleArray, inverse_diagonal: DoubleArray, max_rank: int
) -> DoubleArray:
    """A (d, r) of the module's formulas, computed from B = D^-1/2 U M_r^1/2.

    With B, eq. 1 is D^-1/2 (I − B (I + BᵀB)⁻¹ Bᵀ) D^-1/2, which never divides by a small M_r.
    """
    ascending, vectors = np.linalg.eigh(covariance)  # s²/N, and the right singular vectors
    M = np.maximum(ascending[::-1], 0)
    share = np.cumsum(M) / M.sum()
    rank = min(int(np.searchsorted(share, TAU)) + 1, max_rank, len(M))
    root = np.sqrt(inverse_diagonal)[:, None]
    B = root * vectors[:, ::-1][:, :rank] * np.sqrt(M[:rank])
    L = np.linalg.cholesky(np.eye(rank) + B.T @ B)
    A: DoubleArray = root * np.linalg.solve(L, B.T).T
    return A


def _unit_rows(rows: NDArray[Any]) -> DoubleArray:
    """The rows that have a direction, in float64 with length 1."""
    rows = rows.astype(np.float64)
    # Divide by the largest number first: the square of a huge or a tiny one leaves float64's range.
    with np.errstate(invalid="ignore", divide="ignore"):
        rows /= np.abs(rows).max(axis=1, keepdims=True)
    rows = rows[np.isfinite(rows).all(axis=1)]
    unit: DoubleArray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


# -- which metric a search uses ------------------------------------------------------------------

EVERYBODY = None
"""The key of the metric of all memories; the other keys are user ids."""

MIN_VECTORS = 64  # fewer make no metric worth having: bench/LOG.md
REFIT_SHARE = 0.1  # share of the fitted vectors beyond which added and removed ones ask for a fit
SAMPLE = 4096
"""Vectors that a metric is fitted on, from all parts of a larger set."""
KEPT = 64  # keys that are remembered, the most recently used


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is known of a key. generation: of the data when it was last checked. metric: None for
    too few vectors. count, last: how many live vectors there were at the fit, and the highest label
    of them."""

    generation: int
    metric: Metric | None = None
    count: int = 0
    last: int = -1


class Whitening:
    """The metrics of one index. Safe to use from several threads.

    A metric is fitted when a search first needs it, and again when enough vectors were added or
    removed since. Of a large set it is fitted on a sample, as more vectors change it little.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # also while a metric is fitted, which takes 0.1 s
        self._kept: OrderedDict[str | None, _Kept] = OrderedDict()

    def get(
        self, key: str | None, generation: int, vectors: Callable[[], VectorSubset]
    ) -> Metric | None:
        """The metric of a key, None if it has too few vectors.

        generation: of the data searched; whether a fit is due is only checked when it has changed.
        vectors: returns the key's live vectors then.
        """
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept.generation != generation:
                kept = self._kept[key] = _checked(kept, generation, vectors())
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return kept.metric

    def memory_bytes(self) -> int:
        """Bytes of the metrics held."""
        with self._lock:
            return sum(kept.metric.A.nbytes for kept in self._kept.values() if kept.metric)


def _checked(kept: _Kept | None, generation: int, live: VectorSubset) -> _Kept:
    """What is known of a key now, with a new metric if one is due.

    Only labels are counted, because the first search after each write asks.
    """
    count = len(live.labels)
    if count < MIN_VECTORS:
        return _Kept(generation)
    if kept is not None and kept.metric is not None:
        known = int(np.searchsorted(live.labels, kept.last, "right"))
        if count - known + max(0, kept.count - known) <= REFIT_SHARE * kept.count:
            return replace(kept, generation=generation)
    some = np.linspace(0, count - 1, min(count, SAMPLE)).astype(np.int64)
    metric = fit(live.rows.floats(live.positions[some]))
    return _Kept(generation, metric, count, int(live.labels[-1]))

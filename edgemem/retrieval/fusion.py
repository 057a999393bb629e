"""One score from two: the vectors' cosine and the words' BM25.

Knows numbers only. The score is absolute: it depends on the query and the memory (and BM25's word
statistics), never on the other candidates, so that a threshold means the same for every query.
"""

from __future__ import annotations

__all__ = ["fused"]

COSINE_WEIGHT = 0.5
BM25_WEIGHT = 0.5
BM25_HALF = 6.0  # the BM25 score that counts half


def fused(cosine: float, bm25: float) -> dict[str, float]:
    """The parts of a score in [0, 1], which is their sum.

    cosine: in [-1, 1]; negative counts as 0. bm25: >= 0, larger is better; mapped to [0, 1) by
    b / (b + BM25_HALF). Weights: bench/locomo.py.
    """
    return {
        "cosine": COSINE_WEIGHT * max(0.0, cosine),
        "bm25": BM25_WEIGHT * bm25 / (bm25 + BM25_HALF),
    }

"""One score from two: the vectors' cosine and the words' BM25.

Knows numbers only. The score is absolute: it depends on the query, the memory and the store's word
statistics, never on the other candidates, so that a threshold means the same for every query.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["fused", "is_relevant"]

# Of the weights 0.35, 0.5, 0.6, 0.65, 0.7 for the words: bench/LOG.md, 2026-11-21.
WORDS_WEIGHT = 0.6

RELEVANT_SCORE = 0.30
RELEVANT_COSINE = 0.33


def fused(cosine: float, bm25: float, idf: float) -> dict[str, float]:
    """The parts of a score in [0, 1], which is their sum.

    cosine: in [-1, 1]; negative counts as 0. bm25: >= 0, larger is better. idf: the sum of the
    query words' idf, > 0: what BM25 gives an average memory that has each of them once. So the
    second part is the share of the query's information that the memory has, 1 at most.
    """
    return {
        "cosine": (1 - WORDS_WEIGHT) * min(1.0, max(0.0, cosine)),
        "bm25": WORDS_WEIGHT * min(1.0, bm25 / idf),
    }


def is_relevant(parts: Mapping[str, float]) -> bool:
    """Whether a memory with these parts of a score is worth answering from.

    The score may do, or the meaning alone ("Where do I live?" and "I moved to Oslo" share no word).
    A coarse sieve: of 240 LoCoMo questions asked of their own conversation 99.6 % have a hit above
    RELEVANT_SCORE; asked of another one, with its people's names, 83 %.
    """
    return (
        sum(parts.values()) >= RELEVANT_SCORE
        or parts["cosine"] >= (1 - WORDS_WEIGHT) * RELEVANT_COSINE
    )

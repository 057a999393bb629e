"""From a query and its vector to scored memories: candidates of both kinds, fused.

Knows the store's readers and the vector index; no model.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import DimensionMismatch
from edgemem.results import Scope, utc_now
from edgemem.retrieval.fusion import fused
from edgemem.retrieval.index import VectorIndex
from edgemem.retrieval.lexical import match_expression, query_words
from edgemem.store import Store
from edgemem.store.filters import Where

__all__ = ["Scored", "find", "refresh"]

MIN_CANDIDATES = 100


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate: its row in the store and the parts of its score."""

    rowid: int
    score: float
    parts: dict[str, float]


def refresh(store: Store, index: VectorIndex) -> None:
    """Bring the index up to the store's generation, which another process may have moved.

    Raises DimensionMismatch if the store was reindexed to another dimension meanwhile.
    """
    if store.generation() == index.generation:
        return
    changes = store.changes(max(0, index.generation))
    try:
        index.apply(changes)
    except ValueError as exc:
        raise DimensionMismatch(
            f"the store was reindexed meanwhile: the index holds {index.dim} dimensions, the store "
            f"{changes.vectors.shape[1]}; open it again"
        ) from exc


def find(
    store: Store,
    index: VectorIndex,
    query: str,
    vector: NDArray[np.float32],
    *,
    scope: Scope,
    where: Where | None = None,
    kinds: Collection[str] | None = None,
    k: int,
) -> tuple[list[Scored], int]:
    """The k best live memories, best first, and how many were scored.

    vector: (dim,) float32, the query's. Candidates are the nearest vectors and the best BM25
    matches, as many of each as 100 or 4 k. With `where`, the vectors of all that match are scanned.
    """
    refresh(store, index)
    now = utc_now()
    at = datetime.fromisoformat(now).timestamp()
    wanted = max(MIN_CANDIDATES, 4 * k)
    only = frozenset(kinds) if kinds is not None else None
    allowed = store.rowids(scope, where=where, kinds=kinds, now=now) if where is not None else None

    near, cosines, _ = index.search(vector, wanted, scope=scope, kinds=only, now=at, rowids=allowed)
    cosine: dict[int, float] = dict(zip(near.tolist(), cosines.tolist(), strict=True))
    bm25: dict[int, float] = {}
    idf = 1.0
    if words := query_words(query):
        match = match_expression(words)
        bm25 = dict(store.lexical(match, scope, where=where, kinds=kinds, now=now, limit=wanted))
        idf = sum(store.word_idf(words))
    unseen = np.array([r for r in bm25 if r not in cosine], dtype=np.int64)
    if len(unseen):
        rows, more, _ = index.search(vector, len(unseen), scope=scope, now=at, rowids=unseen)
        cosine.update(zip(rows.tolist(), more.tolist(), strict=True))

    scored = []
    for rowid in cosine.keys() | bm25.keys():
        parts = fused(cosine.get(rowid, 0.0), bm25.get(rowid, 0.0), idf)
        scored.append(Scored(rowid, sum(parts.values()), parts))
    scored.sort(key=lambda s: (-s.score, s.rowid))
    return scored[:k], len(scored)

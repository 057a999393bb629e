"""From a query and its vector to scored memories: candidates, features, one score, no repetition.

Knows the store's readers and the memories in memory; no model.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import DimensionMismatch
from edgemem.results import Scope, to_utc
from edgemem.retrieval.fusion import parts_of
from edgemem.retrieval.memories import Memories
from edgemem.store import Store
from edgemem.store.filters import Where

__all__ = ["Scored", "find", "refresh"]


class Scored(NamedTuple):
    """A memory that was found: its row in the store, its score and, if asked for, its parts."""

    rowid: int
    score: float
    parts: dict[str, float] | None = None


def refresh(store: Store, memories: Memories) -> None:
    """Bring the memories up to the store's generation, which another process may have moved.

    Raises DimensionMismatch if the store was reindexed to another dimension meanwhile.
    """
    if store.generation() == memories.generation:
        return
    changes = store.changes(max(0, memories.generation))
    try:
        memories.apply(changes)
    except ValueError as exc:
        raise DimensionMismatch(
            f"the store was reindexed meanwhile: the index holds {memories.dim} dimensions, the "
            f"store {changes.vectors.shape[1]}; open it again"
        ) from exc


def find(
    store: Store,
    memories: Memories,
    query: str,
    vector: NDArray[np.float32],
    *,
    scope: Scope,
    where: Where | None = None,
    kinds: Collection[str] | None = None,
    k: int,
    explain: bool = False,
) -> tuple[list[Scored], int]:
    """The k best live memories, best first, and how many were scored.

    vector: (dim,) float32, the query's. With `where`, all that match are scanned. Of a turn and
    the facts taken from it either the turn or the facts are found, whichever comes first.
    """
    refresh(store, memories)
    now = time.time()
    candidates = memories.candidates(
        query,
        vector,
        scope=scope,
        kinds=kinds,
        rowids=store.rowids(scope, where=where, kinds=kinds, now=to_utc(now)) if where else None,
        now=now,
        k=k,
    )
    found: list[Scored] = []
    # A turn gives few facts: three times as many are enough to find k that do not repeat.
    positions, scores = candidates.weights.best(candidates.features, 3 * k)
    facts: set[int] = set()
    turns: set[int] = set()
    for i, rowid, place, score in zip(
        positions.tolist(),
        candidates.rowids[positions].tolist(),
        candidates.places[positions].tolist(),
        scores.tolist(),
        strict=True,
    ):
        mine, theirs = (turns, facts) if rowid == place else (facts, turns)
        mine.add(place)
        if place not in theirs and len(found) < k:
            parts = parts_of(candidates.weights, candidates.features[i]) if explain else None
            found.append(Scored(rowid, score, parts))
    return found, len(candidates.rowids)

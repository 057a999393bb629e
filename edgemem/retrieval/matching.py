"""Late interaction: how well each word of a query is matched by the words of a memory.

Reads the token vectors of a search's candidates, and of the turns beside them, from the store:
nothing is held in memory between searches, and what was erased is found by none. Knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgemem.kernels import NO_TOKENS, FloatArray, IntArray, maxsim
from edgemem.store import Store

__all__ = ["MATCHES", "QueryTokens", "match"]


MATCHES = ("match", "match_around", "match_before", "match_after")
"""The columns of `match`: the mean over the query's tokens of the cosine with the token that is
nearest, of those of the memory; of those of the memory and the turns just before and after; and of
either turn alone, 0 where there is none."""

_BESIDE = [0, 3, 4]  # the columns of `kernels.beside` that say these


@dataclass(frozen=True, slots=True)
class QueryTokens:
    """A query's token vectors: tokens (q, d) int8 of the model model_id, a number times `step`."""

    model_id: str
    tokens: NDArray[np.int8]
    step: float


def match(store: Store, query: QueryTokens, around: IntArray) -> FloatArray:
    """What the columns MATCHES say of each candidate: (n, len(MATCHES)) float32.

    around: (n, AROUND) int64, of `kernels.beside`. NaN of a candidate without token vectors.
    """
    beside = around[:, _BESIDE]
    memories = beside.ravel().tolist()
    dim = query.tokens.shape[1]
    held = store.tokens(query.model_id, set(memories), dim)
    rows = np.frombuffer(b"".join(held.values()), np.int8).reshape(-1, dim)
    offsets = np.cumsum([0, *map(len, held.values())]) // dim
    # A last row for the memories that have none.
    best = np.full((len(held) + 1, len(query.tokens)), NO_TOKENS, np.int32)
    best[:-1] = maxsim(rows, offsets, query.tokens)
    row_of = {memory: row for row, memory in enumerate(held)}
    at = np.array([row_of.get(memory, -1) for memory in memories], np.int64).reshape(beside.shape)
    nearest = best[at]  # (n, 3, q)
    own, before, after = np.where(at < 0, 0, nearest.mean(axis=2)).T
    columns = np.stack([own, nearest.max(axis=1).mean(axis=1), before, after], axis=1)
    columns *= query.step**2
    columns[at[:, 0] < 0] = np.nan
    return columns.astype(np.float32)

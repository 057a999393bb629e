"""How a search and what it keeps grow with the number of memories. Invented vectors and words.

Knows the store and the index; no model. The vectors lie in clusters, as those of a person's talk
do, and the words follow Zipf's law; nobody said them, so they tell of time and size alone.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from edgemem.results import Message, Scope
from edgemem.retrieval import search
from edgemem.retrieval.search import Memories
from edgemem.retrieval.vectors import Dtype
from edgemem.store import Store
from edgemem.turns import stored_turn, turn_memory

__all__ = ["searches"]

DIM = 384
WORDS = 12
_SCOPE = Scope("profile")
_BATCH = 1000


def searches(path: Path, n: int, vectors: Dtype, rounds: int) -> dict[str, Any]:
    """Fill a store with n memories, and search it `rounds` times."""
    rng = np.random.default_rng(n)
    centres = rng.standard_normal((max(2, n // 50), DIM))
    rows = centres[rng.integers(len(centres), size=n)] + rng.standard_normal((n, DIM))
    unit = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    ranks = np.minimum(rng.zipf(1.3, (n + rounds, WORDS)), 20_000)
    texts = [" ".join(f"w{rank}" for rank in row) for row in ranks.tolist()]
    when = "2026-01-01T10:00:00.000+00:00"
    with Store.open(path) as store:
        for start in range(0, n, _BATCH):
            with store.transaction() as tx:
                for i in range(start, min(start + _BATCH, n)):
                    turn = stored_turn(Message("user", texts[i], when), _SCOPE, when)
                    tx.add_turn(turn)
                    made = turn_memory(turn, unit[i : i + 1], metadata={}, expires_at=None)
                    tx.add_memory(made, role="user", actor_id=None)
        memories = Memories(DIM, vectors)

        def ask(i: int) -> float:
            # Near to a memory, as a question is to what it asks for.
            vector = unit[i % n] + rng.standard_normal(DIM) / np.sqrt(2 * DIM)
            vector = (vector / np.linalg.norm(vector)).astype(np.float32)
            began = time.perf_counter()
            found, _ = search.find(store, memories, texts[n + i], vector, scope=_SCOPE, k=10)
            store.by_rowids([hit.rowid for hit in found])
            return (time.perf_counter() - began) * 1e3

        ask(0)
        memories.whitening.wait()  # the metric is fitted beside the first searches
        if n > memories.vectors.crossover:
            memories.vectors.build_hnsw()
        ask(0)
        spent = [ask(i) for i in range(rounds)]
        size = sum(memories.memory_bytes().values())
        memories.close()
    return {
        "memories": n,
        "p50_ms": round(float(np.percentile(spent, 50)), 3),
        "p95_ms": round(float(np.percentile(spent, 95)), 3),
        "index_mb": round(size / 1e6, 2),
    }

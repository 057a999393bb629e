"""What the index's tests share: vectors, what a store would say of them, and short ways to ask."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from edgemem.results import Scope
from edgemem.retrieval.index import VectorIndex

ROOT = Path(__file__).resolve().parent.parent
DIM = 16
ANY = Scope()
MODEL = "test-model@0123"
EVER = float("inf")


def unit(n, seed=0, dim=DIM):
    vectors = np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def changes(generation, labels=(), rowids=None, vectors=None, *, removed=(), full=False, **columns):
    """What a store would say; columns: user, agent, run, kind, until, one value or one per row."""
    labels = np.asarray(labels, np.int64)
    n = len(labels)

    def column(name, default):
        value = columns.get(name, default)
        return tuple(value) if isinstance(value, list | tuple) else (value,) * n

    return SimpleNamespace(
        generation=generation,
        full=full,
        removed_rowids=np.asarray(removed, np.int64),
        labels=labels,
        rowids=labels if rowids is None else np.asarray(rowids, np.int64),
        vectors=unit(n, generation) if vectors is None else np.asarray(vectors, np.float32),
        user_ids=column("user", "ann"),
        agent_ids=column("agent", None),
        run_ids=column("run", None),
        kinds=column("kind", "fact"),
        until=np.asarray(column("until", EVER), np.float64),
    )


def filled(n, *, crossover=0, seed=1, dim=DIM, **columns):
    index = VectorIndex(dim, crossover=crossover)
    vectors = unit(n, seed, dim)
    index.apply(changes(1, range(1, n + 1), vectors=vectors, full=True, **columns))
    return index, vectors


def search(index, query, k=5, **options):
    return index.search(query, k, **{"scope": ANY, "now": 0.0, **options})


def rowids_of(index, query, k=5, **options):
    return search(index, query, k, **options)[0].tolist()


def same_answers(index, queries, k=5, **options):
    """Whether search and exact_search agree, scores and all."""
    options = {"scope": ANY, "now": 0.0, **options}
    for query in queries:
        rowids, scores, _ = index.search(query, k, **options)
        expected, expected_scores = index.exact_search(query, k, **options)
        if rowids.tolist() != expected.tolist() or scores.tolist() != expected_scores.tolist():
            return False
    return True

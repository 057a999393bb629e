"""What the tests of an index share: vectors, what a store would say of them, short ways to ask."""

from pathlib import Path

import numpy as np

from edgemem.retrieval.index import VectorIndex
from edgemem.store import Changes
from edgemem.store.changes import StoredPostings, tokenize

ROOT = Path(__file__).resolve().parent.parent
DIM = 16
MODEL = "test-model@0123"
EVER = float("inf")
EVERYTHING = np.ones(50_000, np.bool_)  # more than any test has


def unit(n, seed=0, dim=DIM):
    vectors = np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def changes(generation, labels=(), owners=None, vectors=None, *, removed=(), full=False, **columns):
    """What a store would say. owners: each vector's memory, its label if not given.

    columns: user, agent, run, kind, until, turn, time, speaker, role, asks, text; one value, or
    one for each memory by ascending number. rowids: the memories, if not just the owners.
    """
    labels = np.asarray(labels, np.int64)
    owners = labels if owners is None else np.asarray(owners, np.int64)
    rowids = np.asarray(columns.pop("rowids", np.unique(owners)), np.int64)

    def column(name, default):
        value = columns.pop(name, default)
        return tuple(value) if isinstance(value, list | tuple) else (value,) * len(rowids)

    texts = column("text", "")
    made = Changes(
        generation=generation,
        full=full,
        removed_rowids=np.asarray(removed, np.int64),
        rowids=rowids,
        user_ids=column("user", "ann"),
        agent_ids=column("agent", None),
        run_ids=column("run", None),
        kinds=column("kind", "fact"),
        until=np.asarray(column("until", EVER), np.float64),
        turns=np.asarray(column("turn", 0), np.int64),
        times=np.asarray(column("time", 0.0), np.float64),
        speakers=column("speaker", None),
        roles=column("role", None),
        asks=np.asarray(column("asks", False), np.bool_),
        texts=() if full else texts,
        labels=labels,
        owners=owners,
        vectors=(
            unit(len(labels), generation) if vectors is None else np.asarray(vectors, np.float32)
        ),
        postings=stored(rowids, texts) if full else None,
    )
    assert not columns, f"no such columns: {sorted(columns)}"
    return made


def stored(rowids, texts):
    """The postings that a store has of these texts."""
    counted = tokenize(texts)
    terms = sorted({term for each in counted for term in each})
    having = [[i for i, each in enumerate(counted) if term in each] for term in terms]
    found = [(i, term) for term, some in zip(terms, having, strict=True) for i in some]
    return StoredPostings(
        terms,
        np.cumsum([0, *map(len, having)], dtype=np.int64),
        np.array([rowids[i] for i, _ in found], np.int32),
        np.array([counted[i][term] for i, term in found], np.uint16),
        rowids,
        np.array([sum(each.values()) for each in counted], np.int32),
    )


def only(*rowids):
    """The mask of these memories."""
    mask = np.zeros_like(EVERYTHING)
    mask[list(rowids)] = True
    return mask


def filled(n, *, crossover=0, seed=1, dim=DIM):
    index = VectorIndex(dim, crossover=crossover)
    vectors = unit(n, seed, dim)
    index.apply(changes(1, range(1, n + 1), vectors=vectors, full=True))
    return index, vectors


def search(index, query, k=5, allowed=EVERYTHING):
    return index.view(allowed).search(query, k)


def rowids_of(index, query, k=5, allowed=EVERYTHING):
    return search(index, query, k, allowed)[0].tolist()

"""What a search may see is kept for the next one: never longer than it is true."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from edgemem.results import Query, Scope
from edgemem.retrieval import search as module
from edgemem.retrieval.lexical import Postings
from edgemem.retrieval.search import FEATURES, Memories, refresh
from edgemem.store import NewMemory, Store

ANA, BEN = Scope(user_id="ana"), Scope(user_id="ben")
DIM = 4
T = 1_900_000_000.0  # 2030-03-17T17:46:40Z
IN_AN_HOUR = "2030-03-17T18:46:40.000Z"


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open(":memory:") as opened:
        yield opened


def add(
    store: Store, name: str, scope: Scope = ANA, kind: str = "fact", ends: str | None = None
) -> None:
    with store.transaction() as tx:
        tx.add_memory(
            NewMemory(
                id=name,
                kind=kind,  # type: ignore[arg-type]
                memory=f"{name} likes tea",
                search_text=f"{name} likes tea",
                scope=scope,
                created_at="2030-01-01T00:00:00.000Z",
                vectors=np.eye(1, DIM, dtype=np.float32),
                expires_at=ends,
            )
        )


def found(
    store: Store,
    memories: Memories,
    scope: Scope = ANA,
    now: float = T,
    kinds: frozenset[str] | None = None,
    rowids: np.ndarray | None = None,
) -> list[int]:
    refresh(store, memories)
    vector = np.eye(1, DIM, dtype=np.float32)[0]
    query = Query("tea", scope, kinds=kinds, now=now)
    candidates = memories.candidates(query, vector, rowids)
    # One of them is in the vectors, the words and the mask of neighbours, or in none.
    assert (candidates.features[:, 0] > 0).all() and (candidates.features[:, 2] > 0).all()
    return candidates.rowids.tolist()


def test_a_search_sees_what_was_written_since_the_last_one(store: Store) -> None:
    memories = Memories(DIM)
    add(store, "a")
    assert found(store, memories) == [1]
    add(store, "b")
    assert found(store, memories) == [1, 2]
    with store.transaction() as tx:
        tx.delete_memory("a", "2030-01-02T00:00:00.000Z")
    assert found(store, memories) == [2]


def test_scopes_and_kinds_do_not_see_each_others(store: Store) -> None:
    memories = Memories(DIM)
    add(store, "a")
    add(store, "b", BEN)
    add(store, "c", kind="summary")
    for _ in range(2):
        assert found(store, memories) == [1, 3]
        assert found(store, memories, BEN) == [2]
        assert found(store, memories, Scope()) == [1, 2, 3]
        assert found(store, memories, kinds=frozenset({"summary"})) == [3]
        assert found(store, memories, rowids=np.array([1])) == [1]
    assert len(memories._visibles) <= module.KEPT_VISIBLE


def test_a_memory_ends_between_two_searches_without_a_write(store: Store) -> None:
    memories = Memories(DIM)
    add(store, "a")
    add(store, "b", ends=IN_AN_HOUR)
    assert found(store, memories, now=T) == [1, 2]
    assert found(store, memories, now=T + 3599) == [1, 2]
    assert found(store, memories, now=T + 3600) == [1]
    assert found(store, memories, now=T) == [1, 2]  # the clock was put back


def test_more_scopes_than_are_kept_are_all_answered_right(store: Store) -> None:
    memories = Memories(DIM)
    users = [Scope(user_id=f"u{i}") for i in range(module.KEPT_VISIBLE + 3)]
    for i, user in enumerate(users):
        add(store, f"m{i}", user)
    for _ in range(2):
        assert [found(store, memories, user) for user in users] == [
            [i + 1] for i in range(len(users))
        ]
    assert len(memories._visibles) == module.KEPT_VISIBLE


def test_documents_having_any_of_some_terms() -> None:
    postings = Postings()
    postings.apply([], [1, 3, 7], [{"tea": 1}, {"milk": 2}, {"rain": 1}])
    assert postings.having(["tea", "rain", "unknown"]).tolist() == [True, False, True]


def test_what_says_when_is_looked_at_anew_after_a_write(store: Store) -> None:
    memories = Memories(DIM)
    vector = np.eye(1, DIM, dtype=np.float32)[0]
    column = FEATURES.index("time")

    def times() -> list[float]:
        refresh(store, memories)
        got = memories.candidates(Query("When was there tea?", ANA, now=T), vector)
        return got.features[:, column].tolist()

    add(store, "a")
    assert times() == [0]
    add(store, "yesterday, b")
    assert times() == times() == [0, 1]

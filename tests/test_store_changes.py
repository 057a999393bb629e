"""Changes: a cache that follows them holds what the store holds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from storekit import DIM, T0, T1, T2, add, memory, unit

from edgemem.results import Scope
from edgemem.store import Store


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open(":memory:") as opened:
        yield opened


def test_changes_say_what_a_vector_lives_under(store: Store) -> None:
    add(
        store,
        memory("m1", scope=Scope("u", "a", "r"), valid_to=T2, expires_at=T1, kind="turn"),
        memory("m2", vectors=unit(5, count=3), expires_at=T2),
        memory("m3", vectors=np.empty((0, DIM), np.float32)),
        memory("m4", valid_to=T0),
    )
    got = store.changes(0)
    assert (got.full, got.generation, got.removed_rowids.tolist()) == (True, 1, [])
    assert got.rowids.tolist() == [1, 2, 2, 2, 4]
    assert len(set(got.labels.tolist())) == 5
    assert (got.user_ids[0], got.agent_ids[0], got.run_ids[0]) == ("u", "a", "r")
    assert got.kinds == ("turn", "fact", "fact", "fact", "fact")
    day = 86400.0
    start = 1714557600.0  # T0
    assert got.until.tolist() == [start + day] + 3 * [start + 2 * day] + [start]
    np.testing.assert_array_equal(got.vectors[1:4], unit(5, count=3))
    empty = store.changes(1)
    assert (empty.full, empty.labels.shape, empty.vectors.shape) == (False, (0,), (0, DIM))


class Cache:
    """A cache of vectors that follows what VectorChanges promises."""

    def __init__(self) -> None:
        self.generation = 0
        self.held: dict[int, tuple[object, ...]] = {}

    def follow(self, store: Store) -> None:
        got = store.changes(self.generation)
        gone = set(got.removed_rowids.tolist())
        self.held = {} if got.full else {k: v for k, v in self.held.items() if v[0] not in gone}
        for i, label in enumerate(got.labels.tolist()):
            row = (int(got.rowids[i]), got.vectors[i].tobytes(), got.kinds[i], float(got.until[i]))
            old = self.held.get(label)
            assert old is None or old[:2] == row[:2], "a label's vector never changes"
            self.held[label] = row
        self.generation = got.generation


OPS = ("add", "add", "update", "vectors", "invalidate", "delete", "erase", "reset")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(OPS), st.integers(0, 3), st.booleans()), min_size=5, max_size=40
    )
)
@example([("add", 1, True), ("update", 1, False)])
@example([("add", 1, True), ("vectors", 1, True), ("invalidate", 1, False)])
@example([("add", 1, True), ("update", 1, False), ("delete", 1, False)])
@example([("add", 1, True), ("reset", 0, False), ("add", 1, False)])
@example([("add", 1, True), ("erase", 1, False), ("add", 1, False)])
def test_following_the_changes_equals_reading_everything(ops: list[tuple[str, int, bool]]) -> None:
    with Store.open(":memory:") as store:
        cache = Cache()
        for step, (op, number, follow) in enumerate(ops):
            id = f"m{number}"
            known = bool(store.get([id]))
            if op == "reset" and number == 0:
                store.reset()
            elif op == "erase":
                store.erase([id])
            elif op == "add" and not store.get([id], include_deleted=True):
                add(store, memory(id, vectors=unit(step, count=number)))
            elif known:
                with store.transaction() as tx:
                    if op == "update":
                        tx.update_memory(
                            id, memory=op, search_text=op, vectors=unit(step), updated_at=T1
                        )
                    elif op == "vectors":
                        tx.set_vectors(id, unit(step, count=2))
                    elif op == "invalidate":
                        tx.invalidate(id, T1)
                    elif op == "delete":
                        tx.delete_memory(id, T1)
            if follow:
                cache.follow(store)
        cache.follow(store)
        fresh = Cache()
        fresh.follow(store)
        assert cache.held == fresh.held
        assert cache.generation == store.generation()
        assert store.check() == []


def test_changes_since_a_generation_that_never_was_are_everything(store: Store) -> None:
    add(store, memory("m1"))
    assert store.changes(99).full
    assert store.changes(-1).full

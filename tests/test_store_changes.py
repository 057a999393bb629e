"""Changes: a cache that follows them holds what the store holds."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from storekit import DIM, T0, T1, T2, add, by_memory, memory, turn, unit

from edgemem.results import Scope
from edgemem.store import Store
from edgemem.store.changes import tokenize

EVER = float("inf")


def test_changes_say_what_a_memory_and_its_vectors_are(store):
    add(
        store,
        turn("t1", name="Ana", timestamp=T1),
        turn("t2", role="assistant", timestamp=T0),
        memory("m1", "So?", scope=Scope("u", "a", "r"), valid_to=T2, expires_at=T1, kind="turn"),
        memory("m2", vectors=unit(5, count=3), expires_at=T2, sources=("t2", "t1")),
        memory("m3", "And? ", vectors=np.empty((0, DIM), np.float32), sources=("t2",)),
        memory("m4", valid_from=T1, valid_to=T0),
    )
    got = store.changes(0)
    assert (got.full, got.generation, got.removed_rowids.tolist()) == (True, 1, [])
    assert got.rowids.tolist() == [1, 2, 3, 4]
    assert (got.user_ids[0], got.agent_ids[0], got.run_ids[0]) == ("u", "a", "r")
    assert got.kinds == ("turn", "fact", "fact", "fact")
    day = 86400.0
    start = 1714557600.0  # T0
    assert got.until.tolist() == [start + day, start + 2 * day, EVER, start]
    assert got.turns.tolist() == [0, 1, 2, 0]
    assert got.times.tolist() == [start, start + day, start, start + day]
    assert got.speakers == (None, "Ana", None, None)
    assert got.roles == (None, "user", "assistant", None)
    assert got.asks.tolist() == [True, False, True, False]
    assert got.owners.tolist() == [1, 2, 2, 2, 4] and len(set(got.labels.tolist())) == 5
    np.testing.assert_array_equal(got.vectors[1:4], unit(5, count=3))
    assert got.texts == () and got.postings is not None
    assert got.postings.rowids.tolist() == [1, 2, 3, 4]


def test_changes_of_nothing_are_empty(store):
    add(store, memory("m1"))
    empty = store.changes(1)
    assert (empty.full, empty.rowids.shape, empty.postings) == (False, (0,), None)
    assert (empty.labels.shape, empty.vectors.shape, empty.texts) == ((0,), (0, DIM), ())


def test_changes_bring_the_indexed_text(store):
    add(store, memory("m1"))
    add(store, memory("m2", "tea", search_text="Ana: tea\n1 May 2024"))
    got = store.changes(1)
    assert (got.rowids.tolist(), got.texts) == ([2], ("Ana: tea\n1 May 2024",))


class Cache:
    """A cache that follows what Changes promises: memories by number, vectors by label."""

    def __init__(self):
        self.generation = 0
        self.memories: dict[int, tuple[object, ...]] = {}
        self.vectors: dict[int, tuple[int, bytes]] = {}
        self.terms: dict[int, dict[str, int]] = {}

    def follow(self, store):
        got = store.changes(self.generation)
        if got.full:
            self.memories, self.vectors = {}, {}
            assert got.postings is not None
            self.terms = by_memory(got.postings)
        for rowid in got.removed_rowids.tolist():
            self.memories.pop(rowid, None)
            self.terms.pop(rowid, None)
            self.vectors = {k: v for k, v in self.vectors.items() if v[0] != rowid}
        numbers = (got.until, got.turns, got.times, got.asks)
        strings = (got.user_ids, got.agent_ids, got.run_ids, got.kinds, got.speakers, got.roles)
        for i, rowid in enumerate(got.rowids.tolist()):
            self.memories[rowid] = (*(c[i] for c in strings), *(c[i].item() for c in numbers))
        if not got.full:
            self.terms.update(zip(got.rowids.tolist(), tokenize(got.texts), strict=True))
        for i, label in enumerate(got.labels.tolist()):
            row = int(got.owners[i]), got.vectors[i].tobytes()
            assert self.vectors.get(label, row) == row, "a label's vector never changes"
            assert row[0] in self.memories
            self.vectors[label] = row
        self.generation = got.generation


OPS = ("add", "add", "update", "vectors", "invalidate", "delete", "erase", "reset")


@settings(max_examples=60)
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
def test_following_the_changes_equals_reading_everything(ops):
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
                add(store, turn(f"t{step}", name=op if follow else None))
                sources = (f"t{step}",) if number else ()
                new = memory(id, f"tea {id}", vectors=unit(step, count=number), sources=sources)
                add(store, new)
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
        assert cache.memories == fresh.memories
        assert cache.vectors == fresh.vectors
        assert cache.terms == fresh.terms
        assert cache.generation == store.generation()
        assert store.check() == []


def test_changes_since_a_generation_that_never_was_are_everything(store):
    add(store, memory("m1"))
    assert store.changes(99).full
    assert store.changes(-1).full

"""What recall and exports ask of the store: indexed texts, turns that are stale or still stand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from storekit import FAR_AHEAD, LONG_AGO, T0, T1, T2, add, memory, turn

from edgemem.store import Store


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "a.db" if request.param == "file" else ":memory:") as opened:
        yield opened


def test_indexed_texts_are_those_of_all_memories_that_are_not_deleted(store: Store) -> None:
    add(
        store,
        memory("b", "tea", search_text="Ada: tea\n1 May 2024"),
        memory("a", "coffee"),
        memory("over", "milk", valid_to=LONG_AGO),
        memory("gone", "juice"),
    )
    with store.transaction() as tx:
        tx.delete_memory("gone", T1)
        tx.update_memory("a", memory="mate", search_text="mate!", vectors=None, updated_at=T2)
    expected = {"b": "Ada: tea\n1 May 2024", "a": "mate!", "over": "milk"}
    assert store.search_texts() == expected
    assert list(store.search_texts()) == list(expected)  # oldest first


def test_a_turn_is_stale_once_a_fact_of_it_is_over(store: Store) -> None:
    add(
        store,
        *(turn(f"t{n}") for n in range(6)),
        memory("over", sources=("t0", "t1"), valid_from=T0, valid_to=T1),
        memory("still", sources=("t1", "t2")),
        memory("not yet over", sources=("t3",), valid_to=FAR_AHEAD),
        memory("a turn", kind="turn", sources=("t4",), valid_to=T1),
    )
    turns = [f"t{n}" for n in range(6)]
    over, still = memory("over").memory, memory("still").memory
    assert store.stale_turns(turns) == {"t0": (over,), "t1": (over,)}
    assert store.stale_turns(["t1", "t2", "unknown"]) == {"t1": (over,)}
    assert store.stale_turns([]) == {}
    with store.transaction() as tx:
        tx.invalidate("still", T2)
    assert store.stale_turns(turns) == {"t0": (over,), "t1": (over, still), "t2": (still,)}


def test_a_turn_stands_while_its_own_memory_does_and_says_the_same(store: Store) -> None:
    add(store, *(turn(f"t{n}", "tea") for n in range(4)))
    add(store, memory("m0", "tea", kind="turn", sources=("t0",)))
    add(store, memory("m1", "tea", kind="turn", sources=("t1",)))
    add(store, memory("m2", "tea", kind="fact", sources=("t2",)))
    add(store, memory("m3", "tea", kind="turn", sources=("t3",), valid_to=T1))
    assert store.standing_turns(["t3", "t2", "t1", "t0"]) == ["t1", "t0"]
    with store.transaction() as tx:
        tx.update_memory("m1", memory="mate", search_text="mate", vectors=None, updated_at=T2)
    assert store.standing_turns(["t1", "t0"]) == ["t0"]

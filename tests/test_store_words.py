"""What search and recall ask of the store: words' weights, indexed texts, turns that are stale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storekit import FAR_AHEAD, LONG_AGO, T0, T1, T2, add, memory, turn

from edgemem.store import Store

WORDS = ["tea", "oslo", "cello", "2024", "zoë"]


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "a.db" if request.param == "file" else ":memory:") as opened:
        yield opened


def idf(total: int, having: int) -> float:
    return max(1e-6, math.log((total - having + 0.5) / (having + 0.5)))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS)), max_size=12), st.data())
def test_a_words_weight_is_bm25s(texts: list[list[str]], data: st.DataObject) -> None:
    deleted = data.draw(st.sets(st.sampled_from(range(len(texts))))) if texts else set()
    with Store.open(":memory:") as store:
        add(store, *(memory(f"m{i}", " ".join(["x", *t])) for i, t in enumerate(texts)))
        with store.transaction() as tx:
            for i in deleted:
                tx.delete_memory(f"m{i}", T1)
        left = [set(t) for i, t in enumerate(texts) if i not in deleted]
        expected = [idf(len(left), sum(word in t for t in left)) for word in WORDS]
        assert store.word_idf(WORDS) == pytest.approx(expected)


def test_a_rare_word_weighs_what_lexical_gives_an_average_memory_for_it(store: Store) -> None:
    add(store, *(memory(f"m{i}", "plain words here") for i in range(9)))
    add(store, memory("rare", "plain cello here"))
    ((_, score),) = store.lexical('"cello"')
    assert store.word_idf(["cello"]) == pytest.approx([score])


def test_a_word_is_weighed_in_all_its_forms_and_over_all_users(store: Store) -> None:
    add(store, *(memory(f"m{i}", "plain words") for i in range(8)))
    add(store, memory("a", "she plays"), memory("b", "we played"))
    assert store.word_idf(["playing", "nowhere"]) == pytest.approx([idf(10, 2), idf(10, 0)])


@pytest.mark.parametrize("word", ["i'm", "o’neil", "or", "near", "東京", "²", "é"])
def test_no_word_is_read_as_a_query(store: Store, word: str) -> None:
    add(store, memory("m"))
    assert store.word_idf([word]) == [pytest.approx(idf(1, 0))]
    assert store.word_idf([]) == []


def test_a_word_that_every_memory_has_weighs_next_to_nothing(store: Store) -> None:
    add(store, *(memory(f"m{i}", "tea") for i in range(5)))
    assert store.word_idf(["tea"]) == [1e-6]


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
    assert store.stale_turns(turns) == {"t0", "t1"}
    assert store.stale_turns(["t1", "t2", "unknown"]) == {"t1"}
    assert store.stale_turns([]) == frozenset()
    with store.transaction() as tx:
        tx.invalidate("still", T2)
    assert store.stale_turns(turns) == {"t0", "t1", "t2"}


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

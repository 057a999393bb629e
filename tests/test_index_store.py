"""The vector index follows a real store: whatever is written, it holds what a fresh one would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from indexkit import EVERYTHING
from storekit import ADA, DIM, FAR_AHEAD, LONG_AGO, T1, add, memory, unit

from edgemem.errors import DimensionMismatch
from edgemem.results import Scope
from edgemem.retrieval.index import VectorIndex
from edgemem.retrieval.search import Memories, refresh
from edgemem.store import Store


def answers(index):
    """Every memory with its score, for a few queries."""
    found = []
    for query in unit(5, 3):
        rowids, scores = index.exact_search(query, 100, EVERYTHING)
        order = np.argsort(rowids)
        found.append((rowids[order].tolist(), np.round(scores[order], 5).tolist()))
    return found


def fresh(store):
    index = VectorIndex(DIM)
    index.apply(store.changes(0))
    return index


STEPS = st.tuples(
    st.sampled_from(
        ["add", "add long", "update", "invalidate", "delete", "erase", "reset", "follow", "build"]
    ),
    st.integers(0, 5),
)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEPS, max_size=25))
def test_any_writes_are_followed(steps):
    with Store.open(":memory:") as store:
        index = VectorIndex(DIM, crossover=0)
        for number, (step, which) in enumerate(steps):
            live = sorted(store.get([f"m{i}" for i in range(number)]))
            chosen = live[which % len(live)] if live else None
            if step.startswith("add"):
                scope = ADA if which % 2 else Scope(user_id="bob")
                until = [None, FAR_AHEAD, LONG_AGO][which % 3]
                vectors = unit(number, 3 if step == "add long" else 1)
                new = memory(f"m{number}", scope=scope, vectors=vectors, expires_at=until)
                add(store, new)
            elif step == "reset":
                if which == 0:
                    store.reset()
            elif step == "follow":
                index.apply(store.changes(index.generation))
            elif step == "build":
                index.build_hnsw(num_threads=1)
            elif chosen is None:
                continue
            elif step == "erase":
                store.erase([chosen])
            else:
                with store.transaction() as tx:
                    if step == "update":
                        tx.update_memory(
                            chosen,
                            memory="new",
                            search_text="new",
                            vectors=unit(1000 + number),
                            updated_at=T1,
                        )
                    elif step == "invalidate":
                        tx.invalidate(chosen, LONG_AGO)
                    else:
                        tx.delete_memory(chosen, T1)
        index.apply(store.changes(index.generation))
        assert answers(index) == answers(fresh(store))
        for query in unit(6, 2):
            found, _, _ = index.view(EVERYTHING).search(query, 3)
            expected, _ = index.exact_search(query, 3, EVERYTHING)
            assert found.tolist() == expected.tolist()
        index.close()


def test_a_cache_file_never_outlives_an_erase(tmp_path):
    path = tmp_path / "a.db.hnsw"
    with Store.open(tmp_path / "a.db") as store:
        add(store, *(memory(f"m{i}") for i in range(300)))
        index = VectorIndex(DIM, crossover=100)
        index.apply(store.changes(0))
        assert index.save(path, generation=store.generation(), model_id="m")
        secret = store.changes(0).vectors[7].tobytes()
        assert secret in path.read_bytes()
        store.erase(["m7"])
        assert not index.save(path, generation=store.generation(), model_id="m")  # not yet told
        index.apply(store.changes(index.generation))
        assert index.save(path, generation=store.generation(), model_id="m")
        assert secret not in path.read_bytes()
        again = VectorIndex(DIM, crossover=100)
        again.apply(store.changes(0))
        assert again.load(path, generation=store.generation(), model_id="m")
        assert len(again) == 299
        index.close()
        again.close()


def test_a_store_of_another_dimension_is_a_store_error_that_names_both(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        add(store, memory("m"))
        with pytest.raises(DimensionMismatch, match=rf"{DIM + 1} dimensions, the store {DIM}"):
            refresh(store, Memories(DIM + 1))

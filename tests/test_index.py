"""The vector index: exact and HNSW, changes, what is allowed, threads, and its cache file."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from indexkit import (
    DIM,
    EVERYTHING,
    MODEL,
    ROOT,
    changes,
    filled,
    only,
    rowids_of,
    search,
    unit,
)
from storekit import add, memory

from edgemem.retrieval import index as index_module
from edgemem.retrieval.index import IndexView, VectorIndex
from edgemem.store import Store

both_dtypes = pytest.mark.parametrize("dtype", ["float32", "int8"])

# What a search finds


def test_an_empty_index_finds_nothing():
    index = VectorIndex(DIM)
    index.apply(changes(1, full=True, vectors=np.empty((0, 0))))  # of a store without a dimension
    rowids, scores, method = search(index, unit(1)[0])
    assert (len(rowids), len(scores), method, len(index)) == (0, 0, "exact", 0)
    assert rowids.dtype == np.int64 and scores.dtype == np.float32


def test_the_best_memories_come_first():
    index, vectors = filled(50, crossover=1000)
    rowids, scores, method = search(index, vectors[7], 10)
    expected = vectors @ vectors[7]
    assert method == "exact"
    assert rowids.tolist() == (np.argsort(-expected)[:10] + 1).tolist()
    np.testing.assert_allclose(scores, np.sort(expected)[::-1][:10], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("crossover", [0, 1000])
def test_a_memory_scores_as_the_best_of_its_vectors(crossover):
    vectors = unit(60, 3)
    index = VectorIndex(DIM, crossover=crossover)
    index.apply(changes(1, range(1, 61), [1] * 20 + [2] * 20 + list(range(3, 23)), vectors))
    index.build_hnsw()
    query = unit(1, 9)[0]
    rowids, scores, _ = search(index, query, 22)
    assert sorted(rowids.tolist()) == list(range(1, 23))
    for rowid, rows in ((1, vectors[:20]), (2, vectors[20:40])):
        np.testing.assert_allclose(scores[rowids.tolist().index(rowid)], (rows @ query).max(), 1e-5)
    assert rowids_of(index, query, 3) == rowids[:3].tolist()
    index.close()


@pytest.mark.parametrize("crossover", [0, 1000])
def test_only_what_is_allowed_is_found_whatever_else_is_nearer(crossover):
    index, vectors = filled(300, crossover=crossover)
    index.build_hnsw()
    for some in (range(1, 301), range(150, 301), [7, 200], [4], []):
        expected = np.array(some)[np.argsort(-vectors[np.array(some, int) - 1] @ vectors[0])]
        assert rowids_of(index, vectors[0], 5, only(*some)) == expected[:5].tolist()
    index.close()


@both_dtypes
def test_a_vector_that_is_not_finite_is_never_found_and_one_of_zeros_scores_zero(dtype):
    vectors, query = unit(5), unit(1)[0]
    vectors[1, 3], vectors[2, 0], vectors[4] = np.nan, np.inf, 0
    index = VectorIndex(DIM, dtype, crossover=0)
    index.apply(changes(1, [1, 2, 3, 4, 5], vectors=vectors))
    assert len(index) == 3
    assert index.build_hnsw() == (dtype == "float32")
    rowids, scores, _ = search(index, query, 9)
    assert sorted(rowids.tolist()) == [1, 4, 5] and scores[rowids.tolist().index(5)] == 0
    assert rowids_of(index, query, 9, only(2, 3)) == []


def test_wrong_input_is_refused():
    index, _ = filled(3)
    query = unit(1)[0]
    with pytest.raises(ValueError, match=r"query has shape \(4,\); this index needs \(16,\)"):
        search(index, np.ones(4, np.float32))
    with pytest.raises(ValueError, match="query holds a NaN"):
        search(index, np.full(DIM, np.nan, np.float32))
    with pytest.raises(ValueError, match="k is 0; it must be 1 or more"):
        search(index, query, 0)
    with pytest.raises(ValueError, match="this index holds 16 numbers a vector"):
        index.apply(changes(2, [9], vectors=np.ones((1, 4))))
    assert len(index) == 3 and index.generation == 1
    assert rowids_of(index, query, 10**30) == rowids_of(index, query, 3)
    index.close()


# Changes


def test_a_memory_that_changed_in_other_ways_keeps_its_vector_and_the_graph():
    index, vectors = filled(300)
    assert index.build_hnsw()
    index.apply(changes(2, [4], vectors=vectors[3:4], user="bob", until=50.0))
    rowids, _, method = search(index, vectors[3], 1)
    assert (rowids.tolist(), method, len(index)) == ([4], "hnsw", 300)
    index.close()


def test_removed_memories_are_gone_and_their_room_is_used_again():
    index, vectors = filled(1000, crossover=10_000)
    before = index.memory_bytes()
    index.apply(changes(2, removed=range(1, 901)))
    assert len(index) == 100
    assert index.memory_bytes() < before / 5
    assert rowids_of(index, vectors[950], 1) == [951]
    assert min(rowids_of(index, vectors[0], 100)) > 900


def test_a_backup_put_back_is_taken_in_although_it_is_older():
    """Its labels are given out again, to other vectors than the graph has under them."""
    index, vectors = filled(400)
    index.apply(changes(5, range(401, 501)))
    assert index.build_hnsw()
    index.apply(changes(2, range(1, 401), vectors=vectors, full=True))
    assert index.generation == 2 and len(index) == 400
    new = unit(100, 66)
    index.apply(changes(3, range(401, 501), vectors=new))
    for label, vector in enumerate(new, 401):
        assert rowids_of(index, vector, 1) == [label]
    index.close()


class Model:
    """The index as a dictionary: label -> (memory, vector)."""

    def __init__(self):
        self.held = {}

    def apply(self, change):
        if change.full:
            self.held = {}
        touched = {*change.removed_rowids.tolist(), *change.rowids.tolist()}
        self.held = {label: row for label, row in self.held.items() if row[0] not in touched}
        for i, label in enumerate(change.labels.tolist()):
            self.held[label] = int(change.owners[i]), change.vectors[i]

    def search(self, query, k, allowed):
        best = {}
        for rowid, vector in self.held.values():
            if allowed[rowid]:
                best[rowid] = max(best.get(rowid, -np.inf), float(vector @ query))
        return sorted(best.values(), reverse=True)[:k], set(best)


@both_dtypes
@settings(max_examples=100)
@given(data=st.data())
def test_any_changes_once_or_twice_leave_what_a_dictionary_would_hold(dtype, data):
    """Vectors are such that scores are exact. A memory comes with its vectors, or with new ones."""
    index, model = VectorIndex(4, dtype, crossover=data.draw(st.sampled_from([0, 1000]))), Model()
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    memories, last = st.sets(st.integers(1, 12), max_size=4), 0
    for generation in range(1, data.draw(st.integers(2, 8))):
        gone, anew = data.draw(memories), data.draw(memories)
        full = data.draw(st.integers(0, 4)) == 0
        same = set(range(1, 13)) if full else data.draw(memories)
        rows = {label: row for label, row in model.held.items() if row[0] in same - gone - anew}
        for owner in sorted(anew) * data.draw(st.integers(1, 3)):
            last += 1
            vector = rng.integers(-3, 4, 4)
            if dtype == "int8":
                vector[0] = 127  # the largest is a whole step, so nothing is rounded
            rows[last] = owner, vector
        owners, vectors = [row[0] for row in rows.values()], [row[1] for row in rows.values()]
        vectors = np.array(vectors, np.float32).reshape(-1, 4)
        removed = gone | anew
        change = changes(generation, list(rows), owners, vectors, removed=[*removed], full=full)
        for _ in range(data.draw(st.integers(1, 2))):
            index.apply(change)
        model.apply(change)
        if data.draw(st.booleans()):
            index.build_hnsw(num_threads=1)
        query = rng.integers(-3, 4, 4).astype(np.float32)
        some = data.draw(st.none() | st.sets(st.integers(1, 12)))
        allowed = EVERYTHING if some is None else only(*some)
        for k in (1, 3, 50):
            rowids, scores = index.exact_search(query, k, allowed)
            expected, possible = model.search(query, k, allowed)
            assert scores.tolist() == expected
            assert set(rowids.tolist()) <= possible and len(set(rowids)) == len(rowids)
            found = search(index, query, k, allowed)
            assert set(found[0].tolist()) <= possible and len(found[0]) == len(expected)
    assert len(index) == len(model.held)
    index.close()


# The graph


def test_hnsw_finds_what_the_exact_scan_finds():
    index, _ = filled(3000, dim=64)
    assert index.build_hnsw()
    queries = unit(50, 5, 64)
    found = 0
    for query in queries:
        rowids, scores, method = search(index, query, 10)
        expected, _ = index.exact_search(query, 10, EVERYTHING)
        assert method == "hnsw" and np.all(np.diff(scores) <= 0)
        found += len(np.intersect1d(rowids, expected))
    assert found / 500 >= 0.9  # unstructured vectors are the worst case; text is at 0.99
    index.close()


def test_equal_scores_of_the_graph_come_by_label_also_beside_newer_rows():
    index = VectorIndex(DIM, crossover=0)
    twins = np.repeat(unit(40), 3, axis=0)
    index.apply(changes(1, range(1, 121), vectors=twins))
    assert index.build_hnsw()
    assert rowids_of(index, twins[30], 3) == [31, 32, 33]
    index.apply(changes(2, range(121, 124), vectors=twins[30:33]))
    assert rowids_of(index, twins[30], 6) == [31, 32, 33, 121, 122, 123]
    index.close()


def test_copies_of_one_vector_hide_no_other_and_are_found_too(tmp_path):
    """A graph that holds them all reaches about half of the others."""
    rng = np.random.default_rng(0)
    vectors = unit(8000, 4, 64)
    copies = rng.random(8000) < 0.3
    vectors[copies] = vectors[0]
    index = VectorIndex(64, crossover=0)
    index.apply(changes(1, range(1, 8001), vectors=vectors))
    assert index.build_hnsw()

    def check(index):
        others = rng.choice(np.flatnonzero(~copies), 100, replace=False)
        found = [search(index, vectors[i], 10) for i in others]
        assert {method for _, _, method in found} == {"hnsw"}
        assert sum(i + 1 in rowids for i, (rowids, _, _) in zip(others, found, strict=True)) > 95
        assert rowids_of(index, vectors[0], 50) == (np.flatnonzero(copies)[:50] + 1).tolist()

    copies[0] = True
    check(index)
    assert index.save(tmp_path / "cache", generation=1, model_id=MODEL)
    loaded = VectorIndex(64, crossover=0)
    loaded.apply(changes(1, range(1, 8001), vectors=vectors, full=True))
    assert loaded.load(tmp_path / "cache", generation=1, model_id=MODEL)
    check(loaded)
    first = np.flatnonzero(copies)[:1500] + 1  # all that the graph holds, and more
    loaded.apply(changes(2, removed=first))
    assert min(rowids_of(loaded, vectors[0], 50)) > first[-1]
    loaded.apply(changes(3, range(8001, 9001), vectors=np.repeat(vectors[:1], 1000, axis=0)))
    assert loaded.build_hnsw() and loaded.build_hnsw()
    assert len(rowids_of(loaded, vectors[0], 2000)) == 2000
    index.close()
    loaded.close()


def test_a_memory_with_many_near_vectors_leaves_room_for_k_others():
    index = VectorIndex(DIM, crossover=0)
    vectors = np.concatenate([np.repeat(unit(1), 30, axis=0), unit(50, 7)])
    index.apply(changes(1, range(1, 81), [1] * 30 + list(range(2, 52)), vectors))
    assert index.build_hnsw()
    found = rowids_of(index, vectors[0], 5)
    assert found == index.exact_search(vectors[0], 5, EVERYTHING)[0].tolist() and found[0] == 1
    index.close()


def test_rows_that_the_graph_lacks_are_found_at_once():
    index, _ = filled(500)
    assert index.build_hnsw()
    new = unit(30, 77)
    index.apply(changes(2, range(501, 531), vectors=new))
    for i, vector in enumerate(new):
        rowids, _, method = search(index, vector, 1)
        assert (rowids.tolist(), method) == ([501 + i], "hnsw")
    assert index.build_hnsw()
    assert [rowids_of(index, vector, 1)[0] for vector in new] == list(range(501, 531))
    index.close()


def test_ghosts_are_not_found_and_the_graph_is_built_anew():
    index, vectors = filled(600)
    assert index.build_hnsw()
    index.apply(changes(2, removed=range(1, 101)))
    for vector in vectors[:50]:
        rowids, _, method = search(index, vector, 5)
        assert method == "hnsw" and rowids.min() > 100
    assert index._graph.count == 600
    index.apply(changes(3, removed=range(101, 301)))
    assert index.build_hnsw()
    assert index._graph.count == 300
    assert min(rowids_of(index, vectors[0], 50)) > 300
    index.close()


def test_few_that_are_allowed_are_scanned_exactly():
    index, _ = filled(1000, crossover=100)
    assert index.build_hnsw()
    query = unit(1, 8)[0]
    assert search(index, query, 5, only(*range(1, 951)))[2] == "hnsw"
    rowids, _, method = search(index, query, 5, only(*range(951, 1001)))
    assert method == "exact" and rowids.min() > 950 and len(rowids) == 5
    index.close()


def test_a_crowd_of_ghosts_near_the_query_does_not_hide_the_living():
    """One fact that was updated a hundred times, then asked for."""
    vectors = unit(1000, 2)
    vectors[:100] = vectors[0] + unit(100, 3) * np.float32(0.01)
    vectors[:100] /= np.linalg.norm(vectors[:100], axis=1, keepdims=True)
    index = VectorIndex(DIM, crossover=0)
    index.apply(changes(1, range(1, 1001), vectors=vectors))
    assert index.build_hnsw()
    index.apply(changes(2, removed=range(1, 101)))
    best = index.exact_search(vectors[0], 1, EVERYTHING)[0].tolist()
    assert list(rowids_of(index, vectors[0], 1)) == best
    assert len(rowids_of(index, vectors[0], 20)) == 20
    index.close()


def test_the_first_search_starts_a_build_and_answers_meanwhile():
    index, vectors = filled(2000)
    rowids, _, method = search(index, vectors[0], 1)
    assert (rowids.tolist(), method) == ([1], "exact")
    worker = index._worker
    if worker is not None:  # it may have finished already
        worker.join()
    assert search(index, vectors[0], 1)[2] == "hnsw"
    index.close()


def test_closing_stops_a_build():
    index, vectors = filled(20_000, dim=64)
    search(index, vectors[0], 1)
    index.close()
    assert index._worker is None and index._graph is None
    assert search(index, vectors[0], 1)[2] == "exact" and index._worker is None


def test_a_program_that_ends_during_a_build_ends_well():
    code = (
        "import sys; sys.path[:0] = ['tests', '.']\n"
        "from indexkit import *\n"
        "index, vectors = filled(30_000, dim=64)\n"
        "print(search(index, vectors[0], 1)[2], index._worker is not None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["exact", "True"]


def test_a_failing_build_is_reported_once_and_scanning_goes_on(monkeypatch, caplog):
    def fail(dim):
        raise RuntimeError("no room")

    monkeypatch.setattr(index_module, "_new_hnswlib", fail)
    index, vectors = filled(100)
    for _ in range(3):
        assert search(index, vectors[0], 1)[2] == "exact"
        if (worker := index._worker) is not None:
            worker.join()
    assert [record.message for record in caplog.records] == [
        "the HNSW graph could not be built; scanning goes on"
    ]


def test_what_the_graph_takes_in_during_a_search_does_not_split_it(monkeypatch):
    """A memory is replaced, and its old vector passed over, after the search took its view."""
    index, _ = filled(600)
    assert index.build_hnsw()
    old, new = unit(2, 44)
    index.apply(changes(2, [601], [1], [old], removed=[1]))
    inner = IndexView._search_graph

    def meanwhile(*arguments):
        index.apply(changes(3, [602], [1], [new], removed=[1]))
        assert index.build_hnsw() and index._graph.last_label == 602
        return inner(*arguments)

    monkeypatch.setattr(IndexView, "_search_graph", meanwhile)
    rowids, scores, method = search(index, old, 3)
    assert method == "hnsw" and rowids[0] == 1 and scores[0] == pytest.approx(1)
    index.close()


@pytest.mark.parametrize("crossover", [0, 100_000])
def test_searches_see_every_update_whole_while_another_thread_makes_it(crossover):
    """A memory that is replaced over and over is always there, once, and never twice."""
    index, vectors = filled(1500, crossover=crossover)
    index.build_hnsw()
    target = vectors[0]
    wrong, done = [], threading.Event()

    def look():
        while not done.is_set():
            rowids, scores, _ = search(index, target, 20)
            if rowids[0] != 1 or scores[0] < 0.999 or len(set(rowids.tolist())) != 20:
                wrong.append((rowids, scores))
                return

    def build():
        while not done.is_set():
            index.build_hnsw(num_threads=1)

    threads = [threading.Thread(target=work) for work in (look, look, build)]
    for thread in threads:
        thread.start()
    label, extra = 1500, unit(20_000, 9) * np.float32(0.5)
    for generation in range(2, 202):
        labels = np.arange(label + 1, label + 6)
        label += 5
        new = np.concatenate([target[None, :], extra[label : label + 4]])
        rowids = [1, *range(10_000 + label, 10_004 + label)]
        index.apply(changes(generation, labels, rowids, new, removed=[1]))
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(index) == 1500 + 800
    index.close()


# The graph's cache file: loaded when it is exactly right, and else as if it were not there


def saved(path, n=300, seed=1):
    index, vectors = filled(n, seed=seed)
    assert index.save(path, generation=1, model_id=MODEL)
    return index, vectors


def test_a_saved_graph_is_loaded_and_gives_the_same_answers(tmp_path):
    path = tmp_path / "mem.db.hnsw"
    before, vectors = saved(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mem.db.hnsw", "mem.db.hnsw.json"]
    stamp = json.loads((tmp_path / "mem.db.hnsw.json").read_text())
    assert stamp["format"] == 1 and stamp["count"] == 300 and stamp["generation"] == 1
    assert stamp["bytes"] == path.stat().st_size and stamp["model_id"] == MODEL
    after, _ = filled(300)
    assert after.load(path, generation=1, model_id=MODEL)
    for query in vectors[:20]:
        one, two = search(before, query), search(after, query)
        assert one[2] == two[2] == "hnsw"
        assert one[0].tolist() == two[0].tolist() and one[1].tolist() == two[1].tolist()
    after.close()


def test_a_graph_older_than_the_store_is_brought_up_to_date(tmp_path):
    path = tmp_path / "cache"
    saved(path)
    index, vectors = filled(300)
    new = unit(20, 50)
    index.apply(changes(2, range(301, 321), vectors=new, removed=[1, 2, 3]))
    assert index.load(path, generation=2, model_id=MODEL)
    rowids, _, method = search(index, new[4], 1)
    assert (rowids.tolist(), method) == ([305], "hnsw")
    assert 1 not in rowids_of(index, vectors[0], 20)
    index.close()


def test_a_file_for_something_else_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    saved(path)
    good, vectors = filled(300)
    assert good.load(path, generation=1, model_id=MODEL)
    assert not good.load(path, generation=1, model_id="another-model")
    assert not good.load(path, generation=0, model_id=MODEL)
    assert not good.load(tmp_path / "missing", generation=1, model_id=MODEL)
    assert not good.load(tmp_path, generation=1, model_id=MODEL)

    other_store, _ = filled(300, seed=2)
    assert not other_store.load(path, generation=1, model_id=MODEL)
    shorter, _ = filled(200)
    assert not shorter.load(path, generation=1, model_id=MODEL)
    many_gone, _ = filled(300)
    many_gone.apply(changes(2, removed=range(1, 90)))
    assert not many_gone.load(path, generation=2, model_id=MODEL)
    backup_put_back = vectors.copy()
    backup_put_back[-1] = unit(1, 99)[0]
    restored = VectorIndex(DIM, crossover=0)
    restored.apply(changes(1, range(1, 301), vectors=backup_put_back))
    assert not restored.load(path, generation=1, model_id=MODEL)
    monkeypatch.setattr(index_module, "M", 8)
    parameters = VectorIndex(DIM, crossover=0)
    parameters.apply(changes(1, range(1, 301), vectors=vectors))
    assert not parameters.load(path, generation=1, model_id=MODEL)


def test_a_label_that_the_graph_should_have_but_lacks_is_refused(tmp_path):
    path = tmp_path / "cache"
    vectors = unit(300, 1)
    index = VectorIndex(DIM, crossover=0)
    index.apply(changes(1, [*range(1, 150), *range(151, 301)], vectors=vectors[:299]))
    assert index.save(path, generation=1, model_id=MODEL)
    index.apply(changes(1, range(1, 301), vectors=vectors, full=True))
    assert not index.load(path, generation=1, model_id=MODEL)
    index.close()


def test_saving_is_refused_when_the_store_moved_on_or_is_small(tmp_path):
    path = tmp_path / "cache"
    index, _ = saved(path)
    assert not index.save(path, generation=2, model_id=MODEL)
    assert path.exists()  # still what it was
    index.apply(changes(2, removed=range(1, 301)))
    assert not index.save(path, generation=2, model_id=MODEL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    index, _ = filled(50)
    assert not index.save(tmp_path / "no such folder" / "cache", generation=1, model_id=MODEL)
    index.close()


def test_what_is_damaged_or_cut_short_by_a_full_disk_is_not_taken(tmp_path, caplog):
    """hnswlib does not notice that what it wrote was cut short."""
    path = tmp_path / "cache"
    index, vectors = saved(path)
    expected = [search(index, query)[0].tolist() for query in vectors[:5]]
    before = path.read_bytes()

    class Short:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def save_index(self, name):
            Path(name).write_bytes(before[:1000])

    index._graph.index = Short(index._graph.index)
    assert not index.save(path, generation=1, model_id=MODEL)
    assert "1000 bytes instead of" in caplog.text
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 2
    path.write_bytes(before[:1000])
    fresh, _ = filled(300)
    assert not fresh.load(path, generation=1, model_id=MODEL)
    assert fresh.build_hnsw(num_threads=1)
    assert [search(fresh, query)[0].tolist() for query in vectors[:5]] == expected
    fresh.close()


def test_a_cache_file_never_outlives_an_erase(tmp_path):
    path = tmp_path / "a.db.hnsw"
    with Store.open(tmp_path / "a.db") as store:
        add(store, *(memory(f"m{i}", vectors=unit(1, i)) for i in range(300)))
        index = VectorIndex(DIM, crossover=100)
        index.apply(store.changes(0))
        assert index.save(path, generation=1, model_id=MODEL)
        secret = store.changes(0).vectors[7].tobytes()
        assert secret in path.read_bytes()
        store.erase(["m7"])
        assert not index.save(path, generation=2, model_id=MODEL)  # not yet told
        index.apply(store.changes(index.generation))
        assert index.save(path, generation=2, model_id=MODEL)
        assert secret not in path.read_bytes()
        again = VectorIndex(DIM, crossover=100)
        again.apply(store.changes(0))
        assert again.load(path, generation=2, model_id=MODEL)
        assert len(again) == 299
        index.close()

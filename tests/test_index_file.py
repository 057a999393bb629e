"""The graph's cache file: loaded when it is exactly right, and else as if it were not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from indexkit import DIM, MODEL, changes, filled, rowids_of, search, unit

from edgemem.retrieval import index as index_module
from edgemem.retrieval.index import VectorIndex


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
    index.apply(changes(2, [150], vectors=vectors[299:]))
    assert not index.load(path, generation=2, model_id=MODEL)
    index.close()


def test_a_saved_file_holds_no_vector_that_is_gone(tmp_path):
    path = tmp_path / "cache"
    index, vectors = filled(300)
    assert index.build_hnsw()
    index.apply(changes(2, removed=[7]))
    assert index.save(path, generation=2, model_id=MODEL)
    data = path.read_bytes()
    assert vectors[6].tobytes() not in data and vectors[7].tobytes() in data
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

"""The graph's cache file: loaded when it is exactly right, and else as if it were not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from indexkit import DIM, MODEL, changes, damaged, filled, rowids_of, search, unit

from edgemem import cachefile
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


def test_a_file_for_something_else_is_refused(tmp_path):
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
    parameters = VectorIndex(DIM, crossover=0, M=8)
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


def test_a_full_disk_leaves_the_file_from_before(tmp_path, caplog):
    """hnswlib does not notice that what it wrote was cut short."""
    path = tmp_path / "cache"
    index, _ = saved(path)
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
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2
    assert "1000 bytes instead of" in caplog.text


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    index, _ = filled(50)
    assert not index.save(tmp_path / "no such folder" / "cache", generation=1, model_id=MODEL)
    index.close()


def test_discarding_removes_everything_and_nothing_else(tmp_path):
    path = tmp_path / "my[db]*.hnsw"
    saved(path)
    (tmp_path / "my[db]*.hnsw.abc.tmp").write_text("left by a writer that died")
    (tmp_path / "my[db]*.hnsw.abc.tmp.json").write_text("so was this")
    (tmp_path / "mydb.hnsw").write_text("another's")
    cachefile.discard(path)
    cachefile.discard(path)
    assert [file.name for file in tmp_path.iterdir()] == ["mydb.hnsw"]


def test_no_damage_crashes_or_changes_an_answer(tmp_path):
    """Each damaged file is refused, and answers come as if there had been none."""
    path = tmp_path / "cache"
    saved(path, seed=2)
    others = path.read_bytes(), cachefile.stamp_path(path).read_bytes()
    saved(path, seed=1)
    files = {path: others[0], cachefile.stamp_path(path): others[1]}
    good = {file: file.read_bytes() for file in files}
    rng = np.random.default_rng(0)
    index, vectors = filled(300)
    expected = [search(index, query)[0].tolist() for query in vectors[:5]]
    refused = 0
    for round_ in range(400):
        file = list(files)[round_ % 2]
        bad = damaged(good[file], files[file], rng)
        if bad == good[file]:
            continue
        file.write_bytes(bad)
        fresh = VectorIndex(DIM, crossover=0)
        fresh.apply(changes(1, range(1, 301), vectors=vectors))
        assert not fresh.load(path, generation=1, model_id=MODEL)
        refused += 1
        if round_ % 20 == 0:
            assert fresh.build_hnsw(num_threads=1)
            assert [search(fresh, query)[0].tolist() for query in vectors[:5]] == expected
        fresh.close()
        file.write_bytes(good[file])
    assert refused > 300
    assert index.load(path, generation=1, model_id=MODEL)
    index.close()


def test_a_file_swapped_for_another_of_ours_is_refused(tmp_path):
    """Data and stamp that each are whole but do not belong together, or to this store."""
    one, two = tmp_path / "one", tmp_path / "two"
    saved(one, seed=1)
    saved(two, seed=2)
    index, _ = filled(300, seed=1)
    data, stamp = one.read_bytes(), cachefile.stamp_path(one).read_bytes()
    one.write_bytes(two.read_bytes())
    assert not index.load(one, generation=1, model_id=MODEL)
    cachefile.stamp_path(one).write_bytes(cachefile.stamp_path(two).read_bytes())
    assert not index.load(one, generation=1, model_id=MODEL)
    one.write_bytes(data)
    assert not index.load(one, generation=1, model_id=MODEL)
    cachefile.stamp_path(one).write_bytes(stamp)
    assert index.load(one, generation=1, model_id=MODEL)
    index.close()


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b"{}", b"[" * 9000, b'{"check": 1}', b"\xff"]
)
def test_a_stamp_that_is_no_stamp_is_refused(tmp_path, text):
    path = tmp_path / "cache"
    saved(path)
    cachefile.stamp_path(path).write_bytes(text)
    assert cachefile.read_stamp(path) is None

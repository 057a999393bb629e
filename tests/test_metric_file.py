"""The metrics' cache file: taken when it is exactly right, and else as if it were not there."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from indexkit import DIM, MODEL, changes, unit
from memorykit import quick

from edgemem import cachefile
from edgemem.config import load_settings
from edgemem.results import Query, Scope
from edgemem.retrieval import whitening
from edgemem.retrieval.metric import Moments
from edgemem.retrieval.search import SearchIndex
from edgemem.retrieval.whitening import EVERYBODY, Whitening

ANN, BOB = Scope(user_id="ann"), Scope(user_id="bob")


@pytest.fixture(autouse=True)
def small_sets_are_large(monkeypatch):
    monkeypatch.setattr(whitening, "AT_ONCE", 100)


@pytest.fixture
def no_fit(monkeypatch):
    """No metric may be fitted: one that is there came from the file."""

    def refuse(*_a, **_k):
        raise AssertionError("a metric was fitted")

    return lambda: monkeypatch.setattr(Whitening, "_fit", refuse)


def holding(n=300, *, seed=1, dtype="float32", vectors=None, **columns):
    """Memories 1 to n, just read from a store of generation 1."""
    memories = SearchIndex(DIM, dtype)
    vectors = unit(n, seed) if vectors is None else vectors
    memories.apply(changes(1, range(1, len(vectors) + 1), vectors=vectors, full=True, **columns))
    return memories


def metric_of(memories, scope=ANN):
    """The metric that a search uses, after what it starts is done."""
    ask(memories, scope)
    memories.whitening.wait()
    ask(memories, scope)
    return memories.whitening._fitted.get(scope.user_id)


def ask(memories, scope=ANN):
    return memories.candidates(Query("", scope, now=0.0), unit(1, 7)[0])


def saved(path, n=300, *, seed=1, dtype="float32"):
    memories = holding(n, seed=seed, dtype=dtype)
    metric_of(memories)
    assert memories.save_metrics(path, model_id=MODEL)
    memories.close()
    return memories


def arrays_of(path):
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_saved_metric_is_used_without_a_fit_and_gives_the_same_features(tmp_path, no_fit, dtype):
    path = tmp_path / "mem.db.metric"
    before = saved(path, dtype=dtype)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["mem.db.metric", "mem.db.metric.json"]
    stamp = cachefile.read_stamp(path)
    assert stamp is not None
    assert (stamp["generation"], stamp["model_id"], stamp["dtype"]) == (1, MODEL, dtype)
    no_fit()
    after = holding(dtype=dtype)
    assert after.load_metrics(path, model_id=MODEL)
    one, two = ask(before), ask(after)
    assert one.rowids.tolist() == two.rowids.tolist()
    assert one.features.tolist() == two.features.tolist()
    assert one.similarity == two.similarity


def test_what_came_or_went_since_is_taken_in_by_the_usual_rule(tmp_path, no_fit):
    path = tmp_path / "cache"
    saved(path)
    memories = holding()
    memories.apply(changes(2, range(301, 341), removed=range(1, 4)))
    assert memories.load_metrics(path, model_id=MODEL)
    fitted = metric_of(memories)
    assert fitted.labels.tolist() == list(range(1, 341))  # 3 gone are below 5 %
    expected = Moments(DIM)
    expected.add(np.concatenate([unit(300, 1), unit(40, 2)]))
    assert fitted.metric.count == fitted.moments.count == 340
    np.testing.assert_allclose(fitted.moments.scatter, expected.scatter, atol=1e-12)
    memories.apply(changes(3, removed=range(4, 60)))
    fitted = metric_of(memories)
    assert fitted.labels.tolist() == list(range(60, 341))
    no_fit()
    memories.apply(changes(4, [400]))
    assert metric_of(memories) is fitted
    memories.close()


@pytest.mark.parametrize("removed", [[7], list(range(1, 101))])
def test_a_file_is_written_without_a_trace_of_vectors_that_are_gone(tmp_path, removed):
    path = tmp_path / "cache"
    memories = holding()
    metric_of(memories)
    memories.apply(changes(2, removed=removed))
    assert memories.save_metrics(path, model_id=MODEL)
    left = np.delete(unit(300, 1), np.array(removed) - 1, axis=0)
    expected = Moments(DIM)
    expected.add(left)
    arrays = arrays_of(path)
    assert arrays["labels_0"].tolist() == [x for x in range(1, 301) if x not in removed]
    assert arrays["count_0"] == expected.count
    assert arrays["sum_0"].tobytes() == expected.sum.tobytes()
    assert arrays["scatter_0"].tobytes() == expected.scatter.tobytes()
    assert unit(300, 1)[removed[0] - 1].tobytes() not in path.read_bytes()


def test_a_file_for_something_else_or_of_another_layout_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    saved(path)
    assert holding().load_metrics(path, model_id=MODEL)
    assert not holding().load_metrics(path, model_id="another-model")
    assert not holding().load_metrics(tmp_path / "missing", model_id=MODEL)
    assert not holding().load_metrics(tmp_path, model_id=MODEL)
    assert not holding(dtype="int8").load_metrics(path, model_id=MODEL)
    assert not holding(seed=2).load_metrics(path, model_id=MODEL)  # another store's vectors
    backup = unit(300, 1)
    backup[-1] = unit(1, 99)[0]
    assert not holding(vectors=backup).load_metrics(path, model_id=MODEL)
    older = holding()
    older.generation = 0
    assert not older.load_metrics(path, model_id=MODEL)
    assert older.whitening._fitted == {}
    monkeypatch.setattr(whitening, "LAYOUT", whitening.LAYOUT + 1)
    assert not holding().load_metrics(path, model_id=MODEL)


def test_only_large_sets_are_kept_and_a_file_of_before_goes(tmp_path):
    path = tmp_path / "cache"
    saved(path)
    memories = holding(90)
    metric_of(memories)
    assert not memories.save_metrics(path, model_id=MODEL)
    assert list(tmp_path.iterdir()) == []


def test_a_user_whose_memories_have_gone_is_left_out(tmp_path):
    path = tmp_path / "cache"
    users = ["ann"] * 150 + ["bob"] * 150
    both = holding(user=users)
    metric_of(both, ANN), metric_of(both, BOB), metric_of(both, Scope())
    assert both.save_metrics(path, model_id=MODEL)
    memories = holding(user=users)
    memories.apply(changes(2, removed=range(1, 151)))
    assert memories.load_metrics(path, model_id=MODEL)
    assert set(memories.whitening._fitted) == {"bob", EVERYBODY}


def test_each_user_gets_their_own_metric_in_whatever_order_they_are_read(tmp_path, no_fit):
    path = tmp_path / "cache"
    vectors = unit(400, 1)
    users = ["ann"] * 150 + ["bob"] * 250
    before = holding(vectors=vectors, user=users)
    counts = {s.user_id: metric_of(before, s).metric.count for s in (ANN, BOB)}
    assert counts == {"ann": 150, "bob": 250}
    assert before.save_metrics(path, model_id=MODEL)
    # All is read anew, and bob's memories come first: codes are given in that order.
    no_fit()
    after = SearchIndex(DIM)
    order = np.array([*range(151, 401), *range(1, 151)])
    after.apply(
        changes(
            2,
            order,
            np.arange(1, 401),
            vectors[order - 1],
            full=True,
            user=["bob"] * 250 + ["ann"] * 150,
        )
    )
    assert after.load_metrics(path, model_id=MODEL)
    for scope in (ANN, BOB):
        assert metric_of(after, scope).metric.count == counts[scope.user_id]


def test_what_is_damaged_or_cut_short_by_a_full_disk_is_not_taken(tmp_path, monkeypatch, caplog):
    path = tmp_path / "cache"
    memories = saved(path)
    expected = ask(memories).features.tolist()
    before = path.read_bytes()
    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda file, data: write(file, data[:1000]))
    assert not memories.save_metrics(path, model_id=MODEL)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 2
    assert "1000 bytes instead of" in caplog.text
    assert not memories.save_metrics(tmp_path / "no such folder" / "cache", model_id=MODEL)
    path.write_bytes(before[:1000])
    fresh = holding()
    assert not fresh.load_metrics(path, model_id=MODEL)
    assert not fresh.whitening._fitted
    metric_of(fresh)
    assert ask(fresh).features.tolist() == expected


def replaced(**new):
    """The arrays with some replaced; None: left out."""
    return lambda arrays: {n: v for n, v in (arrays | new).items() if v is not None}


def one_less(name):
    return lambda arrays: {**arrays, name: arrays[name][:-1]}


WRONG = {
    "no keys": replaced(keys=None),
    "keys that are no JSON": replaced(keys=np.frombuffer(b"[", np.uint8)),
    "a key too many": replaced(keys=np.frombuffer(b'["ann", "bob", "cid"]', np.uint8)),
    "a mean cut short": one_less("mean_0"),
    "a metric cut short": one_less("A_0"),
    "a count below 0": replaced(count_0=np.array(-1)),
    "a sum of another dimension": one_less("sum_0"),
    "a scatter that is not square": one_less("scatter_0"),
    "a scatter that is not finite": replaced(scatter_0=np.full((DIM, DIM), np.nan)),
    "too few labels": replaced(labels_0=np.arange(5)),
    "a sample too short": one_less("sample_0"),
    "objects": replaced(labels_0=np.array([{}, None], object)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_contents_under_a_sound_stamp_are_refused(tmp_path, wrong):
    path = tmp_path / "cache"
    saved(path)
    stamp = json.loads(cachefile.stamp_path(path).read_text())
    data = io.BytesIO()
    np.savez(data, **WRONG[wrong](arrays_of(path)))
    text = data.getvalue()
    temporary, size = cachefile.write_temporary(
        path, lambda name: Path(name).write_bytes(text), len(text)
    )
    del stamp["check"]
    cachefile.publish(temporary, path, {**stamp, **size})
    assert cachefile.read_stamp(path) is not None
    memories = holding()
    assert not memories.load_metrics(path, model_id=MODEL)
    assert not memories.whitening._fitted


# -- through Memory --------------------------------------------------------------------------


def remember(path, n=150, vectors="float32"):
    """A Memory with so many things in it that it is taken for a large one."""
    memory = quick(path, settings=replace(load_settings(), vectors=vectors))
    if not memory.get_all(user_id="ann"):
        said = [{"role": "user", "content": f"word{i} word{i * i % 97} tea."} for i in range(n)]
        memory.add(said, user_id="ann", infer=False)
    memory.index.vectors.crossover = 100
    return memory


@pytest.mark.parametrize("vectors", ["float32", "int8"])
def test_close_writes_the_file_and_the_next_start_takes_it(tmp_path, no_fit, vectors):
    path = tmp_path / "a.db"
    with remember(path, vectors=vectors) as memory:
        memory.search("tea", user_id="ann")
    assert (tmp_path / "a.db.metric").exists()
    assert (tmp_path / "a.db.hnsw").exists() == (vectors == "float32")
    no_fit()
    with remember(path, vectors=vectors) as memory:
        assert memory.index.whitening._fitted["ann"].metric.count == 150
        assert len(memory.search("tea", user_id="ann"))
        memory.index.vectors.crossover = 1000  # so that close writes nothing


def test_a_small_store_writes_no_file(tmp_path):
    with remember(tmp_path / "a.db") as memory:
        memory.search("tea", user_id="ann")
        memory.index.vectors.crossover = 1000
    assert not list(tmp_path.glob("*.metric*"))


@pytest.mark.parametrize("erase", ["erase", "reset"])
def test_erasing_drops_the_file_and_the_moments(tmp_path, erase):
    path = tmp_path / "a.db"
    with remember(path) as memory:
        memory.search("tea", user_id="ann")
    with remember(path) as memory:
        assert memory.index.whitening._fitted
        if erase == "erase":
            memory.erase(memory.get_all(user_id="ann")[0].id)
        else:
            memory.reset()
        assert not list(tmp_path.glob("*.metric*"))
        assert not memory.index.whitening._fitted


def test_what_another_process_erased_is_not_in_the_file_that_this_one_writes(tmp_path):
    path = tmp_path / "a.db"
    with remember(path) as memory:
        memory.search("tea", user_id="ann")
        memory.index.whitening.wait()
        with quick(path) as other:
            other.erase(next(m.id for m in other.get_all(user_id="ann") if "word7 " in m.memory))
    arrays = arrays_of(tmp_path / "a.db.metric")
    assert arrays["count_0"] == 149
    assert arrays["labels_0"].tolist() == [x for x in range(1, 151) if x != 8]

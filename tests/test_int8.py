"""Vectors in int8: what rounding changes, and that nothing else does."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from indexkit import DIM, EVERYTHING, MODEL, changes, filled, unit
from memorykit import quick, texts
from metrickit import cloud, seeds

from edgemem.config import load_settings
from edgemem.results import Query, Scope
from edgemem.retrieval.index import VectorIndex
from edgemem.retrieval.metric import SAMPLE, Whitening, fit
from edgemem.retrieval.search import SearchIndex
from edgemem.retrieval.vectors import Rows, VectorSubset


def correlated(n, dim, *, queries, seed=0):
    """Vectors of length 1, and queries from among their like."""
    made = cloud(seed, n + queries, dim)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return made[:n], made[n:]


def exact_in_int8(n, seed, dim=DIM):
    """Vectors that int8 holds as they are: whole numbers whose largest is 127."""
    vectors = np.random.default_rng(seed).integers(-5, 6, (n, dim)).astype(np.float32)
    vectors[:, 0] = 127
    return vectors


def int8_index(vectors, generation=1):
    index = VectorIndex(vectors.shape[1], "int8", crossover=0)
    index.apply(changes(generation, range(1, len(vectors) + 1), vectors=vectors, full=True))
    return index


@given(seeds, st.integers(0, 9), st.sampled_from([1, 3, 15, 16, 17, 33]))
def test_both_kinds_of_rows_have_the_same_methods(seed, n, dim):
    rng = np.random.default_rng(seed)
    vectors = (rng.standard_normal((n, dim)) * rng.uniform(1e-3, 1e3)).astype(np.float32)
    positions = rng.integers(0, n, size=5 if n else 0)
    plain, rounded = Rows.of(vectors, "float32"), Rows.of(vectors, "int8")
    np.testing.assert_array_equal(plain.floats(positions), vectors[positions])
    for rows in (plain, rounded):
        assert rows.dim == dim
        assert all(len(column) == n for column in rows.columns().values())
        again = type(rows)(*rows.columns().values())
        np.testing.assert_array_equal(again.floats(positions), rows.floats(positions))
    half = np.abs(vectors).max(axis=1, initial=0) / 127 / 2
    error = np.abs(rounded.floats(np.arange(n)) - vectors).max(axis=1, initial=0)
    assert (error <= half * 1.001 + 1e-30).all()


@given(seeds, st.integers(1, 40), st.integers(1, 12))
def test_where_nothing_is_rounded_the_answers_are_those_of_float32(seed, n, k):
    vectors = exact_in_int8(n, seed)
    plain = VectorIndex(DIM)
    plain.apply(changes(1, range(1, n + 1), vectors=vectors))
    rounded = int8_index(vectors)
    rng = np.random.default_rng(seed)
    allowed = rng.random(n + 1) < 0.7
    for query in exact_in_int8(3, seed + 1):
        rowids, scores, method = rounded.view(allowed).search(query, k)
        expected, expected_scores = plain.exact_search(query, k, allowed)
        assert method == "int8"
        assert rowids.tolist() == expected.tolist()
        assert scores.tolist() == expected_scores.tolist()


def test_rounding_costs_little_recall():
    vectors, asked = correlated(3000, 64, queries=50)
    plain = VectorIndex(64)
    plain.apply(changes(1, range(1, 3001), vectors=vectors))
    rounded = int8_index(vectors)
    found = 0
    for query in asked:
        near, _, _ = rounded.view(EVERYTHING).search(query, 10)
        exact, _ = plain.exact_search(query, 10, EVERYTHING)
        found += len(np.intersect1d(near, exact))
    assert found / 500 > 0.95


def test_the_whole_store_anew_replaces_what_is_held():
    index = int8_index(unit(40, 1))
    other = unit(40, 1)
    other[7] = 3 * unit(1, 9)[0]
    index.apply(changes(3, range(1, 41), vectors=other, full=True))
    found, expected = (i.view(EVERYTHING).search(other[7], 3) for i in (index, int8_index(other)))
    assert found[0][0] == 8
    assert found[0].tolist() == expected[0].tolist() and found[1].tolist() == expected[1].tolist()


def test_a_search_sees_one_state_whatever_is_applied_meanwhile():
    vectors = unit(100, 1)
    index = int8_index(vectors)
    view = index.view(EVERYTHING)
    before = view.search(vectors[3], 10)
    index.apply(changes(2, range(101, 200), vectors=unit(99, 5), removed=range(1, 60)))
    after = view.search(vectors[3], 10)
    assert before[0].tolist() == after[0].tolist() and before[1].tolist() == after[1].tolist()
    assert index.view(EVERYTHING).search(vectors[3], 10)[0].tolist() != before[0].tolist()


def test_no_graph_is_built_loaded_or_kept(tmp_path):
    path = tmp_path / "cache"
    plain, vectors = filled(300)
    assert plain.save(path, generation=1, model_id=MODEL)
    index = int8_index(vectors)
    assert not index.load(path, generation=1, model_id=MODEL)
    assert not index.build_hnsw()
    assert index.view(EVERYTHING).search(vectors[0], 1)[2] == "int8"
    assert index._graph is None and index._worker is None
    assert not index.save(path, generation=1, model_id=MODEL)
    assert list(tmp_path.iterdir()) == []
    plain.close()


def test_int8_takes_a_quarter_of_the_memory_of_the_vectors():
    plain, vectors = filled(1000, dim=384)
    rounded = int8_index(vectors)
    assert plain.memory_bytes() - rounded.memory_bytes() == 1000 * (4 * 384 - 384 - 4)


def test_a_metric_fitted_on_int8_is_nearly_that_of_the_floats():
    vectors, asked = correlated(5000, 32, queries=20)
    rows, labels = Rows.of(vectors, "int8"), np.arange(5000)
    whitening = Whitening()
    metric = whitening.get("ann", 1, lambda: VectorSubset(rows, labels, labels))
    expected = fit(vectors)
    assert metric is not None and metric.count == SAMPLE
    for query in asked:
        one, two = metric.query(query).image, expected.query(query).image
        cosine = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
        assert cosine > 0.999


def test_features_of_a_search_are_nearly_those_of_float32():
    vectors, _ = correlated(400, 32, queries=0)
    text = [f"tea {i % 7} in town" for i in range(400)]
    found = []
    for dtype in ("float32", "int8"):
        memories = SearchIndex(32, dtype)
        memories.apply(changes(1, range(1, 401), vectors=vectors, text=text))
        found.append(memories.candidates(Query("tea 3", Scope("ann"), now=0.0), vectors[9]))
        memories.close()
    plain, rounded = found
    both, i, j = np.intersect1d(plain.rowids, rounded.rowids, return_indices=True)
    assert len(both) > 0.95 * len(plain.rowids)
    np.testing.assert_allclose(plain.features[i], rounded.features[j], atol=0.03)


def test_another_dtype_is_refused():
    with pytest.raises(ValueError) as caught:
        VectorIndex(3, "float16")
    assert str(caught.value) == "dtype is 'float16'; vectors are held as 'float32' or 'int8'"


def test_the_setting_decides_how_a_memory_holds_its_vectors(tmp_path):
    path = tmp_path / "a.db"
    for vectors in ("int8", "float32", "int8"):
        with quick(path, settings=replace(load_settings(), vectors=vectors)) as memory:
            memory.add(f"The cat likes fish, {vectors}.", user_id="ann", infer=False)
            memory.add("Rain is due on Monday.", user_id="ann", infer=False)
            assert memory.index.vectors.dtype == vectors
            assert "cat" in texts(memory.search("which cat", user_id="ann"))[0]

"""Fused scores and the best of them: native and NumPy give the same answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemem import kernels
from tests.kernelkit import assert_same, every_way, needs_native, ranked, whole_numbers

every_rank = every_way("rank", "rank")


@every_rank
@settings(max_examples=150)
@given(data=st.data())
def test_any_input_gives_the_defined_answer(rank, data):
    m, f = data.draw(st.integers(0, 60)), data.draw(st.integers(1, 12))
    k, seed = data.draw(st.integers(1, 70)), data.draw(st.integers(0, 2**32))
    features, weights = whole_numbers(seed, m, f), whole_numbers(seed + 1, f)
    bias = float(data.draw(st.integers(-5, 5)))
    for i in data.draw(st.sets(st.integers(0, m - 1), max_size=5)) if m else ():
        features[i, data.draw(st.integers(0, f - 1))] = np.nan
    expected = features.astype(np.float64) @ weights + bias
    scores, *best = rank(features, weights, bias, k)
    assert scores.dtype == np.float32
    assert scores.tolist() == np.where(np.isnan(expected), -np.inf, expected).tolist()
    assert_same(best, ranked(expected, k))


@every_rank
def test_sums_are_in_double_precision(rank):
    features = np.array([[1e8, 1, -1e8]], np.float32)
    scores, _, best = rank(features, np.ones(3, np.float32), 0.25, 1)
    assert scores.tolist() == best.tolist() == [1.25]


@every_rank
def test_infinities_are_ranked_and_their_difference_is_last(rank):
    inf = np.inf
    features = np.array([[0, 0], [inf, 0], [-inf, 0], [inf, -inf], [3e38, 3e38]], np.float32)
    scores, positions, _ = rank(features, np.ones(2, np.float32), 0.0, 5)
    assert scores.tolist() == [0, inf, -inf, -inf, inf]
    assert positions.tolist() == [1, 4, 0, 2, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.ones(3, np.float32)}, "features must be a 2-d float32 array, not 1-d"),
        ({"features": np.ones((3, 0), np.float32)}, "features have 0 columns"),
        ({"weights": np.ones(3, np.float32)}, "weights has 3 numbers, features have 2"),
        ({"weights": np.ones(2)}, "weights must be a 1-d float32 array, not 1-d float64"),
        ({"k": 0}, "k is 0; it must be 1 or more"),
    ],
)
def test_wrong_input_is_refused(change, message):
    right = {"features": np.ones((3, 2), np.float32), "weights": np.ones(2, np.float32)}
    right |= {"bias": 1.0, "k": 2}
    assert kernels.rank(**right)[0].tolist() == [3, 3, 3]
    with pytest.raises(ValueError) as error:
        kernels.rank(**{**right, **change})
    assert str(error.value).startswith(message)


@needs_native
def test_the_native_module_checks_its_buffers_itself():
    from edgemem import _native

    features, weights = np.ones((3, 2), np.float32), np.ones(2, np.float32)
    scores, positions = np.empty(3, np.float32), np.empty(1, np.int64)
    with pytest.raises(ValueError, match="do not fit"):
        _native.rank(features, weights, 0.0, 2, scores, positions, scores)

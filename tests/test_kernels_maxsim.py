"""Late interaction over int8 tokens: native and NumPy give the same whole numbers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemem.kernels import NO_TOKENS
from tests.kernelkit import DIMS, every_way, native, needs_native, numpy

every_maxsim = every_way("maxsim", "maxsim")


def texts(seed, sizes, dim, tokens):
    """The tokens of texts with so many each, where they begin and end, and a query's tokens."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(-127, 128, (sum(sizes), dim)).astype(np.int8)
    query = rng.integers(-127, 128, (tokens, dim)).astype(np.int8)
    return rows, np.cumsum([0, *sizes]), query


@every_maxsim
@pytest.mark.parametrize("dim", DIMS)
def test_each_token_gets_its_best_match_in_each_text(maxsim, dim):
    rows, offsets, query = texts(dim, [3, 1, 130, 64, 65], dim, 5)
    found = maxsim(rows, offsets, query)
    assert found.dtype == np.int32
    for i, (start, end) in enumerate(pairwise(offsets)):
        wanted = (rows[start:end].astype(np.int64) @ query.T.astype(np.int64)).max(axis=0)
        assert found[i].tolist() == wanted.tolist()


@every_maxsim
def test_a_text_without_tokens_matches_nothing(maxsim):
    rows, offsets, query = texts(1, [0, 2, 0], 96, 3)
    found = maxsim(rows, offsets, query)
    assert (found[[0, 2]] == NO_TOKENS).all() and (found[1] > NO_TOKENS).all()
    assert maxsim(rows[:0], offsets[:1], query).shape == (0, 3)


@needs_native
@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 70), max_size=8),
    st.integers(1, 130),
    st.integers(1, 20),
)
def test_native_code_and_numpy_agree_to_the_last_bit(seed, sizes, dim, tokens):
    given_ = texts(seed, sizes, dim, tokens)
    wanted = numpy("maxsim")(*given_)
    for isa in (0, 1):
        np.testing.assert_array_equal(native("maxsim", isa)(*given_), wanted)


@every_maxsim
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": np.ones((1, 3), np.int8)}, r"query has shape \(1, 3\); at least one token of 4"),
        ({"query": np.ones((0, 4), np.int8)}, "at least one token"),
        ({"offsets": np.array([0, 2, 1])}, "offsets must ascend"),
        ({"offsets": np.array([0, 3])}, "offsets are 0 to 3; allowed are 0 to 2"),
        ({"offsets": np.array([-1, 2])}, "offsets are -1 to 2"),
        ({"offsets": np.array([], np.int64)}, "offsets must ascend"),
        ({"rows": np.ones((2, 4), np.float32)}, "rows must be a 2-d int8 array"),
    ],
)
def test_what_does_not_fit_is_named(maxsim, change, message):
    right = {
        "rows": np.ones((2, 4), np.int8),
        "offsets": np.array([0, 2]),
        "query": np.ones((1, 4), np.int8),
    }
    assert maxsim(**right).tolist() == [[4]]
    with pytest.raises(ValueError, match=message):
        maxsim(**{**right, **change})

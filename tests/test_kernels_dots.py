"""Inner products of scattered rows: native and NumPy give the same answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemem import kernels
from tests.kernelkit import DIMS, every_way, native, needs_native, whole_numbers

every_dots = every_way("dots", "dots")


@every_dots
@pytest.mark.parametrize("dim", DIMS)
def test_every_width_and_number_of_queries_gives_the_defined_answer(dots, dim):
    rows = whole_numbers(dim, 9, dim)
    positions = np.array([8, 0, 3, 3, 1], np.int64)
    for q in (1, 2, 3, 4, 5):
        queries = whole_numbers(q, q, dim)
        out = dots(rows, positions, queries)
        assert out.dtype == np.float32 and out.flags.c_contiguous
        assert out.tolist() == (rows[positions] @ queries.T).tolist()


@every_dots
@settings(max_examples=100)
@given(data=st.data())
def test_any_positions_give_the_defined_answer(dots, data):
    n, dim = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 70))
    q = data.draw(st.integers(1, 5))
    chosen = data.draw(st.lists(st.integers(0, n - 1), max_size=60))
    seed = data.draw(st.integers(0, 2**32))
    rows, queries = whole_numbers(seed, n, dim), whole_numbers(seed + 1, q, dim)
    out = dots(rows, np.array(chosen, np.int64), queries)
    assert out.shape == (len(chosen), q)
    assert out.tolist() == (rows[chosen] @ queries.T).tolist()


@every_dots
def test_fractions_agree_with_double_precision(dots):
    rng = np.random.default_rng(0)
    rows, queries = (rng.standard_normal((n, 385)).astype(np.float32) for n in (50, 2))
    positions = rng.integers(0, 50, 200)
    exact = rows[positions].astype(np.float64) @ queries.T.astype(np.float64)
    np.testing.assert_allclose(dots(rows, positions, queries), exact, rtol=1e-4, atol=1e-4)


@every_dots
def test_nan_and_infinity_stay_what_they_are(dots):
    rows = np.array([[np.nan], [np.inf], [-np.inf], [3e38]], np.float32)
    queries = np.array([[1.0], [0.0], [10.0]], np.float32)
    out = dots(rows, np.arange(4), queries)
    nan, inf = np.nan, np.inf
    expected = [[nan, nan, nan], [inf, nan, inf], [-inf, nan, -inf], [3e38, 0.0, inf]]
    np.testing.assert_array_equal(out, np.array(expected, np.float32))


@needs_native
@pytest.mark.parametrize("isa", [0, 1])
@pytest.mark.parametrize("dim", DIMS)
def test_a_row_scores_the_same_to_the_bit_in_a_scan_and_beside_any_query(isa, dim):
    """Else a candidate could change places between the scan and the re-ranking."""
    rng = np.random.default_rng(dim)
    rows, queries = (rng.standard_normal((n, dim)).astype(np.float32) for n in (20, 3))
    positions, scores = native("scan_topk", isa)(rows, queries[0], 20)
    for q in (1, 2, 3):
        out = native("dots", isa)(rows, positions, queries[:q])
        assert out[:, 0].tolist() == scores.tolist()
    turned = np.ascontiguousarray(queries[::-1])
    out = native("dots", isa)(rows, positions, turned)
    assert out[:, 2].tolist() == scores.tolist()


ROWS, QUERIES = np.ones((3, 4), np.float32), np.ones((2, 4), np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": [0]}, "positions must be a 1-d int64 array, not list"),
        ({"positions": np.array([0], np.int32)}, "positions must be a 1-d int64 array, not 1-d"),
        ({"positions": np.array([0, 3])}, "positions are 0 to 3; there are 3 rows, counted from 0"),
        ({"positions": np.array([-1, 2])}, "positions are -1 to 2; there are 3 rows"),
        ({"queries": np.ones(4, np.float32)}, "queries must be a 2-d float32 array"),
        ({"queries": np.ones((2, 5), np.float32)}, "queries have shape (2, 5); at least one row"),
        ({"queries": np.ones((0, 4), np.float32)}, "queries have shape (0, 4); at least one row"),
        ({"queries": np.ones((2, 8), np.float32)[:, ::2]}, "queries must be C-contiguous"),
        ({"rows": np.ones((3, 4))}, "rows must be a 2-d float32 array, not 2-d float64"),
        ({"rows": np.ones((0, 4), np.float32)}, "positions are 0 to 2; there are 0 rows"),
    ],
)
def test_wrong_input_is_refused(change, message):
    right = {"rows": ROWS, "positions": np.array([0, 2]), "queries": QUERIES}
    assert kernels.dots(**right).tolist() == [[4, 4], [4, 4]]
    with pytest.raises(ValueError) as error:
        kernels.dots(**{**right, **change})
    assert str(error.value).startswith(message)


@needs_native
def test_the_native_module_checks_positions_and_buffers_itself():
    from edgemem import _native

    out = np.full((2, 2), 7, np.float32)
    for positions in ([0, 3], [-1, 0]):
        with pytest.raises(ValueError, match="position"):
            _native.dots(ROWS, np.array(positions), QUERIES, 0, out)
    with pytest.raises(ValueError, match="do not fit"):
        _native.dots(ROWS, np.array([0, 1, 2]), QUERIES, 0, out)
    with pytest.raises(ValueError, match="instruction set"):
        _native.dots(ROWS, np.array([0, 1]), QUERIES, 99, out)
    assert (out == 7).all()

"""Int8 rows: quantising, scanning and re-scoring them, native and NumPy alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgemem import kernels
from edgemem.kernels import reference
from tests.kernelkit import DIMS, assert_same, every_way, native, needs_native, ranked

every_quantize = every_way("quantize_i8", "quantize")
every_scan = every_way("scan_topk_i8", "scan")
every_dots = every_way("dots_i8", "dots")


# -- quantize_i8 -----------------------------------------------------------------------------


@every_quantize
def test_a_row_is_rounded_to_whole_steps_of_its_scale(quantize):
    rows = np.array([[127, 1.5, 2.5, -0.5, -127], [0, 0, 0, 0, 254]], np.float32)
    quantized, scales = quantize(rows)
    assert quantized.dtype == np.int8 and scales.dtype == np.float32
    assert quantized.tolist() == [[127, 2, 2, 0, -127], [0, 0, 0, 0, 127]]
    assert scales.tolist() == [1, 2]


@every_quantize
@pytest.mark.parametrize("dim", DIMS)
def test_a_number_is_kept_to_half_a_step(quantize, dim):
    rows = np.random.default_rng(dim).standard_normal((20, dim)).astype(np.float32)
    quantized, scales = quantize(rows)
    np.testing.assert_allclose(scales, np.abs(rows).max(axis=1) / 127, rtol=1e-6)
    error = np.abs(quantized.astype(np.float64) * scales[:, None] - rows)
    assert (error <= 0.50001 * scales[:, None]).all()


@every_quantize
def test_zeros_and_what_is_not_finite_are_defined(quantize):
    rows = np.zeros((5, 9), np.float32)
    rows[1, 3], rows[2, 8], rows[3, 0] = np.nan, np.inf, -np.inf
    rows[4] = np.nextafter(np.float32(0), np.float32(1))  # / 127 is 0 in a float
    quantized, scales = quantize(rows)
    assert not quantized.any()
    np.testing.assert_array_equal(scales, np.array([0, np.nan, np.nan, np.nan, 0], np.float32))


@every_quantize
def test_a_scale_that_was_rounded_itself_sends_nothing_beyond_127(quantize):
    smallest = 2.0**-149
    rows = np.array([[190 * smallest, -150 * smallest, 3 * smallest]], np.float32)
    quantized, scales = quantize(rows)
    assert scales.tolist() == [smallest] and quantized.tolist() == [[127, -127, 3]]


@needs_native
@settings(max_examples=200)
@given(
    rows=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=40),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
    )
)
def test_native_quantises_any_floats_to_the_same_bits(rows):
    quantized, scales = kernels.quantize_i8(rows)
    expected, expected_scales = reference.quantize_i8(rows)
    np.testing.assert_array_equal(quantized, expected)
    np.testing.assert_array_equal(scales, expected_scales)


# -- scan_topk_i8 ----------------------------------------------------------------------------


def whole_bytes(seed, n, dim):
    """int8 rows with scales that are powers of two, and a query that int8 holds exactly."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(-127, 128, (n, dim)).astype(np.int8)
    scales = np.float32(2) ** rng.integers(-3, 4, n).astype(np.float32)
    query = rng.integers(-9, 10, dim).astype(np.float32)
    query[rng.integers(dim)] = 127
    return rows, scales, query


def scores_of(rows, scales, query):
    return scales * (rows.astype(np.float64) @ query.astype(np.float64))


@every_scan
@pytest.mark.parametrize("dim", DIMS)
def test_every_width_gives_the_defined_answer(scan, dim):
    for n in (1, 2, 3, 8, 100):
        rows, scales, query = whole_bytes(dim * 1000 + n, n, dim)
        expected = scores_of(rows, scales, query)
        for k in (1, 3, n, n + 5):
            assert_same(scan(rows, scales, query, k, survivors=k), ranked(expected, k))


@every_scan
def test_the_largest_numbers_do_not_overflow(scan):
    """128 · 128 · 131,071 is the largest sum that fits, and 127² · 2 would not in 16 bits."""
    scales = np.array([1, 2], np.float32)
    query = np.full(kernels.MAX_DIM_I8, -127, np.float32)
    for number in (127, -127, -128):
        rows = np.full((2, kernels.MAX_DIM_I8), number, np.int8)
        # One survivor: an overflow would turn the sign, and the other row would be kept.
        positions, scores = scan(rows, scales, query, 1, survivors=1)
        assert positions.tolist() == [1 if number < 0 else 0]
        expected = -127.0 * number * kernels.MAX_DIM_I8 * scales[positions]
        np.testing.assert_allclose(scores, expected, 1e-3)


@every_scan
def test_a_mask_leaves_rows_out(scan):
    rows, scales, query = whole_bytes(3, 100, 17)
    for share in (0.0, 0.05, 0.5, 1.0):
        mask = np.random.default_rng(4).random(100) < share
        for k in (1, 10, 200):
            expected = ranked(scores_of(rows, scales, query), k, np.flatnonzero(mask))
            assert_same(scan(rows, scales, query, k, mask, survivors=k + 3), expected)


@every_scan
def test_equal_scores_come_by_position(scan):
    rows, scales = np.ones((50, 8), np.int8), np.ones(50, np.float32)
    rows[30] = 2
    positions, _ = scan(rows, scales, np.ones(8, np.float32), 6, survivors=20)
    assert positions.tolist() == [30, 0, 1, 2, 3, 4]


@every_scan
def test_a_row_that_was_not_finite_never_wins(scan):
    floats = np.random.default_rng(1).standard_normal((9, 5)).astype(np.float32)
    floats[0, 2], floats[4, 0] = np.nan, np.inf
    positions, scores = scan(*reference.quantize_i8(floats), floats[1], 9, survivors=9)
    assert positions[-2:].tolist() == [0, 4]
    assert np.isneginf(scores[-2:]).all() and np.isfinite(scores[:-2]).all()


@every_scan
def test_a_query_that_is_not_finite_makes_all_equal(scan):
    rows, scales, query = whole_bytes(1, 9, 5)
    query[0] = np.nan
    positions, scores = scan(rows, scales, query, 3, survivors=4)
    assert positions.tolist() == [0, 1, 2] and np.isneginf(scores).all()


@every_scan
def test_a_query_of_zeros_and_no_rows_are_fine(scan):
    rows, scales, _ = whole_bytes(1, 9, 5)
    zeros = np.zeros(5, np.float32)
    assert_same(scan(rows, scales, zeros, 2, survivors=2), ([0, 1], [0, 0]))
    positions, scores = scan(rows[:0], scales[:0], zeros, 2, survivors=8)
    assert positions.shape == scores.shape == (0,)


@every_scan
def test_enough_survivors_find_what_the_floats_find(scan):
    """Two rows nearer to each other than the query's own rounding: only the second scan tells."""
    rng = np.random.default_rng(0)
    floats = rng.standard_normal((2000, 384)).astype(np.float32)
    rows, scales = reference.quantize_i8(floats)
    query = rng.standard_normal(384).astype(np.float32)
    exact = ranked(scores_of(rows, scales, query), 10)[0]
    assert scan(rows, scales, query, 10, survivors=200)[0].tolist() == exact
    one, _ = scan(rows, scales, query, 10, survivors=10)
    assert len(set(one.tolist()) & set(exact)) >= 8


@every_scan
@settings(max_examples=100)
@given(data=st.data())
def test_any_input_gives_the_defined_answer(scan, data):
    n, dim = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 70))
    k = data.draw(st.integers(1, 60))
    rows, scales, query = whole_bytes(data.draw(st.integers(0, 2**32)), n, dim)
    mask = None
    if data.draw(st.booleans()):
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), np.bool_)
    counted = range(n) if mask is None else np.flatnonzero(mask)
    expected = ranked(scores_of(rows, scales, query), k, counted)
    survivors = k + data.draw(st.integers(0, 9))
    assert_same(scan(rows, scales, query, k, mask, survivors=survivors), expected)


@needs_native
@pytest.mark.parametrize("dim", DIMS)
def test_every_instruction_set_keeps_the_same_survivors_to_the_bit(dim):
    from edgemem import _native

    rng = np.random.default_rng(dim)
    rows, scales = reference.quantize_i8(rng.standard_normal((300, dim)).astype(np.float32))
    query = rng.standard_normal(dim).astype(np.float32)
    quantized, scale = reference.quantize_i8(query[None])
    whole = (rows.astype(np.int64) @ quantized[0]).astype(np.float32) * (scales * scale[0])
    for isa in (0, 1):
        kept = np.empty(40, np.int64), np.empty(40, np.float32)
        best = np.empty(10, np.int64), np.empty(10, np.float32)
        _native.scan_topk_i8(
            rows, scales, query, quantized[0], scale[0], None, 10, isa, *kept, *best
        )
        assert_same(kept, ranked(whole, 40))


# -- dots_i8 ---------------------------------------------------------------------------------


@every_dots
@pytest.mark.parametrize("dim", DIMS)
def test_scattered_rows_give_the_defined_answer(dots, dim):
    rows, scales, query = whole_bytes(dim, 9, dim)
    positions = np.array([8, 0, 3, 3, 1], np.int64)
    queries = np.stack([query, query[::-1], -query, query + 1, query * 2])
    for q in (1, 2, 3, 5):
        out = dots(rows, scales, positions, queries[:q])
        exact = scales[positions, None] * (rows[positions].astype(np.float64) @ queries[:q].T)
        assert out.dtype == np.float32 and out.tolist() == exact.tolist()


@every_dots
def test_a_row_that_was_not_finite_gives_nan(dots):
    rows, scales = reference.quantize_i8(np.array([[np.nan, 1], [0, 0]], np.float32))
    out = dots(rows, scales, np.array([0, 1]), np.ones((2, 2), np.float32))
    assert np.isnan(out[0]).all() and not out[1].any()


@needs_native
@pytest.mark.parametrize("isa", [0, 1])
def test_a_row_scores_the_same_to_the_bit_in_a_scan_and_beside_any_query(isa):
    rng = np.random.default_rng(0)
    rows, scales = reference.quantize_i8(rng.standard_normal((50, 77)).astype(np.float32))
    queries = rng.standard_normal((3, 77)).astype(np.float32)
    positions, scores = native("scan_topk_i8", isa)(rows, scales, queries[0], 50, survivors=50)
    for q in (1, 2, 3):
        out = native("dots_i8", isa)(rows, scales, positions, queries[:q])
        assert out[:, 0].tolist() == scores.tolist()


# -- what is refused -------------------------------------------------------------------------

BYTES, SCALES = np.ones((3, 4), np.int8), np.ones(3, np.float32)
WIDE = np.zeros((0, kernels.MAX_DIM_I8 + 1), np.int8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": np.ones((3, 4), np.float32)}, "rows must be a 2-d int8 array, not 2-d float32"),
        ({"rows": WIDE}, "rows have 131072 columns; at most 131071 fit in int8"),
        ({"scales": np.ones(2, np.float32)}, "scales has 2 entries for 3 rows"),
        ({"scales": np.ones(3)}, "scales must be a 1-d float32 array, not 1-d float64"),
        ({"query": np.ones(5, np.float32)}, "query has 5 numbers, rows have 4"),
        ({"mask": np.ones(2, np.bool_)}, "mask has 2 entries for 3 rows"),
        ({"k": 0}, "k is 0; it must be 1 or more"),
        ({"survivors": 1}, "survivors is 1; it must be 2 or more"),
        ({"survivors": 2.5}, "survivors must be a whole number, not float"),
    ],
)
def test_wrong_input_to_the_scan_is_refused(change, message):
    right = {"rows": BYTES, "scales": SCALES, "query": np.ones(4, np.float32), "k": 2}
    assert kernels.scan_topk_i8(**right)[1].tolist() == [4, 4]
    with pytest.raises(ValueError) as error:
        kernels.scan_topk_i8(**{**right, **change})
    assert str(error.value).startswith(message)


def test_wrong_input_to_the_others_is_refused():
    queries = np.ones((2, 4), np.float32)
    assert kernels.dots_i8(BYTES, SCALES, np.array([2]), queries).tolist() == [[4, 4]]
    with pytest.raises(ValueError, match="positions are 3 to 3; there are 3 rows"):
        kernels.dots_i8(BYTES, SCALES, np.array([3]), queries)
    with pytest.raises(ValueError, match="scales has 2 entries for 3 rows"):
        kernels.dots_i8(BYTES, SCALES[:2], np.array([2]), queries)
    assert kernels.quantize_i8(queries)[1].tolist() == [np.float32(1) / np.float32(127)] * 2
    with pytest.raises(ValueError, match="at most 131071 fit in int8"):
        kernels.quantize_i8(np.zeros((0, kernels.MAX_DIM_I8 + 1), np.float32))
    with pytest.raises(ValueError, match="rows must be a 2-d float32 array, not 2-d int8"):
        kernels.quantize_i8(BYTES)


def test_a_k_beyond_any_row_count_is_fine():
    positions, _ = kernels.scan_topk_i8(BYTES, SCALES, np.ones(4, np.float32), 2**70)
    assert positions.tolist() == [0, 1, 2]


@needs_native
def test_the_native_module_checks_its_buffers_itself():
    from edgemem import _native

    query, quantized = np.ones(4, np.float32), np.ones(4, np.int8)
    one, two = ((np.empty(n, np.int64), np.empty(n, np.float32)) for n in (1, 2))
    with pytest.raises(ValueError, match="do not fit"):
        _native.scan_topk_i8(BYTES, SCALES, query, quantized, 1.0, None, 2, 0, *two, *one)
    with pytest.raises(ValueError, match="size"):
        _native.scan_topk_i8(BYTES, SCALES, query, quantized, 1.0, None, 2, 0, *one, *two)
    with pytest.raises(ValueError, match="do not fit"):
        _native.dots_i8(BYTES, SCALES[:2], np.array([0]), query[None], 0, query[None, :1])
    with pytest.raises(ValueError, match="do not fit"):
        _native.quantize_i8(query[None], BYTES, SCALES)

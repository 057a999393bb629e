"""Scans, products, scores and matches of rows: native and NumPy give the same answers."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from metrickit import cloud, dense_inverse, unit

from edgemem import kernels
from edgemem.kernels import NO_TOKENS
from edgemem.retrieval.metric import fit
from tests.kernelkit import (
    DIMS,
    NATIVE,
    assert_same,
    every_way,
    native,
    needs_native,
    numpy,
    ranked,
    whole_numbers,
)

every_scan = every_way("scan_topk", "scan")
every_dots = every_way("dots", "dots")
every_quantize = every_way("quantize_i8", "quantize")
every_rank = every_way("rank", "rank")
every_maxsim = every_way("maxsim", "maxsim")
every_query = every_way("metric_query", "query")
every_kind = pytest.mark.parametrize("kind", ["float32", "int8"])
every_isa = pytest.mark.parametrize("isa", [0, 1])


def table(kind, seed, n, dim):
    """Rows and their scales (None of float32), and a query; products are exact in any order.

    Of int8 rows the scales are powers of two, and the query is one that int8 holds exactly.
    """
    if kind == "float32":
        return whole_numbers(seed, n, dim), None, whole_numbers(seed + 1, dim)
    rng = np.random.default_rng(seed)
    rows = rng.integers(-127, 128, (n, dim)).astype(np.int8)
    scales = np.float32(2) ** rng.integers(-3, 4, n).astype(np.float32)
    query = rng.integers(-9, 10, dim).astype(np.float32)
    query[rng.integers(dim)] = 127
    return rows, scales, query


def held(kind, floats):
    """These floats as rows of that kind, and their scales."""
    return (floats, None) if kind == "float32" else numpy("quantize_i8")(floats)


def noise(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def products(rows, scales, queries):
    """The definition, in double precision."""
    found = rows.astype(np.float64) @ queries.astype(np.float64).T
    return found if scales is None else (found.T * scales).T


def answer(rows, scales, query, k, mask=None):
    counted = None if mask is None else np.flatnonzero(mask)
    return ranked(products(rows, scales, query), k, counted)


# -- scan_topk -------------------------------------------------------------------------------


@every_scan
@every_kind
@pytest.mark.parametrize("dim", DIMS)
def test_a_scan_of_every_width_gives_the_defined_answer_under_any_mask(scan, kind, dim):
    for n in (1, 2, 3, 7, 8, 9, 100):
        rows, scales, query = table(kind, dim * 1000 + n, n, dim)
        rows.flags.writeable = query.flags.writeable = False
        mask = np.random.default_rng(n).random(n) < 0.5
        for k, counted in product((1, 2, n, n + 5, 2**70), (None, mask)):
            found = scan(rows, query, k, counted, scales, survivors=k)
            assert_same(found, answer(rows, scales, query, k, counted))


@every_scan
@every_kind
@settings(max_examples=150)
@given(data=st.data())
def test_any_scan_gives_the_defined_answer(scan, kind, data):
    n, dim = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 70))
    k, seed = data.draw(st.integers(1, 60)), data.draw(st.integers(0, 2**32))
    rows, scales, query = table(kind, seed, n, dim)
    for row in data.draw(st.sets(st.integers(0, n - 1), max_size=5)) if n else ():
        if scales is None:
            rows[row, data.draw(st.integers(0, dim - 1))] = np.nan
        else:
            scales[row] = np.nan
    mask = None
    if data.draw(st.booleans()):
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), np.bool_)
    survivors = k + data.draw(st.integers(0, 9))
    found = scan(rows, query, k, mask, scales, survivors=survivors)
    assert_same(found, answer(rows, scales, query, k, mask))


@every_scan
@every_kind
def test_equal_scores_come_by_position(scan, kind):
    rows, scales = np.ones((50, 8), kind), None if kind == "float32" else np.ones(50, np.float32)
    rows[30] = 2
    positions, _ = scan(rows, np.ones(8, np.float32), 6, None, scales, survivors=20)
    assert positions.tolist() == [30, 0, 1, 2, 3, 4]


@every_scan
@every_kind
def test_a_row_that_was_not_finite_never_wins(scan, kind):
    floats = noise(1, 9, 5)
    floats[[0, 4], [2, 0]] = np.nan
    rows, scales = held(kind, floats)
    positions, scores = scan(rows, floats[1], 9, None, scales)
    assert positions[-2:].tolist() == [0, 4]
    assert np.isneginf(scores[-2:]).all() and np.isfinite(scores[:-2]).all()
    assert not {0, 4} & set(scan(rows, floats[1], 7, None, scales)[0].tolist())


@every_scan
@every_kind
def test_a_query_that_is_not_finite_makes_all_equal(scan, kind):
    rows, scales, query = table(kind, 1, 9, 5)
    query[0] = np.nan
    positions, scores = scan(rows, query, 3, None, scales, survivors=4)
    assert positions.tolist() == [0, 1, 2] and np.isneginf(scores).all()


@every_scan
@every_kind
def test_a_query_of_zeros_and_no_rows_are_fine(scan, kind):
    rows, scales, query = table(kind, 1, 9, 5)
    assert_same(scan(rows, query * 0, 2, None, scales, survivors=2), ([0, 1], [0, 0]))
    positions, scores = scan(rows[:0], query, 3, None, None if scales is None else scales[:0])
    assert positions.shape == scores.shape == (0,)
    assert positions.dtype == np.int64 and scores.dtype == np.float32


@every_scan
@pytest.mark.parametrize("dim", DIMS)
def test_fractions_agree_with_double_precision(scan, dim):
    rows, query = noise(dim, 200, dim), noise(dim + 1, dim)
    positions, scores = scan(rows, query, 20)
    exact = products(rows, None, query)
    np.testing.assert_allclose(scores, exact[positions], rtol=1e-4, atol=1e-4)
    assert np.all(np.diff(scores) <= 0)
    np.testing.assert_allclose(scores, np.sort(exact)[::-1][:20], rtol=1e-4, atol=1e-4)


@every_scan
def test_infinite_scores_are_ranked(scan):
    rows = np.array([[1.0], [np.inf], [-np.inf], [2.0]], np.float32)
    assert scan(rows, np.ones(1, np.float32), 4)[0].tolist() == [1, 3, 0, 2]


@every_isa
@every_kind
@pytest.mark.parametrize("module", [NATIVE, None])
def test_threads_share_the_arrays(monkeypatch, module, kind, isa):
    monkeypatch.setattr(kernels, "_native", module)
    monkeypatch.setattr(kernels, "isa", isa)
    rows, scales, query = table(kind, 7, 2000, 64)
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(
            lambda _: kernels.scan_topk(rows, query, 10, None, scales)[0].tolist(), range(80)
        )
    assert list(found) == [answer(rows, scales, query, 10)[0]] * 80


@every_scan
def test_the_largest_numbers_of_int8_do_not_overflow(scan):
    """128 · 128 · 131,071 is the largest sum that fits, and 127² · 2 would not in 16 bits."""
    scales = np.array([1, 2], np.float32)
    query = np.full(kernels.MAX_DIM_I8, -127, np.float32)
    for number in (127, -127, -128):
        rows = np.full((2, kernels.MAX_DIM_I8), number, np.int8)
        # One survivor: an overflow would turn the sign, and the other row would be kept.
        positions, scores = scan(rows, query, 1, None, scales, survivors=1)
        assert positions.tolist() == [1 if number < 0 else 0]
        expected = -127.0 * number * kernels.MAX_DIM_I8 * scales[positions]
        np.testing.assert_allclose(scores, expected, 1e-3)


@every_scan
def test_enough_survivors_find_what_the_floats_find(scan):
    """Two rows nearer to each other than the query's own rounding: only the second scan tells."""
    rows, scales = numpy("quantize_i8")(noise(0, 2000, 384))
    query = noise(1, 384)
    exact = answer(rows, scales, query, 10)[0]
    assert scan(rows, query, 10, None, scales, survivors=200)[0].tolist() == exact
    one, _ = scan(rows, query, 10, None, scales, survivors=10)
    assert len(set(one.tolist()) & set(exact)) >= 8


@needs_native
@every_isa
@pytest.mark.parametrize("dim", DIMS)
def test_every_instruction_set_keeps_the_same_survivors_to_the_bit(dim, isa):
    rows, scales = numpy("quantize_i8")(noise(dim, 300, dim))
    query = noise(dim + 1, dim)
    quantized, scale = numpy("quantize_i8")(query[None])
    whole = (rows.astype(np.int64) @ quantized[0]).astype(np.float32) * (scales * scale[0])
    kept, best = ((np.empty(n, np.int64), np.empty(n, np.float32)) for n in (40, 10))
    NATIVE.scan_topk_i8(rows, scales, query, quantized[0], scale[0], None, 10, isa, *kept, *best)
    assert_same(kept, ranked(whole, 40))


# -- dots ------------------------------------------------------------------------------------


@every_dots
@pytest.mark.parametrize("dim", DIMS)
def test_products_of_every_width_and_number_of_queries_are_as_defined(dots, dim):
    rows, _, query = table("float32", dim, 9, dim)
    positions = np.array([8, 0, 3, 3, 1], np.int64)
    queries = np.stack([query, query[::-1], -query, query + 1, query * 2])
    for q in (1, 2, 3, 4, 5):
        out = dots(rows, positions, queries[:q])
        assert out.dtype == np.float32 and out.flags.c_contiguous
        assert out.tolist() == products(rows, None, queries[:q])[positions].tolist()


@every_dots
@settings(max_examples=100)
@given(data=st.data())
def test_any_positions_give_the_defined_products(dots, data):
    n, dim = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 70))
    q, seed = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 2**32))
    chosen = data.draw(st.lists(st.integers(0, n - 1), max_size=60))
    rows, queries = whole_numbers(seed, n, dim), whole_numbers(seed + 1, q, dim)
    out = dots(rows, np.array(chosen, np.int64), queries)
    assert out.shape == (len(chosen), q)
    assert out.tolist() == products(rows, None, queries)[chosen].tolist()


@every_dots
def test_products_of_fractions_agree_with_double_precision(dots):
    rows, queries = noise(0, 50, 385), noise(1, 2, 385)
    positions = np.random.default_rng(2).integers(0, 50, 200)
    exact = products(rows, None, queries)[positions]
    np.testing.assert_allclose(dots(rows, positions, queries), exact, rtol=1e-4, atol=1e-4)


@every_dots
def test_nan_and_infinity_stay_what_they_are(dots):
    rows = np.array([[np.nan], [np.inf], [-np.inf], [3e38]], np.float32)
    queries = np.array([[1.0], [0.0], [10.0]], np.float32)
    nan, inf = np.nan, np.inf
    expected = [[nan, nan, nan], [inf, nan, inf], [-inf, nan, -inf], [3e38, 0.0, inf]]
    np.testing.assert_array_equal(dots(rows, np.arange(4), queries), np.float32(expected))


@needs_native
@every_isa
@pytest.mark.parametrize("dim", DIMS)
def test_a_row_scores_the_same_to_the_bit_in_a_scan_and_beside_any_query(isa, dim):
    """Else a candidate could change places between the scan and the re-ranking."""
    rows, queries = noise(dim, 20, dim), noise(dim + 1, 3, dim)
    positions, scores = native("scan_topk", isa)(rows, queries[0], 20)
    dots = native("dots", isa)
    for q in (1, 2, 3):
        assert dots(rows, positions, queries[:q])[:, 0].tolist() == scores.tolist()
    turned = np.ascontiguousarray(queries[::-1])
    assert dots(rows, positions, turned)[:, 2].tolist() == scores.tolist()


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
    rows = noise(dim, 20, dim)
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
    expected_of = numpy("quantize_i8")(rows)
    for found, expected in zip(kernels.quantize_i8(rows), expected_of, strict=True):
        np.testing.assert_array_equal(found, expected)


# -- rank ------------------------------------------------------------------------------------


@every_rank
@settings(max_examples=150)
@given(data=st.data())
def test_any_features_give_the_defined_scores_and_the_best(rank, data):
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


# -- maxsim ------------------------------------------------------------------------------------


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


# -- metric_query ------------------------------------------------------------------------------


def parts_of(metric):
    return metric.mean, metric.inverse_diagonal, metric.A.T


@every_query
@pytest.mark.parametrize("dim", DIMS[1:])
def test_a_query_costs_one_dot_product_a_row_from_then_on(query, dim):
    rows, asked = cloud(dim, 50, dim), cloud(99, 1, dim)
    metric = fit(rows)
    image, offset, norm = query(asked[0], *parts_of(metric))
    assert image.dtype == np.float32 and isinstance(offset, float) and isinstance(norm, float)
    H, q, mean, inverse = unit(rows), unit(asked)[0], metric.mean, dense_inverse(metric)
    scale = np.abs(inverse).max()
    np.testing.assert_allclose(
        H @ image + offset, (H - mean) @ inverse @ (q - mean), atol=2e-6 * scale
    )
    np.testing.assert_allclose(norm, np.sqrt((q - mean) @ inverse @ (q - mean)), rtol=1e-4)
    longer, _, _ = query(asked[0] * np.float32(1024), *parts_of(metric))
    np.testing.assert_array_equal(longer, image)


@every_query
def test_a_query_without_a_direction_scores_nothing(query):
    metric = fit(cloud(0, 30, 5))
    for asked in ([0, 0, 0, 0, 0], [1, np.nan, 0, 0, 0], [1, 0, np.inf, 0, 0]):
        image, offset, norm = query(np.array(asked, np.float32), *parts_of(metric))
        assert not image.any() and offset == norm == 0


@every_query
def test_a_query_that_is_the_mean_has_no_norm(query):
    row = cloud(0, 1, 9)
    metric = fit(row)
    assert query(row[0], *parts_of(metric))[2] == 0
    assert query(row[0][::-1].copy(), *parts_of(metric))[2] > 0

"""The metric against dense linear algebra, and its defined cases."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from metrickit import assert_same_metric, cloud, dense_inverse, dense_sigma, parts, seeds, unit
from threadpoolctl import threadpool_info

from bench.hubness import (
    centred_inner_product,
    norms_of,
    residual_fusion,
    squared_distance,
    whitened_cosine,
)
from edgemem.kernels import ZERO_LENGTH, one_blas_thread
from edgemem.retrieval import metric as module
from edgemem.retrieval.metric import Metric, fit


def fit_up_to(H, *, tau, max_rank=100, c=3.0):
    with patch.multiple(module, TAU=tau, MAX_RANK=max_rank):
        return fit(H, c=c)


def rounding(q, norms):
    """How far float32 may take an inner product from its exact value."""
    return float(1e-4 * q.norm * norms.max() + 1e-6 * np.linalg.norm(q.image))


@example(384, 50, 384, 3, 0.9, 40)
@given(
    seeds,
    st.integers(2, 60),
    st.integers(2, 33),
    st.floats(0.5, 20),
    st.floats(0.1, 1),
    st.integers(0, 40),
)
def test_it_is_the_inverse_of_sigma(seed, n, d, c, tau, max_rank):
    H = cloud(seed, n, d)
    metric = fit_up_to(H, c=c, tau=tau, max_rank=max_rank)
    mean, variance, ridge, _, M = parts(H, c)
    expected = np.linalg.inv(dense_sigma(H, c, metric.rank))
    np.testing.assert_allclose(dense_inverse(metric), expected, atol=2e-5 * np.abs(expected).max())
    np.testing.assert_allclose(metric.mean, mean, atol=1e-6)
    np.testing.assert_allclose(metric.inverse_diagonal, 1 / (variance + ridge), rtol=1e-5)
    assert metric.count == n and len(metric.mean) == d

    share = np.cumsum(M) / M.sum()
    most = min(max_rank, n - 1, d)
    assert metric.rank == most or share[metric.rank - 1] >= tau - 1e-9
    assert metric.rank <= most
    assert metric.rank < 2 or share[metric.rank - 2] < tau + 1e-9


def test_algorithm_1_line_11_is_not_the_inverse_and_line_15_finds_nothing_with_it():
    H = cloud(7, 300, 24)
    metric = fit(H)
    r = metric.rank
    mean, variance, ridge, Vt, M = parts(H, 3)
    D = variance + ridge
    for printed_M in (M[:r], M[:r] + ridge):  # without line 10's λ, and with it
        P = (Vt[:r].T / D[:, None]) / printed_M
        printed = np.diag(1 / D) - P @ P.T
        sigma = (Vt[:r].T * printed_M) @ Vt[:r] + np.diag(D)
        assert np.abs(printed @ sigma - np.eye(24)).max() > 10
        assert np.linalg.eigvalsh(printed).min() < 0  # so no metric at all

        X = unit(H)
        scores = (X - mean) @ printed @ (X - mean).T
        assert (scores.argmax(axis=1) == np.arange(300)).mean() < 0.1

    exact = dense_inverse(metric)
    assert np.abs(exact @ dense_sigma(H, 3, r) - np.eye(24)).max() < 1e-4
    assert np.linalg.eigvalsh(exact).min() > 0
    norms = norms_of(metric, X.astype(np.float32))
    found = [whitened_cosine(X @ q.image, q, norms).argmax() for q in (metric.query(h) for h in H)]
    assert found == list(range(300))


@given(seeds, st.integers(2, 50), st.integers(2, 33), st.floats(0, 1))
def test_every_form_equals_its_dense_formula(seed, n, d, alpha):
    H = cloud(seed, n, d)
    q = cloud(seed + 1, 1, d)[0]
    X = unit(H).astype(np.float32)
    metric = fit(H)
    ready = metric.query(q)
    dots, norms = X @ ready.image, norms_of(metric, X)

    mean = parts(H, 3)[0]
    inverse = np.linalg.inv(dense_sigma(H, 3, metric.rank))
    exact_q, exact_rows = unit(q[None])[0] - mean, unit(H) - mean
    inner = exact_rows @ inverse @ exact_q
    norm_q = np.sqrt(exact_q @ inverse @ exact_q)
    norm_h = np.sqrt(np.einsum("ij,jk,ik->i", exact_rows, inverse, exact_rows))
    gap = exact_rows - exact_q
    squared = np.einsum("ij,jk,ik->i", gap, inverse, gap)
    slack = rounding(ready, norms)
    np.testing.assert_allclose(centred_inner_product(dots, ready), inner, atol=slack)
    np.testing.assert_allclose(squared_distance(dots, ready, norms), squared, atol=3 * slack)
    assert ready.norm == pytest.approx(norm_q, rel=1e-4)
    lengths = norm_q * norm_h
    clear = lengths > 100 * slack
    cosines = whitened_cosine(dots, ready, norms)
    np.testing.assert_allclose(cosines[clear], (inner / lengths)[clear], atol=0.02)

    plain = X @ unit(q[None])[0]
    a, b = ((x - x.min()) / np.ptp(x) for x in (plain, inner))
    fused = residual_fusion(plain, centred_inner_product(dots, ready), alpha)
    tolerance = 1e-6 / np.ptp(plain) + 4 * slack / np.ptp(inner)
    np.testing.assert_allclose(fused, alpha * a + (1 - alpha) * b, atol=tolerance)


def test_alpha_weighs_the_cosine():
    cosine, metric = np.array([0.2, 0.6, 0.4]), np.array([9.0, 5.0, 5.0])
    assert residual_fusion(cosine, metric, 1.0).tolist() == pytest.approx([0, 1, 0.5])
    assert residual_fusion(cosine, metric, 0.0).tolist() == [1, 0, 0]
    assert residual_fusion(cosine, metric, 0.25).tolist() == pytest.approx([0.75, 0.25, 0.125])


def test_fusion_of_equal_of_no_and_of_broken_scores_is_defined():
    assert residual_fusion(np.ones(3), np.zeros(3)).tolist() == [0, 0, 0]
    assert residual_fusion(np.empty(0), np.empty(0)).tolist() == []
    broken = np.array([np.nan, 1.0, 3.0, np.inf, -np.inf])
    assert residual_fusion(broken, broken).tolist() == [0, 0, 1, 0, 0]
    with pytest.raises(ValueError, match=r"^alpha is 1\.5; the cosine's weight must be 0 to 1$"):
        residual_fusion(np.ones(2), np.ones(2), 1.5)
    with pytest.raises(ValueError, match=r"^cosine has shape \(2,\), metric \(3,\)$"):
        residual_fusion(np.ones(2), np.ones(3))


def test_lengths_of_rows_and_query_do_not_count():
    H = cloud(3, 40, 9)
    longer = H * np.geomspace(1e-20, 1e15, 40, dtype=np.float32)[:, None]
    a, b = fit(H), fit(longer)
    np.testing.assert_allclose(dense_inverse(a), dense_inverse(b), rtol=1e-3, atol=1e-3)
    q = cloud(4, 1, 9)[0]
    np.testing.assert_allclose(a.query(q).image, a.query(q * 1e30).image, rtol=1e-3, atol=1e-4)


# -- defined cases ---------------------------------------------------------------------------


def assert_identity_around(metric, mean, count):
    assert metric.count == count and metric.rank == 0
    assert metric.inverse_diagonal.tolist() == [1] * len(mean)
    np.testing.assert_allclose(metric.mean, mean, atol=1e-7)


def test_of_no_rows_all_forms_are_those_of_the_plain_vectors():
    metric = fit(np.empty((0, 4), np.float32))
    assert_identity_around(metric, np.zeros(4), 0)
    X = unit(cloud(1, 10, 4)).astype(np.float32)
    q = metric.query(X[0] * 5)
    dots, norms = X @ q.image, norms_of(metric, X)
    np.testing.assert_allclose(centred_inner_product(dots, q), X @ X[0], atol=1e-6)
    np.testing.assert_allclose(whitened_cosine(dots, q, norms), X @ X[0], atol=1e-6)
    np.testing.assert_allclose(
        squared_distance(dots, q, norms), ((X - X[0]) ** 2).sum(1), atol=1e-6
    )


def test_rows_without_a_direction_are_left_out():
    H = cloud(1, 30, 6)
    broken = np.vstack([H, np.full((1, 6), np.nan), np.zeros((1, 6)), H[:1], H[:1]])
    broken[-1, 2] = np.inf
    broken[-2, 3] = np.nan
    assert_same_metric(fit(broken), fit(H))
    assert fit(broken).count == 30
    assert_identity_around(fit(broken[30:]), np.zeros(6), 0)


@pytest.mark.parametrize("d", [1, 5, 384])
@pytest.mark.parametrize("n", [1, 2, 1000])
def test_equal_rows_give_the_identity_around_them_and_score_0(n, d):
    row = cloud(d, 1, d)
    metric = fit(np.repeat(row, n, axis=0))
    assert_identity_around(metric, unit(row)[0], n)
    X = unit(np.repeat(row, n, axis=0)).astype(np.float32)
    assert norms_of(metric, X).tolist() == [0] * n
    q = metric.query(cloud(d + 1, 1, d)[0])
    assert whitened_cosine(X @ q.image, q, norms_of(metric, X)).tolist() == [0] * n


def test_one_dimension_has_two_directions():
    metric = fit(np.array([[2.0], [-3.0], [-1.0], [-9.0]]))
    assert metric.rank == 1
    variance = 1 - 0.5**2  # of +1, -1, -1, -1; once in M_r, once in D, three times as ridge
    assert dense_inverse(metric)[0, 0] == pytest.approx(1 / (5 * variance), rel=1e-6)


def test_equal_and_absent_eigenvalues_are_fine():
    flat = np.zeros((30, 9))
    flat[:, [2, 5]] = cloud(1, 30, 2)
    for H, rank in ((np.eye(16), 15), (flat, 2)):
        metric = fit_up_to(H, tau=1)
        assert metric.rank >= rank
        expected = np.linalg.inv(dense_sigma(H, 3, rank))
        np.testing.assert_allclose(dense_inverse(metric), expected, atol=1e-5 * expected.max())


@pytest.mark.parametrize(("off", "is_zero"), [(0, True), (0.5, True), (100, False)])
def test_a_query_or_a_row_within_rounding_of_the_mean_has_norm_0(off, is_zero):
    a, b = np.eye(3)[:2]
    metric = Metric(9, np.float32(a), np.float32([4, 1, 1]), np.empty((3, 0), np.float32))
    vector = a + 2 * off * ZERO_LENGTH * b  # max(D⁻¹) is 4: off = 1 is the limit
    q, norms = metric.query(vector), norms_of(metric, np.float32(vector)[None])
    assert (q.norm == 0) == (norms[0] == 0) == is_zero
    assert whitened_cosine(np.float32(vector)[None] @ q.image, q, norms)[0] == (0 if is_zero else 1)


def test_a_square_that_rounding_makes_negative_is_0():
    just_more_than_1 = np.nextafter(np.ones((1, 1), np.float32), np.float32(2))
    metric = Metric(9, np.zeros(1, np.float32), np.ones(1, np.float32), just_more_than_1)
    assert metric.query(np.ones(1)).norm == 0
    assert norms_of(metric, np.ones((1, 1), np.float32)).tolist() == [0]


@given(seeds, st.integers(2, 50), st.integers(2, 33))
def test_a_row_asked_for_is_its_own_nearest_and_no_form_leaves_its_range(seed, n, d):
    H = cloud(seed, n, d)
    X = unit(H).astype(np.float32)
    metric = fit(H)
    norms = norms_of(metric, X)
    for i in range(n):
        q = metric.query(X[i])
        distances = squared_distance(X @ q.image, q, norms)
        cosines = whitened_cosine(X @ q.image, q, norms)
        assert distances.min() >= 0 and np.abs(cosines).max() <= 1
        slack = rounding(q, norms)
        assert distances[i] <= 3 * slack
        assert q.norm**2 < 100 * slack or cosines[i] == pytest.approx(1, abs=0.02)


@example(1019, 6, 6)  # the covariance has an eigenvalue just below 0
@given(seeds, st.integers(2, 6), st.integers(2, 30))
def test_repeated_rows_span_no_more_than_once(seed, distinct, times):
    H = np.repeat(cloud(seed, distinct, 50), times, axis=0)
    metric = fit_up_to(H, tau=1, max_rank=50)
    expected = np.linalg.inv(dense_sigma(H, 3, distinct - 1))
    np.testing.assert_allclose(dense_inverse(metric), expected, atol=1e-4 * expected.max())


def test_a_broken_row_scores_least_and_never_nan():
    H = cloud(1, 30, 6)
    X = unit(H).astype(np.float32)
    X[3, 2] = np.nan
    metric = fit(H)
    q = metric.query(H[0])
    dots, norms = X @ q.image, norms_of(metric, X)
    assert norms[3] == 0 and (norms[:3] > 0).all()
    assert centred_inner_product(dots, q)[3] == -np.inf
    assert squared_distance(dots, q, norms)[3] == np.inf
    assert whitened_cosine(dots, q, norms)[3] == 0


@settings(max_examples=200)
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(0, 8), st.integers(1, 5)),
        elements=st.floats(width=32) | st.sampled_from([0.0, 1.0, -1.0, 1e-45, 3e38]),
    ),
    st.floats(0.001, 1000),
)
def test_no_nan_ever_comes_out(H, c):
    metric = fit(H, c=c)
    assert np.isfinite(metric.mean).all() and np.isfinite(metric.A).all()
    assert np.isfinite(metric.inverse_diagonal).all() and (metric.inverse_diagonal > 0).all()
    norms = norms_of(metric, H)
    assert np.isfinite(norms).all() and (norms >= 0).all()
    for row in H:
        q = metric.query(row)
        assert np.isfinite(q.image).all() and np.isfinite([q.offset, q.norm]).all()
        with np.errstate(all="ignore"):
            dots = H @ q.image
            for scores in (
                centred_inner_product(dots, q),
                squared_distance(dots, q, norms),
                whitened_cosine(dots, q, norms),
                residual_fusion(dots, centred_inner_product(dots, q)),
            ):
                assert not np.isnan(scores).any()


@pytest.mark.parametrize(("wrong", "named"), [(0, "0"), (float("nan"), "nan"), (1e4, "10000.0")])
def test_a_wrong_ridge_is_named(wrong, named):
    with pytest.raises(ValueError) as raised:
        fit(cloud(1, 5, 3), c=wrong)
    message = f"c is {named}; the ridge's factor must be 0.001 to 1000 (paper: 10)"
    assert str(raised.value) == message


def test_a_wrong_shape_is_named():
    with pytest.raises(ValueError) as raised:
        fit(np.ones(3))
    assert str(raised.value) == "rows have shape (3,); (n, d) is needed"
    with pytest.raises(ValueError):
        fit(cloud(1, 5, 3)).query(np.ones(4))


def test_a_fit_takes_one_thread_of_blas_and_puts_back_what_there_was(monkeypatch):
    """Its threads wait without sleep: a first search took 2.6 s where others had the cores."""

    def threads():
        return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]

    before, during, eigh = threads(), [], np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda C: during.extend(threads()) or eigh(C))
    with one_blas_thread():
        fit(cloud(1, 20, 6))
        assert set(threads()) == {1} == set(during)
    assert threads() == before

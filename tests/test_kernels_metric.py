"""The low-rank metric: native, NumPy and a dense solve in double precision agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemem.retrieval.metric import Metric
from edgemem.retrieval.metric import fit as numpy_metric
from tests.kernelkit import DIMS, NATIVE, every_way, needs_native


def numpy_fit(rows, c, tau, max_rank):
    metric = numpy_metric(rows, c=c, tau=tau, max_rank=max_rank)
    directions = np.ascontiguousarray(metric.A.T)
    return metric.count, metric.mean, metric.inverse_diagonal, directions


def native_fit(isa):
    def fit(rows, c, tau, max_rank):
        dim = rows.shape[1]
        most = min(max_rank, dim)
        mean, inverse_diagonal = np.empty(dim, np.float32), np.empty(dim, np.float32)
        directions = np.empty((most, dim), np.float32)
        workspace = np.empty(NATIVE.metric_workspace(dim, most))
        rank, count = NATIVE.metric_fit(
            rows, c, tau, isa, workspace, mean, inverse_diagonal, directions
        )
        return count, mean, inverse_diagonal, directions[:rank].copy()

    return fit


def numpy_norms(rows, mean, inverse_diagonal, directions):
    return Metric(0, mean, inverse_diagonal, directions.T).norms(rows)


def native_norms(isa):
    def norms(rows, *metric):
        out, workspace = np.empty(len(rows), np.float32), np.empty(8 * rows.shape[1], np.float32)
        NATIVE.metric_norms(rows, *metric, isa, workspace, out)
        return out

    return norms


def every(argument, numpy, native):
    ways = [
        pytest.param(numpy, id="numpy"),
        pytest.param(native(0), id="native-best", marks=needs_native),
        pytest.param(native(1), id="native-scalar", marks=needs_native),
    ]
    return pytest.mark.parametrize(argument, ways)


every_fit = every("fit", numpy_fit, native_fit)
every_query = every_way("metric_query", "query")
every_norms = every("norms", numpy_norms, native_norms)


def embeddings(seed, n, d, factors=5):
    """What embeddings look like: a common mean, a few strong directions, some noise."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, factors)) @ rng.standard_normal((factors, d))
    return (rows + 0.3 * rng.standard_normal((n, d)) + 1.0).astype(np.float32)


def unit(rows):
    rows = rows.astype(np.float64)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def dense(rows, c, tau, max_rank):
    """Mean, the inverse of Σ by a dense solve, and r: the definition, by the SVD of the paper."""
    H = unit(rows)
    centred = H - H.mean(axis=0)
    variance = centred.var(axis=0)
    _, s, Vt = np.linalg.svd(centred, full_matrices=False)
    share = np.cumsum(s**2) / (s**2).sum()
    r = min(int(np.searchsorted(share, tau)) + 1, max_rank, len(H) - 1, H.shape[1])
    U, M = Vt[:r].T, s[:r] ** 2 / len(H)
    sigma = U @ np.diag(M) @ U.T + np.diag(variance + c * variance.mean())
    return H.mean(axis=0), np.linalg.inv(sigma), r


def inverse_of(metric):
    _, _, inverse_diagonal, directions = metric
    A = directions.T.astype(np.float64)
    return np.diag(inverse_diagonal.astype(np.float64)) - A @ A.T


# -- metric_fit ------------------------------------------------------------------------------


@every_fit
@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 60),
    d=st.integers(2, 40),
    c=st.sampled_from([0.1, 3.0, 10.0]),
    tau=st.sampled_from([0.001, 0.5, 0.9501]),
    max_rank=st.integers(0, 50),
    seed=st.integers(0, 2**32),
)
def test_a_fit_is_the_exact_inverse(fit, n, d, c, tau, max_rank, seed):
    rows = embeddings(seed, n, d)
    mean, inverse, r = dense(rows, c, tau, max_rank)
    count, *metric = fit(rows, c, tau, max_rank)
    assert count == n and metric[2].shape == (r, d)
    assert all(part.dtype == np.float32 and part.flags.c_contiguous for part in metric)
    np.testing.assert_allclose(metric[0], mean, atol=1e-6)
    np.testing.assert_allclose(
        inverse_of((count, *metric)), inverse, rtol=1e-4, atol=1e-5 * np.abs(inverse).max()
    )


@needs_native
@pytest.mark.parametrize("isa", [0, 1])
@pytest.mark.parametrize("dim", DIMS)
def test_native_fits_what_numpy_fits(dim, isa):
    rows = embeddings(dim, 203, dim)
    expected = numpy_fit(rows, 3.0, 0.9501, 100)
    found = native_fit(isa)(rows, 3.0, 0.9501, 100)
    assert found[0] == expected[0] and found[3].shape == expected[3].shape
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-6)
    scale = np.abs(expected[2]).max()
    np.testing.assert_allclose(
        inverse_of(found), inverse_of(expected), rtol=1e-5, atol=1e-6 * scale
    )


@every_fit
def test_the_spectrum_of_embeddings_that_fill_all_directions_is_right(fit):
    """No strong directions at all: many eigenvalues that lie close together."""
    rows = np.random.default_rng(0).standard_normal((900, 200)).astype(np.float32)
    _, inverse, r = dense(rows, 3.0, 0.3, 200)
    metric = fit(rows, 3.0, 0.3, 200)
    assert metric[3].shape == (r, 200)
    np.testing.assert_allclose(inverse_of(metric), inverse, atol=1e-5 * np.abs(inverse).max())


@every_fit
def test_one_dimension_is_fine(fit):
    """Unit rows are 1 and -1 then: variance 1, twice in Σ, and the ridge of 3."""
    metric = fit(np.array([[2], [-7], [1], [-1]], np.float32), 3.0, 0.95, 100)
    assert metric[3].shape == (1, 1)
    np.testing.assert_allclose(inverse_of(metric), [[1 / 5]], rtol=1e-6)


@every_fit
def test_equal_eigenvalues_are_fine(fit):
    rows = np.eye(16, dtype=np.float32)
    _, inverse, _ = dense(rows, 3.0, 1.0, 16)
    metric = fit(rows, 3.0, 1.0, 16)
    assert metric[3].shape == (15, 16)
    np.testing.assert_allclose(inverse_of(metric), inverse, atol=1e-5 * inverse.max())


@every_fit
def test_dimensions_that_are_always_zero_are_fine(fit):
    rows = np.zeros((30, 9), np.float32)
    rows[:, [2, 5]] = embeddings(1, 30, 2)
    _, inverse, _ = dense(rows, 3.0, 0.95, 100)
    np.testing.assert_allclose(inverse_of(fit(rows, 3.0, 0.95, 100)), inverse, rtol=1e-4, atol=1e-6)


@every_fit
def test_no_rows_give_the_identity(fit):
    count, mean, inverse_diagonal, directions = fit(np.empty((0, 4), np.float32), 3.0, 0.95, 9)
    assert count == 0 and directions.shape == (0, 4)
    assert mean.tolist() == [0] * 4 and inverse_diagonal.tolist() == [1] * 4


@every_fit
def test_one_row_or_equal_rows_give_the_identity_around_them(fit):
    row = embeddings(0, 1, 7)
    for rows in (row, np.repeat(row, 50, axis=0), row * np.float32([[1], [2], [3e-30], [1e30]])):
        count, mean, inverse_diagonal, directions = fit(rows, 3.0, 0.95, 9)
        assert count == len(rows) and directions.shape == (0, 7)
        np.testing.assert_allclose(mean, unit(row)[0], rtol=1e-6)
        assert inverse_diagonal.tolist() == [1] * 7


@every_fit
def test_rows_without_a_direction_take_no_part(fit):
    rows = embeddings(0, 20, 9)
    bad = np.zeros((4, 9), np.float32)
    bad[1, 3], bad[2, 0], bad[3, 8] = np.nan, np.inf, -np.inf
    mixed = np.concatenate([bad[:2], rows[:11], bad[2:], rows[11:]])
    expected, found = fit(rows, 3.0, 0.95, 9), fit(mixed, 3.0, 0.95, 9)
    assert found[0] == 20 and fit(bad, 3.0, 0.95, 9)[0] == 0
    np.testing.assert_allclose(inverse_of(found), inverse_of(expected), rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)


@every_fit
def test_the_rank_is_at_most_the_rows_but_one_the_dimension_and_what_is_asked(fit):
    assert fit(embeddings(0, 4, 30), 3.0, 1.0, 100)[3].shape == (3, 30)
    assert fit(embeddings(0, 40, 6), 3.0, 1.0, 100)[3].shape == (6, 6)
    assert fit(embeddings(0, 40, 30), 3.0, 1.0, 2)[3].shape == (2, 30)
    assert fit(embeddings(0, 40, 30), 3.0, 0.95, 0)[3].shape == (0, 30)


@every_fit
def test_the_length_of_rows_does_not_matter(fit):
    rows = embeddings(0, 40, 12)
    scaled = rows * np.float32(2) ** np.arange(-20, 20, dtype=np.float32)[:, None]
    for part, same in zip(
        fit(rows, 3.0, 0.95, 9)[1:3], fit(scaled, 3.0, 0.95, 9)[1:3], strict=True
    ):
        np.testing.assert_allclose(part, same, rtol=1e-6)


# -- metric_query and metric_norms -----------------------------------------------------------


def fitted(seed, n, d):
    rows = embeddings(seed, n, d)
    return rows, numpy_fit(rows, 3.0, 0.95, 100)


@every_query
@pytest.mark.parametrize("dim", DIMS[1:])
def test_a_query_costs_one_dot_product_a_row_from_then_on(query, dim):
    rows, metric = fitted(dim, 50, dim)
    asked = embeddings(99, 1, dim)[0]
    image, offset, norm = query(asked, *metric[1:])
    assert image.dtype == np.float32 and isinstance(offset, float) and isinstance(norm, float)
    H, q, mean, inverse = unit(rows), unit(asked), metric[1].astype(np.float64), inverse_of(metric)
    scale = np.abs(inverse).max()
    np.testing.assert_allclose(
        H @ image + offset, (H - mean) @ inverse @ (q - mean), atol=2e-6 * scale
    )
    np.testing.assert_allclose(norm, np.sqrt((q - mean) @ inverse @ (q - mean)), rtol=1e-4)
    longer, _, _ = query(asked * np.float32(1024), *metric[1:])
    np.testing.assert_array_equal(longer, image)


@every_query
def test_a_query_without_a_direction_scores_nothing(query):
    _, metric = fitted(0, 30, 5)
    for asked in ([0, 0, 0, 0, 0], [1, np.nan, 0, 0, 0], [1, 0, np.inf, 0, 0]):
        image, offset, norm = query(np.array(asked, np.float32), *metric[1:])
        assert not image.any() and offset == norm == 0


@every_query
def test_a_query_that_is_the_mean_has_no_norm(query):
    row = embeddings(0, 1, 9)
    metric = numpy_fit(row, 3.0, 0.95, 9)
    assert query(row[0], *metric[1:])[2] == 0
    assert query(row[0][::-1].copy(), *metric[1:])[2] > 0


@every_norms
@pytest.mark.parametrize("dim", DIMS[1:])
def test_norms_are_those_of_the_dense_metric(norms, dim):
    rows, metric = fitted(dim, 50, dim)
    H, mean, inverse = unit(rows), metric[1].astype(np.float64), inverse_of(metric)
    exact = np.sqrt(np.einsum("ij,jk,ik->i", H - mean, inverse, H - mean))
    for n in (0, 1, 2, 3, 49, 50):
        found = norms(H[:n].astype(np.float32), *metric[1:])
        assert found.dtype == np.float32 and found.shape == (n,)
        np.testing.assert_allclose(found, exact[:n], rtol=1e-3, atol=1e-4 * exact.max())


@every_norms
def test_rows_that_are_not_finite_or_are_the_mean_have_no_norm(norms):
    _, metric = fitted(0, 30, 9)
    rows = np.stack([metric[1]] * 6)
    rows[1, 3], rows[2, 0], rows[3, 8], rows[5, 1] = np.nan, np.inf, 3e38, metric[1][1] + 0.5
    rows[4] = np.nextafter(metric[1], np.float32(1))
    found = norms(rows, *metric[1:])
    assert found[:5].tolist() == [0, 0, 0, 0, 0] and found[5] > 0


@every_norms
def test_a_metric_of_rank_0_is_its_diagonal(norms):
    mean, directions = np.zeros(3, np.float32), np.empty((0, 3), np.float32)
    found = norms(np.eye(3, dtype=np.float32), mean, np.array([1, 4, 9], np.float32), directions)
    assert found.tolist() == [1, 2, 3]


@needs_native
@pytest.mark.parametrize("isa", [0, 1])
def test_a_row_has_the_same_norm_whichever_row_is_beside_it(isa):
    rows, metric = fitted(0, 50, 77)
    H = unit(rows).astype(np.float32)
    together = native_norms(isa)(H, *metric[1:])
    alone = [native_norms(isa)(H[i : i + 1], *metric[1:])[0] for i in range(50)]
    assert together.tolist() == [float(norm) for norm in alone]


# -- what is refused -------------------------------------------------------------------------


@needs_native
@pytest.mark.parametrize(
    ("c", "tau"), [(0.0, 0.9), (np.inf, 0.9), (np.nan, 0.9), (3.0, 0.0), (3.0, 1.5), (3.0, np.nan)]
)
def test_the_native_module_refuses_what_no_metric_can_be_fitted_with(c, tau):
    with pytest.raises(ValueError, match="a parameter outside its range"):
        native_fit(0)(embeddings(0, 20, 4), c, tau, 3)

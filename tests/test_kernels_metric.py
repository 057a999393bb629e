"""A query through the metric: native, NumPy and the dense inverse in double precision agree."""

from __future__ import annotations

import numpy as np
import pytest
from metrickit import cloud, dense_inverse, unit

from edgemem.retrieval.metric import fit
from tests.kernelkit import DIMS, every_way

every_query = every_way("metric_query", "query")


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

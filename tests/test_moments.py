"""Running moments: whatever came and went, they fit what a fresh fit fits."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metrickit import assert_same_metric, cloud, seeds, unit

from edgemem.retrieval.metric import Moments, fit


@settings(deadline=None)
@given(seeds, st.integers(3, 40), st.lists(st.integers(1, 30), max_size=5), st.integers(2, 17))
def test_moments_after_any_adds_removes_and_merges_equal_a_fresh_fit(seed, n, others, d):
    H = cloud(seed, n, d)
    moments, elsewhere = Moments(d), Moments(d)
    passing = [cloud(seed + i + 1, size, d) for i, size in enumerate(others)]
    for rows in passing:
        moments.add(rows)
    moments.add(H[: n // 2])
    elsewhere.add(H[n // 2 :])
    for rows in reversed(passing):
        moments.remove(rows)
    moments.merge(elsewhere)
    assert elsewhere.count == n - n // 2
    assert_same_metric(moments.fit(), fit(H))
    assert_same_metric(moments.fit(c=10, tau=0.5, max_rank=2), fit(H, c=10, tau=0.5, max_rank=2))


def test_a_thousand_changes_do_not_drift():
    H = cloud(1, 60, 12)
    moments = Moments(12)
    moments.add(H)
    for i in range(1000):
        rows = cloud(i, 5, 12)
        moments.add(rows)
        moments.remove(rows)
    assert_same_metric(moments.fit(), fit(H))


def test_moments_give_count_sum_and_scatter_of_the_unit_rows():
    H = cloud(2, 20, 5)
    moments = Moments(5)
    moments.add(H)
    assert moments.count == 20
    np.testing.assert_allclose(moments.sum, unit(H).sum(0))
    np.testing.assert_allclose(moments.scatter, unit(H).T @ unit(H))


def test_removing_the_last_row_leaves_nothing():
    H = cloud(2, 20, 5)
    moments = Moments(5)
    moments.add(H)
    moments.remove(H[::-1])
    assert moments.count == 0 and not moments.sum.any() and not moments.scatter.any()
    assert moments.fit().to_bytes() == fit(H[:0]).to_bytes()


def test_removing_more_than_is_held_is_refused_and_changes_nothing():
    moments = Moments(5)
    moments.add(cloud(2, 3, 5))
    before = moments.scatter
    with pytest.raises(ValueError, match=r"^4 rows to remove, but only 3 are held$"):
        moments.remove(cloud(3, 4, 5))
    assert moments.count == 3 and moments.scatter is before


def test_a_fit_in_another_thread_sees_the_rows_before_a_change_or_after_it():
    H, more = cloud(1, 30, 6), cloud(2, 20, 6)
    moments = Moments(6)
    moments.add(H)
    seen, done = [], threading.Event()

    def fit_on_and_on():
        while not done.is_set():
            seen.append(moments.fit())

    thread = threading.Thread(target=fit_on_and_on)
    thread.start()
    for _ in range(300):
        moments.add(more)
        moments.remove(more)
    done.set()
    thread.join()
    assert seen
    fresh = {30: fit(H), 50: fit(np.vstack([H, more]))}
    for metric in seen:
        assert_same_metric(metric, fresh[metric.count])

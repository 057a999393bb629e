"""Which metric a search uses: when one is fitted, by whom, and what it forgets."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from metrickit import assert_same_metric, cloud

from edgemem.retrieval import metric as metric_module
from edgemem.retrieval.metric import EVERYBODY, KEPT, MIN_VECTORS, REFIT_SHARE, Whitening
from edgemem.retrieval.vectors import Rows, VectorSubset

D = 12
ROWS = cloud(1, 2000, D)


def of(some):
    """What the table would give: these rows, each with its position as its label."""
    positions = np.asarray(some, np.int64)
    return lambda: VectorSubset(Rows(ROWS), positions, positions)


def never():
    raise AssertionError("the vectors were asked for")


@pytest.fixture
def whitening():
    return Whitening()


def test_few_vectors_make_no_metric_and_enough_make_theirs(whitening):
    assert whitening.get(1, 1, of(range(MIN_VECTORS - 1))) is None
    found = whitening.get(1, 2, of(range(MIN_VECTORS)))
    assert_same_metric(found, metric_module.fit(ROWS[:MIN_VECTORS]))
    assert whitening.get(1, 3, of(range(MIN_VECTORS - 1))) is None


def test_vectors_are_looked_at_only_when_the_store_has_moved(whitening):
    assert whitening.get(1, 1, of([])) is None
    assert whitening.get(1, 1, never) is None
    found = whitening.get(1, 2, of(range(100)))
    assert whitening.get(1, 2, never) is found
    with pytest.raises(AssertionError, match="asked for"):
        whitening.get(1, 3, never)


def test_it_is_fitted_again_when_enough_has_come(whitening):
    first = whitening.get(1, 1, of(range(200)))
    few = int(200 * REFIT_SHARE)
    assert whitening.get(1, 2, of(range(200 + few))) is first
    again = whitening.get(1, 3, of(range(201 + few)))
    assert_same_metric(again, metric_module.fit(ROWS[: 201 + few]))
    assert whitening.get(1, 4, of(range(201 + few))) is again


def test_what_is_gone_is_forgotten_when_it_is_much(whitening):
    whitening.get(1, 1, of(range(400)))
    left = np.arange(100, 400)
    found = whitening.get(1, 2, of(left))
    assert_same_metric(found, metric_module.fit(ROWS[left]))


def test_replaced_vectors_count_as_come_and_gone(whitening):
    """As many as before, but others."""
    first = whitening.get(1, 1, of(range(300)))
    found = whitening.get(1, 2, of(range(150, 450)))
    assert found is not first
    assert_same_metric(found, metric_module.fit(ROWS[150:450]))


def test_everybody_has_a_metric_of_their_own(whitening):
    shared = whitening.get(EVERYBODY, 1, of(range(500)))
    assert whitening.get(1, 1, of(range(10))) is None
    own = whitening.get(2, 1, of(range(200)))
    assert (shared.count, own.count) == (500, 200)
    assert whitening.get(EVERYBODY, 1, never) is shared
    assert whitening.get(2, 1, never) is own


def test_only_the_metrics_asked_for_last_are_kept(whitening):
    first = whitening.get(0, 1, of(range(100)))
    for key in range(1, KEPT):
        whitening.get(key, 1, of(range(100)))
    most = whitening.memory_bytes()
    assert whitening.get(0, 1, never) is first  # it is the last one asked for now
    whitening.get(KEPT, 1, of(range(100)))
    assert whitening.memory_bytes() == most > 0
    assert whitening.get(0, 1, never) is first
    assert_same_metric(whitening.get(1, 1, of(range(100))), first)


def test_of_many_vectors_a_sample_of_all_parts_is_fitted(whitening, monkeypatch):
    monkeypatch.setattr(metric_module, "SAMPLE", 101)
    found = whitening.get(1, 1, of(range(1001)))
    assert_same_metric(found, metric_module.fit(ROWS[:1001:10]))
    assert whitening.get(1, 2, of(range(1100))) is found
    assert whitening.get(1, 3, of(range(1102))) is not found


def test_threads_that_ask_at_once_get_the_same(whitening):
    expected = metric_module.fit(ROWS[:500])
    barrier = threading.Barrier(8)

    def ask(_):
        barrier.wait(60)
        return whitening.get(1, 1, of(range(500)))

    with ThreadPoolExecutor(8) as pool:
        for metric in pool.map(ask, range(8)):
            assert_same_metric(metric, expected)

"""Which metric a search uses: when one is fitted, by whom, and what it forgets."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from metrickit import assert_same_metric, cloud

from edgemem.retrieval import metric as metric_module
from edgemem.retrieval import whitening as module
from edgemem.retrieval.metric import Moments
from edgemem.retrieval.vectors import Rows, VectorSubset
from edgemem.retrieval.whitening import (
    AT_ONCE,
    EVERYBODY,
    KEPT,
    MAX_GONE_SHARE,
    MIN_VECTORS,
    REFIT_SHARE,
    Whitening,
)

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
    opened = Whitening()
    yield opened
    opened.close()


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


def test_a_few_that_are_gone_do_not_stand_in_the_way_of_new_ones(whitening):
    whitening.get(1, 1, of(range(400)))
    gone = int(400 * MAX_GONE_SHARE) - 1
    found = whitening.get(1, 2, of(range(gone, 460)))
    assert 460 - gone <= found.count <= 460
    # Beyond that share they no longer count.
    found = whitening.get(1, 3, of(range(100, 520)))
    assert_same_metric(found, metric_module.fit(ROWS[100:520]))


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


def test_scopes_without_a_metric_take_no_memory_for_good(whitening, monkeypatch):
    monkeypatch.setattr(module, "KEPT_CHECKS", 10)
    for key in range(50):
        assert whitening.get(key, 1, of(range(5))) is None
    assert len(whitening._checked) == 10


# In another thread


def wait_for(whitening, key, generation, vectors):
    whitening.wait()
    return whitening.get(key, generation, vectors)


def test_many_vectors_are_fitted_in_another_thread(whitening, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", 100)
    assert AT_ONCE > 100
    assert whitening.get(1, 1, of(range(1000))) is None
    first = wait_for(whitening, 1, 1, of(range(1000)))
    assert_same_metric(first, metric_module.fit(ROWS[:1000]))
    # The one of before answers until there is another.
    assert whitening.get(1, 2, of(range(1500))) is first
    second = wait_for(whitening, 1, 2, of(range(1500)))
    assert_same_metric(second, metric_module.fit(ROWS[:1500]))


class Slow(Moments):
    """Moments that are told when to go on."""

    started, go_on = threading.Event(), threading.Event()
    added = 0

    def add(self, rows):
        self.started.set()
        assert self.go_on.wait(60)
        Slow.added += 1
        super().add(rows)


@pytest.fixture
def slow(monkeypatch):
    Slow.started, Slow.go_on, Slow.added = threading.Event(), threading.Event(), 0
    monkeypatch.setattr(module, "Moments", Slow)
    monkeypatch.setattr(module, "AT_ONCE", 100)
    monkeypatch.setattr(module, "BLOCK", 10)
    yield Slow
    Slow.go_on.set()


def test_a_second_fit_waits_for_its_turn_and_nobody_waits_for_it(whitening, slow):
    assert whitening.get(1, 1, of(range(1000))) is None
    assert slow.started.wait(60)
    assert whitening.get(2, 1, of(range(500))) is None
    slow.go_on.set()
    assert wait_for(whitening, 1, 1, of(range(1000))).count == 1000
    assert whitening.get(2, 1, of(range(500))) is None  # it starts now
    assert wait_for(whitening, 2, 1, of(range(500))).count == 500


def test_closing_stops_a_fit(whitening, slow):
    whitening.get(1, 1, of(range(1000)))
    assert slow.started.wait(60)
    closing = threading.Thread(target=whitening.close)
    closing.start()
    while not whitening._closed:
        closing.join(0.001)
    slow.go_on.set()
    closing.join(60)
    assert not closing.is_alive() and slow.added == 1
    assert whitening.get(1, 1, of(range(1000))) is None
    assert whitening.get(1, 2, of(range(1000))) is None
    whitening.wait()
    assert slow.added == 1  # and none was started


def test_a_fit_that_fails_is_reported_and_tried_again(whitening, monkeypatch, caplog):
    monkeypatch.setattr(module, "AT_ONCE", 100)

    def fail(self, **_options):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Moments, "fit", fail)
        assert whitening.get(1, 1, of(range(1000))) is None
        whitening.wait()
    assert "no metric could be fitted" in caplog.text
    assert whitening.get(1, 1, of(range(1000))) is None  # tried again
    assert wait_for(whitening, 1, 1, of(range(1000))).count == 1000


def test_a_fit_that_fails_before_its_search_returns_is_tried_again(whitening, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", 100)
    start = Whitening._start

    def start_and_finish(self, *args):
        started = start(self, *args)
        self.wait()
        return started

    with monkeypatch.context() as patch:
        patch.setattr(Whitening, "_start", start_and_finish)
        patch.setattr(Moments, "fit", lambda self, **_options: {}["no"])
        assert whitening.get(1, 1, of(range(1000))) is None
    assert whitening.get(1, 1, of(range(1000))) is None  # tried again
    assert wait_for(whitening, 1, 1, of(range(1000))).count == 1000


def test_threads_that_ask_at_once_get_the_same(whitening):
    expected = metric_module.fit(ROWS[:500])
    barrier = threading.Barrier(8)

    def ask(_):
        barrier.wait(60)
        return whitening.get(1, 1, of(range(500)))

    with ThreadPoolExecutor(8) as pool:
        for metric in pool.map(ask, range(8)):
            assert_same_metric(metric, expected)

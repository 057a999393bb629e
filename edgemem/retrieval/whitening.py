"""Which metric a search uses: its user's own where they have enough memories, else that of all.

Knows vectors by their labels, keys for whose they are, and when a metric is stale; the formulas are
in metric.py, the file in metricfile.py. A metric is fitted when a search first wants it, and again
when enough vectors have come or gone since: a small set at once (milliseconds), a large one in
another thread, while the metric of before goes on answering. Before there is one, the plain cosine
does.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgemem.retrieval.metric import BLOCK, REFIT_SHARE, Metric, Moments
from edgemem.retrieval.rows import Rows

log = logging.getLogger(__name__)

__all__ = ["AT_ONCE", "EVERYBODY", "Fitted", "Key", "Vectors", "Whitening"]

IntArray = NDArray[np.int64]

Key = str | None
EVERYBODY: Key = None
"""The key of the metric of all memories; the other keys are user ids."""

MIN_VECTORS = 64  # fewer make no metric worth having: bench/LOG.md
AT_ONCE = 4096  # up to this many are fitted inside the search that wants them
MAX_GONE_SHARE = 0.05  # of the vectors in running moments that may be gone
KEPT = 16  # keys whose metrics are held, those asked for last


@dataclass(frozen=True, slots=True)
class Vectors:
    """Some vectors of a table: all its rows, and the positions (m,) and labels (m,) of these,
    ascending."""

    rows: Rows
    positions: IntArray
    labels: IntArray


@dataclass(frozen=True, slots=True)
class Fitted:
    """A metric, its moments, and the labels (n,), ascending, of the vectors they are of.

    Some of these may be gone. The moments are not added to after this was made.
    """

    metric: Metric
    moments: Moments
    labels: IntArray

    def is_stale(self, labels: IntArray) -> bool:
        """Whether these are the live labels by now, but too many others were fitted on.

        By counting, as the next search after each write asks it: comparing takes milliseconds.
        """
        known = int(np.searchsorted(labels, self.labels[-1], "right"))
        changed = len(labels) - known + max(0, len(self.labels) - known)
        return changed > REFIT_SHARE * len(self.labels)


class Whitening:
    """The metrics of one index. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the fields below
        self._fitting = threading.Lock()  # one fit at a time
        self._fitted: OrderedDict[Key, Fitted] = OrderedDict()
        self._checked: dict[Key, int] = {}  # the generation at which a key was last looked at
        self._worker: threading.Thread | None = None
        self._closed = False

    def get(self, key: Key, generation: int, vectors: Callable[[], Vectors]) -> Metric | None:
        """The metric of a key, None while there is none.

        generation: of what is searched; a metric is only looked after when this has moved.
        vectors: the key's live vectors at that generation.
        """
        with self._lock:
            fitted = self._fitted.get(key)
            if fitted is not None:
                self._fitted.move_to_end(key)
            if self._checked.get(key) == generation:
                return fitted.metric if fitted is not None else None
        these = vectors()
        if len(these.labels) < MIN_VECTORS:
            fitted = None
            with self._lock:
                self._fitted.pop(key, None)
        elif fitted is None or fitted.is_stale(these.labels):
            if len(these.labels) <= AT_ONCE:
                fitted = self._fit(key, these)
            elif not self._start(key, these):
                # Another fit is under way: look again at the next search.
                return fitted.metric if fitted is not None else None
        with self._lock:
            self._checked[key] = generation
        return fitted.metric if fitted is not None else None

    def large(self, vectors: Callable[[Key], Vectors]) -> dict[Key, Fitted]:
        """The metrics worth keeping in a file, each of live vectors only.

        vectors: a key's live vectors. A metric that was fitted on others too is fitted anew, and a
        fit under way is waited for, so this may take seconds.
        """
        self.wait()
        with self._lock:
            held = dict(self._fitted)
        kept = {}
        for key, fitted in held.items():
            these = vectors(key)
            if min(len(fitted.labels), len(these.labels)) <= AT_ONCE:
                continue
            of_live: Fitted | None = fitted
            if not np.isin(fitted.labels, these.labels).all():
                of_live = self._fit(key, these, anew=True)
            if of_live is not None:
                kept[key] = of_live
        return kept

    def hold(self, key: Key, fitted: Fitted) -> None:
        """Take a metric that was fitted before; it is replaced when it is stale."""
        with self._lock:
            self._fitted[key] = fitted
            self._fitted.move_to_end(key)
            while len(self._fitted) > KEPT:
                oldest, _ = self._fitted.popitem(last=False)
                self._checked.pop(oldest, None)

    def wait(self) -> None:
        """Until no fit is under way in another thread."""
        with self._lock:
            worker = self._worker
        if worker is not None:
            worker.join()

    def memory_bytes(self) -> int:
        """Bytes of the metrics and moments held."""
        with self._lock:
            held = list(self._fitted.values())
        return sum(f.moments.scatter.nbytes + f.metric.A.nbytes + f.labels.nbytes for f in held)

    def close(self) -> None:
        """Stop a fit in another thread and wait for it."""
        self._closed = True
        self.wait()

    def _start(self, key: Key, these: Vectors) -> bool:
        with self._lock:
            if self._worker is not None or self._closed:
                return False
            worker = threading.Thread(target=self._work, args=(key, these), name="edgemem-metric")
            with suppress(RuntimeError):  # no more threads, or the program is ending
                worker.start()
                self._worker = worker
        return True

    def _work(self, key: Key, these: Vectors) -> None:
        try:
            self._fit(key, these)
        except Exception:
            log.warning("no metric could be fitted; the one of before goes on", exc_info=True)
        finally:
            with self._lock:
                self._worker = None
                self._checked.pop(key, None)  # the next search finds it, or tries again

    def _fit(self, key: Key, these: Vectors, *, anew: bool = False) -> Fitted | None:
        """Fit, and hold what was fitted; None if it was stopped. anew: use nothing of before."""
        with self._fitting:
            held = None if anew else self._fitted.get(key)
            new = np.ones(len(these.labels), np.bool_)
            if held is not None:
                new = np.isin(these.labels, held.labels, invert=True)
                if len(held.labels) > (1 + MAX_GONE_SHARE) * np.count_nonzero(~new):
                    held, new = None, np.ones_like(new)  # what is gone must not go on counting
            moments, positions = Moments(these.rows.dim), these.positions[new]
            for start in range(0, len(positions), BLOCK):
                if self._closed or not threading.main_thread().is_alive():
                    return None
                moments.add(these.rows.floats(positions[start : start + BLOCK]))
            labels = these.labels[new]
            if held is not None:
                moments.merge(held.moments)
                labels = np.union1d(held.labels, labels)
            fitted = Fitted(moments.fit(), moments, labels)
            self.hold(key, fitted)
            return fitted

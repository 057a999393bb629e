"""Which metric a search uses: its user's own if they have enough memories, else that of all users.

A metric is fitted when a search first needs it, and again when enough vectors were added or removed
since. Of a large set it is fitted on a sample, as more vectors change it little.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from edgemem.retrieval.metric import Metric, fit
from edgemem.retrieval.vectors import VectorSubset

__all__ = ["EVERYBODY", "SAMPLE", "Whitening"]

EVERYBODY = None
"""The key of the metric of all memories; the other keys are user ids."""

MIN_VECTORS = 64  # fewer make no metric worth having: bench/LOG.md
REFIT_SHARE = 0.1  # share of the fitted vectors beyond which added and removed ones ask for a fit
SAMPLE = 4096
"""Vectors that a metric is fitted on, from all parts of a larger set."""
KEPT = 64  # keys that are remembered, the most recently used


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is known of a key. generation: of the data when it was last checked. metric: None for
    too few vectors. count, last: how many live vectors there were at the fit, and the highest label
    of them."""

    generation: int
    metric: Metric | None = None
    count: int = 0
    last: int = -1


class Whitening:
    """The metrics of one index. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # also while a metric is fitted, which takes 0.1 s
        self._kept: OrderedDict[str | None, _Kept] = OrderedDict()

    def get(
        self, key: str | None, generation: int, vectors: Callable[[], VectorSubset]
    ) -> Metric | None:
        """The metric of a key, None if it has too few vectors.

        generation: of the data searched; whether a fit is due is only checked when it has changed.
        vectors: returns the key's live vectors then.
        """
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept.generation != generation:
                kept = self._kept[key] = _checked(kept, generation, vectors())
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return kept.metric

    def memory_bytes(self) -> int:
        """Bytes of the metrics held."""
        with self._lock:
            return sum(kept.metric.A.nbytes for kept in self._kept.values() if kept.metric)


def _checked(kept: _Kept | None, generation: int, live: VectorSubset) -> _Kept:
    """What is known of a key now, with a new metric if one is due.

    Only labels are counted, because the first search after each write asks.
    """
    count = len(live.labels)
    if count < MIN_VECTORS:
        return _Kept(generation)
    if kept is not None and kept.metric is not None:
        known = int(np.searchsorted(live.labels, kept.last, "right"))
        if count - known + max(0, kept.count - known) <= REFIT_SHARE * kept.count:
            return replace(kept, generation=generation)
    some = np.linspace(0, count - 1, min(count, SAMPLE)).astype(np.int64)
    metric = fit(live.rows.floats(live.positions[some]))
    return _Kept(generation, metric, count, int(live.labels[-1]))

"""Which metric a search uses: its user's own if they have enough memories, else that of all users.

A metric is fitted when a search first needs it, and again when enough vectors were added or removed
since. A small set is fitted at once, a large one in another thread while searches use the previous
metric, or the plain cosine if there is none.

`save` and `load` keep the metrics of large sets in a cache file beside the store. The file reveals
the vectors that its metrics were fitted on. So it is written without removed vectors, and whoever
erases a vector removes the file. A file that is damaged, or of another store, model, dtype or
layout, is refused as a whole.

The data is a NumPy .npz. `keys` is a JSON list of user ids (null: everybody). The i-th key has a
metric, `mean_i`, `inverse_diagonal_i` and `A_i`; its moments, `count_i`, `sum_i` and `scatter_i`;
the `labels_i` of their vectors; and `sample_labels_i` and `sample_i`, a few of these vectors, which
must be the store's.
"""

from __future__ import annotations

import io
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem import cachefile
from edgemem.kernels import IntArray
from edgemem.retrieval.metric import BLOCK, Metric, Moments
from edgemem.retrieval.vectors import VectorSubset
from edgemem.vault import Vault

__all__ = ["AT_ONCE", "EVERYBODY", "LAYOUT", "Fitted", "Key", "Whitening"]

log = logging.getLogger(__name__)


Key = str | None
EVERYBODY: Key = None
"""The key of the metric of all memories; the other keys are user ids."""

MIN_VECTORS = 64  # fewer make no metric worth having: bench/LOG.md
REFIT_SHARE = 0.1  # share of the fitted vectors beyond which added and removed ones ask for a fit
AT_ONCE = 4096  # up to this many vectors are fitted inside the search that needs the metric
MAX_GONE_SHARE = 0.05  # share of removed vectors up to which moments are added to, not rebuilt
KEPT = 16  # keys whose metrics are cached, the most recently used
KEPT_CHECKS = 4096  # keys that are known to need no fit
LAYOUT = 2  # of the file; layout 1 stored the metric in a binary format of its own
SAMPLE = 64  # vectors of each key that are compared with the store's, and as many at the end
MIN_LIVE_SHARE = 0.5  # of the sample that must be live; with fewer a fit is due anyway


@dataclass(frozen=True, slots=True)
class Fitted:
    """A metric, its moments, and the labels (n,), ascending, of the vectors it was fitted on.

    Some of these vectors may have been removed since. The moments never change.
    """

    metric: Metric
    moments: Moments
    labels: IntArray

    def is_stale(self, labels: IntArray) -> bool:
        """Whether too many vectors were added or removed since the fit. labels: the live ones now.

        It only counts labels, because the first search after each write asks.
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
        # The generation at which each key was last checked; one that is forgotten is checked again.
        self._checked: OrderedDict[Key, int] = OrderedDict()
        self._worker: threading.Thread | None = None
        self._closed = False

    def get(self, key: Key, generation: int, vectors: Callable[[], VectorSubset]) -> Metric | None:
        """The metric of a key, None while there is none.

        generation: of the data searched; whether a fit is due is only checked when it has changed.
        vectors: returns the key's live vectors then.
        """
        with self._lock:
            fitted = self._fitted.get(key)
            if fitted is not None:
                self._fitted.move_to_end(key)
            if self._checked.get(key) == generation:
                return fitted.metric if fitted is not None else None
        live = vectors()
        if len(live.labels) < MIN_VECTORS:
            fitted = None
            with self._lock:
                self._fitted.pop(key, None)
        elif fitted is None or fitted.is_stale(live.labels):
            if len(live.labels) > AT_ONCE:
                self._start(key, generation, live)
                return fitted.metric if fitted is not None else None
            fitted = self._fit(key, live)
        with self._lock:
            self._note_checked(key, generation)
        return fitted.metric if fitted is not None else None

    def _note_checked(self, key: Key, generation: int) -> None:
        """Note that no fit is due for a key at a generation. The lock is held."""
        self._checked[key] = generation
        self._checked.move_to_end(key)
        if len(self._checked) > KEPT_CHECKS:
            self._checked.popitem(last=False)

    def _large_metrics(self, vectors: Callable[[Key], VectorSubset]) -> dict[Key, Fitted]:
        """The metrics of large sets. One that was fitted on a removed vector is fitted again.

        vectors: returns a key's live vectors.
        """
        self.wait()
        with self._lock:
            cached = dict(self._fitted)
        found = {}
        for key, fitted in cached.items():
            live = vectors(key)
            if min(len(fitted.labels), len(live.labels)) <= AT_ONCE:
                continue
            is_current = np.isin(fitted.labels, live.labels).all()
            of_live = fitted if is_current else self._fit(key, live, from_scratch=True)
            if of_live is not None:
                found[key] = of_live
        return found

    def save(
        self,
        path: Path,
        vectors: Callable[[Key], VectorSubset],
        stamp: Mapping[str, Any],
        vault: Vault | None,
    ) -> bool:
        """Write the metrics of large sets; may fit some again, which takes seconds.

        vectors: returns a key's live vectors; none may be erased meanwhile. stamp: the store's
        generation, the model, dim and dtype. vault: seals the file. Returns whether a file was
        written: not if there is no large set (an older file is removed) or the disk failed. Never
        raises OSError.
        """
        try:
            metrics = self._large_metrics(vectors)
            if not metrics:
                cachefile.discard(path)
                return False
            data = _packed(metrics, vectors)
            temporary, size = cachefile.write_temporary(
                path, lambda name: Path(name).write_bytes(data), len(data), vault
            )
            cachefile.publish(temporary, path, {**size, **stamp, "layout": LAYOUT})
            return True
        except OSError as exc:
            log.warning("the metric file %s was not written: %s", path, exc)
            return False

    def load(
        self,
        path: Path,
        vectors: Callable[[Key], VectorSubset],
        stamp: Mapping[str, Any],
        vault: Vault | None,
    ) -> bool:
        """Load the metrics of a file. Arguments as for `save`, of the store as it is now.

        Returns False and changes nothing if the file is missing, damaged or does not match. An
        earlier generation matches, even if vectors were added or removed since. Never raises.
        """
        if cachefile.stamp_for(path, {**stamp, "layout": LAYOUT}) is None:
            return False
        try:
            loaded = _unpacked(cachefile.contents(path, vault), vectors, stamp["dim"])
        except Exception:
            log.warning("the metric file %s was refused", path, exc_info=True)
            return False
        for key, fitted in loaded.items():
            self._cache(key, fitted)
        return True

    def _cache(self, key: Key, fitted: Fitted) -> None:
        """Cache a metric; beyond KEPT, drop those used least recently."""
        with self._lock:
            self._fitted[key] = fitted
            self._fitted.move_to_end(key)
            while len(self._fitted) > KEPT:
                oldest, _ = self._fitted.popitem(last=False)
                self._checked.pop(oldest, None)

    def wait(self) -> None:
        """Wait until no fit is under way in another thread."""
        with self._lock:
            worker = self._worker
        if worker is not None:
            worker.join()

    def memory_bytes(self) -> int:
        """Bytes of the metrics and moments held."""
        with self._lock:
            cached = list(self._fitted.values())
        return sum(f.moments.scatter.nbytes + f.metric.A.nbytes + f.labels.nbytes for f in cached)

    def close(self) -> None:
        """Stop a fit in another thread and wait for it."""
        self._closed = True
        self.wait()

    def _start(self, key: Key, generation: int, live: VectorSubset) -> None:
        """Fit in another thread, unless a fit is under way there: the next search asks again."""
        with self._lock:
            if self._worker is not None or self._closed:
                return
            self._note_checked(key, generation)  # before the worker can take it back
            worker = threading.Thread(target=self._work, args=(key, live), name="edgemem-metric")
            with suppress(RuntimeError):  # no more threads, or the program is ending
                worker.start()
                self._worker = worker

    def _work(self, key: Key, live: VectorSubset) -> None:
        try:
            self._fit(key, live)
        except Exception:
            log.warning("no metric could be fitted; the previous one stays in use", exc_info=True)
        finally:
            with self._lock:
                self._worker = None
                self._checked.pop(key, None)  # the next search finds it, or tries again

    def _fit(self, key: Key, live: VectorSubset, *, from_scratch: bool = False) -> Fitted | None:
        """Fit and cache a metric; None if `close` stopped it.

        from_scratch: do not add to the moments of the previous fit.
        """
        with self._fitting:
            previous = None if from_scratch else self._fitted.get(key)
            new = np.ones(len(live.labels), np.bool_)
            if previous is not None:
                new = np.isin(live.labels, previous.labels, invert=True)
                if len(previous.labels) > (1 + MAX_GONE_SHARE) * np.count_nonzero(~new):
                    previous, new = None, np.ones_like(new)  # too many of its vectors are removed
            moments, positions = Moments(live.rows.dim), live.positions[new]
            for start in range(0, len(positions), BLOCK):
                if self._closed or not threading.main_thread().is_alive():
                    return None
                moments.add(live.rows.floats(positions[start : start + BLOCK]))
            labels = live.labels[new]
            if previous is not None:
                moments.merge(previous.moments)
                labels = np.union1d(previous.labels, labels)
            fitted = Fitted(moments.fit(), moments, labels)
            self._cache(key, fitted)
            return fitted


def _packed(metrics: Mapping[Key, Fitted], vectors: Callable[[Key], VectorSubset]) -> bytes:
    """The bytes of a metric file: see the module."""
    keys = np.frombuffer(json.dumps(list(metrics)).encode(), np.uint8)
    arrays: dict[str, NDArray[Any]] = {"keys": keys}
    for i, (key, fitted) in enumerate(metrics.items()):
        n, live = len(fitted.labels), vectors(key)
        spread = np.linspace(0, n - 1, SAMPLE).astype(np.int64)
        sample = fitted.labels[np.union1d(spread, np.arange(n)[-SAMPLE:])]
        arrays |= {
            f"mean_{i}": fitted.metric.mean,
            f"inverse_diagonal_{i}": fitted.metric.inverse_diagonal,
            f"A_{i}": fitted.metric.A,
            f"count_{i}": np.array(fitted.moments.count, np.int64),
            f"sum_{i}": fitted.moments.sum,
            f"scatter_{i}": fitted.moments.scatter,
            f"labels_{i}": fitted.labels,
            f"sample_labels_{i}": sample,
            f"sample_{i}": live.rows.floats(live.positions[np.searchsorted(live.labels, sample)]),
        }
    data = io.BytesIO()
    np.savez(data, allow_pickle=False, **arrays)
    return data.getvalue()


def _unpacked(data: bytes, vectors: Callable[[Key], VectorSubset], dim: int) -> dict[Key, Fitted]:
    """What `_packed` wrote, without keys whose sample is mostly removed. Raises ValueError."""
    found: dict[Key, Fitted] = {}
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        for i, key in enumerate(json.loads(arrays["keys"].tobytes())):
            count, labels = int(arrays[f"count_{i}"]), arrays[f"labels_{i}"]
            moments = Moments.of(count, arrays[f"sum_{i}"], arrays[f"scatter_{i}"])
            metric = Metric(
                count, *(arrays[f"{name}_{i}"] for name in ("mean", "inverse_diagonal", "A"))
            )
            shapes = metric.mean.shape, metric.inverse_diagonal.shape, metric.A.shape[:1]
            if not (set(shapes) == {(dim,)} and moments.dim == dim and count <= len(labels)):
                raise ValueError(f"the metric, moments and labels of {key!r} do not fit together")
            sample, live = arrays[f"sample_labels_{i}"], vectors(key)
            is_live = np.isin(sample, live.labels)
            if np.count_nonzero(is_live) < MIN_LIVE_SHARE * len(sample):
                continue
            at = live.positions[np.searchsorted(live.labels, sample[is_live])]
            # The checksum proves that we wrote the file, not that it is of this store.
            if not np.array_equal(live.rows.floats(at), arrays[f"sample_{i}"][is_live]):
                raise ValueError(f"the vectors of {key!r} are others than the store's")
            found[key] = Fitted(metric, moments, labels)
    return found

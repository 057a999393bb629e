"""All memories of a store as a search sees them: vectors, words, places in a conversation, metrics.

Knows the parts of retrieval/ and how they are kept in step; no SQL, no model. `apply` brings all of
them to the store's next generation at once, and a search sees one generation of all of them.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgemem.kernels import beside, metric_query
from edgemem.results import Scope
from edgemem.retrieval import metricfile
from edgemem.retrieval.catalog import Catalog
from edgemem.retrieval.fusion import FEATURES, FEW, MANY, Weights, shipped
from edgemem.retrieval.index import IndexView, VectorIndex
from edgemem.retrieval.lexical import asks_when, query_terms, time_terms
from edgemem.retrieval.metric import Metric
from edgemem.retrieval.postings import Postings, Seen
from edgemem.retrieval.rows import Dtype
from edgemem.retrieval.table import View
from edgemem.retrieval.whitening import EVERYBODY, Key, Vectors, Whitening
from edgemem.store import Changes
from edgemem.store.tokens import tokenize
from edgemem.text import words

__all__ = ["NEAREST", "Candidates", "Memories", "similarities"]

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

NEAREST = 100
"""How many memories the vectors propose, and how many the words; with their neighbours in the
conversation these are the candidates."""

KEPT_SIGHTS = 4  # a few bytes for every memory each
MAX_TOKENS = 64  # of a memory's length that count: a pasted page is no answer to everything
MAX_SIMILARITY = 5.0  # under a metric, where what is unlike all else lies far out


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a search scored.

    rowids: (n,) int64. features: (n, len(FEATURES)) float32, see fusion.py. weights: those that
    belong to them. places: (n,) int64, the turn's memory that each was taken from, else itself.
    """

    rowids: IntArray
    features: FloatArray
    weights: Weights
    places: IntArray


@dataclass(frozen=True, slots=True)
class _Sight:
    """What searches of one scope see of one generation, all that takes time for every memory.

    allowed: (m,) bool by memory number; seen and table: the same of the postings and vectors;
    speakers: the codes of those who said them. It holds from the time `since` until one of these
    memories ends at `until`, Unix seconds.
    """

    allowed: BoolArray
    seen: Seen
    table: View
    speakers: frozenset[int]
    since: float
    until: float

    def nbytes(self) -> int:
        """Of the masks."""
        masks = self.allowed, self.seen.allowed, self.table.allowed, self.table.live
        return sum(mask.nbytes for mask in masks)


class Memories:
    """See the module. dim, dtype, options: VectorIndex's. Safe from any thread."""

    def __init__(self, dim: int, dtype: Dtype = "float32", **options: int) -> None:
        self.vectors = VectorIndex(dim, dtype, **options)
        self.whitening = Whitening()
        self.generation = 0  # of the store, as last taken in
        self._lock = threading.Lock()
        self._catalog = Catalog()
        self._postings = Postings()
        self._timed: BoolArray | None = None  # of _timed_slots, until something is applied
        self._sights: OrderedDict[tuple[Scope, frozenset[str] | None], _Sight] = OrderedDict()

    @property
    def dim(self) -> int:
        return self.vectors.dim

    def __len__(self) -> int:
        """Live vectors."""
        return len(self.vectors)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes held by each part."""
        with self._lock:
            return {
                "vectors": self.vectors.memory_bytes(),
                "metric": self.whitening.memory_bytes(),
                "postings": self._postings.memory_bytes(),
                "catalog": self._catalog.memory_bytes(),
                "sights": sum(sight.nbytes() for sight in self._sights.values()),
            }

    def apply(self, changes: Changes) -> None:
        """Take in what the store changed. A search sees all of it or nothing.

        Changes older than what was already taken in are ignored, so threads may race to bring
        theirs; full ones never are, because a backup may have been put back. Raises ValueError
        if the vectors have another dimension.
        """
        terms = tokenize(changes.texts)
        with self._lock:
            if changes.generation < self.generation and not changes.full:
                return
            self._sights.clear()
            self._timed = None
            self.vectors.apply(changes)
            self._catalog.apply(changes)
            if changes.postings is not None:
                self._postings = Postings.of(changes.postings)
            else:
                self._postings.apply(changes.removed_rowids, changes.rowids.tolist(), terms)
            self.generation = changes.generation

    def nearest(
        self, vector: FloatArray, k: int, *, scope: Scope, kinds: Collection[str] | None = None
    ) -> tuple[IntArray, FloatArray]:
        """The k live memories of a scope with the largest cosine: rowids and cosines, best first.

        vector: (dim,) float32, of length 1.
        """
        with self._lock:
            view = self.vectors.view(self._sight(scope, kinds, time.time(), None).table)
        rowids, cosines, _ = view.search(vector, k)
        return rowids, cosines

    def candidates(
        self,
        query: str,
        vector: FloatArray,
        *,
        scope: Scope,
        kinds: Collection[str] | None = None,
        rowids: IntArray | None = None,
        now: float,
        k: int = 10,
    ) -> Candidates:
        """The memories that may answer a query, with their features.

        vector: (dim,) float32, the query's, of length 1. kinds, rowids: only these. now: Unix
        seconds; what is no longer valid then, or has expired, is left out. k: how many will be
        wanted; candidates are the nearest vectors and the best by BM25, 100 or 2 k of each, and
        the turns beside those.
        """
        wanted = max(NEAREST, 2 * k)
        terms = query_terms(query, now)
        with self._lock:
            sight = self._sight(scope, kinds, now, rowids)
            allowed, places = sight.allowed, self._catalog.places()
            lexical = self._postings.view(terms, sight.seen)
            timed = self._timed_slots() if asks_when(query) else None
            view = self.vectors.view(sight.table)
            named = self._catalog.speakers_named(words(query), sight.speakers)
            generation = self.generation
        metric = self._metric(scope, view, generation)
        matches = lexical.search(wanted)
        near, _, _ = view.search(vector, wanted)
        proposals = np.concatenate([near, matches.docs])
        around = beside(
            proposals, places.place, places.before, places.after, places.speaker, allowed
        )
        found = around[:, 0].copy()
        features = np.zeros((len(found), len(FEATURES)), np.float32)
        features[:, :2] = similarities(view.table, vector, metric, around, 2)
        features[:, 2:8] = matches.features(around, places.session, timed, MAX_TOKENS)
        if named:
            speaker = places.speaker[found]
            features[:, 8] = -0.5
            for code in named:
                features[speaker == code, 8] = 0.5
        features[:, 9] = places.asks[found]
        features[:, 10] = math.log(min(max(FEW, sight.seen.count), MANY))
        weights = shipped()["cosine" if metric is None else "metric"]
        return Candidates(found, features, weights, places.place[found])

    def _sight(
        self, scope: Scope, kinds: Collection[str] | None, now: float, rowids: IntArray | None
    ) -> _Sight:
        """What a search sees; with `rowids` it is another every time. The caller holds the lock."""
        key = scope, None if kinds is None else frozenset(kinds)
        sight = self._sights.get(key) if rowids is None else None
        if sight is None or not sight.since <= now < sight.until:
            allowed = self._catalog.allowed(scope, kinds, now, rowids)
            sight = _Sight(
                allowed,
                self._postings.seen(allowed),
                self.vectors.view(allowed).table,
                self._catalog.speakers(allowed),
                now,
                self._catalog.soonest_end(allowed),
            )
        if rowids is None:
            self._sights[key] = sight
            self._sights.move_to_end(key)
            if len(self._sights) > KEPT_SIGHTS:
                self._sights.popitem(last=False)
        return sight

    def _timed_slots(self) -> BoolArray:
        """The documents that say when something was, see `Postings.having`. The caller holds the
        lock."""
        if self._timed is None:
            self._timed = self._postings.having(time_terms())
        return self._timed

    def _metric(self, scope: Scope, view: IndexView, generation: int) -> Metric | None:
        """The metric of the user who is searched for, where they have one."""
        users = self._catalog.users()
        if scope.user_id is not None:
            code = self._catalog.user_code(scope.user_id)
            own = self.whitening.get(
                scope.user_id, generation, lambda: view.table.vectors(users == code)
            )
            if own is not None:
                return own
        return self.whitening.get(EVERYBODY, generation, lambda: view.table.vectors(None))

    def save_metrics(self, path: str | os.PathLike[str], *, model_id: str) -> bool:
        """As `metricfile.save`, of what was last taken in."""
        stamp, vectors = self._snapshot(model_id)
        return metricfile.save(Path(path), self.whitening, vectors, stamp)

    def load_metrics(self, path: str | os.PathLike[str], *, model_id: str) -> bool:
        """As `metricfile.load`. Call it after `apply`."""
        stamp, vectors = self._snapshot(model_id)
        return metricfile.load(Path(path), self.whitening, vectors, stamp)

    def _snapshot(self, model_id: str) -> tuple[metricfile.Stamp, Callable[[Key], Vectors]]:
        """What a file of now would be stamped with, and whose vectors are which."""
        with self._lock:
            stamp = metricfile.Stamp(self.generation, model_id, self.dim, self.vectors.dtype)
            table, users = self.vectors.table(), self._catalog.users()
        code = self._catalog.user_code
        return stamp, lambda key: table.vectors(None if key is None else users == code(key))

    def close(self) -> None:
        """Stop what other threads are at. It still searches afterwards."""
        self.vectors.close()
        self.whitening.close()


def similarities(
    table: View, vector: FloatArray, metric: Metric | None, memories: IntArray, columns: int = 1
) -> FloatArray:
    """(m, columns) of the memories with these numbers (m, w), the best of each one's vectors; 0 if
    it has none.

    The centred inner product under the metric, in units of the query's whitened norm; without a
    metric the cosine.
    """
    if metric is None:
        return table.similarities(memories, columns, vector)
    image, offset, norm = metric_query(vector, metric.mean, metric.inverse_diagonal, metric.A.T)
    if norm == 0:
        return np.zeros((len(memories), columns), np.float32)
    return table.similarities(
        memories, columns, image, offset=offset, scale=1 / norm, limit=MAX_SIMILARITY
    )

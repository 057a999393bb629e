"""From a query and its vector to scored memories: candidates, features, one score, no repetition.

`Memories` holds all memories of a store as a search sees them: vectors, words, places in a
conversation, metrics. `apply` brings all of them to the store's next generation at once, and a
search sees one generation of all of them.

The score says how probable it is that a memory answers a query, with the weights in
data/fusion.json, which `python -m bench.fit_fusion` sets. It is absolute: a memory's depends on the
query, the memory, its neighbours, the words' rarity and how many memories there are, never on how
the other candidates compare, so a threshold means the same for every query.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgemem import kernels
from edgemem.errors import DimensionMismatch
from edgemem.kernels import NO_TOKENS, BoolArray, FloatArray, IntArray, beside, maxsim, rank
from edgemem.language import GRAMS_A_WORD, asks_when, is_other_language, name_forms, words
from edgemem.results import Query, Scope, to_utc
from edgemem.retrieval.catalog import Catalog
from edgemem.retrieval.index import IndexView, VectorIndex
from edgemem.retrieval.lexical import Postings, Seen, in_grams, query_grams, query_terms, time_terms
from edgemem.retrieval.metric import Metric
from edgemem.retrieval.vectors import Dtype, Vectors, View
from edgemem.retrieval.whitening import EVERYBODY, Key, Whitening
from edgemem.store import Changes, Store
from edgemem.store.changes import tokenize
from edgemem.vault import Vault

__all__ = [
    "FEATURES",
    "FEW",
    "MANY",
    "MATCHES",
    "NEAREST",
    "RELEVANT",
    "Candidates",
    "Feature",
    "Memories",
    "QueryTokens",
    "Scored",
    "Weights",
    "find",
    "match",
    "parts_of",
    "probability",
    "refresh",
    "reliability",
    "shipped",
    "similarities",
]


class Feature(IntEnum):
    """What is known of a candidate, by the column of `Candidates.features` that says it.

    First what the vectors say, then the columns of `kernels.word_features`.
    """

    SIMILARITY = 0  # of the meaning, under the metric; where none is fitted yet, the cosine
    SIMILARITY_BEFORE = 1  # of the turn said before it: an answer is found by its question
    BM25 = 2  # of its words, with speaker and day, among what the search may see
    BM25_AROUND = 3  # summed over the two turns before and the two after it
    COVERAGE = 4  # the share of the query's idf that it and the turns beside it have
    SESSION = 5  # the best bm25 of a candidate in the same session
    LENGTH = 6  # log(1 + tokens), 64 at most
    TIME = 7  # 1 if the query asks when, and it says so
    SPEAKER = 8  # +-1/2 where the query names somebody who speaks here: whether they said it
    QUESTION = 9  # 1 if it only asks
    AMONG = 10  # log(how many memories the search may see), from log(FEW) to log(MANY)


FEATURES = tuple(feature.name.lower() for feature in Feature)

MATCHES = ("match", "match_around", "match_before", "match_after")
"""The columns of `match`: the mean over the query's tokens of the cosine with the token that is
nearest, of those of the memory; of those of the memory and the turns just before and after; and of
either turn alone, 0 where there is none."""

_OF_VECTORS = slice(Feature.SIMILARITY, Feature.SIMILARITY_BEFORE + 1)
_OF_WORDS = slice(Feature.BM25, Feature.TIME + 1)
_SUMS_OF_WORDS = [Feature.BM25, Feature.BM25_AROUND, Feature.SESSION]

FEW, MANY = 3, 512
"""What the weights were fitted on; of fewer or more memories a score says what it says of these."""

RELEVANT = {"fast": 0.015, "careful": 0.007}
"""A memory with at least this score is worth answering from, by the retrieval: bench/LOG.md."""


@dataclass(frozen=True)
class Weights:
    """score = 1 / (1 + exp(-(bias + weights · features))).

    weights: (f,) float32, of FEATURES, or of these and MATCHES.
    """

    bias: float
    weights: FloatArray

    @classmethod
    def of(cls, data: Mapping[str, Any], names: Sequence[str] = FEATURES) -> Weights:
        """From {"bias": …, "weights": {feature: …}}. Raises KeyError if one is missing."""
        given = data["weights"]
        return cls(float(data["bias"]), np.array([given[n] for n in names], np.float32))

    def best(self, features: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
        """The k best rows of features (n, f) float32: positions and scores in (0, 1), best first,
        equal ones by lower position."""
        _, positions, logits = rank(features, self.weights, self.bias, k)
        return positions, probability(logits)


@cache
def shipped(careful: bool = False) -> dict[str, Weights]:
    """The weights of this version: "metric" where one is fitted, "cosine" where none is.

    careful: those that weigh MATCHES too.
    """
    data = _fitted()["careful" if careful else "fast"]
    names = FEATURES + MATCHES if careful else FEATURES
    return {name: Weights.of(given, names) for name, given in data.items()}


def reliability() -> dict[str, dict[str, list[dict[str, float]]]]:
    """How often memories of about the same score answer the question: a reliability diagram.

    By retrieval ("fast", "careful") and conversations ("locomo", "written"), a row for each range
    of scores: how many memories, their mean score, the share of them that are evidence. Each
    conversation's weights come from the others, under a metric.
    """
    found: dict[str, dict[str, list[dict[str, float]]]] = _fitted()["reliability"]
    return found


@cache
def _fitted() -> Any:
    return json.loads((files("edgemem") / "data" / "fusion.json").read_text())


def probability(logits: NDArray[Any]) -> FloatArray:
    """1 / (1 + exp(-x)), elementwise, float32. -inf gives 0."""
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)


def parts_of(weights: Weights, features: Sequence[float]) -> dict[str, float]:
    """What each feature of one memory gives to its score; the values add up to it.

    "base" is the score of all features at 0. The rest of the score is shared in proportion to the
    terms of the sum inside the logistic function: the integrated gradients from 0 (Sundararajan et
    al. 2017), which for a function of a sum are just that. A part may be negative.
    """
    terms = weights.weights.astype(np.float64) * np.asarray(features, np.float64)
    total = float(terms.sum())
    base, score = probability(np.array([weights.bias, weights.bias + total])).astype(float)
    # (score - base) / total has the logistic function's slope as its limit.
    slope = (score - base) / total if abs(total) > 1e-6 else base * (1 - base)
    names = (FEATURES + MATCHES)[: len(terms)]
    return {"base": float(base), **dict(zip(names, (terms * slope).tolist(), strict=True))}


NEAREST = 100
"""How many memories the vectors propose, and how many the words; with their neighbours in the
conversation these are the candidates."""

MATCHED = 100
"""How many of the candidates, the best of a fast search, a careful one compares word by word. More
change nothing that is found: bench/LOG.md."""

KEPT_VISIBLE = 4  # a few bytes for every memory each
MAX_TOKENS = 64  # of a memory's length that count: a pasted page is no answer to everything
UNREAD = {"cosine": 0.5, "metric": 3.5}
"""The similarity of each memory to a query that the embedder cannot read: what the best one of a
query that it can read has on average. So scores keep their meaning: bench/LOG.md."""
MAX_SIMILARITY = 5.0  # under a metric, where what is unlike all else lies far out


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a search scored.

    rowids: (n,) int64. features: (n, len(Feature)) float32. similarity: "metric" or "cosine", what
    the first columns are and so which weights belong to them. places: (n,) int64, the turn's memory
    that each was taken from, else itself. images: (n,) bool, which are images. around: (n, AROUND)
    int64, see `kernels.beside`. matches: (n, len(MATCHES)) float32, of `match`; None of a fast
    search.

    A candidate without token vectors is scored by what else is known of it, with the weights of a
    fast search, and stands among the others: both scores are probabilities. Were the whole query
    scored so, one memory that waits for its vectors would take the words' matches from all others.
    """

    rowids: IntArray
    features: FloatArray
    similarity: str
    places: IntArray
    images: BoolArray
    around: IntArray
    matches: FloatArray | None = None

    def best(self, k: int) -> tuple[IntArray, FloatArray]:
        """Positions and scores of the k best, best first, equal ones by lower position."""
        if self.matches is None:
            return shipped()[self.similarity].best(self.features, k)
        without = np.isnan(self.matches[:, 0])
        found = []
        for mask, features in (
            (without, self.features),
            (~without, np.hstack([self.features, self.matches])),
        ):
            positions = np.flatnonzero(mask)
            best, scores = self._weights(features).best(features[positions], k)
            found.append((positions[best], scores))
        positions, scores = (np.concatenate(each) for each in zip(*found, strict=True))
        order = np.lexsort((positions, -scores))[:k]
        return positions[order], scores[order]

    def parts(self, position: int) -> dict[str, float]:
        """What each feature of one of them gives to its score; see `parts_of`."""
        features = self.features[position]
        if self.matches is not None and not np.isnan(self.matches[position, 0]):
            features = np.concatenate([features, self.matches[position]])
        return parts_of(self._weights(features), features.tolist())

    def _weights(self, features: FloatArray) -> Weights:
        return shipped(features.shape[-1] > len(FEATURES))[self.similarity]


@dataclass(frozen=True, slots=True)
class _Visible:
    """What searches of one scope may find in one generation, computed once for all of them.

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
    """The memories of a store. dim, dtype, options: VectorIndex's. Safe from any thread."""

    def __init__(self, dim: int, dtype: Dtype = "float32", **options: int) -> None:
        self.vectors = VectorIndex(dim, dtype, **options)
        self.whitening = Whitening()
        self.generation = 0  # of the store, as last taken in
        self._lock = threading.Lock()
        self._catalog = Catalog()
        self._postings = Postings()
        self._grams: Postings | None = None  # the same in grams, from the first query that asks so
        self._timed: BoolArray | None = None  # of _timed_slots, until something is applied
        self._visibles: OrderedDict[tuple[Scope, frozenset[str] | None], _Visible] = OrderedDict()

    @property
    def dim(self) -> int:
        return self.vectors.dim

    def __len__(self) -> int:
        """Live vectors."""
        return len(self.vectors)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes held by each part."""
        with self._lock:
            held = [self._postings] + ([] if self._grams is None else [self._grams])
            return {
                "vectors": self.vectors.memory_bytes(),
                "metric": self.whitening.memory_bytes(),
                "postings": sum(each.memory_bytes() for each in held),
                "catalog": self._catalog.memory_bytes(),
                "masks": sum(each.nbytes() for each in self._visibles.values()),
            }

    def apply(self, changes: Changes) -> None:
        """Take in what the store changed, as `VectorIndex.apply`, in every part."""
        terms = tokenize(changes.texts)
        with self._lock:
            if changes.generation < self.generation and not changes.full:
                return
            self._visibles.clear()
            self._timed = None
            self.vectors.apply(changes)
            self._catalog.apply(changes)
            if changes.postings is not None:
                self._postings, self._grams = Postings.of(changes.postings), None
            else:
                removed, rowids = changes.removed_rowids, changes.rowids.tolist()
                self._postings.apply(removed, rowids, terms)
                if self._grams is not None:
                    self._grams.apply(removed, rowids, [in_grams(each) for each in terms])
            self.generation = changes.generation

    def nearest(self, query: Query, vector: FloatArray) -> tuple[IntArray, FloatArray]:
        """The `top_k` memories with the largest cosine: rowids and cosines, best first.

        vector: (dim,) float32, the query's, of length 1. `query.where` is not looked at.
        """
        with self._lock:
            view = self.vectors.view(self._visible(query, None).table)
        rowids, cosines, _ = view.search(vector, query.top_k)
        return rowids, cosines

    def candidates(
        self, query: Query, vector: FloatArray | None, rowids: IntArray | None = None
    ) -> Candidates:
        """The memories that may answer a query, with their features.

        vector: (dim,) float32, the query's, of length 1; None if the embedder cannot read it, and
        then all are alike to it (UNREAD). rowids: only these, which match `query.where`. Candidates
        are the nearest vectors and the best by BM25, 100 or 2 `top_k` of each, and the turns beside
        those. A query in another language than English is matched by grams, whose features are
        brought to the scale of words, which the weights were fitted on.
        """
        wanted = max(NEAREST, 2 * query.top_k)
        other = is_other_language(query.text)
        terms = query_grams(query.text) if other else query_terms(query.text, query.now)
        names = name_forms(query.text) if other else words(query.text)
        with self._lock:
            visible = self._visible(query, rowids)
            allowed, places = visible.allowed, self._catalog.places()
            if other:
                grams = self._in_grams()
                lexical, timed = grams.view(terms, grams.seen(allowed)), None
            else:
                lexical = self._postings.view(terms, visible.seen)
                timed = self._timed_slots() if asks_when(query.text) else None
            view = self.vectors.view(visible.table)
            named = self._catalog.speakers_named(names, visible.speakers)
            generation = self.generation
        metric = self._metric(query.scope, view, generation)
        matches = lexical.search(wanted)
        proposals = matches.docs
        if vector is not None:
            near, _, _ = view.search(vector, wanted)
            proposals = np.concatenate([near, proposals])
        around = beside(
            proposals, places.place, places.before, places.after, places.speaker, allowed
        )
        found = around[:, 0].copy()
        features = np.zeros((len(found), len(Feature)), np.float32)
        similarity = "cosine" if metric is None else "metric"
        if vector is None:
            features[:, Feature.SIMILARITY] = UNREAD[similarity]
        else:
            features[:, _OF_VECTORS] = similarities(view.table, vector, metric, around, 2)
        longest = MAX_TOKENS * GRAMS_A_WORD if other else MAX_TOKENS
        features[:, _OF_WORDS] = matches.features(around, places.session, timed, longest)
        if other:
            features[:, _SUMS_OF_WORDS] /= GRAMS_A_WORD
            features[:, Feature.LENGTH] -= math.log(GRAMS_A_WORD)
        if named:
            features[:, Feature.SPEAKER] = np.isin(places.speaker[found], named) - 0.5
        features[:, Feature.QUESTION] = places.asks[found]
        features[:, Feature.AMONG] = math.log(min(max(FEW, visible.seen.count), MANY))
        images = self._catalog.are("image", found)
        return Candidates(found, features, similarity, places.place[found], images, around)

    def _visible(self, query: Query, rowids: IntArray | None) -> _Visible:
        """What a query may find; with `rowids` it is computed anew. The caller holds the lock."""
        key, now = (query.scope, query.kinds), query.now
        visible = self._visibles.get(key) if rowids is None else None
        if visible is None or not visible.since <= now < visible.until:
            allowed = self._catalog.allowed(query, rowids)
            visible = _Visible(
                allowed,
                self._postings.seen(allowed),
                self.vectors.view(allowed).table,
                self._catalog.speakers(allowed),
                now,
                self._catalog.soonest_end(allowed),
            )
        if rowids is None:
            self._visibles[key] = visible
            self._visibles.move_to_end(key)
            if len(self._visibles) > KEPT_VISIBLE:
                self._visibles.popitem(last=False)
        return visible

    def _in_grams(self) -> Postings:
        """The postings in grams. The caller holds the lock."""
        if self._grams is None:
            self._grams = self._postings.in_grams()
        return self._grams

    def _timed_slots(self) -> BoolArray:
        """The documents that say when something was, see `Postings.having`. The caller holds the
        lock."""
        if self._timed is None:
            self._timed = self._postings.having(time_terms())
        return self._timed

    def _metric(self, scope: Scope, view: IndexView, generation: int) -> Metric | None:
        """The metric of the user who is searched for, where they have one."""
        of, user = self._catalog.by_user(), scope.user_id
        if user is not None:
            own = self.whitening.get(user, generation, lambda: view.table.vectors(of(user)))
            if own is not None:
                return own
        return self.whitening.get(EVERYBODY, generation, lambda: view.table.vectors(None))

    def save_metrics(self, path: Path, *, model_id: str, vault: Vault | None = None) -> bool:
        """As `Whitening.save`, of what was last taken in."""
        return self.whitening.save(path, *self._snapshot(model_id), vault)

    def load_metrics(self, path: Path, *, model_id: str, vault: Vault | None = None) -> bool:
        """As `Whitening.load`. Call it after `apply`."""
        return self.whitening.load(path, *self._snapshot(model_id), vault)

    def _snapshot(self, model_id: str) -> tuple[Callable[[Key], Vectors], dict[str, Any]]:
        """Whose vectors are which, and what a file of now is stamped with."""
        with self._lock:
            table, of = self.vectors.table(), self._catalog.by_user()
            stamp = {
                "generation": self.generation,
                "model_id": model_id,
                "dim": self.dim,
                "dtype": self.vectors.dtype,
            }
        return lambda key: table.vectors(None if key is None else of(key)), stamp

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
    offset, scale, limit = 0.0, 1.0, math.inf
    if metric is not None:
        vector, offset, norm = metric.query(vector)
        if norm == 0:
            return np.zeros((len(memories), columns), np.float32)
        scale, limit = 1 / norm, MAX_SIMILARITY
    return kernels.similarities(
        table.rows.rows, table.first, table.next, memories, columns, vector, offset, scale, limit,
        table.rows.scales,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueryTokens:
    """A query's token vectors: tokens (q, d) int8 of the model model_id, a number times `step`."""

    model_id: str
    tokens: NDArray[np.int8]
    step: float


class Scored(NamedTuple):
    """A memory that was found: its row in the store, its score and, if asked for, its parts."""

    rowid: int
    score: float
    parts: dict[str, float] | None = None


def refresh(store: Store, memories: Memories) -> None:
    """Bring the memories up to the store's generation, which another process may have moved.

    Raises DimensionMismatch if the store was reindexed to another dimension meanwhile.
    """
    if store.generation() == memories.generation:
        return
    changes = store.changes(max(0, memories.generation))
    try:
        memories.apply(changes)
    except ValueError as exc:
        raise DimensionMismatch(
            f"the store was reindexed meanwhile: the index holds {memories.dim} dimensions, the "
            f"store {changes.vectors.shape[1]}; open it again"
        ) from exc


def find(
    store: Store,
    memories: Memories,
    query: Query,
    vector: FloatArray | None,
    *,
    tokens: QueryTokens | None = None,
    explain: bool = False,
) -> tuple[list[Scored], int]:
    """The `top_k` best live memories, best first, and how many were scored.

    vector: (dim,) float32, the query's, or None as for `Memories.candidates`. tokens: its token
    vectors, for a careful search. With `query.where` or `query.at`, all that match are scanned. Of
    a turn and the facts taken from it either the turn or the facts are found, whichever comes
    first; its images also after it.
    """
    refresh(store, memories)
    rowids = None
    if query.where is not None or query.at is not None:
        rowids = store.rowids(
            query.scope,
            where=query.where,
            kinds=query.kinds,
            now=to_utc(query.now),
            at=None if query.at is None else to_utc(query.at),
        )
    candidates = memories.candidates(query, vector, rowids)
    scored = len(candidates.rowids)
    # A turn gives few facts: three times as many are enough to find k that do not repeat.
    wanted = 3 * query.top_k
    if tokens is not None:
        candidates = _matched(store, candidates, tokens, max(MATCHED, wanted))
    found: list[Scored] = []
    positions, scores = candidates.best(wanted)
    facts: set[int] = set()
    turns: set[int] = set()
    for i, rowid, place, is_image, score in zip(
        positions.tolist(),
        candidates.rowids[positions].tolist(),
        candidates.places[positions].tolist(),
        candidates.images[positions].tolist(),
        scores.tolist(),
        strict=True,
    ):
        mine, theirs = (turns, facts) if rowid == place else (facts, turns)
        mine.add(place)
        if (is_image or place not in theirs) and len(found) < query.top_k:
            parts = candidates.parts(i) if explain else None
            found.append(Scored(rowid, score, parts))
    return found, scored


def _matched(store: Store, candidates: Candidates, tokens: QueryTokens, most: int) -> Candidates:
    """The best candidates of a fast search, with their matches; `most` of them."""
    best = np.sort(candidates.best(most)[0])
    around = candidates.around[best]
    return replace(
        candidates,
        rowids=candidates.rowids[best],
        features=candidates.features[best],
        places=candidates.places[best],
        images=candidates.images[best],
        around=around,
        matches=match(store, tokens, around),
    )


def match(store: Store, query: QueryTokens, around: IntArray) -> FloatArray:
    """Late interaction: what the columns MATCHES say of each candidate: (n, len(MATCHES)) float32.

    around: (n, AROUND) int64, of `kernels.beside`. NaN of a candidate without token vectors.
    The token vectors are read from the store: none are held between searches, and what was erased
    is found by none.
    """
    three = around[:, [0, 3, 4]]  # itself, and the turns just before and after
    memories = three.ravel().tolist()
    dim = query.tokens.shape[1]
    held = store.tokens(query.model_id, set(memories), dim)
    rows = np.frombuffer(b"".join(held.values()), np.int8).reshape(-1, dim)
    offsets = np.cumsum([0, *map(len, held.values())]) // dim
    # A last row for the memories that have none.
    best = np.full((len(held) + 1, len(query.tokens)), NO_TOKENS, np.int32)
    best[:-1] = maxsim(rows, offsets, query.tokens)
    row_of = {memory: row for row, memory in enumerate(held)}
    at = np.array([row_of.get(memory, -1) for memory in memories], np.int64).reshape(three.shape)
    nearest = best[at]  # (n, 3, q)
    own, before, after = np.where(at < 0, 0, nearest.mean(axis=2)).T
    columns = np.stack([own, nearest.max(axis=1).mean(axis=1), before, after], axis=1)
    columns *= query.step**2
    columns[at[:, 0] < 0] = np.nan
    return columns.astype(np.float32)

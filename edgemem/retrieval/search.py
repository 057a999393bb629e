"""From a query and its vector to scored memories: candidates, features, one score, no repetition.

`SearchIndex` holds all memories of a store as a search sees them: vectors, words, places in a
conversation, metrics. `apply` brings all of these to the store's next generation at once.

The score is the probability that a memory answers a query, by the weights in data/fusion.json,
which `python -m bench.fit_fusion` writes. It never depends on how other candidates compare, so a
threshold means the same for every query.
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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgemem import kernels
from edgemem.errors import DimensionMismatch
from edgemem.kernels import (
    NO_TOKENS,
    Bm25Query,
    BoolArray,
    FloatArray,
    IntArray,
    beside,
    maxsim,
    rank,
)
from edgemem.language import GRAMS_A_WORD, asks_when, is_other_language, name_forms, words
from edgemem.results import Query, Scope, to_utc
from edgemem.retrieval.catalog import Catalog, Places
from edgemem.retrieval.index import IndexView, VectorIndex
from edgemem.retrieval.lexical import (
    Corpus,
    Matches,
    Postings,
    gram_counts,
    query_grams,
    query_terms,
    time_terms,
)
from edgemem.retrieval.metric import EVERYBODY, Metric, Whitening
from edgemem.retrieval.vectors import Dtype, TableView
from edgemem.store import Changes, Store
from edgemem.store.changes import tokenize

__all__ = ["FEATURES", "FEW", "MANY", "MATCHES", "NEAREST", "RELEVANT", "Candidates", "Feature"]
__all__ += ["QueryTokens", "Scored", "SearchIndex", "Weights", "find", "match", "parts_of"]
__all__ += ["probability", "refresh", "reliability", "shipped", "similarities"]


class Feature(IntEnum):
    """The features of a candidate, by their column in `Candidates.features`.

    First those from the vectors, then the columns of `kernels.word_features`, then the others.
    """

    SIMILARITY = 0  # to the query, under the metric; the cosine if none is fitted yet
    SIMILARITY_BEFORE = 1  # of another speaker's turn before it: a question finds its answer
    BM25 = 2  # of its indexed text (speaker, words, day); idf among what the search may see
    BM25_AROUND = 3  # summed over the two turns before and the two after it
    COVERAGE = 4  # the share of the query's idf that it and other speakers' turns beside it have
    SESSION = 5  # the best bm25 of a candidate in the same session
    LENGTH = 6  # log(1 + tokens), at most MAX_TOKENS of them
    TIME = 7  # 1 if the query asks when, and the memory says when
    SPEAKER = 8  # if the query names a speaker: 1/2 if they said it, else -1/2; 0 if it names none
    QUESTION = 9  # 1 if it ends in a question mark
    AMONG = 10  # log(how many memories the search may see), from log(FEW) to log(MANY)


FEATURES = tuple(feature.name.lower() for feature in Feature)

MATCHES = ("match", "match_around", "match_before", "match_after")
"""The columns of `match`: the query tokens' mean cosine with the nearest token of four texts.

The texts are the memory; the memory with the turns just before and after it; the turn before alone;
the turn after alone. 0 where there is no such turn."""

_OF_VECTORS = slice(Feature.SIMILARITY, Feature.SIMILARITY_BEFORE + 1)
_OF_WORDS = slice(Feature.BM25, Feature.TIME + 1)
_SUMS_OF_WORDS = [Feature.BM25, Feature.BM25_AROUND, Feature.SESSION]

FEW, MANY = 3, 512
"""The least and most memories that the weights were fitted on; the bounds of `Feature.AMONG`."""

RELEVANT = {"fast": 0.015, "careful": 0.007}
"""By retrieval, the score from which a memory is worth answering from: bench/LOG.md."""


@dataclass(frozen=True)
class Weights:
    """score = 1 / (1 + exp(-(bias + weights · features))).

    weights: (f,) float32, in the order of FEATURES, or of FEATURES + MATCHES.
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
    """The weights of this version: "metric" for searches under a metric, "cosine" for the others.

    careful: the weights of a careful search, which include MATCHES.
    """
    data = _fitted()["careful" if careful else "fast"]
    names = FEATURES + MATCHES if careful else FEATURES
    return {name: Weights.of(given, names) for name, given in data.items()}


def reliability() -> dict[str, dict[str, list[dict[str, float]]]]:
    """How often memories of about the same score answer the question: a reliability diagram.

    By retrieval ("fast", "careful") and conversations ("locomo", "written"), a row for each range
    of scores: how many memories, their mean score, the share of them that are evidence.
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
    """What each feature of one memory contributes to its score; the parts add up to the score.

    "base" is the score of all features at 0. The rest is shared in proportion to the terms of the
    logit: the integrated gradients from 0 (Sundararajan et al. 2017).
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

MATCHED = 100  # candidates, the best by the fast score, that a careful search compares by tokens
KEPT_VISIBLE = 4  # cached `_Visible`s; each takes a few bytes for every memory
MAX_TOKENS = 64  # of a memory that count as its length; a pasted page is no answer to everything
UNREAD = {"cosine": 0.5, "metric": 3.5}
"""The similarity that every memory gets if the embedder cannot read the query: the mean similarity
of the best hit of queries that it can read. So scores keep their meaning: bench/LOG.md."""
MAX_SIMILARITY = 5.0  # under a metric, where outliers have very large similarities


@dataclass(frozen=True, slots=True)
class Candidates:
    """The memories that a search scores.

    rowids: (n,) int64. features: (n, len(Feature)) float32. similarity: "metric" or "cosine", what
    the first columns are, and so which weights apply. places: (n,) int64, the memory of the turn
    that each was taken from, else itself. images: (n,) bool, which are images. around: (n, AROUND)
    int64, see `kernels.beside`. matches: (n, len(MATCHES)) float32, from `match`, NaN for those to
    be scored as in a fast search; None in a fast search.
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
        """What each feature of the candidate at a position contributes to its score: `parts_of`."""
        features = self.features[position]
        if self.matches is not None and not np.isnan(self.matches[position, 0]):
            features = np.concatenate([features, self.matches[position]])
        return parts_of(self._weights(features), features.tolist())

    def _weights(self, features: FloatArray) -> Weights:
        return shipped(features.shape[-1] > len(FEATURES))[self.similarity]


@dataclass(frozen=True, slots=True)
class _Visible:
    """What searches of one scope and kinds may find in one generation. They share it.

    allowed: (m,) bool by memory number; corpus and table: the same for the postings and vectors;
    speakers: the codes of the memories' speakers. Valid from `since` until the first of these
    memories ends, at `until`: Unix seconds.
    """

    allowed: BoolArray
    corpus: Corpus
    table: TableView
    speakers: frozenset[int]
    since: float
    until: float

    def nbytes(self) -> int:
        """Bytes of the masks."""
        masks = self.allowed, self.corpus.allowed, self.table.allowed, self.table.live
        return sum(mask.nbytes for mask in masks)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What one search reads, all of one generation.

    by_grams: whether the query is in another language, and `postings` are those of grams. timed:
    which memories say when; None if the query does not ask when. named: the codes of the speakers
    that the query names. of_user, are_images: see `Catalog.by_user` and `Catalog.of_kind`.
    """

    generation: int
    visible: _Visible
    places: Places
    vectors: IndexView
    postings: Bm25Query
    by_grams: bool
    timed: BoolArray | None
    named: list[int]
    of_user: Callable[[str], BoolArray]
    are_images: Callable[[IntArray], BoolArray]


class SearchIndex:
    """The memories of a store. dim, dtype: as for `VectorIndex`. Thread-safe."""

    def __init__(self, dim: int, dtype: Dtype = "float32") -> None:
        self.vectors = VectorIndex(dim, dtype)
        self.whitening = Whitening()
        self.generation = 0  # of the store, as of the last `apply`
        self._lock = threading.Lock()
        self._catalog = Catalog()
        self._postings = Postings()
        self._grams: Postings | None = None  # the same by grams, made when first needed
        self._timed: BoolArray | None = None  # which memories say when, made when first needed
        self._visible_by_scope: OrderedDict[tuple[Scope, frozenset[str] | None], _Visible]
        self._visible_by_scope = OrderedDict()

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
                "masks": sum(each.nbytes() for each in self._visible_by_scope.values()),
            }

    def apply(self, changes: Changes, since: int | None = None) -> None:
        """Apply the store's changes to every part, as `VectorIndex.apply` does.

        since: the generation held when full changes were read; ignored if newer ones were applied.
        """
        terms = tokenize(changes.texts)
        with self._lock:
            moved = since is not None and self.generation != since
            if changes.generation < self.generation and (moved or not changes.full):
                return
            self._visible_by_scope.clear()
            self._timed = None
            self.vectors.apply(changes)
            self._catalog.apply(changes)
            if changes.postings is not None:
                self._postings, self._grams = Postings.of(changes.postings), None
            else:
                removed, rowids = changes.removed_rowids, changes.rowids.tolist()
                self._postings.apply(removed, rowids, terms)
                if self._grams is not None:
                    self._grams.apply(removed, rowids, [gram_counts(each) for each in terms])
            self.generation = changes.generation

    def nearest(self, query: Query, vector: FloatArray) -> tuple[IntArray, FloatArray]:
        """The `top_k` memories with the largest cosine: rowids and cosines, best first.

        vector: (dim,) float32, the query's, of length 1. `query.where` is ignored.
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
        then all memories get the similarity UNREAD. rowids: only these, which match `query.where`.
        Candidates are the nearest vectors and the best by BM25, max(100, 2 `top_k`) of each, and
        the turns beside those. A query in another language than English is matched by grams, whose
        features are rescaled to those of words.
        """
        wanted = max(NEAREST, 2 * query.top_k)
        seen = self._snapshot(query, rowids)
        metric = self._metric(query.scope, seen)
        matches = Matches.of(seen.postings, wanted)
        proposals = matches.docs
        if vector is not None:
            near, _, _ = seen.vectors.search(vector, wanted)
            proposals = np.concatenate([near, proposals])
        places = seen.places
        around = beside(
            proposals, places.place, places.before, places.after, places.speaker,
            seen.visible.allowed,
        )  # fmt: skip
        found = around[:, 0].copy()
        features = np.zeros((len(found), len(Feature)), np.float32)
        similarity = "cosine" if metric is None else "metric"
        if vector is None:
            features[:, Feature.SIMILARITY] = UNREAD[similarity]
        else:
            table = seen.vectors.table
            features[:, _OF_VECTORS] = similarities(table, vector, metric, around, 2)
        longest = MAX_TOKENS * GRAMS_A_WORD if seen.by_grams else MAX_TOKENS
        features[:, _OF_WORDS] = matches.features(around, places.session, seen.timed, longest)
        if seen.by_grams:
            features[:, _SUMS_OF_WORDS] /= GRAMS_A_WORD
            features[:, Feature.LENGTH] -= math.log(GRAMS_A_WORD)
        if seen.named:
            features[:, Feature.SPEAKER] = np.isin(places.speaker[found], seen.named) - 0.5
        features[:, Feature.QUESTION] = places.asks[found]
        features[:, Feature.AMONG] = math.log(min(max(FEW, seen.visible.corpus.count), MANY))
        images, place = seen.are_images(found), places.place[found]
        return Candidates(found, features, similarity, place, images, around)

    def _snapshot(self, query: Query, rowids: IntArray | None) -> _Snapshot:
        """What a search for a query reads. Another thread may apply changes meanwhile."""
        by_grams = is_other_language(query.text)
        terms = query_grams(query.text) if by_grams else query_terms(query.text, query.now)
        names = name_forms(query.text) if by_grams else words(query.text)
        with self._lock:
            visible = self._visible(query, rowids)
            timed = None
            if by_grams:
                if self._grams is None:
                    self._grams = self._postings.by_grams()
                postings = self._grams.view(terms, self._grams.corpus(visible.allowed))
            else:
                postings = self._postings.view(terms, visible.corpus)
                if asks_when(query.text):
                    if self._timed is None:
                        self._timed = self._postings.with_any(time_terms())
                    timed = self._timed
            return _Snapshot(
                self.generation,
                visible,
                self._catalog.places(),
                self.vectors.view(visible.table),
                postings,
                by_grams,
                timed,
                self._catalog.speakers_named(names, visible.speakers),
                self._catalog.by_user(),
                self._catalog.of_kind("image"),
            )

    def _visible(self, query: Query, rowids: IntArray | None) -> _Visible:
        """What a query may find, cached unless `rowids` is given. The caller holds the lock."""
        key, now = (query.scope, query.kinds), query.now
        visible = self._visible_by_scope.get(key) if rowids is None else None
        if visible is None or not visible.since <= now < visible.until:
            allowed = self._catalog.allowed(query, rowids)
            visible = _Visible(
                allowed,
                self._postings.corpus(allowed),
                self.vectors.view(allowed).table,
                self._catalog.speakers(allowed),
                now,
                self._catalog.soonest_end(allowed),
            )
        if rowids is None:
            self._visible_by_scope[key] = visible
            self._visible_by_scope.move_to_end(key)
            if len(self._visible_by_scope) > KEPT_VISIBLE:
                self._visible_by_scope.popitem(last=False)
        return visible

    def _metric(self, scope: Scope, seen: _Snapshot) -> Metric | None:
        """The metric of the scope's user if they have one, else that of everybody."""
        user, table = scope.user_id, seen.vectors.table
        if user is not None:
            own = self.whitening.get(
                user, seen.generation, lambda: table.vectors(seen.of_user(user))
            )
            if own is not None:
                return own
        return self.whitening.get(EVERYBODY, seen.generation, lambda: table.vectors(None))

    def close(self) -> None:
        """Stop the work of another thread. Searches still work afterwards."""
        self.vectors.close()


def similarities(
    table: TableView,
    vector: FloatArray,
    metric: Metric | None,
    memories: IntArray,
    columns: int = 1,
) -> FloatArray:
    """How near the best vector of each memory is to a query: (m, columns) float32, 0 without one.

    memories: (m, w) int64 numbers, of which the first `columns` columns are compared. Nearness is
    the centred inner product under the metric, in units of the query's whitened norm and at most
    MAX_SIMILARITY; without a metric the cosine.
    """
    offset, scale, limit = 0.0, 1.0, math.inf
    if metric is not None:
        vector, offset, norm = metric.query(vector)
        if norm == 0:
            return np.zeros((len(memories), columns), np.float32)
        scale, limit = 1 / norm, MAX_SIMILARITY
    return kernels.similarities(
        table.rows.values, table.first, table.next, memories, columns, vector, offset, scale, limit,
        table.rows.scales,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueryTokens:
    """A query's token vectors by the model `model_id`: `step` times the int8 tokens (q, d)."""

    model_id: str
    tokens: NDArray[np.int8]
    step: float


class Scored(NamedTuple):
    """A memory that was found: its row in the store, its score and, if asked for, its parts."""

    rowid: int
    score: float
    parts: dict[str, float] | None = None


def refresh(store: Store, index: SearchIndex) -> None:
    """Bring the index up to the store's generation, which another process may have advanced.

    Raises DimensionMismatch if the store was reindexed to another dimension meanwhile.
    """
    since = index.generation
    if store.generation() == since:
        return
    changes = store.changes(max(0, since))
    try:
        index.apply(changes, since)
    except ValueError as exc:
        raise DimensionMismatch(
            f"the store was reindexed meanwhile: the index holds {index.dim} dimensions, the "
            f"store {changes.vectors.shape[1]}; open it again"
        ) from exc


def find(
    store: Store,
    index: SearchIndex,
    query: Query,
    vector: FloatArray | None,
    *,
    tokens: QueryTokens | None = None,
    explain: bool = False,
) -> tuple[list[Scored], int]:
    """The `top_k` best live memories, best first, and how many were scored.

    vector: as for `SearchIndex.candidates`. tokens: for a careful search. With `query.where` or
    `query.at`, the store first selects the memories that are searched. A turn and the facts taken
    from it are never both found: whichever ranks first excludes the other. An image is found even
    after its turn.
    """
    refresh(store, index)
    rowids = None
    if query.where is not None or query.at is not None:
        rowids = store.rowids(
            query.scope,
            where=query.where,
            kinds=query.kinds,
            now=to_utc(query.now),
            at=None if query.at is None else to_utc(query.at),
        )
    candidates = index.candidates(query, vector, rowids)
    scored = len(candidates.rowids)
    # Most turns give few facts: three times as many are mostly enough to find k that do not repeat.
    wanted = 3 * query.top_k
    while True:
        ranked = candidates
        if tokens is not None:
            ranked = _with_matches(store, candidates, tokens, max(MATCHED, wanted))
        positions, scores = ranked.best(wanted)
        chosen = _without_repeats(ranked, positions)[: query.top_k]
        if len(chosen) == query.top_k or wanted >= scored:
            break
        wanted *= 4
    found = [
        Scored(
            int(ranked.rowids[positions[i]]),
            float(scores[i]),
            ranked.parts(int(positions[i])) if explain else None,
        )
        for i in chosen
    ]
    return found, scored


def _without_repeats(candidates: Candidates, positions: IntArray) -> list[int]:
    """Which of the positions, best first, repeat no better one: see `find`."""
    facts: set[int] = set()
    turns: set[int] = set()
    chosen = []
    for i, (rowid, place, is_image) in enumerate(
        zip(
            candidates.rowids[positions].tolist(),
            candidates.places[positions].tolist(),
            candidates.images[positions].tolist(),
            strict=True,
        )
    ):
        mine, theirs = (turns, facts) if rowid == place else (facts, turns)
        mine.add(place)
        if is_image or place not in theirs:
            chosen.append(i)
    return chosen


def _with_matches(
    store: Store, candidates: Candidates, tokens: QueryTokens, most: int
) -> Candidates:
    """The `most` best candidates by the fast score, with their matches."""
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
    """Late interaction: the columns MATCHES of each candidate, (n, len(MATCHES)) float32.

    around: (n, AROUND) int64, from `kernels.beside`. NaN for a candidate without token vectors.
    These are read from the store for each search, so none finds what was erased.
    """
    three = around[:, [0, 3, 4]]  # itself, and the turns just before and after
    memories = three.ravel().tolist()
    dim = query.tokens.shape[1]
    held = store.tokens(query.model_id, set(memories), dim)
    rows = np.frombuffer(b"".join(held.values()), np.int8).reshape(-1, dim)
    offsets = np.cumsum([0, *map(len, held.values())]) // dim
    # The last row is for the memories without tokens.
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

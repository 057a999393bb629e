"""Full-text search: the text indexed of a memory, the terms of a query, and BM25 in memory.

`Postings` maps terms to documents, and is updated as memories come and go. It is a disposable copy
of the store's full-text index, which stays authoritative.

The postings of all terms lie in one pool; a term that outgrows its room moves to the pool's end.
Each document has a slot. A changed document gets a new slot, and the postings of its old text then
belong to a dead slot. Arrays that are overwritten in place are copied into each search's view.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgemem import language
from edgemem.kernels import (
    Bm25Query,
    BoolArray,
    DoubleArray,
    FloatArray,
    IntArray,
    bm25,
    distinct,
    word_features,
)
from edgemem.results import local_time
from edgemem.retrieval.vectors import Columns
from edgemem.store.changes import StoredPostings, word_terms

__all__ = ["Corpus", "Matches", "Postings", "PostingsView", "embedded_text", "gram_counts"]
__all__ += ["query_grams", "query_terms", "query_words", "search_text", "time_terms"]


_DAY_LINE = re.compile(rf"\n{language.DAY_TEXT}\Z")
MAX_WORDS = 32  # of a query; more words of a pasted page would not find more
MAX_GRAMS = 8 * MAX_WORDS


def search_text(text: str, *, speaker: str | None = None, when: str | None = None) -> str:
    """What is indexed of a memory: who said it, the text, and the day it speaks of.

    when: ISO-8601. The day is written as people ask for it ("8 May 2023").
    """
    said = f"{speaker}: {text}" if speaker else text
    return f"{said}\n{language.day_text(local_time(when))}" if when else said


def embedded_text(search_text: str) -> str:
    """The part of an indexed text that is embedded: all but the day at its end.

    The same fact of two different days must have the same vector.
    """
    return _DAY_LINE.sub("", search_text)


def query_words(query: str) -> list[str]:
    """The words of a query that are worth looking for, each once, at most 32.

    Stop words are left out, except of a query that has no other words.
    """
    return list(dict.fromkeys(language.content_words(query) or language.words(query)))[:MAX_WORDS]


def query_terms(query: str, now: float) -> list[str]:
    """The terms of a query's words as the full-text index has them, each once.

    now: Unix seconds, to resolve relative dates. "last month" becomes the words of that month,
    which every memory of that month has in its day.
    """
    dated, _ = language.absolute(
        language.spelled_days(query), datetime.fromtimestamp(now).astimezone().isoformat()
    )
    return word_terms(query_words(dated))


def query_grams(query: str) -> list[str]:
    """The grams of the terms of a query in another language, each once, at most 256."""
    return list(gram_counts(dict.fromkeys(word_terms(query_words(query)), 1)))[:MAX_GRAMS]


def gram_counts(terms: Mapping[str, int]) -> dict[str, int]:
    """The count of each gram in a text, from the count of each term in it."""
    found: dict[str, int] = {}
    for term, count in terms.items():
        for gram in language.grams(term):
            found[gram] = found.get(gram, 0) + count
    return found


@cache
def time_terms() -> list[str]:
    """The terms by which a text says when something was or will be.

    Months and years are not among them, because every indexed text ends with its day.
    """
    return word_terms(language.TIME_WORDS)


MAX_COUNT = 2**16 - 1
MAX_DEAD_SHARE = 0.25

# By slot, by term and by entry of the pool. doc: the slot's document number. live: whether the slot
# is that document's current one. room: the entries reserved for a term in the pool.
SLOT_COLUMNS: dict[str, type] = {"doc": np.int64, "lengths": np.int32, "live": np.bool_}
TERM_COLUMNS: dict[str, type] = {"start": np.int64, "size": np.int64, "room": np.int64}
POOL_COLUMNS: dict[str, type] = {"slots": np.int32, "counts": np.uint16}
DOC_COLUMNS: dict[str, type] = {"slot": np.int32}  # by document number; -1: none


@dataclass(frozen=True, slots=True)
class Corpus:
    """The documents that a search may find: a mask by slot, their number, and mean tokens."""

    allowed: BoolArray
    count: int
    average_length: float


@dataclass(frozen=True, slots=True)
class PostingsView:
    """A snapshot of the postings of some terms.

    docs: the document of each slot; ascending: whether these ascend. slots: the slot of each
    document.
    """

    query: Bm25Query
    docs: IntArray
    slots: NDArray[np.int32]
    ascending: bool

    def search(self, k: int) -> Matches:
        """The k documents with the best BM25. Raises ValueError if k < 1."""
        by_slot = np.empty(len(self.docs), np.float32)
        slots, scores, idf = bm25(self.query, k, by_slot)
        if not self.ascending and len(slots):
            # The kernel ordered equal scores by slot. Order them by document, including all that
            # tie with the last one.
            tied = np.flatnonzero(by_slot == scores[-1])
            slots = np.concatenate([slots[scores > scores[-1]], tied])
            slots = slots[np.lexsort((self.docs[slots], -by_slot[slots]))][:k]
            scores = by_slot[slots]
        return Matches(self.docs[slots], scores, idf, self, by_slot)


@dataclass(frozen=True, slots=True)
class Matches:
    """The best documents of a search, and the scores of all others.

    docs: (m,) int64 and scores: (m,) float32, best first, scores above 0, equal ones by lower
    document. idf: (t,) float64, of each query term, among the documents that the search may see.
    """

    docs: IntArray
    scores: FloatArray
    idf: DoubleArray
    _view: PostingsView
    _by_slot: FloatArray

    def features(
        self, around: IntArray, session: IntArray, timed: BoolArray | None, max_length: int
    ) -> FloatArray:
        """As `kernels.word_features`. timed: of `Postings.slots_with_any` in this generation."""
        view = self._view
        return word_features(
            around, session, view.slots, view.query, self.idf, self._by_slot, timed, max_length
        )


class Postings:
    """Which term is in which document. Not thread-safe; its views may be used in any thread."""

    def __init__(self) -> None:
        self._slots = Columns(SLOT_COLUMNS)
        self._terms = Columns(TERM_COLUMNS)
        self._pool = Columns(POOL_COLUMNS)
        self._term_ids: dict[str, int] = {}
        self._docs = Columns(DOC_COLUMNS)
        self._live_count = 0
        self._abandoned = 0  # entries of the pool that terms have moved away from
        self._ascending = True  # slots ascend with their documents

    @property
    def doc_end(self) -> int:
        """One more than the highest document number so far; a mask needs as many entries."""
        return self._docs.size

    def memory_bytes(self) -> int:
        """Bytes of the arrays and of the table of terms."""
        names = sum(sys.getsizeof(term) + 32 for term in self._term_ids)  # 32: the int of its id
        arrays = (self._slots, self._terms, self._pool, self._docs)
        return sum(a.nbytes() for a in arrays) + sys.getsizeof(self._term_ids) + names

    @classmethod
    def of(cls, stored: StoredPostings) -> Postings:
        """The postings that a store holds. A document's number is its memory's rowid."""
        postings = cls()
        postings._add_slots(stored.rowids, stored.lengths)
        postings._term_ids = {term: i for i, term in enumerate(stored.terms)}
        slots = postings._docs["slot"][stored.docs]
        postings._fill_pool(np.diff(stored.offsets), slots, stored.counts)
        return postings

    def by_grams(self) -> Postings:
        """Postings of the same documents by their terms' grams. Cost O(grams of all documents)."""
        ids: dict[str, int] = {}
        cut = [
            [ids.setdefault(gram, len(ids)) for gram in language.grams(term)]
            for term in self._term_ids
        ]
        # Each posting of a term becomes a posting of each of the term's grams.
        repeats = np.array([len(gram_ids) for gram_ids in cut], np.int64)
        sizes = np.repeat(self._terms["size"], repeats)
        at = _spans(np.repeat(self._terms["start"], repeats), sizes)
        gram_of = np.repeat(np.array([id for gram_ids in cut for id in gram_ids], np.int64), sizes)
        slots, counts = self._pool["slots"][at], self._pool["counts"][at]
        live, end = self._slots["live"][slots], self.doc_end
        pairs = gram_of[live] * end + self._slots["doc"][slots[live]]
        keys = distinct(pairs)
        totals = np.bincount(np.searchsorted(keys, pairs), counts[live], len(keys)).astype(np.int64)
        present = distinct(keys // end)
        names = list(ids)
        docs = np.sort(self._slots["doc"][self._slots["live"]])
        return Postings.of(
            StoredPostings(
                [names[i] for i in present.tolist()],
                np.append(np.searchsorted(keys, present * end), len(keys)),
                (keys % end).astype(np.int32),
                np.minimum(totals, MAX_COUNT).astype(np.uint16),
                docs,
                np.bincount(keys % end, totals, end)[docs].astype(np.int32),
            )
        )

    def apply(
        self, removed: Iterable[int], docs: Sequence[int], terms: Sequence[Mapping[str, int]]
    ) -> None:
        """Remove documents, and add new or changed ones.

        removed: numbers; unknown ones are ignored. docs: numbers >= 1, each once. terms: for each
        of docs, the count of each term (>= 1). Cost O(postings of docs), rarely a copy of all.
        """
        numbers = np.asarray(docs, np.int64).reshape(-1)
        self._drop(np.concatenate([np.asarray(list(removed), np.int64), numbers]))
        order = np.argsort(numbers)
        counted = [terms[i] for i in order.tolist()]
        lengths = np.array([sum(each.values()) for each in counted], np.int32)
        slots = self._add_slots(numbers[order], lengths)
        ids = self._term_ids
        self._add_postings(
            np.array([ids.setdefault(t, len(ids)) for each in counted for t in each], np.int64),
            np.repeat(slots, [len(each) for each in counted]),
            np.array([min(c, MAX_COUNT) for each in counted for c in each.values()], np.uint16),
        )
        if (
            self._slots.size - self._live_count > MAX_DEAD_SHARE * self._slots.size
            or self._abandoned > MAX_DEAD_SHARE * self._pool.size
        ):
            self._compact()

    def corpus(self, allowed: BoolArray) -> Corpus:
        """The documents that searches may find until the next `apply`. Cost O(documents).

        allowed: (doc_end,) or longer, bool by document number.
        """
        mask = allowed[self._slots["doc"]] & self._slots["live"]
        count = int(np.count_nonzero(mask))
        tokens = int(self._slots["lengths"].sum(where=mask, dtype=np.int64))
        # If none of them has a token, none has a term, and any average will do.
        return Corpus(mask, count, tokens / count if tokens else 1.0)

    def view(self, terms: Sequence[str], corpus: Corpus) -> PostingsView:
        """A snapshot of the terms' postings for one search.

        terms: each once, as `store.changes.word_terms` gives them.
        """
        query = Bm25Query(
            self._pool["slots"],
            self._pool["counts"],
            *self._spans_of(terms),
            self._slots["lengths"],
            corpus.allowed,
            corpus.count,
            corpus.average_length,
        )
        return PostingsView(query, self._slots["doc"], self._docs["slot"], self._ascending)

    def slots_with_any(self, terms: Sequence[str]) -> BoolArray:
        """By slot, whether its document has any of these terms, for `Matches.features`."""
        marked = np.zeros(self._slots.size, np.bool_)
        starts, sizes = self._spans_of(terms)
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            marked[self._pool["slots"][start : start + size]] = True
        return marked

    def _spans_of(self, terms: Iterable[str]) -> tuple[IntArray, IntArray]:
        """Where the terms' postings lie in the pool: starts and sizes; 0 and 0 if unknown."""
        ids = np.array([self._term_ids.get(term, -1) for term in terms], np.int64)
        known = ids >= 0
        starts, sizes = np.zeros((2, len(ids)), np.int64)
        starts[known] = self._terms["start"][ids[known]]
        sizes[known] = self._terms["size"][ids[known]]
        return starts, sizes

    def _drop(self, docs: IntArray) -> None:
        docs = distinct(docs[(docs > 0) & (docs < self.doc_end)])
        docs = docs[self._docs["slot"][docs] >= 0]
        if len(docs):
            self._slots["live"][self._docs["slot"][docs]] = False
            self._docs.replace("slot")[docs] = -1
            self._live_count -= len(docs)

    def _add_slots(self, docs: IntArray, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
        """Adds slots for documents that have none. docs: ascending."""
        if not len(docs):
            return np.empty(0, np.int32)
        first, end = self._slots.size, self.doc_end
        slots = np.arange(first, first + len(docs), dtype=np.int32)
        if first and docs[0] < self._slots["doc"][-1]:
            self._ascending = False
        self._slots.grow(len(docs))
        self._slots["doc"][first:] = docs
        self._slots["lengths"][first:] = lengths
        self._slots["live"][first:] = True
        if docs[0] < end:
            self._docs.replace("slot")
        self._docs.grow(max(0, int(docs[-1]) + 1 - end))
        self._docs["slot"][end:] = -1
        self._docs["slot"][docs] = slots
        self._live_count += len(docs)
        return slots

    def _add_postings(
        self, ids: IntArray, slots: NDArray[np.int32], counts: NDArray[np.uint16]
    ) -> None:
        new = self._terms.size
        self._terms.grow(len(self._term_ids) - new)
        for name in TERM_COLUMNS:
            self._terms[name][new:] = 0
        order = np.argsort(ids, kind="stable")  # within a term, slots still ascend
        terms, more = np.unique(ids, return_counts=True)
        had = self._terms["size"][terms]
        full = had + more > self._terms["room"][terms]
        self._relocate(terms[full], (had + more)[full])
        at = _spans(self._terms["start"][terms] + had, more)
        self._pool["slots"][at] = slots[order]
        self._pool["counts"][at] = counts[order]
        self._terms["size"][terms] = had + more

    def _relocate(self, terms: IntArray, needed: IntArray) -> None:
        """Move terms to larger rooms at the pool's end. The old entries stay, for views."""
        sizes, room = self._terms["size"][terms], _room(needed)
        old = _spans(self._terms["start"][terms], sizes)
        start = self._pool.size + np.cumsum(room) - room
        self._pool.grow(int(room.sum()))
        for name in POOL_COLUMNS:
            self._pool[name][_spans(start, sizes)] = self._pool[name][old]
        self._abandoned += int(self._terms["room"][terms].sum())
        self._terms["start"][terms], self._terms["room"][terms] = start, room

    def _fill_pool(
        self, sizes: IntArray, slots: NDArray[np.int32], counts: NDArray[np.uint16]
    ) -> None:
        """Make a new pool. sizes: of each term; slots, counts: all postings, term by term."""
        room = _room(sizes)
        start = np.cumsum(room) - room
        self._terms, self._pool, self._abandoned = Columns(TERM_COLUMNS), Columns(POOL_COLUMNS), 0
        self._terms.grow(len(sizes))
        self._pool.grow(int(room.sum()))
        for name, values in (("start", start), ("size", sizes), ("room", room)):
            self._terms[name][:] = values
        at = _spans(start, sizes)
        self._pool["slots"][at] = slots
        self._pool["counts"][at] = counts

    def _compact(self) -> None:
        """Make new arrays without dead slots, their postings and the terms that only they had."""
        at = _spans(self._terms["start"], self._terms["size"])
        slots, counts = self._pool["slots"][at], self._pool["counts"][at]
        live = self._slots["live"]
        keep = live[slots]
        # Every term has a posting: it is added with one, and dropped here if none is left.
        ends = np.cumsum(self._terms["size"])
        sizes = np.add.reduceat(keep, ends - self._terms["size"], dtype=np.int64)
        left = [t for t, size in zip(self._term_ids, sizes.tolist(), strict=True) if size]
        self._term_ids = {term: i for i, term in enumerate(left)}
        renumbered = (np.cumsum(live) - 1).astype(np.int32)
        self._fill_pool(sizes[sizes > 0], renumbered[slots[keep]], counts[keep])
        self._slots.take(live)
        docs = self._slots["doc"]
        self._docs.replace("slot")[docs] = np.arange(len(docs))
        self._ascending = bool(np.all(np.diff(docs) > 0))


def _room(sizes: IntArray) -> IntArray:
    """Entries to reserve: an eighth more and one, but none more for a term of one memory."""
    return sizes + sizes // 8 + (sizes > 1)


def _spans(starts: IntArray, sizes: IntArray) -> IntArray:
    """The ranges [start, start + size) as one array, one after another."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(sizes.sum())

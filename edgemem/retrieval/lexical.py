"""Full-text search: the text indexed of a memory, the terms of a query, and BM25 in memory.

`Postings` maps terms to documents, and is updated as memories come and go. It is a disposable copy
of the store's full-text index, which stays authoritative.

A change makes new arrays, so a search reads those that it was given.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
from edgemem.store.changes import StoredPostings, word_terms

__all__ = ["Corpus", "Matches", "Postings", "embedded_text", "gram_counts", "query_grams"]
__all__ += ["query_terms", "query_words", "search_text", "time_terms"]


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
MAX_UNUSED_SHARE = 0.25  # of the terms, that are in no document


@dataclass(frozen=True, slots=True)
class Corpus:
    """The documents that a search may find: a mask by number, how many, and their mean tokens."""

    allowed: BoolArray
    count: int
    average_length: float


@dataclass(frozen=True, slots=True)
class Matches:
    """The best documents of a search, and the scores of all others.

    docs: (m,) int64 and scores: (m,) float32, best first, scores above 0, equal ones by lower
    document. idf: (t,) float64, of each query term, among the documents that the search may see.
    all_scores: (n,) float32, of every document by its number.
    """

    docs: IntArray
    scores: FloatArray
    idf: DoubleArray
    all_scores: FloatArray
    query: Bm25Query

    @classmethod
    def of(cls, query: Bm25Query, k: int) -> Matches:
        """The k documents with the best BM25. Raises ValueError if k < 1."""
        all_scores = np.empty(len(query.lengths), np.float32)
        return cls(*bm25(query, k, all_scores), all_scores, query)

    def features(
        self, around: IntArray, session: IntArray, timed: BoolArray | None, max_length: int
    ) -> FloatArray:
        """As `kernels.word_features`. timed: of `Postings.with_any` in this generation."""
        documents = np.arange(len(self.all_scores), dtype=np.int32)
        return word_features(
            around, session, documents, self.query, self.idf, self.all_scores, timed, max_length
        )


class Postings:
    """Which term is in which document. Not thread-safe; its views may be used in any thread.

    The postings of all terms lie in two arrays, term by term, and by document within a term.
    """

    def __init__(self) -> None:
        self._term_ids: dict[str, int] = {}
        self._offsets = np.zeros(1, np.int64)  # where each term's postings begin, and the last end
        self._docs = np.empty(0, np.int32)
        self._counts = np.empty(0, np.uint16)
        self._lengths = np.zeros(1, np.int32)  # by document
        self._live = np.zeros(1, np.bool_)  # by document

    @property
    def doc_end(self) -> int:
        """One more than the highest document number so far; a mask needs as many entries."""
        return len(self._live)

    def memory_bytes(self) -> int:
        """Bytes of the arrays and of the table of terms."""
        names = sum(sys.getsizeof(term) + 32 for term in self._term_ids)  # 32: the int of its id
        arrays = (self._offsets, self._docs, self._counts, self._lengths, self._live)
        return sum(a.nbytes for a in arrays) + sys.getsizeof(self._term_ids) + names

    @classmethod
    def of(cls, stored: StoredPostings) -> Postings:
        """The postings that a store holds. A document's number is its memory's rowid."""
        postings = cls()
        postings._term_ids = {term: i for i, term in enumerate(stored.terms)}
        postings._offsets = stored.offsets
        postings._docs, postings._counts = stored.docs, stored.counts
        postings._add_documents(stored.rowids, stored.lengths)
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
        sizes = np.repeat(np.diff(self._offsets), repeats)
        before = np.cumsum(sizes) - sizes
        at = np.repeat(np.repeat(self._offsets[:-1], repeats) - before, sizes)
        at += np.arange(len(at))
        gram_of = np.repeat(np.array([id for gram_ids in cut for id in gram_ids], np.int64), sizes)
        end = self.doc_end
        pairs = gram_of * end + self._docs[at]
        keys = distinct(pairs)
        totals = np.bincount(np.searchsorted(keys, pairs), self._counts[at], len(keys))
        present = distinct(keys // end)
        names = list(ids)
        docs = np.flatnonzero(self._live)
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
        of docs, the count of each term (>= 1). Copies all postings, so that views keep theirs.
        """
        numbers = np.asarray(docs, np.int64).reshape(-1)
        self._drop(np.concatenate([np.asarray(list(removed), np.int64), numbers]))
        self._add_documents(numbers, [sum(counted.values()) for counted in terms])
        ids = self._term_ids
        added = sorted(
            (ids.setdefault(term, len(ids)), doc, min(count, MAX_COUNT))
            for doc, counted in zip(numbers.tolist(), terms, strict=True)
            for term, count in counted.items()
        )
        if not added:
            return
        none_yet = np.full(len(ids) + 1 - len(self._offsets), self._offsets[-1])
        starts = np.concatenate([self._offsets, none_yet])
        at = [
            starts[term] + np.searchsorted(self._docs[starts[term] : starts[term + 1]], doc)
            for term, doc, _ in added
        ]
        of, added_docs, counts = np.array(added, np.int64).T
        self._docs = _inserted(self._docs, at, added_docs)
        self._counts = _inserted(self._counts, at, counts)
        more = np.cumsum(np.bincount(of, minlength=len(ids)))
        self._offsets = starts + np.concatenate([[0], more])

    def corpus(self, allowed: BoolArray) -> Corpus:
        """The documents that searches may find until the next `apply`. Cost O(documents).

        allowed: (doc_end,) or longer, bool by document number.
        """
        mask = allowed[: self.doc_end] & self._live
        count = int(np.count_nonzero(mask))
        tokens = int(self._lengths.sum(where=mask, dtype=np.int64))
        # If none of them has a token, none has a term, and any average will do.
        return Corpus(mask, count, tokens / count if tokens else 1.0)

    def view(self, terms: Sequence[str], corpus: Corpus) -> Bm25Query:
        """A snapshot of the terms' postings for one search.

        terms: each once, as `store.changes.word_terms` gives them.
        """
        starts, sizes = self._spans_of(terms)
        return Bm25Query(
            self._docs, self._counts, starts, sizes, self._lengths,
            corpus.allowed, corpus.count, corpus.average_length,
        )  # fmt: skip

    def with_any(self, terms: Sequence[str]) -> BoolArray:
        """By document, whether it has any of these terms, for `Matches.features`."""
        marked = np.zeros(self.doc_end, np.bool_)
        starts, sizes = self._spans_of(terms)
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            marked[self._docs[start : start + size]] = True
        return marked

    def _spans_of(self, terms: Iterable[str]) -> tuple[IntArray, IntArray]:
        """Where the terms' postings lie: starts and sizes; an unknown term has none."""
        ids = np.array([self._term_ids.get(term, -1) for term in terms], np.int64)
        starts = self._offsets[ids]
        return starts, np.where(ids < 0, 0, np.append(np.diff(self._offsets), 0)[ids])

    def _add_documents(self, docs: IntArray, lengths: ArrayLike) -> None:
        grown = max(0, int(docs.max(initial=0)) + 1 - self.doc_end)
        self._live = np.append(self._live, np.zeros(grown, np.bool_))
        self._lengths = np.append(self._lengths, np.zeros(grown, np.int32))
        self._live[docs] = True
        self._lengths[docs] = lengths

    def _drop(self, docs: IntArray) -> None:
        docs = docs[(docs > 0) & (docs < self.doc_end)]
        if not self._live[docs].any():
            return
        self._live = self._live.copy()
        self._live[docs] = False
        kept = self._live[self._docs]
        self._docs, self._counts = self._docs[kept], self._counts[kept]
        self._offsets = self._offsets - np.searchsorted(np.flatnonzero(~kept), self._offsets)
        used = np.diff(self._offsets) > 0
        if np.count_nonzero(used) < (1 - MAX_UNUSED_SHARE) * len(used):
            left = [t for t, is_used in zip(self._term_ids, used.tolist(), strict=True) if is_used]
            self._term_ids = {term: i for i, term in enumerate(left)}
            self._offsets = np.append(self._offsets[:-1][used], self._offsets[-1])


def _inserted(array: NDArray[Any], at: Sequence[int], values: IntArray) -> NDArray[Any]:
    """As `np.insert`, and many times faster for a few values. at: ascending."""
    pieces = np.split(array, at)
    new = np.split(values.astype(array.dtype), len(values))
    return np.concatenate([*chain.from_iterable(zip(pieces, new, strict=False)), pieces[-1]])

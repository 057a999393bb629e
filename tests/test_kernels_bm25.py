"""The BM25 kernel, native and NumPy, gives what the formula says."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wordkit import textbook

from edgemem.kernels import Bm25Query
from tests.kernelkit import every_way

every_bm25 = every_way("bm25", "bm25")


def packed(terms, lengths, allowed=None, gap=0, **more):
    """A query over terms given as {document: count}; gap: entries between them of no term."""
    docs, counts, starts = [], [], []
    for term in terms:
        docs += [2**31 - 1] * gap
        counts += [1] * gap
        starts.append(len(docs))
        docs += sorted(term)
        counts += [term[doc] for doc in sorted(term)]
    lengths = np.array(lengths, np.int32)
    counted = lengths if allowed is None else lengths[allowed]
    return Bm25Query(
        np.array(docs, np.int32),
        np.array(counts, np.uint16),
        np.array(starts, np.int64),
        np.array([len(term) for term in terms], np.int64),
        lengths,
        allowed,
        n_allowed=len(counted),
        average_length=float(counted.mean()) if counted.any() else 1.0,
        **more,
    )


def assert_is_textbook(bm25, terms, lengths, allowed, k, k1=1.2, b=0.75, gap=0):
    dense = np.full(len(lengths), np.nan, np.float32)
    query = packed(terms, lengths, allowed, gap, k1=k1, b=b)
    docs, scores, idf = bm25(query, k, dense)
    counted = {d: n for d, n in enumerate(lengths) if allowed is None or allowed[d]}
    having, idfs = textbook(terms, counted, k1, b)
    expected = [having.get(d, 0.0) for d in range(len(lengths))]
    assert (docs.dtype, scores.dtype, idf.dtype) == (np.int64, np.float32, np.float64)
    np.testing.assert_allclose(idf, idfs, rtol=1e-12)
    np.testing.assert_allclose(dense, expected, rtol=1e-5)
    touched = [d for d, score in enumerate(expected) if score > 0]
    assert len(docs) == min(k, len(touched)) and set(docs.tolist()) <= set(touched)
    assert scores.tolist() == dense[docs].tolist()
    # By score, then by number; and none that is left out is better than one that is given.
    order = np.lexsort((np.arange(len(dense)), -dense))
    assert docs.tolist() == order[: len(docs)].tolist()


def corpus(seed, n, terms):
    rng = np.random.default_rng(seed)
    share = rng.random(terms) ** 3
    counts = [
        {d: int(rng.integers(1, 4)) for d in range(n) if rng.random() < share[t]}
        for t in range(terms)
    ]
    others = rng.integers(0, 20, n)
    return counts, [int(others[d]) + sum(c.get(d, 0) for c in counts) for d in range(n)]


# 1, odd, and one beside the widths that the native kernel works in: 4, 8 and blocks of 128.
@every_bm25
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 127, 128, 129, 255, 256, 257, 1000])
def test_every_size_gives_the_textbooks_scores(bm25, n):
    terms, lengths = corpus(n, n, 3)
    terms.append({d: 1 + d % 2 for d in range(n)})  # one that all documents have
    for allowed in (None, np.random.default_rng(n).random(n) < 0.6):
        for k in (1, 2, n, n + 5):
            assert_is_textbook(bm25, terms, lengths, allowed, k)


@every_bm25
@settings(max_examples=150)
@given(data=st.data())
def test_any_corpus_gives_the_textbooks_scores(bm25, data):
    """Also one of no documents, a query of no terms, and a term of no document."""
    n = data.draw(st.integers(0, 30))
    doc = st.integers(0, n - 1) if n else st.nothing()
    term = st.dictionaries(doc, st.integers(1, 65535), max_size=n) if n else st.just({})
    terms = data.draw(st.lists(term, max_size=5))
    spare = data.draw(st.lists(st.integers(0, 50), min_size=n, max_size=n))
    lengths = [spare[d] + sum(t.get(d, 0) for t in terms) for d in range(n)]
    allowed = None
    if data.draw(st.booleans()):
        allowed = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), np.bool_)
    k1 = data.draw(st.sampled_from([0.0, 0.9, 1.2, 2.0]))
    b = data.draw(st.sampled_from([0.0, 0.4, 0.75, 1.0]))
    k, gap = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 3))
    assert_is_textbook(bm25, terms, lengths, allowed, k, k1, b, gap)


@every_bm25
def test_what_is_not_allowed_has_no_influence(bm25):
    terms, lengths = corpus(1, 60, 3)
    allowed = np.arange(60) < 40
    alone = [{d: c for d, c in term.items() if d < 40} for term in terms]
    dense, small = np.empty(60, np.float32), np.empty(40, np.float32)
    docs, scores, idf = bm25(packed(terms, lengths, allowed), 60, dense)
    docs_alone, scores_alone, idf_alone = bm25(packed(alone, lengths[:40]), 60, small)
    assert docs.tolist() == docs_alone.tolist() and scores.tolist() == scores_alone.tolist()
    assert idf.tolist() == idf_alone.tolist()
    assert dense[:40].tolist() == small.tolist() and not dense[40:].any()


@every_bm25
def test_an_average_of_the_whole_store_may_be_given(bm25):
    """N and the average are the caller's; more documents than N leave the weight above 0."""
    query = replace(packed([{0: 1, 1: 1, 2: 1}], [3, 3, 3]), n_allowed=1)
    _, scores, idf = bm25(query, 3, np.empty(3, np.float32))
    assert idf == pytest.approx([math.log(1 + 0.5 / 3.5)]) and (scores > 0).all()


@every_bm25
def test_a_k_beyond_all_bounds_gives_all(bm25):
    assert bm25(packed([{0: 1}], [1]), 2**70, np.empty(1, np.float32))[0].tolist() == [0]

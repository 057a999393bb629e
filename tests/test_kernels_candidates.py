"""A search's candidates and what is said of them: native and NumPy give the same answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemem import kernels, kernels_candidates
from edgemem.kernels import Bm25Query
from tests.kernelkit import DIMS, every_way, needs_native, whole_numbers

every_best_dots = every_way("best_dots", "best_dots")
every_best_dots_i8 = every_way("best_dots_i8", "best_dots")
every_beside = every_way("beside", "beside")
every_word_features = every_way("word_features", "word_features")


def ints(*numbers):
    return np.array(numbers, np.int64)


# The best of a memory's rows


def chains(rng, n, memories):
    """Rows dealt to memories, as ascending chains: first, next, and the rows of each memory."""
    owner = rng.integers(0, memories, n)
    of = [np.flatnonzero(owner == memory).tolist() for memory in range(memories)]
    first, next = np.full(memories, -1), np.full(n, -1)
    for memory, rows in enumerate(of):
        first[memory] = rows[0] if rows else -1
        next[rows[:-1]] = rows[1:]
    return first, next, of


def best_of(rows, of, wanted, query):
    """The definition, slowly."""
    products = rows.astype(np.float64) @ query
    known = [of[w] if 0 <= w < len(of) else [] for w in wanted]
    return [max((products[r] for r in mine), default=-math.inf) for mine in known]


@every_best_dots
@pytest.mark.parametrize("dim", DIMS)
def test_every_width_gives_the_best_of_a_memorys_rows(best_dots, dim):
    rows, query = whole_numbers(dim, 30, dim), whole_numbers(dim + 1, dim)
    first, next, of = chains(np.random.default_rng(dim), 30, 12)
    wanted = ints(11, 0, 3, 3, 12, -1, 2**40, *range(12))
    found = best_dots(rows, first, next, wanted, query)
    assert found.dtype == np.float32
    assert found.tolist() == best_of(rows, of, wanted, query)


@every_best_dots
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_chains_give_the_best_of_a_memorys_rows(best_dots, data):
    n, memories = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 20))
    dim, seed = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 2**32))
    rows, query = whole_numbers(seed, n, dim), whole_numbers(seed + 1, dim)
    first, next, of = chains(np.random.default_rng(seed), n, memories)
    wanted = np.array(data.draw(st.lists(st.integers(-2, memories + 2), max_size=40)), np.int64)
    found = best_dots(rows, first, next, wanted, query)
    assert found.tolist() == best_of(rows, of, wanted, query)


@every_best_dots_i8
def test_int8_rows_count_with_their_scales(best_dots):
    floats = np.random.default_rng(1).standard_normal((40, 33)).astype(np.float32)
    rows, scales = kernels.quantize_i8(floats)
    first, next, of = chains(np.random.default_rng(2), 40, 15)
    query = floats[0].copy()
    found = best_dots(rows, scales, first, next, np.arange(15), query)
    exact = best_of(rows * scales[:, None].astype(np.float64), of, range(15), query)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)


@every_best_dots
def test_a_chain_ends_before_what_is_no_row_or_does_not_ascend(best_dots):
    rows, one = np.arange(6, dtype=np.float32)[:, None], np.ones(1, np.float32)
    next = ints(1, 0, 2, 9, -5, 6)
    first = ints(0, 2, 3, 4, 5, 6, -1)
    assert best_dots(rows, first, next, np.arange(7), one).tolist() == [
        *(1, 2, 3, 4, 5),
        *(-math.inf, -math.inf),
    ]


@every_best_dots
def test_a_nan_is_passed_over(best_dots):
    rows, one = np.array([[np.nan], [2], [np.nan]], np.float32), np.ones(1, np.float32)
    found = best_dots(rows, ints(0, 2), ints(1, -1, -1), np.arange(2), one)
    assert found.tolist() == [2, -math.inf]


# Which memories


def candidates(proposals, place, before, after, speaker, allowed):
    """The definition, slowly."""

    def seen(memory):
        return memory if allowed[memory] else 0

    found = {p for p in proposals if allowed[p]}
    found |= {s for p in found for s in (before[place[p]], after[place[p]]) if allowed[s]}
    rows = []
    for c in sorted(found):
        at = place[c]
        left, right = before[at], after[at]
        replied = [seen(s) if speaker[s] != speaker[at] else 0 for s in (left, right)]
        rows.append([c, *replied, seen(left), seen(right), seen(before[left]), seen(after[right])])
    return rows


@every_beside
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_conversation_gives_the_defined_candidates(beside, data):
    n = data.draw(st.one_of(st.integers(1, 12), st.integers(60, 70)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    proposals = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), np.int64)
    place, before, after = rng.integers(0, n, (3, n))
    speaker = rng.integers(0, 3, n).astype(np.int32)
    allowed = rng.random(n) < data.draw(st.sampled_from([0.1, 0.7, 1.0]))
    allowed[0] = False
    given_ = (proposals, place, before, after, speaker, allowed)
    found = beside(*given_)
    assert found.dtype == np.int64 and found.shape[1] == kernels_candidates.AROUND
    assert found.tolist() == candidates(*(column.tolist() for column in given_))


@every_beside
def test_turns_stand_beside_each_other_and_facts_beside_their_turns(beside):
    # 1 to 5 are turns in a row, of which 4 may not be seen; 6 is a fact of turn 2.
    place = ints(0, 1, 2, 3, 4, 5, 2)
    before, after = ints(0, 0, 1, 2, 3, 4, 0), ints(0, 2, 3, 4, 5, 0, 0)
    speaker = np.array([0, 1, 2, 2, 1, 2, 2], np.int32)
    allowed = np.array([0, 1, 1, 1, 0, 1, 1], np.bool_)
    found = beside(ints(6, 6, 4), place, before, after, speaker, allowed)
    assert found.tolist() == [
        [1, 0, 2, 0, 2, 0, 3],
        [3, 0, 0, 2, 0, 1, 5],
        [6, 1, 0, 1, 3, 0, 0],
    ]
    assert beside(ints(), place, before, after, speaker, allowed).shape == (0, 7)


MEMORIES = {
    "proposals": ints(1),
    "place": ints(0, 1, 2),
    "before": ints(0, 0, 1),
    "after": ints(0, 2, 0),
    "speaker": np.ones(3, np.int32),
    "allowed": np.array([False, True, True]),
}
OUTSIDE = "a position lies outside its buffer, or a parameter outside its range"


@pytest.mark.parametrize("backend", ["numpy", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"proposals": np.ones(1, np.int32)}, "proposals must be a 1-d int64 array"),
        ({"before": ints(0)}, "before has 1 entries for 3 memories"),
        ({"speaker": ints(0, 1, 2)}, "speaker must be a 1-d int32 array, not 1-d int64"),
        ({"allowed": np.ones(3, np.bool_)}, "memory 0 is nobody: allowed[0] must be there, and"),
        ({"proposals": ints(3)}, OUTSIDE),
        ({"proposals": ints(-1)}, OUTSIDE),
        ({"place": ints(0, 3, 2)}, OUTSIDE),
        ({"before": ints(0, -1, 1)}, OUTSIDE),
        ({"after": ints(0, 9, 0)}, OUTSIDE),
    ],
)
def test_wrong_memories_are_refused(monkeypatch, backend, change, message):
    if backend == "numpy":
        monkeypatch.setattr(kernels_candidates, "_native", None)
    found = kernels_candidates.beside(**MEMORIES)
    assert found.tolist() == [[1, 0, 0, 0, 2, 0, 0], [2, 0, 0, 1, 0, 0, 0]]
    with pytest.raises(ValueError) as error:
        kernels_candidates.beside(**{**MEMORIES, **change})
    assert str(error.value).startswith(message)


# What their words say


def asked(terms, lengths):
    """Postings of these terms, each a set of documents, as bm25 takes them."""
    docs = np.array([d for term in terms for d in sorted(term)], np.int32)
    sizes = np.array([len(term) for term in terms], np.int64)
    starts = np.cumsum(sizes) - sizes
    lengths = np.array(lengths, np.int32)
    return Bm25Query(
        docs, np.ones(len(docs), np.uint16), starts, sizes, lengths, None, len(lengths), 1.0
    )


def said_of(around, session, slot, terms, lengths, idf, scores, timed, max_length):
    """The definition, slowly."""

    def slot_of(memory):
        return slot[memory] if 0 <= memory < len(slot) else -1

    def score(memory):
        return scores[slot_of(memory)] if slot_of(memory) >= 0 else 0.0

    rows = []
    for who in around:
        at = slot_of(who[0])
        near = {slot_of(other) for other in who[:3] if score(other) > 0}
        covered = sum(i for i, term in zip(idf, terms, strict=True) if term & near)
        there = [other[0] for other in around if session[other[0]] == session[who[0]]]
        rows.append(
            [
                score(who[0]),
                sum(map(score, who[3:])),
                covered / sum(idf) if len(idf) else 0.0,
                max(map(score, there)),
                math.log1p(min(lengths[at], max_length) if at >= 0 else 0),
                float(timed is not None and at >= 0 and timed[at]),
            ]
        )
    return rows


@every_word_features
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_words_give_the_defined_features(word_features, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    n, slots = data.draw(st.integers(1, 60)), data.draw(st.integers(0, 60))
    m = data.draw(st.integers(0, n))
    around = rng.integers(0, n + 3, (m, 7))
    around[:, 0] = np.sort(rng.choice(n, m, replace=False))
    session = rng.integers(0, 8, n)
    slot = rng.integers(-1, slots, data.draw(st.integers(0, n))).astype(np.int32)
    terms = [
        {d for d in range(slots) if rng.random() < share}
        for share in data.draw(st.lists(st.sampled_from([0.0, 0.1, 0.9]), max_size=5))
    ]
    lengths = rng.integers(0, 100, slots)
    idf = rng.uniform(0.1, 5, len(terms))
    scores = rng.uniform(-1, 2, slots).clip(0).astype(np.float32)
    timed = rng.random(slots) < 0.5 if data.draw(st.booleans()) else None
    query, max_length = asked(terms, lengths), data.draw(st.integers(0, 100))
    found = word_features(around, session, slot, query, idf, scores, timed, max_length)
    assert found.dtype == np.float32 and found.shape == (m, 6)
    expected = said_of(around, session, slot, terms, lengths, idf, scores, timed, max_length)
    np.testing.assert_allclose(found, np.reshape(expected, (m, 6)), rtol=1e-5, atol=1e-6)


ONE = {
    "around": ints(1, 0, 0, 0, 0, 0, 0)[None],
    "session": ints(0, 1),
    "slot": np.array([-1, 0], np.int32),
    "query": asked([{0}], [3]),
    "idf": np.ones(1),
    "scores": np.full(1, 2, np.float32),
    "timed": np.ones(1, np.bool_),
    "max_length": 64,
}


@pytest.mark.parametrize("backend", ["numpy", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"around": ints(1)}, "around must be a 2-d int64 array, not 1-d int64"),
        ({"around": ints(1, 2)[None]}, "around has 2 columns; 7 are needed"),
        ({"session": np.ones(2)}, "session must be a 1-d int64 array, not 1-d float64"),
        ({"slot": ints(-1, 0)}, "slot must be a 1-d int32 array, not 1-d int64"),
        ({"idf": np.ones(2)}, "idf has 2 numbers for 1 terms"),
        ({"scores": np.ones(2, np.float32)}, "scores has 2 entries for 1 documents"),
        ({"timed": np.ones(2, np.bool_)}, "timed has 2 entries for 1 documents"),
        ({"max_length": -1}, "max_length is -1; it must be 0 or more"),
        ({"session": ints(0)}, OUTSIDE),
        ({"around": ints(-1, 0, 0, 0, 0, 0, 0)[None]}, OUTSIDE),
        ({"slot": np.array([-1, 1], np.int32)}, OUTSIDE),
        ({"slot": np.array([-1, -2], np.int32)}, OUTSIDE),
    ],
)
def test_wrong_words_are_refused(monkeypatch, backend, change, message):
    if backend == "numpy":
        monkeypatch.setattr(kernels_candidates, "_native", None)
    found = kernels_candidates.word_features(**ONE)
    assert found.tolist() == [[2, 0, 1, 2, np.log1p(np.float32(3)), 1]]
    with pytest.raises(ValueError) as error:
        kernels_candidates.word_features(**{**ONE, **change})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": np.ones((3, 4))}, "rows must be a 2-d float32 array, not 2-d float64"),
        ({"first": ints(0).astype(np.int32)}, "first must be a 1-d int64 array, not 1-d int32"),
        ({"next": ints(0)}, "next has 1 entries for 3 rows"),
        ({"wanted": [0]}, "wanted must be a 1-d int64 array, not list"),
        ({"query": np.ones(5, np.float32)}, "query has 5 numbers, rows have 4"),
    ],
)
def test_wrong_chains_are_refused(change, message):
    right = {"rows": np.ones((3, 4), np.float32), "query": np.ones(4, np.float32)}
    right |= {"first": ints(0), "next": ints(1, -1, -1), "wanted": ints(0)}
    assert kernels_candidates.best_dots(**right).tolist() == [4]
    with pytest.raises(ValueError) as error:
        kernels_candidates.best_dots(**{**right, **change})
    assert str(error.value).startswith(message)


@needs_native
def test_the_native_module_checks_its_buffers_itself():
    from edgemem import _native

    columns = [MEMORIES[name] for name in ("place", "before", "after", "speaker", "allowed")]
    room, bytes_ = np.empty((3, 7), np.int64), np.empty(3, np.uint8)
    assert _native.beside(ints(1), *columns, bytes_, room) == 2
    for small in ((bytes_[:2], room), (bytes_, room[:2])):
        with pytest.raises(ValueError, match="do not fit"):
            _native.beside(ints(1, 2), *columns, *small)
    rows, one = np.ones((2, 3), np.float32), np.empty(1, np.float32)
    for next, query, out in (
        (ints(-1), rows[0], one),
        (ints(-1, -1), one, one),
        (ints(-1, -1), rows[0], one[:0]),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            _native.best_dots(rows, ints(0), next, ints(0), query, 0, out)
    query = ONE["query"]
    postings = [query.docs, query.starts, query.sizes]
    given_ = [ONE["around"], ONE["session"], ONE["slot"], *postings, ONE["idf"], ONE["scores"]]
    out = np.empty((1, 6), np.float32)
    for order, having in ((ints(0), bytes_), (ints(0, 0), bytes_[:2])):
        with pytest.raises(ValueError, match="do not fit"):
            _native.word_features(*given_, query.lengths, None, 9, order, having, out)
    _native.word_features(*given_, query.lengths, None, 9, ints(0, 0), bytes_, out)
    assert out[0, 0] == 2

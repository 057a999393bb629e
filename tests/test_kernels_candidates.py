"""A search's candidates and what is said of them: native and NumPy give the same answers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgemem import kernels
from edgemem.kernels import Bm25Query
from tests.kernelkit import DIMS, every_way, whole_numbers

every_similarities = every_way("similarities", "similarities")
every_beside = every_way("beside", "beside")
every_word_features = every_way("word_features", "word_features")


def ints(*numbers):
    return np.array(numbers, np.int64)


# How near a memory is


def chains(rng, n, memories):
    """Rows dealt to memories, as ascending chains: first, next, and the rows of each memory."""
    owner = rng.integers(0, memories, n)
    of = [np.flatnonzero(owner == memory).tolist() for memory in range(memories)]
    first, next = np.full(memories, -1), np.full(n, -1)
    for memory, rows in enumerate(of):
        first[memory] = rows[0] if rows else -1
        next[rows[:-1]] = rows[1:]
    return first, next, of


def nearness(rows, of, wanted, columns, query, offset, scale, limit):
    """The definition, slowly."""
    products = rows.astype(np.float64) @ query

    def near(memory):
        mine = [products[r] for r in of[memory]] if 0 <= memory < len(of) else []
        return min(max((max(mine) + offset) * scale, -limit), limit) if mine else 0.0

    return [[near(memory) for memory in row[:columns]] for row in wanted]


@every_similarities
@pytest.mark.parametrize("dim", DIMS)
def test_every_width_gives_the_best_of_a_memorys_rows(similarities, dim):
    rows, query = whole_numbers(dim, 30, dim), whole_numbers(dim + 1, dim)
    first, next, of = chains(np.random.default_rng(dim), 30, 12)
    wanted = ints(11, 0, 3, 3, 12, -1, 2**40, *range(12))[:, None]
    given_ = (1, query, 0.0, 1.0, math.inf)
    found = similarities(rows, first, next, wanted, *given_)
    assert found.dtype == np.float32
    assert found.tolist() == nearness(rows, of, wanted, *given_)


@every_similarities
@settings(max_examples=100)
@given(data=st.data())
def test_any_chains_give_the_defined_similarities(similarities, data):
    n, memories = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 20))
    dim, seed = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 2**32))
    m, width = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 4))
    rng = np.random.default_rng(seed)
    rows, query = whole_numbers(seed, n, dim), whole_numbers(seed + 1, dim)
    first, next, of = chains(rng, n, memories)
    wanted = rng.integers(-2, memories + 2, (m, width))
    columns = data.draw(st.integers(1, width))
    offset, limit = data.draw(st.integers(-5, 5)), data.draw(st.sampled_from([0.0, 3.0, math.inf]))
    given_ = (columns, query, offset, data.draw(st.sampled_from([0.5, 1.0, 4.0])), limit)
    found = similarities(rows, first, next, wanted, *given_)
    assert found.shape == (m, columns)
    assert found.tolist() == nearness(rows, of, wanted, *given_)


@every_similarities
def test_int8_rows_count_with_their_scales(similarities):
    floats = np.random.default_rng(1).standard_normal((40, 33)).astype(np.float32)
    rows, scales = kernels.quantize_i8(floats)
    first, next, of = chains(np.random.default_rng(2), 40, 15)
    wanted, given_ = np.arange(15)[:, None], (1, floats[0].copy(), 0.5, 2.0, 20.0)
    found = similarities(rows, first, next, wanted, *given_, scales)
    exact = nearness(rows * scales[:, None].astype(np.float64), of, wanted, *given_)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)


@every_similarities
def test_a_chain_ends_before_what_is_no_row_or_does_not_ascend(similarities):
    rows, one = np.arange(1, 7, dtype=np.float32)[:, None], np.ones(1, np.float32)
    first, next = ints(0, 2, 3, 4, 5, 6, -1), ints(1, 0, 2, 9, -5, 6)
    found = similarities(rows, first, next, np.arange(7)[:, None], 1, one, 0.0, 1.0, 9.0)
    assert found[:, 0].tolist() == [2, 3, 4, 5, 6, 0, 0]


@every_similarities
def test_a_nan_is_passed_over(similarities):
    rows, one = np.array([[np.nan], [2], [np.nan]], np.float32), np.ones(1, np.float32)
    given_ = (ints(0, 2), ints(1, -1, -1), np.arange(2)[:, None], 1, one, 0.0, 1.0, 9.0)
    assert similarities(rows, *given_).tolist() == [[2], [0]]


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
@settings(max_examples=200)
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
    assert found.dtype == np.int64 and found.shape[1] == kernels.AROUND
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
@settings(max_examples=200)
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

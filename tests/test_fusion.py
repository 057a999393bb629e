"""One score from cosine and BM25: absolute, in [0, 1], and the sieve that stands on it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgemem.retrieval.fusion import (
    RELEVANT_COSINE,
    RELEVANT_SCORE,
    WORDS_WEIGHT,
    fused,
    is_relevant,
)

cosines = st.floats(-1.001, 1.001)
bm25s = st.floats(0, 1e4)
idfs = st.floats(1e-6, 1e3)


@given(cosines, bm25s, idfs)
def test_a_score_is_the_sum_of_its_parts_and_lies_in_0_to_1(cosine, bm25, idf):
    parts = fused(cosine, bm25, idf)
    assert parts.keys() == {"cosine", "bm25"}
    assert all(part >= 0 for part in parts.values())
    assert 0 <= sum(parts.values()) <= 1 + 1e-12


@given(cosines, bm25s, idfs, st.floats(0, 1), st.floats(0, 10))
def test_more_of_either_never_lowers_a_score(cosine, bm25, idf, nearer, more):
    before = sum(fused(cosine, bm25, idf).values())
    assert sum(fused(cosine + nearer, bm25, idf).values()) >= before
    assert sum(fused(cosine, bm25 + more, idf).values()) >= before


def test_the_words_count_by_their_share_of_the_query():
    assert fused(0, 3, 6)["bm25"] == pytest.approx(WORDS_WEIGHT / 2)
    assert fused(0, 60, 6)["bm25"] == WORDS_WEIGHT
    assert fused(-0.5, 0, 6) == {"cosine": 0, "bm25": 0}


def test_enough_of_the_score_or_enough_meaning_alone_is_relevant():
    assert is_relevant({"cosine": 0.0, "bm25": RELEVANT_SCORE})
    assert not is_relevant({"cosine": 0.0, "bm25": RELEVANT_SCORE - 1e-6})
    assert is_relevant(fused(RELEVANT_COSINE, 0, 1))
    assert not is_relevant(fused(RELEVANT_COSINE - 1e-6, 0, 1))
    assert not is_relevant(fused(0, 0, 1))

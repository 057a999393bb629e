"""The invented memories of the benches: the same for a seed, and as hard to search as claimed."""

import numpy as np
import pytest

from bench.synthetic import DIM, corpus, queries
from edgemem.language import words

N = 3000


@pytest.fixture(scope="module")
def made():
    return corpus(N, seed=7)


def test_a_seed_gives_the_same_memories_and_another_seed_others(made):
    again, other = corpus(N, seed=7), corpus(N, seed=8)
    assert again.texts == made.texts and again.speakers == made.speakers
    assert np.allclose(again.vectors, made.vectors, atol=1e-6)
    assert other.texts != made.texts
    assert not np.allclose(other.vectors, made.vectors, atol=0.1)
    assert [q.text for q in queries(made, 5)] == [q.text for q in queries(again, 5)]


def test_vectors_are_as_near_to_each_other_as_those_of_text(made):
    assert made.vectors.shape == (N, DIM) and made.vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(made.vectors, axis=1), 1, atol=1e-5)
    cosines = made.vectors[:500] @ made.vectors.T
    assert 0.08 < cosines[:, 500:].mean() < 0.2
    cosines[np.arange(500), np.arange(500)] = -1
    assert 0.58 < np.median(cosines.max(axis=1)) < 0.72


def test_words_follow_zipf_and_new_ones_keep_turning_up(made):
    said = [words(text) for text in made.texts]
    assert min(map(len, said)) >= 8 and max(map(len, said)) <= 20
    flat = [word for text in said for word in text]
    half, whole = len(set(flat[: len(flat) // 2])), len(set(flat))
    assert 1.2 < whole / half < 1.7  # Heaps: 2 ** 0.55 = 1.46
    counts = np.sort(np.unique(flat, return_counts=True)[1])[::-1]
    assert 5 < counts[9] / counts[99] < 15  # Zipf: about 10


def test_a_question_is_near_its_memory_and_has_its_speaker_and_words(made):
    asked = queries(made, 200)
    cosines = [float(made.vectors[q.target] @ q.vector) for q in asked]
    assert 0.55 < np.median(cosines) < 0.7
    for query in asked:
        own = set(made.texts[query.target].split())
        speaker, *rest = query.text.removesuffix("?").split()
        assert speaker == made.speakers[query.target]
        assert len(own & set(rest)) >= 1


def test_a_corpus_smaller_than_a_subject_and_one_memory_work():
    for n in (1, 2, 49):
        small = corpus(n)
        assert len(small.vectors) == len(small.texts) == len(small.speakers) == n
        assert np.isfinite(small.vectors).all()
        assert queries(small, 1)[0].target < n
    with pytest.raises(ValueError, match="n is 0; it must be 1 or more"):
        corpus(0)

"""bench.questions and bench.fit_fusion: whose questions a search is asked, and what is learned."""

from dataclasses import replace

import numpy as np
import pytest
from memorykit import WordTokens, quick

from bench.fit_fusion import SHARES, fast, fit, hits, leave_one_out, reached
from bench.questions import Question, ask, by_session, by_turns
from corpus import readers
from corpus.annotated import store
from edgemem.retrieval.search import FEATURES, MATCHES

TALK = """# Mara (she), Joel (he)
@ 2024-03-09 18:20
Mara: I adopted a grey cat, he's called Biscuit.
? What is Mara's cat called? | Biscuit
Joel: My sister Wanda moved to Leeds.
? Who moved to Leeds? | Wanda
@ 2024-03-12 08:00
Mara: Biscuit broke the blue vase.
? What did Mara's grey pet break? | the blue vase | grey cat
Joel: I never liked that vase.
? Where did Joel buy the vase? | -
"""


@pytest.fixture
def talk(tmp_path):
    file = tmp_path / "talk.txt"
    file.write_text(TALK, encoding="utf-8")
    return readers.read_written(file)[0]


def test_a_part_has_the_questions_that_it_alone_answers(talk):
    for parts in (by_session(talk), by_turns(talk, 2)):
        assert [[q.answer for q in part.questions] for part in parts] == [
            ["Biscuit", "Wanda"],
            [None],
        ]
        assert [len(part.messages) for part in parts] == [2, 2]
        assert len({part.id for part in parts}) == 2
    assert [len(part.messages) for part in by_turns(talk, 3)] == [3]


def test_a_question_of_its_own_conversation_finds_its_evidence_and_no_other_does(
    talk,
):
    with quick() as memory:
        store(memory, talk)
        found = list(ask(memory, talk, talk.questions[:1], corpus="written", group="talk"))
    assert [q.asks for q in found] == ["own", "own", "own", "unknown", "other"]
    assert [int(q.evidence.sum()) for q in found] == [1, 1, 2, 0, 0]
    assert all(q.features.shape == (len(q.evidence), len(FEATURES)) for q in found)


def test_a_careful_memory_says_how_words_match_and_a_fast_one_sees_the_rest_as_it_is(
    talk,
):
    found = []
    for tokens in (WordTokens(), None):
        with quick(token_embedder=tokens) as memory:
            store(memory, talk)
            found.append(list(ask(memory, talk, [], corpus="written", group="talk")))
    careful, wanted = found
    assert all(q.features.shape[1] == len(FEATURES + MATCHES) for q in careful)
    around = len(FEATURES) + MATCHES.index("match_around")
    assert all((q.features[:, around] > 0).all() for q in careful)
    for cut, q in zip(fast(careful), wanted, strict=True):
        np.testing.assert_array_equal(cut.features, q.features)


def invented(corpus, group, asks, rng):
    """Of 20 memories the one that answers has a larger first feature; where none does, no one."""
    features = rng.standard_normal((20, len(FEATURES))).astype(np.float32)
    evidence = np.zeros(20, np.bool_)
    if asks == "own":
        evidence[rng.integers(20)] = True
        features[evidence, 0] += 4
    return Question(corpus, group, asks, features, evidence)


def test_the_feature_that_tells_is_found_and_what_nothing_answers_scores_low():
    rng = np.random.default_rng(3)
    asked = [
        invented(corpus, f"{corpus}{group}", asks, rng)
        for corpus in SHARES
        for group in range(3)
        for asks in ["own", "other", "unknown"] * 20
    ]
    weights = fit(asked).weights
    assert weights[0] == max(abs(weights)) and abs(weights[1:]).max() < 0.3 * weights[0]
    held_out = leave_one_out(asked, "written")
    assert len(held_out) == 180 and hits(held_out, [1])["hit_at_1"] > 0.9
    (row,) = [row for row in reached(held_out) if row["threshold"] == 0.5]
    assert row["own"] > 0.8 and row["other"] < 0.2 and row["unknown"] < 0.2


def test_a_corpus_counts_by_its_share_and_not_by_its_size():
    rng = np.random.default_rng(5)
    asked = [invented("locomo", "a", "own", rng) for _ in range(30)]
    other = [invented("written", "b", "own", rng) for _ in range(60)]
    turned = [replace(q, features=-q.features) for q in other]  # there the feature tells against
    once, ten_times = fit([*asked, *turned]), fit([*asked, *turned * 10])
    np.testing.assert_allclose(once.weights, ten_times.weights, atol=1e-3)

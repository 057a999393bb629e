"""Which words are kept: the budget, what is protected, and the order in which the rest goes."""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgemem.compression.compress import (
    Scores,
    Span,
    avg_pool,
    compress,
    estimated_tokens,
    fit_to_budget,
    group_means,
    join,
    lay_out,
    select,
)
from edgemem.errors import InputError

CASES = int(os.environ.get("EDGEMEM_CASES", "300"))
"""Generated cases of each property; 10,000 take some minutes."""


def chosen(text, budget, scores=None, **more):
    """What is kept of a text of which each word costs one token, by scores of its words."""
    layout = lay_out(text)
    n = len(layout.starts)
    spans = zip(layout.starts, layout.ends, strict=True)
    costs = np.array([len(text[a:b].split()) for a, b in spans], np.int64)
    worth = np.ones(n, np.float32) if scores is None else np.array(scores, np.float32)
    kept = select(layout, worth, costs, budget, **more)
    assert costs[kept].sum() <= budget
    return join(layout, kept)


# -- pooling, masks, means -----------------------------------------------------------------------


@settings(max_examples=200)
@given(values=st.lists(st.floats(0, 100), min_size=1, max_size=40))
def test_pooling_is_the_mean_of_the_neighbours_that_there_are(values):
    wanted = [np.mean(values[max(0, i - 2) : i + 3]) for i in range(len(values))]
    np.testing.assert_allclose(avg_pool(np.array(values, np.float32)), wanted, rtol=1e-4, atol=1e-4)


def test_a_units_score_is_the_mean_of_its_tokens():
    values, unit = np.array([1, 3, 5], np.float32), np.array([0, 0, 2])
    np.testing.assert_allclose(group_means(values, unit, 3), [2, 0, 5])
    np.testing.assert_allclose(group_means(values, unit, 3, np.array([3, 1, 2])), [1.5, 0, 5])


# -- selection -----------------------------------------------------------------------------------

LONG = "one two three four five six seven eight nine ten"


def test_sentences_go_by_their_mean_score():
    text = "aa bb. cc dd. ee ff."
    assert chosen(text, 4, [1, 1, 3, 3, 2, 2]) == "cc dd. ee ff."
    assert chosen(text, 2, [1, 1, 3, 3, 2, 2]) == "cc dd."
    assert chosen(text, 4, relevance=np.array([3, 1, 2], np.float32)) == "aa bb. ee ff."


def test_of_equal_sentences_the_first_stays():
    assert chosen("aa bb. cc dd. ee ff.", 4) == "aa bb. cc dd."


def test_the_middle_of_a_long_sentence_goes_first_and_its_ends_never():
    scores = [0, 0, 0, 5, 1, 4, 3, 0, 0, 0]
    assert chosen(LONG, 10, scores) == LONG
    assert chosen(LONG, 9, scores) == "one two three four six seven eight nine ten"
    assert chosen(LONG, 8, scores) == "one two three four six eight nine ten"
    assert chosen(LONG, 7, scores) == ""  # less than half of its middle fits


def test_a_sentence_of_eight_tokens_is_whole_or_gone():
    text = "one two three four five six seven eight"
    assert chosen(text, 7) == ""
    assert chosen(text, 8) == text


def test_a_negation_is_not_pruned():
    text = "we said that the cook will not come to the old house again now"
    scores = [1.0] * 14
    for i in (5, 6, 7):
        scores[i] = 0.0  # will not come
    kept = chosen(text, 12, scores)
    assert "will not come" in kept and len(kept.split()) == 12


def test_a_turns_head_comes_with_its_words_and_is_paid_once():
    text = "[8 May 2023] Ana: aa bb. cc dd.\n[9 May 2023] Bo: ee ff."
    assert chosen(text, 6, relevance=np.array([3, 1, 2], np.float32)) == "[8 May 2023] Ana: aa bb."
    assert chosen(text, 8, relevance=np.array([3, 2, 1], np.float32)) == (
        "[8 May 2023] Ana: aa bb. cc dd."
    )
    assert chosen(text, 5) == ""


def test_what_is_marked_stays_with_its_head():
    text = "Ana: aa bb cc. dd.\nBo: ee ff."
    keep = lay_out(text).units_over([(8, 10)])
    assert chosen(text, 2, keep=keep) == "Ana: bb"


def test_cut_words_are_joined_by_a_space_and_turns_by_a_line():
    text = "aa.  bb. cc.\n\ndd. ee."
    layout = lay_out(text)
    assert join(layout, np.array([1, 1, 0, 0, 1], bool)) == "aa.  bb.\nee."
    assert join(layout, np.array([1, 0, 1, 1, 1], bool)) == "aa. cc.\n\ndd. ee."
    assert join(layout, np.zeros(5, bool)) == ""
    assert join(lay_out(""), np.zeros(0, bool)) == ""


def test_the_budget_is_of_the_joined_text_whatever_the_parts_cost():
    """A tokenizer for which what was cut costs more than its parts did."""
    text = " ".join(f"w{i}." for i in range(20))
    layout = lay_out(text)

    def tokenize(text):
        return np.zeros((2 * len(text.split()), 2), np.int64)

    ones = np.ones(20, np.int64)
    found = fit_to_budget(layout, tokenize, 10, lambda b: select(layout, ones * 1.0, ones, b))
    assert found[1:] == ("w0. w1. w2. w3. w4.", 10)


# -- the whole way -------------------------------------------------------------------------------

WORDS = st.sampled_from(
    "tea Oslo not never 5 km 3 hours 8 May 2023 don't because however, Ana: walked quietly along "
    'the-river $3.50 https://a.b/c.d?e=f `x = 1. y` {"a":1} 日本語。 🙂🙂 naïve (really) [x] Dr. '
    "antidisestablishment 1,000,000 10:30 --- a.m.".split(" ")
)
LINES = st.tuples(
    st.sampled_from(["", "Ana: ", "[8 May 2023] Ana Lima: ", "On 8 May 2023, Bo said: "]),
    st.lists(st.tuples(WORDS, st.sampled_from([" ", " ", " ", ". ", "? ", "  "])), max_size=18),
).map(lambda line: line[0] + "".join(w + s for w, s in line[1]))
CONTEXTS = st.one_of(
    st.lists(LINES, min_size=1, max_size=5).map("\n".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
)


def check(data, tokenize):
    text = data.draw(CONTEXTS)
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    tokens = tokenize(text)
    budget = data.draw(st.integers(1, max(1, len(tokens))))
    scores = Scores(tokens, rng.random(len(tokens)).astype(np.float32), "made up")
    near = (lambda layout: rng.random(len(layout.turn)).astype(np.float32)) if seed % 2 else None
    place = sorted(rng.integers(0, len(text) + 1, 2).tolist())
    keep = [Span(0, *place)] if place[0] < place[1] and seed % 3 == 0 else []
    try:
        found = compress(
            [text],
            tokenize,
            target_token=budget,
            scorer=lambda _: scores,
            relevance=near,
            keep=keep,
        )
    except InputError as exc:
        assert keep and "give a larger budget, or keep less" in str(exc)
        return
    assert found.compressed_tokens == len(tokenize(found.compressed_prompt)) <= budget
    assert found.origin_tokens == len(tokens)
    at = 0
    for span in found.spans:
        piece = text[span.start : span.end]
        at = found.compressed_prompt.index(piece, at) + len(piece)  # all of it, and in order
    kept = np.zeros(len(text) + 1, bool)
    for span in found.spans:
        assert not kept[span.start : span.end].any()
        kept[span.start : span.end] = True
    said = "".join(c for c, k in zip(text, kept, strict=False) if k)
    assert "".join(said.split()) == "".join(found.compressed_prompt.split())
    layout = lay_out(text)
    for a, b in zip(layout.starts.tolist(), layout.ends.tolist(), strict=True):
        assert kept[a:b].all() or not kept[a:b].any()  # never cut inside
    for span in keep:
        marked = [c for c in range(span.start, span.end) if not text[c].isspace()]
        assert kept[marked].all()
    if not keep:
        check_sentences(layout, kept[layout.starts], tokens)


def check_sentences(layout, kept, tokens):
    """Heads stay with their turns, and a sentence's ends and negations with it."""
    costs = np.bincount(layout.unit_of(tokens[:, 1]), minlength=len(kept))
    turn = layout.turn[layout.sentence]
    for s in np.unique(layout.sentence[kept & ~layout.head]):
        of = np.flatnonzero((layout.sentence == s) & ~layout.head)
        assert kept[layout.head & (turn == layout.turn[s])].all()
        assert kept[of[layout.fixed[of]]].all()
        if costs[of].sum() <= 8:
            assert kept[of].all()
        for ends in (of, of[::-1]):
            before = np.cumsum(costs[ends]) - costs[ends]
            assert kept[ends[before < 3]].all()


@settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_budget_and_what_is_whole_hold_by_an_estimate(data):
    check(data, estimated_tokens)


@pytest.mark.models
@settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_budget_and_what_is_whole_hold_by_a_models_tokens(engine, data):
    check(data, engine.token_offsets)

"""Scores of given text: what they equal, and where tokens lie."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgemem.errors import ContextOverflow
from edgemem.runtime import llama
from edgemem.runtime.engine import SCORED_ROWS

pytestmark = pytest.mark.models

PROMPT = "The capital of France is"


def test_what_is_generated_is_the_likeliest(engine):
    said = engine.generate(PROMPT, max_tokens=1).text
    others = (" Berlin", " a", " the", " Rome")
    best = engine.log_probs(PROMPT, said)
    assert all(engine.log_probs(PROMPT, o)[0] <= best[0] for o in others if o != said)
    assert best[0] < 0


def test_a_score_is_the_log_of_the_softmax_of_the_logits(small):
    tokens = small.tokenize(PROMPT)
    for token in (0, 284, 49151):
        (score,) = small._score([*tokens, token], len(tokens))
        logits = np.ctypeslib.as_array(
            small._lib.llama_get_logits_ith(small._context, -1), shape=(small._vocabulary.size,)
        ).astype(np.float64)
        assert score == pytest.approx(logits[token] - np.log(np.exp(logits).sum()), abs=1e-4)


@pytest.mark.parametrize("n", [1, 2, SCORED_ROWS - 1, SCORED_ROWS, SCORED_ROWS + 1, 200])
def test_a_text_has_the_same_scores_in_one_piece_or_in_two(small, n):
    """log p(xy) = log p(x) + log p(y | x), whatever is computed at once."""
    tokens = (small.tokenize("On Monday we walked along the river and had tea. ") * 20)[: n + 2]
    whole = small._score(tokens, 1)
    assert whole.shape == (n + 1,)
    later = small._score(tokens, 2)
    np.testing.assert_allclose(whole[1:], later, atol=0.5)  # 8-bit activations: see prefixes.py
    assert np.abs(whole[1:] - later).mean() < 0.1


@pytest.mark.parametrize("n", [llama.N_BATCH, llama.N_BATCH + 1, llama.N_BATCH + 2])
def test_a_prefix_that_is_reused_changes_nothing(random_llama, n):
    engine = random_llama
    tokens = (engine.tokenize("She said that the harbour was quiet. ") * 200)[: n + 3]
    cold = engine._score(tokens, n)
    engine._score([*tokens[:100], 5, 6, 7], 101)  # shares a part of it
    np.testing.assert_array_equal(engine._score(tokens, n), cold)
    np.testing.assert_array_equal(engine._score(tokens, n), cold)


def test_scoring_leaves_generation_as_it_was(engine):
    before = engine.generate(PROMPT, max_tokens=8, stage="x").text
    engine.log_probs("Something else", " altogether")
    assert engine.generate(PROMPT, max_tokens=8, stage="x").text == before


def test_a_text_after_nothing_is_scored_from_its_first_token(engine):
    text = "Tea is hot."
    assert engine.log_probs("", text).shape == (len(engine.tokenize(text)),)
    assert engine.log_probs(PROMPT, "").shape == (0,)


def test_what_does_not_fit_is_refused(small):
    with pytest.raises(ContextOverflow, match="the text has 301 tokens, but n_ctx is 256"):
        small._score([5] * 301, 1)


@settings(suppress_health_check=list(HealthCheck))
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_tokens_cover_a_text_in_order(engine, text):
    spans = engine.token_offsets(text)
    assert len(spans) == len(engine.tokenize(text))
    if not len(spans):
        return  # no text, or only bytes that the vocabulary lacks
    starts, ends = spans.T
    assert (starts >= 0).all() and (starts < ends).all() and (ends <= len(text)).all()
    assert (starts[1:] >= starts[:-1]).all() and (ends[1:] >= ends[:-1]).all()
    pieces = [engine._vocabulary.piece(t) for t in engine.tokenize(text)]
    for (start, end), piece in zip(spans.tolist(), pieces, strict=True):
        assert piece in text[start:end].encode()
    if b"".join(pieces) == text.encode():  # no byte was left out
        assert starts[0] == 0 and ends[-1] == len(text)
        assert (starts[1:] <= ends[:-1]).all()


def test_a_byte_that_the_vocabulary_lacks_moves_no_other_token(engine):
    text = "tea \U00042140 milk"
    assert [text[a:b] for a, b in engine.token_offsets(text).tolist()][-1] == " milk"

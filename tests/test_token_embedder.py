"""Token vectors of the real model: what is kept of a text, and that near words match."""

import numpy as np
import pytest

from edgemem.errors import ModelNotFound
from edgemem.kernels import maxsim
from edgemem.runtime import models
from edgemem.runtime.embedder import TOKEN_MODEL, TokenEmbedder

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def tokens():
    try:
        models.find(TOKEN_MODEL)
    except ModelNotFound:
        pytest.skip("the extra colbert is not installed")
    return TokenEmbedder.load(n_threads=1)


def matched(tokens, query, *texts):
    """The mean over the query's tokens of their best match in each text, as a cosine."""
    made = [tokens.embed(text) for text in texts]
    offsets = np.cumsum([0, *map(len, made)])
    best = maxsim(np.concatenate(made), offsets, tokens.embed_query(query))
    return best.mean(axis=1) * tokens.step**2


def test_a_token_is_a_row_of_whole_numbers_near_length_one(tokens):
    found = tokens.embed("Ana: I moved to Oslo.")
    # [CLS], [D], ana, i, moved, to, oslo, [SEP]: without the colon and the full stop.
    assert found.shape == (8, tokens.dim) and found.dtype == np.int8
    lengths = np.linalg.norm(found.astype(np.float32), axis=1) * tokens.step
    np.testing.assert_allclose(lengths, 1, atol=0.02)


def test_a_text_has_the_same_vectors_every_time_and_a_query_others(tokens):
    text = "Ana moved to Oslo"
    np.testing.assert_array_equal(tokens.embed(text), tokens.embed(text))
    assert not np.array_equal(tokens.embed(text), tokens.embed_query(text))


def test_every_part_of_a_long_text_can_be_matched(tokens):
    long = "The weather was grey again. " * 120 + "Biscuit is a tortoise."
    assert len(tokens.embed(long)) > 600
    near, far = matched(tokens, "tortoise", long, "The weather was grey again.")
    assert near > far + 0.1
    assert len(tokens.embed_query(long)) == 64


def test_the_text_that_answers_is_matched_best(tokens):
    scores = matched(
        tokens,
        "Where does Ana live now?",
        "Ana: I moved to Oslo last month.",
        "Joel: My sister bought a kettle.",
        "Ana: The cello lesson went well.",
    )
    assert scores.argmax() == 0


def test_the_model_id_names_the_model_its_expert_and_the_projection(tokens):
    model, expert, projection = tokens.model_id.split("+")
    assert model == f"{TOKEN_MODEL}@{models.entry(TOKEN_MODEL).sha256[:12]}"
    assert len(expert) == 8 and len(projection) == 12

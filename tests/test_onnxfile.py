"""An ONNX file with int8 weights is rewritten without a change in what it computes."""

import io
from contextlib import suppress

import numpy as np
import pytest

from edgemem.runtime import embedder, models
from edgemem.runtime.embedder import TOKEN_MODEL
from edgemem.runtime.onnxfile import expert, expert_file, rewritten

TEXTS = ["Yes.", "She moved to Oslo in May 2023.", "harbour café, 3 days a week; " * 40]


@pytest.fixture(scope="module")
def file():
    return models.find(models.DEFAULT_EMBEDDER)


def vectors(session):
    """The last states of each text."""
    made = []
    for text in TEXTS:
        ids = np.array([embedder.bundled_tokenizer().encode(text).ids[:256]])
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        names = {i.name for i in session.get_inputs()}
        if "token_type_ids" in names:
            given["token_type_ids"] = np.zeros_like(ids)
        made.append(session.run(None, given)[0][0])
    return made


def alike(one, other):
    """The least cosine of two states."""
    pairs = zip(map(embedder.unit, one), map(embedder.unit, other), strict=True)
    return min(float((x * y).sum(axis=-1).min()) for x, y in pairs)


def test_the_vectors_are_those_of_the_file_as_it_is(file, monkeypatch):
    small = vectors(embedder.open_session(file, 1))
    monkeypatch.setattr(embedder, "rewritten", lambda file: None)
    whole = vectors(embedder.open_session(file, 1))
    assert all(np.array_equal(x, y) for x, y in zip(small, whole, strict=True))


def test_an_expert_that_adds_nothing_changes_little_in_products_of_whole_numbers():
    file = models.find(TOKEN_MODEL)
    nothing = io.BytesIO()
    np.savez(nothing, **{k: v * (k[-1] != "b") for k, v in expert("colbert").items()})
    plain, same, tuned = (
        vectors(embedder.open_session(file, 1, expert))[:2]
        for expert in (None, nothing.getvalue(), expert_file("colbert"))
    )
    assert alike(plain, same) > 0.97  # steps of seven bits by column, not of eight for the whole
    assert alike(plain, tuned) < 0.9


@pytest.mark.parametrize("shape", [(384, 385), (2, 384)])
def test_what_does_not_fit_a_weight_is_refused(file, shape):
    n, m = shape
    of_another_shape = {"0.q.a": np.ones((n, 2)), "0.q.b": np.ones((2, m))}
    of_no_layer = {"6.q.a": np.zeros((384, 2)), "6.q.b": np.zeros((2, 384))}
    for added in (of_another_shape, of_no_layer):
        with pytest.raises(ValueError, match="the file has no int8 weight"):
            rewritten(file, added)


def test_the_weights_stay_in_the_file(file):
    model = rewritten(file)
    assert model is not None and len(model) < file.stat().st_size / 40
    assert file.name.encode() in model


@pytest.mark.parametrize("content", [b"", b"\x3a\x05abc", b"\x07", b"no ONNX at all", bytes(100)])
def test_what_is_no_such_file_is_left_alone(content, tmp_path):
    other = tmp_path / "a.onnx"
    other.write_bytes(content)
    with suppress(ValueError, IndexError):  # the loader then says what is wrong with the file
        assert rewritten(other) is None


def test_a_half_file_is_refused(file, tmp_path):
    half = tmp_path / "half.onnx"
    half.write_bytes(file.read_bytes()[:1_000_000])
    with pytest.raises((ValueError, IndexError)):
        rewritten(half)

"""The encoder: the embedder's layers, and what an expert of low rank adds to them."""

import numpy as np
import pytest
import storekit

from edgemem.errors import InputError, ModelError, ModelNotFound
from edgemem.runtime import models, onnxfile
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.encoder import LAYERS, Encoder

TEXT, OTHER = "Ana's brother Marek moved to Oslo in May.", "Marek lives in Bergen."


def states(expert, text, second=None):
    read = storekit.encoder().read(expert, text, second)
    assert read is not None
    return read


def test_with_the_same_expert_a_text_has_the_embedders_vector(embedder):
    """Their GELUs differ by a thousandth, and the embedder's weights are rounded once more."""
    plain = Embedder.load(models.find(models.DEFAULT_EMBEDDER))
    for each, expert in ((plain, {}), (embedder, onnxfile.expert("minilm"))):
        vector = states(expert, TEXT).layers[-1].mean(axis=0)
        assert vector @ each.embed_query(TEXT) / np.linalg.norm(vector) > 0.9995


def test_an_expert_changes_the_layers_from_its_own_on():
    draw = np.random.default_rng(0)
    a, b = (draw.normal(size=shape).astype(np.float32) for shape in ((384, 2), (2, 384)))
    plain = states({}, TEXT).layers
    tuned = states({"3.v.a": a, "3.v.b": b}, TEXT).layers
    assert np.array_equal(plain[:3], tuned[:3]) and not np.isclose(plain[3], tuned[3]).all()
    assert np.array_equal(plain, states({"3.v.a": a, "3.v.b": 0 * b}, TEXT).layers)


def test_of_two_texts_each_token_is_known_by_its_text_and_place():
    read = states({}, TEXT, OTHER)
    assert read.layers.shape == (LAYERS, len(read.text), 384)
    said = ["", ""]
    for (start, end), which in zip(read.offsets, read.text.tolist(), strict=True):
        if which >= 0:
            said[which] += (TEXT, OTHER)[which][start:end]
    assert said == [text.replace(" ", "") for text in (TEXT, OTHER)]
    assert (read.text == -1).sum() == 3


def test_what_comes_second_is_read_in_the_light_of_what_comes_first():
    one, other = (states({}, first, OTHER) for first in (TEXT, "Rex is a dog."))
    second = [read.layers[-1][read.text == 1] for read in (one, other)]
    assert second[0].shape == second[1].shape and not np.allclose(*second, atol=0.1)


def test_a_text_over_256_tokens_is_not_read_and_broken_characters_are_refused():
    assert storekit.encoder().read({}, "word " * 255) is None
    assert storekit.encoder().read({}, "word " * 200, "word " * 60) is None
    with pytest.raises(InputError):
        storekit.encoder().read({}, "\ud800")


def test_a_damaged_or_missing_file_says_so(tmp_path, monkeypatch):
    whole = models.find(models.DEFAULT_EMBEDDER).read_bytes()
    half = tmp_path / "model.onnx"
    half.write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(models, "find", lambda name: half)
    with pytest.raises(ModelError, match="damaged"):
        Encoder.load()

    def missing(name):
        raise ModelNotFound("gone")

    monkeypatch.setattr(models, "find", missing)
    with pytest.raises(ModelNotFound):
        Encoder.load()

"""Fisher scores: finite differences, torch's kept numbers, windows, edges, refusals."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edgemem.compression import fisher as fisher_module
from edgemem.compression.compress import fdtd
from edgemem.compression.fisher import FAMILIES, Model, loss_and_gradient, sensitivity
from edgemem.errors import ModelError
from edgemem.runtime import models
from tests.ggufkit import DIM, VOCABULARY, tiny, write_gguf

FIXTURES = Path(__file__).parent / "fixtures"
TOKENS = np.random.default_rng(9).integers(0, VOCABULARY, 45)


def rank_correlation(a, b):
    return np.corrcoef(np.argsort(np.argsort(a)), np.argsort(np.argsort(b)))[0, 1]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A function that writes a tiny model of an architecture; its path."""
    folder = tmp_path_factory.mktemp("models")

    def make(architecture="llama", *, change=None, **more):
        settings, tensors = tiny(architecture, **more)
        if change is not None:
            change(settings, tensors)
        name = f"{architecture}-{len(list(folder.iterdir()))}.gguf"
        return write_gguf(folder / name, settings, tensors)

    return make


def scored(path, tokens=TOKENS):
    with Model(path) as model:
        return sensitivity(model, tokens)


def losses_of(path, tokens=TOKENS):
    with Model(path) as model:
        ids = np.asarray(tokens)
        return loss_and_gradient(model, model.embeddings(ids), ids)[0]


def letters(path):
    """An engine of a model whose token number n is the character of that code."""

    def token_offsets(text):
        ends = np.arange(1, len(text) + 1)
        return np.stack([ends - 1, ends], axis=1)

    return SimpleNamespace(
        path=path, tokenize=lambda text: [ord(c) % VOCABULARY for c in text],
        token_offsets=token_offsets, text_log_probs=lambda text: -np.ones(len(text), np.float32),
    )  # fmt: skip


# -- right numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_gradient_is_the_slope_of_the_loss(made, architecture, tied):
    with Model(made(architecture, tied=tied)) as model:
        h = model.embeddings(TOKENS)
        for loss_from in (1, 30):
            losses, gradient = loss_and_gradient(model, h, TOKENS, loss_from)
            assert losses.shape == (45 - loss_from,) and gradient.shape == h.shape
            rng = np.random.default_rng(1)
            for token in (0, 1, 20, 43):
                direction = rng.standard_normal(DIM) / np.sqrt(DIM)
                moved = []
                for step in (-2e-3, 2e-3):
                    x = h.copy()
                    x[token] += (step * direction).astype(np.float32)
                    there = loss_and_gradient(model, x, TOKENS)[0]
                    moved.append(there[loss_from - 1 :].astype(np.float64).sum())
                slope = (moved[1] - moved[0]) / 4e-3
                assert gradient[token] @ direction == pytest.approx(slope, rel=0.03, abs=0.03)
            assert not gradient[-1].any()


@pytest.mark.parametrize("architecture", FAMILIES)
def test_tiny_models_agree_with_the_kept_numbers_of_torch(made, architecture):
    """tests/test_fisher_torch.py makes and checks these numbers."""
    with np.load(FIXTURES / "sensitivity-tiny.npz") as kept:
        path, tokens = made(architecture), kept["tokens"]
        scores, losses = scored(path, tokens), losses_of(path, tokens)
        np.testing.assert_allclose(losses, kept[f"{architecture}_loss"], atol=2e-4)
        expected = kept[f"{architecture}_scores"][1:-1] * 44  # which are of the mean loss
        assert rank_correlation(scores[1:-1], expected) >= 0.999
        np.testing.assert_allclose(scores[1:-1], expected, rtol=0.02)


@pytest.mark.models
def test_the_bundled_model_agrees_with_the_kept_numbers_of_torch():
    with np.load(FIXTURES / "sensitivity-smollm2.npz") as kept:
        path, tokens = models.find(models.DEFAULT_LLM), kept["tokens"]
        scores, losses = scored(path, tokens), losses_of(path, tokens)
        np.testing.assert_allclose(losses, kept["loss"], atol=1e-3)
        assert rank_correlation(scores[1:-1], kept["scores"][1:-1]) >= 0.999


def test_a_llama_3_with_scaled_angles_differs_from_one_without(made):
    def factors(settings, tensors):
        tensors["rope_freqs.weight"] = np.array([1, 1, 4, 8], np.float32)

    with Model(made(change=factors)) as model:
        np.testing.assert_allclose(model.angles, 500.0 ** (-np.arange(4) / 4) / [1, 1, 4, 8])
        assert not np.allclose(sensitivity(model, TOKENS), scored(made()))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_nothing_that_matters(made, threads):
    long = np.random.default_rng(2).integers(0, VOCABULARY, 400)
    path = made("qwen3")
    with Model(path, threads) as model:
        np.testing.assert_allclose(sensitivity(model, long), scored(path, long), rtol=1e-3)


# -- edges and windows -----------------------------------------------------------------------


def test_the_first_and_the_last_token_score_the_median(made):
    scores = scored(made())
    assert scores[0] == scores[-1] == np.median(scores[1:-1]) > 0
    for n in (1, 2, 3):
        few = scored(made(), TOKENS[:n])
        assert few.shape == (n,) and few.dtype == np.float32


def test_a_texts_scores_are_of_its_own_loss_or_of_a_questions(made):
    path, text, question = made(), "The boat is blue. It lies in Oslo.", "Where?"
    own = fdtd(letters(path), text)
    np.testing.assert_array_equal(own.values, scored(path, [ord(c) % VOCABULARY for c in text]))
    asked = fdtd(letters(path), text, question)
    tokens = [ord(c) % VOCABULARY for c in f"{text}\nQuestion: {question}"]
    with Model(path) as model:
        h = model.embeddings(np.array(tokens))
        gradient = loss_and_gradient(model, h, np.array(tokens), len(tokens) - 7)[1]
    expected = np.linalg.norm(gradient * h, axis=1)[1 : len(text)]
    np.testing.assert_allclose(asked.values[1:], expected, rtol=1e-5)
    assert asked.method == own.method == "fisher"
    assert len(asked.offsets) == len(asked.values) == len(own.values) == len(text)
    assert len(fdtd(letters(path), "", question).values) == 0


@pytest.mark.parametrize("question", ["", "Where?"])
@pytest.mark.parametrize("n", [9, 40, 41, 100])
def test_more_tokens_than_a_window_are_read_in_several(made, monkeypatch, question, n):
    monkeypatch.setattr(fisher_module, "WINDOW", 40)
    text = "".join(chr(65 + i) for i in np.random.default_rng(n).integers(0, 50, n))
    path = made()
    found = fdtd(letters(path), text, question).values
    assert found.shape == (n,) and (found > 0).all()
    window = 40 - len("\nQuestion: Where?") * bool(question)
    alone = fdtd(letters(path), text[:window], question).values
    some = slice(1, min(n, window) - (0 if question or n < 40 else 11))
    np.testing.assert_allclose(found[some], alone[some], rtol=1e-4)


def test_the_models_own_context_bounds_a_window(made, monkeypatch):
    seen = []
    whole = fisher_module.sensitivity
    monkeypatch.setattr(
        fisher_module, "sensitivity", lambda m, t, f: seen.append(len(t)) or whole(m, t, f)
    )
    fdtd(letters(made(context_length=16)), "x" * 45)
    assert max(seen) == 16 and len(seen) == 4


# -- what is refused -------------------------------------------------------------------------


def put(key, value):
    return lambda settings, tensors: settings.update({key: value})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (put("general.architecture", "mamba"), "its architecture is mamba"),
        (put("llama.expert_count", 8), "it has llama.expert_count"),
        (put("llama.rope.scaling.type", "yarn"), "its RoPE is scaled by yarn"),
        (put("llama.rope.dimension_count", 4), "RoPE turns a part of each head only"),
        (put("llama.attention.sliding_window", 64), "it has llama.attention.sliding_window"),
        (put("llama.attention.value_length", 4), "its heads are of several sizes"),
        (put("llama.block_count", 6), "its tensor blk.6.attn_k.weight is not known"),
        (put("llama.embedding_length", 0), "its llama.embedding_length is 0"),
        (
            lambda settings, tensors: tensors.pop("blk.3.ffn_up.weight"),
            "its tensor blk.3.ffn_up.weight is missing",
        ),
        (
            lambda settings, tensors: settings.pop("llama.context_length"),
            "its llama.context_length is None",
        ),
    ],
)
def test_a_model_that_is_not_understood_is_refused_with_the_way_out(made, change, why):
    path = made(change=change)
    with pytest.raises(ModelError, match=re.escape(why)) as refused:
        Model(path)
    assert f"{', '.join(FAMILIES)}. Use `self_information`" in str(refused.value)
    assert fdtd(letters(path), "a text").method == "self_information"


def test_a_file_that_is_cut_off_is_refused(made, tmp_path):
    whole = made().read_bytes()
    for length, message in ((len(whole) - 64, "its tensor .* ends at byte"), (60, "is damaged")):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        with pytest.raises(ModelError, match=message):
            Model(tmp_path / "cut.gguf")


def test_weights_that_are_no_numbers_give_an_error_not_scores(made):
    def spoil(settings, tensors):
        tensors["blk.2.ffn_down.weight"][3, 4] = np.nan

    with pytest.raises(ModelError, match="no numbers"):
        scored(made(change=spoil))

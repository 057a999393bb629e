"""Fisher sensitivities: finite differences, torch's kept numbers, windows, edges, refusals."""

from __future__ import annotations

import re
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edgemem.compression.backprop import loss_and_gradient
from edgemem.compression.sensitivity import Scorer, _windows
from edgemem.compression.weights import Weights
from edgemem.errors import ContextOverflow, InputError, ModelError, ModelNotFound
from tests.ggufkit import DIM, VOCABULARY, tiny, write_gguf

FIXTURES = Path(__file__).parent / "fixtures"
FAMILIES = ["llama", "qwen2", "qwen3", "gemma3"]
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


# -- right numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_gradient_is_the_slope_of_the_loss(made, architecture, tied):
    weights = Weights(made(architecture, tied=tied), 2, bf16=False)
    h = weights.embeddings(TOKENS)
    for loss_from in (1, 30):
        losses, gradient = loss_and_gradient(weights, h, TOKENS, loss_from)
        assert losses.shape == (44,) and gradient.shape == h.shape
        rng = np.random.default_rng(1)
        for token in (0, 1, 20, 43):
            direction = rng.standard_normal(DIM) / np.sqrt(DIM)
            moved = []
            for step in (-2e-3, 2e-3):
                x = h.copy()
                x[token] += (step * direction).astype(np.float32)
                there = loss_and_gradient(weights, x, TOKENS)[0]
                moved.append(there[loss_from - 1 :].astype(np.float64).sum())
            slope = (moved[1] - moved[0]) / 4e-3
            assert gradient[token] @ direction == pytest.approx(slope, rel=0.03, abs=0.03)
        assert not gradient[-1].any()
    weights.close()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_in_bfloat16_losses_are_the_same_and_gradients_nearly(made, architecture, tied):
    path, found = made(architecture, tied=tied), []
    for bf16 in (True, False):
        weights = Weights(path, 2, bf16=bf16)
        found.append(loss_and_gradient(weights, weights.embeddings(TOKENS), TOKENS))
        weights.close()
    np.testing.assert_array_equal(found[0][0], found[1][0])
    error = np.linalg.norm(found[0][1] - found[1][1], axis=1)[:-1]
    assert (error > 0).all() and (error < 0.03 * np.linalg.norm(found[1][1], axis=1)[:-1]).all()


@pytest.mark.parametrize("architecture", FAMILIES)
def test_tiny_models_agree_with_the_kept_numbers_of_torch(made, architecture):
    """tests/test_sensitivity_torch.py makes and checks these numbers."""
    with (
        np.load(FIXTURES / "sensitivity-tiny.npz") as kept,
        Scorer.load(made(architecture)) as scorer,
    ):
        found = scorer.sensitivity(kept["tokens"].tolist())
        np.testing.assert_allclose(found.neg_log_p[1:], kept[f"{architecture}_loss"], atol=2e-4)
        expected = kept[f"{architecture}_scores"][1:-1]
        assert rank_correlation(found.scores[1:-1], expected) >= 0.999
        np.testing.assert_allclose(found.scores[1:-1], expected, rtol=0.02)


@pytest.mark.models
def test_the_bundled_model_agrees_with_the_kept_numbers_of_torch():
    with (
        np.load(FIXTURES / "sensitivity-smollm2.npz") as kept,
        Scorer.load() as scorer,
    ):
        found = scorer.sensitivity(kept["tokens"].tolist())
        np.testing.assert_allclose(found.neg_log_p[1:], kept["loss"], atol=1e-3)
        assert rank_correlation(found.scores[1:-1], kept["scores"][1:-1]) >= 0.999
        assert found.windows == 1 and found.seconds > 0


def test_a_llama_3_with_scaled_angles_differs_from_one_without(made):
    def factors(settings, tensors):
        tensors["rope_freqs.weight"] = np.array([1, 1, 4, 8], np.float32)

    scores = []
    for change in (None, factors):
        with Scorer.load(made(change=change)) as scorer:
            scores.append(scorer.sensitivity(TOKENS.tolist()).scores)
            angles = scorer._weights.shape.angles[0]
    np.testing.assert_allclose(angles, 500.0 ** (-np.arange(4) / 4) / [1, 1, 4, 8])
    assert not np.allclose(*scores)


def test_half_as_much_memory_gives_the_same_numbers(made):
    with Scorer.load(made()) as scorer:
        plenty = scorer.sensitivity(TOKENS.tolist())
        for memory_bytes in (0, 420_000, 500_000):
            little = scorer.sensitivity(TOKENS.tolist(), memory_bytes=memory_bytes)
            np.testing.assert_array_equal(little.scores, plenty.scores)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_nothing_that_matters(made, threads):
    long = np.random.default_rng(2).integers(0, VOCABULARY, 400).tolist()
    with (
        Scorer.load(made("gemma3"), threads=threads) as scorer,
        Scorer.load(made("gemma3"), threads=1) as one,
    ):
        ours, theirs = scorer.sensitivity(long), one.sensitivity(long)
    np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-3)


def test_what_the_loss_counts_from_a_position_on_is_the_mean_of_those_tokens(made):
    weights = Weights(made(), 1)
    h = weights.embeddings(TOKENS)
    _, gradient = loss_and_gradient(weights, h, TOKENS, 30)
    expected = np.linalg.norm(gradient * h, axis=1) / 15
    weights.close()
    with Scorer.load(made()) as scorer:
        found = scorer.sensitivity(TOKENS.tolist(), loss_from=30)
        np.testing.assert_allclose(found.scores[1:-1], expected[1:-1], rtol=1e-4)
        assert len(found.neg_log_p) == 45  # of all, whatever the loss counts


# -- edges and windows -----------------------------------------------------------------------


def test_the_first_and_the_last_token_score_the_median(made):
    with Scorer.load(made()) as scorer:
        found = scorer.sensitivity(TOKENS.tolist())
        assert found.scores[0] == found.scores[-1] == np.median(found.scores[1:-1]) > 0
        assert found.neg_log_p[0] == np.median(found.neg_log_p[1:])
        for n in (1, 2, 3):
            few = scorer.sensitivity(TOKENS[:n].tolist())
            assert few.scores.shape == few.neg_log_p.shape == (n,)
            assert few.scores.dtype == few.neg_log_p.dtype == np.float32


@pytest.mark.parametrize("n", [9, 10, 11, 17, 40, 41, 100])
def test_windows_cover_each_token_once_and_overlap_enough(n):
    windows = _windows(n, 10, 4)
    assert [i for _, _, keep in windows for i in range(n)[keep]] == list(range(n))
    for (_, stop, before), (start, _, after) in pairwise(windows):
        assert stop - start >= 4 and stop - before.stop >= 2 and after.start - start >= 2
    assert all(stop - start == min(n, 10) for start, stop, _ in windows)


def test_more_tokens_than_a_window_are_read_in_several(made):
    with Scorer.load(made()) as scorer:
        found = scorer.sensitivity(TOKENS.tolist(), window=20, overlap=8)
        assert found.windows == 4
        alone = scorer.sensitivity(TOKENS[:20].tolist(), window=20)
        np.testing.assert_allclose(found.scores[1:12] * 44, alone.scores[1:12] * 19, rtol=1e-4)
        np.testing.assert_array_equal(found.neg_log_p[1:12], alone.neg_log_p[1:12])


def test_the_models_own_context_bounds_a_window(made):
    with Scorer.load(made(context_length=16)) as scorer:
        assert scorer.sensitivity(TOKENS.tolist()).windows == 4


def test_a_context_for_its_question_is_read_at_once_or_not_at_all(made):
    with (
        Scorer.load(made()) as scorer,
        pytest.raises(
            ContextOverflow,
            match="there are 45 tokens and window is 20; what the loss from token 30",
        ),
    ):
        scorer.sensitivity(TOKENS.tolist(), loss_from=30, window=20, overlap=2)


# -- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": []}, "there are no tokens"),
        ({"tokens": [1, VOCABULARY]}, f"tokens are 1 to {VOCABULARY}; .* has 0 to 60"),
        ({"tokens": [-1, 3]}, "tokens are -1 to 3"),
        ({"tokens": [1, 2, 3], "loss_from": 0}, "loss_from is 0; it must be 1"),
        ({"tokens": [1, 2, 3], "loss_from": 3}, "loss_from is 3; .* to 2, the last of 3 tokens"),
        ({"tokens": [1, 2, 3], "window": 8, "overlap": 8}, "window is 8 and overlap 8"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(made, arguments, message):
    with Scorer.load(made()) as scorer, pytest.raises(InputError, match=message):
        scorer.sensitivity(**arguments)


def put(key, value):
    return lambda settings, tensors: settings.update({key: value})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (put("general.architecture", "mamba"), "its architecture is mamba"),
        (put("llama.expert_count", 8), "it has llama.expert_count"),
        (put("llama.rope.scaling.type", "yarn"), "its RoPE is scaled by yarn"),
        (put("llama.rope.dimension_count", 4), "RoPE turns a part of each head only"),
        (put("llama.attention.sliding_window", 64), "it has sliding windows"),
        (put("llama.attention.value_length", 4), "its heads are of several sizes"),
        (put("llama.block_count", 6), "its tensor blk.6.attn_k.weight is (16, 24), not known"),
        (put("llama.embedding_length", 0), "its llama.embedding_length is 0"),
        (
            lambda settings, tensors: tensors.pop("blk.3.ffn_up.weight"),
            "its tensor blk.3.ffn_up.weight is missing, not (40, 24)",
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
        Scorer.load(path)
    assert "llama, qwen2, qwen3, gemma3. Use `self_information`" in str(refused.value)


def test_a_file_that_is_cut_off_is_refused(made, tmp_path):
    whole = made().read_bytes()
    for length, message in ((len(whole) - 64, "it ends before its tensor"), (60, "cannot be read")):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        with pytest.raises(ModelError, match=message):
            Scorer.load(tmp_path / "cut.gguf")
    with pytest.raises(ModelNotFound):
        Scorer.load(tmp_path / "none.gguf")


def test_weights_that_are_no_numbers_give_an_error_not_scores(made):
    def spoil(settings, tensors):
        tensors["blk.2.ffn_down.weight"][3, 4] = np.nan

    with Scorer.load(made(change=spoil)) as scorer, pytest.raises(ModelError, match="no numbers"):
        scorer.sensitivity(TOKENS.tolist())


def test_a_closed_scorer_says_so_and_threads_take_turns(made):
    scorer = Scorer.load(made())
    alone = scorer.sensitivity(TOKENS.tolist()).scores
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(scorer.sensitivity(TOKENS.tolist()).scores))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and all((scores == alone).all() for scores in found)
    scorer.close()
    scorer.close()
    with pytest.raises(ModelError, match="the scorer is closed; load it again"):
        scorer.sensitivity([1, 2, 3])


def test_a_model_is_known_by_its_bytes(made):
    with (
        Scorer.load(made()) as ours,
        Scorer.load(made()) as same,
        Scorer.load(made("qwen2")) as other,
    ):
        assert ours.model_hash == same.model_hash != other.model_hash
        assert re.fullmatch("[0-9a-f]{64}", ours.model_hash)

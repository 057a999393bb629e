"""Embedding text: one text one vector, nothing cut, bad files named."""

import hashlib
import shutil
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxkit import field

from edgemem.errors import InputError, ModelError, ModelNotFound
from edgemem.runtime import embedder as embedder_module
from edgemem.runtime import models, onnxfile
from edgemem.runtime.embedder import Embedder, _batches, _read_tokenizer, split_windows

TEXTS = [
    "",
    "Hi!",
    "I moved from Trondheim to Oslo in March, and the flat is tiny.",
    "Jeg flyttet til Oslo i mars.",
    "私は三月にオスロへ引っ越しました。",
    "😀 \x00 \t\n",
    "My dog Biscuit hates the vacuum cleaner. " * 6,
    "word " * 200,
]


@pytest.fixture(scope="module")
def tokenizer():
    return _read_tokenizer(models.find("minilm-l6-v2-tokenizer"))


@pytest.mark.models
def test_a_text_has_one_vector_of_length_one_whatever_it_is_embedded_with(embedder):
    together = embedder.embed(TEXTS)
    assert together.shape == (len(TEXTS), embedder.dim) == (len(TEXTS), 384)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    alone = np.stack([embedder.embed_query(text) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    np.testing.assert_allclose(embedder.embed(TEXTS[::-1])[::-1], alone, atol=1e-6)
    assert embedder.embed([]).shape == (0, 384) and embedder.embed_chunks([]) == []


@pytest.mark.models
def test_like_texts_are_nearer_than_unlike_ones(embedder):
    query = embedder.embed_query("What is the name of her dog?")
    near, far = embedder.embed(["My dog is called Biscuit.", "The train to Bergen was late."])
    assert query @ near > query @ far + 0.3


@pytest.mark.models
def test_of_a_query_as_long_as_a_book_its_ends_are_embedded(embedder, monkeypatch):
    ordinary = "I walked along the harbour. " * 250
    np.testing.assert_array_equal(embedder.embed_query(ordinary), embedder.embed([ordinary])[0])
    run, seen = embedder._run, []
    monkeypatch.setattr(embedder, "_run", lambda batch: (seen.append(len(batch)), run(batch))[1])
    vector = embedder.embed_query(ordinary * 4 + "Where does Lena live?")
    assert sum(seen) == embedder_module.QUERY_CHUNKS
    assert vector.shape == (384,) and abs(np.linalg.norm(vector) - 1) < 1e-5


@pytest.mark.models
def test_the_model_id_is_the_name_and_the_digest_and_batches_agree(embedder):
    digest = models.entry(models.DEFAULT_EMBEDDER).sha256
    expert = hashlib.sha256(onnxfile.expert_file("minilm")).hexdigest()
    assert embedder.model_id == f"minilm-l6-v2-int8@{digest[:12]}+{expert[:8]}"
    assert embedder._batch_tokens > 1


@pytest.mark.models
def test_a_loaded_model_keeps_no_copy_of_its_rewritten_file():
    tracemalloc.start()
    try:
        loaded = Embedder.load(n_threads=1)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert loaded.dim == 384
    assert held < 3_000_000 < 10_000_000 < most  # its int8 matrices with their expert have 10.6 MB


@pytest.mark.models
def test_a_long_text_is_split_and_not_cut(embedder):
    filler = "Nothing much happened that day, and we talked about the weather. " * 60
    text = filler + "At last she told me that her submarine is painted purple."
    [chunks] = embedder.embed_chunks([text])
    assert len(chunks) > 2
    query = embedder.embed_query("What colour is the submarine?")
    scores = chunks @ query
    assert scores.argmax() == len(chunks) - 1
    mean = chunks.mean(axis=0)
    np.testing.assert_allclose(
        embedder.embed_query(text), mean / np.linalg.norm(mean), rtol=0, atol=1e-6
    )


@pytest.mark.models
@pytest.mark.parametrize(("tokens", "times"), [(50, 0), (100, 1)])
def test_what_a_long_text_took_is_given_back(embedder, monkeypatch, tokens, times):
    given = []
    monkeypatch.setattr(embedder_module, "_TRIM_TOKENS", 100)
    monkeypatch.setattr(embedder_module, "trim_heap", lambda: given.append(1))
    embedder.embed(["word " * tokens])
    assert len(given) == times


@pytest.mark.models
def test_short_texts_are_one_chunk_beside_long_ones(embedder):
    counts = [len(c) for c in embedder.embed_chunks(["a", "word " * 254, "word " * 255, "b"])]
    assert counts == [1, 1, 2, 1]


@pytest.mark.models
def test_every_token_is_in_a_window(embedder):
    words = [f"{a}{b}{a}" for a in "aeiou漢字かな!?" for b in "bcdfghjklmnpqrstvwxz"]
    text = " ".join(words) + "." + "x" * 300 + "\n" + " ".join(map(str, range(600)))
    ids = embedder._encode(text).ids
    windows = embedder._windows(text)
    assert all(len(w) <= embedder.max_tokens for w in windows)
    position = 0  # each window must start no later than where the last one ended
    for window in windows:
        body = window[1:-1]
        starts = [
            s for s in range(max(position - 32, 0), position + 1) if ids[s:][: len(body)] == body
        ]
        assert starts
        position = starts[-1] + len(body)
    assert position == len(ids)


@pytest.mark.models
def test_windows_end_with_sentences(embedder):
    text = "One two three four five six seven eight nine ten eleven. " * 50
    stop = embedder._encode(".").ids[0]
    assert all(window[-2] == stop for window in embedder._windows(text))


@pytest.mark.models
def test_several_threads_get_the_same_vectors(embedder):
    expected = embedder.embed(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(embedder.embed, [TEXTS] * 12):
            np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.models
def test_broken_characters_and_wrong_types_are_refused(embedder):
    with pytest.raises(InputError, match="half of a surrogate pair at character 2"):
        embedder.embed(["ok", "ab\ud800"])
    with pytest.raises(TypeError, match="not int"):
        embedder.embed([3])
    with pytest.raises(TypeError, match="list of strings"):
        embedder.embed("one string")


@given(
    st.lists(st.sampled_from([0, 0, 0, 1, 1, 2]), max_size=400),
    st.integers(2, 60),
    st.data(),
)
def test_windows_cover_everything_and_never_nest(breaks, room, data):
    overlap = data.draw(st.integers(0, (room // 2) - 1))
    spans = split_windows(breaks, room, overlap)
    assert spans[0][0] == 0 and spans[-1][1] == len(breaks)
    assert all(0 <= end - start <= room for start, end in spans)
    for (start, end), (next_start, next_end) in pairwise(spans):
        assert start < next_start <= end < next_end
        assert end - next_start <= overlap


def test_windows_prefer_sentence_ends_then_words():
    breaks = [2, 1, 0, 1, 1, 2, 1, 0, 1, 1]
    assert split_windows(breaks, 8, 0) == [(0, 5), (5, 10)]
    assert split_windows([0, 1, 1, 1, 1, 1, 0, 0, 0, 0], 8, 2)[0] == (0, 5)
    assert split_windows([0] * 10, 8, 2) == [(0, 8), (8, 10)]


@given(st.lists(st.integers(2, 256), max_size=80), st.integers(1, 600))
def test_batches_hold_every_sequence_once_within_their_size(lengths, size):
    groups = list(_batches(lengths, size))
    assert sorted(i for g in groups for i in g) == list(range(len(lengths)))
    for g in groups:
        assert len(g) == 1 or len(g) * max(lengths[i] for i in g) <= size


class FakeSession:
    """A stand-in for onnxruntime whose hidden states `answer(ids, mask)` gives."""

    def __init__(self, answer):
        self.answer = answer

    def get_inputs(self):
        return [SimpleNamespace(name="input_ids"), SimpleNamespace(name="attention_mask")]

    def get_outputs(self):
        return [SimpleNamespace(name="hidden", shape=["b", "s", 4])]

    def run(self, _names, values):
        return [self.answer(values["input_ids"], values["attention_mask"])]


def spread(ids):
    return np.cos(ids[..., None] * np.arange(1, 5, dtype=np.float32)).astype(np.float32)


def test_a_model_whose_vectors_depend_on_the_batch_is_run_one_text_at_a_time(tokenizer):
    sizes = []

    def per_batch_scale(ids, mask):  # as dynamic quantisation has
        sizes.append(len(ids))
        step = np.abs(spread(ids)).max() * ids.max() / 127e3
        return np.round(spread(ids) / step) * step

    e = Embedder(FakeSession(per_batch_scale), tokenizer, model_id="fake")
    sizes.clear()
    together = e.embed(TEXTS)
    assert set(sizes) == {1}
    np.testing.assert_array_equal(together, [e.embed_query(t) for t in TEXTS])


def test_a_model_that_fails_or_gives_no_numbers_is_refused(tokenizer):
    def fail(ids, mask):
        raise RuntimeError("out of order")

    with pytest.raises(ModelError, match="fake gave values that are no numbers"):
        Embedder(FakeSession(lambda i, m: spread(i) * np.nan), tokenizer, model_id="fake")
    with pytest.raises(ModelError, match="fake failed: out of order") as caught:
        Embedder(FakeSession(fail), tokenizer, model_id="fake")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_n_threads_must_be_positive():
    with pytest.raises(ValueError, match="n_threads is 0"):
        Embedder.load(n_threads=0)


def test_a_missing_model_file_is_named(tmp_path):
    with pytest.raises(ModelNotFound, match=r"none\.onnx"):
        Embedder.load(tmp_path / "none.onnx")


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\n\x12\x07pytorch" + b"\xff" * 99])
def test_a_file_that_is_no_onnx_model_is_refused(tmp_path, content):
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.onnx is not a model that onnxruntime can load"):
        Embedder.load(tmp_path / "m.onnx")


def test_a_tokenizer_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"x")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a tokenizer"):
        Embedder.load(tmp_path / "m.onnx")


@pytest.mark.models
def test_a_named_model_with_a_changed_byte_is_refused(tmp_path, monkeypatch):
    whole = models.find(models.DEFAULT_EMBEDDER)
    monkeypatch.setenv("EDGEMEM_HOME", str(tmp_path))
    file = tmp_path / "models" / models.entry(models.DEFAULT_EMBEDDER).file
    file.parent.mkdir()
    shutil.copy(whole, file)
    with file.open("r+b") as f:
        f.seek(20_000_000)
        f.write(b"\0\1\2\3")
    with pytest.raises(ModelError, match="is damaged: its sha256 is"):
        Embedder.load()


@pytest.mark.models
def test_a_model_given_by_its_path_uses_the_bundled_tokenizer(embedder):
    file, expert = models.find(models.DEFAULT_EMBEDDER), onnxfile.expert_file("minilm")
    by_path = Embedder.load(file, expert=expert)
    assert by_path.model_id.startswith("model@")
    text = TEXTS[2]
    np.testing.assert_array_equal(by_path.embed_query(text), embedder.embed_query(text))
    plain = Embedder.load(file)  # a model of the user's own has no expert of ours
    assert plain.embed_query(text) @ embedder.embed_query(text) < 0.9


def test_an_onnx_model_of_another_kind_is_refused(tmp_path):
    dim = field(1, field(1, 4))
    tensor = field(2, field(1, field(1, 1) + field(2, dim)))
    node = field(1, b"x") + field(2, b"y") + field(4, b"Identity")
    graph = field(1, node) + field(2, b"g")
    graph += field(11, field(1, b"x") + tensor) + field(12, field(1, b"y") + tensor)
    model = field(1, 8) + field(7, graph) + field(8, field(2, 17))
    (tmp_path / "m.onnx").write_bytes(model)
    with pytest.raises(ModelError, match="is not a sentence-embedding model: it takes x"):
        Embedder.load(tmp_path / "m.onnx")

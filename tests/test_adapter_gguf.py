"""Adapter files: llama.cpp computes with one what torch did, and it reads back as written."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from trainkit import HIDDEN, SHAPE, llama_logits

from edgemem.errors import AdapterError
from edgemem.training import adapters

FIXTURES = Path(__file__).parent / "fixtures"
BASE, ADAPTER = FIXTURES / "lora-v1-base.gguf", FIXTURES / "lora-v1-adapter.gguf"


def test_llama_cpp_gives_the_logits_that_torch_gave():
    """torch's are kept in the fixture, so that this needs no torch (make_lora_v1.py)."""
    kept = np.load(FIXTURES / "lora-v1-logits.npz")
    tokens, wanted = kept["tokens"].tolist(), kept["logits"]
    assert np.abs(llama_logits(BASE, tokens, ADAPTER) - wanted).max() < 0.02
    assert np.abs(llama_logits(BASE, tokens) - wanted).max() > 1.0  # the adapter matters


# -- with the gguf package ---------------------------------------------------------------------


@pytest.fixture
def gguf():
    return pytest.importorskip("gguf", reason="needs edgemem-runtime[train]")


def tensors(shape=SHAPE):
    """Of q, k and o of every layer; values that float16 holds."""
    rng = np.random.default_rng(3)
    out: dict[str, NDArray[np.float32]] = {}
    for n in range(shape.layers):
        for part, rows in (("q", HIDDEN), ("k", HIDDEN // 2), ("o", HIDDEN)):
            layer = f"model.layers.{n}.self_attn.{part}_proj"
            for kind, size in (("lora_A", (4, HIDDEN)), ("lora_B", (rows, 4))):
                out[f"{layer}.{kind}"] = rng.normal(size=size).astype(np.float16).astype(np.float32)
    return out


@pytest.mark.train
def test_an_adapter_reads_back_as_it_was_written(gguf, tmp_path):
    for architecture in ("llama", "qwen2"):
        shape = adapters.Shape(architecture, SHAPE.layers, SHAPE.heads, SHAPE.kv_heads)
        file = tmp_path / f"{architecture}.gguf"
        size = adapters.write(file, tensors(), alpha=12.0, shape=shape)
        assert size == file.stat().st_size
        found, alpha = adapters.read(file, shape=shape)
        assert alpha == 12.0 and set(found) == set(tensors())
        assert all(np.array_equal(found[name], values) for name, values in tensors().items())
    assert list(tmp_path.glob("*.tmp")) == []


@pytest.mark.train
def test_the_file_says_what_llama_cpp_asks_for(gguf, tmp_path):
    adapters.write(tmp_path / "a.gguf", tensors(), alpha=12.0, shape=SHAPE)
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    wanted = {"general.type": "adapter", "adapter.type": "lora", "general.architecture": "llama",
              "adapter.lora.alpha": 12.0}  # fmt: skip
    assert {key: reader.fields[key].contents() for key in wanted} == wanted
    kinds = {tensor.tensor_type for tensor in reader.tensors}
    assert kinds == {gguf.GGMLQuantizationType.F16}
    names = [tensor.name for tensor in reader.tensors]
    assert "blk.1.attn_output.weight.lora_b" in names and len(names) == 12


@pytest.mark.train
def test_only_rows_that_llama_cpp_rotates_in_pairs_are_reordered(gguf, tmp_path):
    adapters.write(tmp_path / "a.gguf", tensors(), alpha=12.0, shape=SHAPE)
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    stored = {tensor.name: np.asarray(tensor.data, np.float32) for tensor in reader.tensors}
    wanted = tensors()
    k = wanted["model.layers.0.self_attn.k_proj.lora_B"]
    half = HIDDEN // SHAPE.heads // 2
    first_head = [row for pair in range(half) for row in (pair, pair + half)]
    assert np.array_equal(stored["blk.0.attn_k.weight.lora_b"][: 2 * half], k[first_head])
    as_they_are = [("k_proj.lora_A", "attn_k.weight.lora_a"),
                   ("o_proj.lora_B", "attn_output.weight.lora_b")]  # fmt: skip
    for ours, there in as_they_are:
        assert np.array_equal(stored[f"blk.0.{there}"], wanted[f"model.layers.0.self_attn.{ours}"])


@pytest.mark.train
def test_a_file_that_is_no_adapter_of_this_base_is_refused(gguf, tmp_path):
    with pytest.raises(AdapterError, match=r"lora-v1-base\.gguf is not a LoRA adapter"):
        adapters.read(BASE, shape=SHAPE)
    text = tmp_path / "notes.gguf"
    text.write_text("no")
    with pytest.raises(AdapterError, match=r"give a \.gguf that `edgemem train run` wrote"):
        adapters.read(text, shape=SHAPE)
    other = adapters.Shape("qwen2", SHAPE.layers, SHAPE.heads, SHAPE.kv_heads)
    with pytest.raises(AdapterError, match="an adapter for 'llama', but the base model is 'qwen2'"):
        adapters.read(ADAPTER, shape=other)
    shallow = adapters.Shape("llama", 1, SHAPE.heads, SHAPE.kv_heads)
    with pytest.raises(AdapterError, match=r"the tensor blk\.1\.[a-z_.]+, which the base has"):
        adapters.read(ADAPTER, shape=shallow)
    unknown = adapters.Shape("nonsense", 2, 4, 2)
    with pytest.raises(AdapterError, match="does not know the architecture 'nonsense'"):
        adapters.write(tmp_path / "b.gguf", tensors(), alpha=1.0, shape=unknown)

"""A tiny model of the llama architecture as a GGUF, and what llama.cpp makes of it."""

import ctypes
import os
from typing import Any

import numpy as np
from ggufkit import letters

from edgemem.runtime import llama
from edgemem.training.adapters import Shape

LAYERS, HEADS, KV_HEADS, HIDDEN, INNER = 2, 4, 2, 32, 48
SHAPE = Shape("llama", LAYERS, HEADS, KV_HEADS)
END = "<|im_end|>"


def write_base(file, seed=0):
    """A random model whose tokens are bytes, then END, then "th" (a merge is asked for)."""
    import gguf

    rng = np.random.default_rng(seed)
    tokens = [*letters(), END, "th"]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3, 1])
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(256)
    writer.add_add_bos_token(False)
    key_value = HIDDEN // HEADS * KV_HEADS
    layer = {
        "attn_q": (HIDDEN, HIDDEN), "attn_k": (key_value, HIDDEN), "attn_v": (key_value, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }  # fmt: skip
    shapes = {"token_embd": (len(tokens), HIDDEN), "output": (len(tokens), HIDDEN)}
    for n in range(LAYERS):
        shapes |= {f"blk.{n}.{name}": shape for name, shape in layer.items()}
    for name, shape in shapes.items():
        values = rng.normal(size=shape) * (1.0 if name == "token_embd" else shape[1] ** -0.5)
        writer.add_tensor(f"{name}.weight", values.astype(np.float16))
    norms = [f"blk.{n}.{part}_norm" for n in range(LAYERS) for part in ("attn", "ffn")]
    for name in ["output_norm", *norms]:
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def llama_logits(base, tokens, adapter=None):
    """llama.cpp's logits after the last token."""
    lib = llama.library()
    model, context = llama.open_model(base, n_ctx=256, n_threads=1, n_threads_batch=1,
                                      n_gpu_layers=0)  # fmt: skip
    try:
        if adapter is not None:
            handle = lib.llama_adapter_lora_init(model, os.fsencode(adapter))
            assert handle, llama.last_errors(f"{adapter} was refused")
            handles = (lib.llama_adapter_lora_p_ctypes * 1)(handle)
            scales = (ctypes.c_float * 1)(1.0)
            assert lib.llama_set_adapters_lora(context, handles, 1, scales) == 0
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        assert lib.llama_decode(context, lib.llama_batch_get_one(ids, len(tokens))) == 0
        size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        pointer: Any = lib.llama_get_logits_ith(context, -1)
        return np.ctypeslib.as_array(pointer, shape=(size,)).copy()
    finally:
        lib.llama_free(context)
        lib.llama_model_free(model)

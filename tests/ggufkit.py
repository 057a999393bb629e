"""Small GGUF files of random weights, for tests that need a model of a known shape."""

import struct
from collections.abc import Sequence

import numpy as np

from bench.random_adapters import ARRAY, F32, GGML_F32, STRING, U32, gguf_bytes, string

I32, BOOL = 5, 7

One = bool | int | float | str
Setting = One | Sequence[One]


def write_gguf(path, settings, tensors):
    """A GGUF v3 file. tensors: float32, (rows, columns) or (columns,)."""
    keys = [(key, *_value(value, U32)) for key, value in settings.items()]
    rows = [
        (name, GGML_F32, tensor.shape[::-1], tensor.astype("<f4").tobytes())
        for name, tensor in tensors.items()
    ]
    path.write_bytes(gguf_bytes(keys, rows))
    return path


def _value(value, integer):
    """Its type in GGUF, and its bytes. integer: the type of whole numbers, of lists it is I32."""
    if isinstance(value, str):
        return STRING, string(value)
    if isinstance(value, bool):
        return BOOL, struct.pack("<?", value)
    if isinstance(value, float):
        return F32, struct.pack("<f", value)
    if isinstance(value, int):
        return integer, struct.pack("<I" if integer == U32 else "<i", value)
    kinds, values = zip(*(_value(one, I32) for one in value), strict=True)
    return ARRAY, struct.pack("<IQ", kinds[0], len(values)) + b"".join(values)


def letters():
    """GPT-2's 256 characters that stand for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = (chr(256 + n) for n in range(256))
    return [chr(b) if b in plain else next(spare) for b in range(256)]


LAYERS, DIM, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCABULARY = 7, 24, 6, 2, 8, 40, 61


def tiny(architecture, *, tied=True, **more):
    """Settings and tensors of a small model of that architecture. head_dim · heads is not dim."""
    settings: dict[str, int | float | str] = {
        "block_count": LAYERS,
        "embedding_length": DIM,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "context_length": 512,
        "rope.freq_base": 500.0,
    }
    if architecture == "gemma3":
        settings["attention.sliding_window"] = 5
    settings |= more
    rng = np.random.default_rng(5)

    def of(*shape, around=0.0):
        scale = 0.2 if around else 1 / np.sqrt(shape[-1])
        return (around + scale * rng.standard_normal(shape)).astype(np.float32)

    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    layer = {
        "attn_norm": lambda: of(DIM, around=1),
        "attn_q": lambda: of(queries, DIM),
        "attn_k": lambda: of(keys, DIM),
        "attn_v": lambda: of(keys, DIM),
        "attn_output": lambda: of(DIM, queries),
        "ffn_norm": lambda: of(DIM, around=1),
        "ffn_gate": lambda: of(FFN, DIM),
        "ffn_up": lambda: of(FFN, DIM),
        "ffn_down": lambda: of(DIM, FFN),
    }
    if architecture in ("qwen3", "gemma3"):
        layer |= {f"attn_{name}_norm": lambda: of(HEAD_DIM, around=1) for name in "qk"}
    if architecture == "gemma3":
        posts = "post_attention_norm", "post_ffw_norm"
        layer |= {name: lambda: of(DIM, around=1) for name in posts}
    tensors = {"token_embd.weight": of(VOCABULARY, DIM), "output_norm.weight": of(DIM, around=1)}
    if not tied:
        tensors["output.weight"] = of(VOCABULARY, DIM)
    for number in range(LAYERS):
        tensors |= {f"blk.{number}.{name}.weight": make() for name, make in layer.items()}
        if architecture == "qwen2":
            sizes = {"q": queries, "k": keys, "v": keys}
            tensors |= {f"blk.{number}.attn_{n}.bias": of(size) for n, size in sizes.items()}
    settings = {f"{architecture}.{key}": value for key, value in settings.items()}
    return {"general.architecture": architecture, **settings}, tensors

"""Small GGUF files of random weights, for tests that need a model of a known shape."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
ALIGNMENT = 32

One = bool | int | float | str
Setting = One | Sequence[One]


def write_gguf(
    path: Path, settings: Mapping[str, Setting], tensors: Mapping[str, np.ndarray]
) -> Path:
    """A GGUF v3 file. tensors: float32, (rows, columns) or (columns,)."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(settings))
    for key, value in settings.items():
        head += _string(key)
        if isinstance(value, bool | int | float | str):
            kind, data = _value(value, U32)
            head += struct.pack("<I", kind) + data
        else:
            kinds, values = zip(*(_value(one, I32) for one in value), strict=True)
            head += struct.pack("<IIQ", ARRAY, kinds[0], len(values)) + b"".join(values)
    data = b""
    for name, tensor in tensors.items():
        sizes = tensor.shape[::-1]
        head += _string(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        head += struct.pack("<IQ", 0, len(data))
        data += _padded(tensor.astype("<f4").tobytes())
    path.write_bytes(_padded(head) + data)
    return path


def _value(value: One, integer: int) -> tuple[int, bytes]:
    """Its type in GGUF, and its bytes. integer: the type of whole numbers."""
    if isinstance(value, str):
        return STRING, _string(value)
    if isinstance(value, bool):
        return BOOL, struct.pack("<?", value)
    if isinstance(value, float):
        return F32, struct.pack("<f", value)
    return integer, struct.pack("<I" if integer == U32 else "<i", value)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % ALIGNMENT)


LAYERS, DIM, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCABULARY = 7, 24, 6, 2, 8, 40, 61


def tiny(architecture: str, *, tied: bool = True, **more: int | float | str) -> tuple[dict, dict]:
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

    def of(*shape: int, around: float = 0.0) -> np.ndarray:
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

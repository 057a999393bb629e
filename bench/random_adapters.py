"""LoRA adapters of random numbers as GGUF files: valid ones, and for tests invalid ones too.

Knows the file format and the bundled model's shapes; knows nothing of edgemem.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

U32, F32, STRING, ARRAY = 4, 6, 8, 9
GGML_F32, GGML_F16 = 0, 1

# Of SmolLM2-135M: (n_in, n_out) of each linear map of a layer.
LINEAR = {
    "attn_q": (576, 576),
    "attn_k": (576, 192),
    "attn_v": (576, 192),
    "attn_output": (576, 576),
    "ffn_gate": (576, 1536),
    "ffn_up": (576, 1536),
    "ffn_down": (1536, 576),
}
LAYERS = 30
QV = ("attn_q", "attn_v")
ALL_LINEAR = tuple(LINEAR)

Tensor = tuple[str, int, Sequence[int], bytes]  # name, ggml type, ne (fastest first), data


def gguf_bytes(
    keys: Iterable[tuple[str, int, bytes]], tensors: Iterable[Tensor], *, alignment: int = 32
) -> bytes:
    """A GGUF v3 file. keys: (key, value type, the value's bytes)."""
    keys, tensors = list(keys), list(tensors)
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)))
    for key, kind, value in keys:
        out += string(key) + struct.pack("<I", kind) + value
    offset = 0
    for name, kind, ne, data in tensors:
        out += string(name) + struct.pack(f"<I{len(ne)}Q", len(ne), *ne)
        out += struct.pack("<IQ", kind, offset)
        offset += -(-len(data) // alignment) * alignment
    for _, _, _, data in tensors:
        out += b"\0" * (-len(out) % alignment)
        out += data
    return bytes(out + b"\0" * (-len(out) % alignment))


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def strings(keys: Mapping[str, str]) -> list[tuple[str, int, bytes]]:
    return [(key, STRING, string(value)) for key, value in keys.items()]


def random_tensors(
    seed: int = 0,
    *,
    targets: Sequence[str] = QV,
    rank: int = 8,
    size: float = 0.05,
    kind: int = GGML_F16,
    layers: int = LAYERS,
) -> list[Tensor]:
    """lora_a and lora_b of the targets in every layer. size: the standard deviation of B."""
    rng = np.random.default_rng(seed)
    dtype = np.float32 if kind == GGML_F32 else np.float16
    out: list[Tensor] = []
    for layer in range(layers):
        for target in targets:
            n_in, n_out = LINEAR[target]
            a = rng.normal(0.0, n_in**-0.5, (rank, n_in)).astype(dtype)
            b = rng.normal(0.0, size, (n_out, rank)).astype(dtype)
            name = f"blk.{layer}.{target}.weight"
            out.append((f"{name}.lora_a", kind, (n_in, rank), a.tobytes()))
            out.append((f"{name}.lora_b", kind, (rank, n_out), b.tobytes()))
    return out


def adapter_bytes(
    tensors: Iterable[Tensor] | None = None,
    *,
    alpha: float = 16.0,
    strings_in_place: Mapping[str, str] = {},
    more: Iterable[tuple[str, int, bytes]] = (),
) -> bytes:
    """An adapter of the bundled model, valid unless the arguments make it invalid."""
    keys = {
        "general.type": "adapter",
        "general.architecture": "llama",
        "adapter.type": "lora",
        **strings_in_place,
    }
    rows = [*strings(keys), ("adapter.lora.alpha", F32, struct.pack("<f", alpha)), *more]
    return gguf_bytes(rows, random_tensors() if tensors is None else tensors)


def write_adapter(path: Path, seed: int = 0, **how: Any) -> Path:
    """Write a random adapter. how: keyword arguments of `random_tensors`."""
    path.write_bytes(adapter_bytes(random_tensors(seed, **how)))
    return path

"""LoRA adapters as llama.cpp's GGUF files, written and read back.

Knows the file's keys, names and shapes, and llama.cpp's order of rotary rows; owns the package gguf
(extra `train`). Knows no torch: tensors are NumPy arrays by transformers' layer names.
Source: llama.cpp, convert_lora_to_gguf.py and its tensor names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import AdapterError

__all__ = ["Shape", "read", "shape_of", "write"]

Tensors = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a base model an adapter file depends on. architecture: as its GGUF names it."""

    architecture: str
    layers: int
    heads: int
    kv_heads: int


def shape_of(base: Path) -> Shape:
    """What adapters of a model depend on, as its GGUF says. Raises AdapterError if it does not."""
    import gguf

    try:
        fields = gguf.GGUFReader(base).fields
        name = str(fields["general.architecture"].contents())
        layers, heads = (
            int(fields[f"{name}.{key}"].contents())
            for key in ("block_count", "attention.head_count")
        )
        kv_heads = fields.get(f"{name}.attention.head_count_kv")
        return Shape(name, layers, heads, int(kv_heads.contents()) if kv_heads else heads)
    except (OSError, ValueError, LookupError, TypeError) as exc:
        raise AdapterError(
            f"{base} does not say how many layers and heads it has ({exc!r:.80}); give the GGUF "
            "of a language model whose layers are all of one form"
        ) from exc


def write(file: Path, tensors: Tensors, *, alpha: float, shape: Shape) -> int:
    """Write an adapter as float16, in place of an older file when it is whole; its bytes.

    tensors: "model.layers.0.self_attn.q_proj.lora_A" (r, in), and "….lora_B" (out, r).
    """
    import gguf

    temporary = file.with_name(file.name + ".tmp")
    writer = gguf.GGUFWriter(temporary, shape.architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    names = _names(gguf, shape)
    for name, values in sorted(tensors.items()):
        layer, _, kind = name.rpartition(".")
        if kind == "lora_B":
            values = _rotated(values, _heads(layer, shape), back=False)
        writer.add_tensor(f"{names[layer]}.weight.{kind.lower()}", values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(temporary, file)
    return file.stat().st_size


def read(file: Path, *, shape: Shape) -> tuple[dict[str, NDArray[np.float32]], float]:
    """An adapter's tensors as `write` takes them, and its alpha.

    Raises AdapterError on a file that is none, or one for another architecture.
    """
    import gguf

    try:
        found = gguf.GGUFReader(file)
        fields = {k: f.contents() for k, f in found.fields.items() if not k.startswith("GGUF.")}
        of, alpha = fields["general.architecture"], float(fields["adapter.lora.alpha"])
    except (OSError, ValueError, KeyError, IndexError) as exc:
        raise AdapterError(
            f"{file} is not a LoRA adapter ({exc}); give a .gguf that `edgemem train run` wrote"
        ) from exc
    if of != shape.architecture:
        raise AdapterError(
            f"{file} is an adapter for {of!r}, but the base model is {shape.architecture!r}; "
            "give one that was trained on this base"
        )
    layers = {there: here for here, there in _names(gguf, shape).items()}
    tensors: dict[str, NDArray[np.float32]] = {}
    for tensor in found.tensors:
        name, _, kind = tensor.name.rpartition(".weight.lora_")
        if name not in layers:
            raise AdapterError(f"{file} has the tensor {tensor.name}, which the base has not")
        values = np.asarray(tensor.data, np.float32)
        if kind == "b":
            values = _rotated(values, _heads(layers[name], shape), back=True)
        tensors[f"{layers[name]}.lora_{kind.upper()}"] = values
    return tensors, alpha


def _names(gguf: Any, shape: Shape) -> dict[str, str]:
    """llama.cpp's name ("blk.0.attn_q") of each layer that transformers names."""
    arch = next((a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == shape.architecture), None)
    if arch is None:
        raise AdapterError(
            f"the gguf package does not know the architecture {shape.architecture!r}; train on a "
            "base of a known one, or update gguf"
        )
    names = gguf.get_tensor_name_map(arch, shape.layers)
    parts = [f"self_attn.{p}_proj" for p in "qkvo"]
    parts += [f"mlp.{p}_proj" for p in ("gate", "up", "down")]
    layers = [f"model.layers.{n}.{part}" for n in range(shape.layers) for part in parts]
    return {layer: str(found) for layer in layers if (found := names.get_name(layer))}


def _heads(layer: str, shape: Shape) -> int:
    """Heads whose rows llama.cpp orders otherwise in this layer, or 0."""
    if shape.architecture != "llama":  # the others rotate halves, as transformers does
        return 0
    return {"q_proj": shape.heads, "k_proj": shape.kv_heads}.get(layer.rpartition(".")[2], 0)


def _rotated(rows: NDArray[np.float32], heads: int, *, back: bool) -> NDArray[np.float32]:
    """Each head's rows from halves (transformers) to pairs (llama.cpp), or back."""
    if not heads:
        return rows
    half = rows.shape[0] // heads // 2
    split = (heads, half, 2) if back else (heads, 2, half)
    return rows.reshape(*split, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)

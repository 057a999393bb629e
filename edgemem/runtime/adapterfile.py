"""Whether a file is a LoRA adapter that a base model can run: looked at before llama.cpp loads it.

llama.cpp takes some adapters that it cannot run: it aborts the process on a key of another type, on
float64 or integer tensors, on one of the token embeddings; and it takes silently one without an
alpha, with weights that are no numbers, or with no tensors at all. Knows names, shapes and types of
tensors; knows nothing of contexts or stages.
Source: llama.cpp, src/llama-adapter.cpp and convert_lora_to_gguf.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgemem.errors import AdapterError
from edgemem.runtime.gguf import Buffer, Header, Tensor, Value, read_header

__all__ = ["check_adapter"]

_ADVICE = "train or convert it again for this model, or leave it out"


class _Type(NamedTuple):
    """How a tensor type is laid out: `items` weights in `size` bytes, of whose words of type
    `word` the first `floats` are floats with these exponent bits."""

    name: str
    items: int
    size: int
    word: str
    exponent: int
    floats: int = 1


_TYPES = {
    0: _Type("F32", 1, 4, "<u4", 0x7F80_0000),
    1: _Type("F16", 1, 2, "<u2", 0x7C00),
    30: _Type("BF16", 1, 2, "<u2", 0x7F80),
    2: _Type("Q4_0", 32, 18, "<u2", 0x7C00),
    3: _Type("Q4_1", 32, 20, "<u2", 0x7C00, 2),
    6: _Type("Q5_0", 32, 22, "<u2", 0x7C00),
    7: _Type("Q5_1", 32, 24, "<u2", 0x7C00, 2),
    8: _Type("Q8_0", 32, 34, "<u2", 0x7C00),
}
_OTHER_TYPES = {24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}


def check_adapter(file: Path, data: Buffer, base_name: str, base: Header) -> None:
    """Raise AdapterError, naming the tensor or the key, if the base model cannot run an adapter.

    data: the whole file. base: the header of the base model's file.
    Checked are: the kind of file and its architecture; a finite alpha above 0; that each tensor is
    the `.lora_a` or `.lora_b` of a weight matrix of the base, with its counterpart and shapes that
    fit; types that llama.cpp can multiply; data inside the file; weights that are numbers.
    """

    def refuse(what: str) -> AdapterError:
        return AdapterError(f"{file} cannot be an adapter of {base_name}: {what}; {_ADVICE}")

    try:
        header = read_header(data)
    except ValueError as exc:
        raise AdapterError(f"{file} is no GGUF file, or is damaged: {exc}; {_ADVICE}") from exc
    architecture = base.values.get("general.architecture", Value("s", "")).value
    wanted = {
        "general.type": "adapter",
        "adapter.type": "lora",
        "general.architecture": architecture,
    }
    for key, value in wanted.items():
        if (found := header.values.get(key)) != Value("s", value):
            given = "missing" if found is None else repr(found.value)
            raise refuse(f"its {key} is {given}, and must be {value!r}")
    if wrong := _wrong_keys(header.values):
        raise refuse(wrong)
    if not header.tensors:
        raise refuse("it has no tensors")
    for tensor in header.tensors.values():
        if wrong := _wrong_tensor(tensor, header.tensors, base.tensors) or _wrong_data(
            tensor, data
        ):
            raise refuse(f"its tensor {tensor.name} {wrong}")


def _wrong_keys(values: Mapping[str, Value]) -> str:
    alpha = values.get("adapter.lora.alpha")
    if alpha is None:
        return "its adapter.lora.alpha is missing"
    if alpha.kind != "f" or not isinstance(alpha.value, float):
        return f"its adapter.lora.alpha is {alpha.value!r}, and must be a float32"
    if not (math.isfinite(alpha.value) and alpha.value > 0.0):
        return f"its adapter.lora.alpha is {alpha.value}, and must be a number above 0"
    invocation = values.get("adapter.alora.invocation_tokens")
    if invocation is not None and (invocation.kind != "[I]" or not invocation.value):
        return f"its adapter.alora.invocation_tokens are {invocation.value!r}, and must be tokens"
    return ""


def _wrong_tensor(
    tensor: Tensor, all_of_it: Mapping[str, Tensor], base: Mapping[str, Tensor]
) -> str:
    name, _, side = tensor.name.rpartition(".")
    if side not in ("lora_a", "lora_b"):
        return "is neither a .lora_a nor a .lora_b"
    if name not in base:
        return f"is for {name}, which the base model does not have"
    pair = all_of_it.get(f"{name}.{'lora_b' if side == 'lora_a' else 'lora_a'}")
    if pair is None:
        return f"has no {'lora_b' if side == 'lora_a' else 'lora_a'} beside it"
    if name == "token_embd.weight" or len(base[name].shape) < 2:
        return "is for token embeddings or a vector; only weight matrices can be adapted"
    n_in, n_out, *experts = base[name].shape
    a, b = (tensor, pair) if side == "lora_a" else (pair, tensor)
    rank = _padded(a.shape)[1]
    own = [n_in, rank, *experts] if side == "lora_a" else [rank, n_out, *experts]
    if rank < 1 or _padded(tensor.shape) != _padded(tuple(own)):
        return (
            f"has the shape {list(tensor.shape)}, and must have {own} beside a lora_a of "
            f"{list(a.shape)} and a lora_b of {list(b.shape)}"
        )
    return ""


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape + (1,) * (4 - len(shape))


def _wrong_data(tensor: Tensor, data: Buffer) -> str:
    kind = _TYPES.get(tensor.type)
    allowed = ", ".join(t.name for t in _TYPES.values())
    if kind is None:
        name = _OTHER_TYPES.get(tensor.type, f"number {tensor.type}")
        return f"is of type {name}; llama.cpp can run {allowed}"
    if tensor.shape[0] % kind.items:
        return f"has rows of {tensor.shape[0]}, and {kind.name} has blocks of {kind.items}"
    blocks = math.prod(tensor.shape) // kind.items
    if tensor.start + blocks * kind.size > len(data):
        return f"ends at byte {tensor.start + blocks * kind.size}, the file at {len(data)}"
    words = np.frombuffer(data, kind.word, blocks * kind.size // int(kind.word[-1]), tensor.start)
    floats = words.reshape(blocks, -1)[:, : kind.floats]
    if ((floats & kind.exponent) == kind.exponent).any():
        return "has weights that are no finite numbers"
    return ""

"""The tensors of a GGUF file, as float32, a few at a time.

What is quantised is unpacked by ggml's own functions: the types that llama.cpp runs are the types
that are read here. The file is mapped, not read: the pages are llama.cpp's own where that has the
file open too.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ModelError
from edgemem.runtime import llama
from edgemem.runtime.gguf import Tensor, check_header, read_header, read_only

__all__ = ["Tensors"]

FloatArray = NDArray[np.float32]
Setting = int | float | str | bool

_F32 = 0
_DAMAGED = "check it with `edgemem models verify`, or pull it again"


class _Traits(ctypes.Structure):
    """The beginning of ggml_type_traits, in ggml.h."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


@dataclass(frozen=True, slots=True)
class _Tensor:
    shape: tuple[int, int]
    offset: int
    row_bytes: int
    to_float: Any  # None: float32 already


class Tensors:
    """An open GGUF file. settings: its scalars and strings by key. shapes: (rows, columns) by name;
    a vector has one row. Close it when done; several threads may read."""

    def __init__(self, path: Path) -> None:
        check_header(path)
        data = read_only(path)
        try:
            header = read_header(data)
        except ValueError as exc:
            raise ModelError(f"{path} cannot be read as a GGUF model ({exc}); {_DAMAGED}") from exc
        self.path = path
        self.settings: dict[str, Setting] = {
            key: entry.value
            for key, entry in header.values.items()
            if isinstance(entry.value, int | float | str)
        }
        self._tensors = {name: _layout(path, t) for name, t in header.tensors.items()}
        self._data: NDArray[np.uint8] | None = np.frombuffer(data, np.uint8)
        for name, tensor in self._tensors.items():
            if tensor.offset + tensor.shape[0] * tensor.row_bytes > len(data):
                raise ModelError(
                    f"{path} is damaged: it ends before its tensor {name} does; {_DAMAGED}"
                )

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, name: str, out: FloatArray, start: int = 0) -> None:
        """Unpack rows of a tensor, from `start` on, as many as fit into out (rows, columns).

        Raises ModelError when closed, KeyError and ValueError on what there is not.
        """
        tensor, data = self._tensors[name], self._data
        if data is None:
            raise ModelError(f"{self.path.name} is closed; open it again")
        rows, columns = out.shape
        if columns != tensor.shape[1] or start < 0 or start + rows > tensor.shape[0]:
            raise ValueError(f"{name} has shape {tensor.shape}, not rows {start} on of {out.shape}")
        begin = tensor.offset + start * tensor.row_bytes
        packed = data[begin : begin + rows * tensor.row_bytes]
        if tensor.to_float is None:
            out[...] = packed.view(np.float32).reshape(out.shape)
        elif out.flags.c_contiguous:
            tensor.to_float(packed.ctypes.data, out.ctypes.data, out.size)
        else:
            raise ValueError("out must be C-contiguous")

    def close(self) -> None:
        self._data = None

    def __enter__(self) -> Tensors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _layout(path: Path, tensor: Tensor) -> _Tensor:
    """How a tensor's rows lie. Raises ModelError on a type that cannot be unpacked."""
    lib = llama.ggml()
    traits_of, name_of = lib["ggml_get_type_traits"], lib["ggml_type_name"]
    traits_of.restype, traits_of.argtypes = ctypes.POINTER(_Traits), [ctypes.c_int]
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.c_int]
    known = tensor.type < llama.library().GGML_TYPE_COUNT  # ggml reads beyond its table
    traits = traits_of(tensor.type if known else _F32).contents
    columns = tensor.shape[0]
    # The struct is llama.cpp's own business; were it to change, its first fields would tell.
    block, size = traits.blck_size, traits.type_size
    if not known or traits.type_name != name_of(tensor.type) or block < 1 or columns % block:
        raise ModelError(
            f"{path}: the type of its tensor {tensor.name} cannot be unpacked with this "
            "llama-cpp-python; install the version that edgemem-runtime asks for"
        )
    if tensor.type != _F32 and not traits.to_float:
        raise ModelError(
            f"{path}: its tensor {tensor.name} is of type {traits.type_name.decode()}, "
            "which has no float form; use a GGUF of another quantisation"
        )
    return _Tensor(
        shape=(prod(tensor.shape[1:]), columns),
        offset=tensor.start,
        row_bytes=columns // block * size,
        to_float=None if tensor.type == _F32 else traits.to_float,
    )

"""The tensors of a GGUF file, as float32, a few at a time.

Knows the file's settings, the tensors' names and shapes, and how to unpack what is quantised, by
ggml's own functions: the types that llama.cpp runs are the types that are read here. Knows nothing
of what the numbers mean. The file is mapped, not read: the pages are llama.cpp's own where that has
the file open too.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ModelError
from edgemem.runtime import llama
from edgemem.runtime.gguf import check_header

__all__ = ["Tensors"]

FloatArray = NDArray[np.float32]
Setting = int | float | str | bool

_F32 = 0
_STRING = 8
_SCALARS = {
    0: ("u8", ctypes.c_uint8), 1: ("i8", ctypes.c_int8),
    2: ("u16", ctypes.c_uint16), 3: ("i16", ctypes.c_int16),
    4: ("u32", ctypes.c_uint32), 5: ("i32", ctypes.c_int32), 6: ("f32", ctypes.c_float),
    7: ("bool", ctypes.c_bool),
    10: ("u64", ctypes.c_uint64), 11: ("i64", ctypes.c_int64), 12: ("f64", ctypes.c_double),
}  # fmt: skip


class _Parameters(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


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
        lib, self.path = llama.ggml(), path
        lib.gguf_init_from_file.restype = ctypes.c_void_p
        lib.gguf_init_from_file.argtypes = [ctypes.c_char_p, _Parameters]
        context = lib.gguf_init_from_file(os.fsencode(path), _Parameters(True, None))
        if not context:
            raise ModelError(
                f"{path} cannot be read as a GGUF model ({llama.last_errors('no reason given')}); "
                "check it with `edgemem models verify`, or pull it again"
            )
        try:
            self.settings = _settings(lib, context)
            self._tensors = _tensors(lib, context, path)
        finally:
            _call(lib, "gguf_free", None, context)
        self._data: NDArray[np.uint8] | None = np.memmap(path, np.uint8, "r")
        for name, tensor in self._tensors.items():
            if tensor.offset + tensor.shape[0] * tensor.row_bytes > len(self._data):
                self.close()
                raise ModelError(
                    f"{path} is damaged: it ends before its tensor {name} does; check it with "
                    "`edgemem models verify`, or pull it again"
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _call(lib: Any, name: str, result: Any, context: Any, *numbers: int) -> Any:
    function = lib[name]  # a function of its own each time, so no other caller's types change
    function.restype = result
    function.argtypes = [ctypes.c_void_p, *([ctypes.c_int64] * len(numbers))]
    return function(context, *numbers)


def _settings(lib: Any, context: Any) -> dict[str, Setting]:
    out: dict[str, Setting] = {}
    for i in range(_call(lib, "gguf_get_n_kv", ctypes.c_int64, context)):
        kind = _call(lib, "gguf_get_kv_type", ctypes.c_int, context, i)
        key = _call(lib, "gguf_get_key", ctypes.c_char_p, context, i).decode("utf-8", "replace")
        if kind == _STRING:
            text = _call(lib, "gguf_get_val_str", ctypes.c_char_p, context, i)
            out[key] = text.decode("utf-8", "replace")
        elif kind in _SCALARS:
            suffix, result = _SCALARS[kind]
            out[key] = _call(lib, f"gguf_get_val_{suffix}", result, context, i)
    return out


def _tensors(lib: Any, context: Any, path: Path) -> dict[str, _Tensor]:
    base = _call(lib, "gguf_get_data_offset", ctypes.c_size_t, context)
    traits_of = lib["ggml_get_type_traits"]
    traits_of.restype, traits_of.argtypes = ctypes.POINTER(_Traits), [ctypes.c_int]
    name_of = lib["ggml_type_name"]
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.c_int]
    out = {}
    for i in range(_call(lib, "gguf_get_n_tensors", ctypes.c_int64, context)):
        name = _call(lib, "gguf_get_tensor_name", ctypes.c_char_p, context, i).decode()
        kind = _call(lib, "gguf_get_tensor_type", ctypes.c_int, context, i)
        sizes = _call(lib, "gguf_get_tensor_ne", ctypes.POINTER(ctypes.c_int64), context, i)
        columns, *rest = sizes[:4]
        traits = traits_of(kind).contents
        # The struct is llama.cpp's own business; were it to change, its first fields would tell.
        block, size = traits.blck_size, traits.type_size
        if traits.type_name != name_of(kind) or block < 1 or columns % block:
            raise ModelError(
                f"{path}: the type of its tensor {name} cannot be unpacked with this "
                "llama-cpp-python; install the version that edgemem-runtime asks for"
            )
        if kind != _F32 and not traits.to_float:
            raise ModelError(
                f"{path}: its tensor {name} is of type {traits.type_name.decode()}, "
                "which has no float form; use a GGUF of another quantisation"
            )
        out[name] = _Tensor(
            shape=(rest[0] * rest[1] * rest[2], columns),
            offset=base + _call(lib, "gguf_get_tensor_offset", ctypes.c_size_t, context, i),
            row_bytes=columns // block * size,
            to_float=None if kind == _F32 else traits.to_float,
        )
    return out

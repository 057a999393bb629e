"""Reads the header of a GGUF file, before llama.cpp opens the file.

llama.cpp refuses most damaged files with an error, but aborts the process on a few header values
and crashes on tensors of some types. Versions 2 and 3, little endian, can be read.
Source: ggml/docs/gguf.md.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgemem.errors import ModelError

__all__ = ["Buffer", "Header", "Tensor", "Value", "check_header", "open_header", "read_header"]
__all__ += ["read_only"]

MAX_LAYERS = 512  # llama.cpp's LLAMA_MAX_LAYERS, which it asserts
_MAX_KEY_BYTES = 65_535
_MAX_KEPT_ITEMS = 4096  # longer arrays are vocabularies, which are skipped
_MAX_DIMS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))

Buffer = bytes | mmap.mmap


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the header. kind: a format of `struct` such as "I" (u32) or "f" (f32), or "s"
    (string); in brackets for an array. value: None for an array of strings, or a long one."""

    kind: str
    value: int | float | bool | str | tuple[int | float, ...] | None


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor lies. shape: ggml's, the fastest dimension first; type: ggml's number;
    start: where its data begin, in bytes from the beginning of the file."""

    name: str
    shape: tuple[int, ...]
    type: int
    start: int


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the data. bytes: its size, at which the data begin."""

    values: dict[str, Value]
    tensors: dict[str, Tensor]
    bytes: int

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, without its kind."""
        found = self.values.get(key)
        return default if found is None else found.value


def check_header(file: Path) -> None:
    """Raise ModelError if a file is no GGUF, or has a value that would abort llama.cpp."""
    advice = "check it with `edgemem models verify`, or pull it again"
    data = read_only(file)
    if data[:4] != b"GGUF":
        found = f"it begins with {data[:4]!r}" if data else "it is empty"
        raise ModelError(
            f"{file} is not a GGUF model: {found}; give the path of a .gguf file, or {advice}"
        )
    try:
        for key, entry in _values(data, _Cursor(4)):
            value = entry.value
            if not isinstance(value, int | float):
                continue
            layers = key.endswith(".block_count")
            if (layers and not 1 <= value <= MAX_LAYERS) or not math.isfinite(value):
                raise ModelError(f"{file} is damaged: its {key} is {value:g}; {advice}")
    except ValueError:
        return  # llama.cpp refuses such a file itself, and says why


def read_only(file: Path) -> Buffer:
    """A file's bytes, mapped. Raises ModelError if it cannot be opened."""
    try:
        with file.open("rb") as f:
            try:
                return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:  # an empty file
                return b""
    except (OSError, ValueError) as exc:  # ValueError: a name with a NUL in it
        reason = getattr(exc, "strerror", None) or exc
        raise ModelError(
            f"{file} cannot be read ({reason}); give the path of a .gguf file you may read"
        ) from exc


def open_header(file: Path, advice: str) -> tuple[Header, Buffer]:
    """A file's header, and its bytes, mapped. Raises ModelError, which ends in the advice."""
    data = read_only(file)
    try:
        return read_header(data), data
    except ValueError as exc:
        raise ModelError(f"{file} is no GGUF file, or is damaged: {exc}; {advice}") from exc


def read_header(data: Buffer) -> Header:
    """The whole header of a GGUF file. Raises ValueError, saying what is wrong with it."""
    if data[:4] != b"GGUF":
        raise ValueError(f"it begins with {bytes(data[:4])!r}, not with b'GGUF'")
    at = _Cursor(4)
    values: dict[str, Value] = {}
    for key, value in _values(data, at):
        if key in values:
            raise ValueError(f"the key {key} comes twice")
        values[key] = value
    (count,) = struct.unpack_from("<Q", data, 8)
    align = values.get("general.alignment", Value("I", 32))
    size = align.value
    if align.kind != "I" or not isinstance(size, int) or size < 1 or size & (size - 1):
        raise ValueError(f"general.alignment is {size!r}; it must be a power of two")
    found = [_tensor(data, at) for _ in range(_plausible(count, data, at))]
    start = at.position + -at.position % size
    tensors: dict[str, Tensor] = {}
    for name, shape, kind, offset in found:
        if name in tensors:
            raise ValueError(f"the tensor {name} comes twice")
        if offset % size:
            raise ValueError(f"the tensor {name} begins at byte {offset}, no multiple of {size}")
        tensors[name] = Tensor(name, shape, kind, start + offset)
    return Header(values, tensors, start)


@dataclass(slots=True)
class _Cursor:
    position: int


def _values(data: Buffer, at: _Cursor) -> Iterator[tuple[str, Value]]:
    """Yields keys and values in order, and moves `at` behind them. Raises ValueError on damage."""
    version, _, count = _unpack("IQQ", data, at)
    if version not in (2, 3):
        raise ValueError(f"its version is {version}; 2 and 3 can be read")
    for _ in range(_plausible(count, data, at)):
        key = _string(data, at)
        (kind,) = _unpack("I", data, at)
        if kind == _STRING:
            yield key, Value("s", _string(data, at))
        elif kind == _ARRAY:
            yield key, _array(key, data, at)
        elif kind in _SCALARS:
            yield key, Value(_SCALARS[kind], _unpack(_SCALARS[kind], data, at)[0])
        else:
            raise ValueError(f"the key {key} has a value of the unknown type {kind}")


def _array(key: str, data: Buffer, at: _Cursor) -> Value:
    kind, items = _unpack("IQ", data, at)
    if kind == _STRING:
        position, end, length_of = at.position, len(data) - 8, struct.Struct("<Q").unpack_from
        for _ in range(_plausible(items, data, at)):
            if position > end:
                raise ValueError(f"the file ends in {key}")
            position += 8 + length_of(data, position)[0]
        at.position = position
        return Value("[s]", None)
    if kind not in _SCALARS:
        raise ValueError(f"the key {key} has an array of the unknown type {kind}")
    letter = _SCALARS[kind]
    if items <= _MAX_KEPT_ITEMS:
        return Value(f"[{letter}]", _unpack(f"{items}{letter}", data, at))
    at.position += items * struct.calcsize(letter)
    return Value(f"[{letter}]", None)


def _tensor(data: Buffer, at: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = _string(data, at)
    (dims,) = _unpack("I", data, at)
    if not 1 <= dims <= _MAX_DIMS:
        raise ValueError(f"the tensor {name} has {dims} dimensions; 1 to {_MAX_DIMS} are allowed")
    shape = _unpack(f"{dims}Q", data, at)
    kind, offset = _unpack("IQ", data, at)
    return name, shape, kind, offset


def _string(data: Buffer, at: _Cursor) -> str:
    (length,) = _unpack("Q", data, at)
    start = at.position
    if length > len(data) - start:
        raise ValueError(f"the file ends in a text of {length} bytes at byte {start}")
    at.position += length
    return data[start : start + min(length, _MAX_KEY_BYTES)].decode("utf-8", "replace")


def _plausible(count: int, data: Buffer, at: _Cursor) -> int:
    """Returns the count. Raises ValueError if that many entries of eight bytes do not fit."""
    if count > (len(data) - at.position) // 8:
        raise ValueError(f"it speaks of {count} entries at byte {at.position}, and ends before")
    return count


def _unpack(layout: str, data: Buffer, at: _Cursor) -> tuple[int, ...]:
    layout = "<" + layout
    try:
        found = struct.unpack_from(layout, data, at.position)
    except (struct.error, OverflowError) as exc:  # a position beyond any file's
        raise ValueError(f"the file ends in its header, at byte {at.position}") from exc
    at.position += struct.calcsize(layout)
    return found

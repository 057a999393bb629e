"""What a GGUF file says of itself, read before llama.cpp sees it.

llama.cpp refuses most damaged files politely, but aborts the process on a few header values. Knows
the file format (v2 and v3, little endian) up to the vocabulary; knows nothing of tensors.
Source: ggml/docs/gguf.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from edgemem.errors import ModelError

__all__ = ["check_header", "header"]

MAX_LAYERS = 512  # llama.cpp's LLAMA_MAX_LAYERS, which it asserts
_MAX_KEY_BYTES = 65_535
_STRING, _ARRAY = 8, 9
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))


def check_header(file: Path) -> None:
    """Raise ModelError if a file is no GGUF, or has a value that would abort llama.cpp."""
    advice = "check it with `edgemem models verify`, or pull it again"
    try:
        with file.open("rb") as f:
            magic = f.read(4)
            if magic != b"GGUF":
                found = f"it begins with {magic!r}" if magic else "it is empty"
                raise ModelError(
                    f"{file} is not a GGUF model: {found}; give the path of a .gguf file, or "
                    f"{advice}"
                )
            for key, value in header(f):
                layers = key.endswith(".block_count")
                bad = (layers and not 1 <= value <= MAX_LAYERS) or not math.isfinite(value)
                if bad:
                    raise ModelError(f"{file} is damaged: its {key} is {value:g}; {advice}")
    except OSError as exc:
        raise ModelError(
            f"{file} cannot be read ({exc.strerror}); give the path of a .gguf file you may read"
        ) from exc


def header(f: IO[bytes]) -> Iterator[tuple[str, float]]:
    """The numbers of a header, in order, up to the vocabulary or the first damage.

    f: a GGUF file, after its magic. Model parameters come before the vocabulary in every file that
    llama.cpp's tools write.
    """
    try:
        _, _, count = _unpack(f, "IQQ")
        for _ in range(count):
            (length,) = _unpack(f, "Q")
            if length > _MAX_KEY_BYTES:
                return
            key = f.read(length).decode("utf-8", "replace")
            (kind,) = _unpack(f, "I")
            if kind == _STRING:
                f.seek(_unpack(f, "Q")[0], 1)
            elif kind == _ARRAY:
                item, items = _unpack(f, "IQ")
                if item not in _SCALARS:
                    if key.startswith("tokenizer."):
                        return
                    for _ in range(items):
                        f.seek(_unpack(f, "Q")[0], 1)
                else:
                    f.seek(items * struct.calcsize(_SCALARS[item]), 1)
            else:
                yield key, _unpack(f, _SCALARS[kind])[0]
    except (struct.error, KeyError, OSError, OverflowError, ValueError):
        return  # llama.cpp refuses such a file itself, and says why


def _unpack(f: IO[bytes], layout: str) -> tuple[int, ...]:
    layout = "<" + layout
    return struct.unpack(layout, f.read(struct.calcsize(layout)))

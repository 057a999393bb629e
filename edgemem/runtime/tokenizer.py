"""Tokens as another model counts them, from a tokenizer.json; or an upper estimate without one.

The only importer of tokenizers. Knows files and text; downloads nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import InputError, ModelError, ModelNotFound

__all__ = ["estimated_tokens", "file_tokenizer", "read_tokenizer"]

_PIECE = re.compile(r" ?[A-Za-z]{1,4}| ?[0-9]| ?[^\sA-Za-z0-9]|\s")


def read_tokenizer(file: str | os.PathLike[str]) -> Any:
    """A `tokenizers.Tokenizer` that neither cuts nor pads. Raises ModelNotFound, ModelError."""
    from tokenizers import Tokenizer

    path = Path(file)
    if not path.is_file():
        raise ModelNotFound(f"There is no tokenizer file {path}. Give a model's tokenizer.json.")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:  # tokenizers raises plain Exception
        raise ModelError(
            f"{path} is not a tokenizer ({exc}). Replace it by the tokenizer.json that belongs to "
            "the model."
        ) from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def file_tokenizer(
    file: str | os.PathLike[str],
) -> Callable[[str], NDArray[np.int64]]:
    """How the model of a tokenizer.json cuts a text: (n, 2) characters of each token, in order.

    Special tokens are not added. Raises ModelNotFound or ModelError; the function InputError on
    half of a surrogate pair.
    """
    tokenizer = read_tokenizer(file)

    def offsets(text: str) -> NDArray[np.int64]:
        _check_text(text)
        encoding = tokenizer.encode(text, add_special_tokens=False)
        return np.array(encoding.offsets, np.int64).reshape(-1, 2)

    return offsets


def estimated_tokens(text: str) -> NDArray[np.int64]:
    """An upper estimate where no tokenizer is known: (n, 2) characters of each supposed token.

    A token for every four ASCII letters of a word (or less at its end), one for each digit, mark
    and line end, and one for each byte of UTF-8 of any other character; one space belongs to what
    follows it. More than SmolLM2, Gemma 3 and BERT take for ordinary text; a text that is mostly
    rare words, such as identifiers, may take more. Raises InputError on half of a surrogate pair.
    """
    _check_text(text)
    spans = np.array([m.span() for m in _PIECE.finditer(text)], np.int64).reshape(-1, 2)
    if text.isascii():
        return spans
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)[spans[:, 1] - 1]
    sizes = 1 + (codes >= 0x80).astype(int) + (codes >= 0x800) + (codes >= 0x10000)
    return np.repeat(spans, sizes, axis=0)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InputError(
            f"the text has half of a surrogate pair at character {exc.start}; remove it"
        ) from exc

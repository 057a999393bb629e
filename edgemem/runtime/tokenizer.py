"""Tokens as another model counts them, from its tokenizer.json.

The only importer of tokenizers. Knows files and text; downloads nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ModelError, ModelNotFound
from edgemem.inputs import utf8

__all__ = ["file_tokenizer", "read_tokenizer"]


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
        utf8(text)
        encoding = tokenizer.encode(text, add_special_tokens=False)
        return np.array(encoding.offsets, np.int64).reshape(-1, 2)

    return offsets

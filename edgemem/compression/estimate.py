"""How many tokens a text has for a model whose tokenizer is not here; rather too many.

Knows characters, and nothing else.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from edgemem.inputs import utf8

__all__ = ["estimated_tokens"]

_PIECE = re.compile(r" ?[A-Za-z]{1,4}| ?[0-9]| ?[^\sA-Za-z0-9]|\s")


def estimated_tokens(text: str) -> NDArray[np.int64]:
    """An upper estimate where no tokenizer is known: (n, 2) characters of each supposed token.

    A token for every four ASCII letters of a word (or less at its end), one for each digit, mark
    and line end, and one for each byte of UTF-8 of any other character; one space belongs to what
    follows it. More than SmolLM2, Gemma 3 and BERT take for ordinary text; a text that is mostly
    rare words, such as identifiers, may take more. Raises InputError on half of a surrogate pair.
    """
    utf8(text)
    spans = np.array([m.span() for m in _PIECE.finditer(text)], np.int64).reshape(-1, 2)
    if text.isascii():
        return spans
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)[spans[:, 1] - 1]
    sizes = 1 + (codes >= 0x80).astype(int) + (codes >= 0x800) + (codes >= 0x10000)
    return np.repeat(spans, sizes, axis=0)

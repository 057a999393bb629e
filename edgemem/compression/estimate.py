"""How many tokens a text has for a model whose tokenizer is not here; rather too many.

Knows characters, and nothing else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgemem.compression.characters import code_points, is_space
from edgemem.inputs import utf8

__all__ = ["estimated_tokens"]

LETTERS = 4  # of a word, in a token


def estimated_tokens(text: str) -> NDArray[np.int64]:
    """An upper estimate where no tokenizer is known: (n, 2) characters of each supposed token.

    A token for every four ASCII letters of a word (or less at its end), one for each digit, mark
    and line end, and one for each byte of UTF-8 of any other character; one space belongs to what
    follows it. More than SmolLM2, Gemma 3 and BERT take for ordinary text; a text that is mostly
    rare words, such as identifiers, may take more. Raises InputError on half of a surrogate pair.
    """
    utf8(text)
    if not text:
        return np.empty((0, 2), np.int64)
    codes = code_points(text)
    lower = codes | 0x20  # of a letter; no other character becomes one
    letter = (lower >= ord("a")) & (lower <= ord("z"))
    at = np.arange(len(codes))
    word = np.maximum.accumulate(np.where(letter, 0, at + 1))  # where its letters begin
    goes_on = letter[:-1] & letter[1:] & ((at - word)[:-1] % LETTERS != LETTERS - 1)
    goes_on |= (codes[:-1] == ord(" ")) & ~is_space(codes[1:])
    ends = np.append(np.flatnonzero(~goes_on) + 1, len(codes))
    spans = np.stack([np.append(0, ends[:-1]), ends], axis=1)
    if text.isascii():
        return spans
    last = codes[ends - 1]
    sizes = 1 + (last >= 0x80).astype(int) + (last >= 0x800) + (last >= 0x10000)
    return np.repeat(spans, sizes, axis=0)

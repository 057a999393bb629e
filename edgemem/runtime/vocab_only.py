"""A GGUF model's tokenizer alone, without its weights, and where tokens lie in a text.

Knows the vocabulary of a file; shares nothing with an Engine, so no generation is waited for.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgemem.runtime import llama
from edgemem.runtime.vocabulary import Vocabulary

__all__ = ["Tokenizer"]


class Tokenizer:
    """An open vocabulary. Calls from several threads take turns; close it when done."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError if the file cannot be read."""
        self._lib = llama.library()
        self._model = llama.open_vocabulary(path)
        self._vocabulary = Vocabulary(self._lib, self._model, path.name)
        self._lock = threading.Lock()

    def tokenize(self, text: str) -> tuple[list[int], NDArray[np.int32]]:
        """Token ids without BOS, and (n, 2) int32: the characters [start, end) of each token.

        A token that holds a part of a character spans all of it. Raises InputError on half of a
        surrogate pair, ModelError when closed.
        """
        with self._lock:
            tokens = self._vocabulary.tokenize(text)
            pieces = [self._vocabulary.piece(token) for token in tokens]
        data, at, ends = text.encode("utf-8"), 0, []
        starts = []
        for piece in pieces:
            # Some models put a space before any text, and a byte that a vocabulary lacks is left
            # out: so a piece is looked for, and takes no room where it is not found.
            found = data.find(piece, at, at + len(piece) + 4)
            start = found if found >= 0 else at
            at = start + len(piece) if found >= 0 else at
            if found < 0 and piece[:1] == b" " and data.startswith(piece[1:], at):
                at += len(piece) - 1
            starts.append(start)
            ends.append(at)
        return tokens, _characters(data, starts, ends)

    def close(self) -> None:
        """A second time does nothing."""
        with self._lock:
            if self._model is not None:
                self._vocabulary.close()
                self._lib.llama_model_free(self._model)
                self._model = None

    def __enter__(self) -> Tokenizer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _characters(data: bytes, starts: list[int], ends: list[int]) -> NDArray[np.int32]:
    """(n, 2) positions in the text, from positions in its UTF-8 bytes."""
    begins = (np.frombuffer(data, np.uint8) & 0xC0) != 0x80
    # How many characters begin before each byte: a character is spanned from its first byte on.
    before = np.concatenate([[0], np.cumsum(begins)]).astype(np.int32)
    inside = np.append(~begins, False)
    first = np.asarray(starts, np.intp)
    out = np.stack([before[first] - inside[first], before[np.asarray(ends, np.intp)]], axis=1)
    return out.astype(np.int32).reshape(-1, 2)

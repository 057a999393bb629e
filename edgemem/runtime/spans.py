"""Which tokens may follow if an answer must be a run of words of given texts.

Knows token ids and their bytes; no model. A small model that may only copy cannot invent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Spans"]


class Spans:
    """The runs of words of some texts, as tokens.

    texts: token ids of each text, tokenized with a space before it. piece: a token's bytes.
    ends: tokens that may end an answer once it stands at a word's end.
    """

    def __init__(
        self, texts: Sequence[Sequence[int]], piece: Callable[[int], bytes], ends: Sequence[int]
    ) -> None:
        self._texts = [list(tokens) for tokens in texts]
        self._ends = list(ends)
        pieces = {token: piece(token) for tokens in self._texts for token in tokens}
        self._begins_word = {t for t, p in pieces.items() if p[:1] == b" " and p.strip()}
        # An apostrophe or a hyphen goes on with its word; so does any letter, also of two bytes.
        self._joins = {t for t, p in pieces.items() if p[:1].isalnum() or p[:1] in (b"'", b"-")}
        self._joins |= {t for t, p in pieces.items() if p[:1] >= b"\x80"}

    def after(self, answer: Sequence[int]) -> set[int]:
        """The tokens that may follow an answer (token ids, all chosen by this)."""
        if not answer:
            return {t for tokens in self._texts for t in tokens if t in self._begins_word}
        run, found = list(answer), set[int]()
        for tokens in self._texts:
            for start in range(len(tokens) - len(run) + 1):
                if tokens[start] in self._begins_word and tokens[start : start + len(run)] == run:
                    end = start + len(run)
                    if end == len(tokens) or tokens[end] not in self._joins:
                        found.update(self._ends)
                    if end < len(tokens):
                        found.add(tokens[end])
        return found

    def allowed(self, answer: Sequence[int]) -> Callable[[NDArray[np.intp]], NDArray[np.bool_]]:
        """A test of candidate tokens (m,) -> (m,) against `after`; it sees `answer` grow."""

        def test(candidates: NDArray[np.intp]) -> NDArray[np.bool_]:
            return np.isin(candidates, list(self.after(answer)))

        return test

"""Which tokens may follow if an answer must be a run of words of given texts.

Knows token ids, their bytes and what a stop word is; no model. A small model that may only copy
cannot invent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import InputError
from edgemem.text import content_words

__all__ = ["Spans"]

# A word goes on with a letter (also of two bytes), a digit, an apostrophe or a hyphen, and a number
# with a mark before a digit: "3.5", "10:30", "1,000".
_GOES_ON = re.compile(rb"[0-9A-Za-z'\-\x80-\xff]|[.,:/][0-9]")


@dataclass(frozen=True, slots=True)
class _Text:
    """Tokens; the positions where a word begins; per position whether a word may end before it."""

    tokens: list[int]
    starts: list[int]
    word_ends: list[bool]


class Spans:
    """The runs of words of some texts, as tokens.

    texts: token ids of each text, tokenized with a space before it. piece: a token's bytes.
    ends: tokens that may end an answer. They may follow at a word's end, once the answer has a word
    that is no stop word, or where its text ends.
    """

    def __init__(
        self, texts: Sequence[Sequence[int]], piece: Callable[[int], bytes], ends: Sequence[int]
    ) -> None:
        self._pieces = {token: piece(token) for tokens in texts for token in tokens}
        self._texts = [self._read(list(tokens)) for tokens in texts]
        self._ends = frozenset(ends)

    @classmethod
    def quoting(
        cls,
        within: Sequence[str],
        stop: Sequence[str],
        tokenize: Callable[[str], list[int]],
        piece: Callable[[int], bytes],
    ) -> Spans:
        """The runs of words of texts. stop: texts that end an answer, one of them of one token.

        Raises InputError if no text says anything or no stop text is one token.
        """
        # A token that is the stop text, though some models put a space before any text.
        ends = [t for s in stop for t in tokenize(s) if piece(t) == s.encode()]
        if not ends or not any(text.strip() for text in within):
            raise InputError(
                f"within is {list(within)!r:.80} and stop {list(stop)!r}; give at least one text, "
                "and one stop text of a single token to end the answer"
            )
        return cls([tokenize(f" {text}") for text in within if text.strip()], piece, ends)

    def after(self, answer: Sequence[int]) -> set[int]:
        """The tokens that may follow an answer (token ids, all chosen by this)."""
        run, following, at_word_end = list(answer), set[int](), False
        for text in self._texts:
            for start in text.starts:
                end = start + len(run)
                if text.tokens[start:end] == run:
                    following.update(text.tokens[end : end + 1])
                    at_word_end = at_word_end or text.word_ends[end]
        if not following or (at_word_end and self._says_something(run)):
            following |= self._ends
        return following

    def allowed(self, answer: Sequence[int]) -> Callable[[NDArray[np.intp]], NDArray[np.bool_]]:
        """A test of candidate tokens (m,) -> (m,) against `after`; it sees `answer` grow."""

        def test(candidates: NDArray[np.intp]) -> NDArray[np.bool_]:
            return np.isin(candidates, list(self.after(answer)))

        return test

    def _read(self, tokens: list[int]) -> _Text:
        pieces = [self._pieces[token] for token in tokens]
        whole, offsets = b"".join(pieces), accumulate(map(len, pieces), initial=0)
        return _Text(
            tokens,
            # A lone space counts: some models cut " 2023" into a space and four digits.
            [i for i, piece in enumerate(pieces) if i == 0 or piece[:1] == b" "],
            [_GOES_ON.match(whole, offset) is None for offset in offsets],
        )

    def _says_something(self, run: Sequence[int]) -> bool:
        said = b"".join(self._pieces[token] for token in run).decode("utf-8", "ignore")
        return bool(content_words(said))

"""Choosing the next token from logits: NumPy only, knows no model.

`pick` asks the grammar about its favourite token first, and about ever more of the likeliest ones
only while all are refused: to ask about 49,000 takes half as long as the model's own step. A `Fork`
is a decision that a model makes by one token, taken at a probability other than the likeliest's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import InputError

__all__ = ["Fork", "pick", "repeat_penalised"]

_CERTAIN = 1e4  # logits apart: nothing else has a probability, at any temperature in use
_LOOKS = (64, 512, 4096)  # likeliest tokens asked about together, before all are


@dataclass(frozen=True, slots=True)
class Fork:
    """After the tokens `before`, `token` is taken if its probability is at least `at_least`, and
    only then."""

    before: tuple[int, ...]
    token: int
    at_least: float

    @classmethod
    def between(
        cls, text: str, other: str, at_least: float, tokenize: Callable[[str], list[int]]
    ) -> Fork:
        """Where two answers part; `token` is that of `text`. Raises InputError if they do not."""
        ours, theirs = tokenize(text), tokenize(other)
        for i, (mine, yours) in enumerate(zip(ours, theirs, strict=False)):
            if mine != yours:
                return cls(tuple(ours[:i]), mine, at_least)
        raise InputError(
            f"the answers {text!r} and {other!r} do not part; give two that differ in a word"
        )

    def decided(self, answer: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits (n_vocab,) of the token that follows `answer`, the decision made in them."""
        if tuple(answer) != self.before:
            return logits
        behind = logits.astype(np.float64) - float(logits.max())
        p = np.exp(behind[self.token]) / np.exp(behind).sum()
        logits = logits.copy()
        logits[self.token] = (
            float(logits.max()) + _CERTAIN if p >= self.at_least else -(_CERTAIN**2)
        )
        return logits


def repeat_penalised(
    logits: NDArray[np.float32], recent: Sequence[int], penalty: float
) -> NDArray[np.float32]:
    """Logits (n_vocab,), those of recent tokens divided (negative ones multiplied) by penalty."""
    if penalty == 1.0 or not recent:
        return logits
    logits = logits.copy()
    seen = np.unique(np.asarray(recent))
    values = logits[seen]
    logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    return logits


def pick(
    logits: NDArray[np.float32],
    *,
    temperature: float,
    top_p: float,
    rng: np.random.Generator,
    allowed: Callable[[NDArray[np.intp]], NDArray[np.bool_]] | None = None,
) -> int:
    """The next token.

    logits: (n_vocab,) float32. temperature 0: the likeliest. allowed: maps candidate tokens (m,)
    to (m,) booleans; a token it refuses is never returned. Raises ValueError if it refuses all.
    """
    favourite = _choose(logits, np.arange(len(logits)), temperature, top_p, rng)
    if allowed is None or allowed(np.array([favourite]))[0]:
        return favourite
    ok = np.empty(0, np.intp)
    for look in (*(n for n in _LOOKS if n < len(logits)), len(logits)):
        asked = np.argpartition(logits, -look)[-look:]
        ok = asked[allowed(asked)]
        if len(ok):
            break
    if not len(ok):
        raise ValueError("none of the vocabulary is allowed")
    return _choose(logits[ok], ok, temperature, top_p, rng)


def _choose(
    logits: NDArray[np.float32],
    tokens: NDArray[np.intp],
    temperature: float,
    top_p: float,
    rng: np.random.Generator,
) -> int:
    if temperature <= 0.0:
        return int(tokens[np.argmax(logits)])
    order = np.argsort(-logits)
    behind = logits[order].astype(np.float64) - float(logits[order[0]])
    with np.errstate(over="ignore"):  # a tiny temperature: minus infinity is what is meant
        p = np.exp(behind / temperature)
    p /= p.sum()
    nucleus = int(np.searchsorted(np.cumsum(p), top_p)) + 1
    p = p[:nucleus] / p[:nucleus].sum()
    return int(tokens[order[rng.choice(len(p), p=p)]])

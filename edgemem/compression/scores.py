"""What a token is worth: scores of tokens, and from them S_final of a layout's units.

Knows arrays and text, and the two that score tokens: a Scorer (Fisher) and an Engine (-log p).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgemem.compression.layout import Layout, masks
from edgemem.compression.selection import pool, turn_decay, unit_means

if TYPE_CHECKING:
    from edgemem.compression.sensitivity import Scorer
    from edgemem.runtime.engine import Engine

__all__ = ["Scores", "final_scores", "fisher", "joined", "self_information"]


@dataclass(frozen=True, slots=True)
class Scores:
    """offsets: (n, 2) int64 characters [start, end) of tokens of a text, in order. values: (n,)
    float32 >= 0, what each is worth. method: how they were made."""

    offsets: NDArray[np.int64]
    values: NDArray[np.float32]
    method: str

    @classmethod
    def none(cls) -> Scores:
        """Of no token."""
        return cls(np.empty((0, 2), np.int64), np.empty(0, np.float32), "none")


def fisher(scorer: Scorer, engine: Engine, text: str) -> Scores:
    """S(x_i) of each token of a text, exact (sensitivity.py). engine: of the same model, for its
    tokens. Errors as `Scorer.sensitivity` and `Engine.tokenize`; a text without tokens has none."""
    tokens = engine.tokenize(text)
    if not tokens:
        return Scores.none()
    found = scorer.sensitivity(tokens)
    return Scores(engine.token_offsets(text), found.scores, "fisher")


def self_information(engine: Engine, text: str) -> Scores:
    """-log p of each token, given those before it, in nats (SelectiveContext). Errors as
    `Engine.tokenize`."""
    return Scores(engine.token_offsets(text), -engine.text_log_probs(text), "self_information")


def joined(parts: Sequence[tuple[int, Scores]]) -> Scores:
    """The scores of a text of which parts were scored, such as turns when they were stored.

    parts: where each part begins in the text, ascending, and its scores. What stands between the
    parts has no score.
    """
    if not parts:
        return Scores.none()
    return Scores(
        np.concatenate([start + s.offsets for start, s in parts]),
        np.concatenate([s.values for _, s in parts]),
        parts[0][1].method,
    )


def final_scores(layout: Layout, scores: Scores, *, decay: bool = True) -> NDArray[np.float32]:
    """S_final of eq. 4 for each unit of a layout: (u,) float32. Without scores all units have 1.

    Pooled over five tokens within a turn, times the masks, averaged over a unit's tokens, times the
    turn's decay. decay: M_decay; what a question asks for may be of any age.
    Source: CoreMem eq. 4 and Algorithm 2, lines 10 and 11; departs from them in the edges of the
    pooling, and in whole words.
    """
    n_units = len(layout.starts)
    if not len(scores.values) or not n_units:
        return np.ones(n_units, np.float32)
    unit = layout.unit_of(scores.offsets[:, 1])
    turn = layout.turn[layout.sentence]
    smooth = pool(scores.values, turn[unit]) * masks(layout.text, scores.offsets)
    final = unit_means(smooth, unit, n_units)
    return final * turn_decay(layout.turn)[layout.sentence] if decay else final

"""Which relations a question asks for.

"Where did Ana live in March?" asks for lives_in, "what breed is my sister's dog?" for sibling_of,
has_pet and is_a. A logistic regression for each label reads the states of the encoder with an
expert. Its weights are bench/relations/questions.npz, fitted by `python -m bench.fit_questions`.
The product does not use it: the memories' scores say as much about what answers a question
(bench/LOG.md, 2026-11-26).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from edgemem.graph.reader import LABELS
from edgemem.results import Label
from edgemem.runtime.encoder import Encoder
from edgemem.runtime.lowrank import Expert, read

__all__ = ["WEIGHTS", "asked"]

WEIGHTS = Path(__file__).resolve().parent / "relations" / "questions.npz"


@cache
def _expert() -> Expert:
    return read(WEIGHTS.read_bytes())


def asked(question: str, encoder: Encoder | None) -> dict[Label, float]:
    """For each label the probability that a question asks for its relations.

    Empty for a question of more than 256 tokens, and without an encoder.
    """
    weights = _expert()
    states = None if encoder is None else encoder.read(weights, question)
    if states is None:
        return {}
    logits = states.layers[-1].mean(axis=0) @ weights["label.w"] + weights["label.b"]
    return dict(zip(LABELS, (1 / (1 + np.exp(-logits))).tolist(), strict=True))

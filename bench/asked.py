"""Which relations a question asks for.

"Where did Ana live in March?" asks for lives_in, "what breed is my sister's dog?" for sibling_of,
has_pet and is_a. A logistic regression for each label over the states of an expert of the encoder
tells, fitted by `python -m bench.fit_questions` and kept in bench/relations/questions.npz. No
product asks it: of what answers a question, the memories' scores tell as much (LOG, 2026-11-26).

Knows a question as text; knows no relations.
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
    """How probable it is that a question asks for relations of each label; nothing of a question of
    more than 256 tokens, and without an encoder."""
    weights = _expert()
    states = None if encoder is None else encoder.read(weights, question)
    if states is None:
        return {}
    logits = states.layers[-1].mean(axis=0) @ weights["label.w"] + weights["label.b"]
    return dict(zip(LABELS, (1 / (1 + np.exp(-logits))).tolist(), strict=True))

"""Which relations a question asks for.

"Where did Ana live in March?" asks for lives_in, "what breed is my sister's dog?" for sibling_of,
has_pet and is_a. A logistic regression for each label over the question's vector tells, fitted by
`python -m bench.fit_questions` and kept in edgemem/data/questions.npz.

Knows a question as text; knows no relations.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from edgemem.graph.reader import LABELS
from edgemem.results import Label
from edgemem.runtime.encoder import Encoder

__all__ = ["asked"]


def asked(question: str, encoder: Encoder | None) -> dict[Label, float]:
    """How probable it is that a question asks for relations of each label; nothing of a question of
    more than 256 tokens, and without an encoder."""
    read = None if encoder is None else encoder.read({}, question)
    if read is None:
        return {}
    mean = read.layers[-1].mean(axis=0)  # the bundled embedder's vector, but for its length
    weights, bias = _weights()
    chances = 1 / (1 + np.exp(-(mean / np.linalg.norm(mean) @ weights + bias)))
    return dict(zip(LABELS, chances.tolist(), strict=True))


@cache
def _weights() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    with files("edgemem").joinpath("data/questions.npz").open("rb") as file:
        kept = np.load(file)
        return kept["weights"].astype(np.float32), kept["bias"].astype(np.float32)

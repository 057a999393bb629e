"""What lasts: memories of what somebody must avoid, of who somebody is, of how somebody lives.

A search finds what resembles a message. Advice, a letter or a summary also needs what does not: the
nuts that a guest is allergic to. For each kind of lasting memory a logistic regression over the
embedding says how probable it is that a memory tells it. Its weights are a direction, so the index
finds the likeliest memories as it finds the nearest ones to a query. The weights are fitted by
`python -m bench.fit_lasting`.

Knows a Memory; no prompt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgemem.pipeline.ingest import nearest
from edgemem.results import Hit, Query, Scope

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["KINDS", "LIKELY", "Kind", "Weights", "lasting", "shipped"]

Kind = Literal["constraint", "person", "circumstance"]
"""constraint: an allergy, an illness, a diet, a fear. person: who somebody is to the user, a name,
an animal. circumstance: work, home, age, tastes, a routine."""
KINDS: tuple[Kind, ...] = get_args(Kind)

LIKELY = 0.5
"""The probability from which a memory counts as one of a kind."""
_MOST = 16  # memories of a kind


@dataclass(frozen=True, eq=False)
class Weights:
    """The regressions. vector: (dim, len(KINDS)); bias: (len(KINDS),), float32. embedder: id of the
    model whose embeddings they are fitted to."""

    vector: NDArray[np.float32]
    bias: NDArray[np.float32]
    embedder: str


@cache
def shipped() -> Weights:
    """The weights that come with the package."""
    with (files("edgemem") / "data" / "lasting.npz").open("rb") as file, np.load(file) as saved:
        return Weights(saved["vector"], saved["bias"], str(saved["embedder"]))


def lasting(memory: Memory, scope: Scope, kind: Kind) -> list[Hit]:
    """The memories that most likely tell something lasting of a kind, the likeliest first.

    No search scored them, so their score is 0. There are none with another embedder than that of
    the weights.
    """
    weights = shipped()
    if memory.embedder.model_id != weights.embedder:
        return []
    column = KINDS.index(kind)
    vector, bias = weights.vector[:, column], float(weights.bias[column])
    length = float(np.linalg.norm(vector))
    least = (math.log(LIKELY / (1 - LIKELY)) - bias) / length  # cosine to the direction
    found = nearest(memory, Query(kind, scope, top_k=_MOST), vector / length)
    return [Hit.of(item, 0.0) for item, cosine in found if cosine >= least]

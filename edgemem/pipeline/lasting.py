"""Which memories tell something lasting: what somebody must avoid, who is who, how somebody lives.

Knows a Memory's index and the fitted weights; no message, no search.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgemem.pipeline.ingest import nearest
from edgemem.results import Hit, Query, Scope
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.onnxfile import expert

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["KINDS", "LIKELY", "lasting", "lasting_logits"]

Kind = Literal["constraint", "person", "circumstance"]
"""constraint: an allergy, an illness, a diet, a fear. person: who somebody is to the user, a name,
an animal. circumstance: work, home, age, tastes, a routine."""
KINDS: tuple[Kind, ...] = get_args(Kind)
LIKELY = 0.5
"""The probability from which a memory counts as one of a kind."""

_MOST = 16  # memories of a kind


def lasting(memory: Memory, scope: Scope, kind: Kind, *, most: int = _MOST) -> list[Hit]:
    """The memories that most likely tell something lasting of a kind, the likeliest first.

    For each kind a logistic regression over the embedding says how probable that is. Its weights
    are a direction, so the index finds these memories as it finds the nearest ones to a query.
    Their score is 0. `python -m bench.fit_lasting` fits the weights for one embedder; with any
    other there are no hits.
    """
    weights = expert("lasting")
    if memory.embedder.model_id != str(weights["embedder"]):
        return []
    column = KINDS.index(kind)
    vector, bias = weights["vector"][:, column], float(weights["bias"][column])
    length = float(np.linalg.norm(vector))
    least = (log(LIKELY / (1 - LIKELY)) - bias) / length  # cosine to the direction
    found = nearest(memory, Query(kind, scope, top_k=most), vector / length)
    return [Hit.of(item, 0.0) for item, cosine in found if cosine >= least]


def lasting_logits(embedder: Embedder, vectors: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """How likely texts tell something lasting, by their vectors (n, dim): logits (n, len(KINDS)).

    None with an embedder that no weights are fitted to.
    """
    weights = expert("lasting")
    if embedder.model_id != str(weights["embedder"]):
        return None
    logits: NDArray[np.float32] = vectors @ weights["vector"] + weights["bias"]
    return logits

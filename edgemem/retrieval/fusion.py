"""One score from many features: how probable it is that a memory answers a query.

Knows numbers only, and the weights in data/fusion.json, which `python -m bench.fit_fusion` sets.
The score is absolute: a memory's depends on the query, the memory, its neighbours, the words'
rarity and how many memories there are, never on how the other candidates compare, so a threshold
means the same for every query.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.kernels import rank

__all__ = ["FEATURES", "FEW", "MANY", "RELEVANT", "Weights", "parts_of", "probability", "shipped"]

FloatArray = NDArray[np.float32]

FEATURES = (
    "similarity",  # of the meaning, under the metric; where none is fitted yet, the cosine
    "similarity_before",  # of the turn said before it: an answer is found by its question
    "bm25",  # of its words, with speaker and day, among what the search may see
    "bm25_around",  # summed over the two turns before and the two after it
    "coverage",  # the share of the query's idf that it and the turns beside it have
    "session",  # the best bm25 of a candidate in the same session
    "length",  # log(1 + tokens), 64 at most
    "time",  # 1 if the query asks when, and it says so
    "speaker",  # +-1/2 where the query names somebody who speaks here: whether they said it
    "question",  # 1 if it only asks
    "among",  # log(how many memories the search may see), from log(FEW) to log(MANY)
)
"""First what the vectors say, then the columns of `kernels.word_features`."""

FEW, MANY = 3, 512
"""What the weights were fitted on; of fewer or more memories a score says what it says of these."""

RELEVANT = 0.007
"""A memory with at least this score is worth answering from.

What is scored left out of the fit (`python -m bench.fit_fusion`), 96 to 100 % of the questions that
a store answers have one, in stores of three turns and of 680; of those that another one answers 18
to 39 %, and of three or nine turns 52 to 66 %.
"""


@dataclass(frozen=True)
class Weights:
    """score = 1 / (1 + exp(-(bias + weights · features))). weights: (len(FEATURES),) float32."""

    bias: float
    weights: FloatArray

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Weights:
        """From {"bias": …, "weights": {feature: …}}. Raises KeyError if one is missing."""
        given = data["weights"]
        return cls(float(data["bias"]), np.array([given[n] for n in FEATURES], np.float32))

    def best(self, features: FloatArray, k: int) -> tuple[NDArray[np.int64], FloatArray]:
        """The k best rows of features (n, len(FEATURES)) float32: positions and scores in (0, 1),
        best first, equal ones by lower position."""
        _, positions, logits = rank(features, self.weights, self.bias, k)
        return positions, probability(logits)


@cache
def shipped() -> dict[str, Weights]:
    """The weights of this version: "metric" where one is fitted, "cosine" where none is."""
    text = (files("edgemem") / "data" / "fusion.json").read_text()
    return {name: Weights.of(data) for name, data in json.loads(text)["similarity"].items()}


def probability(logits: NDArray[Any]) -> FloatArray:
    """1 / (1 + exp(-x)), elementwise, float32. -inf gives 0."""
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)


def parts_of(weights: Weights, features: Sequence[float]) -> dict[str, float]:
    """What each feature of one memory gives to its score; the values add up to it.

    "base" is the score of all features at 0. The rest of the score is shared in proportion to the
    terms of the sum inside the logistic function: the integrated gradients from 0 (Sundararajan et
    al. 2017), which for a function of a sum are just that. A part may be negative.
    """
    terms = weights.weights.astype(np.float64) * np.asarray(features, np.float64)
    total = float(terms.sum())
    base, score = probability(np.array([weights.bias, weights.bias + total])).astype(float)
    # (score - base) / total has the logistic function's slope as its limit.
    slope = (score - base) / total if abs(total) > 1e-6 else base * (1 - base)
    return {"base": float(base), **dict(zip(FEATURES, (terms * slope).tolist(), strict=True))}

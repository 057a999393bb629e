"""Whether a message is material: a text to translate, to improve or to play, not the user's life.

"Translate: I am a widow." says I, and tells nothing of the user. A logistic regression over the
message's embedding and its form finds it. Its weights are fitted by `python -m bench.fit_material`,
for one embedder; with any other no message is material.

Knows a message as text; knows no memory and no fact.
"""

from __future__ import annotations

import re
from math import log

import numpy as np
from numpy.typing import NDArray

from edgemem.language import is_of_speaker, quotations, words
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.onnxfile import expert

__all__ = ["features", "is_material", "read"]

_CHARS = 500  # of a message that are embedded; its beginning says what it is
_LEAD_CHARS = 80
_VECTOR = 3.0  # length of the embedding among the features
# A first clause that may say what is done with the text after it.
_LEAD = re.compile(rf"[^.!?:\n]{{1,{_LEAD_CHARS}}}?(?:[:\n?]| - )")

FloatArray = NDArray[np.float32]


def is_material(embedder: Embedder, text: str) -> bool:
    """Whether, by the regression, a message is more probably a text than about the user's life."""
    weights = expert("material")
    if embedder.model_id != str(weights["embedder"]):
        return False
    found = features(text, embedder.embed_query(read(text)))
    return float(found @ weights["weights"]) >= 0


def read(text: str) -> str:
    """The part of a message that is embedded."""
    return text[:_CHARS]


def features(text: str, vector: FloatArray) -> FloatArray:
    """What the regression reads of a message: (dim + 8,) float32, the last one 1.

    vector: (dim,) of what `read` gives.
    """
    return np.concatenate([_VECTOR * vector, _form(text), [1.0]]).astype(np.float32)


def _form(text: str) -> list[float]:
    """The share that is quoted; whether a lead-in parts from the rest, and how long that is; how
    long the message is, in words and lines; whether it begins with a quotation; whether the
    lead-in says I."""
    inside = sum(end - start for start, end in quotations(text)) / max(1, len(text))
    lead = _LEAD.match(text)
    rest = len(words(text[lead.end() :])) if lead else 0
    return [
        inside,
        float(lead is not None),
        log(1 + rest) / 4,
        log(max(1, len(words(text)))) / 5,
        min(10, text.count("\n")) / 5,
        float(text[:1] in '"“„«'),
        float(is_of_speaker(lead[0] if lead else text)),
    ]

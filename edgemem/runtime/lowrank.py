"""Low-rank experts for BERT encoders; some ship with the package (edgemem/data).

A product x W becomes x W + (x A) B (LoRA, Hu et al. 2021), where A and B are the expert's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from edgemem.runtime.onnxfile import Factors

__all__ = ["PRODUCTS", "Expert", "added", "expert", "expert_file", "read"]

Expert = Mapping[str, NDArray[np.float32]]
"""Arrays by name. `0.q.a` (dim, r) and `0.q.b` (r, n) are A and B for the first layer's queries.
The others are weights of a job's own networks over the states; the job chooses their names."""

PRODUCTS = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}
"""The products of a layer: their names in experts, and those in models' files."""


def expert_file(name: str) -> bytes:
    """The bytes of a shipped file of arrays: an expert's, or the projection of tokens.py."""
    return (files("edgemem") / "data" / f"{name}.npz").read_bytes()


@cache
def expert(name: str) -> Expert:
    """A shipped expert, cached for the process."""
    return read(expert_file(name))


def read(file: bytes) -> Expert:
    with np.load(BytesIO(file)) as arrays:
        return {key: arrays[key].astype(np.float32) for key in arrays.files}


def added(of: Expert) -> dict[str, Factors]:
    """The factors A and B that an expert adds to each weight, by the names of BERT's parameters."""
    found = {}
    for key, a in of.items():
        number, short, side = (*key.split("."), "")[:3]
        if side == "a":
            name = f"encoder.layer.{number}.{PRODUCTS[short]}.weight"
            found[name] = (a, of[f"{number}.{short}.b"])
    return found

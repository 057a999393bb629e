"""A JSON schema's grammar, asked which tokens it lets follow.

Knows llama.cpp's grammar sampler; knows neither models nor how a token is chosen (sampling.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import InputError

__all__ = ["Allowed", "allows", "grammar_sampler"]

Allowed = Callable[[NDArray[np.intp]], NDArray[np.bool_]]

_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def grammar_sampler(lib: Any, vocabulary: Any, grammar: bytes) -> Any:
    """A sampler at a grammar's beginning; the caller frees it. Raises InputError."""
    sampler = lib.llama_sampler_init_grammar(vocabulary, grammar, b"root")
    if not sampler:
        raise InputError(
            f"llama.cpp refused the grammar made from the JSON schema: {grammar[:200]!r}"
        )
    return sampler


def allows(lib: Any, sampler: Any) -> Allowed:
    """A test of candidate tokens (m,) against the grammar, as (m,) booleans.

    Asking about one token costs about a millisecond, about the whole vocabulary ten: so `pick`
    asks about its favourite first.
    """

    def allowed(candidates: NDArray[np.intp]) -> NDArray[np.bool_]:
        data = np.zeros(len(candidates), _TOKEN_DATA)
        data["id"] = candidates
        pointer = data.ctypes.data_as(lib.llama_token_data_p)
        array = lib.llama_token_data_array(data=pointer, size=len(data), selected=-1, sorted=False)
        lib.llama_sampler_apply(sampler, ctypes.byref(array))
        fine: NDArray[np.bool_] = data["logit"] == 0.0  # refused ones are at minus infinity
        return fine

    return allowed

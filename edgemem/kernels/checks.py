"""The checks of the kernels' arguments: a ValueError names the wrong one.

FORMS says what each kernel takes; `check` also knows what the values of some must be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["AROUND", "MAX_DIM_I8", "check", "check_count"]

MAX_DIM_I8 = 131_071
"""The most numbers in an int8 row: the sum of so many products still fits in 32 bits."""

AROUND = 7
"""Memories in a row of `beside`: a candidate, and six around it."""

_BM25 = (
    "docs int32 p, counts uint16 p, starts int64 t, sizes int64 t, lengths int32 n, "
    "allowed? bool n, scores float32 n"
)
_NORM = "weight float32 d, inverse float32 n, halves uint16 n d"
FORMS = {
    "scan_topk": "rows float32 n d, query float32 d, mask? bool n, k whole 1, survivors? whole k",
    "dots": "rows float32 n d, positions int64 m, queries float32 q+ d",
    "quantize_i8": "rows float32 n d",
    "metric_query": "query float32 d, mean float32 d, inverse_diagonal float32 d, "
    "directions float32 r d",
    "rank": "k whole 1, features float32 m f, weights float32 f",
    "bm25": f"{_BM25}, k whole 1",
    "similarities": "rows float32 n d, first int64 g, next int64 n, wanted int64 m w, "
    "columns whole 1, query float32 d",
    "maxsim": "rows int8 n d, query int8 q+ d, offsets int64 m",
    "beside": "proposals int64 m, place int64 n, before int64 n, after int64 n, speaker int32 n, "
    "allowed bool n",
    "word_features": f"around int64 c {AROUND}, session int64 s, slot int32 g, {_BM25}, "
    "idf float64 t, timed? bool n, max_length whole 0",
    "rms_norm": f"x float32 n d, out float32 n d, {_NORM}",
    "rms_norm_backward": f"dx float32 n d, d_out float32 n d, {_NORM}",
    "softmax_causal": "scores float32 m keys, group whole 1, first whole 0",
    "softmax_backward": "p float32 m keys, d float32 m keys",
    "gated": "out float32 n f, gate_up float32 n 2f, halves uint16 n 2f",
    "gated_backward": "d_out float32 n f, d_gate_up float32 n 2f, halves uint16 n 2f",
}
"""A kernel's arguments: name, dtype, and the length of each axis. An axis has the same length
wherever its letter stands, and the last one of a table at least 1; `+`: at least 1. `?`: may be
None. `whole`: a whole number, and the least that it may be."""


def check(kernel: str, given: Mapping[str, Any]) -> None:
    """Raise ValueError if a kernel cannot take these arguments, by name.

    The document numbers of `bm25` are not checked: the kernels do that before they write.
    """
    form = FORMS[kernel]
    if given.get("scales") is not None:  # of rows in int8
        form = form.replace("rows float32 n d", "rows int8 n d, scales float32 n")
    if _BM25 in form:
        query = given["query"]
        given = {**given, **{name: getattr(query, name) for name in query.__slots__}}
    lengths: dict[str, int] = {}
    for argument, kind, *axes in map(str.split, form.split(",")):
        name = argument.removesuffix("?")
        if given[name] is None and name != argument:
            continue
        if kind == "whole":
            check_count(name, given[name], given["k"] if axes == ["k"] else int(axes[0]))
        else:
            _check_array(name, given[name], kind, axes, lengths)
    _check_values(kernel, given)


def check_count(name: str, count: Any, least: int = 1) -> None:
    if not isinstance(count, int | np.integer) or isinstance(count, bool):
        raise ValueError(f"{name} must be a whole number, not {type(count).__name__}")
    if count < least:
        raise ValueError(f"{name} is {count}; it must be {least} or more")


def _check_array(
    name: str, array: Any, dtype: str, axes: list[str], lengths: dict[str, int]
) -> None:
    """lengths: of the axes so far, by letter; adds those of this array."""
    n = len(axes)
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != n:
        known = isinstance(array, np.ndarray)
        given = f"{array.ndim}-d {array.dtype}" if known else type(array).__name__
        raise ValueError(f"{name} must be a {n}-d {dtype} array, not {given}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous: pass np.ascontiguousarray({name})")
    needed = []
    for at, (axis, length) in enumerate(zip(axes, array.shape, strict=True)):
        if axis.isdigit():
            needed.append(int(axis))
        elif axis[0] == "2":
            needed.append(2 * lengths[axis[1:]])
        else:
            least = int(axis.endswith("+") or at == 1)
            needed.append(lengths.setdefault(axis, max(least, length)))
    if array.shape != tuple(needed):
        raise ValueError(f"{name} has shape {array.shape}; {tuple(needed)} is needed")


def _check_inside(name: str, numbers: Any, low: int, end: int) -> None:
    if numbers.size and not low <= numbers.min() <= numbers.max() < end:
        allowed = f"allowed are {low} to {end - 1}" if end > low else "none is allowed"
        raise ValueError(f"{name} are {numbers.min()} to {numbers.max()}; {allowed}")


def _check_values(kernel: str, given: Mapping[str, Any]) -> None:
    """given: arguments of the right form."""
    if (rows := given.get("rows")) is not None:
        in_int8 = kernel == "quantize_i8" or rows.dtype == np.int8
        if in_int8 and rows.shape[1] > MAX_DIM_I8:
            raise ValueError(f"rows have {rows.shape[1]} columns; at most {MAX_DIM_I8} fit in int8")
    if kernel == "dots":
        _check_inside("positions", given["positions"], 0, len(given["rows"]))
    elif kernel == "similarities":
        columns, scale, limit = given["columns"], given["scale"], given["limit"]
        if columns > (width := given["wanted"].shape[1]):
            raise ValueError(f"columns is {columns}; wanted has {width}")
        if not (np.float32(scale) > 0 and limit >= 0):
            raise ValueError(
                f"scale is {scale}, limit {limit}; they must be above 0, and 0 or more"
            )
    elif kernel == "maxsim":
        offsets = given["offsets"]
        if not len(offsets) or np.any(np.diff(offsets) < 0):
            raise ValueError("offsets must ascend from the first text's start to the last's end")
        _check_inside("offsets", offsets, 0, len(given["rows"]) + 1)
    elif kernel == "beside":
        allowed = given["allowed"]
        if not len(allowed) or allowed[0]:
            raise ValueError("memory 0 is nobody: allowed[0] must be there, and False")
        for name in ("proposals", "place", "before", "after"):
            _check_inside(name, given[name], 0, len(allowed))
    elif kernel == "softmax_causal":
        scores, first, group = given["scores"], given["first"], given["group"]
        last = first + max(0, len(scores) - 1) // group
        if len(scores) and last >= scores.shape[1]:
            raise ValueError(f"the last row is position {last}; there are {scores.shape[1]} keys")
    elif kernel in ("bm25", "word_features"):
        _check_postings(given)
        if kernel == "word_features":
            _check_inside("candidates", given["around"][:, 0], 0, len(given["session"]))
            _check_inside("slots", given["slot"], -1, len(given["scores"]))


def _check_postings(given: Mapping[str, Any]) -> None:
    if not given["scores"].flags.writeable:
        raise ValueError("scores is read-only; pass an array that can be written")
    for name, low, high in (
        ("n_allowed", 0, 2**31 - 1),
        ("average_length", 1e-9, 2**31 - 1),
        ("k1", 0, 1000),
        ("b", 0, 1),
    ):
        if not low <= given[name] <= high:
            raise ValueError(f"{name} is {given[name]}; it must be {low} to {high}")
    postings = len(given["docs"])
    for start, size in zip(given["starts"].tolist(), given["sizes"].tolist(), strict=True):
        if start < 0 or size < 0 or start + size > postings:
            raise ValueError(
                f"a term has {size} postings from {start} on; there are {postings} in all"
            )

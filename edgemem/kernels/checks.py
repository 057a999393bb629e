"""The checks of each kernel's arguments: a wrong shape, dtype or count is named in a ValueError.

A function without the prefix `check_` has the name and the arguments of its kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from edgemem.kernels import Bm25Query

__all__ = [
    "AROUND",
    "MAX_DIM_I8",
    "beside",
    "bm25",
    "check_count",
    "dots",
    "gated",
    "gated_backward",
    "maxsim",
    "metric_query",
    "quantize_i8",
    "rank",
    "rms_norm",
    "rms_norm_backward",
    "scan_topk",
    "similarities",
    "softmax_backward",
    "softmax_causal",
    "word_features",
]

MAX_DIM_I8 = 131_071
"""The most numbers in an int8 row: the sum of so many products still fits in 32 bits."""

AROUND = 7
"""Memories in a row of `beside`: a candidate, and six around it."""


def check_array(name: str, array: Any, dtype: type, ndim: int) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != ndim:
        given = (
            f"{array.ndim}-d {array.dtype}"
            if isinstance(array, np.ndarray)
            else type(array).__name__
        )
        raise ValueError(f"{name} must be a {ndim}-d {dtype.__name__} array, not {given}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous: pass np.ascontiguousarray({name})")


def check_rows(name: str, rows: Any, dtype: type = np.float32) -> None:
    check_array(name, rows, dtype, 2)
    if rows.shape[1] < 1:
        raise ValueError(f"{name} have 0 columns; at least 1 is needed")


def check_table(rows: Any, scales: Any) -> None:
    """Rows of float32, or of int8 with their scales."""
    check_rows("rows", rows, np.float32 if scales is None else np.int8)
    if scales is not None:
        check_dim_i8(rows)
        check_entries("scales", scales, np.float32, len(rows))


def check_dim_i8(rows: Any) -> None:
    if rows.shape[1] > MAX_DIM_I8:
        raise ValueError(f"rows have {rows.shape[1]} columns; at most {MAX_DIM_I8} fit in int8")


def check_entries(name: str, array: Any, dtype: type, n: int, of: str = "rows") -> None:
    check_array(name, array, dtype, 1)
    if len(array) != n:
        raise ValueError(f"{name} has {len(array)} entries for {n} {of}")


def check_like(name: str, array: Any, dtype: type, shape: tuple[int, ...]) -> None:
    check_array(name, array, dtype, len(shape))
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}; {shape} is needed")


def check_count(name: str, count: Any, least: int = 1) -> None:
    if not isinstance(count, int | np.integer) or isinstance(count, bool):
        raise ValueError(f"{name} must be a whole number, not {type(count).__name__}")
    if count < least:
        raise ValueError(f"{name} is {count}; it must be {least} or more")


def check_inside(name: str, numbers: Any, low: int, end: int) -> None:
    if numbers.size and not low <= numbers.min() <= numbers.max() < end:
        allowed = f"allowed are {low} to {end - 1}" if end > low else "none is allowed"
        raise ValueError(f"{name} are {numbers.min()} to {numbers.max()}; {allowed}")


def scan_topk(
    rows: Any, query: Any, k: Any, mask: Any = None, scales: Any = None, *, survivors: Any = None
) -> None:
    check_table(rows, scales)
    check_entries("query", query, np.float32, rows.shape[1], "columns")
    if mask is not None:
        check_entries("mask", mask, np.bool_, len(rows))
    check_count("k", k)
    if survivors is not None:
        check_count("survivors", survivors, k)


def dots(rows: Any, positions: Any, queries: Any) -> None:
    check_rows("rows", rows)
    check_array("positions", positions, np.int64, 1)
    check_rows("queries", queries)
    if len(queries) < 1 or queries.shape[1] != rows.shape[1]:
        raise ValueError(
            f"queries have shape {queries.shape}; at least one row of {rows.shape[1]} is needed"
        )
    check_inside("positions", positions, 0, len(rows))


def quantize_i8(rows: Any) -> None:
    check_rows("rows", rows)
    check_dim_i8(rows)


def metric_query(query: Any, mean: Any, inverse_diagonal: Any, directions: Any) -> None:
    check_array("query", query, np.float32, 1)
    check_entries("mean", mean, np.float32, len(query), "columns")
    check_entries("inverse_diagonal", inverse_diagonal, np.float32, len(query), "columns")
    check_array("directions", directions, np.float32, 2)
    check_like("directions", directions, np.float32, (len(directions), len(query)))


def rank(features: Any, weights: Any, bias: float, k: Any) -> None:
    check_count("k", k)
    check_rows("features", features)
    check_entries("weights", weights, np.float32, features.shape[1], "features")


def bm25(query: Bm25Query, k: Any, scores: Any) -> None:
    """Checks all but the document numbers, which the kernels check themselves before they write."""
    check_array("docs", query.docs, np.int32, 1)
    check_entries("counts", query.counts, np.uint16, len(query.docs), "postings")
    check_array("starts", query.starts, np.int64, 1)
    check_entries("sizes", query.sizes, np.int64, len(query.starts), "terms")
    check_array("lengths", query.lengths, np.int32, 1)
    check_entries("scores", scores, np.float32, len(query.lengths), "documents")
    if not scores.flags.writeable:
        raise ValueError("scores is read-only; pass an array that can be written")
    if query.allowed is not None:
        check_entries("allowed", query.allowed, np.bool_, len(query.lengths), "documents")
    check_count("k", k)
    for name, value, low, high in (
        ("n_allowed", query.n_allowed, 0, 2**31 - 1),
        ("average_length", query.average_length, 1e-9, 2**31 - 1),
        ("k1", query.k1, 0, 1000),
        ("b", query.b, 0, 1),
    ):
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}; it must be {low} to {high}")
    postings = len(query.docs)
    for start, size in zip(query.starts.tolist(), query.sizes.tolist(), strict=True):
        if start < 0 or size < 0 or start + size > postings:
            raise ValueError(
                f"a term has {size} postings from {start} on; there are {postings} in all"
            )


def similarities(
    rows: Any, first: Any, next: Any, wanted: Any, columns: Any, query: Any, offset: float,
    scale: float, limit: float, scales: Any = None,
) -> None:  # fmt: skip
    check_table(rows, scales)
    check_array("first", first, np.int64, 1)
    check_entries("next", next, np.int64, len(rows))
    check_array("wanted", wanted, np.int64, 2)
    check_count("columns", columns)
    if columns > wanted.shape[1]:
        raise ValueError(f"columns is {columns}; wanted has {wanted.shape[1]}")
    check_entries("query", query, np.float32, rows.shape[1], "columns")
    if not (np.float32(scale) > 0 and limit >= 0):
        raise ValueError(f"scale is {scale}, limit {limit}; they must be above 0, and 0 or more")


def maxsim(rows: Any, offsets: Any, query: Any) -> None:
    check_rows("rows", rows, np.int8)
    check_dim_i8(rows)
    check_rows("query", query, np.int8)
    if not len(query) or query.shape[1] != rows.shape[1]:
        raise ValueError(
            f"query has shape {query.shape}; at least one token of {rows.shape[1]} is needed"
        )
    check_array("offsets", offsets, np.int64, 1)
    if not len(offsets) or np.any(np.diff(offsets) < 0):
        raise ValueError("offsets must ascend from the first text's start to the last one's end")
    check_inside("offsets", offsets, 0, len(rows) + 1)


def beside(proposals: Any, place: Any, before: Any, after: Any, speaker: Any, allowed: Any) -> None:
    check_array("proposals", proposals, np.int64, 1)
    check_array("place", place, np.int64, 1)
    n = len(place)
    check_entries("before", before, np.int64, n, "memories")
    check_entries("after", after, np.int64, n, "memories")
    check_entries("speaker", speaker, np.int32, n, "memories")
    check_entries("allowed", allowed, np.bool_, n, "memories")
    if not n or allowed[0]:
        raise ValueError("memory 0 is nobody: allowed[0] must be there, and False")
    columns = {"proposals": proposals, "place": place, "before": before, "after": after}
    for name, column in columns.items():
        check_inside(name, column, 0, n)


def word_features(
    around: Any, session: Any, slot: Any, query: Bm25Query, idf: Any, scores: Any, timed: Any,
    max_length: Any,
) -> None:  # fmt: skip
    check_array("around", around, np.int64, 2)
    if around.shape[1] != AROUND:
        raise ValueError(f"around has {around.shape[1]} columns; {AROUND} are needed")
    check_array("session", session, np.int64, 1)
    check_inside("candidates", around[:, 0], 0, len(session))
    bm25(query, 1, scores)
    check_array("slot", slot, np.int32, 1)
    check_inside("slots", slot, -1, len(scores))
    check_entries("idf", idf, np.float64, len(query.starts), "terms")
    if timed is not None:
        check_entries("timed", timed, np.bool_, len(scores), "documents")
    check_count("max_length", max_length, 0)


def rms_norm(x: Any, weight: Any, eps: float, out: Any, inverse: Any, halves: Any) -> None:
    check_rows("x", x)
    check_like("out", out, np.float32, x.shape)
    check_entries("weight", weight, np.float32, x.shape[1], "columns")
    check_entries("inverse", inverse, np.float32, len(x))
    check_like("halves", halves, np.uint16, x.shape)


def rms_norm_backward(d_out: Any, halves: Any, weight: Any, inverse: Any, dx: Any) -> None:
    rms_norm(dx, weight, 0.0, d_out, inverse, halves)


def softmax_causal(scores: Any, group: Any, first: Any) -> None:
    check_rows("scores", scores)
    check_count("group", group)
    check_count("first", first, 0)
    last = first + max(0, len(scores) - 1) // group
    if len(scores) and last >= scores.shape[1]:
        raise ValueError(f"the last row is position {last}; there are {scores.shape[1]} keys")


def softmax_backward(p: Any, d: Any) -> None:
    check_rows("p", p)
    check_like("d", d, np.float32, p.shape)


def gated(gate_up: Any, out: Any, halves: Any) -> None:
    check_rows("gate_up", gate_up)
    check_array("out", out, np.float32, 2)
    for name, array, dtype in (("gate_up", gate_up, np.float32), ("halves", halves, np.uint16)):
        check_like(name, array, dtype, (len(out), 2 * out.shape[1]))


def gated_backward(halves: Any, d_out: Any, d_gate_up: Any) -> None:
    gated(d_gate_up, d_out, halves)

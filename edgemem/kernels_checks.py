"""What the kernels refuse: wrong shapes, dtypes and counts, each by a ValueError that names it.

Knows arrays only, and what edgemem/kernels.py asks of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from edgemem.kernels import Bm25Query

__all__ = [
    "MAX_DIM_I8",
    "check_array",
    "check_bm25",
    "check_count",
    "check_dim_i8",
    "check_entries",
    "check_gather",
    "check_metric",
    "check_numbers",
    "check_rows",
    "check_scan",
]

MAX_DIM_I8 = 131_071
"""The most numbers in an int8 row: the sum of so many products still fits in 32 bits."""


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
    if dtype is np.int8:
        check_dim_i8(rows)


def check_dim_i8(rows: Any) -> None:
    if rows.shape[1] > MAX_DIM_I8:
        raise ValueError(f"rows have {rows.shape[1]} columns; at most {MAX_DIM_I8} fit in int8")


def check_numbers(name: str, array: Any, dim: int, of: str = "rows") -> None:
    check_array(name, array, np.float32, 1)
    if len(array) != dim:
        raise ValueError(f"{name} has {len(array)} numbers, {of} have {dim}")


def check_entries(name: str, array: Any, dtype: type, n: int, of: str = "rows") -> None:
    check_array(name, array, dtype, 1)
    if len(array) != n:
        raise ValueError(f"{name} has {len(array)} entries for {n} {of}")


def check_count(name: str, count: Any, least: int = 1) -> None:
    if not isinstance(count, int | np.integer) or isinstance(count, bool):
        raise ValueError(f"{name} must be a whole number, not {type(count).__name__}")
    if count < least:
        raise ValueError(f"{name} is {count}; it must be {least} or more")


def check_scan(rows: Any, query: Any, k: Any, mask: Any) -> None:
    check_rows("rows", rows)
    check_numbers("query", query, rows.shape[1])
    if mask is not None:
        check_entries("mask", mask, np.bool_, len(rows))
    check_count("k", k)


def check_gather(rows: Any, positions: Any, queries: Any) -> None:
    check_array("positions", positions, np.int64, 1)
    check_rows("queries", queries)
    if len(queries) < 1 or queries.shape[1] != rows.shape[1]:
        raise ValueError(
            f"queries have shape {queries.shape}; at least one row of {rows.shape[1]} is needed"
        )
    if len(positions) and (positions.min() < 0 or positions.max() >= len(rows)):
        raise ValueError(
            f"positions are {positions.min()} to {positions.max()}; there are {len(rows)} rows, "
            "counted from 0"
        )


def check_metric(dim: int, mean: Any, inverse_diagonal: Any, directions: Any) -> None:
    check_numbers("mean", mean, dim)
    check_numbers("inverse_diagonal", inverse_diagonal, dim)
    check_array("directions", directions, np.float32, 2)
    if directions.shape[1] != dim:
        raise ValueError(f"directions have {directions.shape[1]} numbers, rows have {dim}")


def check_bm25(query: Bm25Query, k: Any, scores: Any) -> None:
    """All but the numbers of the documents, which the kernels see anyway, before they write."""
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

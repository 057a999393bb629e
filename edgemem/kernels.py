"""The retrieval kernels: NumPy versions, which are the specification, and their native twins.

Knows arrays only: no store, no index, no memories. The only importer of the compiled module
`edgemem._native`. Where that is missing, too old or too new, NumPy answers: `backend` says which
of the two works here and `backend_detail` why.

EDGEMEM_BACKEND=numpy uses NumPy although the compiled module is there; EDGEMEM_BACKEND=native
makes the import fail where it is not (continuous integration sets it); unset or auto: the best.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ConfigError

__all__ = ["ABI_VERSION", "backend", "backend_detail", "scan_topk", "scan_topk_numpy"]

ABI_VERSION = 1
"""The EDGEMEM_ABI_VERSION of native/include/edgemem.h that this file is written for."""

ISA_AUTO = 0

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def _load_native() -> tuple[Any, str]:
    """The compiled module and its instruction set, or None and why there is none."""
    wanted = os.environ.get("EDGEMEM_BACKEND", "auto").strip().lower() or "auto"
    if wanted not in ("auto", "native", "numpy"):
        raise ConfigError(
            f"EDGEMEM_BACKEND is {wanted!r}; allowed are auto, native and numpy. Change or unset it"
        )
    if wanted == "numpy":
        return None, "EDGEMEM_BACKEND=numpy"
    try:
        # By name: a checker then does not look for a stub of a module that may not be built.
        module = import_module("edgemem._native")
        if module.ABI_VERSION == ABI_VERSION:
            return module, module.isa_name(module.BEST_ISA)
        why = (
            f"the compiled module has ABI {module.ABI_VERSION}, this version of edgemem needs "
            f"{ABI_VERSION}"
        )
    except (ImportError, AttributeError) as exc:
        why = str(exc)
    if wanted == "native":
        raise ConfigError(
            f"EDGEMEM_BACKEND=native, but there is no compiled module to use: {why}. "
            "Reinstall edgemem-runtime with a C++ compiler present, or unset EDGEMEM_BACKEND"
        )
    return None, why


_native, backend_detail = _load_native()
backend = "numpy" if _native is None else "native"


def _check(rows: FloatArray, query: FloatArray, k: int, mask: BoolArray | None) -> None:
    arrays: list[tuple[str, Any, type, int]] = [
        ("rows", rows, np.float32, 2),
        ("query", query, np.float32, 1),
    ]
    if mask is not None:
        arrays.append(("mask", mask, np.bool_, 1))
    for name, array, dtype, ndim in arrays:
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != ndim:
            given = (
                f"{array.ndim}-d {array.dtype}"
                if isinstance(array, np.ndarray)
                else type(array).__name__
            )
            raise ValueError(f"{name} must be a {ndim}-d {dtype.__name__} array, not {given}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} must be C-contiguous: pass np.ascontiguousarray({name})")
    n, dim = rows.shape
    if dim < 1:
        raise ValueError("rows have 0 columns; at least 1 is needed")
    if query.shape[0] != dim:
        raise ValueError(f"query has {query.shape[0]} numbers, rows have {dim}")
    if mask is not None and mask.shape[0] != n:
        raise ValueError(f"mask has {mask.shape[0]} entries for {n} rows")
    if not isinstance(k, int | np.integer) or isinstance(k, bool):
        raise ValueError(f"k must be a whole number, not {type(k).__name__}")
    if k < 1:
        raise ValueError(f"k is {k}; it must be 1 or more")


def scan_topk(
    rows: FloatArray, query: FloatArray, k: int, mask: BoolArray | None = None
) -> tuple[IntArray, FloatArray]:
    """The k rows with the largest inner product with `query`, best first.

    rows: (n, d) float32, C-contiguous; query: (d,) float32; mask: (n,) bool, a row counts where
    it is True (None: all). Returns positions (m,) int64 and scores (m,) float32, m = min(k, rows
    that count). Equal scores: lower position first. A row whose inner product is NaN scores -inf.
    Cost O(n·d). Lets other threads run. Safe to call from several threads on the same arrays.
    Raises ValueError on a wrong shape, dtype or layout, or k < 1.
    """
    _check(rows, query, k, mask)
    if _native is None:
        return _scan_topk_numpy(rows, query, k, mask)
    return _scan_topk_native(rows, query, k, mask)


def scan_topk_numpy(
    rows: FloatArray, query: FloatArray, k: int, mask: BoolArray | None = None
) -> tuple[IntArray, FloatArray]:
    """`scan_topk` in NumPy: the specification of the native one.

    The two may differ in the last bits of a score, because they add in another order, and then in
    the order of rows that are that close.
    """
    _check(rows, query, k, mask)
    return _scan_topk_numpy(rows, query, k, mask)


def _scan_topk_numpy(
    rows: FloatArray, query: FloatArray, k: int, mask: BoolArray | None
) -> tuple[IntArray, FloatArray]:
    with np.errstate(over="ignore", invalid="ignore"):
        if mask is None:
            positions, scores = np.arange(len(rows)), rows @ query
        else:
            positions = np.flatnonzero(mask)
            # Copying a few rows is cheaper than multiplying them all; most rows, the other way.
            if 4 * len(positions) < len(rows):
                scores = rows[positions] @ query
            else:
                scores = (rows @ query)[positions]
    scores = np.where(np.isnan(scores), np.float32(-np.inf), scores)
    if k < len(scores):
        # All that tie with the k-th stay in, so that the sort below decides among them.
        kth = np.partition(scores, len(scores) - k)[len(scores) - k]
        keep = scores >= kth
        positions, scores = positions[keep], scores[keep]
    order = np.argsort(-scores, kind="stable")[:k]
    return positions[order].astype(np.int64), scores[order].astype(np.float32)


def _scan_topk_native(
    rows: FloatArray,
    query: FloatArray,
    k: int,
    mask: BoolArray | None,
    isa: int = ISA_AUTO,
) -> tuple[IntArray, FloatArray]:
    room = min(int(k), len(rows))
    positions = np.empty(room, np.int64)
    scores = np.empty(room, np.float32)
    found = _native.scan_topk(rows, query, mask, room or 1, isa, positions, scores)
    return positions[:found], scores[:found]

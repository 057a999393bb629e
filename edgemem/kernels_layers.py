"""The steps between a transformer's matrix products, forward and backward: which version answers.

Knows arrays only. As in edgemem/kernels.py, whose compiled module it uses: the native version of a
step where there is one, NumPy's (edgemem/kernels_layers_numpy.py, the specification) otherwise.

All arrays are C-contiguous. What a function gives is written to the arguments that it names, and
nothing is returned. Every function lets other threads run, may be called from several at once on
different rows, and raises ValueError on a wrong shape or dtype. Cost: a few passes over the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem import kernels, kernels_layers_numpy
from edgemem.kernels_checks import check_array, check_count, check_entries, check_rows

__all__ = [
    "EVERY_KEY",
    "GELU",
    "HAS_BF16",
    "SILU",
    "gated",
    "gated_backward",
    "pack_bf16",
    "packed_shape",
    "product_bf16",
    "rms_norm",
    "rms_norm_backward",
    "softmax_backward",
    "softmax_causal",
]

FloatArray = NDArray[np.float32]
HalfArray = NDArray[np.uint16]

SILU, GELU = kernels_layers_numpy.SILU, kernels_layers_numpy.GELU
EVERY_KEY = 2**31 - 1
"""A window that no context fills."""

_native: Any = kernels.native_module()
HAS_BF16: bool = _native is not None and _native.HAS_BF16
"""Whether the processor multiplies bfloat16: products then take half the time of float32's."""


def rms_norm(
    x: FloatArray,
    weight: FloatArray,
    eps: float,
    out: FloatArray,
    inverse: FloatArray,
    halves: HalfArray,
) -> None:
    """out = x / rms(x) · weight, row by row, with rms(x)² = mean(x²) + eps.

    x, out: (n, d) float32, which may be the same array; weight: (d,); inverse: (n,), receives
    1 / rms(x); halves: (n, d) uint16, receives the upper 16 bits of x (bfloat16, cut off), which
    `rms_norm_backward` needs. Source: Zhang and Sennrich 2019, eq. 4; departs from it by eps.
    """
    _check_norm(x, weight, out, inverse, halves)
    if _native is None:
        return kernels_layers_numpy.rms_norm(x, weight, eps, out, inverse, halves)
    return _rms_norm_native(x, weight, eps, out, inverse, halves)


def _rms_norm_native(
    x: FloatArray,
    weight: FloatArray,
    eps: float,
    out: FloatArray,
    inverse: FloatArray,
    halves: HalfArray,
    isa: int = kernels.ISA_AUTO,
) -> None:
    _native.rms_norm(x, weight, eps, isa, out, inverse, halves)


def rms_norm_backward(
    d_out: FloatArray,
    halves: HalfArray,
    weight: FloatArray,
    inverse: FloatArray,
    dx: FloatArray,
) -> None:
    """dx += the gradient of x, given that of `rms_norm`'s out.

    halves, inverse: as `rms_norm` wrote them, halves each taken for the middle of the floats it was
    cut from; d_out, dx: (n, d) float32.
    """
    _check_norm(dx, weight, d_out, inverse, halves)
    if _native is None:
        return kernels_layers_numpy.rms_norm_backward(d_out, halves, weight, inverse, dx)
    return _rms_norm_backward_native(d_out, halves, weight, inverse, dx)


def _rms_norm_backward_native(
    d_out: FloatArray,
    halves: HalfArray,
    weight: FloatArray,
    inverse: FloatArray,
    dx: FloatArray,
    isa: int = kernels.ISA_AUTO,
) -> None:
    _native.rms_norm_backward(d_out, halves, weight, inverse, isa, dx)


def softmax_causal(scores: FloatArray, group: int, first: int, window: int = EVERY_KEY) -> None:
    """Attention's scores become probabilities: a softmax over the keys that each row sees.

    scores: (m, keys) float32, in place; row i is position first + i // group, below keys. It sees
    itself and the keys before it, `window` >= 1 in all; the others become 0.
    """
    check_rows("scores", scores)
    check_count("group", group)
    check_count("window", window)
    check_count("first", first, 0)
    last = first + max(0, len(scores) - 1) // group
    if len(scores) and last >= scores.shape[1]:
        raise ValueError(f"the last row is position {last}; there are {scores.shape[1]} keys")
    if _native is None:
        return kernels_layers_numpy.softmax_causal(scores, group, first, window)
    return _softmax_causal_native(scores, group, first, window)


def _softmax_causal_native(
    scores: FloatArray, group: int, first: int, window: int, isa: int = kernels.ISA_AUTO
) -> None:
    _native.softmax_causal(scores, group, first, window, isa)


def softmax_backward(p: FloatArray, d: FloatArray) -> None:
    """The way back through a softmax: d becomes p · (d − p·d), row by row.

    p, d: (m, keys) float32; d: the gradient of p on entry, that of the scores afterwards.
    """
    check_rows("p", p)
    _check_like("d", d, p)
    if _native is None:
        return kernels_layers_numpy.softmax_backward(p, d)
    return _softmax_backward_native(p, d)


def _softmax_backward_native(p: FloatArray, d: FloatArray, isa: int = kernels.ISA_AUTO) -> None:
    _native.softmax_backward(p, d, isa)


def gated(gate_up: FloatArray, activation: int, out: FloatArray, halves: HalfArray) -> None:
    """A gated unit: out = activation(gate) · up.

    gate_up: (n, 2 f) float32, first all gates of a row; activation: SILU, or GELU (tanh form); out:
    (n, f) float32; halves: (n, 2 f) uint16, receives the upper 16 bits of gate_up (bfloat16, cut
    off), which `gated_backward` needs. Source: Shazeer 2020, eq. 6.
    """
    _check_gated(gate_up, activation, out, halves)
    if _native is None:
        return kernels_layers_numpy.gated(gate_up, activation, out, halves)
    return _gated_native(gate_up, activation, out, halves)


def _gated_native(
    gate_up: FloatArray,
    activation: int,
    out: FloatArray,
    halves: HalfArray,
    isa: int = kernels.ISA_AUTO,
) -> None:
    _native.gated(gate_up, activation, isa, out, halves)


def gated_backward(
    halves: HalfArray, d_out: FloatArray, activation: int, d_gate_up: FloatArray
) -> None:
    """The way back through `gated`: d_gate_up receives the gradient of gate_up.

    halves: as `gated` wrote them, each taken for the middle of the floats it was cut from; d_out:
    (n, f) float32, the gradient of out; d_gate_up: (n, 2 f) float32.
    """
    _check_gated(d_gate_up, activation, d_out, halves)
    if _native is None:
        return kernels_layers_numpy.gated_backward(halves, d_out, activation, d_gate_up)
    return _gated_backward_native(halves, d_out, activation, d_gate_up)


def _gated_backward_native(
    halves: HalfArray,
    d_out: FloatArray,
    activation: int,
    d_gate_up: FloatArray,
    isa: int = kernels.ISA_AUTO,
) -> None:
    _native.gated_backward(halves, d_out, activation, isa, d_gate_up)


def packed_shape(k: int, columns: int) -> tuple[int, int, int, int]:
    """Of a matrix of k rows as `pack_bf16` writes it: (panels, pairs, 16, 2).

    There are ceil(columns / 16) panels of columns and ceil(k / 2) pairs of rows.
    """
    return -(-columns // 16), -(-k // 2), 16, 2


def pack_bf16(rows: FloatArray, start: int, k: int, packed: HalfArray) -> None:
    """Rows `start` on of a matrix of k rows in bfloat16, in the order that `product_bf16` wants.

    rows: (count, columns) float32; start: even, and so is start + count, or it is k; packed:
    uint16, of the whole matrix, its shape `packed_shape`: [panel, pair, column, row of the pair].
    Rounded to nearest, halves to even. Zeros stand for what a last panel or pair lacks.
    """
    check_rows("rows", rows)
    check_count("k", k)
    check_count("start", start, 0)
    _check_packed(packed, k, rows.shape[1])
    end = start + len(rows)
    if start % 2 or end > k or (end % 2 and end < k):
        raise ValueError(
            f"rows {start} to {end} are given of {k}; they must begin with an even one and end "
            "with an even number or all"
        )
    if not HAS_BF16:
        return kernels_layers_numpy.pack_bf16(rows, start, k, packed)
    return _pack_bf16_native(rows, start, k, packed)


def _pack_bf16_native(rows: FloatArray, start: int, k: int, packed: HalfArray) -> None:
    _native.pack_bf16(rows, start, k, packed)


def product_bf16(x: FloatArray, packed: HalfArray, add: bool, out: FloatArray) -> None:
    """out = x @ matrix, both rounded to bfloat16 and summed in float32; add: out += x @ matrix.

    x: (n, k) float32; packed: the matrix of k rows, as `pack_bf16` wrote it; out: (n, columns)
    float32. A number below 2**-126 may count as 0. A sum of k random products differs from that of
    float32 by 0.24 % of the root of its products' squares. Without HAS_BF16 it is slow.
    """
    check_rows("x", x)
    check_array("out", out, np.float32, 2)
    _check_packed(packed, x.shape[1], out.shape[1])
    if len(out) != len(x):
        raise ValueError(f"out has {len(out)} rows, x has {len(x)}")
    if not HAS_BF16:
        return kernels_layers_numpy.product_bf16(x, packed, add, out)
    return _product_bf16_native(x, packed, add, out)


def _product_bf16_native(x: FloatArray, packed: HalfArray, add: bool, out: FloatArray) -> None:
    _native.product_bf16(x, packed, add, out)


def _check_packed(packed: Any, k: int, columns: int) -> None:
    check_array("packed", packed, np.uint16, 4)
    wanted = packed_shape(k, columns)
    if packed.shape != wanted:
        raise ValueError(
            f"packed has shape {packed.shape}; a matrix of {k} by {columns} needs {wanted}"
        )


def _check_norm(x: Any, weight: Any, out: Any, inverse: Any, halves: Any) -> None:
    check_rows("x", x)
    _check_like("out", out, x)
    check_entries("weight", weight, np.float32, x.shape[1], "columns")
    check_entries("inverse", inverse, np.float32, len(x))
    check_array("halves", halves, np.uint16, 2)
    if halves.shape != x.shape:
        raise ValueError(f"halves has shape {halves.shape}; {x.shape} is needed")


def _check_like(name: str, array: Any, other: FloatArray) -> None:
    check_array(name, array, np.float32, 2)
    if array.shape != other.shape:
        raise ValueError(f"{name} has shape {array.shape}; {other.shape} is needed")


def _check_gated(gate_up: Any, activation: int, single: Any, halves: Any) -> None:
    check_rows("gate_up", gate_up)
    check_array("out", single, np.float32, 2)
    check_array("halves", halves, np.uint16, 2)
    wanted = len(gate_up), 2 * single.shape[1]
    if gate_up.shape != wanted or halves.shape != wanted:
        raise ValueError(
            f"gate_up has shape {gate_up.shape} and halves {halves.shape}; both must be {wanted}"
        )
    if activation not in (SILU, GELU):
        raise ValueError(f"activation is {activation}; it must be SILU ({SILU}) or GELU ({GELU})")

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
    "SILU",
    "gated",
    "gated_backward",
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


def rms_norm(
    x: FloatArray, weight: FloatArray, eps: float, out: FloatArray, inverse: FloatArray
) -> None:
    """out = x / rms(x) · weight, row by row, with rms(x)² = mean(x²) + eps.

    x, out: (n, d) float32, which may be the same array; weight: (d,); inverse: (n,), receives
    1 / rms(x). Source: Zhang and Sennrich 2019, eq. 4; departs from it by eps.
    """
    check_rows("x", x)
    _check_like("out", out, x)
    check_entries("weight", weight, np.float32, x.shape[1], "columns")
    check_entries("inverse", inverse, np.float32, len(x))
    kernels_layers_numpy.rms_norm(x, weight, eps, out, inverse)


def rms_norm_backward(
    d_out: FloatArray, x: FloatArray, weight: FloatArray, inverse: FloatArray, dx: FloatArray
) -> None:
    """dx += the gradient of x, given that of `rms_norm`'s out: inverse as it wrote it."""
    check_rows("x", x)
    _check_like("d_out", d_out, x)
    _check_like("dx", dx, x)
    check_entries("weight", weight, np.float32, x.shape[1], "columns")
    check_entries("inverse", inverse, np.float32, len(x))
    kernels_layers_numpy.rms_norm_backward(d_out, x, weight, inverse, dx)


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

"""The kernels between a transformer's matrix products, forward and backward.

What a function gives is written to the arguments that it names, and nothing is returned. Several
threads may call one at once on different rows. Cost: a few passes over the arrays.
"""

from __future__ import annotations

from edgemem import kernels
from edgemem.kernels import checks, kernel, native_module, reference
from edgemem.kernels.reference import FloatArray, HalfArray

__all__ = [
    "gated",
    "gated_backward",
    "rms_norm",
    "rms_norm_backward",
    "softmax_backward",
    "softmax_causal",
]


@kernel(reference.rms_norm, checks.rms_norm)
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
    native_module().rms_norm(x, weight, eps, kernels.isa, out, inverse, halves)


@kernel(reference.rms_norm_backward, checks.rms_norm_backward)
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
    native_module().rms_norm_backward(d_out, halves, weight, inverse, kernels.isa, dx)


@kernel(reference.softmax_causal, checks.softmax_causal)
def softmax_causal(scores: FloatArray, group: int, first: int) -> None:
    """Attention's scores become probabilities: a softmax over the keys that each row sees.

    scores: (m, keys) float32, in place; row i is position first + i // group, below keys. It sees
    itself and the keys before it; the others become 0.
    """
    native_module().softmax_causal(scores, group, first, kernels.isa)


@kernel(reference.softmax_backward, checks.softmax_backward)
def softmax_backward(p: FloatArray, d: FloatArray) -> None:
    """The way back through a softmax: d becomes p · (d − p·d), row by row.

    p, d: (m, keys) float32; d: the gradient of p on entry, that of the scores afterwards.
    """
    native_module().softmax_backward(p, d, kernels.isa)


@kernel(reference.gated, checks.gated)
def gated(gate_up: FloatArray, out: FloatArray, halves: HalfArray) -> None:
    """A gated unit: out = SiLU(gate) · up, with SiLU(x) = x · σ(x).

    gate_up: (n, 2 f) float32, first all gates of a row; out: (n, f) float32; halves: (n, 2 f)
    uint16, receives the upper 16 bits of gate_up (bfloat16, cut off), which `gated_backward` needs.
    Source: Shazeer 2020, eq. 6.
    """
    native_module().gated(gate_up, kernels.isa, out, halves)


@kernel(reference.gated_backward, checks.gated_backward)
def gated_backward(halves: HalfArray, d_out: FloatArray, d_gate_up: FloatArray) -> None:
    """The way back through `gated`: d_gate_up receives the gradient of gate_up.

    halves: as `gated` wrote them, each taken for the middle of the floats it was cut from; d_out:
    (n, f) float32, the gradient of out; d_gate_up: (n, 2 f) float32.
    """
    native_module().gated_backward(halves, d_out, kernels.isa, d_gate_up)

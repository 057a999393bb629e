"""The steps between a transformer's matrix products in NumPy: the specification of native ones.

Knows arrays only, and checks nothing: edgemem/kernels_layers.py does, says what each function takes
and returns, and chooses. Every function works on its rows a few at a time, so that a pass finds in
the cache what the one before it wrote.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "GELU",
    "SILU",
    "gated",
    "gated_backward",
    "middles",
    "pack_bf16",
    "product_bf16",
    "rms_norm",
    "rms_norm_backward",
    "softmax_backward",
    "softmax_causal",
]

FloatArray = NDArray[np.float32]
HalfArray = NDArray[np.uint16]

SILU, GELU = 0, 1
BLOCK_BYTES = 1 << 17
_ROOT = np.float32(np.sqrt(2 / np.pi))


def _blocks(rows: FloatArray) -> Iterator[slice]:
    step = max(1, BLOCK_BYTES // max(1, rows.shape[1] * 4))
    return (slice(start, start + step) for start in range(0, len(rows), step))


def rms_norm(
    x: FloatArray,
    weight: FloatArray,
    eps: float,
    out: FloatArray,
    inverse: FloatArray,
    halves: HalfArray,
) -> None:
    for rows in _blocks(x):
        part = x[rows]
        mean = np.einsum("ij,ij->i", part, part) / np.float32(x.shape[1])
        inverse[rows] = 1 / np.sqrt(mean + np.float32(eps))
        _cut(part, halves[rows])
        np.multiply(part, inverse[rows, None], out=out[rows])
        out[rows] *= weight


def rms_norm_backward(
    d_out: FloatArray,
    halves: HalfArray,
    weight: FloatArray,
    inverse: FloatArray,
    dx: FloatArray,
) -> None:
    for rows in _blocks(dx):
        part, r = middles(halves[rows]), inverse[rows, None]
        scaled = d_out[rows] * weight
        along = np.einsum("ij,ij->i", scaled, part)[:, None] / np.float32(dx.shape[1])
        scaled -= part * (along * r * r)
        scaled *= r
        dx[rows] += scaled


def gated(gate_up: FloatArray, activation: int, out: FloatArray, halves: HalfArray) -> None:
    size = out.shape[1]
    for rows in _blocks(gate_up):
        gate, up = gate_up[rows, :size], gate_up[rows, size:]
        np.multiply(gate, _share(gate, activation)[0], out=out[rows])
        out[rows] *= up
        _cut(gate_up[rows], halves[rows])


def gated_backward(
    halves: HalfArray, d_out: FloatArray, activation: int, d_gate_up: FloatArray
) -> None:
    size = d_out.shape[1]
    for rows in _blocks(d_gate_up):
        gate_up = middles(halves[rows])
        gate, up, d = gate_up[:, :size], gate_up[:, size:], d_out[rows]
        share, slope = _share(gate, activation)
        np.multiply(gate * share, d, out=d_gate_up[rows, size:])
        np.multiply(up * d, share * (1 + gate * (1 - share) * slope), out=d_gate_up[rows, :size])


def middles(halves: HalfArray) -> FloatArray:
    """The floats in the middle of those that share these upper 16 bits."""
    return ((halves.astype(np.uint32) << 16) | 0x8000).view(np.float32)


def _cut(numbers: FloatArray, out: HalfArray) -> None:
    np.right_shift(numbers.view(np.uint32), 16, out=out, casting="unsafe")


def _share(gate: FloatArray, activation: int) -> tuple[FloatArray, FloatArray | np.float32]:
    """Both activations are gate · σ(z), GELU in its tanh form: σ(z), and dz/d gate."""
    with np.errstate(over="ignore"):
        if activation == SILU:
            slope: FloatArray | np.float32 = np.float32(1)
            z = gate
        else:
            square = gate * gate
            slope = 2 * _ROOT * (1 + np.float32(3 * 0.044715) * square)
            z = 2 * _ROOT * gate * (1 + np.float32(0.044715) * square)
        share: FloatArray = np.exp(-z)
        share += 1
        return np.reciprocal(share, out=share), slope


def softmax_causal(scores: FloatArray, group: int, first: int, window: int) -> None:
    keys = np.arange(scores.shape[1])
    for rows in _blocks(scores):
        part = scores[rows]
        position = first + np.arange(rows.start, rows.start + len(part)) // group
        part[(keys > position[:, None]) | (keys <= position[:, None] - window)] = -np.inf
        part -= part.max(axis=1, keepdims=True)
        np.exp(part, out=part)
        part /= part.sum(axis=1, keepdims=True)


def softmax_backward(p: FloatArray, d: FloatArray) -> None:
    for rows in _blocks(p):
        d[rows] -= np.einsum("ij,ij->i", p[rows], d[rows])[:, None]
        d[rows] *= p[rows]


def pack_bf16(rows: FloatArray, start: int, k: int, packed: HalfArray) -> None:
    count, columns = rows.shape
    panels = packed.shape[0]
    whole = np.zeros((count + count % 2, panels * 16), np.uint16)
    whole[:count, :columns] = _rounded(rows)
    pairs = slice(start // 2, (start + len(whole)) // 2)
    packed[:, pairs] = whole.reshape(-1, 2, panels, 16).transpose(2, 0, 3, 1)


def product_bf16(x: FloatArray, packed: HalfArray, add: bool, out: FloatArray) -> None:
    panels, pairs = packed.shape[:2]
    by_row = packed.transpose(1, 3, 0, 2).reshape(2 * pairs, panels * 16)
    product = np.matmul(_wide(_rounded(x)), _wide(by_row[: x.shape[1], : out.shape[1]]))
    np.add(out, product, out=out) if add else np.copyto(out, product)


def _rounded(numbers: FloatArray) -> HalfArray:
    """As bfloat16, to nearest, halves to even; a NaN stays one."""
    bits = numbers.view(np.uint32)
    nearest = bits + 0x7FFF + ((bits >> 16) & 1)
    kept = np.where(np.isnan(numbers), bits | 0x400000, nearest)
    return (kept >> 16).astype(np.uint16)


def _wide(halves: HalfArray) -> FloatArray:
    return (halves.astype(np.uint32) << 16).view(np.float32)

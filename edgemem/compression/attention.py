"""Causal attention with grouped queries, forward and backward, a block of positions at a time.

Knows queries, keys and values as a layer's matrix gives them, and the norms and turns between these
and the scores; knows no other part of a layer. No array of n × n is ever whole: the probabilities
of a block are computed again on the way back.
"""

from __future__ import annotations

from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from edgemem.compression.weights import Weights
from edgemem.kernels import layers as kernels

__all__ = ["Attention"]

FloatArray = NDArray[np.float32]
HalfArray = NDArray[np.uint16]
ComplexArray = NDArray[np.complex64]

POSITIONS = 128
"""Positions in a block: what lies above the diagonal of one is computed in vain."""


class Attention:
    """Room for the attention of n tokens, one layer at a time.

    It works head by head: _q is (kv_heads, n · group, head_dim), where the group = heads / kv_heads
    queries of a position that share a head of keys stand together.
    """

    def __init__(self, weights: Weights, n: int) -> None:
        s = weights.shape
        self._weights, self._shape, self._n = weights, s, n
        self._group = s.heads // s.kv_heads
        self._q, self._o = (
            np.empty((s.kv_heads, n * self._group, s.head_dim), np.float32) for _ in range(2)
        )
        self._k, self._v = (np.empty((s.kv_heads, n, s.head_dim), np.float32) for _ in range(2))
        # A thread takes each so-many-th block of a head, and has its own gradients of the keys.
        self._strides = weights.threads if s.kv_heads % weights.threads else 1
        self._dk, self._dv = (
            np.empty((self._strides, *self._k.shape), np.float32) for _ in range(2)
        )
        self._normed = "attn_q_norm.weight" in s.tensors
        self._scale = np.float32(s.attention_scale)
        turns = {id(angles): _turn(angles, n) for angles in s.angles}
        self._turns = [turns[id(angles)] for angles in s.angles]
        # A thread's: two blocks of scores, and the gradient of some keys or values.
        sizes = self._group * min(n, POSITIONS) * n, n * s.head_dim
        self._room = np.empty((weights.threads, 2 * sizes[0] + sizes[1]), np.float32)
        self._rooms: SimpleQueue[list[FloatArray]] = SimpleQueue()
        for room in self._room:
            self._rooms.put(np.split(room, [sizes[0], 2 * sizes[0]]))

    def open(self, layer: int, qkv: FloatArray, t: slice) -> None:
        """Take the queries, keys and values of some positions: normed, turned, queries scaled.

        qkv: (n, (heads + 2 kv_heads) · head_dim), all queries, all keys, all values of a token.
        """
        q, k, v = self._parts(qkv[t])
        if self._normed:
            q, k = (self._norm(layer, i, raw)[2] for i, raw in enumerate((q, k)))
        turn = self._turns[layer][t]
        np.multiply(_pairs(q), turn * self._scale, out=_pairs(self._by_token(self._q))[t])
        np.multiply(_pairs(k), turn, out=_pairs(self._by_token(self._k))[t])
        self._by_token(self._v)[t] = v

    def forward(self, layer: int) -> None:
        """Attend, all positions being open."""

        def head(task: int) -> None:
            g, stride = divmod(task, self._strides)
            scores, _, _ = room = self._rooms.get()
            for queries, keys in self._blocks(layer)[stride :: self._strides]:
                p = self._probabilities(layer, g, queries, keys, scores)
                np.matmul(p, self._v[g, keys], out=self._o[g, queries])
            self._rooms.put(room)

        self._weights.each(head, self._shape.kv_heads * self._strides)

    def take(self, out: FloatArray, t: slice) -> None:
        """What `forward` gave for some positions. out: (n, heads · head_dim)."""
        by_token = self._by_token(self._o)[t]
        out[t].reshape(by_token.shape)[...] = by_token

    def give(self, d_out: FloatArray, t: slice) -> None:
        """The gradient of what `take` gave, for `backward`."""
        by_token = self._by_token(self._o)[t]
        by_token[...] = d_out[t].reshape(by_token.shape)

    def backward(self, layer: int) -> None:
        """The way back through `forward`, all positions being open and given."""

        def head(task: int) -> None:
            g, stride = divmod(task, self._strides)
            scores, d_scores, part = room = self._rooms.get()
            d_o, dk, dv = self._o[g], self._dk[stride, g], self._dv[stride, g]
            dk.fill(0)
            dv.fill(0)
            for queries, keys in self._blocks(layer)[stride :: self._strides]:
                p = self._probabilities(layer, g, queries, keys, scores)
                dp = d_scores[: p.size].reshape(p.shape)
                some = part.reshape(self._n, -1)[: p.shape[1]]
                dv[keys] += np.matmul(p.T, d_o[queries], out=some)
                np.matmul(d_o[queries], self._v[g, keys].T, out=dp)
                kernels.softmax_backward(p, dp)
                dk[keys] += np.matmul(dp.T, self._q[g, queries], out=some)
                np.matmul(dp, self._k[g, keys], out=d_o[queries])  # which has served; now dq
            self._rooms.put(room)

        self._weights.each(head, self._shape.kv_heads * self._strides)

    def shut(self, layer: int, qkv: FloatArray, d_qkv: FloatArray, t: slice) -> None:
        """The gradient of qkv, as it was opened, for some positions; into d_qkv."""
        dq, dk, dv = self._parts(d_qkv[t])
        sum_k, sum_v = (self._by_token(a[0])[t] for a in (self._dk, self._dv))
        for stride in range(1, self._strides):
            sum_k += self._by_token(self._dk[stride])[t]
            sum_v += self._by_token(self._dv[stride])[t]
        back = self._turns[layer][t].conj()
        np.multiply(_pairs(self._by_token(self._o))[t], back * self._scale, out=_pairs(dq))
        np.multiply(_pairs(sum_k), back, out=_pairs(dk))
        dv[...] = sum_v
        if self._normed:
            for i, (raw, d) in enumerate(zip(self._parts(qkv[t]), (dq, dk), strict=False)):
                rows, inverse, _ = self._norm(layer, i, raw)
                d_rows = np.ascontiguousarray(d).reshape(rows.shape)
                d_raw = np.zeros_like(d_rows)
                kernels.rms_norm_backward(d_rows, rows, self._norm_weight(layer, i), inverse, d_raw)
                d[...] = d_raw.reshape(d.shape)

    def _probabilities(
        self, layer: int, g: int, queries: slice, keys: slice, room: FloatArray
    ) -> FloatArray:
        shape = queries.stop - queries.start, keys.stop - keys.start
        p = room[: shape[0] * shape[1]].reshape(shape)
        np.matmul(self._q[g, queries], self._k[g, keys].T, out=p)
        first = queries.start // self._group - keys.start
        kernels.softmax_causal(p, self._group, first, self._shape.windows[layer])
        return p

    def _blocks(self, layer: int) -> list[tuple[slice, slice]]:
        """Queries, and the keys that the first to the last of them see."""
        out = []
        for start in range(0, self._n, POSITIONS):
            end = min(start + POSITIONS, self._n)
            seen = slice(max(0, start - self._shape.windows[layer] + 1), end)
            out.append((slice(start * self._group, end * self._group), seen))
        return out

    def _norm(
        self, layer: int, i: int, raw: FloatArray
    ) -> tuple[HalfArray, FloatArray, FloatArray]:
        """Halves of rows of head_dim numbers, their inverse RMS, and all normed, shaped as raw."""
        rows = np.ascontiguousarray(raw).reshape(-1, self._shape.head_dim)
        normed, inverse = np.empty_like(rows), np.empty(len(rows), np.float32)
        halves = np.empty(rows.shape, np.uint16)
        weight, eps = self._norm_weight(layer, i), self._shape.eps
        kernels.rms_norm(rows, weight, eps, normed, inverse, halves)
        return halves, inverse, normed.reshape(raw.shape)

    def _norm_weight(self, layer: int, i: int) -> FloatArray:
        return self._weights.vector(layer, f"attn_{'qk'[i]}_norm.weight")

    def _parts(self, qkv: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Views of a layer's array: (n, kv_heads, group or 1, head_dim) each."""
        s = self._shape
        ends = s.heads * s.head_dim, (s.heads + s.kv_heads) * s.head_dim
        q, k, v = qkv[:, : ends[0]], qkv[:, ends[0] : ends[1]], qkv[:, ends[1] :]
        shape = len(qkv), s.kv_heads, -1, s.head_dim
        return q.reshape(shape), k.reshape(shape), v.reshape(shape)

    def _by_token(self, heads: FloatArray) -> FloatArray:
        """(kv_heads, n · r, head_dim) seen as (n, kv_heads, r, head_dim)."""
        s = self._shape
        return heads.reshape(s.kv_heads, self._n, -1, s.head_dim).transpose(1, 0, 2, 3)


def _turn(angles: NDArray[np.float64], n: int) -> ComplexArray:
    """(n, 1, 1, head_dim / 2): RoPE as products with complex numbers of length 1."""
    turn = np.exp(1j * np.arange(n)[:, None] * angles).astype(np.complex64)
    by_token: ComplexArray = turn[:, None, None]
    return by_token


def _pairs(numbers: FloatArray) -> ComplexArray:
    pairs: ComplexArray = numbers.view(np.complex64)
    return pairs

"""The gradient of a model's next-token loss with respect to its input embeddings.

Only the inputs get a gradient: each matrix is unpacked once on the way forward and once on the way
back, and nothing of its size is kept.

Kept of the forward pass, of as many layers as there is room for, is what the backward pass needs:
queries, keys and values, and in 16 bits the input, the residual after attention, the gate and what
it gates. Of the other layers the input is kept, and they run forward again on the way back. No
array of n × n is ever whole: the probabilities of a block of attention are computed again too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from edgemem.compression.weights import Weights, times
from edgemem.kernels import layers as kernels
from edgemem.kernels import one_blas_thread

__all__ = ["MEMORY_BYTES", "loss_and_gradient"]

FloatArray = NDArray[np.float32]
HalfArray = NDArray[np.uint16]
IntArray = NDArray[np.int64]
ComplexArray = NDArray[np.complex64]


MEMORY_BYTES = 480_000_000
"""Room for what a pass works on. With the bundled model's pages (98 MB) it stays below 600 MB."""
POSITIONS = 128
"""Positions in a block: what lies above the diagonal of one is computed in vain."""
_POSTS = ("post_attention_norm.weight", "post_ffw_norm.weight")


def loss_and_gradient(
    weights: Weights,
    embeddings: FloatArray,
    tokens: IntArray,
    loss_from: int = 1,
    memory_bytes: int = MEMORY_BYTES,
    check: Callable[[], None] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """The loss of each token but the first, and the gradient of the sum of those that count.

    embeddings: (n, dim) float32, what the model is given instead of the tokens, n >= 2; tokens:
    (n,) int64, what it is to predict. The loss counts the tokens from position `loss_from` >= 1 on.
    memory_bytes: room beside the weights; what a pass needs at least may be more. check: called
    before each layer; what it raises ends the pass.
    Returns −log p(token | those before it) (n - 1,) float32 in nats, and (n, dim) float32.
    Cost: four products of each weight and token, and of attention O(n²).
    """
    run = _Run(weights, len(embeddings), memory_bytes, check or (lambda: None))
    counted = np.arange(1, len(tokens)) >= loss_from
    with one_blas_thread():
        x = run.forward(embeddings)
        losses, dx = run.head(x, tokens[1:], counted)
        return losses, run.backward(dx)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the backward pass of one layer needs.

    HalfArray: the upper halves of float32 numbers, that is, bfloat16 cut off. posts: the inputs of
    Gemma's norms after attention and feed-forward; no rows without these norms.
    """

    x: HalfArray
    qkv: FloatArray
    gate_up: HalfArray
    middle: HalfArray
    inverse: FloatArray
    posts: HalfArray
    post_inverse: FloatArray


def _kept(weights: Weights, n: int, layers: int) -> list[_Kept]:
    """Room for some layers. One array for all of them: the system then gives large pages, and to
    touch small ones for the first time took a twentieth of the whole time."""
    s = weights.shape
    posts = len(_POSTS) if s.tensors.issuperset(_POSTS) else 0
    arrays = (
        np.empty((layers, n, s.dim), np.uint16),
        np.empty((layers, n, (s.heads + 2 * s.kv_heads) * s.head_dim), np.float32),
        np.empty((layers, n, 2 * s.ffn), np.uint16),
        np.empty((layers, n, s.dim), np.uint16),
        np.empty((layers, 2, n), np.float32),
        np.empty((layers, posts, n, s.dim), np.uint16),
        np.empty((layers, posts, n), np.float32),
    )
    return [_Kept(*parts) for parts in zip(*arrays, strict=True)]


class _Run:
    """Room for one pass over n tokens; arrays are (n, …), and the layers take turns with them."""

    def __init__(
        self, weights: Weights, n: int, memory_bytes: int, check: Callable[[], None]
    ) -> None:
        s = weights.shape
        self._weights, self._shape, self._n, self._check = weights, s, n, check
        self._attention = _Attention(weights, n)
        self._x, self._h, self._middle = (np.empty((n, s.dim), np.float32) for _ in range(3))
        self._heads = np.empty((n, s.heads * s.head_dim), np.float32)
        self._gate_up = np.empty((n, 2 * s.ffn), np.float32)
        self._act = np.empty((n, s.ffn), np.float32)
        (self._spare,) = _kept(weights, n, 1)
        self._d_qkv = np.empty_like(self._spare.qkv)
        # Without the last layers' there would be no need to run the others again.
        passing = 10 * self._h.nbytes  # what comes and goes, here and at the caller's
        room = memory_bytes - _nbytes(vars(self)) - _nbytes(vars(self._attention)) - passing
        spare = {f.name: getattr(self._spare, f.name) for f in fields(_Kept)}
        # A layer without a slot keeps its input.
        saved = _nbytes(spare) - self._x.nbytes
        slots = max(0, min(s.layers, (room - s.layers * self._x.nbytes) // saved))
        first = s.layers - slots
        self._kept = {first + i: kept for i, kept in enumerate(_kept(weights, n, slots))}
        self._inputs = np.empty((first, n, s.dim), np.float32)

    def forward(self, embeddings: FloatArray) -> FloatArray:
        """The last layer's output."""
        self._x[...] = embeddings
        for layer in range(self._shape.layers):
            self._check()
            kept = self._kept.get(layer)
            if kept is None:
                kept = self._spare
                self._inputs[layer] = self._x
            self._forward(layer, kept, self._x)
        return self._x

    def backward(self, dx: FloatArray) -> FloatArray:
        """The gradient of the embeddings, in place, from that of the last layer's output."""
        for layer in reversed(range(self._shape.layers)):
            self._check()
            kept = self._kept.get(layer)
            if kept is None:
                kept = self._spare
                self._forward(layer, kept, self._inputs[layer], again=True)
            self._backward(layer, kept, dx)
        return dx

    def _forward(self, layer: int, kept: _Kept, x: FloatArray, again: bool = False) -> None:
        """One layer: x becomes its output. again: only for what `_backward` needs; x is spoiled.

        All steps between two that need every row are one: threads meet as seldom as can be.
        """
        w, s, h, attention = self._weights, self._shape, self._h, self._attention
        W = w.matrix(layer, "attn_q", "attn_k", "attn_v").T
        bias = w.qkv_bias(layer)
        attn_norm, ffn_norm = (w.vector(layer, f"{name}_norm.weight") for name in ("attn", "ffn"))

        def before(t: slice) -> None:
            kernels.rms_norm(x[t], attn_norm, s.eps, h[t], kept.inverse[0, t], kept.x[t])
            np.matmul(h[t], W, out=kept.qkv[t])
            if bias is not None:
                kept.qkv[t] += bias
            attention.open(layer, kept.qkv, t)

        self._over_rows(before)
        attention.forward(layer)
        W_o = w.matrix(layer, "attn_output").T

        def between(t: slice) -> None:
            attention.take(self._heads, t)
            np.matmul(self._heads[t], W_o, out=h[t])
            self._post_norm(layer, 0, kept, t)
            middle = np.add(x[t], h[t], out=self._middle[t])
            kernels.rms_norm(middle, ffn_norm, s.eps, h[t], kept.inverse[1, t], kept.middle[t])

        self._over_rows(between)
        W_gate_up = w.matrix(layer, "ffn_gate", "ffn_up").T

        def gate(t: slice) -> None:
            np.matmul(h[t], W_gate_up, out=self._gate_up[t])
            kernels.gated(self._gate_up[t], s.activation, self._act[t], kept.gate_up[t])

        self._over_rows(gate)
        if again and not len(kept.posts):
            return
        W_down = w.matrix(layer, "ffn_down").T

        def after(t: slice) -> None:
            np.matmul(self._act[t], W_down, out=h[t])
            self._post_norm(layer, 1, kept, t)
            np.add(self._middle[t], h[t], out=x[t])

        self._over_rows(after)

    def _backward(self, layer: int, kept: _Kept, dx: FloatArray) -> None:
        """dx: of the layer's output, becomes that of its input."""
        w, s, h, attention = self._weights, self._shape, self._h, self._attention
        W_down = w.matrix_back(layer, "ffn_down")
        attn_norm, ffn_norm = (w.vector(layer, f"{name}_norm.weight") for name in ("attn", "ffn"))

        def after(t: slice) -> None:
            times(self._post_backward(layer, 1, kept, dx, t), W_down, self._act[t])
            kernels.gated_backward(kept.gate_up[t], self._act[t], s.activation, self._gate_up[t])

        self._over_rows(after)
        W_gate_up = w.matrix_back(layer, "ffn_gate", "ffn_up")

        def gate(t: slice) -> None:
            times(self._gate_up[t], W_gate_up, h[t])
            kernels.rms_norm_backward(h[t], kept.middle[t], ffn_norm, kept.inverse[1, t], dx[t])

        self._over_rows(gate)
        W_o = w.matrix_back(layer, "attn_output")

        def between(t: slice) -> None:
            attention.open(layer, kept.qkv, t)
            times(self._post_backward(layer, 0, kept, dx, t), W_o, self._heads[t])
            attention.give(self._heads, t)

        self._over_rows(between)
        attention.backward(layer)
        W = w.matrix_back(layer, "attn_q", "attn_k", "attn_v")

        def before(t: slice) -> None:
            attention.shut(layer, kept.qkv, self._d_qkv, t)
            times(self._d_qkv[t], W, h[t])
            kernels.rms_norm_backward(h[t], kept.x[t], attn_norm, kept.inverse[0, t], dx[t])

        self._over_rows(before)

    def head(
        self, x: FloatArray, targets: IntArray, counted: NDArray[np.bool_]
    ) -> tuple[FloatArray, FloatArray]:
        """The losses of all targets, and the gradient of x for the sum of those counted.

        The vocabulary comes in blocks, each unpacked once: what a block adds to the softmax's
        numerators and to the gradient is scaled down when a later one has a larger logit, as in
        online softmax (Milakov and Gimelshein 2018). All logits are never in memory.
        """
        w, s, n = self._weights, self._shape, len(targets)
        inverse, halves = np.empty(self._n, np.float32), np.empty(x.shape, np.uint16)

        def norm(t: slice) -> None:
            kernels.rms_norm(x[t], w.output_norm, s.eps, self._h[t], inverse[t], halves[t])

        self._over_rows(norm)
        h, rows_of_target = self._h[:n], self._middle[:n]
        d_h = np.zeros_like(h)
        largest, total = np.full(n, -np.inf, np.float32), np.zeros(n, np.float32)
        step = self._gate_up.shape[1]
        for start in range(0, s.vocabulary, step):
            E, E_back = w.output(start, step)
            logits = self._gate_up.reshape(-1)[: n * len(E)].reshape(n, -1)
            here = np.flatnonzero((start <= targets) & (targets < start + len(E)))
            rows_of_target[here] = E[targets[here] - start]

            def block(
                t: slice,
                E: FloatArray = E,
                E_back: FloatArray | HalfArray = E_back,
                logits: FloatArray = logits,
            ) -> None:
                some, before = logits[t], largest[t].copy()
                np.matmul(h[t], E.T, out=some)
                np.maximum(before, some.max(axis=1), out=largest[t])
                some -= largest[t, None]
                np.exp(some, out=some)
                shrink = np.exp(before - largest[t])
                total[t] = total[t] * shrink + some.sum(axis=1)
                d_h[t] *= shrink[:, None]
                times(some, E_back, d_h[t], add=True)

            w.over_rows(block, n)
        d_h /= total[:, None]
        d_h -= rows_of_target
        d_h *= counted[:, None]
        dx = np.zeros_like(x)
        kernels.rms_norm_backward(d_h, halves[:n], w.output_norm, inverse[:n], dx[:n])
        of_target = np.einsum("ij,ij->i", h, rows_of_target)
        return largest + np.log(total) - of_target, dx

    def _post_norm(self, layer: int, i: int, kept: _Kept, t: slice) -> None:
        """Gemma's norm of what attention (0) or the feed-forward (1) gave, in place in _h."""
        if len(kept.posts):
            h, inverse, halves = self._h[t], kept.post_inverse[i, t], kept.posts[i, t]
            weight = self._weights.vector(layer, _POSTS[i])
            kernels.rms_norm(h, weight, self._shape.eps, h, inverse, halves)

    def _post_backward(
        self, layer: int, i: int, kept: _Kept, d_out: FloatArray, t: slice
    ) -> FloatArray:
        if not len(kept.posts):
            return d_out[t]
        d, weight = np.zeros_like(d_out[t]), self._weights.vector(layer, _POSTS[i])
        inverse = kept.post_inverse[i, t]
        kernels.rms_norm_backward(d_out[t], kept.posts[i, t], weight, inverse, d)
        return d

    def _over_rows(self, work: Callable[[slice], object]) -> None:
        self._weights.over_rows(work, self._n)


def _nbytes(named: Mapping[str, object]) -> int:
    """What the arrays among some attributes take, in bytes."""
    return sum(a.nbytes for a in named.values() if isinstance(a, np.ndarray))


class _Attention:
    """Room for causal attention with grouped queries of n tokens, one layer at a time.

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
    turn: ComplexArray = np.exp(1j * np.arange(n)[:, None] * angles).astype(np.complex64)
    return turn[:, None, None]


def _pairs(numbers: FloatArray) -> ComplexArray:
    pairs: ComplexArray = numbers.view(np.complex64)
    return pairs

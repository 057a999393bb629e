"""The gradient of a model's next-token loss with respect to its input embeddings.

Knows a transformer's arithmetic, forward and backward, over weights that are unpacked when they are
needed; knows no text and no file. Only the inputs get a gradient: each matrix is unpacked once on
the way forward and once on the way back, and nothing of its size is kept.

Kept of the forward pass, of as many layers as there is room for, is what the backward pass needs:
queries, keys and values, and in 16 bits the input, the residual after attention, the gate and what
it gates. Of the other layers the input is kept, and they run forward again on the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from edgemem.compression.attention import Attention
from edgemem.compression.weights import Weights, times
from edgemem.kernels import layers as kernels

__all__ = ["MEMORY_BYTES", "loss_and_gradient"]

FloatArray = NDArray[np.float32]
HalfArray = NDArray[np.uint16]
IntArray = NDArray[np.int64]

MEMORY_BYTES = 480_000_000
"""Room for what a pass works on. With the bundled model's pages (98 MB) it stays below 600 MB."""
_POSTS = ("post_attention_norm", "post_ffw_norm")


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
    with weights.one_blas_thread():
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
    posts = 2 if "post_ffw_norm.weight" in s.tensors else 0
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
        self._attention = Attention(weights, n)
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

        def before(t: slice) -> None:
            self._norm(x, layer, "attn_norm", h, kept.inverse[0], kept.x, t)
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
            np.add(x[t], h[t], out=self._middle[t])
            self._norm(self._middle, layer, "ffn_norm", h, kept.inverse[1], kept.middle, t)

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

        def after(t: slice) -> None:
            times(self._post_backward(layer, 1, kept, dx, t), W_down, self._act[t])
            kernels.gated_backward(kept.gate_up[t], self._act[t], s.activation, self._gate_up[t])

        self._over_rows(after)
        W_gate_up = w.matrix_back(layer, "ffn_gate", "ffn_up")

        def gate(t: slice) -> None:
            times(self._gate_up[t], W_gate_up, h[t])
            self._norm_backward(h, layer, "ffn_norm", kept.inverse[1], kept.middle, dx, t)

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
            self._norm_backward(h, layer, "attn_norm", kept.inverse[0], kept.x, dx, t)

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
        weight = w.output_norm

        def norm(t: slice) -> None:
            kernels.rms_norm(x[t], weight, s.eps, self._h[t], inverse[t], halves[t])

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
        some = slice(n)
        kernels.rms_norm_backward(d_h, halves[some], weight, inverse[some], dx[some])
        of_target = np.einsum("ij,ij->i", h, rows_of_target)
        return largest + np.log(total) - of_target, dx

    def _norm(
        self,
        x: FloatArray,
        layer: int,
        name: str,
        out: FloatArray,
        inverse: FloatArray,
        halves: HalfArray,
        t: slice,
    ) -> None:
        weight = self._weights.vector(layer, f"{name}.weight")
        kernels.rms_norm(x[t], weight, self._shape.eps, out[t], inverse[t], halves[t])

    def _norm_backward(
        self,
        d_out: FloatArray,
        layer: int,
        name: str,
        inverse: FloatArray,
        halves: HalfArray,
        dx: FloatArray,
        t: slice,
    ) -> None:
        """Adds to dx."""
        weight = self._weights.vector(layer, f"{name}.weight")
        kernels.rms_norm_backward(d_out[t], halves[t], weight, inverse[t], dx[t])

    def _post_norm(self, layer: int, i: int, kept: _Kept, t: slice) -> None:
        """Gemma's norm of what attention (0) or the feed-forward (1) gave, in place in _h."""
        if len(kept.posts):
            h, inverse = self._h, kept.post_inverse[i]
            self._norm(h, layer, _POSTS[i], h, inverse, kept.posts[i], t)

    def _post_backward(
        self, layer: int, i: int, kept: _Kept, d_out: FloatArray, t: slice
    ) -> FloatArray:
        if not len(kept.posts):
            return d_out[t]
        d, weight = np.zeros_like(d_out[t]), self._weights.vector(layer, f"{_POSTS[i]}.weight")
        inverse = kept.post_inverse[i, t]
        kernels.rms_norm_backward(d_out[t], kept.posts[i, t], weight, inverse, d)
        return d

    def _over_rows(self, work: Callable[[slice], object]) -> None:
        self._weights.over_rows(work, self._n)


def _nbytes(named: Mapping[str, object]) -> int:
    """What the arrays among some attributes take, in bytes."""
    return sum(a.nbytes for a in named.values() if isinstance(a, np.ndarray))

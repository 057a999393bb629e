"""CoreMem's Fisher scores: how much a model's loss on what it reads depends on each token.

The model's file is mapped here separately from any Engine, and each matrix is dequantized when it
is needed. The forward pass keeps only the input of each layer; the backward pass runs each layer
forward again (Chen et al. 2016). Plain models of the Llama family and of Qwen 2, 2.5 and 3 are
supported. Any other is refused, because an omitted term would give wrong numbers and no error.
Source: CoreMem 3.3; llama.cpp's graphs of the same architectures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgemem.errors import ModelError
from edgemem.kernels import FloatArray, IntArray, one_blas_thread
from edgemem.runtime.llama import Tensors

if TYPE_CHECKING:
    from edgemem.runtime.engine import Engine

__all__ = ["FAMILIES", "Model", "fisher", "loss_and_gradient", "sensitivity"]

WINDOW, OVERLAP = 2048, 512  # tokens read at once, and those shared with the previous window
POSITIONS = 128  # in a block of attention; scores above a block's diagonal are computed in vain
GATED = 64  # rows of a gated unit that are computed at once and stay in the cache
LOGITS = 4096  # columns of logits that are in memory at once

_BASE = (
    "attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight",
    "ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight",
)  # fmt: skip
FAMILIES = {
    "llama": frozenset(_BASE),
    "qwen2": frozenset((*_BASE, "attn_q.bias", "attn_k.bias", "attn_v.bias")),
    "qwen3": frozenset((*_BASE, "attn_q_norm.weight", "attn_k_norm.weight")),
}
"""The tensors of a layer, by architecture."""
_UNSUPPORTED_SETTINGS = (
    "expert_count", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale",
    "embedding_scale", "residual_scale", "attention.scale", "attention.sliding_window",
)  # fmt: skip


def fisher(
    model: Model, engine: Engine, text: str, question: str = "", *, before: str = "\nQuestion:"
) -> FloatArray:
    """S(x_i) of each of the n tokens of a text: CoreMem eq. 3, (n,) float32.

    question: the loss is that of the question after the text; without one, that of the text itself.
    before: the text between the two. engine: of the same model, for its tokenizer. A text longer
    than a window is read in several windows, each followed by the question. Errors as `sensitivity`
    and `Engine.tokenize`.
    """
    tokens = engine.tokenize(text)
    between = engine.tokenize(before) if question else []
    asked = [*between, *(engine.tokenize(f" {question}") if question else [])]
    scores = np.empty(len(tokens), np.float32)
    window = max(2, min(WINDOW, model.n_ctx) - len(asked))
    overlap = 0 if asked else min(OVERLAP, window // 4)
    for start in range(0, len(tokens), window - overlap):
        first = max(0, start - overlap)
        some = tokens[first : first + window]
        loss_from = len(some) + len(between) if asked else 1
        found = sensitivity(model, [*some, *asked], loss_from)[: len(some)]
        scores[start : first + window] = found[start - first :]
    return scores


def sensitivity(model: Model, tokens: Sequence[int], loss_from: int = 1) -> FloatArray:
    """S(x_i) = ‖∂L/∂h_i ⊙ h_i‖₂ of each token, (n,).

    tokens: n >= 1 ids. L is the sum of the losses from position `loss_from` >= 1 on.
    The first token's gradient is many times the others' because every token attends to it. The last
    token's is 0 because nothing follows. So both get the median score of the others.
    Raises ModelError if a loss or a score is not finite.
    Source: CoreMem eq. 3; departs from it at both ends, and L is the shifted loss.
    """
    ids = np.asarray(tokens, np.int64)
    h = model.embeddings(ids)
    losses, gradient = loss_and_gradient(model, h, ids, loss_from)
    scores: FloatArray = np.linalg.norm(gradient * h, axis=1)
    if not (np.isfinite(scores).all() and np.isfinite(losses).all()):
        raise ModelError(
            f"{model.path.name} gave no numbers to score tokens by; the file is damaged: check it "
            "with `edgemem models verify`"
        )
    if len(ids) > 2:
        scores[[0, -1]] = np.median(scores[1:-1])
    return scores


def loss_and_gradient(
    model: Model, embeddings: FloatArray, tokens: IntArray, loss_from: int = 1
) -> tuple[FloatArray, FloatArray]:
    """The losses of the tokens from `loss_from` on, and the gradient of their sum.

    embeddings: (n, dim) float32, the model's input in place of the tokens; tokens: (n,) int64, the
    targets. loss_from: the position of the first loss, at least 1.
    Returns −log p(token | those before it) (n - loss_from,) float32 in nats, and the gradient of
    the embeddings (n, dim) float32. Cost: three multiply-adds for each weight and token, and O(n²)
    for attention.
    """
    inputs = [embeddings]
    with one_blas_thread():  # rows are split among our threads
        for layer in range(model.layers):
            inputs.append(_Layer(model, layer, inputs[-1]).output())
        dx = np.zeros_like(embeddings)
        losses, dx[loss_from - 1 : -1] = _head(
            model, inputs.pop()[loss_from - 1 : -1], tokens[loss_from:]
        )
        for layer in reversed(range(model.layers)):
            dx = _Layer(model, layer, inputs.pop()).backward(dx)
    return losses, dx


# -- the file --------------------------------------------------------------------------------------


class Model:
    """A mapped GGUF file and the threads that work on it. One caller at a time; `with` ends them.

    adjacent: whether RoPE rotates the numbers 2i and 2i + 1 of a head, or else i and i +
    head_dim / 2. angles: (head_dim / 2,) float64, radians for each position.
    Raises ModelError on a damaged file or a model whose gradient is not known here.
    """

    def __init__(self, path: Path, threads: int = 2) -> None:
        self.path, self._threads = path, threads
        self._file = Tensors(path)
        self.names = self._file.shapes.keys()
        self._read_shape()
        self._pool = ThreadPoolExecutor(threads, "edgemem-fisher")

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def _read_shape(self) -> None:
        architecture = str(self._file.settings.get("general.architecture"))
        if architecture not in FAMILIES:
            raise self._refusal(f"its architecture is {architecture}")

        def number(key: str, otherwise: float | None = None, least: int = 0) -> float:
            value = self._file.settings.get(f"{architecture}.{key}", otherwise)
            if isinstance(value, str) or value is None or not least <= value < 2**31:
                raise self._refusal(f"its {architecture}.{key} is {value!r}")
            return value

        def size(key: str, otherwise: float | None = None) -> int:
            return int(number(key, otherwise, 1))

        self.layers, self.dim = size("block_count"), size("embedding_length")
        self.heads, self.n_ctx = size("attention.head_count"), size("context_length")
        self.kv_heads = size("attention.head_count_kv", self.heads)
        self.head_dim = size("attention.key_length", self.dim // self.heads)
        self.eps = number("attention.layer_norm_rms_epsilon")
        self.adjacent = architecture == "llama"
        powers = -np.arange(0, self.head_dim, 2) / self.head_dim
        self.angles = number("rope.freq_base", 10_000) ** powers
        if "rope_freqs.weight" in self.names:  # Llama 3.1's
            divisors = np.empty((1, self.head_dim // 2), np.float32)
            self._file.read("rope_freqs.weight", divisors)
            self.angles = self.angles / divisors[0]
        kind = self._file.settings.get(f"{architecture}.rope.scaling.type", "none")
        if kind != "none":
            raise self._refusal(f"its RoPE is scaled by {kind}")
        if number("rope.dimension_count", self.head_dim) != self.head_dim or self.head_dim % 2:
            raise self._refusal("RoPE turns a part of each head only")
        if number("attention.value_length", self.head_dim) != self.head_dim:
            raise self._refusal("its heads are of several sizes")
        for key in _UNSUPPORTED_SETTINGS:
            if number(key, 0):
                raise self._refusal(f"it has {architecture}.{key}")
        named = {f"blk.{i}.{name}" for i in range(self.layers) for name in FAMILIES[architecture]}
        named |= {"token_embd.weight", "output_norm.weight"}
        free = {"output.weight", "rope_freqs.weight"}
        if odd := sorted(named ^ (self.names - free)):
            what = "missing" if odd[0] in named else "not known"
            raise self._refusal(f"its tensor {odd[0]} is {what}")
        self.vocabulary = self._file.shapes["token_embd.weight"][0]
        self.head = "output.weight" if "output.weight" in self.names else "token_embd.weight"

    def _refusal(self, why: str) -> ModelError:
        return ModelError(
            f"the gradient of {self.path.name} cannot be computed: {why}; allowed are plain models "
            f"of the architectures {', '.join(FAMILIES)}. Use `self_information` (−log p) for it"
        )

    def each(self, work: Callable[[int], object], count: int) -> None:
        """Run work(0) … work(count - 1) in several threads."""
        list(self._pool.map(work, range(count)))

    def over_rows(
        self, work: Callable[[slice], object], rows: int, step: int | None = None
    ) -> None:
        """Run work(slice) on slices of all rows, of `step` rows or else one for each thread."""
        step = step or max(16, -(-rows // self._threads))
        self.each(lambda i: work(slice(i * step, min((i + 1) * step, rows))), -(-rows // step))

    def times(self, x: FloatArray, matrix: FloatArray) -> FloatArray:
        """x @ matrix, the rows of x split among the threads."""
        out = np.empty((len(x), matrix.shape[1]), np.float32)
        self.over_rows(lambda t: np.matmul(x[t], matrix, out=out[t]), len(x))
        return out

    def embeddings(self, tokens: IntArray) -> FloatArray:
        """The embeddings of the tokens, (n, dim) float32."""
        return np.concatenate([self.tensor("token_embd.weight", token, 1) for token in tokens])

    def tensor(self, name: str, first: int = 0, rows: int | None = None) -> FloatArray:
        """A tensor's rows from `first` on, at most `rows` of them: (m, columns) float32."""
        all_rows, columns = self._file.shapes[name]
        out = np.empty((min(rows or all_rows, all_rows - first), columns), np.float32)
        self._unpack(name, out, first)
        return out

    def tensors(self, names: Sequence[str]) -> FloatArray:
        """Tensors with the same columns, one below the other, float32."""
        ends = np.cumsum([self._file.shapes[name][0] for name in names]).tolist()
        out = np.empty((ends[-1], self._file.shapes[names[0]][1]), np.float32)
        for name, start, end in zip(names, [0, *ends], ends, strict=False):
            self._unpack(name, out[start:end], 0)
        return out

    def _unpack(self, name: str, out: FloatArray, first: int) -> None:
        self.over_rows(lambda t: self._file.read(name, out[t], first + t.start), len(out))


# -- forward and back ------------------------------------------------------------------------------


class _Normed:
    """y = x / rms(x) · weight, row by row (Zhang and Sennrich 2019, eq. 4, with eps), and back."""

    def __init__(self, x: FloatArray, weight: FloatArray, eps: float) -> None:
        self._x, self._weight = x, weight
        mean = np.einsum("ij,ij->i", x, x) / np.float32(x.shape[1])
        self._inverse = 1 / np.sqrt(mean + np.float32(eps))[:, None]
        self.y = x * self._inverse
        self.y *= weight

    def backward(self, dy: FloatArray) -> FloatArray:
        dx = dy * self._weight
        along = np.einsum("ij,ij->i", dx, self._x)[:, None] / np.float32(dx.shape[1])
        dx -= self._x * (along * self._inverse**2)
        dx *= self._inverse
        return dx


class _Layer:
    """A layer that has run forward up to its last product, and its backward pass."""

    def __init__(self, model: Model, layer: int, x: FloatArray) -> None:
        def matrix(*names: str) -> FloatArray:
            return model.tensors([f"blk.{layer}.{name}" for name in names])

        def normed(name: str, x: FloatArray) -> _Normed:
            return _Normed(x, matrix(f"{name}.weight")[0], model.eps)

        self._model = model
        self._attention_in = normed("attn_norm", x)
        self._W_qkv = matrix("attn_q.weight", "attn_k.weight", "attn_v.weight")
        qkv = model.times(self._attention_in.y, self._W_qkv.T)
        if f"blk.{layer}.attn_q.bias" in model.names:
            qkv += np.concatenate([matrix(f"attn_{name}.bias")[0] for name in "qkv"])
        self._attention = _Attention(model, layer, qkv)
        self._W_o = matrix("attn_output.weight")
        self._middle = x + model.times(self._attention.output(), self._W_o.T)
        self._ffn_in = normed("ffn_norm", self._middle)
        self._W_gate_up = matrix("ffn_gate.weight", "ffn_up.weight")
        self._gate_up = model.times(self._ffn_in.y, self._W_gate_up.T)
        self._gated = np.empty((len(x), self._gate_up.shape[1] // 2), np.float32)
        model.over_rows(self._gate, len(x), GATED)
        self._W_down = matrix("ffn_down.weight")

    def output(self) -> FloatArray:
        return self._middle + self._model.times(self._gated, self._W_down.T)

    def backward(self, d_out: FloatArray) -> FloatArray:
        """The gradient of the layer's input from that of its output, both (n, dim)."""
        times = self._model.times
        d_gated = times(d_out, self._W_down)
        self._model.over_rows(lambda t: self._gate_backward(t, d_gated[t]), len(d_out), GATED)
        d_middle = d_out + self._ffn_in.backward(times(self._gate_up, self._W_gate_up))
        d_qkv = self._attention.backward(times(d_middle, self._W_o))
        return d_middle + self._attention_in.backward(times(d_qkv, self._W_qkv))

    def _gate(self, rows: slice) -> None:
        """SiLU(gate) · up, with SiLU(x) = x · σ(x): Shazeer 2020, eq. 6."""
        gate, up = np.split(self._gate_up[rows], 2, axis=1)
        np.multiply(gate, _sigmoid(gate), out=self._gated[rows])
        self._gated[rows] *= up

    def _gate_backward(self, rows: slice, d: FloatArray) -> None:
        """Replaces gate and up by their gradients. d: that of the gated unit."""
        gate, up = np.split(self._gate_up[rows], 2, axis=1)
        share = _sigmoid(gate)
        silu = gate * share
        d_gate = share + silu
        d_gate -= silu * share
        d_gate *= up
        np.multiply(d_gate, d, out=gate)
        np.multiply(silu, d, out=up)


def _sigmoid(x: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        share: FloatArray = np.exp(-x)
        share += 1
        return np.reciprocal(share, out=share)


class _Attention:
    """Causal attention with grouped queries over n tokens.

    qkv: (n, (heads + 2 kv_heads) · head_dim), for each token all queries, all keys, all values. _q
    is (kv_heads, n · group, head_dim): the group = heads / kv_heads queries of a position that
    share a key head are adjacent rows. _k and _v are (kv_heads, n, head_dim).
    """

    def __init__(self, model: Model, layer: int, qkv: FloatArray) -> None:
        s = self._model = model
        self._n = len(qkv)
        rotation = np.exp(1j * np.arange(self._n)[:, None] * s.angles)
        self._rotation = rotation.astype(np.complex64)[:, None]
        ends = [s.heads * s.head_dim, (s.heads + s.kv_heads) * s.head_dim]
        q, k, v = np.split(qkv, ends, axis=1)
        self._norms: list[_Normed] = []
        if f"blk.{layer}.attn_q_norm.weight" in model.names:  # Qwen 3's, of each head
            for name, x in (("attn_q", q), ("attn_k", k)):
                weight = model.tensor(f"blk.{layer}.{name}_norm.weight")[0]
                self._norms.append(_Normed(x.reshape(-1, s.head_dim), weight, s.eps))
            q, k = (norm.y.reshape(self._n, -1) for norm in self._norms)
        self._group = s.heads // s.kv_heads
        later = np.where(np.tri(POSITIONS, dtype=bool), 0, np.float32(-np.inf))
        self._later = np.repeat(later, self._group, axis=0)
        self._scale = np.float32(s.head_dim**-0.5)
        self._q = self._by_head(self._rotated(q)) * self._scale
        self._k, self._v = self._by_head(self._rotated(k)), self._by_head(v)

    def output(self) -> FloatArray:
        """(n, heads · head_dim)."""
        out = np.empty_like(self._q)

        def head(g: int) -> None:
            for rows, keys in self._blocks():
                np.matmul(self._probabilities(g, rows, keys), self._v[g, keys], out=out[g, rows])

        self._model.each(head, self._model.kv_heads)
        return self._by_token(out)

    def backward(self, d_out: FloatArray) -> FloatArray:
        """The gradient of qkv from that of the output."""
        d_o = self._by_head(d_out)
        dq, dk, dv = np.empty_like(d_o), np.zeros_like(self._k), np.zeros_like(self._v)

        def head(g: int) -> None:
            for rows, keys in self._blocks():
                p = self._probabilities(g, rows, keys)
                dv[g, keys] += p.T @ d_o[g, rows]
                dp = d_o[g, rows] @ self._v[g, keys].T
                dp -= np.einsum("ij,ij->i", p, dp)[:, None]
                dp *= p
                dk[g, keys] += dp.T @ self._q[g, rows]
                np.matmul(dp, self._k[g, keys], out=dq[g, rows])

        self._model.each(head, self._model.kv_heads)
        parts = [self._rotated(self._by_token(d), back=True) for d in (dq * self._scale, dk)]
        for i, norm in enumerate(self._norms):
            rows = parts[i].reshape(-1, self._model.head_dim)
            parts[i] = norm.backward(rows).reshape(self._n, -1)
        return np.concatenate([*parts, self._by_token(dv)], axis=1)

    def _probabilities(self, g: int, rows: slice, keys: slice) -> FloatArray:
        """What the positions of a block attend to: a softmax over the keys up to their own."""
        p: FloatArray = np.matmul(self._q[g, rows], self._k[g, keys].T)
        own = p[:, rows.start // self._group :]  # the block's keys, some of which come later
        own += self._later[: len(own), : own.shape[1]]
        p -= p.max(axis=1, keepdims=True)
        np.exp(p, out=p)
        p /= p.sum(axis=1, keepdims=True)
        return p

    def _blocks(self) -> Iterator[tuple[slice, slice]]:
        """Slices of query rows, each with the keys that its last row sees."""
        for start in range(0, self._n, POSITIONS):
            end = min(start + POSITIONS, self._n)
            yield slice(start * self._group, end * self._group), slice(0, end)

    def _rotated(self, x: FloatArray, back: bool = False) -> FloatArray:
        """RoPE of (n, heads · head_dim), as products with complex numbers of length 1; or back.

        If a pair's numbers lie half a head apart, they are made adjacent, and moved apart again on
        the way back. Queries and keys are permuted alike, so their inner products do not change.
        """
        heads, apart = x.reshape(self._n, -1, self._model.head_dim), not self._model.adjacent
        if apart and not back:
            heads = heads.reshape(*heads.shape[:2], 2, -1).swapaxes(2, 3).reshape(heads.shape)
        pairs = np.ascontiguousarray(heads).view(np.complex64)
        heads = (pairs * (self._rotation.conj() if back else self._rotation)).view(np.float32)
        if apart and back:
            heads = heads.reshape(*heads.shape[:2], -1, 2).swapaxes(2, 3)
        turned: FloatArray = heads.reshape(x.shape)
        return turned

    def _by_head(self, x: FloatArray) -> FloatArray:
        """(n, kv_heads · r · head_dim) as (kv_heads, n · r, head_dim)."""
        s = self._model
        heads = x.reshape(self._n, s.kv_heads, -1).swapaxes(0, 1)
        return heads.reshape(s.kv_heads, -1, s.head_dim)

    def _by_token(self, heads: FloatArray) -> FloatArray:
        """The inverse of `_by_head`."""
        by_token = heads.reshape(len(heads), self._n, -1).swapaxes(0, 1)
        return by_token.reshape(self._n, -1)


def _head(model: Model, x: FloatArray, targets: IntArray) -> tuple[FloatArray, FloatArray]:
    """The losses of n targets, and the gradient of x (n, dim), from which they are predicted.

    The vocabulary is processed in blocks. What earlier blocks added to the softmax's sum and to the
    gradient is scaled down when a later block has a larger logit, as in online softmax (Milakov and
    Gimelshein 2018).
    """
    n = len(targets)
    normed = _Normed(x, model.tensor("output_norm.weight")[0], model.eps)
    h, of_target, d_h = normed.y, np.empty_like(x), np.zeros_like(x)
    largest, total = np.full(n, -np.inf, np.float32), np.zeros(n, np.float32)
    for start in range(0, model.vocabulary, LOGITS):
        E = model.tensor(model.head, start, LOGITS)
        here = np.flatnonzero((start <= targets) & (targets < start + len(E)))
        of_target[here] = E[targets[here] - start]
        logits = model.times(h, E.T)
        new = np.maximum(largest, logits.max(axis=1))
        shrink, largest = np.exp(largest - new), new
        logits -= new[:, None]
        np.exp(logits, out=logits)
        total = total * shrink + logits.sum(axis=1)
        d_h = d_h * shrink[:, None] + model.times(logits, E)
    d_h = d_h / total[:, None] - of_target
    losses = largest + np.log(total) - np.einsum("ij,ij->i", h, of_target)
    return losses, normed.backward(d_h)

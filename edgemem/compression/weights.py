"""A transformer as a GGUF holds it: its sizes and constants, and its weights, a matrix at a time.

Plain models of the Llama family, Qwen 2, 2.5 and 3, and Gemma 3; any other is refused, because a
term that is left out would give wrong numbers instead of an error. The quantised file stays mapped;
what is unpacked at any moment is one matrix, in a scratch array that the next one overwrites.

For the way back a matrix is in bfloat16 where the processor multiplies that. What comes out are
gradients, in which an error of a thousandth matters to nobody; the way forward stays in float32.
Source: llama.cpp's graphs of the same architectures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ModelError
from edgemem.kernels import layers as kernels
from edgemem.kernels.layers import EVERY_KEY, GELU, SILU
from edgemem.runtime.tensors import Tensors

__all__ = ["FAMILIES", "Shape", "Weights", "times"]

FloatArray = NDArray[np.float32]
HalfArray = NDArray[np.uint16]


_BASE = frozenset(
    f"{name}.weight"
    for name in (
        "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output",
        "ffn_norm", "ffn_gate", "ffn_up", "ffn_down",
    )
)  # fmt: skip
_BIAS = frozenset(f"attn_{name}.bias" for name in "qkv")
_QK_NORM = frozenset(f"attn_{name}_norm.weight" for name in "qk")
_POST_NORM = frozenset({"post_attention_norm.weight", "post_ffw_norm.weight"})
FAMILIES = {
    "llama": _BASE,
    "qwen2": _BASE | _BIAS,
    "qwen3": _BASE | _QK_NORM,
    "gemma3": _BASE | _QK_NORM | _POST_NORM,
}
"""The tensors of a layer, by architecture."""
_GEMMA_27B_LAYERS = 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes and constants of a model.

    adjacent: RoPE turns the numbers 2i and 2i + 1 of a head, otherwise i and i + head_dim / 2.
    windows: how many keys a position of each layer sees, itself included. angles: of each layer,
    (head_dim / 2,) float64, radians a position. tensors: the names that a layer has.
    """

    architecture: str
    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    n_ctx: int
    eps: float
    attention_scale: float
    embedding_scale: float
    activation: int
    adjacent: bool
    tied: bool
    windows: tuple[int, ...]
    angles: tuple[NDArray[np.float64], ...]
    tensors: frozenset[str]


class _Settings:
    """The numbers of a file's architecture, by the end of their keys."""

    def __init__(self, file: Tensors) -> None:
        self.file = file
        self.architecture = str(file.settings.get("general.architecture"))

    def __call__(self, key: str, otherwise: float | None = None) -> float:
        key = f"{self.architecture}.{key}"
        value = self.file.settings.get(key, otherwise)
        if isinstance(value, str) or value is None or not 0 <= value < 2**31:
            raise _refusal(self.file, f"its {key} is {value!r}")
        return value

    def size(self, key: str, otherwise: float | None = None) -> int:
        value = int(self(key, otherwise))
        if value < 1:
            raise _refusal(self.file, f"its {self.architecture}.{key} is {value}")
        return value


def shape_of(file: Tensors) -> Shape:
    """Raises ModelError, saying why, if the gradient of such a model is not known here."""
    settings = _Settings(file)
    architecture = settings.architecture
    if architecture not in FAMILIES:
        raise _refusal(file, f"its architecture is {architecture}")
    gemma = architecture == "gemma3"
    layers, dim = settings.size("block_count"), settings.size("embedding_length")
    heads = settings.size("attention.head_count")
    kv_heads = settings.size("attention.head_count_kv", heads)
    head_dim = settings.size("attention.key_length", dim // heads)
    by_dim = gemma and layers == _GEMMA_27B_LAYERS
    shape = Shape(
        architecture=architecture,
        layers=layers,
        dim=dim,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=settings.size("feed_forward_length"),
        vocabulary=file.shapes.get("token_embd.weight", (0, 0))[0],
        n_ctx=settings.size("context_length"),
        eps=settings("attention.layer_norm_rms_epsilon"),
        attention_scale=1 / math.sqrt(dim / heads if by_dim else head_dim),
        embedding_scale=math.sqrt(dim) if gemma else 1.0,
        activation=GELU if gemma else SILU,
        adjacent=architecture == "llama",
        tied="output.weight" not in file.shapes,
        windows=_windows(settings, layers),
        angles=_angles(settings, layers, head_dim),
        tensors=FAMILIES[architecture],
    )
    _check(settings, shape)
    return shape


def _windows(settings: _Settings, layers: int) -> tuple[int, ...]:
    if settings.architecture != "gemma3":
        if settings("attention.sliding_window", 0):
            raise _refusal(settings.file, "it has sliding windows")
        return (EVERY_KEY,) * layers
    window = settings.size("attention.sliding_window")
    return tuple(EVERY_KEY if _is_global(layer) else window for layer in range(layers))


def _is_global(layer: int) -> bool:
    """Whether a layer of Gemma 3 sees everything: each sixth does."""
    return layer % 6 == 5


def _angles(settings: _Settings, layers: int, head_dim: int) -> tuple[NDArray[np.float64], ...]:
    file = settings.file
    if settings.size("rope.dimension_count", head_dim) != head_dim or head_dim % 2:
        raise _refusal(file, "RoPE turns a part of each head only")
    kind = file.settings.get(f"{settings.architecture}.rope.scaling.type", "none")
    factor = settings("rope.scaling.factor", 1) or 1
    if kind not in ("none", "linear"):
        raise _refusal(file, f"its RoPE is scaled by {kind}")
    powers = -np.arange(0, head_dim, 2) / head_dim
    everywhere = settings("rope.freq_base", 10_000) ** powers
    if kind == "linear":
        everywhere = everywhere / factor
    if "rope_freqs.weight" in file.shapes:  # Llama 3.1's
        divisors = np.empty(file.shapes["rope_freqs.weight"], np.float32)
        file.read("rope_freqs.weight", divisors)
        if divisors.shape != (1, head_dim // 2):
            raise _refusal(file, f"its rope_freqs.weight has shape {divisors.shape}")
        everywhere = everywhere / divisors[0]
    if settings.architecture != "gemma3":
        return (everywhere,) * layers
    nearby = settings("rope.freq_base_swa", 10_000) ** powers
    return tuple(everywhere if _is_global(layer) else nearby for layer in range(layers))


def _check(settings: _Settings, shape: Shape) -> None:
    """Refuse what these sizes do not explain: other tensors, other shapes, experts, soft caps."""
    file, s = settings.file, shape
    for key in (
        "expert_count", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale",
        "embedding_scale", "residual_scale", "attention.scale",
    ):  # fmt: skip
        if settings(key, 0):
            raise _refusal(file, f"it has {s.architecture}.{key}")
    if settings("attention.value_length", s.head_dim) != s.head_dim or s.heads % s.kv_heads:
        raise _refusal(file, "its heads are of several sizes")
    queries, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
    sizes = {
        "attn_q": (queries, s.dim), "attn_k": (keys, s.dim), "attn_v": (keys, s.dim),
        "attn_output": (s.dim, queries), "ffn_down": (s.dim, s.ffn),
        "ffn_gate": (s.ffn, s.dim), "ffn_up": (s.ffn, s.dim),
        "attn_q_norm": (1, s.head_dim), "attn_k_norm": (1, s.head_dim),
        "attn_q.bias": (1, queries), "attn_k.bias": (1, keys), "attn_v.bias": (1, keys),
    }  # fmt: skip
    expected = {
        f"blk.{layer}.{name}": sizes.get(name.removesuffix(".weight"), (1, s.dim))
        for layer in range(s.layers)
        for name in s.tensors
    }
    expected["token_embd.weight"] = (s.vocabulary, s.dim)
    expected["output_norm.weight"] = (1, s.dim)
    if not s.tied:
        expected["output.weight"] = (s.vocabulary, s.dim)
    found = {name: size for name, size in file.shapes.items() if name != "rope_freqs.weight"}
    if odd := sorted(k for k in expected | found if expected.get(k) != found.get(k)):
        name = odd[0]
        raise _refusal(
            file,
            f"its tensor {name} is {found.get(name, 'missing')}, not {expected.get(name, 'known')}",
        )


def _refusal(file: Tensors, why: str) -> ModelError:
    return ModelError(
        f"the gradient of {file.path.name} cannot be computed: {why}; allowed are plain models of "
        f"the architectures {', '.join(FAMILIES)}. Use `self_information` (−log p) for it"
    )


CHUNK_BYTES = 1 << 19
"""Of a matrix, unpacked at once: what packs it again finds it in the cache."""


class Weights:
    """An open model and the threads that work on it. One caller at a time; close it when done.

    bf16: whether the matrices of the way back are in bfloat16.
    """

    def __init__(self, path: Path, threads: int, *, bf16: bool = kernels.HAS_BF16) -> None:
        self.path = path
        self._file = Tensors(path)
        try:
            self.shape = shape_of(self._file)
        except BaseException:
            self._file.close()
            raise
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "edgemem-sensitivity") if threads > 1 else None
        self._scratch = self._chunks = np.empty(0, np.float32)
        self._packed = np.empty(0, np.uint16)
        # A pair of rows that are packed together must not be of two matrices.
        self._bf16 = bf16 and self.shape.ffn % 2 == 0
        self._vectors = {
            name: self._vector(name)
            for name, (rows, _) in self._file.shapes.items()
            if rows == 1 and name != "rope_freqs.weight"
        }

    @property
    def nbytes(self) -> int:
        """Of what is unpacked, beside the mapped file."""
        scratch = self._scratch.nbytes + self._chunks.nbytes + self._packed.nbytes
        return scratch + sum(vector.nbytes for vector in self._vectors.values())

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._file.close()

    def each(self, work: Callable[[int], object], count: int) -> None:
        """work(0) … work(count - 1), in several threads."""
        if self._pool is None or count == 1:
            for i in range(count):
                work(i)
        else:
            list(self._pool.map(work, range(count)))

    def over_rows(self, work: Callable[[slice], object], rows: int) -> None:
        """work on all rows, a slice for each thread."""
        step = max(16, -(-rows // self.threads))
        self.each(lambda i: work(slice(i * step, (i + 1) * step)), -(-rows // step))

    def vector(self, layer: int, name: str) -> FloatArray:
        """A norm's weights or a bias, (columns,)."""
        return self._vectors[f"blk.{layer}.{name}"]

    @property
    def output_norm(self) -> FloatArray:
        return self._vectors["output_norm.weight"]

    def matrix(self, layer: int, *names: str) -> FloatArray:
        """Matrices of one layer, one below the other: (rows, columns), until the next call."""
        pieces, rows, columns = self._pieces(layer, names)
        out = self._room(rows, columns)
        self._unpack(pieces, out, None)
        return out

    def matrix_back(self, layer: int, *names: str) -> FloatArray | HalfArray:
        """The same for `times`: in bfloat16 (kernels.pack_bf16) where the processor has it."""
        if not self._bf16:
            return self.matrix(layer, *names)
        pieces, rows, columns = self._pieces(layer, names)
        packed = self._packed_room(rows, columns)
        self._unpack(pieces, None, packed)
        return packed

    def qkv_bias(self, layer: int) -> FloatArray | None:
        """The biases of queries, keys and values in one row, or None."""
        names = [f"attn_{name}.bias" for name in "qkv"]
        if names[0] not in self.shape.tensors:
            return None
        return np.concatenate([self.vector(layer, name) for name in names])

    def embeddings(self, tokens: NDArray[np.int64]) -> FloatArray:
        """(n, dim): the rows of the tokens, scaled as the model takes them."""
        out = np.empty((len(tokens), self.shape.dim), np.float32)
        for row, token in zip(out, tokens.tolist(), strict=True):
            self._file.read("token_embd.weight", row[None], token)
        out *= np.float32(self.shape.embedding_scale)
        return out

    def output(self, start: int, rows: int) -> tuple[FloatArray, FloatArray | HalfArray]:
        """(rows or what is left, dim): rows of the output matrix from `start` on, and the same for
        `times`."""
        out = self._room(min(rows, self.shape.vocabulary - start), self.shape.dim)
        packed = self._packed_room(*out.shape) if self._bf16 else None
        name = "token_embd.weight" if self.shape.tied else "output.weight"
        self._unpack([(name, start, len(out))], out, packed)
        return out, out if packed is None else packed

    def _room(self, rows: int, columns: int) -> FloatArray:
        if self._scratch.size < rows * columns:
            self._scratch = np.empty(rows * columns, np.float32)
        return self._scratch[: rows * columns].reshape(rows, columns)

    def _packed_room(self, rows: int, columns: int) -> HalfArray:
        shape = kernels.packed_shape(rows, columns)
        size = math.prod(shape)
        if self._packed.size < size:
            self._packed = np.empty(size, np.uint16)
        return self._packed[:size].reshape(shape)

    def _pieces(
        self, layer: int, names: tuple[str, ...]
    ) -> tuple[list[tuple[str, int, int]], int, int]:
        """(name, first row, rows) of tensors; all rows; columns."""
        full = [f"blk.{layer}.{name}.weight" for name in names]
        shapes = [self._file.shapes[name] for name in full]
        pieces = [(name, 0, rows) for name, (rows, _) in zip(full, shapes, strict=True)]
        return pieces, sum(rows for rows, _ in shapes), shapes[0][1]

    def _unpack(
        self,
        pieces: list[tuple[str, int, int]],
        out: FloatArray | None,
        packed: HalfArray | None,
    ) -> None:
        """Rows of tensors, one below the other, as float32, or in bfloat16, or both."""
        columns = self._file.shapes[pieces[0][0]][1]
        # Whole heads, whose rows may have to change places.
        step = -(-CHUNK_BYTES // (4 * columns * self.shape.head_dim)) * self.shape.head_dim
        chunks, total = [], 0
        for name, first, rows in pieces:
            chunks += [
                (name, first + at, total + at, min(step, rows - at)) for at in range(0, rows, step)
            ]
            total += rows

        size = step * columns
        if out is None and self._chunks.size < size * self.threads:
            self._chunks = np.empty(size * self.threads, np.float32)

        def unpack(task: int) -> None:
            room = self._chunks[task * size : (task + 1) * size].reshape(-1, columns)
            for name, first, at, rows in chunks[task :: self.threads]:
                into = room[:rows] if out is None else out[at : at + rows]
                self._read(name, first, into)
                if packed is not None:
                    kernels.pack_bf16(into, at, total, packed)

        self.each(unpack, min(self.threads, len(chunks)))

    def _read(self, name: str, first: int, out: FloatArray) -> None:
        if self.shape.adjacent or not name.endswith(("attn_q.weight", "attn_k.weight")):
            self._file.read(name, out, first)
        else:
            rows = np.empty_like(out)
            self._file.read(name, rows, first)
            self._pair(rows, out)

    def _vector(self, name: str) -> FloatArray:
        out = np.empty(self._file.shapes[name], np.float32)
        self._file.read(name, out)
        kind = name.split(".", 2)[-1]
        if not self.shape.adjacent and kind in (
            "attn_q.bias", "attn_k.bias", "attn_q_norm.weight", "attn_k_norm.weight"
        ):  # fmt: skip
            column = out.reshape(-1, 1).copy()
            self._pair(column, out.reshape(-1, 1))
        vector: FloatArray = out[0]
        return vector

    def _pair(self, rows: FloatArray, out: FloatArray) -> None:
        """Rows i and i + head_dim / 2 of each head become neighbours: the pairs that RoPE turns.

        Queries and keys are turned alike, so their inner products stay what they are.
        """
        half, columns = self.shape.head_dim // 2, rows.shape[1]
        halves = rows.reshape(-1, 2, half, columns)
        out.reshape(-1, half, 2, columns)[...] = halves.transpose(0, 2, 1, 3)


def times(
    x: FloatArray, matrix: FloatArray | HalfArray, out: FloatArray, add: bool = False
) -> None:
    """out = x @ matrix, or added to it; the matrix as Weights gives it for the way back."""
    if matrix.ndim == 4:
        kernels.product_bf16(x, cast(HalfArray, matrix), add, out)
    elif add:
        out += np.matmul(x, matrix)
    else:
        np.matmul(x, matrix, out=out)

"""A model's weights, unpacked a matrix at a time.

Knows which tensors of a layer are multiplied together and in which order RoPE wants their rows;
knows nothing of the arithmetic. The quantised file stays mapped; what is unpacked at any moment is
one matrix, in a scratch array that the next one overwrites.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from edgemem.compression.families import shape_of
from edgemem.runtime.tensors import Tensors

__all__ = ["Weights"]

FloatArray = NDArray[np.float32]


class Weights:
    """An open model and the threads that work on it. One caller at a time; close it when done."""

    def __init__(self, path: Path, threads: int) -> None:
        self.path = path
        self._file = Tensors(path)
        try:
            self.shape = shape_of(self._file)
        except BaseException:
            self._file.close()
            raise
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "edgemem-sensitivity") if threads > 1 else None
        self._blas = ThreadpoolController()
        self._scratch = np.empty(0, np.float32)
        self._vectors = {
            name: self._vector(name)
            for name, (rows, _) in self._file.shapes.items()
            if rows == 1 and name != "rope_freqs.weight"
        }

    @property
    def nbytes(self) -> int:
        """Of what is unpacked, beside the mapped file."""
        return self._scratch.nbytes + sum(vector.nbytes for vector in self._vectors.values())

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._file.close()

    def one_blas_thread(self) -> AbstractContextManager[object]:
        """Inside, a matrix product of NumPy takes one thread: rows are split among ours instead.

        BLAS's own threads wait for each other without sleep. On a machine that is busy otherwise
        the same products took ten times the processor time with them.
        """
        limited: AbstractContextManager[object] = self._blas.limit(limits=1, user_api="blas")
        return limited

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
        full = [f"blk.{layer}.{name}.weight" for name in names]
        shapes = [self._file.shapes[name] for name in full]
        out = self._room(sum(rows for rows, _ in shapes), shapes[0][1])
        parts = []
        start = 0
        for name, (rows, _) in zip(full, shapes, strict=True):
            parts += self._parts(name, out[start : start + rows], 0)
            start += rows
        self.each(lambda i: parts[i](), len(parts))
        return out

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

    def output(self, start: int, rows: int) -> FloatArray:
        """(rows or what is left, dim): rows of the output matrix from `start` on."""
        out = self._room(min(rows, self.shape.vocabulary - start), self.shape.dim)
        name = "token_embd.weight" if self.shape.tied else "output.weight"
        parts = self._parts(name, out, start)
        self.each(lambda i: parts[i](), len(parts))
        return out

    def _room(self, rows: int, columns: int) -> FloatArray:
        if self._scratch.size < rows * columns:
            self._scratch = np.empty(rows * columns, np.float32)
        return self._scratch[: rows * columns].reshape(rows, columns)

    def _parts(self, name: str, out: FloatArray, start: int) -> list[Callable[[], None]]:
        """What unpacks rows of a matrix, whole heads at a time, in as many parts as threads."""
        turned = not self.shape.adjacent and name.endswith(("attn_q.weight", "attn_k.weight"))
        unit = self.shape.head_dim if turned else 1
        step = -(-len(out) // (self.threads * unit)) * unit

        def part(rows: slice) -> None:
            into = np.empty_like(out[rows]) if turned else out[rows]
            self._file.read(name, into, start + rows.start)
            if turned:
                self._pair(into, out[rows])

        return [partial(part, slice(at, at + step)) for at in range(0, len(out), step)]

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

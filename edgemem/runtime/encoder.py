"""The bundled embedder's layers, with a low-rank expert added to each of their products.

One encoder reads facts for several jobs, each with its expert (onnxfile.py), as one language model
does with several adapters. The int8 weights stay in the embedder's mapped file and are converted at
each use: a fact has only tens of tokens, and the weights as float32 would take 42 MB.
The layers are BERT's (Devlin et al. 2019). GELU has its tanh form, which the experts were trained
with.

Knows texts and their tokens; the jobs interpret the states (pipeline/graph.py, stages/update.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgemem.inputs import utf8
from edgemem.kernels import one_blas_thread
from edgemem.runtime import models
from edgemem.runtime.embedder import MAX_TOKENS, bundled_tokenizer
from edgemem.runtime.onnxfile import PRODUCTS, Expert, Matrix, parameters

__all__ = ["HEADS", "Encoder", "States", "encoder_bytes", "softmax"]

Floats = NDArray[np.float32]
LAYERS, HEADS = 6, 12
EXPERTS_BYTES = 7_000_000
_EPS = 1e-12


class States(NamedTuple):
    """The outputs of the layers. offsets: each token's [start, end) characters in its text. text:
    (t,) 0 for tokens of the first text, 1 for those of the second, -1 for [CLS] and [SEP], whose
    offsets are (0, 0). layers: (6, t, dim) float32."""

    offsets: list[tuple[int, int]]
    text: NDArray[np.int64]
    layers: Floats


class Encoder:
    """The embedder's layers. Safe to use from several threads at once."""

    def __init__(self, weights: Mapping[str, Matrix | Floats], tokenizer: Any) -> None:
        self._matrices = {n: w for n, w in weights.items() if isinstance(w, Matrix)}
        self._floats = {n: w for n, w in weights.items() if not isinstance(w, Matrix)}
        self._tokenizer = tokenizer

    @classmethod
    def load(cls) -> Encoder:
        """Raises ModelNotFound if the bundled embedder is not installed, ModelError if its file is
        damaged."""
        weights = parameters(models.verified_file(models.DEFAULT_EMBEDDER))
        return cls(weights, bundled_tokenizer())

    def encode(self, text: str, second: str | None = None) -> Any:
        """The tokens of a text or of two: a `tokenizers.Encoding`. Raises InputError on broken
        characters."""
        for given in (text, second or ""):
            utf8(given)
        return self._tokenizer.encode(text, second)

    def read(self, expert: Expert, text: str, second: str | None = None) -> States | None:
        """The output of each layer for a text, or for two with [SEP] between them.

        None if there are more than 256 tokens. Errors as `encode`.
        """
        encoding = self.encode(text, second)
        if len(encoding.ids) > MAX_TOKENS:
            return None
        types = np.array(encoding.type_ids)
        x = self._rows("embeddings.word_embeddings", np.array(encoding.ids))
        x += self._rows("embeddings.position_embeddings", np.arange(len(types)))
        x += self._floats["embeddings.token_type_embeddings.weight"][types]
        x = self._norm(x, "embeddings.LayerNorm")
        layers = []
        with one_blas_thread():
            for number in range(LAYERS):
                x = self._layer(x, number, expert)
                layers.append(x)
        marks = np.array(encoding.special_tokens_mask, bool)
        return States(encoding.offsets, np.where(marks, -1, types), np.stack(layers))

    def _layer(self, x: Floats, number: int, expert: Expert) -> Floats:
        def product(y: Floats, short: str) -> Floats:
            name = f"encoder.layer.{number}.{PRODUCTS[short]}"
            out = self._matrices[f"{name}.weight"].times(y) + self._floats[f"{name}.bias"]
            if f"{number}.{short}.a" in expert:
                out += y @ expert[f"{number}.{short}.a"] @ expert[f"{number}.{short}.b"]
            return out

        def heads(short: str) -> Floats:
            return product(x, short).reshape(len(x), HEADS, -1).transpose(1, 0, 2)

        q, k, v = map(heads, "qkv")
        seen = softmax(q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(q.shape[-1]))) @ v
        attended = product(seen.transpose(1, 0, 2).reshape(x.shape), "o")
        name = f"encoder.layer.{number}"
        x = self._norm(x + attended, f"{name}.attention.output.LayerNorm")
        return self._norm(x + product(_gelu(product(x, "up")), "down"), f"{name}.output.LayerNorm")

    def _rows(self, name: str, rows: NDArray[np.int64]) -> Floats:
        matrix = self._matrices[f"{name}.weight"]
        found: Floats = matrix.int8[rows] * matrix.scale[rows]
        return found

    def _norm(self, x: Floats, name: str) -> Floats:
        x = x - x.mean(axis=-1, keepdims=True)
        x /= np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(_EPS))
        return x * self._floats[f"{name}.weight"] + self._floats[f"{name}.bias"]


def encoder_bytes(file: Path) -> int:
    """Predicted memory: the embedder's file, mapped a second time, and the experts as float32."""
    return file.stat().st_size + EXPERTS_BYTES


def _gelu(x: Floats) -> Floats:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    out: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    return out


def softmax(x: Floats) -> Floats:
    """Over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    out: Floats = e / e.sum(axis=-1, keepdims=True)
    return out

"""Text to a vector for each of its tokens, for late interaction (ColBERT).

Knows one model, answerai-colbert-small-v1 with an expert that learned conversations, and the
projection that ships with it (edgemem/data/tokens.npz, set by `python -m bench.fit_retrieval`).
Knows no memories.

A token's vector is projected to fewer dimensions, normalised, and rounded to int8 with one step for
all vectors. So the inner product of two vectors is exact in integers, and `step`² times it is near
to their cosine.
"""

from __future__ import annotations

import hashlib
import string
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgemem.runtime import lowrank
from edgemem.runtime.embedder import SESSION_BYTES, Embedder, unit

__all__ = [
    "MODEL",
    "QUERY_MARK",
    "QUERY_TOKENS",
    "TEXT_MARK",
    "TokenEmbedder",
    "Tokens",
    "token_embedder_bytes",
]

MODEL = "colbert-small-v1-int8"
QUERY_MARK, TEXT_MARK = 1, 2  # [unused0] and [unused1], which ColBERT calls [Q] and [D]
QUERY_TOKENS = 64  # of a query that are used; using all of a pasted page is no better

Tokens = NDArray[np.int8]
"""(t, d) int8, the vectors of t tokens."""


class TokenEmbedder:
    """A loaded model. Safe to use from several threads at once.

    model_id: identifies the model's file and the projection; to be stored beside vectors. dim:
    length of a vector. step: the factor from a vector's integers to its values.
    """

    def __init__(self, embedder: Embedder, saved: bytes) -> None:
        """saved: the bytes of a projection's file."""
        numbers = lowrank.read(saved)
        self._projection, self.step = numbers["projection"], float(numbers["step"])
        self.dim = self._projection.shape[1]
        self.model_id = f"{embedder.model_id}+{hashlib.sha256(saved).hexdigest()[:12]}"
        self._embedder = embedder
        self._punctuation = embedder.token_ids(string.punctuation)

    @classmethod
    def load(cls, *, n_threads: int | None = None) -> TokenEmbedder:
        """Errors as `Embedder.load`."""
        return cls(Embedder.load(MODEL, n_threads=n_threads), lowrank.expert_file("tokens"))

    def embed(self, text: str) -> Tokens:
        """The vectors of a text to be found, without those of punctuation. Errors as `Embedder`'s.

        Time grows with length.
        """
        return self._embed(text, TEXT_MARK)

    def embed_query(self, text: str) -> Tokens:
        """The vectors of a query, at most 64. ColBERT marks texts and queries differently."""
        return self._embed(text, QUERY_MARK)[:QUERY_TOKENS]

    def _embed(self, text: str, mark: int) -> Tokens:
        kept = [
            vectors[np.isin(ids, self._punctuation, invert=True)]
            for ids, vectors in self._embedder.embed_tokens(text, mark)
        ]
        projected = unit(np.concatenate(kept) @ self._projection)
        tokens: Tokens = np.clip(np.rint(projected / self.step), -127, 127).astype(np.int8)
        return tokens


def token_embedder_bytes(file: Path) -> int:
    """Predicted memory of a loaded model; unlike the embedder's, its int8 matrices stay int8."""
    return file.stat().st_size + SESSION_BYTES

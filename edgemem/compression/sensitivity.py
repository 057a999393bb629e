"""How much the loss of what a model reads depends on each token: CoreMem's Fisher sensitivities.

The model's weights are mapped here a second time, apart from any Engine, so that scoring waits for
no generation and no generation for it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgemem.compression.backprop import MEMORY_BYTES, loss_and_gradient
from edgemem.compression.weights import Weights
from edgemem.errors import ContextOverflow, InputError, ModelError
from edgemem.runtime import models
from edgemem.runtime.vocabulary import Tokenizer

__all__ = ["Scorer", "Sensitivity"]

FloatArray = NDArray[np.float32]


WINDOW = 2048


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Scores of n tokens, and what they took.

    scores: (n,) float32 >= 0, larger is better kept. neg_log_p: (n,) float32, −log p of each token
    given those before it, in nats. windows: how many the tokens were read in; 1 is exact.
    """

    scores: FloatArray
    neg_log_p: FloatArray
    windows: int
    seconds: float


class Scorer:
    """A model's weights, mapped, and threads. Calls from several threads take turns; close it."""

    def __init__(self, weights: Weights) -> None:
        self._weights: Weights | None = weights
        self._lock = threading.Lock()
        self._tokenizer: Tokenizer | None = None
        self.path = weights.path
        self.n_ctx = weights.shape.n_ctx

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None, *, threads: int = 2) -> Scorer:
        """Map a GGUF model.

        path: a file or a name of the manifest; None is the bundled SmolLM2-135M-Instruct. threads:
        1 to 512. Raises ModelNotFound, InputError, and ModelError on a damaged file or a model
        whose gradient is not known here: Llama, Qwen 2, 2.5 and 3 and Gemma 3 are.
        """
        if not 1 <= threads <= 512:
            raise InputError(f"threads is {threads}; it must be 1 to 512")
        file = models.find(os.fspath(path) if path is not None else models.DEFAULT_LLM)
        return cls(Weights(file, threads))

    def memory_bytes(self) -> int:
        """Bytes held between two passes, beside the mapped file."""
        return 0 if self._weights is None else self._weights.nbytes

    @cached_property
    def model_hash(self) -> str:
        """The sha256 of the file: which model's sensitivities these are."""
        return models.sha256_of(self.path)

    def sensitivity(
        self,
        tokens: Sequence[int],
        *,
        loss_from: int = 1,
        window: int = WINDOW,
        overlap: int | None = None,
        memory_bytes: int = MEMORY_BYTES,
        check: Callable[[], None] | None = None,
    ) -> Sensitivity:
        """S(x_i) = ‖∂L/∂h_i ⊙ h_i‖₂ of each token, L the mean loss of the tokens that follow.

        tokens: n >= 1 ids of the model's vocabulary. loss_from: L counts the tokens from this
        position on, >= 1: where a question or an answer begins, for what a context does for it.
        More than `window` tokens are read in windows of that size that overlap by at least
        `overlap` (None: a quarter), each giving the scores up to the middle of its overlaps.
        memory_bytes: room beside the weights; with less, more is computed twice. check: called
        before each layer; what it raises ends the work.

        The first token's gradient is many times the others' because every token attends to it (21
        times the median with SmolLM2), and the last one's is 0 because nothing follows: their
        scores are the median of the others', and so is the first one's neg_log_p, of which the
        model says nothing.
        Raises InputError on bad tokens or numbers, ContextOverflow if loss_from needs one window
        and there are more tokens, ModelError when closed or if the model gives no numbers.
        Source: CoreMem eq. 3 and 6; departs from it at both ends, and L is the shifted loss.
        """
        started = time.perf_counter()
        ids = self._checked(tokens, loss_from)
        n = len(ids)
        window = min(window, self.n_ctx)
        if overlap is None:
            overlap = window // 4
        if not 0 <= overlap < window or window < 2:
            raise InputError(f"window is {window} and overlap {overlap}; overlap must be smaller")
        if loss_from > 1 and n > window:
            raise ContextOverflow(
                f"there are {n} tokens and window is {window}; what the loss from token "
                f"{loss_from} on depends on must be read at once: shorten it, or give a larger "
                f"window (the model was made for {self.n_ctx})",
                prompt_tokens=n,
                n_ctx=window,
            )
        scores, losses = np.zeros(n, np.float32), np.zeros(n, np.float32)
        spans = _windows(n, window, overlap) if n > 1 else []
        for start, stop, keep in spans:
            with self._lock:  # for one window at a time: a question may come between two
                found = self._gradient(ids[start:stop], loss_from, memory_bytes, check)
            part = slice(keep.start - start, keep.stop - start)
            scores[keep], losses[keep] = found[0][part], found[1][part]
        scores /= max(1, n - loss_from)
        if not (np.isfinite(scores).all() and np.isfinite(losses).all()):
            raise ModelError(
                f"{self.path.name} gave no numbers to score tokens by; the file is damaged: check "
                "it with `edgemem models verify`"
            )
        if n > 2:
            scores[[0, -1]] = np.median(scores[1:-1])
            losses[0] = np.median(losses[1:])
        seconds = time.perf_counter() - started
        return Sensitivity(scores, losses, max(1, len(spans)), seconds)

    def _gradient(
        self,
        ids: NDArray[np.int64],
        loss_from: int,
        memory_bytes: int,
        check: Callable[[], None] | None,
    ) -> tuple[FloatArray, FloatArray]:
        """‖gradient ⊙ embedding‖ for the sum of the losses, and the losses, 0 for the first."""
        weights = self._open_weights()
        h = weights.embeddings(ids)
        losses, gradient = loss_and_gradient(weights, h, ids, loss_from, memory_bytes, check)
        return np.linalg.norm(gradient * h, axis=1), np.concatenate([[np.float32(0)], losses])

    def _open_weights(self) -> Weights:
        if self._weights is None:
            raise ModelError("the scorer is closed; load it again with Scorer.load(...)")
        return self._weights

    def _checked(self, tokens: Sequence[int], loss_from: int) -> NDArray[np.int64]:
        size = self._open_weights().shape.vocabulary
        ids = np.asarray(tokens, np.int64)
        if ids.ndim != 1 or not len(ids):
            raise InputError("there are no tokens; give a list of at least one")
        if ids.min() < 0 or ids.max() >= size:
            raise InputError(
                f"tokens are {ids.min()} to {ids.max()}; {self.path.name} has 0 to {size - 1}"
            )
        if not 1 <= loss_from <= max(1, len(ids) - 1):
            raise InputError(
                f"loss_from is {loss_from}; it must be 1 (all that can be predicted) to "
                f"{max(1, len(ids) - 1)}, the last of {len(ids)} tokens"
            )
        return ids

    def tokenize(self, text: str) -> tuple[list[int], NDArray[np.int32]]:
        """The model's tokens of a text, and their characters: see Tokenizer.tokenize."""
        with self._lock:
            self._open_weights()
            if self._tokenizer is None:
                self._tokenizer = Tokenizer(self.path)
        return self._tokenizer.tokenize(text)

    def close(self) -> None:
        """Let go of the file and the threads; a second time does nothing. Waits for a window."""
        with self._lock:
            if self._tokenizer is not None:
                self._tokenizer.close()
            if self._weights is not None:
                self._weights.close()
                self._weights = None

    def __enter__(self) -> Scorer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _windows(n: int, window: int, overlap: int) -> list[tuple[int, int, slice]]:
    """(start, stop, the positions whose scores it gives) of windows spread evenly over n tokens."""
    if n <= window:
        return [(0, n, slice(0, n))]
    count = -(-(n - overlap) // (window - overlap))
    starts = [(n - window) * i // (count - 1) for i in range(count)]
    # From the middle of the overlap with the window before to that with the window after.
    cuts = [0, *((start + window + after) // 2 for start, after in pairwise(starts)), n]
    return [(start, start + window, slice(*cuts[i : i + 2])) for i, start in enumerate(starts)]

"""The KV cache of one context, shared by stages that take turns.

Each stage begins its prompts with the same long text, whose keys and values are worth keeping. The
context holds one sequence, that of the stage which runs; the others' states are kept outside it
(23 KB a token for SmolLM2-135M, a millisecond or two to put away and to bring back).

What is reused must equal what a fresh context would compute, bit for bit (measured on Q4_1, CPU):

- One sequence at a time, from the first cell on. With one per stage in a unified cache, cells of
  several sequences lie mixed, sums run in another order, and logits moved by up to 1.5.
- Only tokens decoded two or more at a time are kept. ggml multiplies by one column and by several
  in different orders; the difference mostly drowns in the rounding of the activations to 8 bits,
  but a prompt of which only the last token was new had its logits moved by 0.4. So at least two
  tokens of a prompt are decoded anew, and those of an answer are not kept.

Knows tokens and llama.cpp's memory functions; knows nothing of prompts or text.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Prefixes"]


class Prefixes:
    """Which tokens the context holds, and what other stages left. Not thread-safe.

    held: tokens of the sequence in the context; whoever decodes more appends them. most_tokens:
    tokens that are kept for stages which do not run, the least recently used ones going first.
    """

    def __init__(self, lib: Any, context: Any, most_tokens: int) -> None:
        self._lib, self._context, self._most = lib, context, most_tokens
        self._memory = lib.llama_get_memory(context)
        self._stage: str | None = None
        self._reusable = 0  # of `held`
        self._saved: OrderedDict[str, tuple[list[int], NDArray[np.uint8]]] = OrderedDict()
        self.held: list[int] = []

    def enter(self, stage: str, tokens: Sequence[int]) -> int:
        """Make it the stage's turn; how many of `tokens` the context holds for it already.

        The caller decodes the others, which are at least two (or all), before any of an answer.
        """
        self._cut(self._reusable)
        if stage != self._stage:
            self._put_away()
            self._bring_back(stage)
        common = 0
        for ours, theirs in zip(self.held, tokens[:-2], strict=False):
            if ours != theirs:
                break
            common += 1
        self._cut(common)
        self._reusable = len(tokens) if len(tokens) > 1 else 0
        return len(self.held)

    def _cut(self, length: int) -> None:
        """Keep the first tokens only. Always asks: an interrupted decode left more than `held`."""
        if self._lib.llama_memory_seq_rm(self._memory, 0, min(length, len(self.held)), -1):
            del self.held[length:]
        else:
            self._clear()  # recurrent models cannot drop a tail

    def _put_away(self) -> None:
        if self._stage is not None and self.held:
            size = self._lib.llama_state_seq_get_size(self._context, 0)
            state = np.empty(size, np.uint8)
            if self._lib.llama_state_seq_get_data(self._context, _pointer(state), size, 0) == size:
                self._saved[self._stage] = (self.held, state)
        while sum(len(tokens) for tokens, _ in self._saved.values()) > self._most:
            self._saved.popitem(last=False)
        self._clear()

    def _bring_back(self, stage: str) -> None:
        self._stage = stage
        tokens, state = self._saved.pop(stage, ([], None))
        if state is None:
            return
        if self._lib.llama_state_seq_set_data(self._context, _pointer(state), len(state), 0):
            self.held = tokens
        else:
            self._clear()

    def _clear(self) -> None:
        self.held = []
        self._lib.llama_memory_clear(self._memory, False)


def _pointer(state: NDArray[np.uint8]) -> Any:
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))

"""An answer as its reader sees it: pieces of text, then what it took.

Knows the numbers that one may ask a generation for, and how a stop text is kept from being shown;
knows no model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from edgemem.errors import ContextOverflow, InputError

__all__ = [
    "Generation",
    "Options",
    "Reason",
    "Stream",
    "check_length",
    "check_numbers",
    "held_back",
]

Reason = Literal["stop", "length", "cancelled", "deadline"]


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished answer and what it took.

    cached_tokens: prompt tokens whose KV was reused. switch_s: seconds that switching to the
    stage's adapters took, 0 if they were on; they are part of ttft_s.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft_s: float
    tokens_per_s: float
    finish_reason: Reason
    switch_s: float = 0.0


class Options(TypedDict, total=False):
    """What `Engine.stream` takes beside the prompt, and explains."""

    max_tokens: int | None
    temperature: float
    top_p: float
    repeat_penalty: float
    seed: int
    stop: Sequence[str]
    schema: Mapping[str, Any] | None
    within: Sequence[str] | None
    fork: tuple[str, str, float] | None
    stage: str
    should_stop: Callable[[], bool] | None
    deadline_s: float | None


class Stream:
    """The pieces of one answer as they are made; `.result` is set when they end."""

    def __init__(self, pieces: Generator[str, None, Generation]) -> None:
        self._pieces = pieces
        self.result: Generation | None = None

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        try:
            return next(self._pieces)
        except StopIteration as end:
            if end.value is not None:
                self.result = end.value
            raise StopIteration from None

    def close(self) -> None:
        """Stop early and let others use the engine."""
        self._pieces.close()


def check_numbers(
    max_tokens: int | None,
    temperature: float,
    top_p: float,
    repeat_penalty: float,
    stop: tuple[str, ...],
    deadline_s: float | None,
) -> None:
    """Raise InputError, naming the argument that no answer can be made with."""
    if max_tokens is not None and max_tokens < 1:
        raise InputError(f"max_tokens is {max_tokens}; it must be at least 1, or None")
    if not (temperature >= 0.0 and math.isfinite(temperature)):
        raise InputError(f"temperature is {temperature}; it must be 0 (the likeliest) or more")
    if not 0.0 < top_p <= 1.0:
        raise InputError(f"top_p is {top_p}; it must be above 0 and at most 1")
    if not (repeat_penalty > 0.0 and math.isfinite(repeat_penalty)):
        raise InputError(f"repeat_penalty is {repeat_penalty}; it must be above 0; 1 is none")
    if not all(stop):
        raise InputError("a stop string is empty; give at least one character each")
    if deadline_s is not None and not deadline_s > 0.0:
        raise InputError(f"deadline_s is {deadline_s}; it must be above 0, or None")


def check_length(prompt_tokens: int, more: int, n_ctx: int) -> None:
    """Raise ContextOverflow if a prompt and what is to follow exceed the window."""
    needed = prompt_tokens + more
    if needed > n_ctx:
        raise ContextOverflow(
            f"the prompt has {prompt_tokens} tokens and {more} are to follow: "
            f"{needed} in all, but n_ctx is {n_ctx}; shorten the prompt, ask for fewer "
            "tokens, or load the model with a larger n_ctx",
            prompt_tokens=needed,
            n_ctx=n_ctx,
        )


def held_back(text: str, stop: Sequence[str]) -> int:
    """How many last characters may be the start of a stop string, and so must wait."""
    return max(
        (n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])),
        default=0,
    )

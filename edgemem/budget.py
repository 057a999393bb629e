"""One memory limit for everything that is loaded, and what is turned down to fit it.

Knows sizes, choices and the order in which they are turned down. Knows no model, store or file: a
caller predicts the size of each choice. The limit is checked when parts are loaded. A part that
grows later, such as the index of a store that is written to, is counted at the next opening.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from edgemem.errors import InputError, MemoryBudgetExceeded

__all__ = ["Choice", "Plan", "admit", "bytes_of"]

SMALLEST_N_CTX = 512  # in a smaller window, a prompt's examples leave no room for recalled memories
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.I)
_LONGEST = 40  # characters of a size; more digits would be no number for Python
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

Predict = Callable[["Choice"], Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What can be turned down.

    n_ctx: tokens. tuned: whether the model is loaded as `edgemem models tune` stored it. vectors:
    their type in memory. prefix_bytes: for the KV of all stages but the one that runs. careful:
    whether searches compare word by word.
    """

    n_ctx: int
    tuned: bool = False
    vectors: Literal["float32", "int8"] = "int8"
    prefix_bytes: int = 0
    careful: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What may be loaded.

    parts_bytes: the predicted size of each part. turned_down: the rungs of `admit`, in order.
    """

    choice: Choice
    limit_bytes: int
    parts_bytes: Mapping[str, int]
    turned_down: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(self.parts_bytes.values())

    def to_dict(self) -> dict[str, Any]:
        return {
            "limit_mb": round(self.limit_bytes / 1e6, 1),
            "predicted_mb": round(self.total_bytes / 1e6, 1),
            "parts_mb": {name: round(n / 1e6, 1) for name, n in self.parts_bytes.items()},
            "turned_down": list(self.turned_down),
        }


def bytes_of(text: str) -> int:
    """Returns `1GB`, `512MiB`, `1.5 G` or plain bytes as a number of bytes, at least 1.

    GB is 10⁹ bytes, GiB 2³⁰. Raises InputError on anything else.
    """
    found = _SIZE.fullmatch(text.strip())
    size = 0
    if found is not None and len(text) < _LONGEST:
        size = int(float(found[1]) * (1024 if found[3] else 1000) ** _POWER[found[2].lower()])
    if size < 1:
        raise InputError(f"{text!r} is no size; give a number with a unit, such as 1GB or 512MiB")
    return size


def admit(choice: Choice, predict: Predict, limit_bytes: int) -> Plan:
    """Returns a plan with the choice, turned down until the sum of its parts fits the limit.

    The rungs, in order: the model as it was before it was tuned; halve the window, down to 512
    tokens (KV and working buffers shrink with it); vectors in int8; only the prefix of the stage
    that runs; fast searches. A rung that saves nothing is skipped. predict: the bytes of each part
    under a choice.
    Raises MemoryBudgetExceeded, with the parts, if the last rung does not fit either; InputError if
    limit_bytes < 1.
    """
    if limit_bytes < 1:
        raise InputError(f"the memory limit is {limit_bytes} bytes; it must be at least 1")
    parts, turned_down = predict(choice), list[str]()
    for name, less in _ladder(choice):
        if sum(parts.values()) <= limit_bytes:
            break
        smaller = replace(choice, **less)
        left = predict(smaller)
        if sum(left.values()) < sum(parts.values()):
            turned_down.append(name)
            choice, parts = smaller, left
    if sum(parts.values()) > limit_bytes:
        message = _refusal(parts, limit_bytes, turned_down)
        raise MemoryBudgetExceeded(message, dict(parts), tuple(turned_down))
    return Plan(
        choice=choice,
        limit_bytes=limit_bytes,
        parts_bytes=dict(parts),
        turned_down=tuple(turned_down),
    )


def _ladder(choice: Choice) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the rungs in order: a name, and the fields of the choice that it changes."""
    yield "model untuned", {"tuned": False}
    n_ctx = choice.n_ctx
    while n_ctx > SMALLEST_N_CTX:
        n_ctx = max(SMALLEST_N_CTX, n_ctx // 2)
        yield f"n_ctx {n_ctx}", {"n_ctx": n_ctx}
    yield "vectors int8", {"vectors": "int8"}
    yield "one prefix", {"prefix_bytes": 0}
    yield "retrieval fast", {"careful": False}


def _refusal(parts: Mapping[str, int], limit: int, turned_down: list[str]) -> str:
    listed = ", ".join(f"{name} {n / 1e6:.0f} MB" for name, n in parts.items() if n)
    tried = f" with {', '.join(turned_down)}" if turned_down else ""
    total = sum(parts.values())
    return (
        f"the memory limit is {limit / 1e6:.0f} MB, but{tried} it takes {total / 1e6:.0f} MB: "
        f"{listed}; raise the limit (memory_limit), or use a smaller model"
    )

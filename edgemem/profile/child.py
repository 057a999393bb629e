"""What `profile` runs in processes of their own: `python -m edgemem.profile.child`.

Reads one JSON object from standard input, writes one to standard output. Knows the three kinds of
work; imports for each only what it needs, for one of them measures how long importing takes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["QUESTION", "USER", "cold_start", "growth", "main"]

USER = "profile"
QUESTION = "Where do I work?"


def cold_start(path: str, changes: dict[str, Any]) -> dict[str, float]:
    """The moments (time.monotonic) at which each thing on the way to an answer was done."""
    marks = {"python": time.monotonic()}
    from dataclasses import replace

    from edgemem.chat import Chat
    from edgemem.config import load_settings
    from edgemem.memory import Memory

    marks["imports"] = time.monotonic()
    with Memory(path, settings=replace(load_settings(), **changes)) as memory:
        memory.index  # noqa: B018  # loads the embedder, which says whose vectors they are
        marks["embedder and index"] = time.monotonic()
        memory.engine  # noqa: B018
        marks["model"] = time.monotonic()
        reply = Chat(memory, user_id=USER).send(QUESTION, remember=False)
        marks["recall"] = time.monotonic()
        if next(reply, None) is not None and reply.found:
            marks["first token"] = time.monotonic()
        reply.close()
    return marks


def growth(folder: str, sizes: list[int], vectors: Any, rounds: int) -> list[dict[str, Any]]:
    """Searches among invented memories, without a model: times in ms and the index's size."""
    from edgemem.profile.growing import searches

    return [searches(Path(folder) / f"{n}.db", n, vectors, rounds) for n in sizes]


def work(path: str, rounds: int, changes: dict[str, Any]) -> dict[str, Any]:
    from edgemem.profile import work as stages

    return stages.work(Path(path), rounds, changes)


def main() -> None:
    """Do what standard input asks for; an EdgememError is answered as {"error": …}."""
    kinds: dict[str, Callable[..., Any]] = {
        "cold_start": cold_start,
        "growth": growth,
        "work": work,
    }
    asked = json.load(sys.stdin)
    kind = kinds[asked.pop("kind")]
    try:
        answer = {"answer": kind(**asked)}
    except Exception as exc:
        from edgemem.errors import EdgememError

        if not isinstance(exc, EdgememError):
            raise
        answer = {"error": str(exc)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()

"""AsyncMemory: Memory for asyncio. Knows the methods of Memory, and nothing of what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from edgemem.memory import Memory

__all__ = ["AsyncMemory"]

P = ParamSpec("P")
R = TypeVar("R")


def _opening(
    opened: Callable[P, Memory],
) -> Callable[[Callable[..., None]], Callable[Concatenate[AsyncMemory, P], None]]:
    """Gives `AsyncMemory.__init__` the arguments of Memory."""
    return wraps(Memory.__init__)


def _awaited(
    method: Callable[Concatenate[Memory, P], R],
) -> Callable[Concatenate[AsyncMemory, P], Coroutine[Any, Any, R]]:
    """A method of Memory, run in a worker thread. Its arguments, result and docstring stay."""

    @wraps(method)
    async def awaited(self: AsyncMemory, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self.memory, *args, **kwargs)

    return awaited


class AsyncMemory:
    """`await AsyncMemory(...).search(...)`: every method of Memory, awaited in a worker thread.

    Arguments, results and errors are Memory's own. memory: the Memory behind it, with its settings
    and parts.
    """

    @_opening(Memory)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.memory = Memory(*args, **kwargs)

    add = _awaited(Memory.add)
    take_facts = _awaited(Memory.take_facts)
    process_pending = _awaited(Memory.process_pending)
    read_images = _awaited(Memory.read_images)
    pending = _awaited(Memory.pending)
    update = _awaited(Memory.update)
    delete = _awaited(Memory.delete)
    delete_all = _awaited(Memory.delete_all)
    erase = _awaited(Memory.erase)
    erase_all = _awaited(Memory.erase_all)
    reset = _awaited(Memory.reset)
    search = _awaited(Memory.search)
    relations = _awaited(Memory.relations)
    evidence = _awaited(Memory.evidence)
    conflicts = _awaited(Memory.conflicts)
    get = _awaited(Memory.get)
    image = _awaited(Memory.image)
    get_all = _awaited(Memory.get_all)
    history = _awaited(Memory.history)
    source_turns = _awaited(Memory.source_turns)
    stale_turns = _awaited(Memory.stale_turns)
    export_jsonl = _awaited(Memory.export_jsonl)
    import_jsonl = _awaited(Memory.import_jsonl)
    reindex = _awaited(Memory.reindex)
    align = _awaited(Memory.align)
    doctor = _awaited(Memory.doctor)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.memory.closed

    async def close(self) -> None:
        """Close the Memory in this thread, which ends an answer that this thread has not read.

        In a worker thread `Memory.close` would wait for that answer. The event loop is blocked
        meanwhile, also while an answer in another thread ends.
        """
        self.memory.close()

    async def __aenter__(self) -> AsyncMemory:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

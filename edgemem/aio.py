"""AsyncMemory: every method of Memory, awaited in a worker thread. No second implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any

from edgemem.memory import Memory

__all__ = ["AsyncMemory"]


class AsyncMemory:
    """`await AsyncMemory(...).search(...)`: arguments, results and errors are Memory's own.

    memory: the Memory behind it, with its settings and parts.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.memory = Memory(*args, **kwargs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # Of the class, because reading the property `engine` of an instance would load a model.
        method = getattr(Memory, name, None)
        if name.startswith("_") or not callable(method):
            raise AttributeError(f"AsyncMemory has no method {name!r}; see `.memory` for the rest")

        @wraps(method)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(method, self.memory, *args, **kwargs)

        return awaited

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(n for n in dir(Memory) if not n.startswith("_"))})

    async def close(self) -> None:
        """Memory's, in this thread: an answer that it has begun and not read is ended, not awaited.

        The event loop stands still meanwhile, also while an answer in another thread ends.
        """
        self.memory.close()

    async def __aenter__(self) -> AsyncMemory:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

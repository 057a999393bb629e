"""AsyncMemory: every method of Memory, awaited in a worker thread. No second implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from edgemem.memory import Memory

__all__ = ["AsyncMemory"]


class AsyncMemory:
    """`await AsyncMemory(...).search(...)`: arguments, results and errors are Memory's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.memory = Memory(*args, **kwargs)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.memory, name)
        if not callable(method):
            raise AttributeError(f"AsyncMemory has methods only; read `.memory.{name}` instead")

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(method, *args, **kwargs)

        awaited.__name__, awaited.__doc__ = name, method.__doc__
        return awaited

    async def __aenter__(self) -> AsyncMemory:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.memory.close)

"""A Memory as the server uses it: the engine's queue, threads for all else, what is counted.

Knows which work needs the engine and which does not, and that facts are taken from stored turns
while nobody waits. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from edgemem.errors import EdgememError, InputError
from edgemem.ingest import EXTRACT
from edgemem.memory import Memory
from edgemem.results import utc_now
from edgemem.server.limits import Limits
from edgemem.server.metrics import Metrics
from edgemem.server.refusals import Refusal
from edgemem.server.work import Job, Worker

__all__ = ["STAGE", "Service"]

T = TypeVar("T")

STAGE = "server"  # of completions without memory: what /lora-adapters sets is bound to it
_STORE_THREADS = 4
_RETRY_S = 60.0  # until the next look at what is pending, if nothing is due


class Service:
    """What the routes ask. memory: stays open when this is closed."""

    def __init__(self, memory: Memory, limits: Limits) -> None:
        self.memory, self.limits = memory, limits
        self.metrics = Metrics()
        self.worker = Worker(limits.queue, self.metrics, self._work_off_one)
        self.scales: dict[str, float] = {}
        self._store = ThreadPoolExecutor(_STORE_THREADS, "edgemem-store")
        # Apart from the store's, so that a long list of texts does not hold searches up.
        self._embedding = ThreadPoolExecutor(1, "edgemem-embed")

    async def apart(self, ask: Callable[[], T], *, embedding: bool = False) -> T:
        """What a call that needs no engine gives, from a thread of its own kind.

        A TypeError becomes an InputError: here it is what the caller sent.
        """

        def asked() -> T:
            try:
                return ask()
            except TypeError as exc:
                raise InputError(str(exc)) from exc

        pool = self._embedding if embedding else self._store
        return await asyncio.get_running_loop().run_in_executor(pool, asked)

    def in_engine(self, ask: Callable[[], T]) -> Job[T]:
        """Queue a call that needs the engine; the job gives its one result."""

        def run(job: Job[T]) -> None:
            try:
                job.put(ask())
            except TypeError as exc:
                raise InputError(str(exc)) from exc

        return self.worker.submit(run)

    def require_model(self, name: str) -> None:
        """Raise Refusal if the language model has another name."""
        names = (self.memory.engine.name, self.memory.settings.model)
        if name not in names:
            raise _no_model(name, names[0])

    def require_embedder(self, name: str) -> None:
        """Raise Refusal if the embedder has another name."""
        model_id = self.memory.embedder.model_id
        short = self.embedder_name()
        if name not in (model_id, short, self.memory.settings.embedder):
            raise _no_model(name, short)

    def embedder_name(self) -> str:
        """The embedder's name, without the hash of its file."""
        return self.memory.embedder.model_id.partition("@")[0]

    def gauges(self) -> dict[str, float]:
        """What is so now, for Metrics.text."""
        counts = self.memory.store.counts()
        return {
            "edgemem_queue_length": self.worker.waiting,
            "edgemem_queue_limit": self.worker.limit,
            "edgemem_memories": counts["memories"],
            "edgemem_pending": counts["pending"],
        }

    def close(self) -> None:
        """Stop the work under way; what was begun in the store is ended first."""
        self.worker.close()
        self._store.shutdown()
        self._embedding.shutdown()

    def _work_off_one(self) -> float:
        """Take facts from the oldest turn that is due; the seconds until another look is due."""
        memory = self.memory
        try:
            if memory.store.pending(EXTRACT, due_before=utc_now(), limit=1):
                memory.process_pending(1)
                return 0.0
        except EdgememError:
            pass  # no model, or another process is at it: the piece stays
        return _RETRY_S


def _no_model(name: str, there: str) -> Refusal:
    return Refusal(
        404,
        f"there is no model {name!r:.80} here; for this call there is {there!r} (GET /v1/models)",
        param="model",
        code="model_not_found",
    )

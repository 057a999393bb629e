"""The one thread that asks the engine, and the bounded queue in front of it.

An answer belongs to the thread that began it and one runs at a time, so all the engine's work is
done here, in order. What a job gives goes to the event loop that asked and waits there: one answer
at most, so a reader that is slow or gone never holds the engine up. While nothing waits, the thread
does what `idle` is for.

Knows no HTTP, no shapes and no engine.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from edgemem.server.metrics import Metrics

__all__ = ["Job", "QueueFull", "Stopped", "Worker"]

T = TypeVar("T")

_IDLE_S = 0.5  # how long nothing must wait before `idle` is called
_LONGEST_WAIT_S = 60


class QueueFull(Exception):
    """No place in the queue. retry_after_s: when there may be one, a whole number of seconds."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("the queue is full")
        self.retry_after_s = retry_after_s


class Stopped(Exception):
    """The worker was closed before the job was done."""


class Job(Generic[T]):
    """A piece of work and what it has given so far; made by `Worker.submit`."""

    def __init__(self, run: Callable[[Job[T]], None], loop: asyncio.AbstractEventLoop) -> None:
        self._run, self._loop = run, loop
        self._given: asyncio.Queue[tuple[T | None, BaseException | None]] = asyncio.Queue()
        self._gone = threading.Event()
        self.submitted = time.monotonic()

    def cancelled(self) -> bool:
        """Whether nobody wants the rest any more; asked by the work itself."""
        return self._gone.is_set()

    def put(self, item: T) -> None:
        """Hand something to the one who asked; called by the work itself."""
        self._send(item, None)

    async def next(self) -> T | None:
        """What the work gave next, None at its end. Raises what the work raised."""
        item, error = await self._given.get()
        if error is not None:
            raise error
        return item

    def _send(self, item: T | None, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is there to hear it
            self._loop.call_soon_threadsafe(self._given.put_nowait, (item, error))

    def _execute(self) -> None:
        error: BaseException | None = None
        try:
            self._run(self)
        except BaseException as exc:
            error = exc
        self._send(None, error)


class Worker:
    """A thread that runs jobs one after another; it starts with the first call of `start`.

    limit: jobs that may wait. idle: called between jobs; gives the seconds until the next call.
    """

    def __init__(self, limit: int, metrics: Metrics, idle: Callable[[], float]) -> None:
        self.limit = limit
        self._metrics, self._idle = metrics, idle
        self._waiting: deque[Job[Any]] = deque()
        self._running: Job[Any] | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._mean_s = 2.0  # of the last jobs; a guess before the first

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin; a second time does nothing."""
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._serve, name="edgemem-server", daemon=True
                )
                self._thread.start()

    def submit(self, run: Callable[[Job[T]], None]) -> Job[T]:
        """Queue a piece of work, from a coroutine. Raises QueueFull, or Stopped after `close`."""
        job = Job(run, asyncio.get_running_loop())
        self.start()
        with self._changed:
            if self._closed:
                raise Stopped
            if len(self._waiting) >= self.limit + (self._running is None):
                wait_s = math.ceil(self._mean_s * (len(self._waiting) + 1))
                raise QueueFull(min(max(wait_s, 1), _LONGEST_WAIT_S))
            self._waiting.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: Job[Any]) -> None:
        """Give a job up: it leaves the queue, or ends at its next look. Ended ones are left be."""
        job._gone.set()
        with self._changed, suppress(ValueError):
            self._waiting.remove(job)

    def close(self) -> None:
        """End the job under way at its next look, refuse those that wait, and stop."""
        with self._changed:
            self._closed = True
            for job in self._waiting:
                job._send(None, Stopped())
            self._waiting.clear()
            if self._running is not None:
                self._running._gone.set()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        pause_s = _IDLE_S
        while True:
            with self._changed:
                self._running = None
                if not self._waiting and not self._closed:
                    self._changed.wait(pause_s)
                if self._closed:
                    return
                job = self._waiting.popleft() if self._waiting else None
                self._running = job
            if job is None:
                pause_s = self._idle()
                continue
            started = time.monotonic()
            self._metrics.took("edgemem_queue_seconds", started - job.submitted)
            job._execute()
            self._mean_s += 0.2 * (time.monotonic() - started - self._mean_s)
            pause_s = _IDLE_S

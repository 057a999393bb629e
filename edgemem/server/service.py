"""What the routes share: the engine's queue, threads for the store, metrics, errors, JSON checks.

Only the thread that began an answer may continue it, and the engine runs one answer at a time. So
one thread does all the engine's work, in order. The pieces of an answer are queued in the event
loop of the request, so that a slow client, or one that has gone, never blocks the engine. While the
queue is empty, the thread extracts facts from stored turns. Errors on paths below /v1/ have
OpenAI's shape, all others mem0's `{"detail": …}`.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Generic, NoReturn, TypeVar, cast, overload

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive

from edgemem.errors import (
    AdapterError,
    ContextOverflow,
    EdgememError,
    InputError,
    StoreFull,
    StoreLocked,
)
from edgemem.inputs import shown
from edgemem.memory import Memory
from edgemem.pipeline import image_memories
from edgemem.pipeline.ingest import EXTRACT
from edgemem.results import utc_now

__all__ = ["BUCKETS_S", "Job", "Limits", "Metrics", "Refusal", "Service", "field", "json_object"]
__all__ += ["json_value", "refusal_of", "service_of", "strings", "unless_gone"]
__all__ += ["whole_number", "wrong"]

T = TypeVar("T")

_IDLE_S = 0.5  # how long the queue must be empty before `idle` is called
_LONGEST_WAIT_S = 60
_STORE_THREADS = 4
_RETRY_S = 60.0  # between two checks for pending work, if none is due


# -- what a call is refused with -----------------------------------------------------------------

_TYPES = {429: "rate_limit_error", 500: "server_error", 503: "server_error", 507: "server_error"}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


class Refusal(Exception):
    """An error answer to a call. param: the wrong field. code: OpenAI's error code."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param = status, param
        self.code = code or _CODES.get(status)
        self.retry_after_s = retry_after_s

    def body(self, path: str) -> dict[str, Any]:
        """Returns the JSON of the answer, in the shape of the path's API."""
        message = str(self)
        if not path.startswith("/v1/"):
            return {"detail": message}
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, path: str) -> JSONResponse:
        """Returns the answer to a call on a path."""
        headers = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(self.retry_after_s)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.body(path), self.status, headers)


def refusal_of(error: Refusal | EdgememError) -> Refusal:
    """Returns the error answer for an error."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ContextOverflow):
        return Refusal(str(error), code="context_length_exceeded")
    if isinstance(error, InputError | AdapterError):
        return Refusal(str(error))
    if isinstance(error, StoreLocked):
        return Refusal(str(error), 503, retry_after_s=5)
    return Refusal(str(error), 507 if isinstance(error, StoreFull) else 500)


# -- what a call brings --------------------------------------------------------------------------

_NAMES = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
_NAMES |= {list: "a list", dict: "an object"}


def wrong(name: str, value: object, rule: str) -> Refusal:
    """Returns the refusal of a field's value, with the rule that it breaks."""
    return Refusal(f"{name} is {shown(value)}; {rule}", param=name)


async def json_value(request: Request) -> Any:
    """Returns the body's JSON value. Raises Refusal."""
    try:
        return json.loads(await request.body(), parse_constant=_no_number)
    except (ValueError, RecursionError) as exc:
        raise Refusal(f"the body is not JSON ({exc}); send an object in UTF-8") from exc


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


async def json_object(request: Request) -> dict[str, Any]:
    """Returns the body's JSON object. Raises Refusal on any other value."""
    value = await json_value(request)
    if not isinstance(value, dict):
        raise Refusal(f"the body is {type(value).__name__}; it must be a JSON object")
    return value


@overload
def field(body: Mapping[str, Any], name: str, kind: type[T]) -> T | None: ...
@overload
def field(body: Mapping[str, Any], name: str, kind: type[T], default: T) -> T: ...
def field(body: Mapping[str, Any], name: str, kind: type[T], default: T | None = None) -> T | None:
    """Returns a field of a JSON object. null counts as absent. Raises Refusal on another type."""
    value = body.get(name)
    if value is None:
        return default
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return value  # type: ignore[return-value]  # JSON's 1 is a float too
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise wrong(name, value, f"it must be {_NAMES[kind]}")
    return value


def strings(value: object, name: str) -> list[str]:
    """Returns a text or a list of texts as a list. Raises Refusal on anything else."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise wrong(name, value, "it must be a text or a list of texts")
    return texts


def whole_number(text: str, name: str) -> int:
    """Returns a whole number from a URL. Raises Refusal on anything else."""
    try:
        return int(text)
    except ValueError as exc:
        raise wrong(name, text, "it must be a whole number") from exc


# -- how much is taken on ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much work the server accepts at a time.

    queue: requests that wait for the engine, beside the running one. in_flight: requests with the
    token. Above either limit a client gets 429. connections: open ones; above the limit a client
    gets 503. body_bytes: the largest body. receive_s: for a request's head to arrive, and again for
    its body. send_s: how long a client may read nothing of its answer. drain_s: for running
    requests to finish when the server is stopped. Raises InputError if a limit is not above 0.
    """

    queue: int = 16
    in_flight: int = 256
    connections: int = 512
    body_bytes: int = 16_777_216  # a large photo, in base64
    receive_s: float = 30.0
    send_s: float = 30.0
    drain_s: int = 10

    def __post_init__(self) -> None:
        for field in fields(self):
            if not (value := getattr(self, field.name)) > 0:
                raise InputError(f"the server's limit {field.name} is {value}; it must be above 0")


# -- what is counted -----------------------------------------------------------------------------

BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)

_HELP = {
    "edgemem_requests_total": ("counter", "Requests answered, by route and status."),
    "edgemem_requests_in_flight": ("gauge", "Requests with the token under way."),
    "edgemem_request_seconds": ("histogram", "Time from a request to the end of its answer."),
    "edgemem_queue_seconds": ("histogram", "Time that a request waited for the engine."),
    "edgemem_queue_length": ("gauge", "Requests that wait for the engine."),
    "edgemem_queue_limit": ("gauge", "Requests that may wait for the engine."),
    "edgemem_prompt_tokens_total": ("counter", "Tokens of prompts."),
    "edgemem_completion_tokens_total": ("counter", "Tokens of answers."),
    "edgemem_memories": ("gauge", "Memories that searches find."),
    "edgemem_pending": ("gauge", "Pieces of work left for later."),
}


class Metrics:
    """Counters and histograms since the start. Thread-safe. Labels never contain a user's text.

    Source: Prometheus' text exposition format, version 0.0.4.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Each metric's samples, by their name with labels, in the order of first use.
        self._samples: dict[str, dict[str, float]] = {}

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Adds to a counter."""
        with self._lock:
            self._add(name, "", by, labels)

    def took(self, name: str, seconds: float, **labels: str) -> None:
        """Adds one duration to a histogram."""
        with self._lock:
            for bound in BUCKETS_S:
                self._add(name, "_bucket", seconds <= bound, {**labels, "le": f"{bound}"})
            self._add(name, "_bucket", 1, {**labels, "le": "+Inf"})
            self._add(name, "_sum", seconds, labels)
            self._add(name, "_count", 1, labels)

    def text(self, gauges: Mapping[str, float]) -> str:
        """Returns all metrics as text. gauges: the current value of each gauge."""
        with self._lock:
            found = {name: dict(samples) for name, samples in self._samples.items()}
        found |= {name: {name: value} for name, value in gauges.items()}
        out: list[str] = []
        for name, (kind, about) in _HELP.items():
            if name in found:
                out += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
                out += [f"{sample} {value:.15g}" for sample, value in found[name].items()]
        return "\n".join(out) + "\n"

    def _add(self, name: str, part: str, by: float, labels: Mapping[str, str]) -> None:
        listed = ",".join(f'{key}="{value}"' for key, value in labels.items())
        sample = f"{name}{part}{{{listed}}}" if listed else f"{name}{part}"
        samples = self._samples.setdefault(name, {})
        samples[sample] = samples.get(sample, 0) + by


# -- the engine's queue --------------------------------------------------------------------------


class Job(Generic[T]):
    """A piece of work with its queue of results. Made by `Worker.submit`."""

    def __init__(self, run: Callable[[Job[T]], None], loop: asyncio.AbstractEventLoop) -> None:
        self._run, self._loop = run, loop
        self._given: asyncio.Queue[tuple[T | None, BaseException | None]] = asyncio.Queue()
        self._gone = threading.Event()
        self.submitted = time.monotonic()

    def cancelled(self) -> bool:
        """Whether the job was cancelled. Called by the work itself."""
        return self._gone.is_set()

    def put(self, item: T) -> None:
        """Queues a result for the caller. Called by the work itself."""
        self._send(item, None)

    async def next(self) -> T:
        """Returns the work's next result, or raises its error. Never returns after the last one."""
        item, error = await self._given.get()
        if error is not None:
            raise error
        return cast(T, item)

    def _send(self, item: T | None, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the event loop is closed, so nobody waits
            self._loop.call_soon_threadsafe(self._given.put_nowait, (item, error))


class Worker:
    """A thread that runs jobs one after another. The first call of `start` starts it.

    limit: jobs that may wait. idle: called while no job waits; returns the seconds until its next
    call.
    """

    def __init__(self, limit: int, metrics: Metrics, idle: Callable[[], float]) -> None:
        self.limit = limit
        self._metrics, self._idle = metrics, idle
        self._waiting: deque[Job[Any]] = deque()
        self._running: Job[Any] | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._mean_s = 2.0  # running mean of a job's seconds; a guess before the first job

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        """Starts the thread, unless it runs or the worker is closed."""
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._serve, name="edgemem-server", daemon=True
                )
                self._thread.start()

    def submit(self, run: Callable[[Job[T]], None]) -> Job[T]:
        """Queues a piece of work. Must be called from a coroutine.

        Raises Refusal if the queue is full, or after `close`.
        """
        job = Job(run, asyncio.get_running_loop())
        self.start()
        with self._changed:
            if self._closed:
                raise _stopping()
            if len(self._waiting) >= self.limit + (self._running is None):
                wait_s = math.ceil(self._mean_s * (len(self._waiting) + 1))
                wait_s = min(max(wait_s, 1), _LONGEST_WAIT_S)
                raise Refusal(
                    f"the queue is full: too many requests wait for the model; try again in "
                    f"{wait_s} s, or start the server with a longer --queue",
                    429,
                    retry_after_s=wait_s,
                )
            self._waiting.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: Job[Any]) -> None:
        """Removes a job from the queue, or ends a running one when it next asks `cancelled`."""
        job._gone.set()
        with self._changed, suppress(ValueError):
            self._waiting.remove(job)

    def close(self) -> None:
        """Cancels the running job, refuses the waiting ones, and waits for the thread to end."""
        with self._changed:
            self._closed = True
            for job in self._waiting:
                job._send(None, _stopping())
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
            try:
                job._run(job)
            except BaseException as exc:
                job._send(None, exc)
            self._mean_s += 0.2 * (time.monotonic() - started - self._mean_s)
            pause_s = _IDLE_S


def _stopping() -> Refusal:
    return Refusal("the server is stopping; nothing was done", 503, retry_after_s=5)


# -- what the routes ask -------------------------------------------------------------------------


class Service:
    """A Memory that routes use through the engine's queue, or from a store thread.

    memory: the caller closes it. allow_reset, on_erase: see `asgi.app`.
    """

    def __init__(
        self,
        memory: Memory,
        limits: Limits,
        *,
        allow_reset: bool,
        on_erase: Callable[[Iterable[str] | None], object],
    ) -> None:
        self.memory, self.limits = memory, limits
        self.allow_reset, self.on_erase = allow_reset, on_erase
        self.in_flight = 0
        self.metrics = Metrics()
        self.worker = Worker(limits.queue, self.metrics, self._work_off_one)
        self.scales: dict[str, float] = {}
        self._store = ThreadPoolExecutor(_STORE_THREADS, "edgemem-store")
        # Its own pool, so that a long list of texts does not delay searches.
        self._embedding = ThreadPoolExecutor(1, "edgemem-embed")

    async def in_thread(self, ask: Callable[[], T], *, embedding: bool = False) -> T:
        """Returns `ask()`, run in a store thread, or with `embedding` in the embedding thread."""
        pool = self._embedding if embedding else self._store
        return await asyncio.get_running_loop().run_in_executor(pool, _called, ask)

    async def in_engine(self, ask: Callable[[], T], receive: Receive) -> T:
        """Returns `ask()`, run in the engine's queue; cancelled if the client hangs up."""
        job: Job[T] = self.worker.submit(lambda job: job.put(_called(ask)))
        try:
            return await unless_gone(job.next(), receive)
        finally:
            self.worker.cancel(job)

    def metrics_text(self) -> str:
        """Returns all metrics in Prometheus' text format."""
        counts = self.memory.store.counts()
        gauges = {
            "edgemem_requests_in_flight": self.in_flight,
            "edgemem_queue_length": self.worker.waiting,
            "edgemem_queue_limit": self.worker.limit,
            "edgemem_memories": counts["memories"],
            "edgemem_pending": counts["pending"],
        }
        return self.metrics.text(gauges)

    def close(self) -> None:
        """Cancels the engine's work, and waits until running calls to the store have finished."""
        self.worker.close()
        self._store.shutdown()
        self._embedding.shutdown()

    def _work_off_one(self) -> float:
        """Does one due piece of pending work. Returns the seconds until the next check is due."""
        memory = self.memory
        try:
            waiting = memory.store.pending(EXTRACT, due_before=utc_now(), limit=1)
            if waiting or image_memories.caption_waits(memory):
                memory.process_pending(1)
                return 0.0
        except EdgememError:
            pass  # no model, or another process has the lock: the piece stays pending
        except Exception:  # this thread serves all requests
            traceback.print_exc()
        return _RETRY_S


def _called(ask: Callable[[], T]) -> T:
    """Returns `ask()`. A TypeError becomes an InputError, since the client sent the argument."""
    try:
        return ask()
    except TypeError as exc:
        raise InputError(str(exc)) from exc


def service_of(request: Request) -> Service:
    """Returns the service of the application that received the request."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


async def unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Returns a coroutine's result. If the client hangs up first, cancels it and raises Refusal."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refusal("the client has gone", 499)
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""What the routes share: a JSON body, and waiting for work while the client may hang up.

Knows requests; no route, no memory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from edgemem.server.refusals import Refusal
from edgemem.server.service import Service
from edgemem.server.work import Job

__all__ = ["json_object", "json_value", "result", "service_of", "unless_gone"]

T = TypeVar("T")


def service_of(request: Request) -> Service:
    """The service that the application was made with."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


async def json_value(request: Request) -> Any:
    """The body as JSON. Raises Refusal."""
    try:
        return json.loads(await request.body(), parse_constant=_refused)
    except (ValueError, RecursionError) as exc:
        raise Refusal(400, f"the body is not JSON ({exc}); send an object in UTF-8") from exc


async def json_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Raises Refusal."""
    value = await json_value(request)
    if not isinstance(value, dict):
        raise Refusal(400, f"the body is {type(value).__name__}; it must be a JSON object")
    return value


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


async def unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """What a coroutine gives; if the client hangs up first, it is cancelled and Refusal raised."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refusal(499, "the client has gone")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def result(request: Request, job: Job[T]) -> T:
    """The one result of a job of the engine, given up when the client hangs up."""
    try:
        given = await unless_gone(job.next(), request.receive)
    finally:
        service_of(request).worker.cancel(job)
    assert given is not None
    return given

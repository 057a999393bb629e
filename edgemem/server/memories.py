"""Memory routes in the shapes of mem0's REST server.

Departures: a list has at most `top_k` memories (100 unless given); `/search` takes `top_k` or
`limit`, `threshold` and `explain`; an unknown id is 404; `/reset` must be allowed at the start.
Adding with inference, mem0's default, waits for the engine; nothing else here does.

Knows requests and Memory's methods. Source: mem0ai/mem0, server/main.py.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgemem.results import MemoryItem
from edgemem.server.http import json_object, result, service_of
from edgemem.server.refusals import Refusal, field, whole

__all__ = [
    "add",
    "delete",
    "delete_all",
    "get",
    "get_all",
    "history",
    "reset",
    "search",
    "update",
]

_IDS = ("user_id", "agent_id", "run_id")
LISTED = 100
FOUND = 10


async def add(request: Request) -> Response:
    """POST /memories: messages, an id of whose they are, metadata, infer."""
    service, body = service_of(request), await json_object(request)
    scope = _scope(body)
    messages = body.get("messages")
    if messages is None:
        raise Refusal(400, "messages is missing; give a text, a message or a list of messages")
    infer = field(body, "infer", bool, True)
    metadata = field(body, "metadata", dict)
    timestamp, until = body.get("timestamp"), body.get("expires_at")

    def work() -> dict[str, Any]:
        added = service.memory.add(
            messages,
            **scope,
            metadata=metadata,
            timestamp=timestamp,
            expires_at=until,
            infer=infer,
        )
        return added.to_dict()

    if infer:
        return JSONResponse(await result(request, service.in_engine(work)))
    return JSONResponse(await service.apart(work))


async def get_all(request: Request) -> Response:
    """GET /memories?user_id=…: the memories of a scope, oldest first."""
    service, given = service_of(request), request.query_params
    scope = _scope(dict(given))
    top_k = whole(given.get("top_k") or given.get("limit") or str(LISTED), "top_k")
    found = await service.apart(lambda: service.memory.get_all(**scope, top_k=top_k).to_dict())
    return JSONResponse(found)


async def search(request: Request) -> Response:
    """POST /search: query, whose memories, filters, top_k, threshold, explain."""
    service, body = service_of(request), await json_object(request)
    query = field(body, "query", str, "")
    filters = field(body, "filters", dict)
    scope = _scope(body, needed=not filters)
    top_k = field(body, "top_k", int)
    top_k = field(body, "limit", int, FOUND) if top_k is None else top_k
    threshold = field(body, "threshold", float)
    explain = field(body, "explain", bool, False)

    def work() -> dict[str, Any]:
        hits = service.memory.search(
            query, **scope, filters=filters, top_k=top_k, threshold=threshold, explain=explain
        )
        return hits.to_dict()

    return JSONResponse(await service.apart(work))


async def get(request: Request) -> Response:
    """GET /memories/{id}."""
    return JSONResponse((await _existing(request)).to_dict())


async def update(request: Request) -> Response:
    """PUT /memories/{id}: a new text, and metadata in place of the old if given."""
    service, body = service_of(request), await json_object(request)
    text = field(body, "text", str)
    if text is None:
        raise Refusal(400, "text is missing; give the memory's new text", param="text")
    metadata = field(body, "metadata", dict)
    id = (await _existing(request)).id
    await service.apart(lambda: service.memory.update(id, text, metadata=metadata))
    return JSONResponse({"message": "Memory updated successfully!"})


async def delete(request: Request) -> Response:
    """DELETE /memories/{id}: taken out of every answer, its history kept."""
    service = service_of(request)
    id = (await _existing(request)).id
    await service.apart(lambda: service.memory.delete(id))
    return JSONResponse({"message": "Memory deleted successfully"})


async def delete_all(request: Request) -> Response:
    """DELETE /memories?user_id=…: every memory of a scope."""
    service = service_of(request)
    scope = _scope(dict(request.query_params))
    await service.apart(lambda: service.memory.delete_all(**scope))
    return JSONResponse({"message": "All relevant memories deleted"})


async def history(request: Request) -> Response:
    """GET /memories/{id}/history: what became of a memory, deleted ones too."""
    service, id = service_of(request), request.path_params["id"]
    rows = await service.apart(lambda: service.memory.history(id))
    if not rows:
        raise _unknown(id)
    return JSONResponse(rows)


async def reset(request: Request) -> Response:
    """POST /reset: everything of everybody, for good."""
    service = service_of(request)
    if not request.app.state.allow_reset:
        raise Refusal(
            403,
            "reset erases the memories of all users and is off; start the server with "
            "--allow-reset, or delete one user's with DELETE /memories?user_id=…",
        )
    await service.apart(service.memory.reset)
    return JSONResponse({"message": "All memories reset"})


async def _existing(request: Request) -> MemoryItem:
    service, id = service_of(request), request.path_params["id"]
    found = await service.apart(lambda: service.memory.get(id))
    if found is None:
        raise _unknown(id)
    return found


def _unknown(id: str) -> Refusal:
    return Refusal(404, f"there is no memory with the id {id!r:.80}")


def _scope(given: dict[str, Any], *, needed: bool = True) -> dict[str, Any]:
    scope = {name: field(given, name, str) for name in _IDS}
    if needed and not any(scope.values()):
        raise Refusal(400, f"whose memories? Give at least one of {', '.join(_IDS)}")
    return scope

"""What the page asks for beyond the memory routes: whose there are, a memory with all that belongs
to it, what waits, what was sent, and erasing.

Knows requests, Memory and the store's listings; nothing here needs the engine. With the token, as
everything but the page's own files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgemem.memory import Memory
from edgemem.results import Scope
from edgemem.server.http import json_object, service_of
from edgemem.server.refusals import Refusal, strings, whole
from edgemem.store import StoredTurn
from edgemem.store.receipts import receipts
from edgemem.store.store import Browsed, browse, owners, replacements

__all__ = ["ROUTES"]

LISTED = 50
MOST = 200


async def _overview(request: Request) -> Response:
    """GET /inspect/overview: how many there are, whose, and which cloud is set up."""

    def ask(memory: Memory) -> dict[str, Any]:
        cloud = memory.settings.cloud
        return {
            "counts": memory.store.counts(),
            "owners": {
                name: [{"id": id, "memories": count} for id, count in rows]
                for name, rows in owners(memory.store).items()
            },
            "cloud": cloud.base_url if cloud.enabled else None,
        }

    return await _answer(request, ask)


async def _memories(request: Request) -> Response:
    """GET /inspect/memories?user_id=…&kind=…&state=…&limit=…&offset=…: the latest first."""
    given = request.query_params
    limit = whole(given.get("limit") or str(LISTED), "limit")
    offset = whole(given.get("offset") or "0", "offset")
    if not 1 <= limit <= MOST:
        raise Refusal(400, f"limit is {limit}; give 1 to {MOST}", param="limit")
    scope = Scope(*(given.get(name) or None for name in ("user_id", "agent_id", "run_id")))
    kind, state = given.get("kind") or None, given.get("state") or "live"

    def ask(memory: Memory) -> dict[str, Any]:
        found = browse(memory.store, scope, kind=kind, state=state, limit=limit + 1, offset=offset)
        return {"results": _with_ties(memory, found[:limit]), "more": len(found) > limit}

    return await _answer(request, ask)


async def _memory(request: Request) -> Response:
    """GET /inspect/memories/{id}: a memory, deleted ones too, its turns and its history."""
    id = request.path_params["id"]

    def ask(memory: Memory) -> dict[str, Any]:
        found = browse(memory.store, id=id, state="all", limit=1)
        if not found:
            raise _unknown(id)
        return {
            "memory": _with_ties(memory, found)[0],
            "turns": _turns(memory, found[0].item.sources),
            "history": memory.history(id),
        }

    return await _answer(request, ask)


async def _pending(request: Request) -> Response:
    """GET /inspect/pending: the turns from which no facts were taken yet, and why."""

    def ask(memory: Memory) -> dict[str, Any]:
        rows = [
            {
                "id": piece.id,
                "attempts": piece.attempts,
                "error": piece.last_error,
                "created_at": piece.created_at,
                "next_try_at": piece.next_try_at,
                "turns": _turns(memory, piece.payload["turns"]),
            }
            for piece in memory.pending()[:MOST]
        ]
        return {"results": rows, "total": len(memory.pending())}

    return await _answer(request, ask)


async def _receipts(request: Request) -> Response:
    """GET /inspect/receipts: the last calls of the cloud, the latest first."""

    def ask(memory: Memory) -> dict[str, Any]:
        return {"results": [row.to_dict() for row in reversed(receipts(memory.store, MOST))]}

    return await _answer(request, ask)


async def _preview(request: Request) -> Response:
    """POST /inspect/erase/preview: {"ids": […]}; all that would go with them. Changes nothing."""
    ids = await _ids(request)

    def ask(memory: Memory) -> dict[str, Any]:
        turns, memories = _extent(memory, ids)
        items = memory.store.get(memories, include_deleted=True).values()
        return {"memories": [item.to_dict() for item in items], "turns": _turns(memory, turns)}

    return await _answer(request, ask)


async def _erase(request: Request) -> Response:
    """POST /inspect/erase: {"ids": […]}; they and all that goes with them, for good."""
    ids = await _ids(request)
    erased = request.app.state.on_erase

    def ask(memory: Memory) -> dict[str, Any]:
        turns, _ = _extent(memory, ids)
        erased([turn.content for turn in memory.store.turns(turns).values()])
        return {"results": [{"id": id, "event": "ERASE"} for id in memory.erase(ids)]}

    return await _answer(request, ask)


ROUTES = (
    Route("/inspect/overview", _overview),
    Route("/inspect/memories", _memories),
    Route("/inspect/memories/{id}", _memory),
    Route("/inspect/pending", _pending),
    Route("/inspect/receipts", _receipts),
    Route("/inspect/erase/preview", _preview, methods=["POST"]),
    Route("/inspect/erase", _erase, methods=["POST"]),
)


async def _answer(request: Request, ask: Callable[[Memory], dict[str, Any]]) -> Response:
    service = service_of(request)
    return JSONResponse(await service.apart(lambda: ask(service.memory)))


async def _ids(request: Request) -> list[str]:
    ids = strings((await json_object(request)).get("ids"), "ids")
    if not ids:
        raise Refusal(400, "ids is empty; give the ids of the memories to erase", param="ids")
    return ids


def _extent(memory: Memory, ids: Sequence[str]) -> tuple[list[str], list[str]]:
    """The ids of the turns and memories that an erase takes. Raises Refusal on an unknown id."""
    turns, memories = memory.store.erase_extent(ids)
    for id in ids:
        if id not in memories:
            raise _unknown(id)
    return turns, memories


def _with_ties(memory: Memory, found: Sequence[Browsed]) -> list[dict[str, Any]]:
    """Memories with when they were deleted, what they replaced and what replaced them."""
    pairs = replacements(memory.store, [each.item.id for each in found])
    tied = memory.store.get([id for pair in pairs for id in pair], include_deleted=True)
    shown = {id: {"id": id, "memory": item.memory} for id, item in tied.items()}
    return [
        {
            **each.item.to_dict(),
            "deleted_at": each.deleted_at,
            "replaced_by": [shown[n] for o, n in pairs if o == each.item.id and n in shown],
            "replaces": [shown[o] for o, n in pairs if n == each.item.id and o in shown],
        }
        for each in found
    ]


def _turns(memory: Memory, ids: Sequence[str]) -> list[dict[str, Any]]:
    return [_turn(turn) for turn in memory.store.turns(ids).values()]


def _turn(turn: StoredTurn) -> dict[str, Any]:
    return {
        "id": turn.id,
        "role": turn.role,
        "name": turn.name,
        "content": turn.content,
        "timestamp": turn.timestamp,
    }


def _unknown(id: str) -> Refusal:
    return Refusal(404, f"there is no memory with the id {id!r:.80}")

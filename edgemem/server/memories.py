"""The memory over HTTP: mem0's routes, and the inspector, a page to read and erase memories.

Departures from mem0: a list has at most `top_k` memories (100 unless given); `/search` takes
`top_k` or `limit`, `threshold`, `explain` and `at`; relations have their own route; an unknown id
is 404, and so is one that is not of the user_id, agent_id or run_id given with it; a field that a
route does not know is refused, as a misspelt user_id would ask for everybody; `/reset` must be
allowed when the server starts. Only adding with inference, mem0's default, waits for the engine.
Source: mem0ai/mem0, server/main.py.

The inspector's own files hold nothing private and need no token. The page sends the token with
every call in a header. It sets no cookie that a page of another origin could use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgemem.inputs import scope_of, shown
from edgemem.memory import Memory
from edgemem.results import MemoryItem, Picture, Scope
from edgemem.server.service import (
    Refusal,
    Service,
    field,
    json_object,
    service_of,
    strings,
    whole_number,
    wrong,
)
from edgemem.store import images
from edgemem.store.receipts import receipts
from edgemem.store.relations import entities
from edgemem.store.store import Browsed, browse, owners, replacements

__all__ = ["PATHS", "ROUTES"]

_IDS = ("user_id", "agent_id", "run_id")
_LISTED = 100
_FOUND = 10
_SHOWN = 50  # rows on a page of the inspector, by default
_MOST = 200  # rows on a page of the inspector, at most


Ask = Callable[[Service, dict[str, Any]], Any]

ROUTES: list[Route] = []


def _store_route(method: str, path: str, *fields: str) -> Callable[[Ask], Ask]:
    """Registers a function as a route. Its result is the JSON answer; it runs in a store thread.

    The function gets the `fields` that were given, and those of the path.
    """

    def register(ask: Ask) -> Ask:
        async def endpoint(request: Request) -> Response:
            given = await _given(request, *fields)
            service = service_of(request)
            return JSONResponse(await service.in_thread(lambda: ask(service, given)))

        ROUTES.append(Route(path, endpoint, methods=[method]))
        return ask

    return register


async def _given(request: Request, *fields: str) -> dict[str, Any]:
    """Returns the fields of the query, of the JSON body (null counts as absent) and of the path.

    POST and PUT take them from the body, GET and DELETE from the query; the other place may hold
    ids alone. Raises Refusal on a field that is not in `fields`, in the wrong place, or that comes
    twice with two values.
    """
    right = "JSON body" if request.method in ("POST", "PUT") else "query"
    pairs: list[tuple[str, str, Any]] = [
        ("query", name, value) for name, value in request.query_params.multi_items()
    ]
    if (right == "JSON body" and fields) or await request.body():
        body = await json_object(request)
        pairs += [("JSON body", name, value) for name, value in body.items() if value is not None]
    given: dict[str, Any] = {}
    for place, name, value in pairs:
        if name not in fields:
            allowed = f"give {', '.join(fields)} alone" if fields else "this call takes no fields"
            raise wrong(name, value, allowed)
        if place != right and name not in _IDS:
            raise wrong(name, value, f"give it in the {right}")
        if given.setdefault(name, value) != value:
            raise wrong(name, value, "it was given before; give it once")
    _scope(given, needed=False)  # each id must be text
    return {**given, **request.path_params}


# -- mem0's routes ---------------------------------------------------------------------------------

_MEM0S = ("memory_type", "prompt")  # of mem0's server; they have no effect here
_SEARCHED = ("query", "image", *_IDS, "filters", "top_k", "limit", "threshold", "explain", "at")
_ADDED = ("messages", *_IDS, "metadata", "timestamp", "expires_at", "infer", *_MEM0S)


async def _add(request: Request) -> Response:
    """POST /memories: messages, user_id, agent_id or run_id, metadata, infer."""
    service, body = service_of(request), await _given(request, *_ADDED)
    scope = _scope(body)
    messages = body.get("messages")
    if messages is None:
        raise Refusal("messages is missing; give a text, a message or a list of messages")
    infer = field(body, "infer", bool, True)
    metadata = field(body, "metadata", dict)

    def work() -> dict[str, Any]:
        added = service.memory.add(
            messages,
            **scope,
            metadata=metadata,
            timestamp=body.get("timestamp"),
            expires_at=body.get("expires_at"),
            infer=infer,
        )
        return added.to_dict()

    if infer:
        return JSONResponse(await service.in_engine(work, request.receive))
    return JSONResponse(await service.in_thread(work))


ROUTES.append(Route("/memories", _add, methods=["POST"]))


@_store_route("GET", "/memories", *_IDS, "top_k", "limit", "at")
def _get_all(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    """GET /memories?user_id=…: the memories of a scope, by created_at, oldest first."""
    scope = _scope(given)
    top_k = whole_number(given.get("top_k") or given.get("limit") or str(_LISTED), "top_k")
    return service.memory.get_all(**scope, top_k=top_k, at=given.get("at") or None).to_dict()


@_store_route("POST", "/search", *_SEARCHED)
def _search(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    """POST /search: query, or image (a data URI); ids, filters, top_k, threshold, explain, at."""
    image = field(given, "image", str)
    if image is not None and image[:5].lower() != "data:":  # a path would read a local file
        raise wrong("image", image, "give a data URI such as data:image/png;base64,…")
    filters = field(given, "filters", dict)
    top_k = field(given, "top_k", int)
    hits = service.memory.search(
        field(given, "query", str) if image is not None else field(given, "query", str, ""),
        image=image,
        **_scope(given, needed=not filters),
        filters=filters,
        top_k=field(given, "limit", int, _FOUND) if top_k is None else top_k,
        threshold=field(given, "threshold", float),
        explain=field(given, "explain", bool, False),
        at=field(given, "at", str),
    )
    return hits.to_dict()


@_store_route("GET", "/relations", *_IDS, "entity", "at", "include_invalid")
def _relations(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    """GET /relations?user_id=…&entity=…&at=…: relations, in mem0's shape."""
    over = given.get("include_invalid") in ("true", "1")
    return _relations_json(service.memory, given, _scope(given), include_invalid=over)


def _relations_json(
    memory: Memory, given: dict[str, Any], scope: dict[str, Any], *, include_invalid: bool
) -> dict[str, Any]:
    at, entity = given.get("at") or None, given.get("entity") or None
    return memory.relations(entity, **scope, at=at, include_invalid=include_invalid).to_dict()


@_store_route("GET", "/memories/{id}", *_IDS)
def _get(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    """GET /memories/{id}."""
    return _existing(service, given).to_dict()


async def _image(request: Request) -> Response:
    """GET /images/{id}, /images/{id}/thumbnail: the bytes of a stored image."""
    service, given = service_of(request), await _given(request, *_IDS)
    id, small = given["id"], request.url.path.endswith("/thumbnail")

    def work() -> Picture | None:
        if (whose := _whose(given)) != Scope():
            shows = service.memory.store.get(images.shown_by(service.memory.store, id))
            if not any(map(whose.has, shows.values())):
                return None
        return service.memory.image(id, thumbnail_only=small)

    found = await service.in_thread(work)
    if found is None:
        raise Refusal(f"there is no image with the id {shown(id)}", 404)
    if small:
        return Response(found.thumbnail, media_type="image/webp")
    return Response(found.data, media_type=found.mime)


ROUTES += [Route(f"/images/{{id}}{end}", _image, methods=["GET"]) for end in ("", "/thumbnail")]


@_store_route("PUT", "/memories/{id}", *_IDS, "text", "metadata")
def _update(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    """PUT /memories/{id}: replaces the text, and the metadata if given."""
    text = field(given, "text", str)
    if text is None:
        raise Refusal("text is missing; give the memory's new text", param="text")
    metadata = field(given, "metadata", dict)
    service.memory.update(_existing(service, given).id, text, metadata=metadata)
    return {"message": "Memory updated successfully!"}


@_store_route("DELETE", "/memories/{id}", *_IDS)
def _delete(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    """DELETE /memories/{id}: removes a memory from all answers; its history stays."""
    service.memory.delete(_existing(service, given).id)
    return {"message": "Memory deleted successfully"}


@_store_route("DELETE", "/memories", *_IDS)
def _delete_all(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    """DELETE /memories?user_id=…: every memory of a scope."""
    service.memory.delete_all(**_scope(given))
    return {"message": "All relevant memories deleted"}


@_store_route("GET", "/memories/{id}/history", *_IDS)
def _history(service: Service, given: dict[str, Any]) -> list[dict[str, Any]]:
    """GET /memories/{id}/history: the changes of a memory, also of a deleted one."""
    return service.memory.history(_existing(service, given, deleted=True).id)


async def _reset(request: Request) -> Response:
    """POST /reset: erases everything of every user."""
    service = service_of(request)
    await _given(request)  # a user_id here would not keep it to that user
    if not service.allow_reset:
        raise Refusal(
            "reset erases the memories of all users and is off; start the server with "
            "--allow-reset, or delete one user's with DELETE /memories?user_id=…",
            403,
        )

    def reset() -> None:
        service.on_erase(None)
        service.memory.reset()

    await service.in_thread(reset)
    return JSONResponse({"message": "All memories reset"})


ROUTES.append(Route("/reset", _reset, methods=["POST"]))


def _existing(service: Service, given: Mapping[str, Any], *, deleted: bool = False) -> MemoryItem:
    """Returns the memory of a path's id, if it is of the ids given; with `deleted` a deleted one.

    Raises Refusal if there is none.
    """
    id = given["id"]
    found = service.memory.store.get([id], include_deleted=deleted).get(id)
    if found is None or not _whose(given).has(found):
        raise _unknown(id)
    return found


def _unknown(id: str) -> Refusal:
    return Refusal(f"there is no memory with the id {shown(id)}", 404)


def _scope(given: Mapping[str, Any], *, needed: bool = True) -> dict[str, Any]:
    scope = {name: field(given, name, str) for name in _IDS}
    if needed and not any(scope.values()):
        raise Refusal(f"whose memories? Give at least one of {', '.join(_IDS)}")
    return scope


def _whose(given: Mapping[str, Any]) -> Scope:
    """Returns the scope to which a call with an id keeps. Raises InputError on a bad id."""
    return scope_of(**_scope(given, needed=False))


def _shown_scope(given: Mapping[str, Any]) -> Scope:
    """Returns the scope that the inspector shows. Without an id it includes everybody."""
    return Scope(*(given.get(name) or None for name in _IDS))


# -- what the inspector asks for -------------------------------------------------------------------


@_store_route("GET", "/inspect/overview")
def _overview(service: Service, _given: dict[str, Any]) -> dict[str, Any]:
    """GET /inspect/overview: counts, the owners of memories, and the configured cloud."""
    memory = service.memory
    cloud = memory.settings.cloud
    return {
        "counts": memory.store.counts(),
        "owners": {
            name: [{"id": id, "memories": count} for id, count in rows]
            for name, rows in owners(memory.store).items()
        },
        "cloud": cloud.base_url if cloud.enabled else None,
    }


@_store_route("GET", "/inspect/memories", *_IDS, "kind", "state", "limit", "after")
def _browsed(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    """GET /inspect/memories?user_id=…&kind=…&state=…&limit=…&after=…: the latest first.

    after: the `next` of the page before, which is null on the last one.
    """
    limit = whole_number(given.get("limit") or str(_SHOWN), "limit")
    time, _, row = (given.get("after") or "").rpartition(" ")
    if not 1 <= limit <= _MOST:
        raise wrong("limit", limit, f"give 1 to {_MOST}")
    found = browse(
        service.memory.store,
        _shown_scope(given),
        kind=given.get("kind") or None,
        state=given.get("state") or "live",
        limit=limit + 1,
        after=(time, whole_number(row, "after")) if time else None,
    )
    ends = found[limit - 1].place if len(found) > limit else None
    return {
        "results": _with_ties(service.memory, found[:limit]),
        "next": ends and "{} {}".format(*ends),
    }


@_store_route("GET", "/inspect/memories/{id}", *_IDS)
def _inspected(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    """GET /inspect/memories/{id}: a memory, even a deleted one, its turns and its history.

    alone: the facts that deleting it would take along.
    """
    memory, id = service.memory, given["id"]
    found = browse(memory.store, id=id, state="all", limit=1)
    if not found or not _whose(given).has(found[0].item):
        raise _unknown(id)
    item = found[0].item
    alone = memory.store.only_from(item.sources) if item.kind == "turn" else []
    return {
        "memory": _with_ties(memory, found)[0],
        "alone": [{"id": fact.id, "memory": fact.memory} for fact in alone],
        "turns": _turns(memory, item.sources),
        "history": memory.history(id),
        **_of_image(memory, item),
    }


def _of_image(memory: Memory, item: MemoryItem) -> dict[str, Any]:
    """Returns the text in a memory's image, and the other memories of the same image."""
    if item.image is None:
        return {}
    id = item.image.id
    also = memory.store.get(images.shown_by(memory.store, id))
    return {
        "lines": [line.to_dict() for line in images.lines(memory.store, [id]).get(id, ())],
        "also": [{"id": o.id, "memory": o.memory} for o in also.values() if o.id != item.id],
    }


@_store_route("GET", "/inspect/entities", *_IDS)
def _entities(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    """GET /inspect/entities?user_id=…: the known entities, those with most relations first."""
    found = entities(service.memory.store, _shown_scope(given), _MOST + 1)
    return {"results": found[:_MOST], "more": len(found) > _MOST}


@_store_route("GET", "/inspect/relations", *_IDS, "entity", "at")
def _all_relations(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    """GET /inspect/relations?entity=…: also invalidated ones; of everybody if no id is given."""
    return _relations_json(service.memory, given, asdict(_shown_scope(given)), include_invalid=True)


@_store_route("GET", "/inspect/pending")
def _pending(service: Service, _given: dict[str, Any]) -> dict[str, Any]:
    """GET /inspect/pending: turns whose facts are not extracted yet, with the last error."""
    waiting = service.memory.pending()
    rows = [
        {
            "id": piece.id,
            "attempts": piece.attempts,
            "error": piece.last_error,
            "created_at": piece.created_at,
            "next_try_at": piece.next_try_at,
            "turns": _turns(service.memory, piece.payload["turns"]),
        }
        for piece in waiting[:_MOST]
    ]
    return {"results": rows, "total": len(waiting)}


@_store_route("GET", "/inspect/receipts")
def _receipts(service: Service, _given: dict[str, Any]) -> dict[str, Any]:
    """GET /inspect/receipts: the last calls to the cloud, newest first."""
    rows = reversed(receipts(service.memory.store, _MOST))
    return {"results": [row.to_dict() for row in rows]}


@_store_route("POST", "/inspect/erase/preview", *_IDS, "ids")
def _preview(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    """POST /inspect/erase/preview: {"ids": […]}; what an erase would remove. Changes nothing."""
    memory = service.memory
    _, turns, memories = _extent(memory, given)
    items = memory.store.get(memories, include_deleted=True).values()
    return {"memories": [item.to_dict() for item in items], "turns": _turns(memory, turns)}


@_store_route("POST", "/inspect/erase", *_IDS, "ids")
def _erase(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    """POST /inspect/erase: {"ids": […]}; erases these memories and all that goes with them."""
    memory = service.memory
    ids, turns, _ = _extent(memory, given)
    service.on_erase([turn.content for turn in memory.store.turns(turns).values()])
    return memory.erase(ids).to_dict()


def _extent(memory: Memory, given: dict[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """Returns the given ids, and the ids of all turns and memories that erasing them removes.

    Raises Refusal on an unknown id.
    """
    ids = strings(given.get("ids"), "ids")
    if not ids:
        raise Refusal("ids is empty; give the ids of the memories to erase", param="ids")
    whose, known = _whose(given), memory.store.get(ids, include_deleted=True)
    for id in ids:
        if id not in known or not whose.has(known[id]):
            raise _unknown(id)
    turns, memories = memory.store.erase_extent(ids)
    return ids, turns, memories


def _with_ties(memory: Memory, found: Sequence[Browsed]) -> list[dict[str, Any]]:
    """Returns memories as JSON, with `deleted_at`, `replaces` and `replaced_by`."""
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
    shown = ("id", "role", "name", "content", "timestamp")
    turns = memory.store.turns(ids).values()
    return [{name: getattr(turn, name) for name in shown} for turn in turns]


# -- the inspector's own files ---------------------------------------------------------------------

_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
# Added to the headers that the guard gives every response.
_HEADERS = {
    # Allows only the page's own files. No text can become a script, even by a bug in the page.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def _page_file(name: str, body: bytes) -> Route:
    media_type = _TYPES[name.rpartition(".")[2]]

    async def give(_request: Request) -> Response:
        return Response(body, headers=_HEADERS, media_type=media_type)

    return Route("/" if name == "index.html" else f"/page/{name}", give)


_FILES = [
    _page_file(file.name, file.read_bytes())
    for file in (files("edgemem.server") / "page").iterdir()
    if file.name.rpartition(".")[2] in _TYPES
]
PATHS = frozenset(route.path for route in _FILES)
ROUTES += _FILES

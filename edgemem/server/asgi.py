"""The application: which path is answered by what, and errors as answers.

Knows the routes and the short ones among their answers (health, metrics, models, embeddings, LoRA
adapters); answers.py, memories.py, inspect.py and page.py have the others.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from edgemem.errors import EdgememError
from edgemem.memory import Memory
from edgemem.server import completions, inspect, memories, page
from edgemem.server.answers import chat_completions
from edgemem.server.guard import Guard
from edgemem.server.http import json_object, json_value, result, service_of
from edgemem.server.limits import Limits
from edgemem.server.metrics import CONTENT_TYPE
from edgemem.server.refusals import Refusal, field, refusal_of, strings
from edgemem.server.service import STAGE, Service
from edgemem.server.tokenfile import load_token
from edgemem.server.work import QueueFull, Stopped

__all__ = ["app"]

MOST_TEXTS = 2048  # OpenAI's own limit of texts in one request for embeddings


def app(
    memory: Memory,
    *,
    token: str | None = None,
    limits: Limits | None = None,
    hosts: Collection[str] = (),
    anywhere: bool = False,
    allow_reset: bool = False,
    on_erase: Callable[[Iterable[str]], None] = lambda texts: None,
    routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """An ASGI application that answers for a Memory, which stays the caller's to close.

    token: asked of every call but /healthz and the page's own files; None takes that of
    `edgemem serve`, made if there is none. hosts: names that the Host header may have beside
    localhost and 127.0.0.1; anywhere: also any IP address. allow_reset: whether POST /reset may
    erase everything. on_erase: told what was said in the turns that the page is about to erase, for
    copies that are kept elsewhere. routes: more of them; the token is asked for them too. Without
    the lifespan events of ASGI (mounted in another application), call `.state.service.close()` at
    the end.
    Raises ConfigError if the token cannot be read or made.
    """
    service = Service(memory, limits or Limits())
    own = [
        Route("/healthz", _healthz),
        Route("/metrics", _metrics),
        Route("/v1/models", _models),
        Route("/v1/models/{name:path}", _model),
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        Route("/v1/embeddings", _embeddings, methods=["POST"]),
        Route("/lora-adapters", _adapters, methods=["GET"]),
        Route("/lora-adapters", _set_adapters, methods=["POST"]),
        Route("/memories", memories.add, methods=["POST"]),
        Route("/memories", memories.get_all, methods=["GET"]),
        Route("/memories", memories.delete_all, methods=["DELETE"]),
        Route("/memories/{id}", memories.get, methods=["GET"]),
        Route("/memories/{id}", memories.update, methods=["PUT"]),
        Route("/memories/{id}", memories.delete, methods=["DELETE"]),
        Route("/memories/{id}/history", memories.history, methods=["GET"]),
        Route("/search", memories.search, methods=["POST"]),
        Route("/reset", memories.reset, methods=["POST"]),
        *inspect.ROUTES,
        *page.ROUTES,
    ]
    paths: dict[object, str] = {route.endpoint: route.path for route in own}
    guard = Middleware(
        Guard,
        token=load_token()[0] if token is None else token,
        hosts=hosts,
        anywhere=anywhere,
        open={"/healthz", *page.PATHS},
        limits=service.limits,
        metrics=service.metrics,
        route=partial(_template, paths),
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.worker.start()
        try:
            yield
        finally:
            service.close()

    kinds = (Refusal, QueueFull, Stopped, EdgememError)
    made = Starlette(
        routes=[*own, *routes],
        middleware=[guard],
        exception_handlers={
            **dict.fromkeys(kinds, _refuse),
            HTTPException: _refuse_http,
            Exception: _fail,
        },
        lifespan=lifespan,
    )
    made.router.redirect_slashes = False
    made.state.service, made.state.allow_reset = service, allow_reset
    made.state.on_erase = on_erase
    return made


def _template(paths: dict[object, str], scope: Scope) -> str:
    """The path of a request as its route has it: ids are no label of a count."""
    return paths.get(scope.get("endpoint"), "other")


def _answer(refusal: Refusal, path: str) -> Response:
    return JSONResponse(refusal.body(path), refusal.status, refusal.headers())


async def _refuse(request: Request, error: Exception) -> Response:
    return _answer(refusal_of(error), request.url.path)


async def _refuse_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    message = f"{what:.120} is not offered here; README.md lists what is"
    refusal = Refusal(error.status_code, message)
    response = _answer(refusal, request.url.path)
    response.headers.update(error.headers or {})
    return response


async def _fail(request: Request, _error: Exception) -> Response:
    refusal = Refusal(500, "the server failed; its own messages say how")
    return _answer(refusal, request.url.path)


async def _healthz(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _metrics(request: Request) -> Response:
    service = service_of(request)
    gauges = await service.apart(service.gauges)
    gauges["edgemem_requests_in_flight"] = request.scope["state"]["in_flight"]
    return PlainTextResponse(service.metrics.text(gauges), headers={"content-type": CONTENT_TYPE})


async def _names(service: Service) -> list[str]:
    return await service.apart(lambda: [service.memory.engine.name, service.embedder_name()])


async def _models(request: Request) -> Response:
    names = await _names(service_of(request))
    return JSONResponse(completions.models(names, int(time.time())))


async def _model(request: Request) -> Response:
    wanted, names = request.path_params["name"], await _names(service_of(request))
    if wanted not in names:
        raise Refusal(
            404,
            f"there is no model {wanted!r:.80} here; there are {', '.join(names)}",
            param="model",
            code="model_not_found",
        )
    return JSONResponse(completions.models([wanted], int(time.time()))["data"][0])


async def _embeddings(request: Request) -> Response:
    service, body = service_of(request), await json_object(request)
    name = field(body, "model", str, "")
    texts = strings(body.get("input"), "input")
    encoding = field(body, "encoding_format", str, "float")
    if encoding not in ("float", "base64"):
        raise Refusal(
            400,
            f"encoding_format is {encoding!r:.80}; it must be float or base64",
            param="encoding_format",
        )
    if not 1 <= len(texts) <= MOST_TEXTS or not all(texts):
        raise Refusal(
            400,
            f"input has {len(texts)} texts; it must have 1 to {MOST_TEXTS}, none of them empty",
            param="input",
        )
    dimensions = field(body, "dimensions", int)

    def work() -> Response:
        service.require_embedder(name)
        embedder = service.memory.embedder
        if dimensions not in (None, embedder.dim):
            raise Refusal(
                400,
                f"dimensions is {dimensions}; this model's vectors have {embedder.dim}: give that, "
                "or leave it out",
                param="dimensions",
            )
        vectors = embedder.embed(texts)
        tokens = sum(map(embedder.count_tokens, texts))
        as_base64 = encoding == "base64"
        return JSONResponse(completions.embeddings(name, vectors, tokens, as_base64=as_base64))

    return await service.apart(work, embedding=True)


async def _adapters(request: Request) -> Response:
    """As llama-server has it: each adapter with the scale that it has in plain completions."""
    service = service_of(request)
    loaded = await service.apart(lambda: service.memory.engine.adapters())
    rows = [
        {"id": i, "path": str(a.path), "scale": service.scales.get(a.name, 0.0), "name": a.name}
        for i, a in enumerate(loaded)
    ]
    return JSONResponse(rows)


async def _set_adapters(request: Request) -> Response:
    """Scales by id; adapters that are not named get 0, as in llama-server."""
    service, rows = service_of(request), await json_value(request)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Refusal(400, 'the body must be a list such as [{"id": 0, "scale": 0.5}]')
    wanted = [(field(row, "id", int, -1), field(row, "scale", float, 0.0)) for row in rows]

    def work() -> bool:
        engine = service.memory.engine
        loaded = engine.adapters()
        if unknown := [id for id, _ in wanted if not 0 <= id < len(loaded)]:
            raise Refusal(
                400,
                f"there is no adapter with the id {unknown[0]}; GET /lora-adapters lists the "
                f"{len(loaded)} that are loaded",
            )
        scales = {loaded[id].name: float(scale) for id, scale in wanted}
        engine.bind(STAGE, {name: scale for name, scale in scales.items() if scale})
        service.scales = scales
        return True

    return JSONResponse({"success": await result(request, service.in_engine(work))})

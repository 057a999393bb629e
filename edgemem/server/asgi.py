"""The application, and running it until it is stopped. The only importer of uvicorn.

Keeps no access log.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from edgemem.errors import ConfigError, EdgememError
from edgemem.memory import Memory
from edgemem.server import memories, openai_api
from edgemem.server.guard import Guard, is_loopback, load_token
from edgemem.server.refusals import Refusal, refusal_of
from edgemem.server.service import Limits, Service, service_of

__all__ = ["app", "require_safe", "serve"]


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
    service = Service(memory, limits or Limits(), allow_reset=allow_reset, on_erase=on_erase)
    own = [
        Route("/healthz", _healthz),
        Route("/metrics", _metrics),
        *openai_api.ROUTES,
        *memories.ROUTES,
    ]
    guard = Middleware(
        Guard,
        service=service,
        token=load_token()[0] if token is None else token,
        hosts=hosts,
        anywhere=anywhere,
        open={"/healthz", *memories.PATHS},
        paths={route.endpoint: route.path for route in own},
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.worker.start()
        try:
            yield
        finally:
            service.close()

    made = Starlette(
        routes=[*own, *routes],
        middleware=[guard],
        exception_handlers=dict.fromkeys(
            (Refusal, EdgememError, HTTPException, Exception), _refuse
        ),
        lifespan=lifespan,
    )
    made.router.redirect_slashes = False
    made.state.service = service
    return made


async def _refuse(request: Request, error: Exception) -> Response:
    headers: Mapping[str, str] = {}
    if isinstance(error, Refusal | EdgememError):
        refusal = refusal_of(error)
    elif isinstance(error, HTTPException):
        what, headers = f"{request.method} {request.url.path}", error.headers or {}
        message = f"{what:.120} is not offered here; README.md lists what is"
        refusal = Refusal(message, error.status_code)
    else:
        refusal = Refusal("the server failed; its own messages say how", 500)
    response = refusal.response(request.url.path)
    response.headers.update(headers)
    return response


async def _healthz(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _metrics(request: Request) -> Response:
    service = service_of(request)
    text = await service.apart(service.metrics_text)
    return PlainTextResponse(
        text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"}
    )


# -- running it ----------------------------------------------------------------------------------


def serve(
    memory: Memory,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    insecure: bool = False,
    hosts: Collection[str] = (),
    allow_reset: bool = False,
    on_erase: Callable[[Iterable[str]], None] = lambda texts: None,
    limits: Limits | None = None,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Answer for a Memory over HTTP until SIGINT or SIGTERM; the caller closes the Memory.

    host: beyond loopback only with tls_cert and tls_key (PEM files), or with insecure=True, for a
    network that nobody else can read. port: 0 takes a free one. on_ready: given the URL when calls
    are answered. token, hosts, allow_reset, on_erase: see `app`. Requests under way have
    limits.drain_s to end. Raises ConfigError if it must not or cannot listen there.
    """
    limits = limits or Limits()
    require_safe(host, tls_cert, tls_key, insecure=insecure)
    scheme = "http" if tls_cert is None else "https"
    asgi = app(
        memory,
        token=token,
        limits=limits,
        hosts=[host, *hosts],
        anywhere=not is_loopback(host),
        allow_reset=allow_reset,
        on_erase=on_erase,
    )
    server = _Server(
        uvicorn.Config(
            asgi,
            host=host,
            port=port,
            ssl_certfile=tls_cert,
            ssl_keyfile=tls_key,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="on",
            # Longer than clients keep an idle connection (httpx: 5 s), or both close it at a time
            # and a request is lost on the way.
            timeout_keep_alive=60,
            timeout_graceful_shutdown=limits.drain_s,
        )
    )
    shown = f"[{host}]" if ":" in host else host
    server.on_port = lambda found: on_ready(f"{scheme}://{shown}:{found}")
    with _signals_end_it_only():
        try:
            server.run()
        except OSError as exc:  # of the certificate
            raise ConfigError(
                f"the certificate {tls_cert} or its key {tls_key} cannot be used ({exc}); give PEM "
                "files of one pair"
            ) from exc
        finally:
            asgi.state.service.close()  # also where a second Ctrl-C has skipped the lifespan's end


def require_safe(
    host: str, tls_cert: str | Path | None, tls_key: str | Path | None, *, insecure: bool
) -> None:
    """Raise ConfigError if what is said on a host could be read by others."""
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("TLS needs both a certificate and its key: --tls-cert and --tls-key")
    if tls_cert is None and not insecure and not is_loopback(host):
        raise ConfigError(
            f"the host {host!r} can be reached by others, who could read what is said; give "
            "--tls-cert and --tls-key, or --insecure if you trust the network"
        )


class _Server(uvicorn.Server):
    """uvicorn, telling where it listens, or why it cannot, instead of ending the process."""

    on_port: Callable[[int], None] = staticmethod(lambda port: None)

    async def startup(self, sockets: Any = None) -> None:
        reasons: list[str] = []

        def keep(record: logging.LogRecord) -> bool:
            reasons.append(str(record.msg))
            return False

        logger = logging.getLogger("uvicorn.error")
        logger.addFilter(keep)
        try:
            await super().startup(sockets)
        except SystemExit as exc:
            why = reasons[-1] if reasons else "no reason given"
            raise ConfigError(
                f"cannot listen on {self.config.host}:{self.config.port} ({why}); give another "
                "--port or --host"
            ) from exc
        finally:
            logger.removeFilter(keep)
        self.on_port(self.servers[0].sockets[0].getsockname()[1])


@contextmanager
def _signals_end_it_only() -> Iterator[None]:
    """uvicorn sends itself the signal once more when it has ended: the caller is to go on then."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, lambda *_: None) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)

"""The ASGI application: its routes, who may call them, and how it is served.

The only importer of uvicorn. The guard checks Host, Origin, token, requests in flight and body
size, and adds headers to every response. Nothing is logged, for paths and bodies are private.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from edgemem.config import config_dir, ip_address
from edgemem.errors import ConfigError, EdgememError, WrongValue
from edgemem.memory import Memory
from edgemem.server import memories, openai_api
from edgemem.server.service import Limits, Refusal, Service, refusal_of, service_of

__all__ = ["app", "host_allowed", "is_loopback", "load_token", "protocol", "require_safe", "serve"]
__all__ += ["token_file"]


def app(
    memory: Memory,
    *,
    token: str | None = None,
    limits: Limits | None = None,
    hosts: Collection[str] = (),
    anywhere: bool = False,
    allow_reset: bool = False,
    on_erase: Callable[[Iterable[str] | None], object] = lambda texts: None,
) -> Starlette:
    """Returns an ASGI application on a Memory, which the caller closes.

    token: required by every route but /healthz and the inspector's own files; None means the token
    of `edgemem serve`. hosts, anywhere: see `host_allowed`. allow_reset: whether POST /reset may
    erase everything. on_erase: called before the inspector erases turns, with their texts, so that
    copies elsewhere can be erased too; with None before a reset.
    An application that is mounted in another gets no lifespan events: call `.state.service.close()`
    at its end. Slow clients are cut off by `protocol`, which another server must be given.
    Raises ConfigError if the token cannot be read or made.
    """
    service = Service(
        memory,
        limits or Limits(),
        allow_reset=allow_reset,
        on_erase=on_erase,
    )
    routes = [
        Route("/healthz", _healthz),
        Route("/metrics", _metrics),
        *openai_api.ROUTES,
        *memories.ROUTES,
    ]
    guard = Middleware(
        _Guard,
        service=service,
        token=(load_token()[0] if token is None else token).encode(),
        hosts={host.lower() for host in hosts},
        anywhere=anywhere,
        open={"/healthz", *memories.PATHS},
        paths={route.endpoint: route.path for route in routes},
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.worker.start()
        try:
            yield
        finally:
            service.close()

    made = Starlette(
        routes=routes,
        middleware=[guard],
        exception_handlers=dict.fromkeys(
            (Refusal, EdgememError, HTTPException, ClientDisconnect, Exception), _refuse
        ),
        lifespan=lifespan,
    )
    made.router.redirect_slashes = False
    made.state.service = service
    return made


async def _refuse(request: Request, error: Exception) -> Response:
    headers: dict[str, str] = {}
    if isinstance(error, Refusal | EdgememError):
        refusal = refusal_of(error)
    elif isinstance(error, ClientDisconnect):
        refusal = Refusal("the client has gone", 499)
    elif isinstance(error, HTTPException):
        what, headers = f"{request.method} {request.url.path}", dict(error.headers or {})
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
    text = await service.in_thread(service.metrics_text)
    return PlainTextResponse(
        text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"}
    )


# -- who may call --------------------------------------------------------------------------------

# For every response: no caching, no sniffing of its type, no framing, no referrer.
_HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Guard:
    """ASGI middleware around the whole application, so that no route can forget the checks.

    hosts, anywhere: as for `app`. open: paths without a token, which reveal only that a server
    runs. paths: each endpoint's route, such as /memories/{id}, as the label of its metrics.
    """

    app: ASGIApp
    service: Service
    token: bytes
    hosts: Collection[str]
    anywhere: bool
    open: Collection[str]
    paths: dict[Any, str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # a web socket, which this server does not offer
        service, started = self.service, time.monotonic()
        status = 499  # if the client hangs up before the response starts

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        counts = False  # only with the token: nobody else can use up limits.in_flight
        try:
            refused = self._refusal(scope)
            counts = refused is None and scope["path"] not in self.open
            service.in_flight += counts
            if refused is None:
                await self.app(scope, self._limited(receive), counted)
            else:
                await refused.response(scope["path"])(scope, receive, counted)
        except Exception:
            status = 500
            raise
        finally:
            service.in_flight -= counts
            route = self.paths.get(scope.get("endpoint"), "other")
            service.metrics.count("edgemem_requests_total", route=route, status=str(status))
            took_s = time.monotonic() - started
            service.metrics.took("edgemem_request_seconds", took_s, route=route)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers, limits = Headers(scope=scope), self.service.limits
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not host_allowed(hosts[0], self.hosts, anywhere=self.anywhere):
            return Refusal(
                "this server does not answer to that Host name; call it by 127.0.0.1 or localhost, "
                "or start it with --allow-host NAME",
                421,
            )
        if any(origin.lower().partition("://")[2] != hosts[0].lower() for origin in origins):
            return Refusal("a page of another origin may not call this server", 403)
        if scope["path"] in self.open:
            return None
        if not self._knows_token(headers.getlist("authorization")):
            return Refusal(
                "the bearer token is missing or wrong; send the header `Authorization: Bearer "
                "TOKEN` with the token that `edgemem serve --show-token` prints",
                401,
            )
        if self.service.in_flight >= limits.in_flight:
            return Refusal("too many requests at a time; try again soon", 429, retry_after_s=1)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > limits.body_bytes:
            return self._too_large()
        return None

    def _knows_token(self, given: list[str]) -> bool:
        if len(given) != 1:
            return False
        scheme, _, token = given[0].encode("latin-1").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self.token)

    def _too_large(self) -> Refusal:
        most = self.service.limits.body_bytes
        return Refusal(f"the body is larger than {most:,} bytes; send less at a time", 413)

    def _limited(self, receive: Receive) -> Receive:
        """Wraps `receive` so that a body that is too large or too slow raises Refusal."""
        limits = self.service.limits
        taken, ended = 0, False
        until = time.monotonic() + limits.receive_s

        async def limited() -> Message:
            nonlocal taken, ended
            if ended:
                return await receive()
            try:
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    message = await receive()
            except TimeoutError as exc:
                raise Refusal("the body did not arrive in time; send it again", 408) from exc
            taken += len(message.get("body", b""))
            ended = not message.get("more_body", False)
            if taken > limits.body_bytes:
                raise self._too_large()
            return message

        return limited


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address or name, which no other machine can reach."""
    address = ip_address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def host_allowed(header: str, names: Collection[str], *, anywhere: bool) -> bool:
    """Whether a Host header names this server: loopback, one of `names`, or any IP (`anywhere`).

    Any other name may be one that a web page points at this machine (DNS rebinding).
    """
    host, _, port = header.strip().lower().rpartition(":")
    if not host or not port.isdigit():
        host = header.strip().lower()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host in names or is_loopback(host) or (anywhere and ip_address(host) is not None)


# -- the token -----------------------------------------------------------------------------------


def token_file() -> Path:
    """Returns the path of the token's file. It may not exist yet."""
    return config_dir() / "server_token"


def load_token() -> tuple[str, bool]:
    """Returns the token, and whether this call has made it.

    Raises ConfigError if the file cannot be read or made, holds no token, or is readable by others.
    """
    file = token_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return _read(file), False
        with os.fdopen(handle, "w", encoding="ascii") as out:
            token = secrets.token_urlsafe(32)
            out.write(f"{token}\n")
        return token, True
    except OSError as exc:
        raise ConfigError(
            f"the server's token {file} cannot be read or made ({exc.strerror}); make it yours, or "
            "set EDGEMEM_HOME to a folder that is"
        ) from exc


def _read(file: Path) -> str:
    if os.name == "posix" and (mode := file.stat().st_mode) & 0o077:
        raise ConfigError(
            f"the server's token {file} may be read by others (mode {mode & 0o777:o}); delete it, "
            "and the next start makes another"
        )
    token = file.read_text(encoding="ascii", errors="replace").strip()
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"the file {file} holds no token (16 or more ASCII characters without a space); "
            "delete it, and the next start makes one"
        )
    return token


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
    on_erase: Callable[[Iterable[str] | None], object] = lambda texts: None,
    limits: Limits | None = None,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serves a Memory over HTTP until SIGINT or SIGTERM; the caller closes the Memory.

    host: any but a loopback address needs tls_cert and tls_key (PEM files), or insecure=True on a
    network that nobody else can read. port: 0 takes a free one. on_ready: called with the URL once
    the server listens. token, hosts, allow_reset, on_erase: see `app`. At the end,
    running requests have limits.drain_s to finish. Raises ConfigError if the server must not or
    cannot listen there.
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
    config = uvicorn.Config(
        asgi,
        host=host,
        port=port,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
        http=protocol(limits),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        # Longer than clients keep an idle connection (httpx: 5 s). Otherwise the server may close a
        # connection while a request is on its way.
        timeout_keep_alive=60,
        # By then the protocol has ended all connections. A request that is cancelled before it
        # knows that its client is gone would leave a traceback.
        timeout_graceful_shutdown=limits.drain_s + 1,
    )
    server = _Server(config)
    shown = f"[{host}]" if ":" in host else host
    server.on_port = lambda found: on_ready(f"{scheme}://{shown}:{found}")
    try:
        server.run()
    except OSError as exc:  # the certificate cannot be loaded
        raise WrongValue(
            f"the certificate {tls_cert} or its key {tls_key} cannot be used ({exc}); give PEM "
            "files of one pair"
        ) from exc
    finally:
        asgi.state.service.close()  # a second Ctrl-C skips the end of the lifespan


def protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Returns uvicorn's protocol, which keeps to limits of connections and of time.

    uvicorn itself has no limit of connections, and waits for ever for a request's head and for a
    client to read its answer.
    """
    return type("Limited", (_LimitedProtocol,), {"_limits": limits})


class _LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """See `protocol`."""

    _limits: Limits
    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=1, low=0)  # so that any unread byte is noticed
        if len(self.connections) > self._limits.connections:
            transport.write(_FULL)
            transport.close()
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()
        self._stop_watching()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(self._limits.drain_s, self.transport.abort)

    def _watch(self, before: int | None = None) -> None:
        """Aborts the connection once the client has read nothing for send_s.

        before: how many bytes were unread send_s ago. Closing would wait for the client.
        """
        unread = self.transport.get_write_buffer_size()
        if before is not None and unread >= before:
            self.transport.abort()
        else:
            self._unread = self.loop.call_later(self._limits.send_s, self._watch, unread)

    def _stop_watching(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _wait(self) -> None:
        """Starts the timer for the next request's head, unless it or a request runs."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(self._limits.receive_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\nconnection: close\r\n"
    b"content-length: 0\r\n\r\n"
)


def require_safe(
    host: str, tls_cert: str | Path | None, tls_key: str | Path | None, *, insecure: bool
) -> None:
    """Raises WrongValue if others could read the traffic of this host, or half of TLS is given."""
    if (tls_cert is None) != (tls_key is None):
        raise WrongValue("TLS needs both a certificate and its key: --tls-cert and --tls-key")
    if tls_cert is None and not insecure and not is_loopback(host):
        raise WrongValue(
            f"the host {host!r} can be reached by others, who could read what is said; give "
            "--tls-cert and --tls-key, or --insecure if you trust the network"
        )


class _Server(uvicorn.Server):
    """uvicorn's server, which reports its port and raises ConfigError if it cannot listen."""

    on_port: Callable[[int], None] = staticmethod(lambda port: None)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends the server. uvicorn's own would raise the signal again, and so end its caller."""
        self.force_exit |= self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def startup(self, sockets: Any = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit as exc:  # while an OSError says why
            raise ConfigError(
                f"cannot listen on {self.config.host}:{self.config.port} ({exc.__context__}); give "
                "another --port or --host"
            ) from exc
        self.on_port(self.servers[0].sockets[0].getsockname()[1])

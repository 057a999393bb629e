"""Who may call, and with how much: Host, token, requests in flight, the size of a body; and the
headers that every answer has.

Wraps the application, so that no route can forget it. Knows headers and numbers; no route, no
memory. Nothing is logged: paths and bodies are the user's own.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from collections.abc import Callable, Collection

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgemem.server.limits import Limits
from edgemem.server.metrics import Metrics
from edgemem.server.refusals import Refusal

__all__ = ["Guard", "host_allowed", "is_loopback"]

# Of every answer: it is for the caller alone, is what it says it is, and is kept nowhere.
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


class Guard:
    """An ASGI middleware. hosts: names that the Host header may have beside the loopback's;
    anywhere: also any IP address. open: paths that need no token, for they tell nothing but that
    something runs. route: the template of a request's path, for the counts."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        hosts: Collection[str],
        anywhere: bool,
        open: Collection[str],
        limits: Limits,
        metrics: Metrics,
        route: Callable[[Scope], str],
    ) -> None:
        self._app, self._token = app, token.encode()
        self._hosts, self._anywhere = frozenset(h.lower() for h in hosts), anywhere
        self._open = frozenset(open)
        self._limits, self._metrics, self._route = limits, metrics, route
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # a web socket: none is offered
        started = time.monotonic()
        status = 499  # the client has gone before it was told one

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = list(message.get("headers", ()))
                had = {name for name, _ in given}
                given += [header for header in _HEADERS if header[0] not in had]
                message = {**message, "headers": given}
            await send(message)

        self.in_flight += 1
        scope.setdefault("state", {})["in_flight"] = self.in_flight
        try:
            refused = self._refusal(scope)
            if refused is None:
                await self._app(scope, self._limited(scope, receive), counted)
            else:
                body, headers = refused.body(scope["path"]), refused.headers()
                await JSONResponse(body, refused.status, headers)(scope, receive, counted)
        except Exception:
            status = 500
            raise
        finally:
            self.in_flight -= 1
            route = self._route(scope)
            self._metrics.count("edgemem_requests_total", route=route, status=str(status))
            self._metrics.took("edgemem_request_seconds", time.monotonic() - started, route=route)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts = [value.decode("latin-1") for value in headers.get(b"host", [])]
        if len(hosts) != 1 or not host_allowed(hosts[0], self._hosts, anywhere=self._anywhere):
            return Refusal(
                421,
                "this server does not answer to that Host name; call it by 127.0.0.1 or localhost, "
                "or start it with --allow-host NAME",
            )
        if scope["path"] in self._open:
            return None
        if not self._knows_token(headers.get(b"authorization", [])):
            return Refusal(
                401,
                "the bearer token is missing or wrong; send the header `Authorization: Bearer "
                "TOKEN` with the token that `edgemem serve --show-token` prints",
            )
        if self.in_flight > self._limits.in_flight:
            return Refusal(429, "too many requests at a time; try again soon", retry_after_s=1)
        length = headers.get(b"content-length", [b"0"])[0]
        if length.isdigit() and int(length[:20]) > self._limits.body_bytes:
            return self._too_large()
        return None

    def _knows_token(self, given: list[bytes]) -> bool:
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)

    def _too_large(self) -> Refusal:
        return Refusal(
            413,
            f"the body is larger than {self._limits.body_bytes:,} bytes; send less at a time",
        )

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """Receive, with a body that is too large or too slow refused."""
        taken, ended = 0, False
        until = time.monotonic() + self._limits.receive_s

        async def limited() -> Message:
            nonlocal taken, ended
            if ended:
                return await receive()
            try:
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    message = await receive()
            except TimeoutError as exc:
                raise Refusal(408, "the body did not arrive in time; send it again") from exc
            taken += len(message.get("body", b""))
            ended = not message.get("more_body", False)
            if taken > self._limits.body_bytes:
                raise self._too_large()
            return message

        return limited


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's own, which no other can reach."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_allowed(header: str, names: Collection[str], *, anywhere: bool) -> bool:
    """Whether a Host header is one of ours. Against DNS rebinding, by which a web page makes a
    name of its own mean this machine: a page cannot choose what an IP address means."""
    host, _, port = header.strip().lower().rpartition(":")
    if not host or not port.isdigit():
        host = header.strip().lower()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if host in names or is_loopback(host):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return anywhere

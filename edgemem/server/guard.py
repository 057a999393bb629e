"""Who may call, and with how much: Host, token, requests in flight, the size of a body; and the
headers that every answer has.

Nothing is logged: paths and bodies are the user's own.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import secrets
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgemem.config import config_dir
from edgemem.errors import ConfigError
from edgemem.server.refusals import Refusal
from edgemem.server.service import Service

__all__ = ["Guard", "host_allowed", "is_loopback", "load_token", "token_file"]

# Of every answer: it is for the caller alone, is what it says it is, and is kept nowhere.
_HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """An ASGI middleware around the application, so that no route can forget it.

    hosts: names that the Host header may have beside the loopback's; anywhere: also any IP address.
    open: paths that need no token, for they tell nothing but that something runs. paths: of each
    endpoint the route's path, for the counts; an id is no label.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        service: Service,
        token: str,
        hosts: Collection[str],
        anywhere: bool,
        open: Collection[str],
        paths: Mapping[object, str],
    ) -> None:
        self._app, self._service, self._token = app, service, token.encode()
        self._hosts, self._anywhere = frozenset(h.lower() for h in hosts), anywhere
        self._open, self._paths = frozenset(open), paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # a web socket: none is offered
        service, started = self._service, time.monotonic()
        status = 499  # the client has gone before it was told one

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        service.in_flight += 1
        try:
            refused = self._refusal(scope)
            if refused is None:
                await self._app(scope, self._limited(receive), counted)
            else:
                await refused.response(scope["path"])(scope, receive, counted)
        except Exception:
            status = 500
            raise
        finally:
            service.in_flight -= 1
            route = self._paths.get(scope.get("endpoint"), "other")
            service.metrics.count("edgemem_requests_total", route=route, status=str(status))
            took_s = time.monotonic() - started
            service.metrics.took("edgemem_request_seconds", took_s, route=route)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers, limits = Headers(scope=scope), self._service.limits
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not host_allowed(hosts[0], self._hosts, anywhere=self._anywhere):
            return Refusal(
                "this server does not answer to that Host name; call it by 127.0.0.1 or localhost, "
                "or start it with --allow-host NAME",
                421,
            )
        if scope["path"] in self._open:
            return None
        if not self._knows_token(headers.getlist("authorization")):
            return Refusal(
                "the bearer token is missing or wrong; send the header `Authorization: Bearer "
                "TOKEN` with the token that `edgemem serve --show-token` prints",
                401,
            )
        if self._service.in_flight > limits.in_flight:
            return Refusal("too many requests at a time; try again soon", 429, retry_after_s=1)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > limits.body_bytes:
            return self._too_large()
        return None

    def _knows_token(self, given: list[str]) -> bool:
        if len(given) != 1:
            return False
        scheme, _, token = given[0].encode("latin-1").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)

    def _too_large(self) -> Refusal:
        most = self._service.limits.body_bytes
        return Refusal(f"the body is larger than {most:,} bytes; send less at a time", 413)

    def _limited(self, receive: Receive) -> Receive:
        """Receive, with a body that is too large or too slow refused."""
        limits = self._service.limits
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


def token_file() -> Path:
    """Where the token lies. It may not exist yet."""
    return config_dir() / "server_token"


def load_token() -> tuple[str, bool]:
    """The token, and whether it was made just now.

    Raises ConfigError if the file cannot be read or made, holds no token, or may be read by others.
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

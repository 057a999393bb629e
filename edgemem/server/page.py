"""The page of `edgemem serve`, on which a person looks through the memories and forgets some.

Knows the page's files and their headers. They hold nothing private and are given without the token,
which the page itself sends with every call; so it needs no cookie, and no other page can use it.
Knows no memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["HEADERS", "PATHS", "ROUTES"]

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_NAMES = (
    "inspector.css", "icon.svg", "inspector.js", "api.js", "dom.js", "lists.js", "memory.js",
)  # fmt: skip

HEADERS = {
    # The page's own files and nothing else; no text can become a script, not by our mistake either.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Beside those that the guard gives every answer."""


def _route(path: str, name: str) -> Route:
    return Route(path, _giver(name), name=name)


def _giver(name: str) -> Callable[[Request], Awaitable[Response]]:
    body = (files("edgemem.server") / "page" / name).read_bytes()
    headers = {**HEADERS, "content-type": _TYPES[name.rpartition(".")[2]]}

    async def give(_request: Request) -> Response:
        return Response(body, headers=headers)

    return give


ROUTES = (_route("/", "index.html"), *(_route(f"/page/{name}", name) for name in _NAMES))
PATHS = frozenset(route.path for route in ROUTES)

"""What a call is refused with: every error as a status and a body, and JSON checked on the way in.

Paths below /v1/ answer in OpenAI's error shape, all others in mem0's `{"detail": …}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar, overload

from starlette.requests import Request
from starlette.responses import JSONResponse

from edgemem.errors import (
    AdapterError,
    ContextOverflow,
    EdgememError,
    InputError,
    StoreFull,
    StoreLocked,
)

__all__ = ["Refusal", "field", "json_object", "json_value", "refusal_of", "strings", "whole"]

T = TypeVar("T")

_TYPES = {429: "rate_limit_error", 500: "server_error", 503: "server_error", 507: "server_error"}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
_NAMES = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
_NAMES |= {list: "a list", dict: "an object"}


class Refusal(Exception):
    """A call that is answered with an error. param: the field at fault; retry_after_s: when to try
    again."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param = status, param
        self.code = code or _CODES.get(status)
        self.retry_after_s = retry_after_s

    def body(self, path: str) -> dict[str, Any]:
        """The JSON to answer with on a path."""
        message = str(self)
        if not path.startswith("/v1/"):
            return {"detail": message}
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, path: str) -> JSONResponse:
        """The answer on a path."""
        headers = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(self.retry_after_s)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.body(path), self.status, headers)


def refusal_of(error: Refusal | EdgememError) -> Refusal:
    """What an error of ours is answered with."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ContextOverflow):
        return Refusal(str(error), code="context_length_exceeded")
    if isinstance(error, InputError | AdapterError):
        return Refusal(str(error))
    if isinstance(error, StoreLocked):
        return Refusal(str(error), 503, retry_after_s=5)
    return Refusal(str(error), 507 if isinstance(error, StoreFull) else 500)


async def json_value(request: Request) -> Any:
    """The body as JSON. Raises Refusal."""
    try:
        return json.loads(await request.body(), parse_constant=_no_number)
    except (ValueError, RecursionError) as exc:
        raise Refusal(f"the body is not JSON ({exc}); send an object in UTF-8") from exc


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


async def json_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Raises Refusal."""
    value = await json_value(request)
    if not isinstance(value, dict):
        raise Refusal(f"the body is {type(value).__name__}; it must be a JSON object")
    return value


@overload
def field(body: Mapping[str, Any], name: str, kind: type[T]) -> T | None: ...
@overload
def field(body: Mapping[str, Any], name: str, kind: type[T], default: T) -> T: ...
def field(body: Mapping[str, Any], name: str, kind: type[T], default: T | None = None) -> T | None:
    """A field of a JSON object, of one kind; null is as good as absent. Raises Refusal."""
    value = body.get(name)
    if value is None:
        return default
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return value  # type: ignore[return-value]  # JSON's 1 is as good as 1.0
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Refusal(f"{name} is {value!r:.80}; it must be {_NAMES[kind]}", param=name)
    return value


def strings(value: object, name: str) -> list[str]:
    """A text or a list of texts as a list. Raises Refusal on anything else."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Refusal(f"{name} is {value!r:.80}; it must be a text or a list of texts", param=name)
    return texts


def whole(text: str, name: str) -> int:
    """A number from a URL. Raises Refusal on anything else."""
    try:
        return int(text)
    except ValueError as exc:
        raise Refusal(f"{name} is {text!r:.80}; it must be a whole number") from exc

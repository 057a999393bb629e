"""OpenAI's shapes: a chat request checked, and what its answers, chunks and embeddings look like.

Departures from OpenAI's API, all told in the refusal or here: one choice, no tools, no images, no
log-probabilities and no penalties; temperature is 0 unless given. With `user`, an answer is made
with that user's memory; an instruct model follows the sampling settings and the system message,
the answers of another model are short and take neither.
Knows JSON values alone. Source: OpenAI API reference, chat completions and embeddings.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.server.refusals import Refusal, field, strings

__all__ = [
    "ChatRequest",
    "Ended",
    "chat_request",
    "chunk",
    "completion",
    "embeddings",
    "models",
    "usage",
]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
# What would change the answer, and cannot be done: refused unless it is one of these.
_REFUSED: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "audio": (),
    "modalities": (["text"],),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A checked request. messages: role and content, as texts. user: None is without memory."""

    model: str
    messages: tuple[dict[str, str], ...]
    user: str | None
    stream: bool
    include_usage: bool
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int
    stop: tuple[str, ...]
    schema: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Ended:
    """How an answer ended, and the tokens it took."""

    finish_reason: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


def chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """Check the body of a chat completion. Raises Refusal, naming the field."""
    for name, fine in _REFUSED.items():
        value = body.get(name)
        if value is not None and value not in fine:
            only = f"only {fine[0]!r} is allowed here" if fine else "this server cannot do it"
            raise Refusal(400, f"{name} is {value!r:.80}; {only}, or leave it out", param=name)
    user = field(body, "user", str)
    schema = _schema(field(body, "response_format", dict))
    if user is not None and schema is not None:
        raise Refusal(
            400,
            "response_format cannot be followed by an answer from memory; leave it or user out",
            param="response_format",
        )
    messages = tuple(_messages(body))
    if user is not None and messages[-1]["role"] != "user":
        raise Refusal(400, "with user, the last message must be of the role user", param="messages")
    options = field(body, "stream_options", dict, {})
    limit = field(body, "max_completion_tokens", int)
    seed = field(body, "seed", int)
    if seed is not None and seed < 0:
        raise Refusal(400, f"seed is {seed}; it must be 0 or more", param="seed")
    return ChatRequest(
        model=_required(field(body, "model", str), "model"),
        messages=messages,
        user=user,
        stream=field(body, "stream", bool, False),
        include_usage=field(options, "include_usage", bool, False),
        max_tokens=field(body, "max_tokens", int) if limit is None else limit,
        temperature=field(body, "temperature", float, 0.0),
        top_p=field(body, "top_p", float, 1.0),
        seed=random.getrandbits(32) if seed is None else seed,
        stop=tuple(strings(body.get("stop") or [], "stop")),
        schema=schema,
    )


def _required(value: str | None, name: str) -> str:
    if not value:
        raise Refusal(400, f"{name} is missing; GET /v1/models lists the models", param=name)
    return value


def _messages(body: Mapping[str, Any]) -> list[dict[str, str]]:
    given = field(body, "messages", list, [])
    if not given:
        raise Refusal(400, "messages is missing or empty; give at least one", param="messages")
    found = []
    for number, message in enumerate(given):
        where = f"messages[{number}]"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise Refusal(
                400,
                f"{where} must be an object with a role of {', '.join(_ROLES)}, and content",
                param=where,
            )
        content = _text(message.get("content"), f"{where}.content")
        found.append({"role": _ROLES[message["role"]], "content": content})
    return found


def _text(content: object, where: str) -> str:
    parts = [content] if isinstance(content, str) else content
    texts: list[str] = []
    for part in parts if isinstance(parts, list) else [None]:
        if isinstance(part, dict) and part.get("type") == "text":
            part = part.get("text")
        if not isinstance(part, str):
            raise Refusal(
                400, f"{where} must be a text, or a list of parts of the type text", param=where
            )
        texts.append(part)
    return "".join(texts)


def _schema(wanted: dict[str, Any] | None) -> dict[str, Any] | None:
    kind = (wanted or {"type": "text"}).get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    described = (wanted or {}).get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        raise Refusal(
            400,
            f"response_format is {wanted!r:.120}; its type must be text, json_object, or "
            "json_schema with json_schema.schema an object",
            param="response_format",
        )
    return schema


def usage(ended: Ended) -> dict[str, Any]:
    """OpenAI's count of tokens."""
    return {
        "prompt_tokens": ended.prompt_tokens,
        "completion_tokens": ended.completion_tokens,
        "total_tokens": ended.prompt_tokens + ended.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": ended.cached_tokens},
    }


def completion(head: Mapping[str, Any], text: str, ended: Ended) -> dict[str, Any]:
    """A whole answer. head: id, created (Unix seconds) and model."""
    message = {"role": "assistant", "content": text}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": ended.finish_reason,
    }
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage(ended)}


def chunk(
    head: Mapping[str, Any], delta: Mapping[str, Any], finish_reason: str | None = None
) -> dict[str, Any]:
    """One event of a streamed answer."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {**head, "object": "chat.completion.chunk", "choices": [choice]}


def embeddings(
    model: str, vectors: NDArray[np.float32], tokens: int, *, as_base64: bool
) -> dict[str, Any]:
    """Vectors (n, dim) as OpenAI gives them. as_base64: little-endian float32, encoded."""
    rows: Sequence[Any] = vectors.tolist()
    if as_base64:
        rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
    data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
    count = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": count}


def models(names: Sequence[str], created: int) -> dict[str, Any]:
    """The list of models."""
    rows = [
        {"id": name, "object": "model", "created": created, "owned_by": "edgemem"} for name in names
    ]
    return {"object": "list", "data": rows}

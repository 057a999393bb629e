"""OpenAI's routes (chat completions, embeddings, models) and llama-server's /lora-adapters.

Departures from OpenAI's API: one choice, no log-probabilities and no penalties; temperature is 0
unless given; tools may be given and are never called; a max_tokens above what the window has left
means the window's end. /lora-adapters scales the adapters of completions without memory.

With `user`, an answer is made with that user's memory, and with that of an agent_id and
run_id beside it alone. An instruct model then follows the sampling settings and the system message.
Other models give short answers and ignore both.

With `user`, images of the last message are stored with it and shown to a model with a projector.
Images of earlier messages are ignored: the call that sent them has stored them. Without `user`, an
image is refused.

With `user`, the last message goes through Chat. Nothing is sent before the answer's first piece, so
status 200 means that the message is stored. Facts are extracted from it later, while the engine is
idle. `store: false` stores neither message nor answer. A message sent again asks for another
answer, and is not stored again. A message with a transcript of the conversation is a program's
request, such as for a title: it is answered as one without `user`.
Source: OpenAI API reference, chat completions and embeddings; llama.cpp, tools/server.
"""

from __future__ import annotations

import base64
import json
import logging
import random
import re
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from edgemem.chat import Chat
from edgemem.errors import EdgememError, InputError
from edgemem.inputs import NO_WORDS, image_part, shown, spaced
from edgemem.results import Message, Scope, to_utc, utc_now
from edgemem.runtime.generation import Generation, Options
from edgemem.server.service import (
    Job,
    Refusal,
    Service,
    field,
    json_object,
    json_value,
    refusal_of,
    service_of,
    strings,
    unless_gone,
    wrong,
)
from edgemem.store.rows import StoredTurn

__all__ = ["ROUTES"]

_STAGE = "server"  # the stage of completions without memory, which /lora-adapters sets
_MOST_TEXTS = 2048  # OpenAI's own limit of texts in one request for embeddings
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
# Fields that are not supported. Each is refused unless its value, one of these, has no effect.
_REFUSED: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "tool_choice": ("auto", "none"),
    "function_call": ("auto", "none"),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "audio": (),
    "modalities": (["text"],),
}
_NEWEST_TURNS = 12  # turns of a user that a message is compared with
_QUOTED_CHARS = 12  # a shorter turn may stand in a message by chance
_NAMES = "user|human|assistant|ai|bot|model|response|content"  # before a turn of a transcript
_REPEATED_WITHIN_S = 3600  # in which the same message asks for another answer
_NO_MODEL = Generation("", 0, 0, 0, 0.0, 0.0, "stop")  # stands for an answer made without a model

Piece = str | Generation  # of an answer: its text in pieces, then the measurements


# -- chat completions: what is asked -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChatRequest:
    """A checked request.

    messages: role and content, as texts. images: data URIs of the last message. scope: None
    answers without memory. store: whether the message and its answer are remembered.
    """

    model: str
    messages: list[dict[str, str]]
    images: list[str]
    scope: Scope | None
    store: bool
    stream: bool
    include_usage: bool
    options: Options


def _checked(body: Mapping[str, Any]) -> _ChatRequest:
    """Checks the body of a chat completion. Raises Refusal, naming the field."""
    for name, fine in _REFUSED.items():
        value = body.get(name)
        if value is not None and value not in fine:
            allowed = " or ".join(map(repr, fine))
            only = f"only {allowed} is allowed here" if fine else "this server cannot do it"
            raise wrong(name, value, f"{only}, or leave it out")
    user = field(body, "user", str)
    beside = (field(body, name, str) for name in ("agent_id", "run_id"))
    scope = None if user is None else Scope(user, *beside)
    schema = _schema(field(body, "response_format", dict))
    if user is not None and schema is not None:
        raise Refusal(
            "response_format cannot be followed by an answer from memory; leave it or user out",
            param="response_format",
        )
    messages, images = _messages(body)
    if user is None and images:
        raise Refusal(
            "without user, no image is shown to the model; give user to have it remembered, and "
            "shown to a model with a projector",
            param="messages",
        )
    if user is not None and messages[-1]["role"] != "user":
        raise Refusal("with user, the last message must be of the role user", param="messages")
    streamed = field(body, "stream_options", dict, {})
    options = _options(body)
    if schema is not None:
        options["schema"] = schema
    model = field(body, "model", str)
    if not model:
        raise Refusal("model is missing; GET /v1/models lists the models", param="model")
    return _ChatRequest(
        model=model,
        messages=messages,
        images=images,
        scope=scope,
        store=field(body, "store", bool, True),
        stream=field(body, "stream", bool, False),
        include_usage=field(streamed, "include_usage", bool, False),
        options=options,
    )


def _options(body: Mapping[str, Any]) -> Options:
    """Returns the sampling settings of a request."""
    limit = field(body, "max_completion_tokens", int)
    limit = field(body, "max_tokens", int) if limit is None else limit
    seed = field(body, "seed", int)
    if seed is not None and seed < 0:
        raise wrong("seed", seed, "it must be 0 or more")
    options: Options = {
        "temperature": field(body, "temperature", float, 0.0),
        "top_p": field(body, "top_p", float, 1.0),
        "seed": random.getrandbits(32) if seed is None else seed,
        "stop": tuple(strings(body.get("stop") or [], "stop")),
    }
    if limit is not None:
        options["max_tokens"] = limit
    return options


def _messages(body: Mapping[str, Any]) -> tuple[list[dict[str, str]], list[str]]:
    """Returns the messages with texts as contents, and the images of the last one.

    The results of tools, and the assistant's messages without text, which call them, are left out.
    """
    given = field(body, "messages", list, [])
    if not given:
        raise Refusal("messages is missing or empty; give at least one", param="messages")
    found, images, role = [], list[str](), None
    for number, message in enumerate(given):
        where = f"messages[{number}]"
        named = message.get("role") if isinstance(message, dict) else None
        role = _ROLES.get(named) if isinstance(named, str) else None
        if role is None:
            raise Refusal(
                f"{where} must be an object with a role of {', '.join(_ROLES)}, and content",
                param=where,
            )
        content = message.get("content")
        if role == "tool" or (role == "assistant" and content is None):
            continue
        text, shows = _parts(content, f"{where}.content")
        if role != "assistant" or text:
            found.append({"role": role, "content": text})
            images = shows
    if role == "tool" or not found:
        raise Refusal(
            "messages ends with a tool's result, or has no text; no tool is called here, so end it "
            "with what the user says",
            param="messages",
        )
    return found, images


def _parts(content: object, where: str) -> tuple[str, list[str]]:
    parts = [content] if isinstance(content, str) else content
    texts: list[str] = []
    images: list[str] = []
    for part in parts if isinstance(parts, list) else [None]:
        if isinstance(part, dict) and part.get("type") == "image_url":
            try:
                images.append(str(image_part(part, where).source))
            except InputError as exc:
                raise Refusal(str(exc), param=where) from exc
            continue
        if isinstance(part, dict) and part.get("type") == "text":
            part = part.get("text")
        if not isinstance(part, str):
            raise Refusal(
                f"{where} must be a text, or a list of parts of the type text or image_url",
                param=where,
            )
        texts.append(part)
    text = "\n".join(text for text in texts if text.strip())
    return (NO_WORDS if images and not text.strip() else text), images


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
            f"response_format is {shown(wanted)}; its type must be text, json_object, or "
            "json_schema with json_schema.schema an object",
            param="response_format",
        )
    return schema


# -- chat completions: what is answered ----------------------------------------------------------


async def _chat_completions(request: Request) -> Response:
    """POST /v1/chat/completions."""
    service = service_of(request)
    asked = _checked(await json_object(request))
    await service.in_thread(lambda: _require_model(asked.model, _model_names(service)))
    head = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": asked.model,
    }

    def work(job: Job[Piece]) -> None:
        made = _answer(service, asked, job) or _NO_MODEL
        service.metrics.count("edgemem_prompt_tokens_total", made.prompt_tokens)
        service.metrics.count("edgemem_completion_tokens_total", made.completion_tokens)
        job.put(made)

    job: Job[Piece] = service.worker.submit(work)
    try:
        # An error before the first piece still gets its own status.
        first = await unless_gone(job.next(), request.receive)
        if asked.stream:
            events = _events(service, job, asked, head, first)
            return StreamingResponse(events, media_type="text/event-stream")
        return await unless_gone(_whole_response(job, head, first), request.receive)
    except BaseException:
        service.worker.cancel(job)
        raise


def _answer(service: Service, asked: _ChatRequest, job: Job[Piece]) -> Generation | None:
    if asked.scope is None:
        return _answer_without_memory(service, asked, job)
    turns = service.memory.store.recent_turns(asked.scope, limit=_NEWEST_TURNS)
    if not asked.images and _has_transcript(asked.messages[-1]["content"], turns):
        return _answer_without_memory(service, asked, job)
    return _answer_with_memory(service, asked, asked.scope, job, turns)


def _answer_without_memory(
    service: Service, asked: _ChatRequest, job: Job[Piece]
) -> Generation | None:
    """Runs the model on the messages alone: no memory is read or written."""
    engine = service.memory.engine
    if not engine.has_chat_template:
        raise Refusal(
            f"{engine.name} has no chat template, so it answers only with memory: give `user`, or "
            "start the server with an instruction-tuned model",
        )
    room = engine.n_ctx - engine.count_tokens(asked.messages)
    options: Options = {**asked.options, "stage": _STAGE, "should_stop": job.cancelled}
    if (limit := options.get("max_tokens")) is not None and limit > room:
        options["max_tokens"] = None  # the window's end
    stream = engine.stream(asked.messages, **options)
    for piece in stream:
        job.put(piece)
    return stream.result


def _answer_with_memory(
    service: Service,
    asked: _ChatRequest,
    scope: Scope,
    job: Job[Piece],
    turns: Sequence[StoredTurn],
) -> Generation | None:
    """Answers with the memory of a scope. turns: its newest ones, oldest first."""
    now = utc_now()
    said = [Message(m["role"], m["content"], now) for m in asked.messages if m["role"] != "system"]
    told = "\n\n".join(m["content"] for m in asked.messages if m["role"] == "system")
    chat = Chat(service.memory, **asdict(scope), turns=said[:-1], instructions=told)
    last, images = said[-1].content, asked.images
    again = not images and _repeats(last, turns)
    reply = chat.send(
        last,
        images=images,
        remember=("answer" if again else "first") if asked.store else False,
        options=asked.options,
    )
    for piece in reply:
        job.put(piece)
        if job.cancelled():
            reply.close()
    return reply.generation


def _has_transcript(text: str, turns: Sequence[StoredTurn]) -> bool:
    """Whether a text holds a transcript of at least two of the turns.

    A transcript has the turns word for word, each after the name of its role. A turn inside another
    is not counted. A person who quotes a turn names no role.
    """
    rest, found = spaced(text), 0
    said = {spaced(turn.content) for turn in turns if turn.role in ("user", "assistant")}
    for turn in sorted(said, key=len, reverse=True):
        if len(turn) >= _QUOTED_CHARS and turn in rest:
            named = rf"\b(?:{_NAMES})\W*{re.escape(turn)}"
            found += re.search(named, rest, re.IGNORECASE) is not None
            rest = rest.replace(turn, "\n")
    return found >= 2


def _repeats(text: str, turns: Sequence[StoredTurn]) -> bool:
    """Whether a text is the newest thing that the user said, and was stored a short time ago."""
    said = [turn for turn in turns if turn.role == "user"]
    if not said or spaced(said[-1].content) != spaced(text):
        return False
    return said[-1].created_at > to_utc(time.time() - _REPEATED_WITHIN_S)


async def _whole_response(job: Job[Piece], head: Mapping[str, Any], piece: Piece) -> Response:
    """Returns the whole answer as one response. piece: the job's first."""
    pieces: list[str] = []
    while isinstance(piece, str):
        pieces.append(piece)
        piece = await job.next()
    message = {"role": "assistant", "content": "".join(pieces)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _reason(piece)}
    shape = {"object": "chat.completion", "choices": [choice], "usage": _usage(piece)}
    return JSONResponse({**head, **shape})


async def _events(
    service: Service, job: Job[Piece], asked: _ChatRequest, head: Mapping[str, Any], piece: Piece
) -> AsyncIterator[str]:
    """Yields the answer as server-sent events, then `[DONE]`. An error ends it as a last event.

    A client that hangs up ends the iterator, which cancels the job.
    """

    def event(delta: Mapping[str, Any], reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return chunk([choice], {"usage": None} if asked.include_usage else {})

    def chunk(choices: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]) -> str:
        return _data({**head, "object": "chat.completion.chunk", "choices": choices, **usage})

    try:
        yield event({"role": "assistant", "content": ""})
        while isinstance(piece, str):
            yield event({"content": piece})
            piece = await job.next()
        yield event({}, _reason(piece))
        if asked.include_usage:
            yield chunk([], {"usage": _usage(piece)})
        yield "data: [DONE]\n\n"
    except (Refusal, EdgememError) as exc:
        yield _data(refusal_of(exc).body("/v1/"))
    except Exception:
        logging.getLogger(__name__).exception("an answer broke off")
        told = Refusal("the answer broke off; the server's own messages say how", 500)
        yield _data(told.body("/v1/"))
    finally:
        service.worker.cancel(job)


def _data(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _reason(made: Generation) -> str:
    return "length" if made.finish_reason == "length" else "stop"


def _usage(made: Generation) -> dict[str, Any]:
    return {
        "prompt_tokens": made.prompt_tokens,
        "completion_tokens": made.completion_tokens,
        "total_tokens": made.prompt_tokens + made.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": made.cached_tokens},
    }


# -- models and embeddings -----------------------------------------------------------------------


def _model_names(service: Service) -> tuple[str, ...]:
    """Returns the names of the language model, the listed one first."""
    return service.memory.engine.name, service.memory.settings.model


def _embedder_names(service: Service) -> tuple[str, ...]:
    """Returns the names of the embedder, the listed one, without the hash of its file, first."""
    model_id = service.memory.embedder.model_id
    return model_id.partition("@")[0], model_id, service.memory.settings.embedder


def _require_model(name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise _no_model(name, f"for this call there is {names[0]!r} (GET /v1/models)")


def _no_model(name: str, instead: str) -> Refusal:
    return Refusal(
        f"there is no model {shown(name)} here; {instead}",
        404,
        param="model",
        code="model_not_found",
    )


async def _models(request: Request) -> Response:
    """GET /v1/models: the language model and the embedder."""
    rows = [_model_row(names[0]) for names in await _all_names(service_of(request))]
    return JSONResponse({"object": "list", "data": rows})


async def _model(request: Request) -> Response:
    """GET /v1/models/{name}, by any name that a call for an answer or for vectors may give."""
    wanted, models = request.path_params["name"], await _all_names(service_of(request))
    for names in models:
        if wanted in names:
            return JSONResponse(_model_row(names[0]))
    raise _no_model(wanted, f"there are {', '.join(names[0] for names in models)}")


async def _all_names(service: Service) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return await service.in_thread(lambda: (_model_names(service), _embedder_names(service)))


def _model_row(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(time.time()), "owned_by": "edgemem"}


async def _embeddings(request: Request) -> Response:
    """POST /v1/embeddings: floats, or little-endian float32 in base64."""
    service, body = service_of(request), await json_object(request)
    name = field(body, "model", str, "")
    texts = strings(body.get("input"), "input")
    encoding = field(body, "encoding_format", str, "float")
    if encoding not in ("float", "base64"):
        raise wrong("encoding_format", encoding, "it must be float or base64")
    if not 1 <= len(texts) <= _MOST_TEXTS or not all(texts):
        raise Refusal(
            f"input has {len(texts)} texts; it must have 1 to {_MOST_TEXTS}, none of them empty",
            param="input",
        )
    dimensions = field(body, "dimensions", int)

    def work() -> Response:
        embedder = service.memory.embedder
        _require_model(name, _embedder_names(service))
        if dimensions not in (None, embedder.dim):
            rule = f"this model's vectors have {embedder.dim}: give that, or leave it out"
            raise wrong("dimensions", dimensions, rule)
        vectors = embedder.embed(texts)
        rows: Sequence[Any] = vectors.tolist()
        if encoding == "base64":
            rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
        data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
        tokens = sum(map(embedder.count_tokens, texts))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return JSONResponse({"object": "list", "data": data, "model": name, "usage": usage})

    return await service.in_thread(work, embedding=True)


# -- adapters ------------------------------------------------------------------------------------


async def _adapters(request: Request) -> Response:
    """GET /lora-adapters: each adapter with its scale in completions without memory."""
    service = service_of(request)
    loaded = await service.in_thread(lambda: service.memory.engine.adapters())
    rows = [
        {"id": i, "path": str(a.path), "scale": service.scales.get(a.name, 0.0), "name": a.name}
        for i, a in enumerate(loaded)
    ]
    return JSONResponse(rows)


async def _set_adapters(request: Request) -> Response:
    """POST /lora-adapters: scales by id. An adapter without one gets 0, as in llama-server."""
    service, rows = service_of(request), await json_value(request)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Refusal('the body must be a list such as [{"id": 0, "scale": 0.5}]')
    wanted = [(field(row, "id", int, -1), field(row, "scale", float, 0.0)) for row in rows]

    def work() -> None:
        engine = service.memory.engine
        loaded = engine.adapters()
        if unknown := [id for id, _ in wanted if not 0 <= id < len(loaded)]:
            raise Refusal(
                f"there is no adapter with the id {unknown[0]}; GET /lora-adapters lists the "
                f"{len(loaded)} that are loaded",
            )
        scales = {loaded[id].name: float(scale) for id, scale in wanted}
        engine.bind(_STAGE, {name: scale for name, scale in scales.items() if scale})
        service.scales = scales

    await service.in_engine(work, request.receive)
    return JSONResponse({"success": True})


ROUTES = (
    Route("/v1/models", _models),
    Route("/v1/models/{name:path}", _model),
    Route("/v1/chat/completions", _chat_completions, methods=["POST"]),
    Route("/v1/embeddings", _embeddings, methods=["POST"]),
    Route("/lora-adapters", _adapters, methods=["GET"]),
    Route("/lora-adapters", _set_adapters, methods=["POST"]),
)

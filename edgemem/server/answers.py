"""`/v1/chat/completions`: an answer of the engine, whole or streamed, with memory or without.

With `user`, the last message goes through Chat: recall, then the message is stored, then the
answer is made, and stored before its end is told. Nothing is sent before its first piece, so a 200
says that the message is kept. Its facts are taken later, while nobody waits. Without `user`, no
memory is read or written.

Knows requests and the queue; what is recalled and shown is Chat's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from edgemem.chat import Chat
from edgemem.results import Message, utc_now
from edgemem.runtime.engine import Generation
from edgemem.runtime.generation import Options
from edgemem.server.completions import ChatRequest, Ended, chat_request, chunk, completion, usage
from edgemem.server.http import json_object, service_of, unless_gone
from edgemem.server.refusals import Refusal, refusal_of
from edgemem.server.service import STAGE, Service
from edgemem.server.work import Job

__all__ = ["chat_completions"]

Given = str | Ended


async def chat_completions(request: Request) -> Response:
    """POST /v1/chat/completions."""
    service = service_of(request)
    ask = chat_request(await json_object(request))
    await service.apart(lambda: service.require_model(ask.model))
    head = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": ask.model,
    }
    job = service.worker.submit(_work(service, ask))
    try:
        # Errors come before the first piece: they still get a status of their own.
        first = await unless_gone(job.next(), request.receive)
        if ask.stream:
            return _Events(service, job, _events(job, ask, head, first))
        return await unless_gone(_whole(job, head, first), request.receive)
    except BaseException:
        service.worker.cancel(job)
        raise


def _work(service: Service, ask: ChatRequest) -> Callable[[Job[Given]], None]:
    def run(job: Job[Given]) -> None:
        ended = (_plain if ask.user is None else _remembered)(service, ask, job)
        service.metrics.count("edgemem_prompt_tokens_total", ended.prompt_tokens)
        service.metrics.count("edgemem_completion_tokens_total", ended.completion_tokens)
        job.put(ended)

    return run


def _plain(service: Service, ask: ChatRequest, job: Job[Given]) -> Ended:
    engine = service.memory.engine
    if not engine.has_chat_template:
        raise Refusal(
            400,
            f"{engine.name} has no chat template, so it answers only with memory: give `user`, or "
            "start the server with an instruction-tuned model",
        )
    stream = engine.stream(
        list(ask.messages),
        max_tokens=ask.max_tokens,
        temperature=ask.temperature,
        top_p=ask.top_p,
        seed=ask.seed,
        stop=ask.stop,
        schema=ask.schema,
        stage=STAGE,
        should_stop=job.cancelled,
    )
    for piece in stream:
        job.put(piece)
    return _ended(stream.result)


def _remembered(service: Service, ask: ChatRequest, job: Job[Given]) -> Ended:
    now = utc_now()
    said = [Message(m["role"], m["content"], now) for m in ask.messages if m["role"] != "system"]
    told = "\n\n".join(m["content"] for m in ask.messages if m["role"] == "system")
    chat = Chat(service.memory, user_id=ask.user or "", turns=said[:-1], instructions=told)
    options: Options = {
        "temperature": ask.temperature,
        "top_p": ask.top_p,
        "seed": ask.seed,
        "stop": ask.stop,
    }
    if ask.max_tokens is not None:
        options["max_tokens"] = ask.max_tokens
    reply = chat.send(said[-1].content, remember="first", options=options)
    for piece in reply:
        job.put(piece)
        if job.cancelled():
            reply.close()
    return _ended(reply.generation)


def _ended(made: Generation | None) -> Ended:
    """made: None for an answer that took no model."""
    if made is None:
        return Ended("stop")
    reason = "length" if made.finish_reason == "length" else "stop"
    return Ended(reason, made.prompt_tokens, made.completion_tokens, made.cached_tokens)


async def _whole(job: Job[Given], head: Mapping[str, Any], given: Given | None) -> Response:
    """The answer in one piece, beginning with what was given first."""
    pieces: list[str] = []
    while isinstance(given, str):
        pieces.append(given)
        given = await job.next()
    assert given is not None
    return JSONResponse(completion(head, "".join(pieces), given))


async def _events(
    job: Job[Given], ask: ChatRequest, head: Mapping[str, Any], given: Given | None
) -> AsyncIterator[str]:
    """The answer as server-sent events, `[DONE]` at last; an error in the midst of it is one."""
    usage_of_all_but_the_last = {"usage": None} if ask.include_usage else {}

    def event(delta: Mapping[str, Any], reason: str | None = None) -> str:
        return _data(chunk(head, delta, reason) | usage_of_all_but_the_last)

    yield event({"role": "assistant", "content": ""})
    try:
        while isinstance(given, str):
            yield event({"content": given})
            given = await job.next()
    except Exception as exc:
        yield _data(_told(exc).body("/v1/"))
        return
    assert given is not None
    yield event({}, given.finish_reason)
    if ask.include_usage:
        yield _data({**chunk(head, {}), "choices": [], "usage": usage(given)})
    yield "data: [DONE]\n\n"


def _data(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _told(error: Exception) -> Refusal:
    """What a client is told in the middle of an answer; an error that is not ours is logged."""
    try:
        return refusal_of(error)
    except Exception:
        logging.getLogger(__name__).exception("an answer broke off")
        return Refusal(500, "the answer broke off; the server's own messages say how")


class _Events(Response):
    """A stream that ends the work when the client hangs up, or takes nothing in for too long."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, job: Job[Given], events: AsyncIterator[str]) -> None:
        super().__init__(headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._service, self._job, self._events = service, job, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def body(text: str, *, more: bool) -> None:
            message = {"type": "http.response.body", "body": text.encode(), "more_body": more}
            async with asyncio.timeout(self._service.limits.send_s):
                await send(message)

        async def all_of_it() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for event in self._events:
                await body(event, more=True)
            await body("", more=False)

        try:
            await unless_gone(all_of_it(), receive)
        except (Refusal, TimeoutError):
            pass  # the server closes the connection
        finally:
            self._service.worker.cancel(self._job)

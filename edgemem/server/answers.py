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
import time
import uuid
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from edgemem.chat import Chat
from edgemem.results import Message, utc_now
from edgemem.server.completions import ChatRequest, Ended, chat_request, chunk, completion, usage
from edgemem.server.http import json_object, service_of, unless_gone
from edgemem.server.refusals import Refusal, refusal_of
from edgemem.server.service import STAGE, Service
from edgemem.server.work import Job

__all__ = ["chat_completions"]

Given = str | Ended
_FINISHED = {"length": "length"}  # every other reason is OpenAI's "stop"


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
    answer = _Answer(service, job, ask, head)
    try:
        # Errors come before the first piece: they still get a status of their own.
        first = await unless_gone(job.next(), request.receive)
        if ask.stream:
            return answer.streamed(first)
        return await unless_gone(answer.whole(first), request.receive)
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
    made = stream.result
    assert made is not None
    return Ended(
        _FINISHED.get(made.finish_reason, "stop"),
        made.prompt_tokens,
        made.completion_tokens,
        made.cached_tokens,
    )


def _remembered(service: Service, ask: ChatRequest, job: Job[Given]) -> Ended:
    now = utc_now()
    said = [Message(m["role"], m["content"], now) for m in ask.messages if m["role"] != "system"]
    chat = Chat(service.memory, user_id=ask.user or "", turns=said[:-1])
    reply = chat.send(said[-1].content, remember="first")
    for piece in reply:
        job.put(piece)
        if job.cancelled():
            reply.close()
    made = reply.generation
    if made is None:
        return Ended("stop")
    return Ended(
        _FINISHED.get(made.finish_reason, "stop"),
        made.prompt_tokens,
        made.completion_tokens,
        made.cached_tokens,
    )


class _Answer:
    """What a job gives, as OpenAI's client wants it."""

    def __init__(
        self, service: Service, job: Job[Given], ask: ChatRequest, head: dict[str, Any]
    ) -> None:
        self.service, self.job, self.ask, self.head = service, job, ask, head

    async def whole(self, given: Given | None) -> Response:
        """The answer in one piece, beginning with what was given first."""
        pieces: list[str] = []
        while isinstance(given, str):
            pieces.append(given)
            given = await self.job.next()
        assert given is not None
        return JSONResponse(completion(self.head, "".join(pieces), given))

    def streamed(self, first: Given | None) -> Response:
        """The answer as server-sent events."""
        return _Events(self, first)

    async def send(self, given: Given | None, send: Callable[[str], Any]) -> None:
        """Send the events, one after another, and `[DONE]` at last."""
        tokens = {"usage": None} if self.ask.include_usage else {}

        async def event(value: dict[str, Any]) -> None:
            await send(f"data: {json.dumps(value, ensure_ascii=False)}\n\n")

        await event(chunk(self.head, {"role": "assistant", "content": ""}) | tokens)
        try:
            while isinstance(given, str):
                await event(chunk(self.head, {"content": given}) | tokens)
                given = await self.job.next()
        except Exception as exc:
            await event(_told(exc).body("/v1/"))
            return
        assert given is not None
        await event(chunk(self.head, {}, given.finish_reason) | tokens)
        if self.ask.include_usage:
            await event({**chunk(self.head, {}), "choices": [], "usage": usage(given)})
        await send("data: [DONE]\n\n")


def _told(error: Exception) -> Refusal:
    """An error in the middle of an answer; what it was is the client's to know if it is ours."""
    try:
        return refusal_of(error)
    except Exception:
        return Refusal(500, "the answer broke off; see the server's own messages")


class _Events(Response):
    """A stream that ends the work when the client hangs up, or takes nothing in for too long."""

    media_type = "text/event-stream"

    def __init__(self, answer: _Answer, first: Given | None) -> None:
        super().__init__(headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._answer, self._first = answer, first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer
        patience_s = answer.service.limits.send_s

        async def body(text: str, more: bool = True) -> None:
            message = {"type": "http.response.body", "body": text.encode(), "more_body": more}
            async with asyncio.timeout(patience_s):
                await send(message)

        async def all_of_it() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await answer.send(self._first, body)
            await body("", more=False)

        try:
            await unless_gone(all_of_it(), receive)
        except (Refusal, TimeoutError):
            pass  # the server closes the connection
        finally:
            answer.service.worker.cancel(answer.job)

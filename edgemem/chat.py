"""Chat: one turn is recall, then generate (streamed), then remember.

Knows a Memory and an Engine; no SQL, no prompt (stages/generation.py has them). What is recalled is
shown to the model marked with its date and speaker, and an answer made from it is kept as a turn
that is never searched or extracted from: recalled text is not remembered again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

from edgemem.memory import Memory
from edgemem.results import AddResults, Hit, Message, SearchResults, to_utc, utc_now
from edgemem.retrieval.fusion import is_relevant
from edgemem.runtime.engine import Engine, Generation
from edgemem.stages import generation
from edgemem.text import is_question

__all__ = ["Chat", "Reply"]

CONTEXT_MEMORIES = 4  # a 135 M model is led astray by more
CANDIDATES = 16
_PAST_TURNS = 4

# A question that only this person's memory can answer, as against general knowledge.
_PERSONAL = re.compile(
    r"\b(?:i|i['’](?:m|ve|d|ll)|my|me|mine|we|our|us|you|your|he|she|they|his|her|their)\b", re.I
)
_PAST = re.compile(r"\b(?:before|used to|previous(?:ly)?|former(?:ly)?|back then|old)\b", re.I)


class Reply:
    """The answer of one turn: iterate it for its pieces; then read the rest.

    hits: what recall found, known from the start. context: the memories shown to the model. found:
    whether anything relevant was. text, generation, changes (what was remembered), timings
    (recall_ms, ttft_s, tokens_per_s, remember_s): known once it has been iterated to its end.
    """

    def __init__(
        self, pieces: Iterator[str], hits: SearchResults, context: tuple[Hit, ...], recall_ms: float
    ) -> None:
        self._pieces = pieces
        self.hits = hits
        self.context = context
        self.found = bool(context)
        self.text = ""
        self.generation: Generation | None = None
        self.changes: AddResults | None = None
        self.timings: dict[str, float] = {"recall_ms": recall_ms}

    def __iter__(self) -> Reply:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop the answer here; what was said so far is still remembered."""
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()


class Chat:
    """A conversation of one user with the model, with memory.

    engine: None takes the memory's own. Raises what Memory and Engine raise.
    """

    def __init__(
        self,
        memory: Memory,
        engine: Engine | None = None,
        *,
        user_id: str = "default",
        agent_id: str | None = None,
        run_id: str | None = None,
    ) -> None:
        self.memory = memory
        self._engine = engine
        self._scope: dict[str, str | None] = {
            "user_id": user_id,
            "agent_id": agent_id,
            "run_id": run_id,
        }
        self._turns: list[Message] = []

    @property
    def engine(self) -> Engine:
        return self._engine or self.memory.engine

    def send(self, text: str, *, timestamp: Any = None, remember: bool = True) -> Reply:
        """Say something; the reply streams as it is iterated.

        timestamp: when it is said (datetime, ISO text or seconds; None: now). remember=False
        answers without storing anything. Raises InputError on a text that cannot be stored.
        """
        said_at = to_utc(timestamp) if timestamp is not None else utc_now()
        started = time.perf_counter()
        hits = self.memory.search(text, **self._scope, top_k=CANDIDATES, explain=True)
        context = self._relevant(text, hits) if is_question(text) else ()
        recall_ms = (time.perf_counter() - started) * 1e3
        reply = Reply(iter(()), hits, context, recall_ms)
        reply._pieces = self._run(reply, text, said_at, remember)
        return reply

    def _run(self, reply: Reply, text: str, said_at: str, remember: bool) -> Iterator[str]:
        pieces: list[str] = []
        try:
            if is_question(text) and not reply.context and _PERSONAL.search(text):
                pieces.append(generation.NOTHING_FOUND)
                yield generation.NOTHING_FOUND
            else:
                stream = self._stream(reply, text)
                try:
                    for piece in stream:
                        piece = piece if pieces else piece.lstrip()
                        if piece:
                            pieces.append(piece)
                            yield piece
                finally:
                    stream.close()
                    reply.generation = stream.result
                if reply.generation is not None:
                    reply.timings["ttft_s"] = reply.generation.ttft_s
                    reply.timings["tokens_per_s"] = reply.generation.tokens_per_s
        finally:
            reply.text = "".join(pieces).strip()
            if remember:
                self._remember(reply, text, said_at)

    def _stream(self, reply: Reply, text: str) -> Any:
        if not reply.context:
            return generation.reply(self.engine, text, self._turns[-_PAST_TURNS:])
        return generation.answer(
            self.engine, text, [self._recalled(hit) for hit in reply.context], speaker="User"
        )

    def _relevant(self, question: str, hits: SearchResults) -> tuple[Hit, ...]:
        """The hits to answer from: relevant, no mere questions, and not out of date.

        A turn is out of date when a fact taken from it has been contradicted since; questions about
        the past get it all the same.
        """
        stale = frozenset[str]()
        if not _PAST.search(question):
            stale = self.memory.stale_turns([s for hit in hits for s in hit.sources])
        good = [
            hit
            for hit in hits
            if is_relevant(hit.parts or {})
            and not (hit.kind == "turn" and is_question(hit.memory))
            and not (hit.kind == "turn" and stale.intersection(hit.sources))
        ]
        return tuple(good[:CONTEXT_MEMORIES])

    def _recalled(self, hit: Hit) -> generation.Recalled:
        speaker = "User"
        if hit.kind == "turn":
            turns = self.memory.source_turns(hit.id)
            if turns:
                speaker = (turns[0].name or turns[0].role).capitalize()
        return generation.Recalled(hit.memory, hit.valid_from, speaker, hit.kind == "turn")

    def _remember(self, reply: Reply, text: str, said_at: str) -> None:
        started = time.perf_counter()
        answer: dict[str, Any] = {"role": "assistant", "content": reply.text, "timestamp": said_at}
        messages: list[dict[str, Any]] = [{"role": "user", "content": text, "timestamp": said_at}]
        if reply.text:
            # An answer from memory, or from nothing, is no news.
            messages.append({**answer, "recalled": reply.found or reply.generation is None})
        reply.changes = self.memory.add(messages, **self._scope)
        reply.timings["remember_s"] = time.perf_counter() - started
        self._turns += [Message("user", text, said_at), Message("assistant", reply.text, said_at)]

"""Chat: one turn is recall, then generate (streamed), then remember.

Knows a Memory and an Engine; no SQL, no prompt (stages/generation.py has them). What is recalled is
shown to the model marked with its date and speaker. What the model says, and what the user only
asks, is kept as a turn, but never searched or extracted from: neither recalled text nor an
invention is remembered as new.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from edgemem.errors import EdgememError
from edgemem.inputs import time_of
from edgemem.memory import Memory
from edgemem.recall import Context, recall
from edgemem.results import AddResults, Hit, Message, Scope, SearchResults, utc_now
from edgemem.runtime.engine import Engine, Generation, Stream
from edgemem.stages import generation
from edgemem.text import is_question

if TYPE_CHECKING:
    from edgemem.cloud.governor import CloudAnswer, Governor, Mode

__all__ = ["Chat", "Reply"]

SHOWN_SENTENCES = 2  # best of 1 to 4 for a base model of 135 M parameters; others are unmeasured
SHOWN_TURNS = 6  # to an expert, which was trained on 3 to 7
_CANDIDATES = 16
_PAST_TURNS = 4

# A question that only this person's memory can answer, as against general knowledge.
_PERSONAL = re.compile(
    r"\b(?:i|i['’](?:m|ve|d|ll)|my|me|mine|we|our|us|he|she|they|his|her|their)\b", re.I
)


class Reply:
    """The answer of one turn: iterate it for its pieces; then read the rest.

    hits: what recall found, known from the start. context: the memories shown to the model. found:
    whether anything relevant was. text, generation, changes (what was remembered), timings
    (recall_ms, ttft_s, tokens_per_s, remember_s): known once it has been iterated to its end.
    cloud: the cloud's answer, if that is what it is; cloud_error: why the local model answered.
    """

    def __init__(self, hits: SearchResults, context: tuple[Hit, ...], recall_ms: float) -> None:
        self.hits = hits
        self.context = context
        self.found = bool(context)
        self.text = ""
        self.generation: Generation | None = None
        self.changes: AddResults | None = None
        self.cloud: CloudAnswer | None = None
        self.cloud_error: str | None = None
        self.timings: dict[str, float] = {"recall_ms": recall_ms}
        self._pieces: Generator[str, None, None] | None = None

    def __iter__(self) -> Reply:
        return self

    def __next__(self) -> str:
        if self._pieces is None:
            raise StopIteration
        return next(self._pieces)

    def close(self) -> None:
        """Stop the answer here; the message and what was said so far are still remembered."""
        if self._pieces is not None:
            self._pieces.close()


class Chat:
    """A conversation of one user with the model, with memory.

    engine: None takes the memory's own. shown: sentences of recalled turns that the model sees, or
    whole turns if it has an expert for answers. cloud: may answer in the model's place. turns: what
    was said before in this conversation, oldest first.
    Raises what Memory and Engine raise.
    """

    def __init__(
        self,
        memory: Memory,
        engine: Engine | None = None,
        *,
        user_id: str = "default",
        agent_id: str | None = None,
        run_id: str | None = None,
        shown: int | None = None,
        cloud: Governor | None = None,
        turns: Sequence[Message] = (),
    ) -> None:
        self.memory = memory
        self.user_id, self.agent_id, self.run_id = user_id, agent_id, run_id
        self._engine = engine
        self._shown = shown
        self.cloud = cloud
        self._turns = list(turns)

    @property
    def engine(self) -> Engine:
        """The model that answers."""
        return self._engine or self.memory.engine

    def send(
        self,
        text: str,
        *,
        timestamp: datetime | str | float | None = None,
        remember: bool | Literal["first"] = True,
        cloud: Mode = "auto",
    ) -> Reply:
        """Say something; the reply streams as it is iterated.

        timestamp: when it is said (None: now). remember=False answers without storing anything;
        remember="first" stores the message before the answer begins, and leaves its facts to
        `Memory.process_pending`. cloud: "ask" it, "off", or let the governor decide; whatever fails
        there, the local model answers. What the cloud says comes in one piece.
        Raises InputError on a text that cannot be stored or a time that is none.
        """
        said_at = time_of(timestamp) or utc_now()
        started = time.perf_counter()
        hits = self.memory.search(
            text,
            user_id=self.user_id,
            agent_id=self.agent_id,
            run_id=self.run_id,
            top_k=_CANDIDATES,
            explain=True,
        )
        asks = is_question(text)
        context = self._context(text, hits) if asks else Context()
        reply = Reply(hits, context.hits, (time.perf_counter() - started) * 1e3)
        if remember == "first":
            reply.changes = self._add([_message(text)], said_at, infer="later")
        reply._pieces = self._run(reply, context, text, said_at, remember, cloud)
        next(reply._pieces)  # up to where it is sure to remember, however early it is closed
        return reply

    def forget(self, texts: Iterable[str]) -> None:
        """Leave out of what the model is shown of this conversation whatever says such a text."""
        gone = {" ".join(text.split()) for text in texts}
        self._turns = [t for t in self._turns if " ".join(t.content.split()) not in gone]

    def _run(
        self, reply: Reply, context: Context, text: str, said_at: str, remember: object, mode: Mode
    ) -> Generator[str, None, None]:
        pieces: list[str] = []
        try:
            yield ""
            self._ask_cloud(reply, text, mode)
            if reply.cloud is not None:
                pieces.append(reply.cloud.text)
                yield reply.cloud.text
                return
            if is_question(text) and not context.shown and _PERSONAL.search(text):
                pieces.append(generation.NOTHING_FOUND)
                yield generation.NOTHING_FOUND
                return
            stream = self._stream(context, text)
            try:
                for piece in stream:
                    piece = piece if pieces else piece.lstrip()
                    if piece:
                        pieces.append(piece)
                        yield piece
            finally:
                stream.close()
                reply.generation = stream.result
            if stream.result is not None:
                reply.timings["ttft_s"] = stream.result.ttft_s
                reply.timings["tokens_per_s"] = stream.result.tokens_per_s
        finally:
            reply.text = "".join(pieces).strip()
            self._turns.append(Message("user", text, said_at))
            if reply.text:
                self._turns.append(Message("assistant", reply.text, said_at))
            if remember and not self.memory.closed:
                self._remember(reply, text, said_at, stored=remember == "first")

    def _ask_cloud(self, reply: Reply, text: str, mode: Mode) -> None:
        """Ask the cloud if the governor lets it; the reply has its answer then, or why not."""
        if self.cloud is None:
            return
        asks = is_question(text)
        best = max((hit.score for hit in reply.context), default=0.0)
        # Nobody else can know what only this memory could tell.
        confidence = 1.0 if not asks or (not reply.found and _PERSONAL.search(text)) else best
        why = self.cloud.decide(text, confidence, mode)
        if why is None:
            return
        scope = Scope(self.user_id, self.agent_id, self.run_id)
        try:
            reply.cloud = self.cloud.ask(text, reply.hits if asks else (), scope=scope, why=why)
        except EdgememError as exc:
            reply.cloud_error = str(exc)

    def _context(self, question: str, hits: SearchResults) -> Context:
        expert = self.engine.expert("generation")
        most = self._shown or (SHOWN_TURNS if expert else SHOWN_SENTENCES)
        return recall(self.memory, question, hits, most=most, whole=expert)

    def _stream(self, context: Context, text: str) -> Stream:
        if context.shown:
            return generation.answer(self.engine, text, context.shown, speaker="User")
        return generation.reply(self.engine, text, self._turns[-_PAST_TURNS:])

    def _remember(self, reply: Reply, text: str, said_at: str, *, stored: bool) -> None:
        """Store the message, unless it is, and the answer."""
        started = time.perf_counter()
        answer = {"role": "assistant", "content": reply.text, "recalled": True}
        answers = [answer] if reply.text else []
        if not stored:
            reply.changes = self._add([_message(text), *answers], said_at, infer=True)
        elif answers:
            self._add(answers, said_at, infer=False)
        reply.timings["remember_s"] = time.perf_counter() - started

    def _add(
        self, messages: Sequence[Mapping[str, Any]], said_at: str, *, infer: bool | Literal["later"]
    ) -> AddResults:
        return self.memory.add(
            messages,
            timestamp=said_at,
            user_id=self.user_id,
            agent_id=self.agent_id,
            run_id=self.run_id,
            infer=infer,
        )


def _message(text: str) -> Mapping[str, Any]:
    # A question tells nothing, and asked again it would find itself first.
    return {"role": "user", "content": text, "recalled": is_question(text)}

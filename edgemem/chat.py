"""Chat: one turn is recall, then generate (streamed), then remember.

pipeline/plan.py decides how a message is answered. Under a refusal, or an answer that is not sure,
stands what was told nearest to the question.

The model's answers, and messages that only ask, are stored as turns, but never searched or
extracted from. So neither recalled nor invented text is remembered as new.

Knows a Memory and an Engine; no SQL, no prompt (the stages have them).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgemem.errors import EdgememError, InputError
from edgemem.inputs import text_of, time_of
from edgemem.memory import Memory
from edgemem.pipeline import image_memories, recall
from edgemem.pipeline.parts import engine_for
from edgemem.pipeline.plan import (
    AnswerPlan,
    Request,
    expert_engine,
    left_out,
    plan_answer,
    search,
    short_answer,
    understood,
    without_model,
)
from edgemem.pipeline.turn import Conversation, Turn, since_memory
from edgemem.results import (
    AddResults,
    Evidence,
    Hit,
    Message,
    Scope,
    SearchResults,
    local_time,
    utc_now,
)
from edgemem.runtime.engine import Engine, Generation, Stream
from edgemem.runtime.generation import Options
from edgemem.stages import generation
from edgemem.stages.intent import Want
from edgemem.stages.reply import (
    NEWS_TOKENS,
    NO_IDEA,
    TALK,
    acknowledge,
    converse,
    edited,
    fitting,
    fulfil,
    is_same_text,
    system_text,
    turn_text,
    without_echo,
)

if TYPE_CHECKING:
    from edgemem.cloud.governor import CloudAnswer, Governor, Mode

__all__ = ["Chat", "Reply", "Stopped"]

Remember = bool | Literal["first", "answer"]

_KNOWN_SHARE = 0.3  # of the window, for the system message with `recall.known`
_PAST_TURNS = 4  # shown for small talk


@dataclass(eq=False, slots=True, weakref_slot=True)
class Reply:
    """The answer of one turn: iterate it for its pieces, then read the attributes. A reply that is
    dropped ends as by `close`.

    Set from the start: wants (what the message wants), tells (whether it may tell something), hits
    (of the search), context (the memories shown), found (whether there were any). Set once it has
    ended: text, generation (None if no model was asked), changes (what was remembered), timings
    (intent_ms, recall_ms, ttft_s, tokens_per_s, remember_s), cloud (its answer), cloud_error.
    """

    wants: Want | None
    tells: bool
    hits: SearchResults
    context: tuple[Hit, ...]
    timings: dict[str, float]
    text: str = ""
    generation: Generation | None = None
    changes: AddResults | None = None
    cloud: CloudAnswer | None = None
    cloud_error: str | None = None
    _pieces: Generator[str, None, None] = field(init=False, repr=False)

    @property
    def found(self) -> bool:
        return bool(self.context)

    def __iter__(self) -> Reply:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop the answer here; the message and what was said so far are still remembered."""
        self._pieces.close()


class Stopped(KeyboardInterrupt):
    """Ctrl-C before an answer began. kept: whether the message is stored. wants: what it wants."""

    def __init__(self, *, kept: bool, wants: Want | None) -> None:
        super().__init__()
        self.kept, self.wants = kept, wants


class Chat:
    """A conversation of one user with the model, with memory.

    user_id: None means no user, as in Memory: with an agent_id or run_id alone the memories of all
    its users are found, and what is said is stored as nobody's. Left out, it is "default", also
    beside an agent_id. engine: None takes the memory's own. cloud: a governor that lets the cloud
    answer in the model's place. turns: what was said before in this conversation, oldest first.
    instructions: added to an instruct model's system message.
    Raises what Memory and Engine raise.
    """

    def __init__(
        self,
        memory: Memory,
        engine: Engine | None = None,
        *,
        user_id: str | None = "default",
        agent_id: str | None = None,
        run_id: str | None = None,
        cloud: Governor | None = None,
        turns: Sequence[Message] = (),
        instructions: str = "",
    ) -> None:
        self.memory = memory
        self.cloud = cloud
        self._talk = Conversation(
            memory, Scope(user_id, agent_id, run_id), engine, instructions, [*map(Turn, turns)]
        )

    @property
    def engine(self) -> Engine:
        """The model that answers."""
        return self._talk.engine

    def send(
        self,
        text: str,
        *,
        images: Sequence[bytes | str | Path] = (),
        timestamp: datetime | str | float | None = None,
        remember: Remember = True,
        cloud: Mode = "auto",
        options: Options | None = None,
    ) -> Reply:
        """Send a message; the reply streams as it is iterated.

        This call searches and may ask an expert (about a second), and stores the message, so that a
        message that cannot be stored gets no answer. When the reply ends or is closed, facts are
        extracted (seconds). A user interface should pass remember="first", which leaves the facts
        to `Memory.process_pending`, and run that on a worker.
        images: as for `Memory.add`; they are stored with the message. timestamp: when the message
        is said (None: now). remember=False stores nothing; "answer" stores the answer alone, for a
        message that is stored already. A message that only asks to forget is never stored.
        cloud: "ask" the cloud, "off", or "auto" to let the governor decide. The cloud's answer
        comes in one piece; if the cloud fails, the local model answers. options: of an answer in a
        conversation (temperature, max_tokens, stop …); quoted and short answers take none.
        Once anything of a conversation was erased, the model is shown only what the store still
        has, and an answer that was under way is not stored. A changed or deleted memory is not
        shown again.
        Ctrl-C raises Stopped: the message is then stored without an answer, unless a second Ctrl-C
        stops that too.
        Raises InputError on a message or image that cannot be stored, a bad time or another mode.
        """
        self._talk.drop_outdated()
        text_of(text, "message")
        if cloud not in ("ask", "auto", "off"):
            raise InputError(f"cloud is {cloud!r:.80}; give 'ask', 'auto' or 'off'")
        said_at = time_of(timestamp) or utc_now()
        started = time.perf_counter()
        read = partial(understood, self._talk, text, said_at, images, options)
        request: Request | None = None
        try:
            request = read()
            remember = _to_remember(request, remember)
            understood_at = time.perf_counter()
            stores = remember and remember != "answer"
            # A question about its own images is answered from them: they are stored and read first.
            of_images = bool(images) and request.wants == "recall" and not self.engine.sees
            changes = self._store(request) if stores and of_images else None
            sent = images if of_images else ()
            shown = image_memories.sent_with(self.memory, sent, changes, said_at)
            plan = plan_answer(self._talk, replace(request, sent=shown))
            timings = {"intent_ms": (understood_at - started) * 1e3}
            timings["recall_ms"] = (time.perf_counter() - understood_at) * 1e3
            if stores and changes is None:
                changes = self._store(request)
        except KeyboardInterrupt:
            raise self._stopped(read if request is None else lambda: request, remember) from None
        reply = Reply(plan.request.wants, request.intent.tells, plan.hits, plan.context, timings)
        reply.changes = changes
        # Not the reply itself, which holds the generator: it could not be freed at once.
        reply._pieces = self._run(weakref.proxy(reply), plan, remember, cloud)
        next(reply._pieces)  # enters the `try`, so that an early close still remembers
        return reply

    def _store(self, request: Request) -> AddResults:
        """Store a message. Searches leave one out that only asks: it would find itself."""
        said = {"role": "user", "content": request.text, "recalled": not request.intent.tells}
        more = {"images": request.images, "timestamp": request.said_at, **asdict(self._talk.scope)}
        return self.memory.add(said, infer="later", **more)

    def _stopped(self, read: Callable[[], Request], remember: Remember) -> Stopped:
        """Store a message whose answer was stopped before it began, if it is to be stored."""
        request = None
        # At a second Ctrl-C, or where nothing can be written, it is not kept.
        with suppress(KeyboardInterrupt, EdgememError):
            request = read()
            if _to_remember(request, remember) not in (False, "answer"):
                if not self._is_stored(request):
                    self._store(request)
                return Stopped(kept=True, wants=request.wants)
        return Stopped(kept=False, wants=request.wants if request else None)

    def _is_stored(self, request: Request) -> bool:
        last = self.memory.store.recent_turns(self._talk.scope, limit=1)
        return any((t.content, t.timestamp) == (request.text, request.said_at) for t in last)

    def offered(self, text: str) -> Sequence[Hit]:
        """The memories that a message would offer to the cloud as the first of a conversation."""
        talk, now = self._talk, utc_now()
        return () if understood(talk, text, now).wants is None else search(talk, text, now)

    def _run(
        self, reply: Reply, plan: AnswerPlan, remember: bool | str, mode: Mode
    ) -> Generator[str, None, None]:
        """The pieces of an answer. reply: a proxy; its attributes are set as they become known."""
        pieces: list[str] = []
        appended, changes, request = "", reply.changes, plan.request
        tells = request.intent.tells and not remember
        said = Message("user", request.text, request.said_at)
        turn = Turn(
            said, tells=tells, wants=request.wants, told_from=plan.listed, asked=request.asked
        )
        try:
            yield ""
            reply.cloud, reply.cloud_error = self._ask_cloud(plan, mode)
            if reply.cloud is not None:
                pieces.append(reply.cloud.text)
                yield pieces[0]
                return
            free = self._talk.heeds_notes or bool(request.options)
            fixed = None if plan.pixels else without_model(plan, self._talk.instructions, free=free)
            if fixed is not None:
                reply.generation = plan.expert_answer
                turn = replace(turn, refused=not plan.evidence)
                pieces.append(fixed)
                yield fixed
            else:
                stream, turn = self._stream(plan, turn)
                yield from _streamed(stream, reply, pieces)
            if not free and (shown := self._text_below(plan, "".join(pieces).strip())):
                appended = f"\n\n{shown}"
                yield appended
        finally:
            answer = "".join(pieces).strip()
            text = (answer + appended).strip()
            with suppress(ReferenceError):
                reply.text = text
            # The model is shown its own words again, not the quotation below them.
            kept = self._add_turns(plan, turn, answer)
            if remember and not self.memory.closed:
                started, text = time.perf_counter(), text if kept else ""
                changes = self._remember(text, request.said_at, changes, facts=remember != "first")
                with suppress(ReferenceError):
                    reply.changes = changes
                    reply.timings["remember_s"] = time.perf_counter() - started

    def _add_turns(self, plan: AnswerPlan, turn: Turn, answer: str) -> bool:
        """Add what was said to the conversation. Returns False if anything of it was erased."""
        if not self.memory.closed and self._talk.drop_outdated((*plan.hits, *plan.context)):
            return False
        said = Message("assistant", answer, turn.said.timestamp)
        reply = Turn(said, tells=turn.tells, refused=turn.refused)
        self._talk.turns += [turn, reply] if answer else [turn]
        return True

    def _remember(
        self, text: str, said_at: str, changes: AddResults | None, *, facts: bool
    ) -> AddResults | None:
        """Store an answer, and extract the facts of the message that was stored with `changes`."""
        if text:
            said = {"role": "assistant", "content": text, "recalled": True}
            self.memory.add(said, timestamp=said_at, infer=False, **asdict(self._talk.scope))
        return self.memory.take_facts(changes) if facts and changes is not None else changes

    def _ask_cloud(self, plan: AnswerPlan, mode: Mode) -> tuple[CloudAnswer | None, str | None]:
        """Ask the cloud if the governor allows it. Returns its answer, or its error."""
        text, wants = plan.request.text, plan.request.wants
        if self.cloud is None or (mode == "auto" and wants in ("erase", "source")):
            return None, None
        asks = wants is not None
        best = max((hit.score for hit in plan.context), default=0.0)
        # The cloud cannot know what only this memory could tell.
        confidence = 1.0 if not asks or plan.nothing_known else best
        why = self.cloud.decide(text, confidence, mode)
        if why is None:
            return None, None
        offered = plan.hits if asks else ()
        try:
            return self.cloud.ask(text, offered, scope=self._talk.scope, why=why), None
        except EdgememError as exc:
            return None, str(exc)

    def _stream(self, plan: AnswerPlan, turn: Turn) -> tuple[Stream, Turn]:
        """The answer of a model, and the user's turn as this model is shown it."""
        request, talk = plan.request, self._talk
        if plan.pixels:
            return image_memories.answer(self.engine, request.text, plan.pixels), turn
        if plan.way == "converse":
            stream, turn = self._converse(plan, turn)
            if request.wants == "recall" and not (talk.heeds_notes or request.options):
                stream = without_echo(stream, request.asked, partial(self._told, plan))
            return stream, turn
        if request.wants == "recall":
            engine = (expert_engine(talk) if plan.way == "answer" else None) or self.engine
            return short_answer(talk, engine, plan, quoting=True), turn
        if request.wants is None:
            talks = engine_for(self.memory, TALK, self.engine)
            return acknowledge(talks, request.text, kept=request.intent.tells), turn
        past = [turn.said for turn in self._talk.turns[-_PAST_TURNS:]]
        instead = generation.TOO_SMALL if request.wants in ("text", "edit") else NO_IDEA
        return fulfil(self.engine, request.text, past, instead), turn

    def _edits_alone(self, wants: Want | None) -> bool:
        """Whether the model is shown the last answer and no more: it is to be changed."""
        roles = [turn.said.role for turn in self._talk.turns[-2:] if not turn.refused]
        alone = wants == "edit" and not self._talk.heeds_notes
        return alone and roles == ["user", "assistant"]

    def _text_below(self, plan: AnswerPlan, answer: str) -> str:
        """The text below an answer, or "": the memories that bear on advice (on a letter, too, of a
        small model), or that are nearest to a question that was refused or that a conversing model
        answered; a caution; or that an edit changed nothing."""
        wants, converses = plan.request.wants, plan.way == "converse"
        is_small = self._talk.is_small
        if wants == "general" and answer != NO_IDEA and (is_small or not converses):
            return generation.CHECK_THIS
        if wants == "edit" and converses:
            before = [turn.said.content for turn in self._talk.turns[-1:]]
            return generation.TOO_SMALL if before and is_same_text(answer, *before) else ""
        if (wants == "task" or (wants == "text" and is_small)) and converses and plan.evidence:
            return generation.quoted(plan.evidence, generation.BEARING)
        if plan.computed:
            return generation.quoted(plan.evidence)
        if wants != "recall" or plan.pixels:
            return ""
        refused = answer == plan.refusal
        if not refused and (not converses or plan.expert_answer is not None):
            return ""
        told = self._told(plan, refused=refused)
        return told if told != answer else ""

    def _told(self, plan: AnswerPlan, *, refused: bool = False) -> str:
        """What was told nearest to a question; "" if there is none of it. refused: only what shares
        a word with the question, but also what was told by another of their own life."""
        # Any line of a photo that came with the question may answer it.
        find = recall.near_misses if refused and not plan.image_hits else recall.quotes
        shown = find(self.memory, plan.request.plain, plan.hits)
        if not shown and refused:
            shown = find(self.memory, plan.request.plain, left_out(self._talk, plan))
        head = generation.NEAREST if refused else generation.TOLD
        return generation.quoted(shown, head) if shown else ""

    def _converse(self, plan: AnswerPlan, plain: Turn) -> tuple[Stream, Turn]:
        """An answer in a conversation, and the user's turn as it is shown.

        If the window is full, the oldest turns are left out; if the message alone does not fit, its
        notes, then the known facts. A model below HEEDS_PARAMS repeats these, so it is asked
        without them, and without turns of memories, what is not about the user.
        """
        talk, request = self._talk, plan.request
        engine, today = talk.engine, date.fromisoformat(local_time(request.said_at)[:10])
        if request.wants is None and not talk.heeds_notes:
            news = system_text(today, instructions=self._talk.instructions, news=True)
            options: Options = {"max_tokens": NEWS_TOKENS, **request.options}
            return converse(engine, news, [plain.said], options, stage=TALK), plain
        if self._edits_alone(request.wants):
            turns = [*(turn.said for turn in self._talk.turns[-2:]), plain.said]
            if (edit := edited(engine, turns, request.options)) is not None:
                return edit, plain
        system = partial(
            system_text, today, instructions=self._talk.instructions, expert=engine.expert("reply")
        )

        def fits(facts: Sequence[Evidence]) -> bool:
            return engine.count_tokens(system(facts)) <= _KNOWN_SHARE * engine.n_ctx

        unasked = request.wants in ("general", "self") and not talk.heeds_notes
        before = since_memory(talk.shown) if unasked and not request.intent.refers else talk.shown
        past = [turn.as_shown for turn in before]
        if self._talk.known is None and not unasked:
            seen = {request.text, *(message.content for message in past)}
            self._talk.known = recall.known(self.memory, self._talk.scope, fits, seen)
        text = turn_text(request.asked, plan.evidence)
        with_notes = replace(plain, shown=text, notes=plan.evidence)
        full, bare = system(() if unasked else self._talk.known or ()), system()
        for instructions, turn in ((full, with_notes), (full, plain), (bare, plain)):
            turns = [*past, turn.as_shown]
            if kept := fitting(engine, instructions, turns):
                break
        if left_out := len(turns) - max(1, len(kept)):
            first = [*before, None][left_out]
            after = (i for i, earlier in enumerate(self._talk.turns) if earlier is first)
            self._talk.first_shown = next(after, len(self._talk.turns))
        shown, told = kept or turns[-1:], plan.foremost
        return converse(engine, instructions, shown, request.options, told=told), turn


def _to_remember(request: Request, remember: Remember) -> Remember:
    """What of a turn is remembered; a message that only asks to forget may quote what it names."""
    return request.intent.tells and remember if request.wants == "erase" else remember


def _streamed(stream: Stream, reply: Reply, pieces: list[str]) -> Iterator[str]:
    """The pieces of a model's answer without leading spaces, each also appended to `pieces`."""
    try:
        for piece in stream:
            piece = piece if pieces else piece.lstrip()
            if piece:
                pieces.append(piece)
                yield piece
    finally:
        stream.close()
        with suppress(ReferenceError):
            reply.generation = stream.result
    if stream.result is not None:
        reply.timings["ttft_s"] = stream.result.ttft_s
        reply.timings["tokens_per_s"] = stream.result.tokens_per_s

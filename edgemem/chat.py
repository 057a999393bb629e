"""Chat: one turn is recall, then generate (streamed), then remember.

The intent of a message (stages/intent.py) decides which memories it is answered with. The abilities
of the model (runtime/experts.py) decide how:

- An expert for short answers answers questions about facts. A model without one uses that of the
  bundled model, which answers in place of a small model. In place of a larger one it answers only
  if it is sure and the larger one confirms, or if no memory tells. A model of HEEDS_PARAMS or more
  answers by itself.
- A model with an expert for replies, or an instruct model, has a conversation. The memories are
  dated notes beside the message. Below HEEDS_PARAMS the bundled model acknowledges a message that
  only tells. If a client gave instructions or options, a model of _OWN_WORDS_PARAMS or more does
  that itself, without notes.
- The answer to "what is on these days?" lists what was told of them (pipeline/days.py). A length
  of time, an order or an age is computed from the days that were told (pipeline/intervals.py).
- Below HEEDS_PARAMS an overview quotes the user. A model that has no expert and follows no
  instructions also quotes what bears on a task.
- Under a refusal, or an answer that is not sure, stands what was told nearest to the question.
- A model that sees is shown the images that a question is about.

The model's answers, and messages that only ask, are stored as turns, but never searched or
extracted from. So neither recalled nor invented text is remembered as new.

Knows a Memory and an Engine; no SQL, no prompt (the stages have them).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgemem.errors import EdgememError, InputError, ModelError
from edgemem.inputs import text_of, time_of
from edgemem.memory import Memory
from edgemem.pipeline import image_memories, recall
from edgemem.pipeline.days import Asked, agenda, days_asked, with_days
from edgemem.pipeline.intervals import aged, compared
from edgemem.pipeline.parts import engine_for
from edgemem.pipeline.photos import known_of
from edgemem.pipeline.turn import AnswerPlan, Turn, Way, plain_text, since_memory, without_model
from edgemem.pipeline.whole import listed, of_photo, refusal_of, told_whole
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
from edgemem.runtime.experts import HEEDS_PARAMS, reader_of
from edgemem.runtime.generation import Options
from edgemem.runtime.vocabulary import Pixels
from edgemem.stages import generation
from edgemem.stages.intent import STAGE, TASKS, Intent, Want, as_meant, intent
from edgemem.stages.reply import (
    NEWS_TOKENS,
    NO_IDEA,
    TALK,
    acknowledge,
    converse,
    fitting,
    fulfil,
    system_text,
    turn_text,
)
from edgemem.store.erasures import last_erasure

if TYPE_CHECKING:
    from edgemem.cloud.governor import CloudAnswer, Governor, Mode

__all__ = ["Chat", "Reply"]

SHOWN_SENTENCES = 2  # best of 1 to 4 for a base model of 135 M parameters; others are unmeasured
SHOWN_TURNS = 6  # for an expert for short answers, which was trained on 3 to 7
SHOWN_NOTES = 8  # in a conversation, for a model that heeds its notes or has an expert for replies
FEW_NOTES = 4  # the same for any other model, which repeats whatever it is shown
TOLD_TURNS = 12  # for an overview
BEARING_TURNS = 5  # for a task
_OWN_WORDS_PARAMS = 1_000_000_000  # from which a model answers where no expert is sure
_KNOWN_SHARE = 0.3  # of the window, for the system message with `recall.known`
_NEAR_SCORE = 0.05  # of a hit, from which a question of general knowledge may ask for a memory
_REFERRED = 0.5  # score of a hit that a follow-up is about
_CANDIDATES = 16  # hits of one search
_PAST_TURNS = 4  # shown for small talk


@dataclass(eq=False, slots=True, weakref_slot=True)
class Reply:
    """The answer of one turn: iterate it for its pieces, then read the attributes. A reply that is
    dropped ends as by `close`.

    Set from the start: wants (what the message wants), tells (whether it may tell something), hits
    (what the search found), context (the memories shown), found (whether there were any). Set once
    the reply has ended: text, generation (None if no model was asked), changes (what was
    remembered), timings (intent_ms, recall_ms, ttft_s, tokens_per_s, remember_s), cloud (its
    answer, if the cloud answered), cloud_error (why the cloud failed).
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
        self._scope = Scope(user_id, agent_id, run_id)
        self._engine = engine
        self.cloud = cloud
        self.instructions = instructions
        self._turns = [Turn(turn) for turn in turns]
        self._first_shown = 0  # index of the first turn that the model is still shown
        self._known_facts: tuple[Evidence, ...] | None = None
        self._erasure = last_erasure(memory.store)

    @property
    def engine(self) -> Engine:
        """The model that answers."""
        return self._engine or self.memory.engine

    @property
    def _said_last(self) -> Turn:
        """The user's last turn; an empty one if nothing was said."""
        said = (turn for turn in reversed(self._turns) if turn.said.role == "user")
        return next(said, Turn(Message("user", "", "")))

    @property
    def _heeds_notes(self) -> bool:
        """Whether the model heeds all that it is shown, and says itself if no memory tells."""
        return self.engine.n_params >= HEEDS_PARAMS

    @property
    def _is_small(self) -> bool:
        """Whether the model mixes up who does what, whatever it has learned."""
        return self.engine.n_params < _OWN_WORDS_PARAMS

    def send(
        self,
        text: str,
        *,
        images: Sequence[bytes | str | Path] = (),
        timestamp: datetime | str | float | None = None,
        remember: bool | Literal["first", "answer"] = True,
        cloud: Mode = "auto",
        options: Options | None = None,
    ) -> Reply:
        """Send a message; the reply streams as it is iterated.

        This call searches and may ask an expert (about a second). Then it stores the message, so
        that a message that cannot be stored gets no answer. A question with images is stored first,
        and its images are read, unless the model sees. When the reply ends or is closed, facts
        are extracted (seconds). A user interface should pass remember="first", which leaves the
        facts to `Memory.process_pending`, and run that on a worker.
        images: as for `Memory.add`; they are stored with the message. timestamp: when the message
        is said (None: now). remember=False stores nothing; "answer" stores the answer alone, for a
        message that is stored already. A message that only asks to forget is never stored.
        cloud: "ask" the cloud, "off", or "auto" to let the governor decide. The cloud's answer
        comes in one piece; if the cloud fails, the local model answers. options: of an answer in a
        conversation (temperature, max_tokens, stop …); quoted and short answers take none.
        Once anything of a conversation was erased, the model is shown only what the store still
        has, and an answer that was under way is not stored. A changed or deleted memory is not
        shown again.
        Raises InputError on a message or image that cannot be stored, a bad time or another mode.
        """
        self._drop_outdated()
        text_of(text, "message")
        if cloud not in ("ask", "auto", "off"):
            raise InputError(f"cloud is {cloud!r:.80}; give 'ask', 'auto' or 'off'")
        said_at = time_of(timestamp) or utc_now()
        started = time.perf_counter()
        days = days_asked(text, said_at)
        of_days = text, Intent("overview", tells=False)
        asked, wanted = of_days if days else self._asked(text, with_images=bool(images))
        if wanted.wants == "erase":
            wanted = replace(wanted, tells=wanted.tells or bool(images))
            remember = wanted.tells and remember  # it may quote what is to be forgotten
        understood = time.perf_counter()
        stores = remember and remember != "answer"
        # A question about its own images is answered from them, so they are stored and read first.
        of_images = bool(images) and wanted.wants == "recall" and not self.engine.sees
        changes = self._store(text, said_at, wanted, images) if stores and of_images else None
        sent = images if of_images else ()
        shown = image_memories.sent_with(self.memory, sent, changes, said_at)
        plan = self._plan_answer(asked, said_at, wanted, days, images, options or {}, shown)
        plan = replace(plan, text=text)
        timings = {"intent_ms": (understood - started) * 1e3}
        timings["recall_ms"] = (time.perf_counter() - understood) * 1e3
        reply = Reply(plan.intent.wants, wanted.tells, plan.hits, plan.context, timings)
        if stores:
            if changes is None:
                changes = self._store(text, said_at, wanted, images)
            reply.changes = changes
        # Not the reply itself, which holds the generator: it could not be freed at once.
        reply._pieces = self._run(weakref.proxy(reply), plan, remember, cloud)
        next(reply._pieces)  # enters the `try`, so that an early close still remembers
        return reply

    def _store(
        self, text: str, said_at: str, wanted: Intent, images: Sequence[bytes | str | Path]
    ) -> AddResults:
        """Store a message. Searches leave a "recalled" one out: a question, asked again, would find
        itself."""
        said = {"role": "user", "content": text, "recalled": not wanted.tells}
        ids = asdict(self._scope)
        return self.memory.add(said, images=images, timestamp=said_at, infer="later", **ids)

    def _plan_answer(
        self,
        text: str,
        said_at: str,
        wanted: Intent,
        days: Asked | None,
        images: Sequence[bytes | str | Path],
        options: Options,
        sent: tuple[Hit, ...],
    ) -> AnswerPlan:
        """Search the memories of a message, and decide how it is answered.

        wanted: its intent by its words; the memories may say otherwise. days: the days that it asks
        about, if it asks for whatever there is on them. sent: the images that it asks about.
        """
        if wanted.wants == "source":
            plan = self._plan_of_source(text, said_at, wanted)
            if plan.evidence or not self._heeds_notes:
                return plan
            wanted = replace(wanted, wants="general")  # it knows its own answer
        memory, plain = self.memory, plain_text(text)
        if wanted.wants == "recall" and wanted.refers and self._said_last.wants == "general":
            wanted = replace(wanted, wants="general", doubtful=True)  # "and of Morocco?"
        asks = wanted.wants == "recall"
        last = self._turns[-2:] if wanted.refers else ()  # what a model writes may be invented
        turns = [turn.said for turn in last if asks or turn.said.role == "user"]
        hits = SearchResults(tuple(hit for hit in sent if known_of(hit)))
        hits = hits if sent else self._search(text, said_at, turns)
        if asks and not sent and not any(hit.score >= _NEAR_SCORE for hit in hits):
            rare = recall.without_remarks(memory, plain, hits, self._scope, least=_CANDIDATES)
            hits = replace(hits, items=tuple(rare))
        whole = memory, self._scope, plain, hits, None if self.engine.sees else sent, self._turns
        quoted = told_whole(*whole, most=TOLD_TURNS) if asks else None
        if quoted is not None:
            wanted = replace(wanted, wants="overview")
        maybe_told = wanted.wants == "general" and any(hit.score >= _NEAR_SCORE for hit in hits)
        if maybe_told and (wanted.doubtful or self._heeds_notes):
            wanted, maybe_told = replace(wanted, wants="recall"), False
        computes = asks and not (options or sent or self._heeds_notes)
        computed, told_by = self._computed(plain, said_at, hits) if computes else ("", ())
        way = self._way(wanted, bool(options))
        image_hits, pixels = self._images_asked_about(images, hits, wanted)
        refers = wanted.refers and any(hit.score >= _REFERRED for hit in hits)
        of_now = wanted.wants == "recall" and not sent
        now = recall.clock(memory, plain, said_at, refers=refers) if of_now else ()
        if days:
            evidence = agenda(memory, self._scope, days, said_at, most=TOLD_TURNS)
            # Other models mix the plans up, and invent some where there are none.
            way = way if evidence and self._heeds_notes else "quote"
        elif told_by or quoted is not None:
            evidence = told_by or quoted or ()
        else:
            evidence = (*self._evidence(plain, hits, wanted, way), *now)
        refusal = generation.NOTHING_FOUND if days else refusal_of(memory, plain, hits, sent)
        plan = AnswerPlan(text, plain, said_at, hits, way, wanted, evidence, options, refusal)
        plan = replace(plan, image_hits=hits.items) if sent else plan
        if pixels:
            return replace(plan, evidence=(), pixels=pixels, image_hits=image_hits)
        if computed:
            plan = replace(plan, computed=computed)
        elif way == "converse" and wanted.wants == "recall":
            return self._with_expert_answer(plan, (*self._evidence_for_expert(plain, hits), *now))
        return self._with_answer_if_told(plan) if maybe_told else plan

    def _plan_of_source(self, text: str, said_at: str, wanted: Intent) -> AnswerPlan:
        """The plan of an answer that quotes what the last answer rests on: the memories that it
        listed, else those near the last message that wanted something."""
        said = [turn for turn in reversed(self._turns) if turn.said.role == "user"]
        wanting = (turn for turn in said if turn.wants not in (None, "source"))
        asked = next(iter((*wanting, *said)), None)  # a client tells no wants of its turns
        hits, evidence = SearchResults(()), asked.told_from if asked else ()
        if asked and not evidence and asked.asks_memory:
            hits = self._search(asked.said.content, said_at, ())
            evidence = recall.quotes(self.memory, plain_text(asked.said.content), hits)
        return AnswerPlan(text, text, said_at, hits, "quote", wanted, evidence, {}, "")

    def _drop_outdated(self, found: Sequence[Hit] = ()) -> bool:
        """Drop notes and known facts that were changed or deleted since the model was shown them.

        Returns whether anything shown, said or found (`found`) was erased. Then all notes are
        dropped, and the turns that the store does not have, as they may quote it.
        """
        store = self.memory.store
        notes = [note for turn in self._turns for note in turn.memories]
        changed = recall.changed(self.memory, [*notes, *(self._known_facts or ())])
        erased, self._erasure = self._erasure, last_erasure(store)
        if erased != self._erasure:  # perhaps of another user
            left = store.recent_turns(self._scope, limit=2 * len(self._turns))
            stored = {turn.content for turn in left}
            kept = [Turn(turn.said) for turn in self._turns if turn.said.content in stored]
            ids = {hit.id for hit in found}
            if changed or len(kept) < len(self._turns) or len(store.get([*ids])) < len(ids):
                self._turns, self._first_shown, self._known_facts = kept, 0, None
                return True
        if changed:
            self._turns = [
                turn if changed.isdisjoint(turn.memories) else turn.without_memories()
                for turn in self._turns
            ]
            self._known_facts = None
        return False

    def _asked(self, text: str, *, with_images: bool = False) -> tuple[str, Intent]:
        """A message as it is to be answered in this conversation, and what it wants."""
        last, embedder = self._said_last, self.memory.embedder
        engine = engine_for(self.memory, STAGE, self.engine)
        caption = with_images and not self.engine.sees
        wanted = intent(engine, embedder, text, last.said.content, caption=caption)
        if with_images:
            return text, wanted
        return as_meant(embedder, text, last.said.content, last.wants, wanted)

    def _way(self, wanted: Intent, own_words: bool) -> Way:
        """How the model answers a message of this intent.

        own_words: whether the client set options, and so gets the model's own words.
        """
        engine, setting = self.engine, self.memory.settings.reader
        answers = engine.expert("generation") and setting in ("auto", "expert")
        if answers and wanted.wants == "recall":
            return "answer"
        if answers and not engine.expert("reply"):
            setting = "auto"  # the set's one expert is for answers; the model does all else
        if wanted.wants == "source" or reader_of(engine, "reply", setting) == "quote":
            return "quote"
        on_terms = own_words or self.instructions
        if wanted.wants is None and not self._heeds_notes and (self._is_small or not on_terms):
            return "quote"  # a model below HEEDS_PARAMS invents when it is told news
        short = wanted.wants == "recall" and not own_words and self._is_small
        return "answer" if short and self._expert_engine() else "converse"

    def _expert_engine(self) -> Engine | None:
        """This model if it has an expert for short answers, else the bundled one, else None."""
        engine = engine_for(self.memory, "generation", self.engine)
        return engine if engine.expert("generation") else None

    def _search(self, text: str, said_at: str | None, turns: Sequence[Message]) -> SearchResults:
        """The memories that fit a message, best first; see `recall.search`."""
        ids = asdict(self._scope)
        return recall.search(self.memory, ids, text, said_at, turns, most=_CANDIDATES)

    def _computed(
        self, text: str, said_at: str, hits: Sequence[Hit]
    ) -> tuple[str, tuple[Evidence, ...]]:
        """The answer to a question that compares days, or asks for an age or for an item of a list
        by its place, and the evidence of it; empty for other questions."""
        answer = compared(self.memory, partial(self._search, said_at=None, turns=()), text, said_at)
        answer = answer or aged(self.memory, hits, text, said_at)
        return answer or listed(self.memory, text, hits) or ("", ())

    def offered(self, text: str) -> Sequence[Hit]:
        """The memories that a message would offer to the cloud as the first of a conversation."""
        now = utc_now()
        if not days_asked(text, now) and self._asked(text)[1].wants is None:
            return ()
        return self._search(text, now, ())

    def _run(
        self, reply: Reply, plan: AnswerPlan, remember: bool | str, mode: Mode
    ) -> Generator[str, None, None]:
        """The pieces of an answer. reply: a proxy; its attributes are set as they become known."""
        pieces: list[str] = []
        appended = ""
        changes = reply.changes
        said = Message("user", plan.text, plan.said_at)
        tells = plan.intent.tells and not remember
        turn = Turn(said, tells=tells, wants=plan.intent.wants, told_from=plan.listed)
        try:
            yield ""
            reply.cloud, reply.cloud_error = self._ask_cloud(plan, mode)
            if reply.cloud is not None:
                pieces.append(reply.cloud.text)
                yield pieces[0]
                return
            free = self._heeds_notes or bool(plan.options)
            fixed = None if plan.pixels else without_model(plan, self.instructions, free=free)
            if fixed is not None:
                reply.generation = plan.expert_answer
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
            erased = not self.memory.closed and self._drop_outdated((*plan.hits, *plan.context))
            if not erased and (answer or remember):  # else it was neither answered nor stored
                self._turns.append(turn)
                if answer:  # the model is shown its own words again, not the quotation below them
                    self._turns.append(Turn(Message("assistant", answer, plan.said_at)))
            if remember and not self.memory.closed:
                started = time.perf_counter()
                if text and not erased:
                    message = {"role": "assistant", "content": text, "recalled": True}
                    scope = asdict(self._scope)
                    self.memory.add(message, timestamp=plan.said_at, infer=False, **scope)
                if remember != "first" and changes is not None:
                    changes = self.memory.take_facts(changes)
                with suppress(ReferenceError):
                    reply.changes = changes
                    reply.timings["remember_s"] = time.perf_counter() - started

    def _ask_cloud(self, plan: AnswerPlan, mode: Mode) -> tuple[CloudAnswer | None, str | None]:
        """Ask the cloud if the governor allows it. Returns its answer, or its error."""
        if self.cloud is None or (mode == "auto" and plan.intent.wants in ("erase", "source")):
            return None, None
        asks = plan.intent.wants is not None
        best = max((hit.score for hit in plan.context), default=0.0)
        # The cloud cannot know what only this memory could tell.
        confidence = 1.0 if not asks or plan.nothing_known else best
        why = self.cloud.decide(plan.text, confidence, mode)
        if why is None:
            return None, None
        offered = plan.hits if asks else ()
        try:
            return self.cloud.ask(plan.text, offered, scope=self._scope, why=why), None
        except EdgememError as exc:
            return None, str(exc)

    def _evidence(
        self, text: str, hits: SearchResults, wanted: Intent, way: Way
    ) -> tuple[Evidence, ...]:
        wants, memory = wanted.wants, self.memory
        if wants == "act":
            return of_photo(memory, text, hits)
        if wants == "recall" and way == "answer":
            return self._evidence_for_expert(text, hits)
        if wants == "overview":
            return recall.overview(memory, text, hits, most=TOLD_TURNS, scope=self._scope)
        if wants in TASKS:
            scope, most, advice = self._scope, BEARING_TURNS, wants == "task"
            return recall.bearing(memory, scope, text, hits, most=most, advice=advice)
        if way == "converse" and (wants == "recall" or (wants is None and self._heeds_notes)):
            # Leave out what the model can read in the conversation already.
            window = self._turns[self._first_shown :]
            seen = {turn.said.content for turn in window}
            seen |= {note.text for turn in window for note in turn.notes}
            many = self._heeds_notes or self.engine.expert("reply")
            most = SHOWN_NOTES if many else FEW_NOTES
            notes = recall.notes(memory, hits, most=most, seen=seen)
            return with_days(memory.embedder, text, notes) if wants == "recall" else notes
        if wants == "recall":
            return recall.recall(memory, text, hits, most=SHOWN_SENTENCES)
        return ()

    def _with_expert_answer(self, plan: AnswerPlan, evidence: tuple[Evidence, ...]) -> AnswerPlan:
        """The plan with the answer of the bundled model's expert, if the expert is sure or finds
        that no memory tells; else the plan as it is.

        A small conversing model answers with whatever it is shown, even with facts that no longer
        hold. But it judges well: if it does not confirm the answer, the plan quotes what was told.
        """
        if self.engine.expert("generation") or self._heeds_notes:
            return plan
        try:
            if (judge := self._expert_engine()) is None:
                return plan
            said = self._short_answer(judge, plan, evidence).whole()
            if said.text == plan.refusal:
                return replace(plan, expert_answer=said, evidence=())
            # A client that set options gets the model's own words.
            if plan.options or not generation.reliable(said.text, said.log_p, plan.plain):
                return plan
            if generation.confirms(self.engine, plan.plain, evidence, said.text):
                return replace(plan, expert_answer=said, evidence=evidence)
        except ModelError:  # the conversing model answers instead
            return plan
        quotes = recall.quotes(self.memory, plan.plain, recall.sources(evidence))
        quotes = quotes or tuple(e for e in evidence if e.source is None)  # said here, or the day
        if not quotes:
            return replace(plan, expert_answer=replace(said, text=plan.refusal), evidence=())
        said = replace(said, text=generation.unsure(quotes))
        return replace(plan, expert_answer=said, evidence=evidence)

    def _with_answer_if_told(self, plan: AnswerPlan) -> AnswerPlan:
        """The plan of a question of general knowledge ("Can Noah eat nuts?"), with an expert's
        answer from the memories near it; the plan as it is if no memory tells."""
        try:
            if (engine := self._expert_engine()) is None:
                return plan
            told = self._evidence_for_expert(plan.plain, plan.hits)
            said = self._short_answer(engine, plan, told, quoting=True, guesses=False).whole()
        except ModelError:
            return plan
        if said.text == plan.refusal:
            return plan
        recalls = replace(plan.intent, wants="recall")
        return replace(plan, intent=recalls, expert_answer=said, evidence=told)

    def _images_asked_about(
        self, images: Sequence[bytes | str | Path], hits: SearchResults, wanted: Intent
    ) -> tuple[tuple[Hit, ...], tuple[Pixels, ...]]:
        """The memories and the pixels of the images that a question is about, if the model sees.

        Images that came with the question have no memories yet. Without any, these are the images
        that the search found.
        """
        if not self.engine.sees or wanted.wants is None:
            return (), ()
        if images:
            return (), image_memories.pixels_of(images)
        return image_memories.images_of(self.memory, hits) if wanted.wants == "recall" else ((), ())

    def _evidence_for_expert(self, text: str, hits: SearchResults) -> tuple[Evidence, ...]:
        """The evidence for an expert for short answers: the user's messages of this conversation
        that are not stored, then the memories that a search found."""
        found = recall.recall(self.memory, text, hits, most=SHOWN_TURNS, whole=True, ended=True)
        known = {evidence.text for evidence in found}  # an app may have stored the message
        said = recall.telling(
            [turn.said for turn in self._turns if turn.said.role == "user" and turn.tells]
        )
        # They come first, as a small window leaves out the first evidence.
        told = [evidence for evidence in said if evidence.text not in known]
        return with_days(self.memory.embedder, text, (*told[-SHOWN_TURNS:], *found))

    def _short_answer(
        self,
        engine: Engine,
        plan: AnswerPlan,
        evidence: Sequence[Evidence],
        *,
        quoting: bool = False,
        guesses: bool = True,
    ) -> Stream:
        """An expert's answer from evidence.

        quoting, guesses: as the `quotes` and `guesses` of `generation.answer`.
        """
        before = None
        past = [turn.said for turn in self._turns[-2:]] if plan.intent.refers else []
        if len(past) > 1 and past[-1].role == "assistant":
            before = past[-2].content, past[-1].content
        quotes = partial(recall.quotes, self.memory, plan.plain, recall.sources(evidence))
        return generation.answer(
            engine, plan.plain, evidence, speaker="User", before=before, asked_at=plan.said_at,
            refusal=plan.refusal, quotes=quotes if quoting else None, guesses=guesses,
            ended=recall.has_ended(self.memory, evidence), embedder=self.memory.embedder,
        )  # fmt: skip

    def _stream(self, plan: AnswerPlan, turn: Turn) -> tuple[Stream, Turn]:
        """The answer of a model, and the user's turn as this model is shown it."""
        if plan.pixels:
            return image_memories.answer(self.engine, plan.text, plan.pixels), turn
        if plan.way == "converse":
            return self._converse(plan, turn)
        if plan.intent.wants == "recall":
            engine = (self._expert_engine() if plan.way == "answer" else None) or self.engine
            return self._short_answer(engine, plan, plan.evidence, quoting=True), turn
        if plan.intent.wants is None:
            talks = engine_for(self.memory, TALK, self.engine)
            return acknowledge(talks, plan.text, kept=plan.intent.tells), turn
        past = [turn.said for turn in self._turns[-_PAST_TURNS:]]
        writes = plan.intent.wants in ("text", "edit")
        instead = generation.TOO_SMALL if writes else NO_IDEA
        return fulfil(self.engine, plan.text, past, instead), turn

    def _text_below(self, plan: AnswerPlan, answer: str) -> str:
        """The text below an answer, or "": the memories that bear on advice (on a letter, too, if a
        model this small mixes up who does what), the memories nearest to a question that was
        refused or that a conversing model answered, a caution, or that an edit changed nothing."""
        wants, converses = plan.intent.wants, plan.way == "converse"
        if wants == "general" and answer != NO_IDEA and (self._is_small or not converses):
            return generation.CHECK_THIS
        if wants == "edit" and converses and answer in (t.said.content for t in self._turns[-1:]):
            return generation.TOO_SMALL
        mixes_up = wants == "text" and self._is_small
        if (wants == "task" or mixes_up) and converses and plan.evidence:
            return generation.quoted(plan.evidence, generation.BEARING)
        if plan.computed:
            return generation.quoted(plan.evidence)
        if wants != "recall" or plan.pixels:
            return ""
        if answer == plan.refusal:
            # Any line of a photo that came with the question may answer it.
            find = recall.quotes if plan.image_hits else recall.near_misses
            head = generation.NEAREST
        elif converses and plan.expert_answer is None:
            head, find = generation.TOLD, recall.quotes
        else:
            return ""
        shown = find(self.memory, plan.plain, plan.hits)
        return generation.quoted(shown, head) if shown else ""

    def _converse(self, plan: AnswerPlan, plain: Turn) -> tuple[Stream, Turn]:
        """An answer in a conversation, and the user's turn as it is shown.

        If the window is full, the oldest turns are left out. If the message alone does not fit, its
        notes are left out, then the known facts. A question that is not about the user is asked
        without these, and without turns of memories: a model below HEEDS_PARAMS repeats both.
        """
        engine, today = self.engine, date.fromisoformat(local_time(plan.said_at)[:10])
        if plan.intent.wants is None and not self._heeds_notes:
            news = system_text(today, instructions=self.instructions, news=True)
            options: Options = {"max_tokens": NEWS_TOKENS, **plan.options}
            return converse(engine, news, [plain.said], options, stage=TALK), plain
        system = partial(
            system_text, today, instructions=self.instructions, expert=engine.expert("reply")
        )

        def fits(facts: Sequence[Evidence]) -> bool:
            return engine.count_tokens(system(facts)) <= _KNOWN_SHARE * engine.n_ctx

        unasked = plan.intent.wants in ("general", "self") and not self._heeds_notes
        before: Sequence[Turn] = self._turns[self._first_shown :]
        before = since_memory(before) if unasked and not plan.intent.refers else before
        past = [turn.as_shown for turn in before]
        if self._known_facts is None and not unasked:
            seen = {plan.text, *(message.content for message in past)}
            self._known_facts = recall.known(self.memory, self._scope, fits, seen)
        shown = turn_text(plan.text, plan.evidence)
        with_notes = replace(plain, shown=shown, notes=plan.evidence)
        full, bare = system(() if unasked else self._known_facts or ()), system()
        for instructions, turn in ((full, with_notes), (full, plain), (bare, plain)):
            turns = [*past, turn.as_shown]
            if kept := fitting(engine, instructions, turns):
                break
        self._first_shown += len(turns) - max(1, len(kept))
        return converse(engine, instructions, kept or turns[-1:], plan.options), turn


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

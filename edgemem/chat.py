"""Chat: one turn is recall, then generate (streamed), then remember.

What a message wants (stages/intent.py) decides which memories it is answered with. What the model
can do (runtime/experts.py) decides how:

- An expert for short answers answers questions about facts. A model without one has the bundled
  model's beside it. This expert answers for a small model. For a larger one it answers where it is
  sure and that one has no doubt, or says that no memory tells. A model of HEEDS_PARAMS or more
  answers by itself.
- A model with an expert for replies, or an instruct model, has a conversation. The memories are
  dated notes beside the message. For an instruct model below HEEDS_PARAMS the bundled one
  acknowledges a message that only tells. If a client gave instructions or options, the model does
  that itself, without notes.
- A question for whatever there is on some days lists what was told of them (pipeline/days.py). One
  for a length of time or an order is computed from the days of its events (pipeline/intervals.py).
- Below HEEDS_PARAMS an overview is in the user's own words. A model that can do neither of the
  above also quotes what bears on a task.
- Below a refusal, or an answer that is not sure, stands what was told nearest to the question.
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
from edgemem.pipeline.intervals import compared
from edgemem.pipeline.parts import expert_of
from edgemem.pipeline.turn import Decided, Turn, Way, as_read, without_model
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
from edgemem.stages.intent import STAGE, TASKS, Intent, Want, intent
from edgemem.stages.reply import (
    NEWS_TOKENS,
    NO_IDEA,
    TALK,
    acknowledge,
    converse,
    fitting,
    general,
    small_talk,
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
_KNOWN_SHARE = 0.3  # of the window, for the system message with what every answer may need
_TOLD = 0.05  # score of a hit from which a question of general knowledge may ask for a memory
_CANDIDATES = 16  # hits of one search
_PAST_TURNS = 4  # shown for small talk


@dataclass(eq=False, slots=True, weakref_slot=True)
class Reply:
    """The answer of one turn: iterate it for its pieces, then read the attributes. A reply that is
    dropped ends as by `close`.

    Set from the start: wants (what the message wants), hits (what the search found), context (the
    memories shown to the model), found (whether there were any). Set once the reply has ended:
    text, generation (None if no model was asked), changes (what was remembered), timings
    (intent_ms, recall_ms, ttft_s, tokens_per_s, remember_s), cloud (the cloud's answer, if this is
    it), cloud_error (why the cloud failed).
    """

    wants: Want | None
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

    engine: None takes the memory's own. cloud: a governor that lets the cloud answer in the model's
    place. turns: what was said before in this conversation, oldest first. instructions: added to an
    instruct model's system message.
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
        self._first = 0  # of these turns, that the model is still shown
        self._known: tuple[Evidence, ...] | None = None
        self._erasure = last_erasure(memory.store)

    @property
    def engine(self) -> Engine:
        """The model that answers."""
        return self._engine or self.memory.engine

    @property
    def _heeds(self) -> bool:
        return self.engine.n_params >= HEEDS_PARAMS

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

        This call searches first and may ask an expert (about a second). Then it stores the message,
        so that one that cannot be stored gets no answer. The end or `close` of the reply takes
        facts (seconds). A user interface should take remember="first", which leaves them to
        `Memory.process_pending`, and run that on a worker.
        images: as for `Memory.add`; they are stored with the message. timestamp: when the message
        is said (None: now). remember=False answers without storing anything, "answer" stores the
        answer alone, for a message that is stored already. A message that only asks to forget is
        not stored. cloud: "ask" the cloud, "off", or "auto" to let the governor decide. The cloud's
        answer comes in one piece; if the cloud fails, the local model answers. options: of an
        answer in a conversation (temperature, max_tokens, stop …); quoted and short answers take
        none.
        Once anything of a conversation was erased, the model is shown only what the store still
        has, and an answer that was under way is not stored. A changed or deleted memory is not
        shown again.
        Raises InputError on a message or image that cannot be stored, a bad time or another mode.
        """
        self._drop_changed()
        text_of(text, "message")
        if cloud not in ("ask", "auto", "off"):
            raise InputError(f"cloud is {cloud!r:.80}; give 'ask', 'auto' or 'off'")
        said_at = time_of(timestamp) or utc_now()
        started = time.perf_counter()
        days = days_asked(text, said_at)
        wanted = Intent("overview", tells=False) if days else self._intent(text, bool(images))
        if wanted.wants == "erase":
            wanted = replace(wanted, tells=wanted.tells or bool(images))
            remember = wanted.tells and remember  # it may quote what is to be forgotten
        read = time.perf_counter()
        asked = self._decided(text, said_at, wanted, days, images, options or {})
        found = time.perf_counter()
        timings = {"recall_ms": (found - read) * 1e3, "intent_ms": (read - started) * 1e3}
        reply = Reply(asked.intent.wants, asked.hits, asked.context, timings)
        if remember and remember != "answer":
            # Searches leave a "recalled" message out: a question, asked again, would find itself.
            said = {"role": "user", "content": text, "recalled": not wanted.tells}
            reply.changes = self.memory.add(
                said, images=images, timestamp=said_at, infer="later", **asdict(self._scope)
            )
        # Not the reply itself, which holds the generator: it could not be freed at once.
        reply._pieces = self._run(weakref.proxy(reply), asked, remember, cloud)
        next(reply._pieces)  # enters the `try`, so that an early close still remembers
        return reply

    def _decided(
        self,
        text: str,
        said_at: str,
        wanted: Intent,
        days: Asked | None,
        images: Sequence[bytes | str | Path],
        options: Options,
    ) -> Decided:
        """A message with what is decided about it once a search has found its memories.

        wanted: what it wants by its words; the memories may say otherwise. days: those about which
        it asks whatever there is on them.
        """
        past = [turn for turn in self._turns if turn.said.role == "user"][-1:]
        if wanted.wants == "recall" and wanted.refers and past and past[0].wants == "general":
            wanted = replace(wanted, wants="general", doubtful=True)  # "and of Morocco?"
        asks, own_words = wanted.wants == "recall", bool(options)
        with_turns = wanted.refers if asks else self._way(wanted, own_words) == "converse"
        read = as_read(text)
        hits = self._search(text, said_at, with_turns=with_turns)
        whom = recall.told_of(self.memory, read, hits, most=TOLD_TURNS) if asks else ()
        if whom:
            wanted = replace(wanted, wants="overview")
        near = wanted.wants == "general" and any(hit.score >= _TOLD for hit in hits)
        if near and (wanted.doubtful or self._heeds):
            wanted, near = replace(wanted, wants="recall"), False
        counted, dated = self._counted(read, said_at, hits) if asks and not options else ("", ())
        way = self._way(wanted, own_words)
        photos, pixels = self._looked_at(images, hits, wanted)
        now = recall.clock(self.memory, read, said_at) if wanted.wants == "recall" else ()
        if days:
            evidence = agenda(self.memory, self._scope, days, said_at, most=TOLD_TURNS)
            # Other models mix the plans up, and invent some where there are none.
            way = way if evidence and self._heeds else "quote"
        else:
            evidence = dated or whom or (*self._evidence(read, hits, wanted, way), *now)
        asked = Decided(
            text, read, said_at, hits, way, wanted, () if pixels else evidence, options,
            self._unknown(hits), pixels, photos, "" if pixels else counted,
        )  # fmt: skip
        if way == "converse" and wanted.wants == "recall" and not (pixels or counted):
            return self._by_expert(asked, (*self._told(read, hits), *now))
        return self._if_told(asked) if near and not pixels else asked

    def _drop_changed(self, found: Sequence[Hit] = ()) -> bool:
        """Drop notes and known facts that were changed or deleted since the model was shown them.
        If anything shown, said or found was erased, drop all notes and the turns that the store
        does not have, as they may quote it, and return True.
        """
        store = self.memory.store
        notes = [note for turn in self._turns for note in turn.notes]
        changed = recall.changed(self.memory, [*notes, *(self._known or ())])
        erased, self._erasure = self._erasure, last_erasure(store)
        if erased != self._erasure:  # perhaps of another user
            left = store.recent_turns(self._scope, limit=2 * len(self._turns))
            stored = {turn.content for turn in left}
            kept = [Turn(turn.said) for turn in self._turns if turn.said.content in stored]
            ids = {hit.id for hit in found}
            if changed or len(kept) < len(self._turns) or len(store.get([*ids])) < len(ids):
                self._turns, self._first, self._known = kept, 0, None
                return True
        if changed:
            self._turns = [
                turn if changed.isdisjoint(turn.notes) else replace(turn, shown=None, notes=())
                for turn in self._turns
            ]
            self._known = None
        return False

    def _intent(self, text: str, with_images: bool = False) -> Intent:
        said = (turn.said for turn in reversed(self._turns) if turn.said.role == "user")
        before = next((message.content for message in said), "")
        reader = expert_of(self.memory, STAGE, self.engine)
        caption = with_images and not self.engine.sees
        return intent(reader, self.memory.embedder, text, before, caption=caption)

    def _way(self, wanted: Intent, own_words: bool) -> Way:
        """own_words: whether the client set options, and so gets the model's own words."""
        engine, setting = self.engine, self.memory.settings.reader
        answers = engine.expert("generation") and setting in ("auto", "expert")
        if answers and wanted.wants == "recall":
            return "answer"
        if answers and not engine.expert("reply"):
            setting = "auto"  # the set has an expert for answers alone; all else is the model's own
        if reader_of(engine, "reply", setting) == "quote":
            return "quote"
        if wanted.wants is None and self._reacts and not (own_words or self.instructions):
            return "quote"  # a model below HEEDS_PARAMS says of news what was not told
        short = wanted.wants == "recall" and not own_words and engine.n_params < _OWN_WORDS_PARAMS
        return "answer" if short and self._expert_engine() else "converse"

    def _expert_engine(self) -> Engine | None:
        """The model with an expert for short answers: this one, else the bundled one, else None."""
        engine = expert_of(self.memory, "generation", self.engine)
        return engine if engine.expert("generation") else None

    @property
    def _reacts(self) -> bool:
        """Whether news gets a short reply without notes, which the model would repeat."""
        return not (self._heeds or self.engine.expert("reply"))

    def _search(self, text: str, said_at: str | None, *, with_turns: bool = False) -> SearchResults:
        """The memories that fit a message, best first; see `recall.search`."""
        turns = [turn.said for turn in self._turns[-2:]] if with_turns else []
        ids = asdict(self._scope)
        return recall.search(self.memory, ids, text, said_at, turns, most=_CANDIDATES)

    def _counted(
        self, text: str, said_at: str, hits: Sequence[Hit]
    ) -> tuple[str, tuple[Evidence, ...]]:
        """The answer to a question that compares days, or for a list's item by its place, with what
        tells it; else nothing."""
        if self._heeds:
            return "", ()
        told = compared(self.memory, partial(self._search, said_at=None), text, said_at)
        return told or recall.listed(self.memory, text, hits) or ("", ())

    def offered(self, text: str) -> Sequence[Hit]:
        """The memories that the next message would offer to the cloud, if nothing was said yet."""
        now = utc_now()
        if not days_asked(text, now) and self._intent(text).wants is None:
            return ()
        return self._search(text, now)

    def _run(
        self, reply: Reply, asked: Decided, remember: bool | str, mode: Mode
    ) -> Generator[str, None, None]:
        """The pieces of an answer. reply: a proxy, which receives what is known at the end."""
        pieces: list[str] = []
        appended = ""
        changes = reply.changes
        said = Message("user", asked.text, asked.said_at)
        tells = asked.intent.tells and not remember
        turn = Turn(said, tells=tells, wants=asked.intent.wants)
        try:
            yield ""
            reply.cloud, reply.cloud_error = self._ask_cloud(asked, mode)
            if reply.cloud is not None:
                pieces.append(reply.cloud.text)
                yield pieces[0]
                return
            free = self._heeds or bool(asked.options)
            fixed = None if asked.pixels else without_model(asked, self.instructions, free=free)
            if fixed is not None:
                reply.generation = asked.answered
                pieces.append(fixed)
                yield fixed
            else:
                stream, turn = self._stream(asked, turn)
                yield from _streamed(stream, reply, pieces)
            if not free and (shown := self._below(asked, "".join(pieces))):
                appended = f"\n\n{shown}"
                yield appended
        finally:
            answer = "".join(pieces).strip()
            text = (answer + appended).strip()
            with suppress(ReferenceError):
                reply.text = text
            erased = not self.memory.closed and self._drop_changed((*asked.hits, *asked.context))
            if not erased:
                self._turns.append(turn)
                if answer:  # the model is shown its own words again, not the quotation below them
                    self._turns.append(Turn(Message("assistant", answer, asked.said_at)))
            if remember and not self.memory.closed:
                started = time.perf_counter()
                if text and not erased:
                    told = {"role": "assistant", "content": text, "recalled": True}
                    whose = asdict(self._scope)
                    self.memory.add(told, timestamp=asked.said_at, infer=False, **whose)
                if remember != "first" and changes is not None:
                    changes = self.memory.take_facts(changes)
                with suppress(ReferenceError):
                    reply.changes = changes
                    reply.timings["remember_s"] = time.perf_counter() - started

    def _ask_cloud(self, asked: Decided, mode: Mode) -> tuple[CloudAnswer | None, str | None]:
        """Ask the cloud if the governor allows it. Its answer, or why it gave none."""
        if self.cloud is None or (mode == "auto" and asked.intent.wants == "erase"):
            return None, None
        asks = asked.intent.wants is not None
        best = max((hit.score for hit in asked.context), default=0.0)
        # The cloud cannot know what only this memory could tell.
        confidence = 1.0 if not asks or asked.nothing_known else best
        why = self.cloud.decide(asked.text, confidence, mode)
        if why is None:
            return None, None
        offered = asked.hits if asks else ()
        try:
            return self.cloud.ask(asked.text, offered, scope=self._scope, why=why), None
        except EdgememError as exc:
            return None, str(exc)

    def _evidence(
        self, text: str, hits: SearchResults, wanted: Intent, way: Way
    ) -> tuple[Evidence, ...]:
        wants, memory = wanted.wants, self.memory
        if wants == "recall" and way == "answer":
            return self._told(text, hits)
        if wants == "overview":
            return recall.overview(memory, text, hits, most=TOLD_TURNS, scope=self._scope)
        if wants in TASKS:
            scope, most, advice = self._scope, BEARING_TURNS, wants == "task"
            return recall.bearing(memory, scope, text, hits, most=most, advice=advice)
        if way == "converse" and (wants == "recall" or (wants is None and not self._reacts)):
            # Leave out what the model can read in the conversation already.
            window = self._turns[self._first :]
            seen = {turn.said.content for turn in window}
            seen |= {note.text for turn in window for note in turn.notes}
            many = self._heeds or self.engine.expert("reply")
            most = SHOWN_NOTES if many else FEW_NOTES
            notes = recall.notes(memory, hits, most=most, seen=seen)
            return with_days(memory.embedder, text, notes) if wants == "recall" else notes
        if wants == "recall":
            return recall.recall(memory, text, hits, most=SHOWN_SENTENCES)
        return ()

    def _by_expert(self, asked: Decided, evidence: tuple[Evidence, ...]) -> Decided:
        """The message with the answer of the bundled model's expert, if the expert is sure of it or
        finds that no memory tells; else the message as it is.

        A small conversing model answers with whatever it is shown, even with facts that are over.
        But it judges well: if it does not confirm an answer, what was told is given.
        """
        if self.engine.expert("generation") or self._heeds:
            return asked
        try:
            if (judge := self._expert_engine()) is None:
                return asked
            said = self._short_answer(judge, asked, evidence).whole()
            if said.text == asked.unknown:
                return replace(asked, answered=said, evidence=())
            # A client that set options gets the model's own words.
            if asked.options or not generation.reliable(said.text, said.log_p, asked.read):
                return asked
            confirmed = generation.confirms(self.engine, asked.read, evidence, said.text)
        except ModelError:  # the conversing model is asked instead
            return asked
        if not confirmed:
            told = recall.quotes(self.memory, asked.read, recall.sources(evidence))
            told = told or tuple(e for e in evidence if e.source is None)  # said here, or the day
            if not told:
                return replace(asked, answered=replace(said, text=asked.unknown), evidence=())
            said = replace(said, text=generation.unsure(told))
        return replace(asked, answered=said, evidence=evidence)

    def _if_told(self, asked: Decided) -> Decided:
        """A question of general knowledge ("Can Noah eat nuts?") with an expert's answer from
        memories that are near it; the question as it is if they do not tell."""
        try:
            if (reader := self._expert_engine()) is None:
                return asked
            told = self._told(asked.read, asked.hits)
            said = self._short_answer(reader, asked, told, quoting=True, guesses=False).whole()
        except ModelError:
            return asked
        if said.text == asked.unknown:
            return asked
        recalls = replace(asked.intent, wants="recall")
        return replace(asked, intent=recalls, answered=said, evidence=told)

    def _unknown(self, hits: SearchResults) -> str:
        """The answer if no memory tells. It says that nobody has seen the image if the best hit is
        an image, or was said with one."""
        best = set(hits[0].sources) if recall.relevant(self.memory, hits[:1]) else set()
        unseen = any(hit.image is not None and best.intersection(hit.sources) for hit in hits)
        return generation.UNSEEN if unseen else generation.NOTHING_FOUND

    def _looked_at(
        self, images: Sequence[bytes | str | Path], hits: SearchResults, wanted: Intent
    ) -> tuple[tuple[Hit, ...], tuple[Pixels, ...]]:
        """The memories and the pixels of the images that a question is about, if the model sees.

        These are the images that came with the question (without memories), else those that the
        search recalled.
        """
        if not self.engine.sees or wanted.wants is None:
            return (), ()
        if images:
            return (), image_memories.pixels_of(images)
        return image_memories.images_of(self.memory, hits) if wanted.wants == "recall" else ((), ())

    def _told(self, text: str, hits: SearchResults) -> tuple[Evidence, ...]:
        """What an expert for short answers reads: what the user said in this conversation that is
        not stored, and the memories that a search found."""
        found = recall.recall(self.memory, text, hits, most=SHOWN_TURNS, whole=True, ended=True)
        known = {evidence.text for evidence in found}  # an app may have stored the message
        said = recall.telling(
            [turn.said for turn in self._turns if turn.said.role == "user" and turn.tells]
        )
        # First, for in a small window the first evidence is left out.
        told = [evidence for evidence in said if evidence.text not in known]
        return with_days(self.memory.embedder, text, (*told[-SHOWN_TURNS:], *found))

    def _short_answer(
        self,
        engine: Engine,
        asked: Decided,
        evidence: Sequence[Evidence],
        *,
        quoting: bool = False,
        guesses: bool = True,
    ) -> Stream:
        """quoting: whether an answer that is not reliable is given with what was told. guesses:
        whether one that is hardly probable counts as an answer."""
        before = None
        past = [turn.said for turn in self._turns[-2:]] if asked.intent.refers else []
        if len(past) > 1 and past[-1].role == "assistant":
            before = past[-2].content, past[-1].content
        shown = recall.sources(evidence) if quoting else ()
        told = partial(recall.quotes, self.memory, asked.read, shown)
        return generation.answer(
            engine, asked.read, evidence, speaker="User", before=before, asked_at=asked.said_at,
            unknown=asked.unknown, quotes=told, guesses=guesses,
            ended=recall.has_ended(self.memory, evidence), embedder=self.memory.embedder,
        )  # fmt: skip

    def _stream(self, asked: Decided, turn: Turn) -> tuple[Stream, Turn]:
        """The answer, and the user's turn as the model is shown it."""
        if asked.pixels:
            return image_memories.answer(self.engine, asked.text, asked.pixels), turn
        if asked.way == "converse":
            return self._converse(asked, turn)
        if asked.intent.wants == "recall":
            reader = (self._expert_engine() if asked.way == "answer" else None) or self.engine
            return self._short_answer(reader, asked, asked.evidence, quoting=True), turn
        if asked.intent.wants is None:
            return acknowledge(expert_of(self.memory, TALK, self.engine), asked.text), turn
        past = [turn.said for turn in self._turns[-_PAST_TURNS:]]
        talk = general if asked.intent.wants == "general" else small_talk
        return talk(self.engine, asked.text, past), turn

    def _below(self, asked: Decided, answer: str) -> str:
        """What stands below an answer: the memories that bear on advice; those nearest to a
        question that is refused, or that a conversing model answers; a caution."""
        wants, converses = asked.intent.wants, asked.way == "converse"
        if wants == "general" and not converses and answer != NO_IDEA:
            return generation.KNOWS_LITTLE
        if wants == "task" and converses and asked.evidence:
            return generation.quoted(asked.evidence, generation.BEARING)
        if asked.counted:
            return generation.quoted(asked.evidence)
        if wants != "recall" or asked.pixels:
            return ""
        if answer == asked.unknown:
            head, find = generation.NEAREST, recall.near_misses
        elif converses and asked.answered is None:
            head, find = generation.TOLD, recall.quotes
        else:
            return ""
        shown = find(self.memory, asked.read, asked.hits)
        return generation.quoted(shown, head) if shown else ""

    def _converse(self, asked: Decided, plain: Turn) -> tuple[Stream, Turn]:
        """An answer in a conversation. If the window is full, the oldest turns are left out; if the
        message alone does not fit, its notes are too, and then the known facts."""
        engine, today = self.engine, date.fromisoformat(local_time(asked.said_at)[:10])
        if asked.intent.wants is None and self._reacts:
            news = system_text(today, instructions=self.instructions, news=True)
            options: Options = {"max_tokens": NEWS_TOKENS, **asked.options}
            return converse(engine, news, [plain.said], options, stage=TALK), plain
        system = partial(
            system_text, today, instructions=self.instructions, expert=engine.expert("reply")
        )

        def fits(facts: Sequence[Evidence]) -> bool:
            return engine.count_tokens(system(facts)) <= _KNOWN_SHARE * engine.n_ctx

        past = [turn.read for turn in self._turns[self._first :]]
        if self._known is None:
            seen = {asked.text, *(message.content for message in past)}
            self._known = recall.known(self.memory, self._scope, fits, seen)
        shown = turn_text(asked.text, asked.evidence)
        with_notes = replace(plain, shown=shown, notes=asked.evidence)
        full, bare = system(self._known), system()
        for instructions, turn in ((full, with_notes), (full, plain), (bare, plain)):
            turns = [*past, turn.read]
            if kept := fitting(engine, instructions, turns):
                break
        self._first += len(turns) - max(1, len(kept))
        return converse(engine, instructions, kept or turns[-1:], asked.options), turn


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

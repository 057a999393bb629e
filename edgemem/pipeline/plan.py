"""How a message is answered: `understood` says what it wants, and `plan_answer` decides.

The intent of a message (stages/intent.py) decides which memories it is answered with. The abilities
of the model (runtime/experts.py) decide how:

- An expert for short answers answers questions about facts. A model without one uses that of the
  bundled model: in place of a small model always, in place of a larger one only if it is sure and
  the larger one confirms, or if no memory tells. A model of HEEDS_PARAMS or more answers by itself.
- A model with an expert for replies, or an instruct model, has a conversation, with the memories as
  dated notes. Below HEEDS_PARAMS the bundled model acknowledges a message that only tells, unless a
  client gave instructions or options to a model that is not small.
- What is on some days is listed (days.py); a length of time, an order or an age is computed from
  the days that were told (told.py).
- Below HEEDS_PARAMS an overview quotes the user. A model that has no expert and follows no
  instructions also quotes what bears on a task.
- A model that sees is shown the images that a question is about.

Knows a Memory, a conversation and the stages; no SQL, no prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from edgemem import language
from edgemem.errors import ModelError
from edgemem.pipeline import image_memories, recall
from edgemem.pipeline.bearing import bearing, foremost
from edgemem.pipeline.days import Asked, agenda, days_asked, with_days
from edgemem.pipeline.parts import engine_for
from edgemem.pipeline.passages import known_of
from edgemem.pipeline.people import kept_for
from edgemem.pipeline.told import (
    aged,
    compared,
    listed,
    of_photo,
    refusal_of,
    telling_age,
    told_whole,
)
from edgemem.pipeline.turn import Conversation
from edgemem.results import Evidence, Hit, Message, SearchResults
from edgemem.runtime.engine import Engine, Stream
from edgemem.runtime.experts import reader_of
from edgemem.runtime.generation import Generation, Options
from edgemem.runtime.vocabulary import Pixels
from edgemem.stages import generation
from edgemem.stages.intent import (
    STAGE,
    TASKS,
    Intent,
    Want,
    as_change,
    as_meant,
    intent,
    of_somebody,
)
from edgemem.store.relations import entity_names

__all__ = ["FEW_NOTES", "SHOWN_NOTES", "SHOWN_SENTENCES", "SHOWN_TURNS", "TOLD_TURNS"]
__all__ += ["AnswerPlan", "Request", "Way", "evidence_for_expert", "expert_engine", "left_out"]
__all__ += ["plan_answer", "search", "short_answer", "understood", "without_model"]

SHOWN_SENTENCES = 2  # best of 1 to 4 for a base model of 135 M parameters; others are unmeasured
SHOWN_TURNS = 6  # for an expert for short answers, which was trained on 3 to 7
SHOWN_NOTES = 8  # in a conversation, for a model that heeds its notes or has an expert for replies
FEW_NOTES = 4  # the same for any other model, which repeats whatever it is shown
TOLD_TURNS = 12  # for an overview
_BEARING_TURNS = 5  # for a task
_NEAR_SCORE = 0.05  # of a hit, from which a question of general knowledge may ask for a memory
_REFERRED = 0.5  # score of a hit that a follow-up is about
_CANDIDATES = 16  # hits of one search
_NO_PEOPLE = ("place", "organisation", "thing", "activity", "event", "pet")

Way = Literal["answer", "converse", "quote"]
"""How a message is answered. answer: by an expert for short answers. converse: in a conversation.
quote: by a model that can do neither; it quotes what was said, and makes small talk."""


@dataclass(frozen=True, slots=True)
class Request:
    """A message that is to be answered.

    text: as it was said. asked: as it is answered after the turn before it. plain: this with chat
    spellings written out. days: the days that it asks about, if it asks for whatever there is on
    them. images: those that came with it. sent: their memories, if it asks a model about them that
    does not see. options: the client's.
    """

    text: str
    asked: str
    plain: str
    said_at: str
    intent: Intent
    days: Asked | None = None
    images: Sequence[bytes | str | Path] = ()
    sent: tuple[Hit, ...] = ()
    options: Options = field(default_factory=Options)

    @property
    def wants(self) -> Want | None:
        return self.intent.wants

    def wanting(self, wants: Want, **more: bool) -> Request:
        """The same message, taken to want something else."""
        return replace(self, intent=replace(self.intent, wants=wants, **more))


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How a message is to be answered.

    hits: what the search found. evidence: the memories to answer from. refusal: the answer if no
    memory tells. pixels: images that the message is about, for a model that sees. image_hits: the
    memories of these images, or of those that came with a question to a model that does not.
    computed: an answer computed from the days, or taken from a list, of the evidence.
    expert_answer: replaces that of the conversing model. foremost: sentences of the user that this
    model's answer begins with.
    """

    request: Request
    hits: SearchResults
    way: Way
    evidence: tuple[Evidence, ...]
    refusal: str
    pixels: tuple[Pixels, ...] = ()
    image_hits: tuple[Hit, ...] = ()
    computed: str = ""
    expert_answer: Generation | None = None
    foremost: tuple[str, ...] = ()

    @property
    def context(self) -> tuple[Hit, ...]:
        """The memories that the answer is made from."""
        return self.image_hits or recall.sources(self.evidence)

    @property
    def listed(self) -> tuple[Evidence, ...]:
        """The evidence that the answer lists as it is; an answer to a question reads it whole."""
        return self.evidence if self.computed or self.request.wants in ("overview", *TASKS) else ()

    @property
    def nothing_known(self) -> bool:
        """Whether the message asks for what only memory could tell, and no memory was found."""
        return self.request.wants in ("recall", "overview") and not self.evidence


def understood(
    talk: Conversation,
    text: str,
    said_at: str,
    images: Sequence[bytes | str | Path] = (),
    options: Options | None = None,
) -> Request:
    """A message with what it wants by its words, and by the turn before it."""
    asked, days = text, days_asked(text, said_at)
    if days and language.follows_days(text) and not _asked_for_days(talk, said_at):
        days = None  # "And on Friday?", after "What does Posy have on Thursday?"
    if days:
        wanted = Intent("overview", tells=False)
    else:
        last, embedder = talk.said_last, talk.memory.embedder
        engine = engine_for(talk.memory, STAGE, talk.engine)
        caption = bool(images) and not talk.engine.sees
        wanted = intent(engine, embedder, text, last.said.content, caption=caption)
        if not images:
            asked, wanted = _in_context(talk, text, wanted)
        elif wanted.wants == "erase":
            wanted = replace(wanted, tells=True)
    plain = language.plain(asked)
    return Request(text, asked, plain, said_at, wanted, days, images, options=options or {})


def _asked_for_days(talk: Conversation, said_at: str) -> bool:
    """Whether the last question that does not only add a day asked for whatever there is then."""
    said = (turn.meant for turn in reversed(talk.turns) if turn.said.role == "user")
    last = next((text for text in said if not language.follows_days(text)), "")
    return days_asked(last, said_at) is not None


def _in_context(talk: Conversation, text: str, wanted: Intent) -> tuple[str, Intent]:
    """A message as it is to be answered after the turns that it may be about, and what it wants."""
    last, asked = talk.said_last, talk.asked_last
    text, wanted = as_meant(talk.memory.embedder, text, last.meant, last.wants, wanted)
    if not last.refused:
        text, wanted = as_change(text, asked.meant, last.wants, wanted)

    def no_people() -> set[str]:
        people = entity_names(talk.memory.store, ["person"])
        others = entity_names(talk.memory.store, _NO_PEOPLE)
        return {*map(str.lower, others)} - {*map(str.lower, people)}

    return of_somebody(text, asked.meant, asked.wants, wanted, no_people)


def plan_answer(talk: Conversation, request: Request) -> AnswerPlan:
    """Search the memories that a message may be about, and decide how it is answered."""
    if request.wants == "source":
        plan = _of_source(talk, request)
        if plan.evidence or not talk.heeds_notes:
            return plan
        request = request.wanting("general")  # it knows its own answer
    if request.wants == "recall" and request.intent.refers and talk.said_last.wants == "general":
        request = request.wanting("general", doubtful=True)  # "and of Morocco?"
    hits = _found(talk, request)
    if request.days:
        plan = _of_days(talk, request, request.days, hits)
    else:
        plan = _as_told(talk, request, hits) or _from_evidence(talk, request, hits)
    image_hits, pixels = _images_asked_about(talk, plan)
    if pixels:
        return replace(plan, evidence=(), computed="", pixels=pixels, image_hits=image_hits)
    if plan.computed:
        return plan
    if plan.request.wants == "recall":
        return _of_memory(talk, plan)
    may_tell = request.wants == "recall" or _is_near(hits) or _names_known(talk, request, hits)
    if plan.request.wants == "general" and may_tell:
        return _with_answer_if_told(talk, plan)
    return plan


def _of_source(talk: Conversation, request: Request) -> AnswerPlan:
    """The plan of an answer that quotes what the last answer rests on: the memories that it listed,
    else those near the last message that wanted something."""
    said = [i for i, turn in reversed([*enumerate(talk.turns)]) if turn.said.role == "user"]
    wanting = (i for i in said if talk.turns[i].wants not in (None, "source"))
    at = next(iter((*wanting, *said)), None)  # a client tells no wants of its turns
    hits, evidence = SearchResults(()), talk.turns[at].told_from if at is not None else ()
    if at is not None and not evidence and (asked := talk.turns[at]).asks_memory:
        plain = language.plain(asked.meant)
        last = talk.turns[max(0, at - 2) : at] if language.refers_back(plain) else ()
        before = [turn.said for turn in last]  # as it was searched for the first time
        hits = search(talk, asked.meant, request.said_at, before, whose=plain)
        evidence = recall.quotes(talk.memory, plain, hits)
    return AnswerPlan(request, hits, "quote", evidence, "")


def search(
    talk: Conversation,
    text: str,
    said_at: str | None = None,
    before: Sequence[Message] = (),
    *,
    whose: str = "",
) -> SearchResults:
    """The memories that fit a message, best first; see `recall.search`. whose: the question that
    says whose "I" may answer it; "" leaves nothing out."""
    ids, keep = asdict(talk.scope), kept_for(talk.memory, talk.scope, whose) if whose else None
    return recall.search(talk.memory, ids, text, said_at, before, most=_CANDIDATES, keep=keep)


def _found(talk: Conversation, request: Request) -> SearchResults:
    """What is found for a message: the images that it asks about, else the hits of a search."""
    if request.sent:
        return SearchResults(tuple(hit for hit in request.sent if known_of(hit)))
    asks = request.wants == "recall"
    last = talk.turns[-2:] if request.intent.refers else ()
    # What a model writes may be invented.
    before = [turn.said for turn in last if asks or turn.said.role == "user"]
    plain = request.plain
    whose = plain if request.wants in ("recall", "general") else ""
    hits = search(talk, request.asked, request.said_at, before, whose=whose)
    if not asks or _is_near(hits):
        return hits
    keep = kept_for(talk.memory, talk.scope, plain)
    rare = recall.without_remarks(
        talk.memory, plain, hits, talk.scope, least=_CANDIDATES, keep=keep
    )
    return replace(hits, items=tuple(rare))


def left_out(talk: Conversation, plan: AnswerPlan) -> list[Hit]:
    """The hits that are no evidence because another says them of themselves."""
    found = search(talk, plan.request.asked, plan.request.said_at)
    kept = {hit.id for hit in kept_for(talk.memory, talk.scope, plan.request.plain)(found)}
    return [hit for hit in found if hit.id not in kept]


def _is_near(hits: Sequence[Hit]) -> bool:
    return any(hit.score >= _NEAR_SCORE for hit in hits)


def _names_known(talk: Conversation, request: Request, hits: Sequence[Hit]) -> bool:
    """Whether a message names a person or a pet whom memories found for it name, too."""
    told = [hit.memory for hit in hits]
    known = " ".join(entity_names(talk.memory.store, ("person", "pet"))).lower()
    named = {*language.named(request.plain, told)} & {*language.words(known)}
    return any(named & {*language.words(text.lower())} for text in told)


def _may_be_general(talk: Conversation, request: Request, hits: Sequence[Hit]) -> bool:
    """Whether a question for a memory is doubtful, and about neither the user, nor anybody known,
    nor an image. A small model knows too little, and one that heeds its notes decides itself."""
    if talk.is_small or talk.heeds_notes or talk.engine.sees:
        return False
    if not request.intent.doubtful or request.intent.refers or request.sent:
        return False
    return not (language.is_of_speaker(request.plain) or _names_known(talk, request, hits))


def _of_days(talk: Conversation, request: Request, days: Asked, hits: SearchResults) -> AnswerPlan:
    """The plan of a question for whatever there is on some days."""
    way = _way(talk, request)
    evidence = agenda(talk.memory, talk.scope, days, request.said_at, most=TOLD_TURNS)
    # Other models mix the plans up, and invent some where there are none.
    way = way if evidence and talk.heeds_notes else "quote"
    return AnswerPlan(request, hits, way, evidence, generation.NOTHING_FOUND)


def _as_told(talk: Conversation, request: Request, hits: SearchResults) -> AnswerPlan | None:
    """The plan of a question that is answered with what was told, as it was said or computed from
    it; None for other messages."""
    if request.wants != "recall":
        return None
    read = None if talk.engine.sees else request.sent
    told = told_whole(talk, request.plain, hits, read, most=TOLD_TURNS)
    computed = _computed(talk, request, hits)
    if told is not None:
        request = request.wanting("overview")
    if computed is not None:
        answer, evidence = computed
        return replace(_begun(talk, request, hits), computed=answer, evidence=evidence)
    return None if told is None else replace(_begun(talk, request, hits), evidence=told)


def _computed(
    talk: Conversation, request: Request, hits: Sequence[Hit]
) -> tuple[str, tuple[Evidence, ...]] | None:
    """The answer to a question that compares days, or asks for an age or for an item of a list by
    its place, and the evidence of it; None for other questions."""
    if request.options or request.sent or talk.heeds_notes:
        return None
    memory, plain = talk.memory, request.plain
    answer = compared(memory, partial(search, talk, whose=plain), plain, request.said_at)
    answer = answer or aged(memory, hits, plain, request.said_at)
    if answer is None and (whom := language.whose_age(plain)):
        ages = telling_age(memory, talk.scope, whom)
        answer = aged(memory, ages, plain, request.said_at)
    return answer or listed(memory, plain, hits)


def _from_evidence(talk: Conversation, request: Request, hits: SearchResults) -> AnswerPlan:
    """The plan of any other message. A question of general knowledge that is near to a memory asks
    for it if its intent is doubtful, or if the model says itself when no memory tells; one that
    names somebody known also if the model knows little of the world. A doubtful question for a
    memory may be one of general knowledge instead; then memory is asked first."""
    unsure = request.intent.doubtful or talk.heeds_notes
    reads = talk.is_small or talk.heeds_notes
    if request.wants == "general" and (
        (unsure and _is_near(hits)) or (reads and _names_known(talk, request, hits))
    ):
        request = request.wanting("recall")
    elif request.wants == "recall" and _may_be_general(talk, request, hits):
        request = request.wanting("general")
    plan = _begun(talk, request, hits)
    plan = replace(plan, evidence=_evidence(talk, plan))
    return replace(plan, foremost=_foremost(talk, plan))


def _begun(talk: Conversation, request: Request, hits: SearchResults) -> AnswerPlan:
    """A plan without evidence."""
    way, image_hits = _way(talk, request), hits.items if request.sent else ()
    refusal = refusal_of(talk.memory, request.plain, hits, request.sent)
    return AnswerPlan(request, hits, way, (), refusal, image_hits=image_hits)


def _way(talk: Conversation, request: Request) -> Way:
    """How the model answers; a client that set options gets the model's own words."""
    engine, setting, wants = talk.engine, talk.memory.settings.reader, request.wants
    answers = engine.expert("generation") and setting in ("auto", "expert")
    if answers and wants == "recall":
        return "answer"
    if answers and not engine.expert("reply"):
        setting = "auto"  # the set's one expert is for answers; the model does all else
    if wants == "source" or reader_of(engine, "reply", setting) == "quote":
        return "quote"
    on_terms = request.options or talk.instructions
    if wants is None and not talk.heeds_notes and (talk.is_small or not on_terms):
        return "quote"  # a model below HEEDS_PARAMS invents when it is told news
    short = wants == "recall" and not request.options and talk.is_small
    return "answer" if short and expert_engine(talk) else "converse"


def _evidence(talk: Conversation, plan: AnswerPlan) -> tuple[Evidence, ...]:
    """The memories that a message is answered from, in the way of its plan."""
    memory, wants, plain, hits = talk.memory, plan.request.wants, plan.request.plain, plan.hits
    if wants == "act":
        return of_photo(memory, plain, hits)
    if wants == "overview":
        at = plan.request.said_at
        return recall.overview(memory, plain, hits, most=TOLD_TURNS, scope=talk.scope, said_at=at)
    if wants in TASKS:
        most, advice = _BEARING_TURNS, wants == "task"
        return bearing(memory, talk.scope, plain, hits, most=most, advice=advice)
    if plan.way == "converse" and wants is None and talk.heeds_notes:
        return _notes(talk, hits)
    if wants != "recall":
        return ()
    if plan.way == "answer":
        return evidence_for_expert(talk, plain, hits)
    if plan.way == "converse":
        return with_days(memory.embedder, plain, _notes(talk, hits))
    return recall.recall(memory, plain, hits, most=SHOWN_SENTENCES)


def _foremost(talk: Conversation, plan: AnswerPlan) -> tuple[str, ...]:
    """The sentences that advice begins with; none for a model that heeds all notes."""
    request = plan.request
    if request.wants != "task" or request.options or plan.way != "converse" or talk.heeds_notes:
        return ()
    if language.is_other_language(request.text) or language.is_other_script(request.text):
        return ()
    return foremost(talk.memory, request.plain, plan.evidence)


def _notes(talk: Conversation, hits: Sequence[Hit]) -> tuple[Evidence, ...]:
    """The notes beside a message, without what the model can read in the conversation already."""
    seen = {turn.said.content for turn in talk.shown}
    seen |= {note.text for turn in talk.shown for note in turn.notes}
    many = talk.heeds_notes or talk.engine.expert("reply")
    return recall.notes(talk.memory, hits, most=SHOWN_NOTES if many else FEW_NOTES, seen=seen)


def evidence_for_expert(
    talk: Conversation, question: str, hits: Sequence[Hit]
) -> tuple[Evidence, ...]:
    """The evidence for an expert for short answers: the user's messages of this conversation that
    are not stored, then the memories that a search found."""
    found = recall.recall(talk.memory, question, hits, most=SHOWN_TURNS, whole=True, ended=True)
    known = {evidence.text for evidence in found}  # an app may have stored the message
    said = [turn.said for turn in talk.turns if turn.said.role == "user" and turn.tells]
    # They come first, as a small window leaves out the first evidence.
    told = [evidence for evidence in recall.telling(said) if evidence.text not in known]
    return with_days(talk.memory.embedder, question, (*told[-SHOWN_TURNS:], *found))


def _images_asked_about(
    talk: Conversation, plan: AnswerPlan
) -> tuple[tuple[Hit, ...], tuple[Pixels, ...]]:
    """The memories and the pixels of the images that a question is about, if the model sees: those
    that came with the question, which have no memories yet, or those that the search found."""
    if not talk.engine.sees or plan.request.wants is None:
        return (), ()
    if plan.request.images:
        return (), image_memories.pixels_of(plan.request.images)
    if plan.request.wants != "recall":
        return (), ()
    return image_memories.images_of(talk.memory, plan.hits)


def _of_memory(talk: Conversation, plan: AnswerPlan) -> AnswerPlan:
    """The plan of a question about the user's life, with the present time, if it asks for that, and
    in a conversation with the answer of an expert."""
    request, hits = plan.request, plan.hits
    now: tuple[Evidence, ...] = ()
    if not request.sent:
        refers = request.intent.refers and any(hit.score >= _REFERRED for hit in hits)
        now = recall.clock(talk.memory, request.plain, request.said_at, refers=refers)
    plan = replace(plan, evidence=(*plan.evidence, *now))
    if plan.way != "converse":
        return plan
    evidence = (*evidence_for_expert(talk, request.plain, hits), *now)
    return _with_expert_answer(talk, plan, evidence)


def _with_expert_answer(
    talk: Conversation, plan: AnswerPlan, evidence: tuple[Evidence, ...]
) -> AnswerPlan:
    """The plan with the answer of the bundled model's expert, if the expert is sure or finds that
    no memory tells; else the plan as it is.

    If the conversing model does not confirm a sure answer, the plan quotes what was told.
    """
    if talk.engine.expert("generation") or talk.heeds_notes:
        return plan
    plain, short = plan.request.plain, replace(plan, evidence=evidence)
    try:
        if (judge := expert_engine(talk)) is None:
            return plan
        said = short_answer(talk, judge, short).whole()
        if said.text == plan.refusal:
            return replace(plan, expert_answer=said, evidence=())
        # A client that set options gets the model's own words.
        if plan.request.options or not generation.reliable(said.text, said.log_p, plain):
            return plan
        if generation.confirms(talk.engine, plain, evidence, said.text):
            return replace(short, expert_answer=said)
    except ModelError:  # the conversing model answers instead
        return plan
    quotes = recall.quotes(talk.memory, plain, recall.sources(evidence))
    quotes = quotes or tuple(e for e in evidence if e.source is None)  # said here, or the day
    if not quotes:
        return replace(plan, expert_answer=replace(said, text=plan.refusal), evidence=())
    return replace(short, expert_answer=replace(said, text=generation.unsure(quotes)))


def _with_answer_if_told(talk: Conversation, plan: AnswerPlan) -> AnswerPlan:
    """The plan of a question of general knowledge ("Can Noah eat nuts?"), with an expert's answer
    from the memories near it; the plan as it is if no memory tells. A larger model answers itself
    where this is unsure, unless somebody known is named."""
    try:
        if (engine := expert_engine(talk)) is None:
            return plan
        told = replace(plan, evidence=evidence_for_expert(talk, plan.request.plain, plan.hits))
        said = short_answer(talk, engine, told, quoting=True, guesses=False).whole()
    except ModelError:
        return plan
    if said.text == plan.refusal:
        return plan
    knows = not (talk.is_small or _names_known(talk, plan.request, plan.hits))
    if knows and not generation.reliable(said.text, said.log_p, plan.request.plain):
        return plan
    return replace(told, request=plan.request.wanting("recall"), expert_answer=said)


def expert_engine(talk: Conversation) -> Engine | None:
    """This model if it has an expert for short answers, else the bundled one, else None."""
    engine = engine_for(talk.memory, "generation", talk.engine)
    return engine if engine.expert("generation") else None


def short_answer(
    talk: Conversation,
    engine: Engine,
    plan: AnswerPlan,
    *,
    quoting: bool = False,
    guesses: bool = True,
) -> Stream:
    """An expert's answer from the evidence of a plan.

    quoting, guesses: as the `quotes` and `guesses` of `generation.answer`.
    """
    memory, request, evidence, before = talk.memory, plan.request, plan.evidence, None
    past = [turn.said for turn in talk.turns[-2:]] if request.intent.refers else []
    if len(past) > 1 and past[-1].role == "assistant":
        before = past[-2].content, past[-1].content
    quotes = partial(recall.quotes, memory, request.plain, recall.sources(evidence))
    return generation.answer(
        engine, request.plain, evidence, speaker="User", before=before, asked_at=request.said_at,
        refusal=plan.refusal, quotes=quotes if quoting else None, guesses=guesses,
        ended=recall.has_ended(memory, evidence), embedder=memory.embedder,
    )  # fmt: skip


def without_model(plan: AnswerPlan, instructions: str, *, free: bool) -> str | None:
    """An answer that needs no call of the conversing model, or None.

    instructions: the caller's, which may say who the assistant is. free: whether the model sums up
    in its own words; one below HEEDS_PARAMS would omit and invent.
    """
    wants, tells, shown = plan.request.wants, plan.request.intent.tells, plan.evidence
    converses = plan.way == "converse"
    if wants == "erase":
        return generation.ERASES_NOTHING if tells else generation.KEEPS_AND_ERASES_NOTHING
    if wants == "self" and not (converses and instructions):
        greeted = language.greets(plan.request.plain)
        return generation.GREETED if greeted else generation.ABOUT_ITSELF
    if wants == "act" and shown:
        return generation.quoted(shown, generation.OF_PHOTO)
    if wants == "act" and not (converses and instructions):
        return generation.DOES_NOTHING_BUT_KEEPS if tells else generation.DOES_NOTHING
    if plan.computed:
        return plan.computed
    if wants == "source":
        return generation.quoted(shown) if shown else generation.NO_MEMORY
    if wants == "overview" and shown and not (free and converses):
        return generation.quoted(shown)
    if plan.expert_answer is not None:
        return plan.expert_answer.text
    if plan.nothing_known and not converses:
        return plan.refusal
    if converses:
        return None
    if wants in TASKS and shown:
        head = generation.FOR_A_TEXT if wants == "text" else generation.BEARING
        return generation.quoted(shown, head)
    return None

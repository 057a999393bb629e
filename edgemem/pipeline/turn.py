"""One turn of a chat: what was said, how it is to be answered, and the answers without a model.

Knows the stages' fixed answers; no Memory, no prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from edgemem import language
from edgemem.pipeline import recall
from edgemem.results import Evidence, Hit, Message, SearchResults
from edgemem.runtime.generation import Generation, Options
from edgemem.runtime.vocabulary import Pixels
from edgemem.stages import generation
from edgemem.stages.intent import TASKS, Intent, Want

__all__ = ["AnswerPlan", "Turn", "Way", "plain_text", "since_memory", "without_model"]

Way = Literal["answer", "converse", "quote"]
"""How a message is answered. answer: by an expert for short answers. converse: in a conversation.
quote: by a model that can do neither; it quotes what was said, and makes small talk."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the conversation.

    said: as it was said. shown: its text as the model was shown it, with notes; None if that is
    what was said. notes: those shown with it. told_from: the memories that its answer lists.
    tells: whether the turn tells something that no search finds, as it is not stored. wants: what
    it wants.
    """

    said: Message
    shown: str | None = None
    notes: tuple[Evidence, ...] = ()
    told_from: tuple[Evidence, ...] = ()
    tells: bool = True
    wants: Want | None = None

    @property
    def as_shown(self) -> Message:
        """The message as the model was shown it."""
        return self.said if self.shown is None else replace(self.said, content=self.shown)

    @property
    def asks_memory(self) -> bool:
        """Whether its answer may rest on memory; a client does not tell what its turns want."""
        return self.wants in (None, "recall", "overview", *TASKS)

    @property
    def memories(self) -> tuple[Evidence, ...]:
        return *self.notes, *self.told_from

    def without_memories(self) -> Turn:
        return replace(self, shown=None, notes=(), told_from=())


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """A message, and how it is to be answered.

    plain: the text with chat spellings written out. hits: what the search found. evidence: the
    memories to answer from. refusal: the answer if no memory tells. pixels: images that the message
    is about, for a model that sees. image_hits: the memories of these images, or of those that came
    with a question to a model that does not. computed: an answer computed from the days, or taken
    from a list, of the evidence. expert_answer: replaces that of the conversing model.
    """

    text: str
    plain: str
    said_at: str
    hits: SearchResults
    way: Way
    intent: Intent
    evidence: tuple[Evidence, ...]
    options: Options
    refusal: str
    pixels: tuple[Pixels, ...] = ()
    image_hits: tuple[Hit, ...] = ()
    computed: str = ""
    expert_answer: Generation | None = None

    @property
    def context(self) -> tuple[Hit, ...]:
        """The memories that the answer is made from."""
        return self.image_hits or recall.sources(self.evidence)

    @property
    def listed(self) -> tuple[Evidence, ...]:
        """The evidence that the answer lists as it is; an answer to a question reads it whole."""
        return self.evidence if self.computed or self.intent.wants in ("overview", *TASKS) else ()

    @property
    def nothing_known(self) -> bool:
        """Whether the message asks for what only memory could tell, and no memory was found."""
        return self.intent.wants in ("recall", "overview") and not self.evidence


def since_memory(turns: Sequence[Turn]) -> Sequence[Turn]:
    """The turns after the last answer that is known to rest on memory."""
    of_memory = [i for i, turn in enumerate(turns) if turn.wants and turn.asks_memory]
    return turns[of_memory[-1] + 2 :] if of_memory else turns


def plain_text(text: str) -> str:
    """A message with its chat spellings written out, as it is answered from memory."""
    return language.plain(text)


def without_model(plan: AnswerPlan, instructions: str, *, free: bool) -> str | None:
    """An answer that needs no call of the conversing model, or None.

    instructions: the caller's, which may say who the assistant is. free: whether the model sums up
    in its own words; one below HEEDS_PARAMS would omit and invent.
    """
    wants, tells, shown = plan.intent.wants, plan.intent.tells, plan.evidence
    converses = plan.way == "converse"
    if wants == "erase":
        return generation.ERASES_NOTHING if tells else generation.KEEPS_AND_ERASES_NOTHING
    if wants == "self" and not (converses and instructions):
        return generation.ABOUT_ITSELF
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

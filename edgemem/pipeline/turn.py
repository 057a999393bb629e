"""One turn of a chat: what was said, what was decided about it, and the answers that need no model.

Knows the stages' fixed answers; no Memory, no prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from edgemem import language
from edgemem.pipeline import recall
from edgemem.results import Evidence, Hit, Message, SearchResults
from edgemem.runtime.generation import Generation, Options
from edgemem.runtime.vocabulary import Pixels
from edgemem.stages import generation
from edgemem.stages.intent import TASKS, Intent, Want

__all__ = ["Decided", "Turn", "Way", "as_read", "without_model"]

Way = Literal["answer", "converse", "quote"]
"""How a message is answered. answer: by an expert for short answers. converse: in a conversation.
quote: by a model that can do neither; it quotes what was said, and makes small talk."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn as it was said. shown: its text as the model read it, notes included; None if that is
    what was said. notes: those beside it. tells: whether the turn tells something that no search
    finds, as it is not stored. wants: what it wants.
    """

    said: Message
    shown: str | None = None
    notes: tuple[Evidence, ...] = ()
    tells: bool = True
    wants: Want | None = None

    @property
    def read(self) -> Message:
        """The message as the model read it."""
        return self.said if self.shown is None else replace(self.said, content=self.shown)


@dataclass(frozen=True, slots=True)
class Decided:
    """A message, and what was decided about it before it is answered.

    read: the text as it is answered from memory, with chat spellings written out. hits: what the
    search found. evidence: the memories to answer from. unknown: the answer if no memory tells.
    pixels: images that the message is about, for a model that sees. photos: the memories of these
    images. counted: an answer computed from the days of the evidence. answered: an expert's answer,
    which replaces the conversing model's.
    """

    text: str
    read: str
    said_at: str
    hits: SearchResults
    way: Way
    intent: Intent
    evidence: tuple[Evidence, ...]
    options: Options
    unknown: str
    pixels: tuple[Pixels, ...]
    photos: tuple[Hit, ...]
    counted: str = ""
    answered: Generation | None = None

    @property
    def context(self) -> tuple[Hit, ...]:
        """The memories that the answer is made from."""
        return self.photos or recall.sources(self.evidence)

    @property
    def nothing_known(self) -> bool:
        """Whether the message asks for what only memory could tell, and no memory was found."""
        return self.intent.wants in ("recall", "overview") and not self.evidence


def as_read(text: str) -> str:
    """A message as it is answered from memory: with its chat spellings written out."""
    return language.plain(text)


def without_model(asked: Decided, instructions: str, *, free: bool) -> str | None:
    """An answer that needs no call of the conversing model, or None.

    instructions: the caller's, which may say who the assistant is. free: whether the model sums up
    in its own words; one below HEEDS_PARAMS would omit and invent.
    """
    wants, shown = asked.intent.wants, asked.evidence
    converses = asked.way == "converse"
    if wants == "erase":
        return generation.ERASES_NOTHING if asked.intent.tells else generation.NOR_KEEPS
    if wants == "self" and not (converses and instructions):
        return generation.ABOUT_ITSELF
    if wants == "act" and not (converses and instructions):
        keeps = asked.intent.tells
        return generation.DOES_NOTHING_BUT_KEEPS if keeps else generation.DOES_NOTHING
    if asked.counted:
        return asked.counted
    if wants == "overview" and shown and not (free and converses):
        return generation.quoted(shown)
    if asked.answered is not None:
        return asked.answered.text
    if asked.nothing_known and not converses:
        return asked.unknown
    if converses:
        return None
    if wants in TASKS and shown:
        head = generation.FOR_A_TEXT if wants == "text" else generation.BEARING
        return generation.quoted(shown, head)
    return None

"""A conversation: its turns, and the model that answers.

Knows a Memory; no prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from edgemem.language import may_name, refers_back
from edgemem.pipeline.recall import changed
from edgemem.results import Evidence, Hit, Message, Scope
from edgemem.runtime.engine import Engine
from edgemem.runtime.experts import HEEDS_PARAMS
from edgemem.stages.intent import TASKS, Want
from edgemem.stages.reply import ACKNOWLEDGEMENTS
from edgemem.store.erasures import last_erasure

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["Conversation", "Turn", "since_memory"]

_OWN_WORDS_PARAMS = 1_000_000_000  # from which a model answers where no expert is sure


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the conversation.

    said: as it was said. shown: its text as the model was shown it, with notes; None if that is
    what was said. notes: those shown with it. told_from: the memories that its answer lists.
    tells: whether the turn tells something that no search finds, as it is not stored. wants: what
    it wants. asked: the message as it was answered after the turn before it; "" if as it was said.
    refused: whether it got a fixed text that tells nothing in place of an answer.
    """

    said: Message
    shown: str | None = None
    notes: tuple[Evidence, ...] = ()
    told_from: tuple[Evidence, ...] = ()
    tells: bool = True
    wants: Want | None = None
    asked: str = ""
    refused: bool = False

    @property
    def as_shown(self) -> Message:
        """The message as the model was shown it."""
        return self.said if self.shown is None else replace(self.said, content=self.shown)

    @property
    def acknowledges(self) -> bool:
        """Whether it only says that news were heard."""
        return self.said.role == "assistant" and self.said.content in ACKNOWLEDGEMENTS

    @property
    def meant(self) -> str:
        """The message as it was answered."""
        return self.asked or self.said.content

    @property
    def asks_memory(self) -> bool:
        """Whether its answer may rest on memory; a client does not tell what its turns want."""
        return self.wants in (None, "recall", "overview", *TASKS)

    @property
    def memories(self) -> tuple[Evidence, ...]:
        return *self.notes, *self.told_from


@dataclass(eq=False, slots=True)
class Conversation:
    """What was said up to now, to whom.

    scope: whose memories may be shown. model: None is the memory's own. instructions: the caller's.
    turns: oldest first. first_shown: index of the first one that the model is still shown. known:
    the facts of its system message; None if they are to be found anew.
    """

    memory: Memory
    scope: Scope
    model: Engine | None
    instructions: str
    turns: list[Turn]
    first_shown: int = 0
    known: tuple[Evidence, ...] | None = None
    _erasure: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._erasure = last_erasure(self.memory.store)

    @property
    def engine(self) -> Engine:
        """The model that answers."""
        return self.model or self.memory.engine

    @property
    def heeds_notes(self) -> bool:
        """Whether the model heeds all that it is shown, and says itself if no memory tells."""
        return self.engine.n_params >= HEEDS_PARAMS

    @property
    def is_small(self) -> bool:
        """Whether the model mixes up who does what, whatever it has learned."""
        return self.engine.n_params < _OWN_WORDS_PARAMS

    @property
    def shown(self) -> Sequence[Turn]:
        """The turns that the model is still shown. It copies a refusal over the right notes, so it
        is shown neither that nor its question, unless the question told something. It copies an
        acknowledgement over an answer, so of news it is shown what the user said."""
        left = (turn for turn in self.turns[self.first_shown :] if turn.tells or not turn.refused)
        return [turn for turn in left if not turn.acknowledges]

    @property
    def asked_last(self) -> Turn:
        """The user's last turn that the next may ask of: no edit, no "are you sure?", and nothing
        that itself only asks more of the one before it ("And before that?")."""
        said = (turn for turn in reversed(self.turns) if turn.said.role == "user")
        of_own = (turn for turn in said if turn.wants not in ("edit", "source"))
        return next((turn for turn in of_own if not _only_follows(turn.meant)), _NO_TURN)

    @property
    def said_last(self) -> Turn:
        """The user's last turn; an empty one if nothing was said."""
        said = (turn for turn in reversed(self.turns) if turn.said.role == "user")
        return next(said, _NO_TURN)

    def drop_outdated(self, found: Sequence[Hit] = ()) -> bool:
        """Drop notes and known facts that were changed or deleted since the model was shown them.

        Returns whether anything shown, said or found (`found`) was erased. Then all notes are
        dropped, and the turns that the store does not have, as they may quote it.
        """
        store = self.memory.store
        notes = [note for turn in self.turns for note in turn.memories]
        gone = changed(self.memory, [*notes, *(self.known or ())])
        before, self._erasure = self._erasure, last_erasure(store)
        if before != self._erasure:  # perhaps of another user
            left = store.recent_turns(self.scope, limit=2 * len(self.turns))
            stored = {turn.content for turn in left}
            kept = [Turn(turn.said) for turn in self.turns if turn.said.content in stored]
            ids = {hit.id for hit in found}
            if gone or len(kept) < len(self.turns) or len(store.get([*ids])) < len(ids):
                self.turns, self.first_shown, self.known = kept, 0, None
                return True
        if gone:
            self.turns = [
                replace(turn, shown=None, notes=(), told_from=())
                if gone.intersection(turn.memories)
                else turn
                for turn in self.turns
            ]
            self.known = None
        return False


_NO_TURN = Turn(Message("user", "", ""))


def _only_follows(text: str) -> bool:
    return refers_back(text) and not may_name(text)


def since_memory(turns: Sequence[Turn]) -> Sequence[Turn]:
    """The turns after the last answer that is known to rest on memory."""
    of_memory = [i for i, turn in enumerate(turns) if turn.wants and turn.asks_memory]
    return turns[of_memory[-1] + 2 :] if of_memory else turns

"""Whose "I" may answer a question.

In a chat of several people a question about the user is not answered with what another tells of
themselves, and one about Ruth not with what the user or a third person does. Whoever a question
names may always answer it. Where no turn is the user's, nothing is left out.

Knows a Memory's turns and their speakers; no prompt, no score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from edgemem import language
from edgemem.results import Hit, Scope
from edgemem.store import StoredTurn
from edgemem.store.speakers import user_tells

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["Keep", "kept_for"]

Keep = Callable[[Sequence[Hit]], list[Hit]]
"""Returns the hits that may be evidence, in their order."""


def kept_for(memory: Memory, scope: Scope, question: str) -> Keep:
    """The hits without those that tell of another what a question asks of the user or of one whom
    it names. A fact goes with the turns that it was taken from, if all of them go."""
    of_asker, asked = language.asks_of_asker(question), {*language.content_words(question)}

    def is_named(turn: StoredTurn) -> bool:
        return not asked.isdisjoint(language.content_words(turn.name or ""))

    def is_out(turn: StoredTurn, named: Iterable[Sequence[str]]) -> bool:
        if is_named(turn) or (turn.role == "assistant" and turn.name is None):
            return False
        if of_asker:
            return turn.name is not None and language.tells_of_self(turn.content, question)
        return any(language.says_of_self_instead(turn.content, question, name) for name in named)

    def kept(hits: Sequence[Hit]) -> list[Hit]:
        turns = memory.store.turns([id for hit in hits for id in hit.sources])
        named = [
            language.content_words(turn.name or "") for turn in turns.values() if is_named(turn)
        ]
        out = {turn.id for turn in turns.values() if is_out(turn, named)}
        if not out or not user_tells(memory.store, scope):
            return [*hits]
        return [hit for hit in hits if not hit.sources or not out.issuperset(hit.sources)]

    return kept

"""Which known facts a new statement contradicts, by rule.

Two facts contradict each other if they give somebody two targets of a relation that has one at a
time (lives_in), if they say that something is liked and disliked, or if one denies what the other
says. Contradictions are only reported; stage 2 decides what becomes of a fact (stages/update.py).

Knows a Memory and the graph; writes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgemem.graph import reader as graph
from edgemem.language import Statement, in_third_person, same_word
from edgemem.pipeline.ingest import nearest
from edgemem.results import Conflict, Label, Query, Relation, Scope, utc_now
from edgemem.store import NewRelation
from edgemem.store.relations import relations_of

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["conflicts"]

_NEAREST = 50  # facts that are compared
_DENIED = 0.6  # share of the shorter fact's content words that a denial must share with the other
_OPPOSITE: dict[Label, Label] = {"likes": "dislikes", "dislikes": "likes"}


def conflicts(memory: Memory, text: str, scope: Scope) -> list[Conflict]:
    """The facts of a scope that a statement contradicts, the most similar first.

    text: about somebody by name; the first person means the user.
    """
    statement = in_third_person(text, graph.USER)
    vector = memory.embedder.embed_query(statement)
    query = Query(statement, scope, kinds=frozenset({"fact"}), top_k=_NEAREST)
    new = graph.relations(memory.encoder, statement, utc_now())
    said = Statement.of(statement)
    found = []
    for item, cosine in nearest(memory, query, vector):
        label = _at_odds(new, relations_of(memory.store, [item.id], scope))
        if label is not None or _denies(said, Statement.of(item.memory)):
            found.append(Conflict(**vars(item), score=max(0.0, cosine), label=label))
    return found


def _at_odds(new: list[NewRelation], old: list[Relation]) -> Label | None:
    """The label of a new relation that cannot hold together with an old one, or None."""
    for one in new:
        for other in old:
            if one.source.name.casefold() != other.source.casefold():
                continue
            same = one.target.name.casefold() == other.destination.casefold()
            if one.label == other.relationship and one.label in graph.FUNCTIONAL and not same:
                return one.label
            if _OPPOSITE.get(one.label) == other.relationship and same:
                return one.label
    return None


def _denies(one: Statement, other: Statement) -> bool:
    """Whether one of two facts about the same person negates the other in much the same words."""
    if one.negated == other.negated or one.person != other.person:
        return False
    less, more = sorted((one.content, other.content), key=len)
    shared = sum(same_word(word, more) for word in less)
    return bool(less) and shared >= _DENIED * len(less)

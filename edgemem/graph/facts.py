"""What a fact says, as the store keeps it: relations whose words were said, and since when.

Knows the reader's triples and the language's dates; writes nothing.
"""

from __future__ import annotations

from edgemem.graph.reader import triples
from edgemem.language import content_words, held_since, same_word, words
from edgemem.results import Entity, Label, Scope, at_day, local_time
from edgemem.runtime.encoder import Encoder
from edgemem.store import NewRelation, Store
from edgemem.store.relations import entity_ids, normalised

__all__ = ["FUNCTIONAL", "USER", "FactReader", "names"]

USER = "User"
"""How facts name the user who gave no name."""

_VERSION = 3
"""Of the fitted weights. A higher one has every fact read again (`upkeep.read_relations`)."""

FUNCTIONAL: frozenset[Label] = frozenset((
    "lives_in", "works_at", "works_as", "married_to", "partner_of", "engaged_to", "drives",
    "born_in", "born_on", "comes_from", "studies_at", "aged", "follows_diet",
))  # fmt: skip
"""What somebody has one of at a time."""

_OF_A_DAY: frozenset[Label] = frozenset((
    "visited", "plans_to_visit", "bought", "made", "attends", "happens_on", "born_on", "born_in",
))  # fmt: skip
"""What is done once: "for two weeks" says how long it took."""
_KIN: frozenset[Label] = frozenset((
    "parent_of", "child_of", "sibling_of", "relative_of", "is_a", "located_in", "comes_from",
))  # fmt: skip
"""What no date in its fact begins."""


class FactReader:
    """Reads facts as relations.

    encoder: with None nothing is read. version: to be stored with what was read; 0 where nothing
    is, so that a later reader reads it.
    """

    def __init__(self, encoder: Encoder | None) -> None:
        self.encoder = encoder
        self.version = 0 if encoder is None else _VERSION

    def read(self, fact: str, valid_from: str, said: str | None = None) -> list[NewRelation]:
        """The relations of a fact.

        valid_from: when it was told or began, ISO-8601 UTC. said: the words of its turns; a
        relation to something that is not among them is left out.
        """
        if self.encoder is None:
            return []
        in_turns = None if said is None else set(words(said))
        found = []
        for triple in triples(fact, self.encoder):
            if in_turns is not None and not _was_said(triple.target, in_turns):
                continue
            since = None
            if triple.label not in _OF_A_DAY | _KIN:
                since = held_since(fact, triple.target.name, local_time(valid_from))
            begins = at_day(since) if since else None
            found.append(NewRelation(triple.source, triple.label, triple.target, begins))
        return found


def _was_said(target: Entity, said: set[str]) -> bool:
    """Whether a target's words were said. Days are written out, and "my" becomes a name."""
    if target.type == "date":
        return True
    named = content_words(target.name)
    named = named[-1:] if target.type == "person" else named
    return all(same_word(word, said) for word in named)


def names(store: Store, entity: str | None, scope: Scope) -> list[str] | None:
    """What an entity may be called; a user's own id is theirs unless somebody has that name."""
    if entity is None:
        return None
    own = scope.user_id is not None and normalised(entity) == normalised(scope.user_id)
    known = not own or entity_ids(store, [entity], scope)
    return [entity] if known else [entity, USER]

"""Of all that was told: whose "I" may answer, what lasts, and what matters of somebody.

- In a chat of several people a question about the user is not answered with what another tells of
  themselves, and one about Ruth not with what the user or a third person does. Whoever a question
  names may always answer it. Where no turn is the user's, nothing is left out.
- In the store of years hundreds of memories have the name that "Who is Ana?" asks for, and most are
  remarks made again and again. So the store is asked for all, and those with rare words are kept.
- What lasts is what somebody must avoid, who is who, how somebody lives.

Knows a Memory's store, index and words, and fitted weights; no prompt, no score of a search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from math import log
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgemem import language
from edgemem.pipeline.ingest import nearest
from edgemem.results import Evidence, Hit, MemoryItem, Query, Scope
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.onnxfile import expert
from edgemem.store import StoredTurn
from edgemem.store.speakers import said_by, user_tells
from edgemem.store.store import told_texts

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["KINDS", "LIKELY", "Keep", "all_told", "counted", "kept_for", "lasting"]
__all__ += ["lasting_logits", "rare_hits", "rarest"]

Keep = Callable[[Sequence[Hit]], list[Hit]]
"""Returns the hits that may be evidence, in their order."""
Kind = Literal["constraint", "person", "circumstance"]
"""constraint: an allergy, an illness, a diet, a fear. person: who somebody is to the user, a name,
an animal. circumstance: work, home, age, tastes, a routine."""
KINDS: tuple[Kind, ...] = get_args(Kind)
LIKELY = 0.5
"""The probability from which a memory counts as one of a kind."""

_MOST = 16  # memories of a kind
_RAREST = 2  # words of a text that say how rare it is
_OF_THE_RAREST = 0.75  # of the rarest text's rarity, in logarithms
_AGAIN = 8  # texts with the rarest words of one; from there on it is a remark made again and again


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


def lasting(memory: Memory, scope: Scope, kind: Kind, *, most: int = _MOST) -> list[Hit]:
    """The memories that most likely tell something lasting of a kind, the likeliest first.

    For each kind a logistic regression over the embedding says how probable that is. Its weights
    are a direction, so the index finds these memories as it finds the nearest ones to a query.
    Their score is 0. `python -m bench.fit_lasting` fits the weights for one embedder; with any
    other there are no hits.
    """
    weights = expert("lasting")
    if memory.embedder.model_id != str(weights["embedder"]):
        return []
    column = KINDS.index(kind)
    vector, bias = weights["vector"][:, column], float(weights["bias"][column])
    length = float(np.linalg.norm(vector))
    least = (log(LIKELY / (1 - LIKELY)) - bias) / length  # cosine to the direction
    found = nearest(memory, Query(kind, scope, top_k=most), vector / length)
    return [Hit.of(item, 0.0) for item, cosine in found if cosine >= least]


def lasting_logits(embedder: Embedder, vectors: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """How likely texts tell something lasting, by their vectors (n, dim): logits (n, len(KINDS)).

    None with an embedder that no weights are fitted to.
    """
    weights = expert("lasting")
    if embedder.model_id != str(weights["embedder"]):
        return None
    logits: NDArray[np.float32] = vectors @ weights["vector"] + weights["bias"]
    return logits


def all_told(
    memory: Memory,
    scope: Scope,
    question: str,
    names: Callable[[str], bool],
    *,
    most: int,
    fits: Callable[[MemoryItem], bool] | None = None,
) -> tuple[list[Hit], int]:
    """The memories of a scope that name those whom a question asks about, or in which they speak of
    themselves, oldest first, and how many were left out.

    names: whether a text or a speaker's name has one of the names. A fact is left out if its turns
    are given, too. Of more than `most` texts the `rarest` are given; those of their own only fill
    the places that are left. Their score is 0. fits: whether a memory is of the days that the
    question names.
    """
    rows = told_texts(memory.store, scope, {"turn", "fact", "image"})
    said = said_by(memory.store, scope, names)
    told = [
        row
        for row, text, _ in rows
        if names(text) or (row in said and language.is_of_speaker(text))
    ]
    items = [i for i in memory.store.by_rowids(told).values() if fits is None or fits(i)]
    turns = {id for item in items if item.kind == "turn" for id in item.sources}
    kept = [i for i in items if i.kind != "fact" or _is_edited(i) or not _is_told_by(turns, i)]
    photos = [item for item in kept if item.kind == "image"]
    kept = [item for item in kept if not (item.kind == "turn" and _is_caption(item, photos))]
    by_text = {item.memory: item for item in kept}
    unnamed = [id for item in kept if not names(item.memory) for id in item.sources]
    speakers = memory.store.turns(unnamed)

    def with_name(item: MemoryItem) -> str:
        by = next((speakers[id].name for id in item.sources if id in speakers), None)
        return f"{by}: {item.memory}" if by else item.memory

    others = language.of_others(question, [with_name(item) for item in by_text.values()])
    theirs = [text for text, other in zip(by_text, others, strict=True) if not other]
    texts = [text for _, text, _ in rows]
    of_them = [text for text in theirs if names(text)]
    of_them = rarest(of_them, texts, least=most, most=most)
    own, left = [text for text in theirs if not names(text)], most - len(of_them)
    rare = {*of_them, *(rarest(own, texts, least=left, most=left) if left else ())}
    hits = [Hit.of(item, 0.0) for text, item in by_text.items() if text in rare]
    return hits, len(theirs) - len(hits)


def _is_told_by(turns: Collection[str], fact: MemoryItem) -> bool:
    """Whether a fact comes from these turns alone; an imported one may come from none."""
    return bool(fact.sources) and {*fact.sources} <= {*turns}


def _is_caption(turn: MemoryItem, photos: Sequence[MemoryItem]) -> bool:
    """Whether a turn says no more than the photo that came with it."""
    sent = (photo for photo in photos if {*photo.sources} & {*turn.sources})
    return any(turn.memory in photo.memory for photo in sent)


def _is_edited(item: MemoryItem) -> bool:
    return item.updated_at != item.created_at


def rare_hits(memory: Memory, hits: Sequence[Hit], scope: Scope, *, least: int) -> list[Hit]:
    """The hits whose texts are the `rarest` of a scope, each text once."""
    once = {hit.memory: hit for hit in reversed(hits)}
    told = (text for _, text, _ in told_texts(memory.store, scope, {"turn", "fact"}))
    rare = {*rarest([*once], told, least=least)}
    return [hit for hit in hits if hit.memory in rare and once[hit.memory] is hit]


def rarest(
    texts: Sequence[str], told: Iterable[str], *, least: int, most: int | None = None
) -> list[str]:
    """All of at most `least` texts, in their order. Of more, those whose rarest words are nearly as
    rare as any or are in fewer than _AGAIN texts, at most `most`.

    told: all texts among which words are counted. Days and hours are no such words.
    """
    if len(texts) <= least:
        return [*texts]
    if not (said := [language.subjects(text) for text in told]):
        return [*texts[:most]]
    n_with = Counter(word for of_one in said for word in of_one)

    def rarity(text: str) -> float:
        times = sorted(max(1, n_with[word]) for word in language.subjects(text))[:_RAREST]
        return sum(log(len(said) / n) for n in times) / max(1, len(times))

    rarities = {text: rarity(text) for text in texts}
    enough = min(_OF_THE_RAREST * max(rarities.values()), log(len(said) / _AGAIN))
    best = sorted((t for t in texts if rarities[t] >= enough), key=lambda t: -rarities[t])[:most]
    kept: Collection[str] = {*best}
    return [text for text in texts if text in kept]


def counted(left: int) -> tuple[Evidence, ...]:
    """The line that says how many were left out; none for 0."""
    return (Evidence(f"and {left} more"),) if left else ()

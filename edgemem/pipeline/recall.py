"""From the hits of a search to what the model is shown: what matters, and is still true.

A small base model reads two sentences better than four turns: of 44 questions about six invented
conversations it answered 21 right from whole turns, and 30 from the two sentences nearest to the
question, quoting them (bench/LOG.md; the choices were made on those conversations). Facts point to
the turns they were taken from, and the turns' own words are shown: a fact of a small model is a
good key, and a bad quotation. An expert has learned to read whole turns among others.

Knows a Memory and the stage's `Recalled`; no prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from edgemem.language import (
    asks_for_now,
    asks_for_past,
    content_words,
    is_question,
    leans_back,
    on_day,
    same_word,
    sentences,
    words,
)
from edgemem.results import Hit, MemoryItem, Scope
from edgemem.retrieval.search import RELEVANT, refresh
from edgemem.stages.generation import Recalled
from edgemem.store import StoredTurn

if TYPE_CHECKING:
    from edgemem.memory import Memory

T = TypeVar("T")

__all__ = [
    "Context",
    "Passage",
    "bearing",
    "known",
    "note_head",
    "notes",
    "overview",
    "passages",
    "recall",
]

_MAX_PASSAGES = 8  # turns and facts whose sentences are compared with the question
_WORDS_WEIGHT = 0.3  # of the share of the question's words, beside the cosine
_FAR = 0.3  # of the best sentence's score; what lies below would only distract
_LEAST = 0.002  # the score of a note; below it, what is known of everything must do
_FAR_LESS = 0.01  # of the best hit's score
_OF_THE_BEST = 0.1  # the same, for an overview
_NEWEST = 100  # facts; as many as the window could hold
_NEAREST = 8  # memories of each thing that lasts
_LASTING = (  # what advice and letters need to know of anybody
    "User is allergic to it and must not eat it.",
    "User takes medicine because of an illness.",
    "User is afraid of it and cannot stand it.",
    "User likes it most.",
    "User has a husband or wife, children and parents.",
    "User has a dog or a cat.",
    "User works as it.",
    "User lives in it.",
)


@dataclass(frozen=True, slots=True)
class Context:
    """What is shown to the model, the most telling last, and the hits that it came from."""

    shown: tuple[Recalled, ...] = ()
    hits: tuple[Hit, ...] = ()


@dataclass(frozen=True, slots=True)
class Passage:
    """What a hit says: a turn's words, or a fact (which nobody said).

    turn: whose words the text is, all of them; else None. over: facts of it that no longer hold.
    """

    hit: Hit
    text: str
    when: str | None
    speaker: str
    said: bool
    turn: str | None = None
    over: tuple[str, ...] = ()


def recall(
    memory: Memory, question: str, hits: Sequence[Hit], *, most: int, whole: bool = False
) -> Context:
    """At most `most` sentences to answer a question from; none if nothing relevant may be shown.

    hits: of a search, best first. whole: whole turns, in the hits' order, relevant or not: an
    expert reads them, and says itself that they do not tell. Left out: what only asks, what the
    assistant said, and what has been contradicted since (unless the question is about the past).
    The nearest sentence comes last, or the newest when the question asks for now.
    """
    found = passages(memory, question, hits)
    if whole:
        return _context([(p, p.text) for p in found[:most]], by_time=asks_for_now(question))
    # A relevant hit that may not be shown (this question, asked before) lets no other through.
    if not passages(memory, question, [hit for hit in hits if hit.score >= RELEVANT]):
        return Context()
    split = [
        (passage, sentence)
        for passage in found
        for sentence in sentences(passage.text)
        if not is_question(sentence)
    ]
    if not split:
        return Context()
    vectors = memory.embedder.embed([question, *(sentence for _, sentence in split)])
    asked = content_words(question)
    scores = [
        cosine + _WORDS_WEIGHT * _share(asked, sentence)
        for cosine, (_, sentence) in zip(vectors[1:] @ vectors[0], split, strict=True)
    ]
    best = np.argsort(-np.asarray(scores), kind="stable")[:most].tolist()
    best = [i for i in best if scores[i] >= _FAR * scores[best[0]]]
    return _context([split[i] for i in best], by_time=asks_for_now(question))


def _context(best: Sequence[tuple[Passage, str]], *, by_time: bool) -> Context:
    """best: texts, the most telling first. by_time: the newest is shown last, instead of it."""
    chosen = list(reversed(best))
    if by_time:
        chosen.sort(key=lambda found: found[0].when or "")
    return Context(
        tuple(Recalled(text, p.when, p.speaker, p.said) for p, text in chosen),
        tuple({p.hit.id: p.hit for p, _ in reversed(chosen)}.values()),
    )


def notes(memory: Memory, hits: Sequence[Hit], *, most: int, seen: Collection[str] = ()) -> Context:
    """What an instruct model is shown of the hits: at most `most` whole turns, oldest first.

    What has been contradicted since is shown, and said to be so: the model reads which is meant.
    seen: texts that the conversation has already. A hit that is far less probable than the best
    one is left out: each is read at the cost of a sentence, and takes the model's mind off.
    """
    least = max(_LEAST, _FAR_LESS * max((hit.score for hit in hits), default=0.0))
    told = passages(memory, None, [hit for hit in hits if hit.score >= least], most=len(hits))
    return _noted([p for p in told if p.text not in seen][:most])


def known(
    memory: Memory,
    scope: Scope,
    fits: Callable[[Sequence[Recalled]], bool],
    seen: Collection[str] = (),
) -> Context:
    """What every answer of a scope may need, as much as fits, oldest first.

    A search finds what resembles a message. Advice, a letter or a summary needs what does not: by
    turns what told the newest fact, and what is nearest to each thing that lasts (`_LASTING`).
    seen: texts that the conversation has already.
    """
    newest = memory.store.list(scope, kinds={"fact"})[::-1][:_NEWEST]
    hits = [Hit.of(item, 0.0) for item in _by_turns(newest, _by_turns(*_lasting(memory, scope)))]
    taken: list[Passage] = []
    for passage in passages(memory, None, hits, most=len(hits)):
        if passage.text in seen:
            continue
        if not fits(_noted([*taken, passage]).shown):
            break
        taken.append(passage)
    return _noted(taken)


def overview(memory: Memory, hits: Sequence[Hit], *, most: int) -> Context:
    """At most `most` turns of what a search finds, oldest first, but for what fits far less."""
    least = _OF_THE_BEST * max((hit.score for hit in hits), default=0.0)
    return _noted(passages(memory, None, [hit for hit in hits if hit.score >= least], most=most))


def bearing(memory: Memory, scope: Scope, hits: Sequence[Hit], *, most: int) -> Context:
    """At most `most` turns that a task should agree with, oldest first: in turn what a search
    finds and what is nearest to each thing that lasts."""
    lasting = [Hit.of(item, 0.0) for item in _by_turns(*_lasting(memory, scope))]
    return _noted(passages(memory, None, list(_by_turns(hits, lasting)), most=most))


def _noted(found: Sequence[Passage]) -> Context:
    """Passages as notes, oldest first."""
    by_time = sorted(found, key=lambda p: p.when or "")
    return Context(
        tuple(Recalled(p.text, p.when, p.speaker, p.said, p.over) for p in by_time),
        tuple({p.hit.id: p.hit for p in by_time}.values()),
    )


def _lasting(memory: Memory, scope: Scope) -> list[list[MemoryItem]]:
    """For each thing that lasts the memories nearest to it, nearest first."""
    refresh(memory.store, memory.index)
    found = []
    for vector in memory.embedder.embed(_LASTING):
        rowids, _ = memory.index.nearest(vector, _NEAREST, scope=scope)
        found.append(list(memory.store.by_rowids(rowids.tolist()).values()))
    return found


def _by_turns(*rows: Iterable[T]) -> Iterator[T]:
    """The first of each row, then the second of each, and so on."""
    for column in zip_longest(*rows):
        yield from (item for item in column if item is not None)


def note_head(when: str | None, speaker: str, *, said: bool = True) -> str:
    """What stands before a passage in a list of notes, as `language.HEAD` reads it."""
    return f"{on_day(when)}{speaker if said else 'it was noted'}: "


def passages(
    memory: Memory, question: str | None, hits: Sequence[Hit], *, most: int = _MAX_PASSAGES
) -> list[Passage]:
    """What the hits say, in their order: the words of their turns where these still stand.

    Of a fact whose turn was deleted, edited or contradicted since, its own text. Of such a turn
    itself nothing, but what it was edited to, or the sentences that still hold. question: None
    keeps what was contradicted, and says so in `over`.
    """
    ids = [id for hit in hits for id in hit.sources]
    known = memory.store.turns(ids)
    turns = {id: known[id] for id in memory.store.standing_turns(ids) if id in known}
    stale = memory.stale_turns(turns)
    over = {} if question is None or asks_for_past(question) else stale
    marked = stale if question is None else {}
    found: dict[str, Passage] = {}
    for hit in hits:
        edited, is_turn = hit.updated_at > hit.created_at, hit.kind == "turn"
        said = [turns[id] for id in hit.sources if id in turns and (is_turn or id not in over)]
        if not is_turn and (edited or not said):
            found[hit.id] = Passage(hit, hit.memory, hit.valid_from, "User", said=False)
            continue
        for turn in [known[id] for id in hit.sources if id in known] if edited else said:
            text = hit.memory if edited else _holding(turn.content, over.get(turn.id, ()))
            if text and _is_said_by_a_person(turn) and not is_question(text):
                speaker = turn.name or turn.role.capitalize()
                whose = turn.id if text == turn.content else None
                no_more = marked.get(turn.id, ())
                found.setdefault(
                    turn.id,
                    Passage(hit, text, turn.timestamp, speaker, True, turn=whose, over=no_more),
                )
    return list(found.values())[:most]


def _holding(text: str, over: Sequence[str]) -> str:
    """What still holds of a message when facts that were taken from it are over.

    Of each fact the sentence that has most of its words goes, with what leans on it ("It has two
    rooms."); the whole message, if none has one.
    """
    if not over:
        return text
    parts = sentences(text)
    gone = set[int]()
    for fact in over:
        asked = content_words(fact)
        shares = [_share(asked, part) for part in parts]
        best = max(shares, default=0.0)
        gone.update(i for i, share in enumerate(shares) if share == best)
    for i, part in enumerate(parts):
        if i - 1 in gone and leans_back(part):
            gone.add(i)
    rest = " ".join(part for i, part in enumerate(parts) if i not in gone)
    return rest if len(content_words(rest)) > 1 else ""  # "True." says nothing


def _is_said_by_a_person(turn: StoredTurn) -> bool:
    return turn.role == "user" or turn.name is not None


def _share(asked: Sequence[str], sentence: str) -> float:
    said = set(words(sentence))
    return sum(same_word(word, said) for word in asked) / max(1, len(asked))

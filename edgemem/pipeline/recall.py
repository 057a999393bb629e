"""From the hits of a search to what the model is shown: what matters, and is still true.

A small base model reads two sentences better than four turns: of 44 questions about six invented
conversations it answered 21 right from whole turns, and 30 from the two sentences nearest to the
question, quoting them (bench/LOG.md; the choices were made on those conversations). Facts point to
the turns they were taken from, and the turns' own words are shown: a fact of a small model is a
good key, and a bad quotation. An expert has learned to read whole turns among others.

Knows a Memory; no prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgemem.language import (
    asked_day,
    asks_for_now,
    asks_for_past,
    asks_of_a_day,
    content_words,
    day_text,
    is_question,
    leans_back,
    same_word,
    sentences,
    words,
)
from edgemem.pipeline.ingest import nearest
from edgemem.results import Evidence, Hit, Message, Query, Scope, at_day, local_time
from edgemem.retrieval.search import RELEVANT
from edgemem.stages.intent import only_asks
from edgemem.store import StoredTurn

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = [
    "asked_at",
    "bearing",
    "clock",
    "evidence_of",
    "known",
    "notes",
    "overview",
    "recall",
    "share",
    "sources",
    "telling",
    "within",
]

_MAX_EVIDENCE = 8  # turns and facts whose sentences are compared with the question
_WORDS_WEIGHT = 0.3  # of the share of the question's words, beside the cosine
_SENTENCES = 3  # of an assistant's turn, to an expert, which was trained on people's short ones
_ASSISTANT = "Assistant"  # who said a turn of a model, which has no name
_FAR = 0.3  # of the best sentence's score; what lies below would only distract
_LEAST = 0.0055  # the score of a note; below it, what is known of everything must do
_FAR_LESS = 0.03  # of the best hit's score
_FAR_FROM_BEST = 0.05  # the same, for an expert (bench/LOG.md, 2026-11-26)
_OF_THE_BEST = 0.17  # the same, for an overview
_NEWEST = 100  # facts; as many as the window could hold
_NEAREST = 8  # memories of each thing that lasts
_CLOCK = 0.42  # cosine from which a question is about the day or the time
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


def asked_at(question: str, said_at: str) -> str | None:
    """The time that a question about the past asks of; None if it names none. ISO-8601 UTC."""
    day = asked_day(question, local_time(said_at))
    return None if day is None else at_day(day, hour=12)


def recall(
    memory: Memory,
    question: str,
    hits: Sequence[Hit],
    *,
    most: int,
    whole: bool = False,
    ended: bool = False,
) -> tuple[Evidence, ...]:
    """At most `most` sentences to answer a question from; none if nothing relevant may be shown.

    hits: of a search, best first. whole: whole turns, in the hits' order, relevant or not: an
    expert reads them, and says itself that they do not tell. Of an assistant's turn, which is long,
    the sentences nearest to the question. Left out: what only asks, what has been contradicted
    since (unless `ended`, or the question is about the past), and of whole turns those that are far
    less probable than the best one. The nearest sentence comes last, or the newest when the
    question asks for now.
    """
    found = evidence_of(memory, None if ended else question, hits, assistants=True)
    found = found[:_MAX_EVIDENCE]
    if whole:
        near = {hit.id for hit in within(sources(found), _FAR_FROM_BEST)}
        found = [e for e in found if e.source is not None and e.source.id in near]
        found = [_shortened(memory, question, evidence) for evidence in found[:most]]
    else:
        found = _nearest_sentences(memory, question, found)
    best = found[:most][::-1]
    return _oldest_first(best) if asks_for_now(question) else tuple(best)


def clock(memory: Memory, question: str, said_at: str) -> tuple[Evidence, ...]:
    """The day and the time, if a question is about these: no memory tells them."""
    now = local_time(said_at)
    today = f"Today is {day_text(now, named=True)}, and the time is {now[11:16]}."
    asked, told = memory.embedder.embed([question, today])
    return (Evidence(today),) if asked @ told >= _CLOCK else ()


def _shortened(memory: Memory, question: str, evidence: Evidence) -> Evidence:
    """What an assistant said, cut to its sentences that are nearest to the question, in order."""
    parts = sentences(evidence.text)
    if evidence.speaker != _ASSISTANT or len(parts) <= _SENTENCES:
        return evidence
    order = np.argsort(-_nearness(memory, question, parts), kind="stable")
    kept = " ".join(parts[i] for i in sorted(order[:_SENTENCES].tolist()))
    return replace(evidence, text=kept, turn=None)


def _nearness(memory: Memory, question: str, parts: Sequence[str]) -> NDArray[np.float32]:
    """How near each text is to a question, by its meaning and by its words."""
    vectors = memory.embedder.embed([question, *parts])
    asked = content_words(question)
    shares = np.array([share(asked, part) for part in parts], np.float32)
    near: NDArray[np.float32] = vectors[1:] @ vectors[0] + np.float32(_WORDS_WEIGHT) * shares
    return near


def _nearest_sentences(memory: Memory, question: str, found: Sequence[Evidence]) -> list[Evidence]:
    """The sentences of evidence that are near a question, nearest first; none unless some of it
    is relevant."""
    # A relevant hit that may not be shown (this question, asked before) lets no other through.
    relevant = RELEVANT["fast" if memory.token_embedder is None else "careful"]
    if not any(hit.score >= relevant for hit in sources(found)):
        return []
    split = [
        replace(evidence, text=sentence, turn=None)
        for evidence in found
        for sentence in sentences(evidence.text)
        if not is_question(sentence)
    ]
    if not split:
        return []
    scores = _nearness(memory, question, [evidence.text for evidence in split])
    order = np.argsort(-scores, kind="stable").tolist()
    return [split[i] for i in order if scores[i] >= _FAR * scores[order[0]]]


def sources(shown: Sequence[Evidence]) -> tuple[Hit, ...]:
    """The memories of evidence, best first, each once."""
    hits = {e.source.id: e.source for e in shown if e.source is not None}
    return tuple(sorted(hits.values(), key=lambda hit: -hit.score))


def telling(messages: Sequence[Message]) -> list[Evidence]:
    """What the user's messages of a conversation tell, in their order; not what only asks."""
    told = (message for message in messages if not is_question(message.content))
    return [Evidence(message.content, message.timestamp, "User") for message in told]


def notes(
    memory: Memory, hits: Sequence[Hit], *, most: int, seen: Collection[str] = ()
) -> tuple[Evidence, ...]:
    """What an instruct model is shown of the hits: at most `most` whole turns, oldest first.

    What has been contradicted since is shown, and said to be so: the model reads which is meant.
    seen: texts that the conversation has already. A hit that is far less probable than the best
    one is left out: each is read at the cost of a sentence, and takes the model's mind off.
    """
    near = within(hits, _FAR_LESS, least=_LEAST)
    found = evidence_of(memory, None, near)
    return _oldest_first([e for e in found if e.text not in seen][:most])


def known(
    memory: Memory,
    scope: Scope,
    fits: Callable[[Sequence[Evidence]], bool],
    seen: Collection[str] = (),
) -> tuple[Evidence, ...]:
    """What every answer of a scope may need, as much as fits, oldest first.

    A search finds what resembles a message. Advice, a letter or a summary needs what does not: in
    turn what told the newest fact, and what is nearest to each thing that lasts (`_LASTING`).
    seen: texts that the conversation has already.
    """
    newest = memory.store.list(scope, kinds={"fact"})[::-1][:_NEWEST]
    facts = [Hit.of(item, 0.0) for item in newest]
    hits = list(_round_robin(facts, _lasting(memory, scope)))
    taken: tuple[Evidence, ...] = ()
    for evidence in evidence_of(memory, None, hits):
        if evidence.text in seen:
            continue
        if not fits(more := _oldest_first([*taken, evidence])):
            break
        taken = more
    return taken


def overview(memory: Memory, hits: Sequence[Hit], *, most: int) -> tuple[Evidence, ...]:
    """At most `most` turns of what a search finds, oldest first, but for what fits far less, and
    for what was asked for: a task is remembered for what it may tell."""
    near = within(hits, _OF_THE_BEST)
    told = [h for h in near if h.kind != "turn" or not only_asks(memory.embedder, h.memory)]
    return _oldest_first(evidence_of(memory, None, told)[:most])


def bearing(
    memory: Memory, scope: Scope, hits: Sequence[Hit], *, most: int
) -> tuple[Evidence, ...]:
    """At most `most` turns that a task should agree with, oldest first: in turn what a search
    finds and what is nearest to each thing that lasts."""
    hits = list(_round_robin(hits, _lasting(memory, scope)))
    return _oldest_first(evidence_of(memory, None, hits)[:most])


def _oldest_first(found: Sequence[Evidence]) -> tuple[Evidence, ...]:
    return tuple(sorted(found, key=lambda evidence: evidence.when or ""))


def within(hits: Sequence[Hit], of_best: float, *, least: float = 0.0) -> list[Hit]:
    """The hits that have at least `of_best` times the best one's score, and at least `least`."""
    least = max(least, of_best * max((hit.score for hit in hits), default=0.0))
    return [hit for hit in hits if hit.score >= least]


def _lasting(memory: Memory, scope: Scope) -> list[Hit]:
    """The memories nearest to each thing that lasts, the nearest of each first; scored 0."""
    vectors = memory.embedder.embed(_LASTING)
    queries = (Query(text, scope, top_k=_NEAREST) for text in _LASTING)
    near = [nearest(memory, query, vector) for query, vector in zip(queries, vectors, strict=True)]
    return list(_round_robin(*([Hit.of(item, 0.0) for item, _ in found] for found in near)))


def _round_robin(*rows: Iterable[Hit]) -> Iterator[Hit]:
    """The first of each row, then the second of each, and so on."""
    for column in zip_longest(*rows):
        yield from (hit for hit in column if hit is not None)


def evidence_of(
    memory: Memory,
    question: str | None,
    hits: Sequence[Hit],
    *,
    assistants: bool = False,
) -> list[Evidence]:
    """What the hits say, in their order: the words of their turns where these still stand.

    Of a fact whose turn was deleted, edited or contradicted since, its own text. Of such a turn
    itself nothing, but what it was edited to, or the sentences that still hold. question: None
    keeps what was contradicted, and says so in `over`. assistants: also what an assistant without a
    name said, as its words; a chat's own answers are never among the hits.
    """
    ids = [id for hit in hits for id in hit.sources]
    known = memory.store.turns(ids)
    turns = {id: known[id] for id in memory.store.standing_turns(ids) if id in known}
    stale = memory.stale_turns(turns)
    past = question is not None and (asks_for_past(question) or asks_of_a_day(question))
    over = {} if question is None or past else stale
    marked = stale if question is None else {}
    found: dict[str, Evidence] = {}
    for hit in hits:
        edited, is_turn = hit.updated_at > hit.created_at, hit.kind == "turn"
        said = [turns[id] for id in hit.sources if id in turns and (is_turn or id not in over)]
        # What is read in an image, no turn says; its lines stay apart where all is one line.
        if not is_turn and (edited or not said or hit.kind == "image"):
            text = ". ".join(hit.memory.splitlines()) if hit.kind == "image" else hit.memory
            found[hit.id] = Evidence(text, hit.valid_from, source=hit)
            continue
        for turn in [known[id] for id in hit.sources if id in known] if edited else said:
            text = hit.memory if edited else _holding(turn.content, over.get(turn.id, ()))
            if not text or is_question(text):
                continue
            of_assistant = turn.role == "assistant" and turn.name is None
            if not of_assistant or (assistants and (past or not _answers_old(memory, turn))):
                speaker = turn.name or (_ASSISTANT if of_assistant else turn.role.capitalize())
                whose = turn.id if text == turn.content else None
                ended = marked.get(turn.id, ())
                evidence = Evidence(text, turn.timestamp, speaker, ended, hit, whose)
                found.setdefault(turn.id, evidence)
    return list(found.values())


def _answers_old(memory: Memory, turn: StoredTurn) -> bool:
    """Whether an assistant's turn answers one of which facts are over: it may say them again."""
    before = memory.store.recent_turns(turn.scope, before=turn.id, limit=1)
    return bool(memory.stale_turns(said.id for said in before))


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
        shares = [share(asked, part) for part in parts]
        best = max(shares, default=0.0)
        gone.update(i for i, share in enumerate(shares) if share == best)
    for i, part in enumerate(parts):
        if i - 1 in gone and leans_back(part):
            gone.add(i)
    rest = " ".join(part for i, part in enumerate(parts) if i not in gone)
    return rest if len(content_words(rest)) > 1 else ""  # "True." says nothing


def share(asked: Collection[str], sentence: str) -> float:
    """How many of the words that are asked for a sentence has, of all of them."""
    said = set(words(sentence))
    return sum(same_word(word, said) for word in asked) / max(1, len(asked))

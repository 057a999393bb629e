"""What is answered without a language model: what was told, as it was said, and what days tell.

- As it was said: a turn, all of somebody, a photo's text, an item of a list.
- Computed from days: how long ago, how long between, which first, how old. The sentence nearest to
  an event tells its day: the day that the sentence names, else the day on which it was said
  (bench/LOG.md, 2026-11-30).

Knows a Memory, the turns of a conversation, dates and the stages' fixed answers; no prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from edgemem import language
from edgemem.pipeline.days import with_days
from edgemem.pipeline.passages import (
    Part,
    answered,
    asks_to_see,
    asks_whole,
    caption_of,
    head_of,
    joined,
    known_of,
    lines_of,
    nearness,
    parts,
    whole_text,
)
from edgemem.pipeline.people import KINDS, lasting
from edgemem.pipeline.recall import FAR_FROM_BEST, evidence_of, relevant, telling, told_of, within
from edgemem.pipeline.turn import Conversation, Turn
from edgemem.results import ASSISTANT, Evidence, Hit, Message, Scope, SearchResults, local_time
from edgemem.stages import generation
from edgemem.store.rows import StoredTurn
from edgemem.store.store import told_texts

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["aged", "compared", "listed", "of_photo", "photo_asked", "read_out", "refusal_of"]
__all__ += ["telling_age", "told_whole"]

_SHORTEST = 3  # items of a list in which a place counts
_LEAST_NEAR = 0.5  # share of the words asked for that an answer has
_LATEST = 40  # turns among which the last one that tells something is sought
_LEAST = 0.45  # nearness from which a sentence tells of an event
_DATED = 0.1  # added to the nearness of a sentence that names a day
_FRESH = timedelta(days=120)  # so long an age that was told is quoted
_CORRECTED = timedelta(days=730)  # births farther apart are of two people of one name
_NEARLY = 0.75  # share of the nearest sentence's nearness


def told_whole(
    talk: Conversation, question: str, hits: SearchResults, sent: Sequence[Hit] | None, *, most: int
) -> tuple[Evidence, ...] | None:
    """What answers a question as it was told: the user's first or last message or question, an
    answer of the conversation, at most `most` turns of the user or of somebody, or a photo's text;
    None if the question asks for none of it.

    sent: the photos that came with the question; None if the model sees, and so reads none from
    memory.
    """
    memory, scope = talk.memory, talk.scope
    found: tuple[Evidence, ...] = ()
    if not sent:
        said = [turn for turn in talk.turns if turn.said.role == "user"]
        if (place := language.turn_asked(question)) is not None:
            return _first(talk, said) if place == 0 else _last(talk, said)
        if (place := language.question_asked(question)) is not None:
            asked = [turn.said for turn in said if turn.wants]
            return tuple(_by_user(message) for message in asked[place:][:1])
        if (what := language.reply_asked(question)) is not None:
            return _replied(what, talk.turns) or None
        if language.asked_whom(question) == ["i"]:
            lasts = chain(*(lasting(memory, scope, kind) for kind in KINDS))
            own = [hit for hit in lasts if language.Statement.of(hit.memory).person == ("User",)]
            own.sort(key=lambda hit: not language.tells_name(hit.memory))
            return tuple(evidence_of(memory, None, own)[:most])
        found = told_of(memory, question, hits, most=most, scope=scope)
    if sent is not None:
        found = found or read_out(memory, question, hits, sent)
    return found or None


def _replied(what: str, turns: Sequence[Turn]) -> tuple[Evidence, ...]:
    """The answer of the conversation that has most of the words asked for, with the message before
    it; the last one if none are asked for. No fixed text that tells nothing."""
    asked = language.content_words(what)
    best, found = 0.0, None
    for before, reply in pairwise(turns):
        if reply.said.role != "assistant" or reply.refused:
            continue
        near = language.share(asked, f"{before.meant} {reply.said.content}") if asked else 1.0
        if near >= max(best, _LEAST_NEAR):
            best, found = near, reply.said
    return (Evidence(found.content, found.timestamp, ASSISTANT),) if found else ()


def _by_user(said: Message | StoredTurn) -> Evidence:
    return Evidence(said.content, said.timestamp, "User")


def _first(talk: Conversation, said: Sequence[Turn]) -> tuple[Evidence, ...]:
    """The user's first message of the conversation, without what was deleted."""
    told = {turn.content for turn in _standing(talk, 2 * len(said))}
    kept = (t.said for t in said if t.wants or t.tells or t.said.content in told)
    return tuple(map(_by_user, islice(kept, 1)))


def _last(talk: Conversation, said: Sequence[Turn]) -> tuple[Evidence, ...]:
    """The user's last message that tells something, in the conversation (`said`) or before it."""
    told = [*map(_by_user, _standing(talk, _LATEST))]
    told += telling([turn.said for turn in said if turn.tells])
    return tuple(sorted(told, key=lambda e: e.when or "")[-1:])


def _standing(talk: Conversation, most: int) -> list[StoredTurn]:
    """The user's messages among the last `most` turns, without those edited or deleted."""
    store = talk.memory.store
    turns = [t for t in store.recent_turns(talk.scope, limit=most) if t.role == "user"]
    standing = {*store.standing_turns([turn.id for turn in turns])}
    return [turn for turn in turns if turn.id in standing]


def listed(
    memory: Memory, question: str, hits: Sequence[Hit]
) -> tuple[str, tuple[Evidence, ...]] | None:
    """The item of an assistant's list that a question asks for by its place, and its evidence. None
    if the question asks for none, or if no reply has such a list."""
    place = language.place_asked(question)
    if place is None:
        return None
    found = evidence_of(memory, None, within(hits, FAR_FROM_BEST), assistants=True)
    lists: list[tuple[Evidence, list[Part]]] = []
    for evidence in (e for e in found if e.is_reply):
        by_list: dict[int, list[Part]] = {}
        for part in parts(evidence.text):
            by_list.setdefault(part.list_number, []).append(part)
        by_list.pop(0, None)
        lists += ((evidence, items) for items in by_list.values())
    lists = [(e, items) for e, items in lists if len(items) >= max(_SHORTEST, place)]
    if not lists:
        return None
    texts = [f"{items[0].head}: {joined(items)}" for _, items in lists]
    asked = answered(memory, [evidence for evidence, _ in lists])
    near = nearness(memory, question, texts, before=[asked.get(e, "") for e, _ in lists])
    evidence, items = lists[int(near.argmax())]
    part = items[place - 1 if place > 0 else place]
    told = replace(evidence, text=f"{part.place}. {part.text}")
    return part.text, (told,)


def photo_asked(memory: Memory, question: str, hits: Sequence[Hit]) -> Hit | None:
    """The image that a question is about: the best hit, or the one that it was sent with. None if
    the best hit is not relevant, or if what is known of the image has no word of the question."""
    if not relevant(memory, hits[:1]):
        return None
    best, asked = {*hits[0].sources}, language.content_words(question)
    sent = (hit for hit in hits if hit.image is not None and best.intersection(hit.sources))
    return next((hit for hit in sent if language.share(asked, known_of(hit))), None)


def of_photo(memory: Memory, request: str, hits: Sequence[Hit]) -> tuple[Evidence, ...]:
    """What is known of the photo that a deed asks to see: the one that the request names ("Show me
    the receipt"), or the newest."""
    photo = photo_asked(memory, request, hits)
    if not asks_to_see(memory, request, photo):
        return ()
    photo = photo or _newest(hits)
    text = photo and (whole_text(photo) or head_of(photo))
    return (Evidence(text, photo.valid_from, source=photo),) if photo and text else ()


def refusal_of(memory: Memory, question: str, hits: Sequence[Hit], sent: Sequence[Hit] = ()) -> str:
    """The answer if no memory tells. About an image it says that no model has seen it. sent: the
    images that came with the question."""
    photo = sent[0] if sent else photo_asked(memory, question, hits)
    if photo is None:
        return generation.NOTHING_FOUND
    read = photo.image is None or photo.image.ocr_state != "pending"
    return generation.unseen(caption_of(photo), text=bool(lines_of(photo)), read=read)


def read_out(
    memory: Memory, question: str, hits: Sequence[Hit], sent: Sequence[Hit] = ()
) -> tuple[Evidence, ...]:
    """The text of the photo that a question asks to be told whole ("What did the receipt say?");
    none for other questions, and of a photo without a text.

    sent: the photos that came with the question, which is about these. One that says "photo" and no
    more is about the newest.
    """
    asked = photo_asked(memory, question, hits)
    if not (sent or asked) and asks_whole(memory, question):
        asked = _newest([hit for hit in hits if lines_of(hit)])
    meant = sent or ([asked] if asked else [])
    texts = [(hit, text) for hit in meant if (text := whole_text(hit))]
    if not texts or not asks_whole(memory, question, texts[0][0]):
        return ()
    return tuple(Evidence(text, hit.valid_from, source=hit) for hit, text in texts)


def _newest(hits: Sequence[Hit]) -> Hit | None:
    taken = [hit for hit in hits if hit.kind == "image"]
    return max(taken, key=lambda hit: hit.valid_from or hit.created_at, default=None)


# -- days --------------------------------------------------------------------------------------


class _DatedSentence(NamedTuple):
    """A sentence, and the day that it tells; None if it only tells a length or a year. dated:
    whether it names that day."""

    day: date | None
    dated: bool
    sentence: str
    evidence: Evidence


def compared(
    memory: Memory, search: Callable[[str], Sequence[Hit]], question: str, said_at: str
) -> tuple[str, tuple[Evidence, ...]] | None:
    """The answer to a question that compares days, and the evidence of these days.

    None if the question compares none, or if no memory tells the day of an event. search: finds
    memories. said_at: ISO-8601 time of the question.
    """
    asked = language.comparison(question)
    if asked is None:
        return None
    now = local_time(said_at)
    found = [_sentence_telling(memory, event, search(event.text), now) for event in asked.events]
    told = [each for each in found if each is not None]
    if len(told) < len(found):
        return None
    if asked.asks == "between" and told[0].sentence == told[1].sentence:
        return None
    days = [each.day for each in told if each.day is not None]
    answer = language.worded(asked, days, date.fromisoformat(now[:10]))
    if answer is None:
        return None
    evidence = (replace(each.evidence, text=each.sentence) for each in told)
    return answer, tuple(dict.fromkeys(evidence))


def aged(
    memory: Memory, hits: Sequence[Hit], question: str, said_at: str
) -> tuple[str, tuple[Evidence, ...]] | None:
    """The answer to a question for somebody's age, and the evidence of it.

    None for any other question, if no memory tells when they were born or how old they were, or if
    memories disagree so much that they tell of two people, or if one tells of a death. An age told
    lately is left to the model, which quotes it. hits: of a search for the question. said_at:
    ISO-8601 time of the question.
    """
    asked = language.whose_age(question)
    if asked is None:
        return None
    now = local_time(said_at)
    today = date.fromisoformat(now[:10])
    shown = evidence_of(memory, None, hits)
    if any(language.tells_of_death(evidence.text, asked) for evidence in shown):
        return None
    told = [
        (birth, evidence)
        for evidence in shown
        if evidence.when and (said := local_time(evidence.when)) < now
        for birth in language.births(evidence.text, said, asked)
    ]
    if not told:  # "Ana's daughter Mia is here. She was born …": only the fact says who was
        facts = (hit for hit in hits if hit.kind == "fact" and not hit.valid_to)
        told = [
            (birth, Evidence(hit.memory, hit.valid_from or hit.created_at, source=hit))
            for hit in facts
            for birth in language.births(hit.memory, hit.valid_from or now, asked)
            if not birth.of_age  # a fact does not tell on which day it was said
        ]
    if not told:
        return None
    told.sort(key=lambda each: each[1].when or "", reverse=True)
    (first, last, of_age), newest = told[0]
    for birth, _ in told[1:]:
        if birth.first <= last and first <= birth.last:
            first, last = max(first, birth.first), min(last, birth.last)
        elif max(birth.first - last, first - birth.last) > _CORRECTED:
            return None
    told_on = date.fromisoformat(local_time(newest.when or "")[:10])
    if of_age and first < last and today - told_on < _FRESH:
        return None
    age = language.age_text(language.Birth(first, last), today)
    # All that tells it narrows the day of birth; what tells it best is shown.
    _, best = min(told, key=lambda each: each[0].last - each[0].first)
    return None if age is None else (age, (best,))


def telling_age(memory: Memory, scope: Scope, whom: set[str]) -> list[Hit]:
    """All memories of a scope that tell when somebody was born, their age, or their death.

    A search finds such a sentence not among hundreds that name them. whom: as `whose_age` gives it;
    of the user none are given. No search scored the memories, so their score is 0.
    """
    if whom == {"i"}:
        return []
    found = []
    for row, text, when in told_texts(memory.store, scope, {"turn", "fact"}):
        if any(word in text.lower() for word in whom) and (
            language.births(text, local_time(when), whom) or language.tells_of_death(text, whom)
        ):
            found.append(row)
    return [Hit.of(item, 0.0) for item in memory.store.by_rowids(found).values()]


def _sentence_telling(
    memory: Memory, event: language.Event, hits: Sequence[Hit], now: str
) -> _DatedSentence | None:
    """The sentence that tells when an event was or will be.

    Several sentences may be nearly as near as the nearest. For a coming event the last one said is
    taken, as plans change. For what lasts the earliest day is taken, as later ones only mention it.
    """
    today = date.fromisoformat(now[:10])
    shown = [e for e in evidence_of(memory, None, hits) if e.when and local_time(e.when) < now]
    if event.coming:
        shown = [*with_days(memory.embedder, f"When is {event.text}?", shown)]
    found = [told for evidence in shown for told in _dated_sentences(evidence, event.coming, today)]
    if not found:
        return None
    near = nearness(memory, event.text, [told.sentence for told in found])
    near += np.array([_DATED * told.dated for told in found], np.float32)
    least = max(_LEAST, near.max() * (_NEARLY if event.lasts or event.coming else 1.0))
    able = [told for told, n in zip(found, near, strict=True) if n >= least]
    if any(told.day is None for told in able):
        return None  # the model answers from "for three years"
    if event.coming:
        last = max(able, key=lambda told: told.evidence.when or "", default=None)
        off = last and any(_calls_off(later, last) for later in shown)
        return None if off else last
    if event.lasts:  # the day on which "I live in Leeds" was said is not when it began
        able = [told for told in able if told.dated and language.begins(told.sentence)]
    return min(able, key=lambda told: told.day or today, default=None)


def _calls_off(later: Evidence, told: _DatedSentence) -> bool:
    when = later.when or "", told.evidence.when or ""
    return when[0] > when[1] and language.calls_off(later.text, told.sentence)


def _dated_sentences(evidence: Evidence, coming: bool, today: date) -> Iterator[_DatedSentence]:
    """The sentences of evidence that tell a day up to today, or from today if `coming`.

    A sentence that names a day is joined to the one before, unless that names a day too.
    """
    said_at = local_time(evidence.when or "")
    before = ""
    for sentence in language.sentences(evidence.text):
        days = language.days_told(sentence, said_at)
        named = [day for day in days if (day >= today if coming else day <= today)]
        if named:
            yield _DatedSentence(named[0], True, f"{before} {sentence}".strip(), evidence)
        elif not (days or coming or language.is_question(sentence)):
            day = None if language.is_vague(sentence) else date.fromisoformat(said_at[:10])
            yield _DatedSentence(day, False, sentence, evidence)
        before = "" if days or language.is_question(sentence) else sentence

"""How long ago, how long between, which first, how old: answers computed from days.

The sentence nearest to an event tells its day: the day that the sentence names, else the day on
which it was said. No language model takes part (bench/LOG.md, 2026-11-30).

Knows a Memory, an embedder and dates; no prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from edgemem import language
from edgemem.pipeline.days import with_days
from edgemem.pipeline.passages import nearness
from edgemem.pipeline.recall import evidence_of
from edgemem.results import Evidence, Hit, Scope, local_time
from edgemem.store.store import told_texts

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["aged", "compared", "telling_age"]

_LEAST = 0.45  # nearness from which a sentence tells of an event
_DATED = 0.1  # added to the nearness of a sentence that names a day
_FRESH = timedelta(days=120)  # so long an age that was told is quoted
_CORRECTED = timedelta(days=730)  # births farther apart are of two people of one name
_NEARLY = 0.75  # share of the nearest sentence's nearness


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

"""How long ago, how long between, which first: answers computed from the days of events.

The day of an event is told by the sentence that is nearest to it: a day that the sentence names,
else the day on which it was said. No language model takes part (bench/LOG.md, 2026-11-30).

Knows a Memory, an embedder and dates; no prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from edgemem import language
from edgemem.pipeline.days import with_days
from edgemem.pipeline.recall import evidence_of, nearness
from edgemem.results import Evidence, Hit, local_time

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["compared"]

_LEAST = 0.45  # nearness of a sentence that tells of an event
_DATED = 0.1  # beside it, for a sentence that names a day
_NEARLY = 0.75  # share of the nearest one's


class _Told(NamedTuple):
    """A sentence, and the day that it tells; None if it tells a length or a year alone. dated:
    whether it names that day."""

    day: date | None
    dated: bool
    sentence: str
    evidence: Evidence


def compared(
    memory: Memory, search: Callable[[str], Sequence[Hit]], question: str, said_at: str
) -> tuple[str, tuple[Evidence, ...]] | None:
    """The answer to a question that compares days, and the memories that tell these days.

    None if it is no such question, or if an event's day is not told. search: finds memories.
    said_at: ISO-8601 time of the question.
    """
    asked = language.comparison(question)
    if asked is None:
        return None
    now = local_time(said_at)
    told = [_told(memory, event, search(event.text), now) for event in asked.events]
    known = [one for one in told if one is not None]
    if len(known) < len(told):
        return None
    days = [one.day for one in known if one.day is not None]
    if asked.asks == "between" and known[0].sentence == known[1].sentence:
        return None
    answer = language.worded(asked, days, date.fromisoformat(now[:10]))
    if answer is None:
        return None
    told_by = (replace(one.evidence, text=one.sentence, turn=None) for one in known)
    return answer, tuple(dict.fromkeys(told_by))


def _told(memory: Memory, event: language.Event, hits: Sequence[Hit], now: str) -> _Told | None:
    """The sentence that tells when an event was or will be.

    Of those nearly as near as the nearest it is the last one said of what is to come, as plans
    change, and the earliest day of what lasts, as later ones only mention it.
    """
    today = date.fromisoformat(now[:10])
    shown = [e for e in evidence_of(memory, None, hits) if e.when and local_time(e.when) < now]
    if event.coming:
        shown = [*with_days(memory.embedder, f"When is {event.text}?", shown)]
    found = [told for evidence in shown for told in _days(evidence, event.coming, today)]
    if not found:
        return None
    near = nearness(memory, event.text, [told.sentence for told in found])
    near += np.array([_DATED * told.dated for told in found], np.float32)
    least = max(_LEAST, near.max() * (_NEARLY if event.lasts or event.coming else 1.0))
    able = [told for told, n in zip(found, near, strict=True) if n >= least]
    if any(told.day is None for told in able):
        return None  # "for three years": the model reads that
    if event.coming:
        last = max(able, key=lambda told: told.evidence.when or "", default=None)
        off = last and any(_calls_off(later, last) for later in shown)
        return None if off else last
    if event.lasts:  # "I live in Leeds" was said some day, and says of no day that it began then
        able = [told for told in able if told.dated and language.begins(told.sentence)]
    return min(able, key=lambda told: told.day or today, default=None)


def _calls_off(later: Evidence, told: _Told) -> bool:
    when = later.when or "", told.evidence.when or ""
    return when[0] > when[1] and language.calls_off(later.text, told.sentence)


def _days(evidence: Evidence, coming: bool, today: date) -> Iterator[_Told]:
    """The sentences of evidence that tell a day before today, or a coming one. The sentence before
    belongs to one that names a day, unless it names one, too."""
    said_at = local_time(evidence.when or "")
    before = ""
    for sentence in language.sentences(evidence.text):
        days = language.days_told(sentence, said_at)
        named = [day for day in days if (day >= today if coming else day <= today)]
        if named:
            yield _Told(named[0], True, f"{before} {sentence}".strip(), evidence)
        elif not (days or coming or language.is_question(sentence)):
            said = None if language.is_vague(sentence) else date.fromisoformat(said_at[:10])
            yield _Told(said, False, sentence, evidence)
        before = "" if days or language.is_question(sentence) else sentence

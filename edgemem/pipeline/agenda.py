"""What was told of some days: "What do I have on Thursday?", "What did we do last weekend?"

Such a question resembles no memory, so no search finds what it asks for; the days that memories
name do. What was told later of the same thing follows it ("The dinner is cancelled.").

Knows a Memory and dates; no prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING

from edgemem.language import (
    Asked,
    asked_days,
    calls_off,
    content_words,
    says_only_when,
    sentences,
    share,
    told_days,
    told_weekdays,
)
from edgemem.pipeline.recall import evidence_of
from edgemem.results import Evidence, Hit, Scope, local_time
from edgemem.stages.intent import only_asks

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["agenda", "days_asked"]

_NEWEST = 2000  # memories whose dates are read
_WIDEST = 2  # days: a plan for a week says little of a day in it
_WEEK = timedelta(days=7)  # from there on, what comes every Tuesday is not listed
_TELLING = 2  # content words of a sentence without a date that is worth listing
_SAME = 0.5  # share of a later message's content words that a plan has, if it is of the same thing


def days_asked(question: str, said_at: str) -> Asked | None:
    """The days of a question for whatever there is or was then; None if it asks for more than that.

    said_at: ISO-8601 time of the question.
    """
    return asked_days(question, local_time(said_at))


def agenda(
    memory: Memory, scope: Scope, asked: Asked, said_at: str, *, most: int
) -> tuple[Evidence, ...]:
    """What was told of these days, the earliest day first, each with what was told of it later.

    If it asks what was, also what was told on these days. said_at: ISO-8601 time of the question.
    At most `most` plans or notes are given: of past days the last, of others the first.
    """
    rowids = memory.store.rowids(scope, kinds={"turn", "fact"})[-_NEWEST:]
    items = memory.store.by_rowids(rowids).values()
    told = [Hit.of(i, 1.0) for i in items if i.kind == "turn" or i.updated_at > i.created_at]
    named = [hit for hit in told if _told(hit.memory, _when(hit), asked)]
    found: list[tuple[date, Evidence]] = []
    for evidence in evidence_of(memory, None, named):
        parts = _told(evidence.text, evidence.when or said_at, asked)
        if parts and not only_asks(memory.embedder, evidence.text):
            text = " ".join(sentence for _, sentence in parts)
            found.append((min(parts)[0], replace(evidence, text=text, turn=None)))
    found.sort(key=lambda one: (one[0], one[1].when or ""))
    listed = {hit.id for hit in named}
    others = [hit for hit in told if hit.id not in listed]
    plans = found[-most:] if asked.past else found[:most]
    lines = (line for _, plan in plans for line in (plan, *_later(memory, plan, others)))
    return tuple(dict.fromkeys(lines))  # one message may be of several plans


def _when(hit: Hit) -> str:
    """When a turn was said, or a fact edited."""
    return hit.valid_from or hit.created_at if hit.kind == "turn" else hit.updated_at


def _told(text: str, when: str, asked: Asked) -> list[tuple[date, str]]:
    """The sentences that tell of the days, each with the first of these days that it names.

    One that says only when ("2 December half 9") has the one before it, if that names no day.
    If the question asks what was, a sentence without a date tells of the day on which it was said.
    """
    (first, last, past), said_at = asked, local_time(when)
    said = date.fromisoformat(said_at[:10])
    length = max(last - first, timedelta(days=_WIDEST - 1))
    n_days = min(length, date.max - first).days + 1 if length < _WEEK else 0
    week = [first + timedelta(days=n) for n in range(n_days)]
    week = [day for day in week if said <= day <= last]
    found: list[tuple[date, str]] = []
    before = ""
    for sentence in sentences(text):
        named = told_days(sentence, said_at)
        near = [max(a, first) for a, b in named if a <= last and b >= first and b - a <= length]
        again = told_weekdays(sentence) if week and not named else ()
        near += [day for day in week if day.weekday() in again]
        then = past and not named and first <= said <= last
        near += [said] * (then and len(content_words(sentence)) >= _TELLING)
        if near:
            told = f"{before} {sentence}" if before and says_only_when(sentence) else sentence
            found.append((min(near), told))
        before = "" if near or named else sentence
    return found


def _later(memory: Memory, plan: Evidence, others: Sequence[Hit]) -> Iterator[Evidence]:
    """What was told later of the same thing, with no day of those asked about."""
    after = [
        hit
        for hit in others
        if _when(hit) > (plan.when or "")
        and (
            calls_off(hit.memory, plan.text)
            or (len(asked := content_words(hit.memory)) > 1 and share(asked, plan.text) >= _SAME)
        )
    ]
    yield from evidence_of(memory, None, after)

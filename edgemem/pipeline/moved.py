"""Plans that were moved: "put back a week" is shown with the day that this makes.

A small model reads days and cannot count them. The day that a length of time is counted from was
told in the same or an earlier turn, among others. The one is taken that resembles it most: by what
both speak of, by the tense, and by how near in time they are (bench/LOG.md, 2026-11-28).

Knows evidence and an embedder; knows nothing of the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from typing import NamedTuple

from edgemem.language import (
    Mention,
    absolute,
    content_words,
    day_text,
    mentions,
    moved,
    share,
)
from edgemem.results import Evidence, local_time
from edgemem.runtime.embedder import Embedder

__all__ = ["with_days"]

_WORDS, _PLANNED, _TENSE, _PER_DAY = 0.3, 0.6, 0.1, 0.004  # beside the cosine's 1
_FARTHEST = 200  # days between a plan and the message that moves it


class _Plan(NamedTuple):
    """A day that was told. said: when. beside: the words around it."""

    day: date
    said: date
    beside: str


def with_days(embedder: Embedder, shown: Sequence[Evidence]) -> list[Evidence]:
    """The evidence in its order; after each length by which a plan was moved stands its new day."""
    plans: list[_Plan] = []
    written = list(shown)
    texts = {i: _resolved(e.text, e.when) for i, e in enumerate(shown) if e.when}
    found = {i: mentions(*text) for i, text in texts.items()}
    if all(mention.day for of_one in found.values() for mention in of_one):
        return written
    for i in sorted(found, key=lambda i: shown[i].when or ""):
        text, said_at = texts[i]
        said = datetime.fromisoformat(said_at).date()
        days: list[tuple[int, date]] = []
        for mention in found[i]:
            day = mention.day or _counted(embedder, mention, said, plans)
            if day is None:
                continue
            plans.append(_Plan(day, said, mention.beside))
            if mention.day is None:
                days.append((mention.end, day))
        for end, day in reversed(days):
            text = f"{text[:end]} (on {day_text(day)}){text[end:]}"
        if days:
            written[i] = replace(shown[i], text=text, turn=None)
    return written


def _resolved(text: str, when: str) -> tuple[str, str]:
    """The text with its relative dates written out, and when it was said, local."""
    said_at = local_time(when)
    return absolute(" ".join(text.split()), said_at)[0], said_at


def _counted(
    embedder: Embedder, mention: Mention, said: date, plans: Sequence[_Plan]
) -> date | None:
    """The day that a length makes, from the plan that it most probably moves; None without one."""
    near = [plan for plan in plans if abs((plan.day - said).days) <= _FARTHEST]
    best, least = None, float("-inf")
    vectors = embedder.embed([mention.beside, *(plan.beside for plan in near)])
    for plan, cosine in zip(near, vectors[1:] @ vectors[0], strict=True):
        with suppress(ValueError, OverflowError):  # 31 February
            day = moved(plan.day, mention.by)
            away = (day - said).days
            score = float(cosine) + _WORDS * share(content_words(plan.beside), mention.beside)
            score += _PLANNED * (plan.day >= plan.said)
            if away * mention.direction:
                score += _TENSE if away * mention.direction > 0 else -_TENSE
            score -= _PER_DAY * (abs(away) + (said - plan.said).days)
            if score > least:
                best, least = day, score
    return best

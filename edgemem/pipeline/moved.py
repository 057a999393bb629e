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
from datetime import date
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgemem.language import (
    Mention,
    absolute,
    asks_when,
    content_words,
    counts_down,
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
_MOST = 60  # mentions; more are a calendar, and no plan of it can be told by its words

_Vector = NDArray[np.float32]


class _Plan(NamedTuple):
    """A day that was told. said: when. beside: the words around it, and vector: theirs."""

    day: date
    said: date
    beside: str
    vector: _Vector


def with_days(embedder: Embedder, question: str, shown: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """The evidence of a question, in its order. If the question asks for a day, the new day of a
    plan stands after each length by which it was moved."""
    if not (asks_when(question) or counts_down(question)):
        return tuple(shown)
    dated = sorted((e.when, i) for i, e in enumerate(shown) if e.when)
    texts = [_resolved(shown[i].text, when) for when, i in dated]
    found = [mentions(*text) for text in texts]
    told = [mention for of_one in found for mention in of_one]
    if all(mention.day for mention in told) or len(told) > _MOST:
        return tuple(shown)
    written = list(shown)
    vectors = iter(embedder.embed([mention.beside for mention in told]))
    plans: list[_Plan] = []
    for (_, i), (text, said_at), of_one in zip(dated, texts, found, strict=True):
        said = date.fromisoformat(said_at[:10])
        new: list[tuple[int, date]] = []
        for mention, vector in zip(of_one, vectors, strict=False):
            day = mention.day or _counted(mention, vector, said, plans)
            if day is None:
                continue
            plans.append(_Plan(day, said, mention.beside, vector))
            if mention.day is None:
                new.append((mention.end, day))
        for end, day in reversed(new):
            text = f"{text[:end]} (on {day_text(day)}){text[end:]}"
        if new:
            written[i] = replace(shown[i], text=text, turn=None)
    return tuple(written)


def _resolved(text: str, when: str) -> tuple[str, str]:
    """The text with its relative dates written out, and when it was said, local."""
    said_at = local_time(when)
    return absolute(" ".join(text.split()), said_at)[0], said_at


def _counted(mention: Mention, vector: _Vector, said: date, plans: Sequence[_Plan]) -> date | None:
    """The day that a length makes, from the plan that it most probably moves; None without one."""
    best, least = None, float("-inf")
    for plan in plans:
        if abs((plan.day - said).days) > _FARTHEST:
            continue
        with suppress(ValueError, OverflowError):  # 31 February
            day = moved(plan.day, mention.by)
            away = (day - said).days
            score = float(plan.vector @ vector)
            score += _WORDS * share(content_words(plan.beside), mention.beside)
            score += _PLANNED * (plan.day >= plan.said)
            score += _TENSE * ((away * mention.direction > 0) - (away * mention.direction < 0))
            score -= _PER_DAY * (abs(away) + (said - plan.said).days)
            if score > least:
                best, least = day, score
    return best

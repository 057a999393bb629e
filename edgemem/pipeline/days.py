"""What was told of some days, and plans that were moved.

"What do I have on Thursday?" resembles no memory, so no search finds the answer. It is found by the
days that memories name. What was told later of a plan follows it ("The dinner is cancelled."). A
photo of a letter or a card names days too, beside the day on which it was written.

"Put back a week" is shown with the new day, as a small model reads days but cannot count them. A
length of time is counted from a day that was told in the same or an earlier turn. Of several such
days the day of the likeliest plan is taken, by the words that both share, by the tense, and by the
time between them (bench/LOG.md, 2026-11-28).

Knows a Memory, an embedder and dates; no prompt.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import cache, partial
from itertools import islice, takewhile
from math import log
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgemem.language import (
    Asked,
    Mention,
    absolute,
    asked_days,
    asks,
    asks_when,
    calls_off,
    comes_again,
    content_words,
    counts_down,
    counts_weeks,
    day_text,
    ends_weekly,
    goes_on,
    may_call_off,
    may_end_weekly,
    may_move,
    may_name_far,
    mentions,
    moved,
    naming,
    plain,
    says_only_when,
    sentences,
    share,
    spelled_days,
    subjects,
    told_days,
)
from edgemem.pipeline.passages import headed, lines_of
from edgemem.pipeline.people import counted, rarest
from edgemem.pipeline.recall import evidence_of
from edgemem.results import Evidence, Hit, Scope, at_day, local_time
from edgemem.runtime.embedder import Embedder
from edgemem.stages.intent import only_asks
from edgemem.store.store import Rows, told_texts

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["Asked", "agenda", "days_asked", "with_days"]

_NEAR = timedelta(days=92), timedelta(days=31)  # before and after a day, it is told of in any words
_CLOSE = timedelta(days=16)  # before and after a day, "next Friday" or the like may name it
_LATER = 3  # messages that are listed below a plan, the last
_WIDEST = 2  # days: a plan for a week says little of a day in it
_HALF_A_YEAR = timedelta(days=183)
_DAY = timedelta(days=1)
_WEEK = timedelta(days=7)  # from there on, what comes every Tuesday is not listed
_TELLING = 2  # content words of a sentence without a date that is worth listing
_SAME = 0.5  # share of a later message's content words that a plan has, if it is of the same thing
_WORDS, _PLANNED, _TENSE, _PER_DAY = 0.3, 0.6, 0.1, 0.004  # beside the cosine's 1
_FARTHEST = 200  # days between a plan and the message that moves it
_MOST = 60  # mentions; more are a calendar, and no plan of it can be told by its words

_Vector = NDArray[np.float32]


def days_asked(question: str, said_at: str) -> Asked | None:
    """The days of a question for whatever there is or was then; None if it asks for more than that.

    said_at: ISO-8601 time of the question.
    """
    return asked_days(question, local_time(said_at))


class _Line(NamedTuple):
    """What was told of a day. named: whether the text names it, and was not only said on it.
    weekly: whether the text says that it comes every week."""

    day: date
    named: bool
    text: str
    weekly: bool = False


def agenda(
    memory: Memory, scope: Scope, asked: Asked, said_at: str, *, most: int
) -> tuple[Evidence, ...]:
    """What was told of these days, the earliest day first, each with what was told of it later.

    A question about the past also gets what was told on these days. said_at: ISO-8601 time of the
    question. At most `most` plans or notes are given, and then how many were left out: of past days
    those that tell most, of others the first.
    """
    rows = told_texts(memory.store, scope, {"turn", "fact", "image"})
    names = naming(asked.first, asked.last)
    items = memory.store.by_rowids(_candidates(rows, asked, names)).values()
    hits = [Hit.of(i, 1.0) for i in items if i.kind != "fact" or i.updated_at != i.created_at]
    told = [hit for hit in hits if hit.kind != "image"]
    told_in = cache(partial(_told, asked))
    may = (hit for hit in told if _may_tell(hit, asked, names))
    near = [hit for hit in may if told_in(hit.memory, _when(hit))]
    said = {source for hit in near for source in hit.sources}
    photos = [hit for hit in hits if hit.kind == "image"]
    photos = [hit for hit in photos if _told_by_photo(hit, _when(hit), asked, said)]
    ends = [hit for hit in told if may_end_weekly(hit.memory)]
    found: dict[tuple[str, date], tuple[_Line, Evidence]] = {}
    for evidence in evidence_of(memory, None, [*near, *photos]):
        when, photo = evidence.when or said_at, evidence.photo
        told_here = (
            _told_by_photo(photo, when, asked, said) if photo else told_in(evidence.text, when)
        )
        if parts := [part for part in told_here if not _has_ended(part, evidence, ends)]:
            texts = [part.text for part in parts]
            text = headed(photo, texts) if photo else " ".join(texts)
            line = _Line(min(parts).day, any(part.named for part in parts), text)
            found[text, line.day] = line, replace(evidence, text=text)
    plans = sorted(found.values(), key=lambda one: (one[0].day, one[1].when or ""))
    texts = [text for _, text, _ in rows]
    order = _by_rarity(plans, texts, most) if asked.past else [*range(len(plans))]
    tell = (i for i in order if _tells(memory, plans[i][1]))
    kept = sorted(islice(tell, most))
    listed = {hit.id for hit in near}
    others = [hit for hit in reversed(sorted(told, key=_when)) if hit.id not in listed]
    off = {hit.id for hit in others if may_call_off(hit.memory) or may_move(hit.memory)}
    lines = (one for i in kept for one in (plans[i][1], *_later(memory, *plans[i], others, off)))
    left = len(plans) - len(kept)
    return (*dict.fromkeys(lines), *counted(left))  # one message may be of several plans


def _tells(memory: Memory, plan: Evidence) -> bool:
    return plan.photo is not None or not only_asks(memory.embedder, plan.text)


def _candidates(rows: Rows, asked: Asked, names: re.Pattern[str]) -> list[int]:
    """The rowids of memories that may tell of these days: those told about then, and of the others
    those that name one of the months or a weekly day, or call something off. rows: `told_texts`."""
    since, until = _around(asked, *_NEAR)
    return [
        row
        for row, text, when in rows
        if since <= when <= until or names.search(text) or may_call_off(text)
    ]


def _around(asked: Asked, before: timedelta, after: timedelta) -> tuple[str, str]:
    """The first and the last time of these days and of those before and after."""
    first = asked.first - min(before, asked.first - date.min)
    last = asked.last + min(after, date.max - asked.last)
    return first.isoformat(), f"{last.isoformat()}~"


def _may_tell(hit: Hit, asked: Asked, names: re.Pattern[str]) -> bool:
    """Whether a message may name one of these days; to read its dates takes far longer."""
    since, until = _around(asked, _CLOSE, _CLOSE)
    if since <= _when(hit) <= until:
        return True
    text = plain(hit.memory)
    return names.search(text) is not None or may_name_far(text)


def _by_rarity(
    plans: Sequence[tuple[_Line, Evidence]], told: Sequence[str], most: int
) -> list[int]:
    """The places of plans, those first whose words are rarest among all that was told. Of more than
    `most`, remarks made again and again are left out, unless they name one of the days."""
    texts = [line.text for line, _ in plans]
    rare = {*rarest(texts, told, least=most)}
    n_with = Counter(word for text in told for word in {*content_words(text)})

    def rarity(i: int) -> float:
        return sum(log(len(told) / max(1, n_with[word])) for word in content_words(texts[i]))

    kept = (i for i, (line, _) in enumerate(plans) if line.named or line.text in rare)
    return sorted(kept, key=rarity, reverse=True)


def _when(hit: Hit) -> str:
    """When a turn was said, an image sent, or a fact edited."""
    return hit.updated_at if hit.kind == "fact" else hit.valid_from or hit.created_at


def _told(asked: Asked, text: str, when: str) -> list[_Line]:
    """The sentences that tell of the days, each with the first of these days that it names.

    A sentence that says only when ("2 December half 9") is joined to the one before it, if that
    names no day. For a question about the past, a sentence without a date tells of its own day, and
    a short one that goes on with it ("He was 12.") is joined to it.
    """
    (first, last, past), said_at = asked, local_time(when)
    said = date.fromisoformat(said_at[:10])
    length = max(last - first, timedelta(days=_WIDEST - 1))
    n_days = min(length, date.max - first).days + 1 if length < _WEEK else 0
    week = [first + timedelta(days=n) for n in range(n_days)]
    week = [day for day in week if said <= day <= last]
    found: list[_Line] = []
    before, listed = "", False
    for sentence in sentences(text):
        if asks(sentence):  # "My eye test, is that on Tuesday?"
            continue
        named = told_days(sentence, said_at)
        near = [max(a, first) for a, b in named if a <= last and b >= first and b - a <= length]
        if counts_weeks(sentence):  # "in two weeks" names a week, and most probably this day of it
            exact = (a + timedelta(days=said.weekday()) for a, b in named if b - a == _WEEK - _DAY)
            near += [day for day in exact if first <= day <= last and day not in near]
        weekly = not near
        near += comes_again(sentence, week) if week and not named else ()
        then = past and not named and first <= said <= last
        if then and listed and len(content_words(sentence)) < _TELLING and goes_on(sentence):
            found[-1] = found[-1]._replace(text=f"{found[-1].text} {sentence}")
            continue
        then = then and len(content_words(sentence)) >= _TELLING
        listed = bool(near) or then
        if listed:
            joins = says_only_when(sentence) or (then and goes_on(sentence))
            told = f"{before} {sentence}" if before and joins else sentence
            day = min(near, default=said)
            found.append(_Line(day, bool(near), told, weekly and bool(near)))
        before = "" if listed or named else sentence
    return found


def _told_by_photo(hit: Hit, when: str, asked: Asked, said: Set[str]) -> list[_Line]:
    """The lines of a photo's text that tell of the days, as `_told` gives sentences.

    A letter or a receipt also names the day on which it was written, which is no plan: only days
    after the one on which it was sent are. A question about the past lists the others too, unless
    the photo's message is listed already (`said`: the turns that are). Days that are counted from a
    day that nobody told ("tomorrow", "Monday to Friday") are left out.
    """
    (first, last, past), said_at = asked, local_time(when)
    sent = date.fromisoformat(said_at[:10])
    own_day = past and said.isdisjoint(hit.sources)
    length = max(last - first, timedelta(days=_WIDEST - 1))
    found: list[_Line] = []
    before = ""
    for line in lines_of(hit):
        named = _dated(line, sent, said_at)
        near = [max(a, first) for a, b in named if a <= last and b >= first and b - a <= length]
        near = [day for day in near if own_day or day > sent]
        if near:
            told = f"{before}; {line}" if before and says_only_when(line) else line
            found.append(_Line(min(near), True, told))
        before = "" if named else line
    return found


def _dated(line: str, sent: date, said_at: str) -> list[tuple[date, date]]:
    """The days that a line of a photo names, whenever it was sent. Of a day without its year the
    nearest is meant: a receipt of 19 November, sent on the 20th, tells of no day a year later."""
    step = 2 * _WEEK if sent - date.min > 2 * _WEEK else -2 * _WEEK
    another = (datetime.fromisoformat(said_at) - step).isoformat()
    days = set(told_days(line, said_at)).intersection(told_days(line, another))
    return sorted(d for d in days if str(d[0].year) in line or d[0] - sent <= _HALF_A_YEAR)


def _has_ended(line: _Line, plan: Evidence, told: Sequence[Hit]) -> bool:
    """Whether what comes every week was given up or moved to another weekday before its day."""
    until = f"{line.day.isoformat()}~"
    return line.weekly and any(
        (plan.when or "") < _when(hit) < until
        and ends_weekly(hit.memory, line.text, line.day.weekday())
        for hit in told
    )


def _later(
    memory: Memory, line: _Line, plan: Evidence, others: Sequence[Hit], off: Set[str]
) -> Iterator[Evidence]:
    """The last messages about the same plan up to a week after its day that name none of the days
    asked about; of all later ones, those that call it off. others: the newest first. off: the ids
    of those that may call something off."""
    if not line.named:
        return
    until = at_day((min(line.day, date.max - _WEEK) + _WEEK).isoformat())
    after = (
        hit
        for hit in takewhile(lambda hit: _when(hit) > (plan.when or ""), others)
        if (hit.id in off and calls_off(hit.memory, plan.text))
        or (_when(hit) < until and _same(hit.memory, plan.text))
    )
    yield from evidence_of(memory, None, [*islice(after, _LATER)][::-1])


def _same(told: str, plan: str) -> bool:
    """Whether a later message is about the same thing as a plan: at least _SAME of its words are
    the plan's, or more than _SAME of those that tell no day or hour, which may have changed."""
    rest = subjects(told)
    if (by_rest := share(rest, plan)) == 0:
        return False
    words = content_words(told)
    by_words = len(words) > 1 and share(words, plan) >= _SAME
    return by_words or (len(rest) > 1 and by_rest > _SAME)


# -- plans that were moved ---------------------------------------------------------------------


class _Plan(NamedTuple):
    """A day that was told. said: the day of the message. beside: the words around it. vector: of
    these words."""

    day: date
    said: date
    beside: str
    vector: _Vector


def with_days(embedder: Embedder, question: str, shown: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """The evidence of a question, in order. If the question asks for a day, each length by which a
    plan was moved is followed by the new day."""
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
            written[i] = replace(shown[i], text=text)
    return tuple(written)


def _resolved(text: str, when: str) -> tuple[str, str]:
    """The text with its dates written out in words, and when it was said, local."""
    said_at = local_time(when)
    return absolute(spelled_days(" ".join(text.split())), said_at)[0], said_at


def _counted(mention: Mention, vector: _Vector, said: date, plans: Sequence[_Plan]) -> date | None:
    """The new day of the plan that a length of time most probably moves; None without a plan."""
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

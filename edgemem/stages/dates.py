"""Relative dates, resolved by rule against the time at which they were said.

"yesterday", said on 8 May 2023, is 7 May 2023: small models get this wrong, so it is settled when a
memory is written. English only; what is not recognised is left as it is. Dates are those of the
turn's UTC time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta

__all__ = ["Moment", "absolute", "day_text", "moments"]

_MONTHS = (
    "January February March April May June July August September October November December".split()
)
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_NUMBERS = dict(
    zip(
        "a an one two three four five six seven eight nine ten couple few".split(),
        (1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 2, 3),
        strict=True,
    )
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A relative date found in a text: where, as what, and the day it begins on."""

    start: int
    end: int
    text: str
    begins: date


def day_text(day: date) -> str:
    """A day as people write it, the same on every platform: 7 May 2023."""
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


def _month_text(day: date) -> str:
    return f"{_MONTHS[day.month - 1]} {day.year}"


def _add_months(day: date, n: int) -> date:
    years, month = divmod(day.year * 12 + day.month - 1 + n, 12)
    return date(years, month + 1, 1)


def _shift(day: date, n: int, unit: str) -> tuple[str, date]:
    """`n` units away. A day is exact; of a week, month or year only that unit is known."""
    if unit == "day":
        to = day + timedelta(days=n)
        return f"on {day_text(to)}", to
    if unit == "weekend":
        to = day - timedelta(days=day.weekday()) + timedelta(days=5, weeks=n)
        return f"on the weekend of {day_text(to)}", to
    if unit == "week":
        to = day - timedelta(days=day.weekday()) + timedelta(weeks=n)
        return f"in the week of {day_text(to)}", to
    if unit == "month":
        to = _add_months(day, n)
        return f"in {_month_text(to)}", to
    to = date(day.year + n, 1, 1)
    return f"in {to.year}", to


# Not the end of another number (1.5, 2-3, twenty-two, two or three).
_ALONE = r"(?<![\w.,'’-])(?<!\bor )(?<!\bto )(?<!\band )(?<!\bhalf )"
# Not "my last year at school", nor "the next week", which is counted from another day.
_NOT_MINE = (
    "".join(rf"(?<!\b{word} )" for word in "the my your his its our their".split()) + r"(?<!['’]s )"
)
_COUNT = r"(a couple of|a few|an?|one|two|three|four|five|six|seven|eight|nine|ten|\d{1,3})"
_UNIT = r"(day|week|month|year)s?"
_WEEKDAY = r"(monday|tuesday|wednesday|thursday|friday|saturday|sunday)"
_SHORT_WEEKDAY = r"(mon|tues?|wed|thur?s?|fri|sat|sun)"
_PREPOSITIONS = frozenset(
    "on in since until till from by for of before after about around to between".split()
)
_SENTENCE_ENDS = ("", ".", "!", "?")
_STEP = {"last": -1, "this": 0, "next": 1}


def _count(match: re.Match[str]) -> int:
    text = match[1].lower().removesuffix(" of")
    return int(text) if text.isdigit() else _NUMBERS[text.split()[-1]]


def _weekday(match: re.Match[str], said: date) -> tuple[str, date]:
    """last Friday: the one before today; this or next Friday: the next one that comes."""
    name = next(day for day in _DAYS if day.startswith(match[2][:3].title()))
    back = (said.weekday() - _DAYS.index(name)) % 7
    days = -(back or 7) if _STEP[match[1].lower()] < 0 else 7 - back
    day = said + timedelta(days=days)
    return f"on {name} {day_text(day)}", day


_RULES: list[tuple[re.Pattern[str], Callable[[re.Match[str], date], tuple[str, date]]]] = [
    (re.compile(pattern, re.IGNORECASE), rule)
    for pattern, rule in (
        (r"\b(?:the )?day before yesterday\b", lambda m, d: _shift(d, -2, "day")),
        (r"\b(?:the )?day after tomorrow\b", lambda m, d: _shift(d, 2, "day")),
        (
            r"\byesterday(?: morning| afternoon| evening| night)?\b|\blast night\b",
            lambda m, d: _shift(d, -1, "day"),
        ),
        (
            r"\btomorrow(?: morning| afternoon| evening| night)?\b",
            lambda m, d: _shift(d, 1, "day"),
        ),
        (
            r"\b(?:today|tonight|this (?:morning|afternoon|evening))\b",
            lambda m, d: _shift(d, 0, "day"),
        ),
        (rf"{_ALONE}{_COUNT} {_UNIT} ago\b", lambda m, d: _shift(d, -_count(m), m[2].lower())),
        (
            rf"\bin {_COUNT} {_UNIT}\b(?! (?:of|old|or)\b)",
            lambda m, d: _shift(d, _count(m), m[2].lower()),
        ),
        (
            rf"{_NOT_MINE}\b(last|this|next) (weekend|week|month|year)\b",
            lambda m, d: _shift(d, _STEP[m[1].lower()], m[2].lower()),
        ),
        (rf"{_NOT_MINE}\b(last|this|next) {_WEEKDAY}\b", _weekday),
        (rf"{_NOT_MINE}\b(last|next) {_SHORT_WEEKDAY}(?!\w)", _weekday),
    )
]


# A word of each rule: most texts have none, and looking for all rules takes longer.
_ANY = re.compile(r"\b(?:yesterday|tomorrow|today|tonight|ago|in|last|this|next)\b", re.IGNORECASE)


def moments(text: str, said_at: str) -> list[Moment]:
    """The relative dates of a text, in order. said_at: ISO-8601, when it was said."""
    if _ANY.search(text) is None:
        return []
    said = datetime.fromisoformat(said_at).date()
    found: list[Moment] = []
    for pattern, rule in _RULES:
        for match in pattern.finditer(text):
            if any(match.start() < m.end and m.start < match.end() for m in found):
                continue
            try:
                words, day = rule(match, said)
            except (KeyError, OverflowError, ValueError):
                continue  # "9999 years ago" has no date here; "thiſ week" only looks like one
            found.append(Moment(match.start(), match.end(), words, day))
    return sorted(found, key=lambda m: m.start)


def absolute(text: str, said_at: str) -> tuple[str, str | None]:
    """The text with its relative dates written out, and when the first of them begins (ISO day).

    >>> absolute("I adopted a dog yesterday.", "2023-05-08T13:56:00.000+00:00")
    ('I adopted a dog on 7 May 2023.', '2023-05-07')
    """
    found = moments(text, said_at)
    for moment in reversed(found):
        words = moment.text
        before = text[: moment.start].rstrip().lower().rsplit(" ", 1)[-1]
        if before in _PREPOSITIONS or text[moment.end :].startswith(("'s", "’s")):
            # "since yesterday" is "since 7 May", not "since on 7 May"
            words = words.split(" ", 1)[1]
        if text[: moment.start].rstrip()[-1:] in _SENTENCE_ENDS:
            words = words[0].upper() + words[1:]
        text = text[: moment.start] + words + text[moment.end :]
    return text, found[0].begins.isoformat() if found else None

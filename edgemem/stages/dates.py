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


def _number(text: str) -> int:
    return int(text) if text.isdigit() else _NUMBERS[text.split()[-1].removesuffix("s").lower()]


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


_COUNT = r"(a couple of|a few|an?|one|two|three|four|five|six|seven|eight|nine|ten|\d{1,3})"
_UNIT = r"(day|week|month|year)s?"
_WEEKDAY = r"(monday|tuesday|wednesday|thursday|friday|saturday|sunday)"
_STEP = {"last": -1, "this": 0, "next": 1}


def _count(match: re.Match[str]) -> int:
    return _number(match[1].lower().replace(" of", ""))


def _weekday(match: re.Match[str], said: date) -> tuple[str, date]:
    """last Friday: the one before today; this or next Friday: the next one that comes."""
    back = (said.weekday() - _DAYS.index(match[2].title())) % 7
    day = said - timedelta(days=back or 7) if match[1].lower() == "last" else said + timedelta(
        days=(7 - back) % 7 or 7
    )
    return f"on {match[2].title()} {day_text(day)}", day


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
        (rf"\b{_COUNT} {_UNIT} ago\b", lambda m, d: _shift(d, -_count(m), m[2].lower())),
        (rf"\bin {_COUNT} {_UNIT}(?! (?:of|old))\b", lambda m, d: _shift(d, _count(m), m[2].lower())),
        (
            r"\b(last|this|next) (weekend|week|month|year)\b",
            lambda m, d: _shift(d, _STEP[m[1].lower()], m[2].lower()),
        ),
        (rf"\b(last|this|next) {_WEEKDAY}\b", _weekday),
    )
]


def moments(text: str, said_at: str) -> list[Moment]:
    """The relative dates of a text, in order. said_at: ISO-8601, when it was said."""
    said = datetime.fromisoformat(said_at).date()
    found: list[Moment] = []
    for pattern, rule in _RULES:
        for match in pattern.finditer(text):
            if any(match.start() < m.end and m.start < match.end() for m in found):
                continue
            try:
                words, day = rule(match, said)
            except (OverflowError, ValueError):
                continue  # "900 years ago" has no date here
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
        if before in {"on", "in", "since", "until", "till", "from", "by", "for", "of", "before", "after"}:
            words = words.split(" ", 1)[1]  # "since yesterday" is "since 7 May", not "since on 7 May"
        if moment.start == 0:
            words = words[0].upper() + words[1:]
        text = text[: moment.start] + words + text[moment.end :]
    return text, found[0].begins.isoformat() if found else None

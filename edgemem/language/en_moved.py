"""English: the days that a text names, and by how much it says that a plan was moved.

"Put back a week" is seven days after a day that another message may have named. Which day that is,
no pattern tells: `pipeline/moved.py` decides it by what both speak of. Knows dates as `en_dates`
writes them, and the tense beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

from edgemem.language import en_tense as tense
from edgemem.language.en_dates import A_MONTH, COUNT, add_months, count, month_number

__all__ = ["Mention", "mentions", "moved"]

_BEFORE, _AFTER = 20, 4  # words of the same sentence that tell what a mention is about
_DAY = re.compile(
    rf"(?<!week of )(?<!weekend of )\b(?:(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<m>{A_MONTH})"
    rf"|(?P<month>{A_MONTH})\b\.? (?P<day>\d{{1,2}})(?:st|nd|rd|th)?)\b(?:\.?,? (?P<y>\d{{4}}))?",
    re.I,
)
_LENGTH = (
    rf"(?:(?:exactly|another|about|only|just|by|of|for) )*{COUNT} (?:more |whole |full )?"
    r"(day|week|fortnight|month)s?"
)
_OF_IT = r"(?: (?:it|them|him|her|me|us|(?:the|my|our|his|her|their) \w+))?"
_BACK = "put push pushed set move moved shift shifted shove shoved postponed delayed slipped held"
_FORWARD = "bring brought pull pulled come came comes move moved"
_MOVED = re.compile(
    rf"\b{_LENGTH} (?P<way>later|late|earlier|early|sooner)\b"
    rf"|\b{_LENGTH} (?P<from>after|before)(?= (?:the|that|than|it|they|what|planned|first)\b)"
    rf"|\b(?:{_BACK.replace(' ', '|')}){_OF_IT}(?: (?:back|off|on|out|over))? {_LENGTH}\b"
    r"(?: (?P<than>later|earlier|sooner)\b)?"
    rf"|\b(?P<forward>{_FORWARD.replace(' ', '|')}){_OF_IT} (?:forward|up) {_LENGTH}\b"
    r"|\bthe day (?P<next>after|before)\b",
    re.I,
)
_EARLIER = frozenset(("earlier", "early", "sooner", "before"))
_UNITS = {"day": (0, 1), "week": (0, 7), "fortnight": (0, 14), "month": (1, 0)}
_BREAK = re.compile(r"[.!?;…]+(?=\s|$)|\n")
_PAST_DAYS = 60  # a day without its year is the coming one, unless it is at most so long ago


@dataclass(frozen=True, slots=True)
class Mention:
    """A day that a text names, or a length of time by which something was moved.

    start, end: its place in the text. day: None for a length. by: the length in months and days,
    below 0 if the plan is earlier now. direction: of the verb beside the length, as
    `en_tense.direction` gives it. beside: the words of its sentence around it, up to the mentions
    before and after it.
    """

    start: int
    end: int
    day: date | None = None
    by: tuple[int, int] = (0, 0)
    direction: int = tense.UNKNOWN
    beside: str = ""


def mentions(text: str, said_at: str) -> list[Mention]:
    """The mentions of a text whose relative dates are written out, in order. said_at: local ISO.

    >>> [m.by for m in mentions("My exam is put back exactly a fortnight.", "2026-05-04T10:00")]
    [(0, 14)]
    """
    said = datetime.fromisoformat(said_at).date()
    days = [*_days(text, said)]
    ends = {day.end for day in days}
    # "On 8 April, a week late" tells the day itself.
    lengths = [m for m in _lengths(text) if len(text[: m.start].rstrip(" ,")) not in ends]
    found = sorted([*days, *lengths], key=lambda m: m.start)
    stops = [0, *(m.end for m in found)], [*(m.start for m in found[1:]), len(text)]
    return [
        replace(
            m,
            # Without a day's own words, which are no subject; a length is "moved my exam a week".
            beside=_beside(
                text[last : m.start], "" if m.day else text[m.start : m.end], text[m.end : next_]
            ),
        )
        for m, last, next_ in zip(found, *stops, strict=False)
    ]


def moved(day: date, by: tuple[int, int]) -> date:
    """The day that is so far away. Raises ValueError or OverflowError if there is none."""
    months, days = by
    if months:
        day = add_months(day, months).replace(day=day.day)
    return day + timedelta(days=days)


def _days(text: str, said: date) -> Iterator[Mention]:
    for match in _DAY.finditer(text):
        number, month = int(match["d"] or match["day"]), match["m"] or match["month"]
        with suppress(KeyError, ValueError):  # 31 June
            day = date(int(match["y"] or said.year), month_number(month), number)
            if not match["y"] and (said - day).days > _PAST_DAYS:
                day = day.replace(year=said.year + 1)
            yield Mention(*match.span(), day)


def _lengths(text: str) -> Iterator[Mention]:
    for match in _MOVED.finditer(text):
        group = next((g for g in (1, 4, 7, 11) if match[g]), None)  # COUNT of each form
        way = match["way"] or match["from"] or match["than"] or match["next"] or ""
        sign = -1 if match["forward"] or way.lower() in _EARLIER else 1
        span = match.span()
        with suppress(KeyError):  # "fortnİght" only looks like one
            months, days = _UNITS[match[group + 1].lower()] if group else (0, 1)
            n = sign * (count(match, group) if group else 1)
            by = (n * months, n * days)
            yield Mention(*span, by=by, direction=tense.direction(text, *span))


def _beside(before: str, own: str, after: str) -> str:
    """The words of the sentence beside a mention. own: of the mention itself."""
    left, right = _BREAK.split(before)[-1], _BREAK.split(after)[0]
    return " ".join([*left.split()[-_BEFORE:], own, *right.split()[:_AFTER]])

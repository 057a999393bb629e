"""English: questions that compare the days of events: how long ago, how long between, which first.

A small model can name a day, and can neither count nor compare days. So such a question is taken
apart into its events, and the answer is worded from their days.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Literal, NamedTuple

from edgemem.language.en_calendar import A_MONTH, A_NAMED_DAY, day_text, month_number
from edgemem.language.en_dates import COUNT, UNIT
from edgemem.language.en_days import mentions, told_days
from edgemem.language.en_when import spelled_days

__all__ = ["Comparison", "Event", "begins", "comparison", "counted_down", "counts_down"]
__all__ += ["days_told", "is_vague", "worded"]

Asks = Literal["since", "until", "between", "first", "before"]


class Event(NamedTuple):
    """An event in a question's own words. lasts: whether its beginning is meant, as in "how long
    have I had the cat". coming: whether it is still to come."""

    text: str
    lasts: bool = False
    coming: bool = False


class Comparison(NamedTuple):
    """A question taken apart.

    asks: how long it is since or until an event, how long between two, which of two was first, or
    whether the first was before the second. unit: in which it asks for the length, or "".
    """

    asks: Asks
    unit: str
    events: tuple[Event, ...]


_LONGEST = 300  # characters of a question that is taken apart
_UNIT = "(?:day|night|sleep|week|month|year)s?"
_ABOUT = "(?: (?:exactly|approximately|roughly|about|in total))?"
_MANY = rf"many (?:more )?(?P<unit>{_UNIT})"
_HOW = rf"(?:how (?:much )?(?:long|time|{_MANY})|^(?P<bare>{_UNIT})){_ABOUT}"
_HOW_MANY = (
    rf"(?:how {_MANY}|^(?P<bare>{_UNIT})|how (?:long|much time)(?= .{{0,20}}(?:pass|laps))){_ABOUT}"
)
_PASSED = (
    r"(?: (?:have|has|had|did|do|does|is|are|was|were|it|there|been|be|time|that|i|we|got|"
    r"pass(?:ed)?|lapsed?|elapsed?|remain|left|still|more|now|to go|go by|gone by|went by|lie|lay|"
    r"in|of))*"
)
_AND_WHEN = r",? (?:when|by the time|at the time) (?P<b>.+)"
_OR = r" ?[,:;–—-]* ?(?P<a>[^,:;?]+?),? or (?P<b>[^?]+)"
_WHICH = r"\b(?:what|which|who)(?: \w+){0,3}?"
_FIRST = r"(?:first|earlier|sooner)\b"
_LASTING = (
    r"(?:(?:have|has|had) (?:\w+ ){1,4}?(?:now )?(?:been|had|got)|\w+ (?:have|has|had)(?: been)?) "
)
_FORMS: tuple[tuple[Asks, str], ...] = (
    ("since", rf"{_HOW} (?:ago|back) (?:is it (?:that|since) )?(?P<a>.+)"),
    ("since", rf"{_HOW}(?: is it| was it)? ago (?:that|since) (?P<a>.+)"),
    ("between", rf"{_HOW}{_PASSED} since (?P<a>.+?){_AND_WHEN}"),
    ("since", rf"{_HOW}{_PASSED} since (?P<a>.+)"),
    # Without a unit it may ask for the way ("how long is it from Leeds to York").
    ("between", rf"{_HOW_MANY}{_PASSED} between (?P<a>.+?),? and (?P<b>.+)"),
    ("between", rf"{_HOW_MANY}{_PASSED} from (?P<a>.+?),? (?:un)?(?:to|til|till) (?P<b>.+)"),
    ("between", rf"{_HOW} (?:before|after) (?P<a>.+?),? (?P<b>(?:did|was|were) .+)"),
    ("between", rf"{_HOW} {_LASTING}(?P<begun>.+?){_AND_WHEN}"),
    ("until", rf"{_HOW}{_PASSED} (?:until|['’]?till?|before) (?P<coming>.+)"),
    # "How long do I have to wait?" asks for no day.
    ("until", rf"{_HOW_MANY}(?: (?:is|are|left|more|now|there|it|to go))* to (?P<coming>.+)"),
    ("until", rf"\bhow (?:soon|far (?:away|off)|{_MANY} (?:away|off)) (?:is|are) (?P<coming>.+)"),
    ("since", rf"(?:\bfor )?{_HOW} {_LASTING}(?P<begun>.+)"),
    ("before", r"(?:^|[,.;:!?] |\band )(?:did|was|were) (?P<a>.+?) before or after (?P<b>.+)"),
    ("first", rf"{_WHICH} (?P<stem>(?:did|was|were) [^,:;?]+?) {_FIRST}{_OR}"),
    ("first", rf"{_WHICH} (?:came|comes|happened|occurred|was|is|took place) {_FIRST}{_OR}"),
    ("first", rf"\bwas it (?P<a>.+?),? or (?P<b>.+?)(?: that| which)? (?:\w+ )?{_FIRST}"),
    ("first", rf"^(?P<a>.+?),? or (?P<b>.+?)[,:;–—-]+ ?(?:what|which)(?: \w+){{0,2}} {_FIRST}"),
)
_PATTERNS = tuple((asks, re.compile(form, re.I)) for asks, form in _FORMS)
_WEEK = timedelta(days=7)
_DAYS_OF = {"week": 7, "month": 30.44, "year": 365.25}
_VAGUE = re.compile(
    rf"\b{COUNT} {UNIT}s?\b|\b(?:last|this|past|next) year\b|\b(?:19|20)\d\d\b", re.I
)
_BEGINS = re.compile(
    r"\b(?:started|began|begun|commenced|joined|got|adopted|bought|moved|picked up|took up|"
    r"signed up|enroll?ed|fitted|first|opened|founded|met|married|became|hired)\b",
    re.I,
)
_THIS_DAY = re.compile(r"\bthis (?:morning|afternoon|evening)\b", re.I)
_DAY_OF = re.compile(
    r"(?:(?:the (?:day|date|time|moment)|when)(?: (?:that|when|on which|of))? )(?=\w)", re.I
)
_AUXILIARY = re.compile(r"(?:did|was|were|is|are) (?=\w)", re.I)
_DOING = re.compile(r"(.*?\b\w+ing) ", re.I)
_AFTER = re.compile(r" (?:now|so far|already|again)$", re.I)
_OWN = re.compile(
    r"\A(?:the|me|my|our|his|her|their|a|an|i|we|he|she|they|\w+['’]s)\b|\b\w+ing\b", re.I
)


_A_DAY = re.compile(
    rf" ?(?:on )?(?:the )?(?:{A_NAMED_DAY},? )?(?:the )?(?P<nth>\d\d?)(?:st|nd|rd|th)?"
    rf"(?: of)? (?P<month>{A_MONTH})\b(?:,? (?P<year>\d{{4}}))?(?! ?(?:to|until|till?|[-–—]) ?\d)",
    re.I,
)


def comparison(question: str) -> Comparison | None:
    """A question for a length of time or an order taken apart; None for any other.

    >>> [event.text for event in comparison("how many days between the fair and my exam?").events]
    ['the fair', 'my exam']
    """
    if len(question) > _LONGEST:
        return None
    text = " ".join(question.split())
    for asks, pattern in _PATTERNS:
        if (found := pattern.search(text)) is None:
            continue
        parts = {name: part for name, part in found.groupdict().items() if part}
        unit = (parts.get("unit") or parts.get("bare") or "").lower().rstrip("s")
        stem = _bare(parts["stem"]) + " " if "stem" in parts else ""
        names = [_bare(parts[name]) for name in ("begun", "coming", "a", "b") if name in parts]
        if (
            len(names) == 2
            and not stem
            and not _OWN.search(names[1])
            and (doing := _DOING.match(names[0]))
        ):
            names[1] = f"{doing[1]} {names[1]}"  # "between adopting Toby and Buddy"
        lasts, coming = "begun" in parts, "coming" in parts
        events = [Event(stem + name, lasts and i == 0, coming) for i, name in enumerate(names)]
        return Comparison(asks, unit, tuple(events))
    return None


def counts_down(question: str) -> str | None:
    """The question for the day of which a question asks how long it is until then; else None.

    >>> counts_down("how many days till my exam")
    'When is my exam?'
    """
    asked = comparison(question)
    return f"When is {asked.events[0].text}?" if asked and asked.asks == "until" else None


def counted_down(answer: str, question: str, now: str) -> str:
    """An answer that begins with a coming day, after the time until then if the question asks how
    long; any other answer as it is. now: ISO-8601.

    >>> counted_down("on 12 June 2026", "how many days till my exam", "2026-06-01T10:00:00+00:00")
    '11 days, on 12 June 2026'
    """
    asked = comparison(question)
    if asked is None or asked.asks != "until":
        return answer
    if (found := _A_DAY.match(spelled_days(answer))) is None:
        return answer
    today = date.fromisoformat(now[:10])
    try:
        month, nth = month_number(found["month"]), int(found["nth"])
        day = date(int(found["year"] or today.year), month, nth)
        if day < today and not found["year"]:
            day = day.replace(year=today.year + 1)
    except (KeyError, ValueError):
        return answer  # "31 February"; "Auguſt" only looks like a month
    if day <= today:
        return f"today, {answer.strip()}" if day == today else answer
    return f"{_length((day - today).days, asked.unit)}, {answer.strip()}"


def _bare(event: str) -> str:
    event = _DAY_OF.sub("", event.split("?")[0].strip(" .!,"))
    return _AFTER.sub("", _AUXILIARY.sub("", event, count=1) if _AUXILIARY.match(event) else event)


def days_told(sentence: str, said_at: str) -> list[date]:
    """The days that a sentence may tell, the nearest to when it was said first. Of several days in
    a row ("20 to 27 January") the first, of a whole month or a season none. Where no verb tells
    whether a day is past or coming ("lorry hit the van on thursday"), both. said_at: local ISO."""
    said = date.fromisoformat(said_at[:10])
    told = [
        days for text in (sentence, f"there was {sentence}") for days in told_days(text, said_at)
    ]
    named = [mention.day for mention in mentions(sentence, said_at) if mention.day]
    days = [a for a, b in told if b - a < _WEEK or a.day > 1 or b in named]
    days = days or named
    days = days or [said] * bool(_THIS_DAY.search(sentence))
    return sorted(days, key=lambda day: abs(day - said))


def is_vague(sentence: str) -> bool:
    """Whether a sentence tells a length of time or a year ("for three years", "in 2016")."""
    return _VAGUE.search(sentence) is not None


def begins(sentence: str) -> bool:
    """Whether a sentence may tell that something began ("started lessons", "got a cat")."""
    return _BEGINS.search(sentence) is not None


def worded(asked: Comparison, days: Sequence[date], today: date) -> str | None:
    """The answer from the days of the events, with these days below; None if they do not tell."""
    first, second = days[0], days[-1]
    from_, to = sorted([first, second if len(days) > 1 else today])
    length = _length((to - from_).days, asked.unit)
    told = "; ".join(
        f"{event.text}: {day_text(day)}" for event, day in zip(asked.events, days, strict=True)
    )
    match asked.asks:
        case "since" if length and first <= today:
            return f"{length}\n\nSince {day_text(first)}."
        case "until" if length and first >= today:
            return f"{length}\n\nUntil {day_text(first)}."
        case "between" if length:
            return f"{length}\n\nFrom {day_text(from_)} to {day_text(to)}."
        case "before" if first != second:
            return f"{'before' if first < second else 'after'}\n\n{told}"
        case "first" if first != second:
            return f"{asked.events[first > second].text}\n\n{told}"
    return None


def counted(n: int, unit: str) -> str:
    """ "1 day", "2 days"."""
    return f"{n} {unit}{'s' * (n != 1)}"


def _length(days: int, unit: str) -> str:
    """A number of days in words; "" if it is less than half of the unit asked for."""
    if unit in ("day", "night", "sleep") or (not unit and days < 14):
        return counted(days, unit or "day")
    if unit == "week":
        weeks, rest = divmod(days, 7)
        parts = (counted(n, of) for n, of in ((weeks, "week"), (rest, "day")) if n)
        return " and ".join(parts) or counted(0, "day")
    in_unit = unit or ("week" if days < 60 else "month" if days < 700 else "year")
    if not (n := round(days / _DAYS_OF[in_unit])):
        return ""
    about = f"about {counted(n, in_unit)}"
    return about if unit else f"{counted(days, 'day')} ({about})"

"""English: questions for whatever there is or was on some days, or about one day, or for a time.

"What do I have on Thursday?" names a day and nothing else that a search could find. Knows dates as
`en_dates` writes them and `en_days` reads them; nothing of what was told, nor of memories.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from typing import NamedTuple

from edgemem.language.en import content_words, words
from edgemem.language.en_calendar import (
    A_FEAST,
    A_MONTH,
    DAYS,
    MONTHS,
    SEASONS,
    day_text,
    earlier,
    feast_day,
    month_number,
    nearest,
)
from edgemem.language.en_dates import COUNT, absolute, count
from edgemem.language.en_days import (
    A_NTH,
    A_WEEKDAY,
    MONTH_FIRST,
    SPAN,
    WRITTEN,
    days_of,
    days_of_span,
    nearest_named,
    says_only_when,
    subjects,
)
from edgemem.language.en_plain import plain
from edgemem.language.other import asked_in_english, spelled_days

__all__ = [
    "Asked",
    "asked_day",
    "asked_days",
    "asked_within",
    "asked_year",
    "asks_of_a_day",
    "asks_only_when",
    "follows_days",
    "names_nobody",
]


class Asked(NamedTuple):
    """The days that a question asks about. past: whether it asks what was, not what is planned."""

    first: date
    last: date
    past: bool


_NTH = re.compile(rf"(?:\bon )?\bthe ({A_NTH})(?! of)", re.I)
_SUMMED_UP = re.compile(r"\b(?:my|the|this) (day|week|month|year)$")
_LATELY = re.compile(
    rf"(?:\b(?:in|over|during|for|of) )?\b(?:my|the) "
    rf"(?:(?:last|past) (?:(?P<n>{COUNT}|few|couple of) )?"
    rf"|(?:next|coming) (?P<ahead>{COUNT}|few|couple of) )(?P<unit>day|week|month|year)s?\b",
    re.I,
)
_HOW_WAS = re.compile(
    r"\bhow (?:was|has) ((?:my|the) (?:(?:last|past) )?(?:day|week|month|year))(?: been)?$", re.I
)
_SUM_UP = re.compile(r"\b(?:summar\w+|recap|sum up|overview|highlights)\b", re.I)
_WITHIN = re.compile(
    r",? (?:(?:back )?(?:in|during|over|for|of|from) (?=\S)|(?=this|last))"
    rf"(?P<span>(?:(?:{A_MONTH}) )?(?:19|20)\d\d|(?:this|last) (?:year|month))(?=\W*\Z)",
    re.I,
)
_AHEAD = re.compile(r"\bcoming up\b|\bahead\b", re.I)
_MY_NEXT = re.compile(
    r"\b(?:what(?:['’]?s| is| do i have| have i got)|when(?:['’]?s| is)) (?:(?:my|our) next "
    r"(?:appointment|event)|next (?:in|on) (?:my|our) (?:diary|calendar|agenda|schedule))",
    re.I,
)
_AND_WHEN = re.compile(
    r"\Aand(?: then)?,? (?=(?:(?:(?:on|over|at) )?(?:(?:the|this|next|last) )?"
    rf"(?:week(?:end)?|{A_WEEKDAY})|tomorrow)(?: (?:morning|afternoon|evening))?\W*\?)",
    re.I,
)
_PAST = re.compile(r"\b(?:did|was|were|happened|had)\b", re.I)
_HAVE_GOT = re.compile(r"\b(?:have (i|we)|(i|we)(?:['’]ve| have)) (?:got|any)\b", re.I)
_DID_HAVE = re.compile(r"\bdid (i|we) have\b", re.I)
_ONE_DAY = rf"\b(?:{'|'.join(DAYS)}|today|tomorrow|yesterday)\b"
_LIST = re.compile(
    rf"{_ONE_DAY}(?:(?:,? (?:and|or|to|until|till|through|und|oder|y|o|a)(?: on)? |, | ?[-–&] ?)"
    rf"{_ONE_DAY})+",
    re.I,
)
_BETWEEN = re.compile(rf"\b(?:between|from) (?={_ONE_DAY})", re.I)
_AN_HOUR = re.compile(
    r",? (?:(?:after|before|at|from|around|about|by|until|um|ab|nach|vor) \d\d?(?:[:.]\d\d)?"
    r"(?: ?(?:h|[ap]\.?m|uhr|o['’]clock))?|in the (?:morning|afternoon|evening))\Z",
    re.I,
)
_THE_WEEKEND = re.compile(r"\b(?:(?:at|on|over|for) )?the weekend$", re.I)
_FREE = re.compile(rf"\b(free|busy) (?=(?:{'|'.join(DAYS)})\b)", re.I)
_LOOKS = re.compile(
    r"\b(?:what|how)(?:['’]?s| is| does)? my (week|month|weekend) look(?:ing)?(?: like)?$", re.I
)
_LENGTHS = {"day": 1, "week": 7, "month": 30, "year": 365}
_OPEN = frozenset(
    "a about again agenda all am an and any anything appointment appointments are at be been busy "
    "calendar coming diary did do does doing done else event events everything for free get give "
    "going got had happen happened happening happens has have highlights i in is it life list "
    "look looking me my of on our overview planned planning plans please r recap remind schedule "
    "scheduled show so something sum summarise summarize summary supposed tell that the then "
    "there this to up us was we were what what's whats will with you".split()
)
_ASKS = frozenset(
    "agenda anything busy calendar everything free highlights overview plans recap schedule "
    "something sum summarise summarize summary what what's whats".split()
)
_BARE = frozenset("is it the what what's whats".split())
_CLOCK_WORDS = frozenset("time date late today todays whats know tell say check please".split())
_WHO = re.compile(r"\bwho(?:m|se|['’]?s)?\b", re.I)
_HOW_LATE = re.compile(
    r"\b(?:when|since|until|how (?:long|soon)|(?:what|which) (?:day|date|time|month|year))\b", re.I
)
_MANY_DAYS = timedelta(days=14)  # more are no list of days
_LONGEST = 300  # characters of a question; what is longer is a document


def asked_days(question: str, now: str) -> Asked | None:
    """The days of a question for whatever there is or was then; None if it asks for more than that.

    now: ISO-8601.

    >>> asked_days("what do i have on friday?", "2026-05-20T10:00:00+00:00")
    Asked(first=datetime.date(2026, 5, 22), last=datetime.date(2026, 5, 22), past=False)
    >>> asked_days("when is the dentist on friday?", "2026-05-20T10:00:00+00:00")
    """
    if len(question) > _LONGEST:
        return None
    asked = MONTH_FIRST.sub(r"\2 \1 ", asked_in_english(plain(question)))
    asked = _MY_NEXT.sub("what's coming up", _AND_WHEN.sub("what about ", asked))
    asked = spelled_days(asked).strip(" ?!.")
    asked = _BETWEEN.sub("on ", _AN_HOUR.sub("", asked))
    if (days := _LIST.search(asked)) is None:
        return _asked(asked, now)
    each = [
        _asked(f"{asked[: days.start()]}{day}{asked[days.end() :]}", now)
        for day in re.findall(_ONE_DAY, days[0], re.I)
    ]
    known = [one for one in each if one is not None]
    if len(known) < len(each):
        return None
    first, last = min(one.first for one in known), max(one.last for one in known)
    return Asked(first, last, known[0].past) if last - first < _MANY_DAYS else None


def follows_days(question: str) -> bool:
    """Whether a question only adds a day or a week to the one before it, whatever that asks.

    >>> follows_days("And on Friday?"), follows_days("What do I have on Friday?")
    (True, False)
    """
    return _AND_WHEN.search(asked_in_english(plain(question[:_LONGEST]))) is not None


def asked_within(question: str, now: str) -> tuple[str, Asked] | None:
    """A question without the month or year at its end, and the days of that; None if it has none.

    >>> asked_within("Tell me about Ana in 2024", "2026-05-20T10:00:00+00:00")
    ('Tell me about Ana', Asked(first=datetime.date(2024, 1, 1), last=datetime.date(2024, 12, 31), \
past=True))
    """
    found = _WITHIN.search(question) if len(question) <= _LONGEST else None
    days = asked_days(f"summarise {found['span']}", now) if found else None
    return (_WITHIN.sub("", question), days) if days else None


def _asked(question: str, now: str) -> Asked | None:
    """question: with its days as English writes them."""
    today = datetime.fromisoformat(now).date()
    asked = _HAVE_GOT.sub(r"do \1\2 have", _HOW_WAS.sub(r"sum up \1", question))
    if lately := _LATELY.search(asked):
        group = "ahead" if lately["ahead"] else "n"
        n = count(lately, group) if lately[group] else 1
        left = {*words(asked[: lately.start()] + asked[lately.end() :])}
        if not (left <= _OPEN and left & _ASKS):
            return None
        length = timedelta(days=n * _LENGTHS[lately["unit"].lower()] - 1)
        if lately["ahead"]:
            return Asked(today, today + length, past=False)
        return Asked(today - length, today, past=True)
    asked = _THE_WEEKEND.sub("this weekend", asked)
    asked = _FREE.sub(r"\1 on ", _LOOKS.sub(r"what do I have this \1", asked))
    asked = _DID_HAVE.sub(r"did \1 do", asked)  # "have" beside a date tells of what is to come
    past = _PAST.search(asked) is not None
    read = (absolute(text, now)[0] for text in (asked, f"there is {asked}"))
    asked = next((text for text in read if WRITTEN.search(text)), asked)
    if nth := _NTH.search(asked):
        step = -1 if past else 1
        day = nearest_named(nth[1], today - timedelta(days=step), step)
        asked = f"{asked[: nth.start()]}on {day_text(day or today)}{asked[nth.end() :]}"
    ahead = _AHEAD.search(asked) is not None
    rest = _AHEAD.sub("", asked)
    if WRITTEN.search(rest) is None and (long := SPAN.search(rest)) is not None:
        days = days_of_span(
            long, today, past=past or (not ahead and _SUM_UP.search(asked) is not None)
        )
        rest = rest[: long.start()] + rest[long.end() :]
    elif (found := WRITTEN.search(rest)) is not None:
        over = past or (not ahead and _SUM_UP.search(asked) is not None)
        days = next(days_of(found, today, past=over), None)
        rest = rest[: found.start()] + rest[found.end() :]
    elif (lately := _SUMMED_UP.search(rest)) is not None and _SUM_UP.search(rest):
        days, past = (today - timedelta(days=_LENGTHS[lately[1]] - 1), today), True
        rest = rest[: lately.start()]
    else:
        days = (today, date.max) if ahead else None
    left = {*words(rest)}
    if days is None or not (left <= _OPEN and left & _ASKS):
        return None
    if left <= _BARE and not (ahead or re.search(r"\bon\b", question, re.I)):
        return None  # "What is today?"
    first, last = days
    past = past or (first < today and not ahead and _SUM_UP.search(asked) is not None)
    if ahead and first < today <= last:  # the coming week, not what is left of this one
        first, last = today, today + (last - first)
    return Asked(first, last, past or last < today)


def asks_only_when(question: str) -> bool:
    """Whether a question for a time or a day names nothing whose time it may be.

    >>> asks_only_when("what time is it"), asks_only_when("what time is swimming")
    (True, False)
    """
    return subjects(question) <= _CLOCK_WORDS


def names_nobody(answer: str, question: str) -> bool:
    """Whether an answer is a day or an hour, and a question asks for somebody and no time.

    >>> names_nobody("monday", "who's on the roof?"), names_nobody("Milo", "who's on the roof?")
    (True, False)
    """
    asks_whom = _WHO.search(question) is not None and _HOW_LATE.search(question) is None
    bare = answer.strip(" .")  # "May" and "June" are names, too
    timed = bool(content_words(bare)) and bare.title() not in MONTHS
    return asks_whom and timed and says_only_when(bare)


# -- the day that a question is about ----------------------------------------------------------

_PARTS_OF = {
    "early": 0, "start of": 0, "beginning of": 0, "first week of": 0, "first half of": 0,
    "late": 2, "end of": 2, "last week of": 2, "second half of": 2,
}  # fmt: skip
"""Parts of a month or year; any other, as "mid", is the middle: 1."""
_ABOUT = re.compile(
    r"\b(?:(?:(?:on|in|during|back in|around|by|as of) (?:the )?|at the (?=\w+ (?:\w+ )?of ))"
    rf"(?:(?:{'|'.join(DAYS)}),? )?(?:(?P<part>{'|'.join(_PARTS_OF)}|mid|middle of)[ -])?"
    r"(?:(?:(?P<nth>\d{1,2})(?:st|nd|rd|th)? )?"
    rf"(?:of )?(?P<month>{A_MONTH})\b(?: (?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?!\w))?"
    r"(?:,?(?: of)? (?:(?P<year>\d{4}|['’]\d\d)|(?P<back>last year)))?|"
    r"(?P<whole>(?:19|20)\d\d))|"
    rf"(?:at|over|around|last|on|by) (?P<feast>{A_FEAST})"
    r"(?:,? (?:of |in )?(?P<its>\d{4}))?|"
    r"(?:last|in|during|over|(?:in|during|over) the) (?:last )?"
    rf"(?P<season>{'|'.join(SEASONS)})(?: (?:of )?(?P<of>\d{{4}}))?|"
    rf"(?P<step>last) (?:(?P<unit>week|month|year)|(?P<named>{'|'.join(MONTHS)}))|"
    rf"(?P<count>{COUNT}) (?P<ago>day|week|fortnight|month|year)s? ago)\b",
    re.I,
)
_YEARS = ("year", "whole", "of", "its")  # the groups of _ABOUT
_A_YEAR = re.compile(r"\b(?:(?P<step>this|last|next) year|(?P<year>(?:19|20)\d\d))\b", re.I)
_STEPS = {"last": -1, "this": 0, "next": 1}
_PAST_QUESTION = re.compile(
    r"\b(?:did|was|were|had|used to|wasn['’]t|weren['’]t|didn['’]t)\b", re.I
)


def asks_of_a_day(question: str) -> bool:
    """Whether a question asks how things were on a day, in a month or a year that it names."""
    question = spelled_days(question)
    return _ABOUT.search(question) is not None and _PAST_QUESTION.search(question) is not None


def asked_day(question: str, now: str) -> str | None:
    """The ISO day that a question about the past asks about: the middle of what it names.

    A month or season without a year is the last one. now: ISO-8601.

    >>> asked_day("Where did Ana live in March?", "2024-05-08T10:00:00+00:00")
    '2024-03-15'
    """
    found = _ABOUT.search(question := spelled_days(question))
    if found is None:
        return None
    today = datetime.fromisoformat(now).date()
    try:
        day = _amid(found, today)
    except (KeyError, OverflowError, ValueError):
        return None  # "ſpring" only looks like a season; "31 February", "900 years ago"
    over = any(found[year] for year in _YEARS) and day < today  # "Who lived there in 2020?"
    return min(day, today).isoformat() if over or _PAST_QUESTION.search(question) else None


def asked_year(question: str, now: str) -> int | None:
    """The one year that a question names; None if it names none or several. now: ISO-8601.

    >>> asked_year("When was the flu jab this year?", "2026-11-30T08:00:00+00:00")
    2026
    """
    this = datetime.fromisoformat(now).year
    years = {
        int(m["year"]) if m["year"] else this + _STEPS.get(m["step"].lower(), 0)
        for m in _A_YEAR.finditer(question)
    }
    return years.pop() if len(years) == 1 else None


def _amid(found: re.Match[str], today: date) -> date:
    part = _PARTS_OF.get((found["part"] or "").lower(), 1)
    if month := found["month"] or found["named"]:
        nth = int(found["nth"] or found["day"] or (5, 15, 25)[part])
        year = today.year - bool(found["back"])
        if found["year"]:
            year = int(found["year"].lstrip("'’"))
            year += 0 if year > 99 else 2000 if 2000 + year <= today.year else 1900
        day = date(year, month_number(month), nth)
        known = found["year"] or found["back"] or day.replace(day=1) <= today
        return day if known else day.replace(today.year - 1)
    if found["whole"]:
        return date(int(found["whole"]), (2, 7, 11)[part], 1)
    if season := found["season"]:
        month = SEASONS[season.lower()] % 12 + 1  # the middle one
        if found["of"]:  # the winter of 2021 ends in 2022
            return date(int(found["of"]) + (month == 1), month, 15)
        return nearest(lambda year: (date(year, month, 15),) * 2, today, -1)[0]
    if found["feast"]:
        day = feast_day(found["feast"], int(found["its"] or today.year))
        last = day if found["its"] or day <= today else None
        return last or feast_day(found["feast"], today.year - 1)
    if unit := (found["unit"] or "").lower():
        if unit == "year":
            return date(today.year - 1, 7, 1)
        day = earlier(today, 1, unit)
        return day.replace(day=15) if unit == "month" else day
    return earlier(today, count(found, "count"), found["ago"].lower())

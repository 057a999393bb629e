"""English: since when a fact holds, and which day a question is about.

Days are ISO days, counted from the day on which the text was said. Knows dates as `en_dates` writes
them, and the tense beside them; nothing else of a text.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import date, datetime
from functools import partial

from edgemem.language import en_calendar as calendar
from edgemem.language.en import NUMBER_WORDS
from edgemem.language.en_calendar import A_MONTH, DAYS, MONTHS, day_text, earlier, month_number
from edgemem.language.en_dates import COUNT, SPELLED_NTH, UNIT, count, spelled_nth
from edgemem.language.en_tense import COMING, direction, is_perfect
from edgemem.language.other_dates import days_in_english

__all__ = [
    "asked_day",
    "asked_year",
    "asks_of_a_day",
    "held_since",
    "in_asked_form",
    "right_weekdays",
    "spelled_days",
    "unfinished_day",
    "wrong_weekday",
]

# -- since when ------------------------------------------------------------------------------

_LASTING = re.compile(
    rf"\bfor (?:(?P<past>the (?:past|last)) |about |over |almost |nearly )?{COUNT} {UNIT}", re.I
)
_SINCE_DATE = re.compile(
    rf"\b(?:since|on|in|from) (?:the )?(?:week of |weekend of )?(?:(?:{'|'.join(DAYS)}) )?"
    rf"(?:(?P<nth>\d{{1,2}})(?:st|nd|rd|th)? (?:of )?)?(?:(?P<month>{A_MONTH}) ?)?"
    r"(?P<year>(?:19|20)\d\d)?(?![\w-])"
)
_CLAUSE_BREAK = re.compile(r"[,;]| (?:and|but|because|so|while) ")


def held_since(fact: str, target: str, told_at: str) -> str | None:
    """The ISO day since when a fact's clause about a target holds; None if it does not say.

    "has lived in Oslo for three years", "since 2019", "moved to Oslo in March". A month without a
    year is the last one, or the next for "is moving to Oslo in March". Without a perfect tense "for
    7 days" is a length, and says no beginning. told_at: ISO-8601.

    >>> held_since("Ana has lived in Oslo for two years.", "Oslo", "2024-05-08T10:00:00+00:00")
    '2022-05-08'
    """
    start = fact.find(target)
    if start < 0:
        return None
    end = start + len(target)
    break_ = _CLAUSE_BREAK.search(fact, end)
    stop = break_.start() if break_ else len(fact)
    told = datetime.fromisoformat(told_at).date()
    try:
        if lasting := _LASTING.search(fact, end, stop):
            if not lasting["past"] and not _has_lasted(fact, lasting):
                return None
            return earlier(told, count(lasting, 2), lasting[3].lower()).isoformat()
        for found in _SINCE_DATE.finditer(fact, end, stop):
            if found["month"] or found["year"]:
                return _date_of(found, told).isoformat()
    except (KeyError, OverflowError, ValueError):
        return None  # "ſix years" only looks like a number; "31 February"
    return None


def _has_lasted(fact: str, length: re.Match[str]) -> bool:
    return is_perfect(fact[: length.start()]) and direction(fact, *length.span()) != COMING


def _date_of(found: re.Match[str], told: date) -> date:
    if not found["month"]:
        return date(int(found["year"]), 1, 1)
    month, nth = month_number(found["month"]), int(found["nth"] or 1)
    year = int(found["year"] or told.year)
    day = date(year, month, nth)
    if found["year"]:
        return day
    since = found[0].lower().startswith("since")
    if not since and direction(found.string, *found.span()) == COMING:
        over = (month, int(found["nth"] or 31)) < (told.month, told.day)
        return date(year + over, month, nth)
    return day if day <= told else date(year - 1, month, nth)


# -- the day that a question is about ----------------------------------------------------------

_IN_NUMBERS = re.compile(
    r"(?<![\w./-])(?:(?P<year>\d{4})([-/.])(?P<month>\d\d?)\2(?P<nth>\d\d?)"
    r"|(?P<one>\d\d?)(?P<mark>[-/.])(?P<other>\d\d?)(?P=mark)(?P<of>\d{4}))(?![\w/-]|\.\d)"
)
_IN_WORDS = re.compile(
    rf"\b(?P<month>(?:{A_MONTH}) )?(?:the )?(?P<nth>{SPELLED_NTH})\b"
    rf"(?P<of>(?: of)?(?= (?:{A_MONTH})\b))?",
    re.I,
)
_FORM = re.compile(r"\b(?:YYYY([-/.])MM\1DD|(?:DD([-/.])MM\2|MM([-/.])DD\3)YYYY)\b", re.I)
_DAY_TEXT = re.compile(
    rf"\b(?:(?:{'|'.join(DAYS)}) )?(?P<nth>\d\d?) (?P<month>{'|'.join(MONTHS)}) (?P<year>\d{{4}})\b"
)
_WEEKDAY_TEXT = re.compile(
    rf"\b(?P<day>{'|'.join(DAYS)}),? (?P<nth>\d\d?)(?:st|nd|rd|th)? (?P<month>{'|'.join(MONTHS)})"
    r",? (?P<year>\d{4})\b",
    re.I,
)
_BEGUN = "|".join({name[:n] for name in DAYS for n in range(1, len(name) + 1)})
_UNFINISHED = re.compile(
    rf"\b(?:{_BEGUN}|(?:{'|'.join(DAYS)}),? ?(?:\d\d?\w{{0,2}}(?: \w*(?:,? ?\d{{0,4}})?)?)?)\Z",
    re.I,
)
_IN_DIGITS = re.compile(r"\barabic numerals?\b|\bin digits\b", re.I)
_TENS = {word: 10 * n for n, word in enumerate(NUMBER_WORDS[19:27], 2)}
_VALUES = {word: n for n, word in enumerate(NUMBER_WORDS[:19], 1)} | _TENS
_SPELLED = re.compile(
    rf"\b(?:(?:{'|'.join(_TENS)})(?:[- ](?:{'|'.join(NUMBER_WORDS[:9])}))?|{'|'.join(_VALUES)})\b",
    re.I,
)
_PARTS = {
    "early": 0, "start of": 0, "beginning of": 0, "first week of": 0, "first half of": 0,
    "late": 2, "end of": 2, "last week of": 2, "second half of": 2,
}  # fmt: skip
"""Parts of a month or year; any other, as "mid", is the middle: 1."""
_ASKED = re.compile(
    r"\b(?:(?:(?:on|in|during|back in|around|by|as of) (?:the )?|at the (?=\w+ (?:\w+ )?of ))"
    rf"(?:(?:{'|'.join(DAYS)}),? )?(?:(?P<part>{'|'.join(_PARTS)}|mid|middle of)[ -])?"
    r"(?:(?:(?P<nth>\d{1,2})(?:st|nd|rd|th)? )?"
    rf"(?:of )?(?P<month>{A_MONTH})\b(?: (?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?!\w))?"
    r"(?:,?(?: of)? (?:(?P<year>\d{4}|['’]\d\d)|(?P<back>last year)))?|"
    r"(?P<whole>(?:19|20)\d\d))|"
    rf"(?:at|over|around|last|on|by) (?P<feast>{calendar.A_FEAST})"
    r"(?:,? (?:of |in )?(?P<its>\d{4}))?|"
    r"(?:last|in|during|over|(?:in|during|over) the) (?:last )?"
    rf"(?P<season>{'|'.join(calendar.SEASONS)})(?: (?:of )?(?P<of>\d{{4}}))?|"
    rf"(?P<step>last) (?:(?P<unit>week|month|year)|(?P<named>{'|'.join(MONTHS)}))|"
    rf"(?P<count>{COUNT}) (?P<ago>day|week|fortnight|month|year)s? ago)\b",
    re.I,
)
_YEARS = ("year", "whole", "of", "its")  # the groups of _ASKED
_A_YEAR = re.compile(r"\b(?:(?P<step>this|last|next) year|(?P<year>(?:19|20)\d\d))\b", re.I)
_STEPS = {"last": -1, "this": 0, "next": 1}
_PAST_QUESTION = re.compile(
    r"\b(?:did|was|were|had|used to|wasn['’]t|weren['’]t|didn['’]t)\b", re.I
)


def spelled_days(text: str, *, month_first: bool | None = None) -> str:
    """A text with its days and months written in one way.

    month_first: how a date of numbers is read either of which may be the month; None leaves it as
    it is.

    >>> spelled_days("on 2024-06-17, 3/4/2024 or the second of may")
    'on 17 June 2024, 3/4/2024 or 2 may'
    """
    text = _IN_NUMBERS.sub(partial(_spelled, month_first=month_first), text)
    return _IN_WORDS.sub(_counted_nth, days_in_english(text, month_first=month_first))


def _counted_nth(found: re.Match[str]) -> str:
    if found["month"] is None and found["of"] is None:
        return found[0]  # "the second floor"
    try:
        return f"{found['month'] or ''}{spelled_nth(found['nth'])}"
    except (KeyError, ValueError):
        return found[0]  # "ſecond" only looks like a number


def _spelled(found: re.Match[str], *, month_first: bool | None) -> str:
    if found["year"]:
        year, month, nth = map(int, found.group("year", "month", "nth"))
    else:
        nth, month, year = map(int, found.group("one", "other", "of"))
        either = found["mark"] != "." and nth <= 12 and month <= 12
        if either and nth != month and month_first is None:
            return found[0]
        if month > 12 or (either and month_first):
            nth, month = month, nth
    try:
        return day_text(date(year, month, nth))
    except ValueError:
        return found[0]  # no day of the calendar


def in_asked_form(answer: str, question: str) -> str:
    """An answer with its days and numbers in the form that a question asks for, such as YYYY-MM-DD
    or digits; "" if it only says that form.

    >>> in_asked_form("on 7 May 2023", "When was it? (DD/MM/YYYY)")
    'on 07/05/2023'
    >>> in_asked_form("two cats", "How many were there? Use an Arabic numeral.")
    '2 cats'
    """
    if _IN_DIGITS.search(question):
        answer = _SPELLED.sub(_in_digits, answer)
    form = _FORM.search(question)
    if form is None:
        return answer
    if answer.strip(" .") == form[0]:
        return ""

    def formed(found: re.Match[str]) -> str:
        month = f"{month_number(found['month']):02}"
        parts = {"y": found["year"], "m": month, "d": found["nth"].zfill(2)}
        return re.sub("[a-z]+", lambda part: parts[part[0][0].lower()], form[0], flags=re.I)

    return _DAY_TEXT.sub(formed, answer)


def wrong_weekday(text: str) -> bool:
    """Whether a text has a date with a wrong weekday, or a date that does not exist.

    >>> wrong_weekday("on Friday 30 November 2026"), wrong_weekday("on Monday 30 November 2026")
    (True, False)
    """
    days = [(found["day"], _day_of(found)) for found in _WEEKDAY_TEXT.finditer(text)]
    return any(day is None or DAYS[day.weekday()] != name.capitalize() for name, day in days)


def right_weekdays(text: str) -> str:
    """A text whose dates have their right weekdays; those of before 1900, by another calendar
    perhaps, are left.

    >>> right_weekdays("It is on Saturday, 15 December 2026.")
    'It is on Tuesday, 15 December 2026.'
    """

    def right(found: re.Match[str]) -> str:
        day = _day_of(found)
        if day is None or day.year < 1900:
            return found[0]
        return f"{DAYS[day.weekday()]}{found[0][len(found['day']) :]}"

    return _WEEKDAY_TEXT.sub(right, text)


def unfinished_day(text: str) -> int:
    """Where a weekday begins whose date may still follow the text; its length if none does.

    >>> unfinished_day("It is on Sat"), unfinished_day("It is on Saturday at")
    (9, 20)
    """
    found = _UNFINISHED.search(text)
    return found.start() if found else len(text)


def _day_of(found: re.Match[str]) -> date | None:
    """The day of a match of _WEEKDAY_TEXT; None if no calendar has it."""
    with suppress(KeyError, ValueError):
        return date(int(found["year"]), month_number(found["month"]), int(found["nth"]))
    return None


def _in_digits(found: re.Match[str]) -> str:
    try:
        return str(sum(_VALUES[word] for word in re.split("[- ]", found[0].lower())))
    except KeyError:
        return found[0]  # "ſix" only looks like a number


def asks_of_a_day(question: str) -> bool:
    """Whether a question asks how things were on a day, in a month or a year that it names."""
    question = spelled_days(question)
    return _ASKED.search(question) is not None and _PAST_QUESTION.search(question) is not None


def asked_day(question: str, now: str) -> str | None:
    """The ISO day that a question about the past asks about: the middle of what it names.

    A month or season without a year is the last one. now: ISO-8601.

    >>> asked_day("Where did Ana live in March?", "2024-05-08T10:00:00+00:00")
    '2024-03-15'
    """
    found = _ASKED.search(question := spelled_days(question))
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
    part = _PARTS.get((found["part"] or "").lower(), 1)
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
        month = calendar.SEASONS[season.lower()] % 12 + 1  # the middle one
        if found["of"]:  # the winter of 2021 ends in 2022
            return date(int(found["of"]) + (month == 1), month, 15)
        return calendar.nearest(lambda year: (date(year, month, 15),) * 2, today, -1)[0]
    if found["feast"]:
        day = calendar.feast_day(found["feast"], int(found["its"] or today.year))
        last = day if found["its"] or day <= today else None
        return last or calendar.feast_day(found["feast"], today.year - 1)
    if unit := (found["unit"] or "").lower():
        if unit == "year":
            return date(today.year - 1, 7, 1)
        day = earlier(today, 1, unit)
        return day.replace(day=15) if unit == "month" else day
    return earlier(today, count(found, "count"), found["ago"].lower())

"""English: the names of months, days and feasts, how a day is written, and in an answer, too.

Knows the calendar; nothing of what is said on a day, nor when (`en_dates`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, timedelta

from edgemem.language.en import A_NUMBER, number

__all__ = ["DAY_TEXT", "MONTHS", "TIME_WORDS", "UNCUT", "day_text", "in_asked_form", "on_day"]
__all__ += ["right_weekdays", "unfinished_day", "wrong_weekday"]

MONTHS = (
    "January February March April May June July August September October November December".split()
)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
WEEKDAYS = {name[:3].lower(): number for number, name in enumerate(DAYS)}
LONG = {"day": timedelta(1), "week": timedelta(7), "fortnight": timedelta(14)}
Days = tuple[date, date]
"""The first and the last day."""
_FEASTS = {
    "christmas eve": (12, 24), "christmas day": (12, 25), "christmas": (12, 25),
    "boxing day": (12, 26), "st stephen's day": (12, 26), "new year's eve": (12, 31),
    "new year's day": (1, 1), "new year": (1, 1), "valentine's day": (2, 14),
    "st patrick's day": (3, 17), "halloween": (10, 31), "good friday": (0, -2),
    "easter saturday": (0, -1), "easter sunday": (0, 0), "easter monday": (0, 1), "easter": (0, 0),
}  # fmt: skip
"""Month and day; without a month, days from Easter Sunday."""
LONG_FEASTS = {"christmas": (-1, 1), "easter": (-2, 1), "new year": (-1, 0)}
"""The first and the last day of longer ones, counted from the day above."""
A_FEAST = (
    "|".join(_FEASTS)
    .replace("'", "['’]?")
    .replace("|new year|", r"|(?<!in the )(?<!for the )new year|")
)
A_NAMED_DAY = rf"(?:{'|'.join(DAYS)}|{A_FEAST})"
"""Regular expressions: a feast, and what may stand before the number of a day."""
SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}  # the first month
_MONTH_NUMBERS = {name[:3].lower(): number for number, name in enumerate(MONTHS, 1)}

A_MONTH = (
    "Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|"
    "Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?"
)
A_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth".split()
)
SPELLED_NTH = (
    rf"(?:(?:twenty|thirty)[- ])?(?:{'|'.join(ORDINALS[:9])})|{'|'.join(ORDINALS[9:])}|thirtieth"
)
"""A regular expression: a day of the month in words, as dictation writes it."""
_MEASURE = (
    r"(?:%|°[CF]?|percent|[kmcµn]?m|[kmµ]?g|km/h|mph|[kMGT]?B|[kMG]?Hz|[kM]?W|kWh|[mkc]?l|lbs?|oz|ft|"
    r"(?:mile|kilomet(?:er|re)|met(?:er|re)|inche?|foot|feet|pound|kilo(?:gram)?|gram|ounce|"
    r"lit(?:er|re)|gallon|cup|degree|dollar|euro|cent|second|minute|hour|day|night|week|weekend|"
    r"month|year|decade|time|hundred|thousand|million|billion)s?|[ap]\.?m\.?|hrs?|mins?|secs?|"
    r"(?:st|nd|rd|th))"
)
A_YEAR = (
    r"\d{4}\b(?:(?<=1\d\d\d)|(?<=2[01]\d\d)|(?= *(?:$|[.,;:!?)])))"
    rf"(?! ?(?:{_MEASURE}|words|pages|people|guests|members|steps|calories|kcal)(?!\w))"
)
"""A regular expression: a year beside a month, not the number of "1200 words" or "5000 bricks"."""
UNCUT = (
    re.compile(  # dates with a month's name; a month alone is a word, or "may"
        rf"(?=[\dJFMASOND])(?<!\w)(?:{A_DAY}(?: of)? (?:{A_MONTH})\b\.?(?:,? \d{{4}}\b)?"
        rf"|(?:{A_MONTH})\b\.? {A_DAY}\b(?:,? \d{{4}}\b)?|(?:{A_MONTH})\b\.?,? \d{{4}}\b)"
    ),
    re.compile(rf"\d(?<![\w.,:/]\d)[\d.,:/]*(?:[ -]{_MEASURE})+(?!\w)"),
)
"""What may not be cut apart: dates, and numbers with their units."""
TIME_WORDS = (
    "yesterday today tonight tomorrow last next ago week weekend month year since recently just "
    f"{' '.join(DAYS).lower()}"
).split()
"""Words by which a text says when something was or will be."""
DAY_TEXT = rf"\d{{1,2}} (?:{'|'.join(MONTHS)}) \d{{1,4}}"
"""A regular expression: a day as `day_text` writes it."""


def day_text(day: date | str, *, named: bool = False) -> str:
    """A day as people write it, the same on every platform: 7 May 2023.

    day: a date or an ISO-8601 time. named: Sunday, 7 May 2023. Raises ValueError on other strings.
    """
    day = datetime.fromisoformat(day).date() if isinstance(day, str) else day
    return f"{f'{DAYS[day.weekday()]}, ' * named}{day.day} {MONTHS[day.month - 1]} {day.year}"


def on_day(when: str | None) -> str:
    """The prefix of what was said on a day, as `HEAD` reads it: "On 7 May 2023, "; "" if None."""
    return f"On {day_text(when)}, " if when else ""


def month_number(name: str) -> int:
    """January is 1, and so is jan. Raises KeyError on what only looks like a month: "Auguſt"."""
    return _MONTH_NUMBERS[name[:3].lower()]


def spelled_nth(words: str) -> int:
    """The number of a day in words. Raises KeyError or ValueError on what only looks like one.

    >>> spelled_nth("twenty-first")
    21
    """
    *tens, unit = re.split("[- ]", words.lower())
    if unit == "thirtieth":
        return 30
    return ORDINALS.index(unit) + 1 + sum({"twenty": 20, "thirty": 30}[word] for word in tens)


def feast_day(name: str, year: int) -> date:
    """The day of a feast in a year. Source: Oudin 1940, for Easter."""
    name = name.lower().replace("’", "'")
    month, nth = _FEASTS[name if name in _FEASTS else name.replace("s ", "'s ")]
    if month:
        return date(year, month, nth)
    c, n = year // 100, year % 19
    i = (c - c // 4 - (c - (c - 17) // 25) // 3 + 19 * n + 15) % 30
    i -= i // 28 * (1 - 29 // (i + 1) * ((21 - n) // 11))
    j = (year + year // 4 + i + 2 - c + c // 4) % 7
    return date(year, 3, 28) + timedelta(days=i - j + nth)


def nearest(of_year: Callable[[int], Days], today: date, step: int) -> Days:
    """Such days of a year: the last that have begun (step < 0), or the next that are not over."""
    days = (of_year(today.year + n * step) for n in (-1, 0, 1))
    return next(d for d in days if (d[1] >= today if step > 0 else d[0] <= today))


def is_near(day: date, today: date, step: int) -> bool:
    """Whether a feast is of the last month (step < 0), or not the next after one that has just
    been."""
    return -31 <= (day - today).days < (0 if step < 0 else 320)


def add_months(day: date, n: int) -> date:
    """The first day of the month that is `n` months away."""
    years, month = divmod(day.year * 12 + day.month - 1 + n, 12)
    return date(years, month + 1, 1)


def earlier(day: date, n: int, unit: str) -> date:
    """The same day `n` units earlier; the last of its month where that has no such day."""
    if unit in LONG:
        return day - n * LONG[unit]
    first = add_months(day, -n * (12 if unit == "year" else 1))
    return first.replace(day=min(day.day, (add_months(first, 1) - first).days))


def shifted(day: date, n: int, unit: str) -> tuple[str, date]:
    """The date `n` units away, as text and as its first day. Only a number of days is exact."""
    if unit == "day":
        to = day + timedelta(days=n)
        return f"on {day_text(to)}", to
    if unit == "fortnight":
        n, unit = 2 * n, "week"
    if unit == "weekend":
        to = day - timedelta(days=day.weekday()) + timedelta(days=5, weeks=n)
        return f"on the weekend of {day_text(to)}", to
    if unit == "week":
        to = day - timedelta(days=day.weekday()) + timedelta(weeks=n)
        return f"in the week of {day_text(to)}", to
    if unit == "month":
        to = add_months(day, n)
        return f"in {MONTHS[to.month - 1]} {to.year}", to
    to = date(day.year + n, 1, 1)
    return f"in {to.year}", to


# -- the days of an answer -----------------------------------------------------------------------

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
_SPELLED = re.compile(rf"\b{A_NUMBER}", re.I)


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
        return str(number(found[0]))
    except KeyError:
        return found[0]  # "ſix" only looks like a number

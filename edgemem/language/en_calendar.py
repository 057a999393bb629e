"""English: the names of months, days and feasts, and how a day is written.

Knows the calendar; nothing of what is said on a day, nor when (`en_dates`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta

__all__ = ["DAY_TEXT", "MONTHS", "TIME_WORDS", "UNCUT", "day_text", "on_day"]

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

"""Dates as English does not write them: numbers with the day first, German and Spanish names.

"3.12." and "14/12" are days beside the right words; alone they are a price, a version, a share. A
number either of which may be the month has two readings. Only days are read: the rest of a text
stays in its language. Knows the calendar's names and forms; neither tenses nor weeks.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import date

from edgemem.language.en_calendar import A_MONTH, DAYS, MONTHS

__all__ = ["NAMED_OR_NUMBERED", "asked_in_english", "days_in_english", "forms_of"]


def _by_name(names: str, english: list[str]) -> dict[str, str]:
    of_each = zip(names.split(","), english, strict=True)
    return {name: day for names, day in of_each for name in names.split()}


_WEEKDAYS = _by_name(
    "montag lunes, dienstag martes, mittwoch miércoles miercoles, donnerstag jueves, "
    "freitag viernes, samstag sonnabend sábado sabado, sonntag domingo",
    DAYS,
)
_MONTHS = _by_name(
    "januar jänner enero, februar febrero, märz maerz marzo, abril, mai mayo, juni junio, "
    "juli julio, agosto, septiembre setiembre, oktober octubre, noviembre, dezember diciembre",
    MONTHS,
)
_NEAR = {
    "pasado mañana": "the day after tomorrow", "anteayer": "the day before yesterday",
    "übermorgen": "the day after tomorrow", "vorgestern": "the day before yesterday",
    "heute": "today", "hoy": "today", "morgen": "tomorrow", "mañana": "tomorrow",
    "gestern": "yesterday", "ayer": "yesterday",
}  # fmt: skip
_WEEKDAY = re.compile(
    r"\b(?:(?:(?P<each>jeden|every|each|cada|todos los|los)|(?P<last>letzten|last|el pasado)|"
    r"(?P<next>nächsten|next)|am|on|an diesem|diesen|kommenden|this|el próximo|este|el) )?"
    rf"(?P<day>{'|'.join(_WEEKDAYS)})(?P<often>s)?(?P<after> que viene| próximo| pasado)?\b",
    re.I,
)
_ENGLISH_MONTH = rf"(?:{A_MONTH})\b(?:\.(?= \d{{4}}\b))?(?! (?:I|we|you|they|he|she|the)\b)"
# "mayo" beside a bare number is on a sandwich, and "May" beside a full stop may ask: "5. May I?"
_MONTH = re.compile(
    r"(?<![\w.,:/])(?P<nth>\d\d?)(?:\. ?| de | (?!mayo|mai tai))"
    rf"(?P<month>(?:{'|'.join(_MONTHS)})\b|{_ENGLISH_MONTH})(?: del? (?=\d{{4}}\b))?",
    re.I,
)
_NEAR_DAY = re.compile(  # not "Guten Morgen", "am Morgen", "por la mañana"
    r"(?<!\bla )(?<!\besta )(?<!\buna )(?<!\bguten )(?<!\bam )(?<!\bjeden )(?<!\bdiesen )"
    rf"\b(?:{'|'.join(_NEAR)})\b"
    rf"|(?:\A|(?<=[.!?] ))(?:{'|'.join(name.capitalize() for name in _NEAR)})(?= [\da-zäöüß])"
)
_OVER = re.compile(
    r"\b(?:war|waren|hatten?|wurden?|gab|ging|kam|fue|fui|fuimos|estuv\w+|tuv[eio]\w*|había|era)\b",
    re.I,
)
_NUMBERED = re.compile(
    r"(?<![\w./:,€$£#§])(?P<one>\d\d?)(?P<mark>[./-])(?P<other>\d\d?)(?![\w])"
    r"(?:(?P=mark)(?P<year>\d{4}|\d\d)(?!\d)|(?P<dot>\.(?<!\d[/-]\d\.)(?<!\d[/-]\d\d\.)))?"
    r"(?![\w%€$£/°]|[.,:]\d| (?:[mk]?g|m[lm]|[ck]m|GHz|[%€$£]|of|cups?|inch|percent)\b)"
)
_LEAD = re.compile(
    r"(?:(?P<foreign>(?<!\bi )\bam|\b(?:vom|bis|zum|ab|seit|el|al|del|den|desde|hasta))"
    r"|\b(?P<clock>until|till|after|before|since)|\b(?P<by>by|due)|\b(?P<to>to|from)|\b(?P<on>on)"
    r"|\b(?:mon|tue|tues|wed|thu|thur|thurs|fri|sat|sun|"
    rf"{'|'.join((*DAYS, *_WEEKDAYS))}),?)(?: (?:the|zum|den|el))? \Z",
    re.I,
)
_JOINS = re.compile(r" ?(?:to|until|till|and|or|bis|und|oder|al|a|y|o|&|,|-|–) ?")
_ENDS = re.compile(
    r"\s{0,9}(?:\Z|[,;:!?()\n–-])|\.(?!\d)| (?:(?:at|um|a las?|around|about|ca\.) ?\d|"
    r"(?:at|to|until|till|bis|al|and|und|y|or|oder|with|mit|con|in|from|von|for|zwischen|between|"
    r"is|we|i|entre|de)\b)"
)
_AT_A_TIME = re.compile(
    r",? (?:(?:at|um|a las?) \d|(?:(?:von|from|gegen|ab) )?\d\d?(?:[:.]\d\d|h| ?[Uu]hr)\b"
    r"|(?<=\. )(?:to|until|till|bis) \d\d?\.\d\d?\.)"
)
_STOPS = re.compile(r"\s{0,9}(?:\Z|[A-Z])")
_NO_DATE = re.compile(
    r"(?:section|chapter|clause|article|part|page|figure|version|room|see|no|nr|costs?|paid)\.? \Z",
    re.I,
)
NAMED_OR_NUMBERED = re.compile(
    rf"\d\d?(?:[./-]\d\d?|\. ?[A-ZÄa-zä])|\b(?:{'|'.join((*_WEEKDAYS, *_MONTHS, *_NEAR))})s?\b",
    re.I,
)
"""What every date has that is written in one of these ways; most texts have none."""
_ASKS_WHAT = re.compile(
    r"(?:und )?¿?(?:was (?:habe?|steht|ist|mache)(?: ich| wir)?|qué (?:tengo|tenemos|hay))"
    r"(?P<when> .*?)(?: an| vor| los| geplant)?[ ?.!]*",
    re.I,
)
_NEARBY = 24  # characters before a number that say what it is


def asked_in_english(question: str) -> str:
    """A German or Spanish question for whatever there is on some days, in English; others as they
    are.

    >>> asked_in_english("Was steht am Donnerstag an?")
    'what do i have am Donnerstag'
    """
    asked = _ASKS_WHAT.fullmatch(question)
    return f"what do i have{asked['when']}" if asked else question


def days_in_english(text: str, *, month_first: bool | None = None) -> str:
    """A text with such days as English writes them.

    month_first: how a number is read either of which may be the month; None leaves it as it is.

    >>> days_in_english("Zahnarzt am Donnerstag, 3.12. um 8:15"), days_in_english("on 3/12")
    ('Zahnarzt on Thursday, 3 December um 8:15', 'on 3/12')
    """
    if NAMED_OR_NUMBERED.search(text) is None:
        return text
    text = _MONTH.sub(_in_month, _numbered(text, month_first))
    if _OVER.search(text) is None:  # whether "am Montag" is past, no tense here tells
        text = _WEEKDAY.sub(_on_weekday, text)
    return _NEAR_DAY.sub(lambda found: _NEAR[found[0].lower()], text)


def _on_weekday(found: re.Match[str]) -> str:
    day = _WEEKDAYS.get(found["day"].lower())
    after = (found["after"] or "").strip().lower()
    if day is None:
        return found[0]  # "Dienſtag" only looks like one
    if found["each"] or (found["often"] and not day.islower()):
        return f"every {day}"
    if found["last"] or after == "pasado":
        return f"last {day}"
    if found["next"]:
        return f"next {day}"
    return day if found[0].lower() == found["day"].lower() else f"on {day}"


def _in_month(found: re.Match[str]) -> str:
    month = found["month"].strip(".")
    return f"{found['nth']} {_MONTHS.get(month.lower(), month)}" + " " * found[0].endswith(" ")


def _numbered(text: str, month_first: bool | None) -> str:
    parts, at, last = [], 0, -1
    for found in _NUMBERED.finditer(text):
        joined = last >= 0 and _JOINS.fullmatch(text, last, found.start()) is not None
        last = -1
        if not (joined or _is_date(found)):
            continue
        if (day := _day(found, month_first)) is not None:
            stop = found["dot"] and _STOPS.match(text, found.end())
            parts += [text[at : found.start()], day, "." if stop else ""]
            at = last = found.end()
    return "".join([*parts, text[at:]])


def _is_date(found: re.Match[str]) -> bool:
    """Whether the words around two or three numbers say that they are a day."""
    text, (start, end) = found.string, found.span()
    before = text[max(0, start - _NEARBY) : start]
    lead, dots = _LEAD.search(before), found["mark"] == "."
    ends = _ENDS.match(text, end) is not None
    if found["mark"] == "-":
        return found["year"] is not None and lead is not None
    if not dots:
        if found["year"]:
            return lead is not None or max(int(found["one"]), int(found["other"])) > 12
        surely = 12 < max(int(found["one"]), int(found["other"])) < 32
        always = found[0] == "24/7" and not (lead and lead["foreign"])
        return lead is not None and (surely or ends) and not always
    if found["year"]:
        return lead is not None and _NO_DATE.search(before) is None
    at_a_time = _AT_A_TIME.match(text, end) is not None
    if lead is None:
        return bool(found["dot"]) and at_a_time and _NO_DATE.search(before) is None
    if at_a_time or (found["dot"] and not lead["to"] and text[end : end + 2].strip().islower()):
        return True
    if lead["to"]:
        return False  # "from 3.11 to 3.12.", "down from 8.4."
    if lead["clock"]:  # "until 8.30", and perhaps "until 8.10."
        return bool(found["dot"]) and not found["other"].endswith(("0", "5"))
    if found["dot"] or lead["foreign"] or "day" in lead[0].lower():
        return ends
    surely = len(found["other"]) == 2 or text[end : end + 1] == "?"  # "congratulations on 16.5"
    return ends and surely and lead["on"] is not None


def _day(found: re.Match[str], month_first: bool | None) -> str | None:
    """The day as English writes it; None if it is none, or may be one of two."""
    nth, month = int(found["one"]), int(found["other"])
    if found["mark"] != ".":
        if month > 12:
            nth, month = month, nth
        elif nth <= 12 and nth != month:
            if month_first is None:
                return None
            nth, month = (month, nth) if month_first else (nth, month)
    with suppress(ValueError):
        year = int(found["year"] or 2000)
        day = date(year + 2000 * (year < 100), month, nth)
        return f"{nth} {MONTHS[month - 1]}" + (f" {day.year}" if found["year"] else "")
    return None


def forms_of(first: date, last: date) -> str:
    """A pattern of texts that name a month from the first to the last day in any of the languages,
    or, for less than a week, a weekday that comes again and again. A text may name another day of
    that month."""
    n = 12 * (last.year - first.year) + last.month - first.month + 1
    months = [(first.month + i - 1) % 12 for i in range(min(n, 12))]
    names = [A_MONTH.split("|")[month] for month in months]
    names += [name for name, of in _MONTHS.items() if MONTHS.index(of) in months]
    long = [MONTHS[month].lower() for month in months if len(MONTHS[month]) > 5]
    names += [rf"{m[:2]}\w{{{len(m) - 4},{len(m) - 2}}}{m[-1]}" for m in long]  # "febuary"
    forms = [rf"\b(?:{'|'.join(names)})\b"]
    forms += [rf"[./-]0?{month + 1}\b|\b0?{month + 1}[./-]\d" for month in months]
    if (last - first).days < 7:
        weekdays = "|".join((*DAYS, *_WEEKDAYS))
        forms.append(rf"\b(?:every|each|jeden|cada|los)\b|\b(?:{weekdays})s\b")
    return "|".join(forms)

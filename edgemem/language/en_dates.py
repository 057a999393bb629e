"""English: relative dates, resolved by rule against the time at which they were said.

"yesterday", said on 8 May 2023, is 7 May 2023, and "I left on Saturday" is 6 May: small models get
this wrong, so it is settled when a memory is written. The verb beside a weekday, or beside a day
without its year, tells whether it is past or coming. Where it does not tell, or the day may be one
of many ("on Saturdays", "the Saturday job"), the text is left as it is. Days are counted from the
day on which the text was said, in the time zone of the given time. Knows dates and the tense beside
them (`en_tense`); nothing else of a text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import cache, partial
from string import capwords

from edgemem.language import en_calendar as calendar
from edgemem.language import en_tense as tense
from edgemem.language.en import NUMBER_WORDS
from edgemem.language.en_calendar import (
    A_DAY,
    A_MONTH,
    A_YEAR,
    DAYS,
    MONTHS,
    ORDINALS,
    SPELLED_NTH,
    add_months,
    day_text,
    earlier,
    month_number,
    shifted,
    spelled_nth,
)
from edgemem.language.en_plain import plain_places

__all__ = ["Moment", "absolute", "moments", "phrase", "written"]

_NUMBERS = {word: n for n, word in enumerate(NUMBER_WORDS[:10], 1)}
_NUMBERS |= {"a": 1, "an": 1, "couple": 2, "few": 3}


@dataclass(frozen=True, slots=True)
class Moment:
    """A relative date in a text: where it is, `text` to put there, and the day it begins on."""

    start: int
    end: int
    text: str
    begins: date


# -- relative dates --------------------------------------------------------------------------

# Not the end of another number (1.5, 2-3, twenty-two, two or three).
_ALONE = r"(?<![\w.,'’-])(?<!\bor )(?<!\bto )(?<!\band )(?<!\bhalf )"
# Not "my last year at school", nor "the next week", which is counted from another day.
_NOT_MINE = (
    "".join(rf"(?<!\b{word} )" for word in "the my your his its our their".split()) + r"(?<!['’]s )"
)
COUNT = rf"(a couple of|a few|an?|{'|'.join(NUMBER_WORDS[:10])}|\d{{1,3}})"
UNIT = r"(day|week|fortnight|month|year)s?"
_WEEKDAY = rf"(?P<day>{'|'.join(DAYS)})"
_SHORT_DAY = "mon|tues?|wed|thur?s?|fri|sat|sun"
_PART = r"(?: (?P<part>morning|afternoon|evening|night))?"
# "thursday, thursday the 22nd": said twice, it is one day.
_SAID_TWICE = rf"{_WEEKDAY},? (?:(?:on )?(?P=day),? )?"
_MONTH = rf"(?P<month>{A_MONTH})"
_SUFFIX = "(?:st|nd|rd|th)"
_NTH = rf"(?:(?P<nth>\d{{1,2}}){_SUFFIX}|(?P<spelled>{SPELLED_NTH}))"
_NUMBER = rf"(?:(?P<nth>\d{{1,2}}){_SUFFIX}?|(?P<spelled>{SPELLED_NTH}))"
_SPAN = rf"(?P<from>\d{{1,2}}){_SUFFIX}?(?: ?[-–—] ?| to (?:the )?)(?P<nth>\d{{1,2}}){_SUFFIX}?"
# Not "on Sundays", "Friday's child", "Friday-night".
_WHOLE = r"(?![\w-]|['’]\w)"
_NAMED_MONTH = re.compile(rf"\b(?:{'|'.join(MONTHS)})\b")  # "may" and "march" are verbs
# Not "8 June 2021" nor "June 8, 2021"; not "the 8th of June last year".
_NO_YEAR = (
    rf"{_WHOLE}(?!,? (?:(?:of |in )?(?:\d{{1,3}}(?!\d)|{A_YEAR})(?![:\w])(?! ?[ap]\.?m)"
    r"|last\b|next\b|this\b)"
    r"|[.:/]\d| ?['’]\d)"
)
_NO_DAY_BEFORE = r"(?:(?<=[:.]\d\d )|(?<!\d ))" + "".join(
    rf"(?<!\d{nth} )" for nth in ("st", "nd", "rd", "th")
)
_CLOCK = r"\d\d?(?:[:.]\d\d(?!\d)| ?[ap]\.?m\b)"
_AT_A_TIME = re.compile(rf" (?:at \d|{_CLOCK})", re.I)
_NOT_EACH_WEEK = re.compile(rf"{_AT_A_TIME.pattern}| now\b|,? not\b", re.I)
# Before these a day's name is no adjective: not "saturday job", "the 8th floor".
NO_NOUN = (
    rf"{_WHOLE}(?=\s*(?:$|[.,!?;)…\n]|[-–—] )| {_CLOCK}|"
    r" (?:at|in|with|for|because|cause|cos|bc|and|n|but|so|if|when|then|the(?! \d)|i|i['’]\w+|we|"
    r"he|she|they|you|it|my|our|his|her|to|from|until|till|around|about|by|after|before|too|as|via|"
    r"instead|again|noon|where|who|which|now|not)\b)"
)
# Not "on Friday week", "on Sunday league days", "on Monday in two weeks", "on Friday, 8 March".
_NO_NAME = (
    rf"{_WHOLE}(?!,? (?:the )?(?!{_CLOCK})\d| ?[-–—/&] ?\w|"
    r",? (?:week|league|school|club|roast|market|mass|lunch|dinner|brunch|team|class|service|paper|"
    r"nights?|mornings|afternoons|evenings|in (?:the week|a|an|one|two|three|\d+)|of|or so)\b)"
)
_PREPOSITIONS = frozenset(
    "on in at since until till til from by for of before after about around to between".split()
)
_AFTER_PREPOSITION = "".join(
    rf"|(?<=\b{word} )" for word in "since until till by before from after to".split()
)
# "It's the 17th now, not the 12th": no day after "not", nor after "was", which may have been moved.
_AFTER_BEING = "|".join(rf"(?<=\b{word} )" for word in ("is", "['’]s", "for", "due"))
# After these a weekday without "on" is a name, one of many, or what somebody takes or likes.
_NO_DAY_AFTER = frozenset(
    "a an the my your his her our their one some any every each another other alternate most "
    "all many no of first second third fourth last to through thru or and than like called "
    "named s is it's black good ruby ash holy palm easter bloody cyber super fat shrove manic "
    "casual taco whit sunny lazy blue next this that these those bad mad man girl take takes "
    "took taking have has had get got book booked miss missed love hate enjoy prefer make call "
    "want need free busy on but except watched saw".split()
)
_RANGE = r"\s*(?:,|and|or|to|till|until|through|thru|[-–—/&+])\s*(?:on\s+|the\s+)?"
_ANY_DAY = rf"(?:{'|'.join(DAYS)})s?"
_NUMBERED = rf"(?:the )?(?:{A_DAY}(?: of)? (?:{A_MONTH})|\d\d?(?:st|nd|rd|th)|(?:{A_MONTH}) \d)\b"
_DAY_BEFORE = re.compile(
    rf"(?:{_ANY_DAY}(?:{_RANGE}|\s+)|(?<![\w.,:-])\d\d?{_SUFFIX}? ?[-–—] ?)$", re.I
)
_DAY_AFTER = re.compile(rf"(?:{_RANGE}|\s+(?:on\s+)?)\b{_ANY_DAY}", re.I)
_OTHER_DAY = re.compile(
    r"(?<!why not )(?:(?<=\bnot )|(?<=\bisn['’]t )|(?<=\binstead of )|(?<=\brather than ))"
    rf"(?:(?:on|for|this|next|the|at) )*(?:{_ANY_DAY}|{_SHORT_DAY}|{calendar.A_FEAST})\b"
    rf"(?:,? (?:the )?{A_DAY}(?![\w:.]\d)(?: (?:of )?(?:{A_MONTH})\b(?: \d{{4}})?)?)?",
    re.I,
)
"""A weekday on which something is not: "it's Wednesday, not Thursday"."""
# These date a clause by themselves; a day's name in the same clause may be counted from that date.
_DATED = re.compile(
    r"\b(?:yesterday|tomorrow|today|tonight|ago|\d{4}|last night|(?:last|this|next|past|coming) "
    rf"(?:week|weekend|month|year|day|{_ANY_DAY})|{_ANY_DAY}|"
    rf"(?:in|from) {COUNT} {UNIT}|{COUNT} {UNIT} from)\b",
    re.I,
)
# Beside these a day of the month recurs, every year or every month.
_YEARLY = re.compile(r"\b(?:birthday|anniversary|born|birth|annual(?:ly)?|yearly|holiday)\b", re.I)
_MONTHLY = re.compile(r"\b(?:rent|salary|wages?|bills?|pay|pays|paid|payday|mortgage)\b", re.I)
# With these, "in two days" is a length of time: "have not slept in two days", "twice in two days".
_TAKING = re.compile(r"(?:\b(?:have|has|had)|['’](?:ve|s))(?:n['’]?t| not| never)\b", re.I)
_RATE = re.compile(
    r"\b(?:once|twice|times?|(?<!\ba )first|best(?! friend)|worst|most)\b[^,.;!?]*$", re.I
)
# With these "in a day" is no day to come: "two pills in a day", "can read it in a day".
_EACH = re.compile(rf"\b(?:can|does|{'|'.join(NUMBER_WORDS[1:20])}|\d+)\b", re.I)
_IT_IS = re.compile(  # or an age: "the baby is two weeks today"
    r"\b(?:(?:it|i|we|s?he|they|baby|puppy|kitten|twins)(?: am| is| are|['’](?:s|m|re)| will be)"
    r"|its|im)$",
    re.I,
)
_SENTENCE_ENDS = ("", ".", "!", "?")
_BREAKS = (*_SENTENCE_ENDS, ",", ":", ";", "-", "–", "—", "(", ")", "\n")
_STEP = {"last": -1, "past": -1, "this": 0, "next": 1, "coming": 1}
_LONG_AGO = 180  # days; people add the year to a date further back
_WINDOW = 60  # characters beside a weekday in which a name or a range is looked for

_Found = tuple[str, date] | None
_Rule = Callable[[re.Match[str], date], _Found]


def count(match: re.Match[str], group: int | str = 1) -> int:
    text = match[group].lower().removesuffix(" of")
    return int(text) if text.isdigit() else _NUMBERS[text.split()[-1]]


def _tense(match: re.Match[str]) -> int:
    return tense.direction(match.string, *match.span())


def _direction(match: re.Match[str], again: re.Pattern[str]) -> int:
    """The tense of a day that is in no list and has no other date beside it, nor comes again."""
    comes = again.search(match.string, *tense.clause(match.string, *match.span()))
    return tense.UNKNOWN if comes or not _is_one_day(match) else _tense(match)


def _in_units(match: re.Match[str], said: date) -> _Found:
    """in two weeks; not "I read it in two weeks", nor "two pills in a day"."""
    lead = match.string[tense.clause(match.string, *match.span())[0] : match.start()]
    if _TAKING.search(lead) or _RATE.search(lead) or tense.same_form(lead):
        return None
    each = match[1].lower() in ("a", "an") and _EACH.search(lead)
    past = each or _tense(match) == tense.PAST
    return None if past else shifted(said, count(match), match[2].lower())


def _counted_from(match: re.Match[str], said: date) -> _Found:
    """three weeks from tomorrow, or from this coming Monday; a week on Monday"""
    from_day = said + timedelta(days=1) if match["day"] is None else _nearest(match, said, 1)
    return _to_weekday(match, from_day + count(match) * calendar.LONG[match[2].lower()])


def _week_after(match: re.Match[str], said: date) -> _Found:
    """Friday week, which is seven days after the coming Friday"""
    return _to_weekday(match, _nearest(match, said, 1) + timedelta(weeks=1))


def _exactly_from(match: re.Match[str], said: date) -> _Found:
    """a week tomorrow; in four weeks today; ten years ago today; "the party is a week today"."""
    near, back = match["near"].lower(), bool(match["ago"])
    if near in ("today", "yesterday") and not (back or match["in"]):
        back = near == "yesterday"
        bare = _IT_IS.search(_lead(match.string, match.start()))
        if bare or _tense(match) != (tense.PAST if back else tense.COMING):
            return None  # "it is two weeks today": since, or until?
    day = said + timedelta(days={"yesterday": -1, "today": 0}.get(near, 1))
    day = earlier(day, count(match, "count") * (1 if back else -1), match["unit"].lower())
    return f"on {day_text(day)}", day


def _weekday_of_month(match: re.Match[str], said: date) -> _Found:
    """the second Saturday of September: the coming one, unless the verb says that it is past"""
    which = match["which"].lower()

    def of_year(year: int) -> calendar.Days:
        begins = date(year, month_number(match["month"]), 1)
        if which == "last":
            return (_nearest(match, add_months(begins, 1), -1),) * 2
        return (_nearest(match, begins + timedelta(weeks=ORDINALS.index(which), days=-1), 1),) * 2

    return _to_weekday(match, calendar.nearest(of_year, said, _tense(match) or 1)[0])


def _step(match: re.Match[str], said: date) -> _Found:
    """next week; this weekend, which is the one before today if the verb says that it is past."""
    if _is_title(match):
        return None
    n, unit = _STEP[match[1].lower()], match[2].lower()
    if n == 0 and unit == "weekend" and said.weekday() < 5 and _tense(match) == tense.PAST:
        n = -1
    return shifted(said, n, unit)


def _to_weekday(match: re.Match[str], day: date) -> tuple[str, date]:
    name, part = DAYS[day.weekday()], match.groupdict().get("part")
    return f"on {f'the {part.lower()} of ' if part else ''}{name} {day_text(day)}", day


def _nearest(match: re.Match[str], said: date, direction: int) -> date:
    """The day of the matched name, 1 to 7 days before `said` (direction < 0) or after it."""
    back = (said.weekday() - _number_of(match)) % 7
    return said + timedelta(days=-(back or 7) if direction < 0 else 7 - back)


def _number_of(match: re.Match[str]) -> int:
    """Monday is 0. Raises KeyError on what only looks like a weekday."""
    return calendar.WEEKDAYS[match["day"][:3].lower()]


def _named_weekday(match: re.Match[str], said: date) -> _Found:
    """last Friday: the one before; next Friday: the coming one; this Friday: as the verb says."""
    step = _STEP[match["step"].lower()]
    if step == 0 and said.weekday() == _number_of(match):
        return _to_weekday(match, said)
    return _to_weekday(match, _nearest(match, said, step or _tense(match) or 1))


def _weekday_of_week(match: re.Match[str], said: date) -> _Found:
    """Friday next week; in two weeks, on the Wednesday"""
    step = match.groupdict().get("step")
    weeks = _STEP[step.lower()] if step else count(match)
    monday = said - timedelta(days=said.weekday())
    return _to_weekday(match, monday + timedelta(days=_number_of(match), weeks=weeks))


def _weekday(match: re.Match[str], said: date) -> _Found:
    """on Friday: the last one or the next, as the verb says; never today."""
    if not _is_one_day(match):
        return None
    first, last = tense.sentence(match.string, *match.span())
    if re.search(rf"\b{match['day'][:3]}\w*,? {_NUMBERED}", match.string[first:last], re.I):
        return None  # "thursday at nine, thursday the 22nd"
    at_a_time = _AT_A_TIME.match(match.string, match.end())
    direction = _tense(match) or (1 if at_a_time else 0)  # "eye doctor Friday 9:30" is a plan
    return _to_weekday(match, _nearest(match, said, direction)) if direction else None


def _bare(rule: _Rule, match: re.Match[str], said: date) -> _Found:
    """friday, without "on", unless it is part of a name ("Ruby Tuesday")."""
    lead = _lead(match.string, match.start())
    found = re.search(r"(?<![\w'’])[\w'’]*$", lead)
    word = found[0] if found else ""
    put_off = word.lower() == "to" and tense.is_put_off(lead[: -len(word)].rstrip())
    is_it = re.search(r"\b(?:it|that|today|tomorrow)(?: is| was|['’]s)$", lead, re.I)
    told = put_off or (
        # "it's Friday" may tell of today, and "my day is Friday" of each week
        (is_it or word.lower() == "is")
        and _NOT_EACH_WEEK.match(match.string, match.end())
        and said.weekday() != calendar.WEEKDAYS.get((match["day"] or "")[:3].lower())
    )
    # "from Boxing Day to New Year's Day"; "New Year's Eve at ours", read as a plan
    told = told or (rule is _feast and re.search(r"\b(?:to|and|or|there is)$", lead) is not None)
    if not told and (is_it or word.lower() in _NO_DAY_AFTER or word.isdigit()):
        return None
    if word[:1].isupper() and word != "I" and not (told or word.lower() in _PREPOSITIONS):
        return None  # "Ruby Tuesday"
    return rule(match, said)


def _feast(match: re.Match[str], said: date) -> _Found:
    """on Christmas Eve; the last Friday before Easter: past or coming, as the verb says."""
    name, way, step, year = (match[part] or "" for part in ("feast", "way", "step", "year"))
    of_year, of = partial(_beside_feast, match), (match["part"] or match["unit"] or "day").lower()
    direction = _STEP.get(step.lower()) or _direction(match, _YEARLY) or bool(step or year)
    if not direction or (not way and name.lower() in calendar.LONG_FEASTS):
        return None
    day = (of_year(int(year)) if year else calendar.nearest(of_year, said, direction))[0]
    if not (step or year or calendar.is_near(day, said, direction)):
        return None
    lead = ("in" if of == "week" else "on") + f" the {of} of" * (of != "day")
    own = DAYS[day.weekday()] if match["day"] else capwords(name) * (not way)
    tail = f"{way.lower()} {capwords(name)}" * bool(way)
    return " ".join(filter(None, (lead, own, day_text(day), tail))), day


def _beside_feast(match: re.Match[str], year: int) -> calendar.Days:
    """The days that are counted from a feast, or the feast itself."""
    day, unit = calendar.feast_day(match["feast"], year), (match["unit"] or "").lower()
    step, one = -1 if (match["way"] or "").lower() == "before" else 1, timedelta(days=1)
    if match["day"]:
        day = _nearest(match, day, step)
    elif unit == "weekend":
        day += (1 if step > 0 else -2) * one
        day += (5 - day.weekday()) * step % 7 * step * one
    elif unit:
        day += (-7 if unit == "week" and step < 0 else step) * one
    return day, day + {"week": 6, "weekend": 1}.get(unit, 0) * one


def _is_one_day(match: re.Match[str]) -> bool:
    """Whether a day is in no list, range or quoted title, and its clause has no other date."""
    text, (start, end) = match.string, match.span()
    if (
        _DAY_BEFORE.search(text, max(0, start - _WINDOW), start)
        or _DAY_AFTER.match(text, end)
        or _is_quoted(text, start)
    ):
        return False
    first, last = tense.clause(text, start, end)
    return not (_DATED.search(text, first, start) or _DATED.search(text, end, last))


def _is_quoted(text: str, place: int) -> bool:
    """Whether a place is in quotation marks, as titles are."""
    lead = text[max(text.rfind("\n", 0, place) + 1, place - 10 * _WINDOW) : place]
    return (
        lead.count('"') % 2 == 1
        or lead.count("“") > lead.count("”")
        or (
            re.search(r"(?<!\w)['‘][^'’]*$", lead) is not None
            and re.match(r"[^'’]*['’](?!\w)", text[place : place + 10 * _WINDOW]) is not None
        )
    )


def _day_of_month(match: re.Match[str], said: date) -> _Found:
    """the 8th of June, on the 21st: the last one or the next, as the verb says; not today."""
    month, weekday = map(match.groupdict().get, ("month", "day"))
    text, start = match.string, match.start()
    if not month and _NAMED_MONTH.search(text, max(0, start - _WINDOW), start):
        return None  # "in April, on the 19th": of that month
    number = int(match["nth"]) if match["nth"] else spelled_nth(match["spelled"])
    direction = _direction(match, _YEARLY if month else _MONTHLY)
    if direction == tense.UNKNOWN:
        return None
    for n in range(13):  # months
        begin = add_months(said, n * direction)
        if month and begin.month != month_number(month):
            continue
        if not 1 <= number <= (add_months(begin, 1) - begin).days:
            continue
        day = begin.replace(day=number)
        if day == said and not weekday:
            return None
        if (day - said).days * direction < 0:
            continue
        if (said - day).days > _LONG_AGO:
            return None  # "we agreed on 31 August" may well be the next one
        if weekday and day.weekday() != _number_of(match):
            if month or n > 2:
                return None
            continue
        return f"on {DAYS[day.weekday()] + ' ' if weekday else ''}{day_text(day)}", day
    return None


def _day_and_month(match: re.Match[str], said: date) -> _Found:
    """june 8; not "we may 8 times", nor "we march 10 km"."""
    surely = match[0].lower().startswith("on ") or re.search(r"\d(?:st|nd|rd|th)", match[0], re.I)
    word = _lead(match.string, match.start()).lower().rsplit(" ", 1)[-1]
    verb = match["month"] in ("may", "march", "mar") and not surely and word not in _PREPOSITIONS
    return None if verb else _day_of_month(match, said)


def _days_of_month(match: re.Match[str], said: date) -> _Found:
    """23-25 November; two days in "moved from the 14th to the 21st of November"."""
    number, last = int(match["from"]), _day_of_month(match, said)
    if last is None or not 0 < number < last[1].day:
        return None
    first = last[1].replace(day=number)
    lead = _lead(match.string, match.start())
    if lead.endswith("from") and tense.is_put_off(lead.removesuffix("from").rstrip()):
        return f"on {day_text(first)} to {day_text(last[1])}", first
    return f"on {number}-{day_text(last[1])}", first


def _days_away(n: int, match: re.Match[str], said: date) -> _Found:
    return None if _is_title(match) else shifted(said, n, "day")


def _is_title(match: re.Match[str]) -> bool:
    """Whether a form is capitalised within a sentence: "Psychology Today"."""
    inside = _lead(match.string, match.start()).rstrip("\"'“‘")[-1:] not in _BREAKS
    return inside and match[0].istitle()


_MONTHS = " ".join(month[:3].lower() for month in MONTHS)
_OF_DAY = "(?:morning|afternoon|evening)"
_TOMORROW = "(?:tomorrow|tomm?orr?ow)"
_NO_WEEK = "(?<!week )(?<!weeks )(?<!fortnight )"  # such a day alone is not meant
_NEAR_DAYS = (
    (-2, "before", "(?:the )?day before yesterday"),
    (2, "after", "(?:the )?day after tomorrow"),
    (-1, "yest night", rf"{_NO_WEEK}yesterday(?: {_OF_DAY}| night)?|{_NOT_MINE}last night"),
    (1, "tom", f"{_TOMORROW}(?: {_OF_DAY}| night)?"),
    (0, "to this", rf"{_NO_WEEK}today|tonight|this {_OF_DAY}"),
)
# Each after words of which a text that it matches has one: to look for these is quick.
_RULES: tuple[tuple[str, str, _Rule], ...] = (
    (
        "christmas boxing stephen year valentine patrick halloween friday easter",
        r"\b(?=[bcefghlmnostvw])(?<!about )(?<!happy )(?<!merry )(?P<on>on |(?<=ing of ))?(?:"
        rf"(?:(?:the )?(?:last |first )?{_WEEKDAY}|the (?:last |first )?(?P<unit>day|week(?:end)?))"
        r" (?P<way>before|after) )?(?:(?P<step>this|last|next) )?"
        rf"(?P<feast>{calendar.A_FEAST}){_PART}(?:,? (?:of |in )?(?P<year>{A_YEAR})| this year)?"
        rf"(?!,? {_NUMBERED})(?:{NO_NOUN}|{_WHOLE}(?(way)|(?(on)|(?!)))(?= (?:off|is|"
        r"was|starts?|works|suits|everyone|(?-i:[A-Z](?!greement|ales?\b)\w*))\b))",
        lambda m, d: _feast(m, d) if m["way"] or m["on"] is not None else _bare(_feast, m, d),
    ),
    (
        "from",
        rf"{_ALONE}{COUNT} (day|week|fortnight)s? from (?:tomorrow|"
        rf"(?:this |next |the )?(?:coming )?{_WEEKDAY})\b",
        _counted_from,
    ),
    (
        "day tom",
        rf"{_ALONE}(?P<in>in )?(?P<count>{COUNT}) (?P<unit>week|fortnight|(?:day|month|year)(?=s? "
        rf"ago))s? (?P<ago>ago )?(?P<near>today|yesterday|{_TOMORROW})\b",
        _exactly_from,
    ),
    ("week", rf"(?<!last )(?<!every )\b(?:on )?{_WEEKDAY} week{NO_NOUN}", _week_after),
    *((cues, rf"\b(?:{form})\b", partial(_days_away, n)) for n, cues, form in _NEAR_DAYS),
    ("ago", rf"{_ALONE}{COUNT} {UNIT} ago\b", lambda m, d: shifted(d, -count(m), m[2].lower())),
    (
        "from",
        rf"{_ALONE}{COUNT} {UNIT} from (?:now|today)\b",
        lambda m, d: shifted(d, count(m), m[2].lower()),
    ),
    (
        "week",
        rf"(?<!days )(?<!times )(?<!once )(?<!twice )(?<!hours )(?<!work )\b(an?|one|two|three) "
        rf"(week)s? (?:on )?{_WEEKDAY}{_PART}{_WHOLE}(?! (?:to|till?|until|since)\b)",
        _counted_from,
    ),
    (
        "week",
        rf"\bin {COUNT} weeks?(?: exactly)?(?:['’]? time)?,? (?:on )?the "
        rf"{_WEEKDAY}{_PART}{_WHOLE}",
        _weekday_of_week,
    ),
    (
        "day",
        rf"(?<!every )(?<!each )\b(?:on )?the (?P<which>first|second|third|fourth|last) "
        rf"{_WEEKDAY}{_PART} (?:of|in) {_MONTH}{_NO_YEAR}",
        _weekday_of_month,
    ),
    ("in", rf"\bin {COUNT} {UNIT}(?:['’]? time)?\b(?! (?:of|old|or)\b)(?!['’])", _in_units),
    (
        "week",
        rf"\b(?:on )?{_WEEKDAY}{_PART}(?: of(?: the)?)? (?P<step>last|this|next) week\b",
        _weekday_of_week,
    ),
    (
        "week",
        rf"{_NOT_MINE}\b(?P<step>last|next) week (?:on )?{_WEEKDAY}{_PART}\b",
        _weekday_of_week,
    ),
    ("week month year", rf"{_NOT_MINE}\b(last|this|next) (weekend|week|month|year)\b", _step),
    (
        "day",
        rf"{_NOT_MINE}\b(?:this )?(?P<step>last|this|next|past|coming) {_WEEKDAY}{_PART}\b"
        rf"(?! week\b|,? (?:the )?\d\d?{_SUFFIX}\b)",
        _named_weekday,
    ),
    (_MONTHS, rf"{_ALONE}\b(?:on )?(?:the )?{_SPAN}(?: of)? {_MONTH}{_NO_YEAR}", _days_of_month),
    (_MONTHS, rf"{_NO_DAY_BEFORE}\b(?:on )?{_MONTH}(?: the)? {_SPAN}{_NO_YEAR}", _days_of_month),
    (
        _MONTHS,
        rf"(?<![:.-])\b(?:on )?(?:(?:the )?{_SAID_TWICE})?(?:the )?{_NUMBER}(?: of)? "
        rf"{_MONTH}{_NO_YEAR}",
        _day_and_month,
    ),
    (
        _MONTHS,
        rf"{_NO_DAY_BEFORE}\b(?:on )?(?:{_SAID_TWICE})?{_MONTH}(?: the)? {_NUMBER}{_NO_YEAR}",
        _day_and_month,
    ),
    ("day", rf"\b(?:on )?(?:the )?{_SAID_TWICE}(?:the )?{_NTH}{NO_NOUN}", _day_of_month),
    (
        "the",
        # Not "and on the second I slept", of two nights.
        rf"(?:\bon{_AFTER_PREPOSITION}) ?the (?!(?:{'|'.join(ORDINALS[:4])})\b){_NTH}{NO_NOUN}",
        _day_of_month,
    ),
    ("the", rf"(?:{_AFTER_BEING})the (?P<nth>\d{{1,2}}){_SUFFIX}{NO_NOUN}", _day_of_month),
    ("day", rf"\bon {_WEEKDAY}{_PART}{_NO_NAME}", _weekday),
    ("day", rf"\b{_WEEKDAY}{_PART}{NO_NOUN}", partial(_bare, _weekday)),
)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of _RULES, compiled on first use: most texts need few of them."""
    return re.compile(pattern, re.IGNORECASE)


# Counted from the date before it: "lands on 3 May and leaves exactly two weeks later".
_LATER = re.compile(
    rf"(?<![\w.,'’-])(?<!\bor )(?<!\bto )(?P<exactly>exactly )?{COUNT} (day|week)s? later\b", re.I
)
_EXACT = re.compile(rf"on (?:{calendar.A_NAMED_DAY} )?\d", re.I)
_WRITTEN_DAY = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)? ({'|'.join(MONTHS)}),? (\d{{4}})\b")
# Any match of a rule has one of these words. Most texts have none, which is quick to see.
_ANY = re.compile(
    rf"\b(?:yesterday|{_TOMORROW}|today|tonight|ago|from|in|week|later|last|this|next|past|coming|{_ANY_DAY}|"
    rf"\d{{1,2}}(?:st|nd|rd|th)?|{SPELLED_NTH}|(?=[bceghnsv])(?:{calendar.A_FEAST}))\b",
    re.IGNORECASE,
)


def without_other_days(text: str) -> str:
    """The text with blanks for the weekdays on which it says that something is not."""
    return _OTHER_DAY.sub(lambda match: " " * len(match[0]), text)


def moments(text: str, said_at: str) -> list[Moment]:
    """The relative dates of a text, in order. said_at: ISO-8601, when it was said."""
    read, places = plain_places(text)
    found = _moments(read, said_at)
    if not places:
        return found
    return [replace(m, start=places[m.start], end=places[m.end - 1] + 1) for m in found]


def _moments(text: str, said_at: str) -> list[Moment]:
    if _ANY.search(text) is None:
        return []
    text = without_other_days(text)
    said = datetime.fromisoformat(said_at).date()
    found: list[Moment] = []
    taken = bytearray(len(text))
    letters = text.lower()
    for cues, pattern, rule in _RULES:
        if not any(cue in letters for cue in cues.split(" ")):
            continue
        for match in _compiled(pattern).finditer(text):
            start, end = match.span()
            if 1 in taken[start:end]:
                continue
            try:
                resolved = rule(match, said)
            except (KeyError, OverflowError, ValueError):
                continue  # "9999 years ago" has no date here; "thiſ week" only looks like one
            if resolved is not None:
                found.append(Moment(start, end, *resolved))
                taken[start:end] = b"\1" * (end - start)
    return sorted([*found, *_later(text, found)], key=lambda m: m.start)


def _later(text: str, found: Sequence[Moment]) -> Iterator[Moment]:
    """The dates that are counted from a day named earlier in the same text."""
    matches = list(_LATER.finditer(text))
    days = [(m.end, m.begins) for m in found if _EXACT.match(m.text)] if matches else []
    for day in _WRITTEN_DAY.finditer(text) if matches else ():
        with suppress(ValueError):  # "31 February"
            days.append((day.end(), date(int(day[3]), month_number(day[2]), int(day[1]))))
    days.sort()
    for match in matches:
        known = bisect_right(days, match.start(), key=lambda day: day[0])
        with suppress(KeyError, OverflowError, ValueError):
            n, unit = count(match, 2), match[3].lower()
            if unit == "week" and match["exactly"]:
                n, unit = 7 * n, "day"
            if known:
                yield Moment(*match.span(), *shifted(days[known - 1][1], n, unit))


def absolute(text: str, said_at: str) -> tuple[str, str | None]:
    """The text with its relative dates written out, and when the first of them begins (ISO day).

    >>> absolute("I adopted a dog yesterday.", "2023-05-08T13:56:00.000+00:00")
    ('I adopted a dog on 7 May 2023.', '2023-05-07')
    """
    found = moments(text, said_at)
    return written(text, found), found[0].begins.isoformat() if found else None


def written(text: str, found: Sequence[Moment]) -> str:
    """The text with these of its moments written out. found: in order."""
    parts, at = [], 0
    for moment in found:
        words = moment.text
        if _preposition(text, moment) or text[moment.end : moment.end + 2] in ("'s", "’s"):
            # "since yesterday" is "since 7 May", not "since on 7 May"
            words = words.split(" ", 1)[1]
        if _lead(text, moment.start)[-1:] in _SENTENCE_ENDS:
            words = words[0].upper() + words[1:]
        parts += [text[at : moment.start], words]
        at = moment.end
    return "".join([*parts, text[at:]])


def phrase(text: str, moment: Moment) -> str:
    """A moment of the text as a sentence can end with it: "on 7 May 2023", "until 9 May 2023"."""
    preposition = _preposition(text, moment)
    return f"{preposition} {moment.text.split(' ', 1)[1]}" if preposition else moment.text


def _preposition(text: str, moment: Moment) -> str:
    """The preposition before a moment that has none of its own; "" if there is none."""
    if text[moment.start : moment.start + 3].lower() in ("on ", "in "):
        return ""  # "the hill we went to on Friday"
    word = _lead(text, moment.start).lower().rsplit(" ", 1)[-1]
    if word == "in" and moment.text.startswith("on "):
        return ""  # "she wants me in tomorrow"
    return word if word in _PREPOSITIONS else ""


def _lead(text: str, place: int) -> str:
    """The characters before a place."""
    return text[max(0, place - _WINDOW) : place].rstrip()

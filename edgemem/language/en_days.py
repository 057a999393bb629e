"""English: the days that a text tells of, since when, what is moved, ends or comes again.

"Put back a week" is seven days after a day that another message may have named: which one, no
pattern tells (`pipeline/days.py` decides it by what both speak of). Knows dates as `en_dates`
writes them, and the tense beside them; nothing of questions (`en_asked_days`), nor of memories.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from itertools import pairwise

from edgemem.language import en_calendar as calendar
from edgemem.language import en_tense as tense
from edgemem.language.en import (
    NUMBER_WORDS,
    STOP_WORDS,
    content_words,
    having,
    proper_names,
    sentences,
    share,
    words,
)
from edgemem.language.en_calendar import (
    A_FEAST,
    A_MONTH,
    A_YEAR,
    DAYS,
    SPELLED_NTH,
    Days,
    add_months,
    earlier,
    month_number,
)
from edgemem.language.en_dates import (
    COUNT,
    NO_NOUN,
    UNIT,
    absolute,
    count,
    without_other_days,
)
from edgemem.language.en_plain import plain
from edgemem.language.other import NAMED_OR_NUMBERED, days_in_english, forms_of, spelled_days

__all__ = [
    "Mention",
    "calls_off",
    "comes_again",
    "counts_weeks",
    "ends_weekly",
    "goes_on",
    "held_since",
    "may_call_off",
    "may_end_weekly",
    "may_move",
    "may_name_far",
    "mentions",
    "moved",
    "names_an_nth",
    "naming",
    "recurs",
    "says_only_when",
    "subjects",
    "told_days",
    "told_weekdays",
    "unnamed_days",
]


WRITTEN = re.compile(
    r"(?:\b(?:on|in|at|for|over|during) )?(?:the (?P<unit>week|weekend) of )?"
    rf"(?:(?:the \w+ of )?{calendar.A_NAMED_DAY},? )?"
    r"(?:the )?(?:(?:(?P<from>\d\d?)-)?(?P<nth>\d\d?)(?:st|nd|rd|th)? (?:of )?)?"
    rf"\b(?P<month>{A_MONTH})\b"
    rf"(?:,? (?P<year>{A_YEAR})(?: (?:before|after) (?:{A_FEAST}))?)?",
    re.I,
)
"""A day, a week, a weekend or a month, as `en_dates` writes it: `days_of` has its days."""
MONTH_FIRST = re.compile(rf"\b({A_MONTH})\b\.? (\d\d?)(?:st|nd|rd|th)?,? (?={A_YEAR})", re.I)
_TO_THE_NTH = re.compile(  # "in January, from the 12th to the 19th"
    rf"\bin ({A_MONTH}),? (?:from )?the (\d\d?)\w* (?:to|till?|until) (?:the )?(\d\d?)[a-z]{{2}}\b",
    re.I,
)
_DATED = re.compile(
    rf"\b(?:(?:{'|'.join(DAYS)})s?|mon|tues?|wed|thur?s?|fri|sat|sun|{A_MONTH}|today|tonight|tom\w+|tm\w+|"
    r"yesterday|week(?:end)?s?|fortnight|months?|days?|ago|year|\d\d?(?:st|nd|rd|th)|\d{4})\b",
    re.I,
)
A_WEEKDAY = rf"(?:{'|'.join(DAYS)}|mon|tues?|wed|thur?s?|fri|sat|sun)"
_PARTS_OF_DAY = "mornings|afternoons|evenings|nights"
_OF_MONTH = "(?:the|each|every) month"
A_NTH = r"\d\d?(?:st|nd|rd|th)\b"
_HOURS = r"(?= \d\d?(?:[:.-]\d| ?[ap]\.?m\b))"
# "booked for Thursday", "moved from the 19th to the 26th", "lunch sun 22nd", "party fri 9pm"
_TO_DAY = re.compile(
    rf"\b(?:(?:on|for|until|till|til|by|from|to) (?:the )?|(?:{A_WEEKDAY}) (?=\d))"
    rf"(?P<to>{A_NTH}|{A_WEEKDAY}\b(?! (?:{_PARTS_OF_DAY})\b))"
    rf"|(?<!every )(?<!each )\b(?P<at>{A_NTH}|{A_WEEKDAY}){_HOURS}",
    re.I,
)
_EVERY = re.compile(
    rf"\b(?:every|each) ((?:{A_WEEKDAY})(?:(?:,| and| n| &)+ (?:{A_WEEKDAY}))*)\b"
    rf"|\b((?:{'|'.join(DAYS)})s|(?:{A_WEEKDAY})(?= (?:{_PARTS_OF_DAY})\b))\b",
    re.I,
)
_MONTHLY = re.compile(
    rf"\b(?P<nth>first|second|third|fourth|last)(?:st|nd|rd|th)? (?P<day>{A_WEEKDAY})"
    rf"(?: (?:morning|afternoon|evening|night))? (?:of|in) {_OF_MONTH}\b",
    re.I,
)
_AND_TO = re.compile(r" ?(?:and|to|until|till|or|bis|und|al|y|,|-|–) ?(?:on )?(?:the )?")
_NTHS = "first second third fourth".split()
_SEASON = "|".join((*calendar.SEASONS, A_FEAST))
_AT_LONG = re.compile(f"(at|for|over|this|last|next) ({'|'.join(calendar.LONG_FEASTS)})", re.I)
SPAN = re.compile(
    r"(?:\b(?:in|during|over|of|for|back in) )?(?:\bthe )?\b(?:(?:whole|rest) (?:of )?)?"
    rf"(?:(?P<step>this|last|next) (?P<unit>year|{_SEASON})"
    rf"|(?:at |on )?(?P<season>{_SEASON})(?: (?:of )?(?P<of>\d{{4}}))?{NO_NOUN}"
    r"|(?<!at )(?P<year>(?:19|20)\d\d))(?: so far)?\b",
    re.I,
)
"""A year, a season or a feast: `days_of_span` has its days."""

_HOURS_AND_SUCH = frozenset(NUMBER_WORDS) | frozenset(
    "half quarter past am pm noon midday midnight o'clock morning afternoon evening night next "
    "last booked fixed set moved changed confirmed mean sorry wait actually "
    "later earlier sooner going move moves moving still ok okay lol got".split()
)
_CALLED_OFF = re.compile(
    r"\b(?:cancel\w*|called off|postponed|rescheduled|scrapped|(?:fell|fallen|falls) through|"
    r"instead|no longer|any ?more|(?:gave|given|giving) up|quit|packed in|"
    r"not (?:going|happening|coming))\b"
    r"|(?:\b(?:is|are|was)|['’]s) off\b(?! (?:to|on)\b)",
    re.I,
)
_FROM_NOW = rf"\bin (?:exactly |about )?{COUNT} {UNIT}\b|\b{UNIT} (?:ago|from|today|tomorrow)\b"
_GIVEN_UP = re.compile(
    r"\b(?:no longer|any ?more|(?:gave|given|giving) up|quit|packed in|scrapped)\b", re.I
)
may_call_off = having(_CALLED_OFF.pattern)
"""Whether a text may say that something is off (`calls_off`)."""
may_name_far = having(
    rf"\d(?:st|nd|rd|th)\b|\b(?:{SPELLED_NTH}|months?|weeks|later|yesterday|week(?:end)? of"
    rf"|{_PARTS_OF_DAY})\b"
)
"""Whether a text may name a day without its month that is more than two weeks away."""
counts_weeks = having(rf"\bin {COUNT} (?:week|fortnight)s?\b")
"""Whether a text counts the weeks until something."""
_INSTEAD_OF = re.compile(
    r"\b(?:instead of|not|rather than|from|(?:cannot|(?:ca|do|does)n['’]?t) (?:do|make|come"
    r"|work))(?: on)? \Z",
    re.I,
)
_MOVES = re.compile(r"\b(?:mov(?:e|es|ed|ing)|switch\w*|chang\w+|now|instead|from now on)\b", re.I)
_TO_ANOTHER_DAY = re.compile(r"\b(?:moved|(?:put|pushed) back|brought forward)\b", re.I)
may_end_weekly = having(f"{_GIVEN_UP.pattern}|{_MOVES.pattern}")
"""Whether a text may end what comes every week (`ends_weekly`)."""
_TOO = having(r"\b(?:also|too|as well|both|another|(?<!every )second)\b")
recurs = having(
    r"\b(?:each|every|always|usually|daily|weekly|monthly|quarterly|yearly|annual(?:ly)?"
    rf"|of the month|(?:{'|'.join(DAYS)})s)\b"
)
"""Whether a text says that something comes again and again."""
names_an_nth = having(rf"\bthe (?:{A_NTH})")
"""Whether a text names a day by its number."""
_GOES_ON = re.compile(r"(?:(?:and|but|so) )?(?:i|we|he|she|it|they)\b", re.I)
_NOT = frozenset(word.replace("'", "") for word in STOP_WORDS if word.endswith("n't"))
_CALLING_OFF = _NOT.union(
    "anymore going coming happening instead called cancelled canceled gave given giving put pushed "
    "held brought back forward".split()
)
_BEFORE, _AFTER = 20, 4  # words of the same sentence that tell what a mention is about
_DAY = re.compile(
    rf"(?<!week of )(?<!weekend of )\b(?:(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<m>{A_MONTH})"
    rf"|(?P<month>{A_MONTH})\b\.? (?P<day>\d{{1,2}})(?:st|nd|rd|th)?)\b(?:\.?,? (?P<y>{A_YEAR}))?",
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
may_move = having(f"{_MOVED.pattern}|{_TO_ANOTHER_DAY.pattern}")
"""Whether a text may say that something is on another day (`calls_off`)."""
_EARLIER = frozenset(("earlier", "early", "sooner", "before"))
_UNITS = {"day": (0, 1), "week": (0, 7), "fortnight": (0, 14), "month": (1, 0)}
_BREAK = re.compile(r"[.!?;…]+(?=\s|$)|\n")
_PAST_DAYS = 60  # a day without its year is the coming one, unless it is at most so long ago
_SAME = 0.5  # share of the words that call something off that a plan has


def told_days(text: str, said_at: str) -> list[Days]:
    """The days that a text names, relative ones too. said_at: ISO-8601.

    >>> told_days("I'm off next week", "2026-05-20T10:00:00+00:00")
    [(datetime.date(2026, 5, 25), datetime.date(2026, 5, 31))]
    """
    text = _TO_THE_NTH.sub(r"on \2-\3 \1", MONTH_FIRST.sub(r"\2 \1 ", plain(text)))
    elsewhere = NAMED_OR_NUMBERED.search(text) is not None
    if not (elsewhere or _DATED.search(text) or re.search(A_FEAST, text, re.I)):
        return []
    text = without_other_days(text)
    # A list with a day too many is better than one that misses "3/4", whichever it is.
    readings = (False, True) if elsewhere else (None,)
    read = (spelled_days(text, month_first=first) for first in readings)
    told = (days for each in dict.fromkeys(read) for days in _told(each, said_at))
    return list(dict.fromkeys(told))


def _told(text: str, said_at: str) -> list[Days]:
    told: list[Days] = []
    said = datetime.fromisoformat(said_at).date()
    for sentence in sentences(text):
        # Where no verb tells whether a day is past or coming ("dentist on friday"), it is a plan.
        reads = [sentence, f"there is {sentence}"]
        if re.search(A_FEAST, sentence, re.I) and tense.may_be_past(sentence):
            reads.pop()
        for read in reads:
            written = absolute(read, said_at)[0]
            found = [*WRITTEN.finditer(written)]
            dated = [days for m in found if m["year"] for days in days_of(m)]
            for long in () if recurs(read) else SPAN.finditer(read):
                step = tense.direction(read, *long.span())
                feast = days_of_span(long, said, past=step < 0) if _AT_LONG.match(long[0]) else None
                if feast and step and (long["step"] or calendar.is_near(feast[0], said, step)):
                    dated.append(feast)
            if dated:
                for one, other in pairwise(found):  # "from 3 May 2027 to 5 June"
                    listed = _AND_TO.fullmatch(written, one.end(), other.start())
                    if listed and other["nth"] and not other["year"]:
                        dated += days_of(other, said)
                dated += [d for m in found if m["nth"] and not m["year"] for d in days_of(m, said)]
                break
        else:
            dated = [
                days for m in WRITTEN.finditer(sentence) if m["nth"] for days in days_of(m, said)
            ]
            named = _TO_DAY.finditer(sentence) if not dated else ()
            days = (nearest_named(m["to"] or m["at"], said, 1) for m in named)
            dated += [(day, day) for day in days if day]
        told += dated
    return told


def nearest_named(name: str, said: date, step: int) -> date | None:
    """The day of this name ("Friday") or number ("19th") nearest to `said` in the direction."""
    with suppress(OverflowError):  # in the year 9999
        for n in range(1, 62):
            day = said + timedelta(days=n * step)
            if name[:-2] == f"{day.day}" or name[:3].title() == DAYS[day.weekday()][:3]:
                return day
    return None


def says_only_when(sentence: str) -> bool:
    """Whether a sentence tells a day or an hour, and not what there is then ("2 December, half 9").

    >>> says_only_when("it's on thursday at nine"), says_only_when("dentist on thursday")
    (True, False)
    """
    return not subjects(sentence)


def unnamed_days(text: str) -> str:
    """A text without the names of weekdays before their numbers.

    >>> unnamed_days("on Thursday 2 April 2026")
    'on 2 April 2026'
    """
    return re.sub(rf"\b{A_WEEKDAY},? (?=(?:the )?\d)", "", text, flags=re.I)


def calls_off(text: str, plan: str) -> bool:
    """Whether a text says, of what a plan names, that it is off or on another day.

    >>> calls_off("lisbon is off, no money", "We fly to Lisbon on the 12th with Ann and Bo")
    True
    """
    if any(_is_of(text, found, plan) for found in _CALLED_OFF.finditer(text)):
        return True
    if _TOO(text):
        return False
    moves = [
        *_MOVED.finditer(text),
        *(_TO_ANOTHER_DAY.finditer(text) if _DATED.search(text) else ()),
    ]
    return any(_is_of(text, found, plan, by_name=False) for found in moves)


def ends_weekly(text: str, plan: str, weekday: int) -> bool:
    """Whether a text says that what a plan says to come every week is given up, or that it is on
    another weekday now. weekday: the plan's; Monday is 0.

    >>> ends_weekly("Choir has moved to Wednesdays.", "I sing in a choir on Thursdays.", 3)
    True
    """
    if any(_is_of(text, found, plan) for found in _GIVEN_UP.finditer(text)):
        return True
    moved = any(_is_of(text, found, plan) for found in _MOVES.finditer(text))
    now = told_weekdays(text) if moved and not _TOO(text) else ()
    return bool(now) and weekday not in now


def _is_of(text: str, found: re.Match[str], plan: str, *, by_name: bool = True) -> bool:
    """Whether the clause of a match is about what a plan names: by most of its words, or `by_name`
    by a name."""
    first, last = tense.clause(text, *found.span())
    said = _without_days(words(text[first:last])) - STOP_WORDS - _CALLING_OFF - _HOURS_AND_SUCH
    named = by_name and not said.isdisjoint(proper_names(plan))
    return bool(said) and (named or share(said, plan) >= _SAME)


def goes_on(sentence: str) -> bool:
    """Whether a short sentence says more of what the one before it tells: "He was 12."."""
    return bool(_GOES_ON.match(sentence) and content_words(sentence))


def naming(first: date, last: date) -> re.Pattern[str]:
    """A pattern of texts that may name one of these days wherever they are told.

    Among the others are lengths of time from when they were told ("in 40 weeks", "a year today").
    """
    forms = f"{forms_of(first, last)}|{A_FEAST}|{_FROM_NOW}|\\b(?:of|in) {_OF_MONTH}\\b"
    return re.compile(forms, re.I)


def subjects(text: str) -> set[str]:
    """The content words of a text that are no day and no hour.

    >>> sorted(subjects("The team meeting is now on Wednesdays at 9:00"))
    ['meeting', 'team']
    """
    return _without_days(content_words(text)) - _HOURS_AND_SUCH


def _without_days(said: Iterable[str]) -> set[str]:
    return {word for word in said if not (word[0].isdigit() or _DATED.fullmatch(word))}


def told_weekdays(text: str) -> set[int]:
    """The weekdays that a text says to come again and again; Monday is 0."""
    text = days_in_english(plain(text))
    found = [one[0] for one in _EVERY.finditer(text) if not _is_over(text, one)]
    names = {name[:3].lower() for one in found for name in re.findall(A_WEEKDAY, one, re.I)}
    return {number for name, number in calendar.WEEKDAYS.items() if name in names}


def comes_again(text: str, days: Iterable[date]) -> list[date]:
    """Those of these days on which a text says something to come each week, or once a month.

    >>> comes_again("We meet on the first Wednesday of every month.", [date(2026, 12, 2)])
    [datetime.date(2026, 12, 2)]
    """
    weekly = told_weekdays(text)
    text = re.sub(r"\b[1-4](?=st |nd |rd |th )", lambda n: _NTHS[int(n[0]) - 1], plain(text))
    found = (one for one in _MONTHLY.finditer(text) if not _is_over(text, one))
    found = (one for one in found if tense.direction(text, *one.span()) != tense.PAST)
    monthly = [(calendar.WEEKDAYS[m["day"][:3].lower()], m["nth"].lower()) for m in found]
    again = []
    for day in days:
        on, left = day.weekday(), monthrange(day.year, day.month)[1] - day.day
        nths = [*_NTHS, ""][(day.day - 1) // 7], "last" * (left < 7)
        again += [day] * (on in weekly or any((on, nth) in monthly for nth in nths))
    return again


def _is_over(text: str, every: re.Match[str]) -> bool:
    """Whether a text says that there is nothing on these weekdays any more."""
    first, last = tense.clause(text, *every.span())
    before = text[first : every.start()]
    return _GIVEN_UP.search(text[first:last]) is not None or _INSTEAD_OF.search(before) is not None


def days_of_span(found: re.Match[str], today: date, *, past: bool) -> Days | None:
    """The days of a match of SPAN, None if no calendar has them; of what is past, until today."""
    season = (found["season"] or found["unit"] or "year").lower()
    named, step = found["year"] or found["of"], (found["step"] or "").lower()

    def of_year(year: int) -> Days:
        if season in calendar.SEASONS or season == "year":
            first = date(year, calendar.SEASONS.get(season, 1), 1)
            return first, add_months(first, 12 if season == "year" else 3) - timedelta(days=1)
        day, days = calendar.feast_day(season, year), calendar.LONG_FEASTS.get(season, (0, 0))
        return day + timedelta(days=days[0]), day + timedelta(days=days[1])

    with suppress(KeyError, OverflowError, ValueError):  # "Eaſter"; the year 0; the year 9999
        if named or step == "next" or (step == "last" and season == "year"):
            first, last = of_year(int(named or today.year + (1 if step == "next" else -1)))
        else:
            first, last = calendar.nearest(of_year, today, -1 if past or step == "last" else 1)
        return first, (min(last, today) if past and first <= today else last)
    return None


def days_of(
    found: re.Match[str], today: date | None = None, *, past: bool = False
) -> Iterator[Days]:
    """The days of a match of WRITTEN, none if no calendar has them.

    today: of a question, whose year may be left out.
    """
    # "31 February"; "December 9999"; "Auguſt" only looks like a month
    with suppress(KeyError, OverflowError, ValueError):
        month, nth = month_number(found["month"]), int(found["nth"] or 1)
        first = date(int(found["year"] or (today or date.min).year), month, nth)
        if today is not None and not found["year"]:
            if past and first > today:
                first = first.replace(today.year - 1)
            elif not past and (first if found["nth"] else add_months(first, 1)) < today:
                first = first.replace(today.year + 1)
        if not found["nth"]:
            yield first, add_months(first, 1) - timedelta(days=1)
        else:
            length = {None: 0, "weekend": 1, "week": 6}[found["unit"]]
            begins = first.replace(day=int(found["from"] or nth))
            yield min(begins, first), first + timedelta(days=length)


# -- plans that are moved ------------------------------------------------------------------------


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
    days = [*_named_days(text, said)]
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


def _named_days(text: str, said: date) -> Iterator[Mention]:
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


# -- since when -------------------------------------------------------------------------------

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
    coming = tense.direction(fact, *length.span()) == tense.COMING
    return tense.is_perfect(fact[: length.start()]) and not coming


def _date_of(found: re.Match[str], told: date) -> date:
    if not found["month"]:
        return date(int(found["year"]), 1, 1)
    month, nth = month_number(found["month"]), int(found["nth"] or 1)
    year = int(found["year"] or told.year)
    day = date(year, month, nth)
    if found["year"]:
        return day
    since = found[0].lower().startswith("since")
    if not since and tense.direction(found.string, *found.span()) == tense.COMING:
        over = (month, int(found["nth"] or 31)) < (told.month, told.day)
        return date(year + over, month, nth)
    return day if day <= told else date(year - 1, month, nth)

"""English: how long ago, how long between, which first, and how old somebody is.

A small model can name a day, and can neither count nor compare days. It quotes an age as it was
told, years later, too. So such a question is taken apart into its events, or into whose age it is,
and the answer is worded from their days. Knows texts and days; no message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import Literal, NamedTuple

from edgemem.language.en import (
    A_NUMBER,
    KIN,
    NUMBER_WORDS,
    STOP_WORDS,
    content_words,
    is_question,
    number,
    same_word,
    sentences,
    words,
)
from edgemem.language.en_calendar import (
    A_MONTH,
    A_NAMED_DAY,
    DAYS,
    MONTHS,
    day_text,
    earlier,
    month_number,
)
from edgemem.language.en_dates import COUNT, UNIT
from edgemem.language.en_days import mentions, told_days
from edgemem.language.en_plain import plain
from edgemem.language.other import spelled_days

__all__ = ["Birth", "Comparison", "Event", "age_text", "begins", "births", "comparison"]
__all__ += ["counted_down", "counts_down", "days_told", "is_vague", "tells_of_death", "whose_age"]
__all__ += ["worded"]

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


# -- how old ----------------------------------------------------------------------------------

_FAR = 60  # characters between a name and an age
_OLDEST = 120
_LONGEST_TOLD = 1000  # characters of a sentence that tells an age
_ASKED = re.compile(
    r"\bhow old(?: is| are| am|['’]s| would| must| has| have| does that make) (?P<a>.+)"
    r"|\b(?:what|which) age(?: is| are| am|['’]s| has) (?P<b>.+)"
    r"|\bthe age of (?P<c>.+)"
    r"|(?!.*the age of)\b(?:what(?:(?: is| are|['’]s) )?|^)(?P<d>[^?.!,]+?)(?:['’]?s)? age\b.*",
    re.I,
)
_NOT_NOW = re.compile(r"\b(?:was|were|will|when|did|had|shall|need|until|turning|to be)\b", re.I)
_FILLERS = frozenset(
    "about age again anyway be become by can currently days exactly form get gets getting got has "
    "have if is know lol make me minute moment much must now nowadays old present please quick "
    "reached remind right rn roughly say tell that these this time today turned would".split()
)
_N = rf"(?P<n>\d{{1,3}}|{A_NUMBER})"
_AGED_IN = r"(?:(?P<unit>year|month|week|day)|yr)s?"
_AND_MORE = rf"(?!,? (?:and |or )?(?:\d|(?:{'|'.join(NUMBER_WORDS)})\b))"
_STOP = r"\Z|[.,;:!?()…](?!\d)|(?:and|but|now|today|so|already)\b"
_ENDS = rf"{_AND_MORE}(?=\W*(?:{_STOP}))"
_WHEN = r"(?:on|at|in|this|next|last|tomorrow|today|yesterday)\b"
_NTH = r"(?:st|nd|rd|th)"
_BIRTHPLACE = (
    r"(?:(?!,? (?:and|but|when|since|before|after|until|while|around|about|moved|came|left)\b"
    r"|[,;] (?:i|we|s?he|they|it|who|which|my|\w+ed)\b).){0,40}"
)
"""What follows "born" up to another event: "born in Leeds, moved in 2010"."""
_BORN = re.compile(
    r"(?:\b(?:born|d\.?o\.?b|date of birth|birth ?date)\b"
    rf"|(?:,|\b(?:was|were|been)) (?:built|whelped)\b)(?P<rest>{_BIRTHPLACE})",
    re.I,
)
_BORN_SHORT = re.compile(r"\(b\.")
_BIRTHDAY = re.compile(
    r"\b(?:birthday|bday)(?: is\b|['’]s\b|[:,=]| \()"
    rf"(?P<rest>\W*(?:on |the )*(?:\d|(?:{A_MONTH})\b).{{0,30}})",
    re.I,
)
_TURNS = re.compile(
    r"\b(?:(?P<turns>turn(?P<past>ed)?(?:s|ing)?|(?:will|['’]ll|gonna|going to) be)"
    rf"|(?:is|am|was|are|s?hes|['’](?:s|m|re))(?= [\w-]+ {_WHEN})) {_N}{_AND_MORE}"
    rf"(?=\W*(?:{_STOP}|{_WHEN}|(?:over|an?|two|years? old)\b))"
    rf"|(?:(?<=s )|(?<=\bmy ))(?P<nth>\d{{1,3}}){_NTH}"
    rf"(?= (?:(?:birthday|bday)(?: is| was)?|is|was) (?:{_WHEN}|\d))",
    re.I,
)
_IS = re.compile(
    rf"\b{_N}[- ]?{_AGED_IN}[- ]?old\b"
    rf"|\b(?:is|am|are|aged?|['’](?:s|m|re)) (?:only |just |now |already )?"
    rf"{_N.replace('?P<n>', '?P<bare>')}{_ENDS}"
    r"|(?<=\w )\((?P<aged>\d{1,2})\)|(?<=[A-Z]\w), (?P<beside>\d{1,2})(?=[,.;])",
    re.I,
)
_ENDED = re.compile(_ENDS, re.I)
_ADJECTIVE = re.compile(r"(?:year|yr|month|week|day)[- ]?old\Z", re.I)  # "my 12-year-old"
_NOT_SO = re.compile(
    r"\b(?:when|since|before|after|until|till|once|if|unless|wish)\b[^,;]*\Z|\b(?:was|were|been)\s*\Z",
    re.I,
)
"""Before an age that is none of today: "when I'm 64", "he was 12 years old"."""
_DEAD = re.compile(
    r"\b(?:died|dead|death|deceased|buried|funeral|rest in peace|rip|put to sleep|been gone"
    r"|(?:my|our|his|her|their|the) late|would(?: have|['’]?ve) been|would be \d"
    rf"|passed (?:away|on|last|this|(?:{'|'.join(DAYS)})\b))\b",
    re.I,
)
_BESIDE = (
    r"(?:[\s,:(]|['’]?(?:s|m|re|ve)\b|\b(?:is|am|are|was|were|be|been|being|have|has|had|having|just"
    r"|only|now|already|finally|also|who|which|age|(?:live|work) with|(?:from|at|in) \w+)\b)*"
)
_TO_SPEAKER = re.compile(_BESIDE, re.I)
_TO_OTHER = re.compile(
    r"(?:(?:(?!\b(?:an?|says?|said|thinks?|thought|tells?|told|asked|knows?)\b).)*"
    rf"\b(?:s?he|they)(?:s|re)?\b)?{_BESIDE}",
    re.I | re.S,
)
"""What may lie between a name and an age. Any other word may be what has the age: "Tom's car is
12", "Tom says she is 12"."""
_YEAR = re.compile(r"\b(?:1[89]|20)\d\d\b")
_MENTION = re.compile(rf"\b(?:(?P<own>i|my)|(?P<kin>{KIN})|(?P<word>\w+))\b", re.I)
_POSSESSIVE = re.compile(r"['’]s?\s+")
_APART = re.compile(r"[\s,(:]*(?:(?:the|is|are|called|named)[\s,]+){0,3}")
"""What may lie between the names of one person: "my daughter, Mia"."""
_PRONOUN = re.compile(r"\b(?:he|she|they|it)\b", re.I)
_SPEAKER = frozenset(("i", "my"))
_SPEAKER_IN = re.compile(r"^(?:i|me)\b|\bmy(?: own| current| present)?\Z", re.I).search
_IN_MONTHS, _IN_WEEKS = 2, 60  # years, days below which an age is told in months, in weeks
_NO_NAMES = frozenset(map(str.lower, (*MONTHS, *DAYS))) | STOP_WORDS


class Birth(NamedTuple):
    """The first and the last day on which somebody may have been born, by what was told.

    of_age: whether an age was told, and no day or year of birth.
    """

    first: date
    last: date
    of_age: bool = False


def whose_age(question: str) -> set[str] | None:
    """The words for the one whose present age a question asks for: "i" for the speaker. None if it
    asks for no such age.

    >>> sorted(whose_age("How old is my aunt Rosa now?")), whose_age("How old was I then?")
    (['aunt', 'rosa'], None)
    """
    text = plain(question).strip()
    found = _ASKED.search(text) if len(text) <= _LONGEST and not _NOT_NOW.search(text) else None
    if found is None:
        return None
    whom = next(filter(None, found.groups()))
    if _SPEAKER_IN(whom):
        return {"i"}
    asked = {*content_words(whom)} - _FILLERS
    if not asked:  # "And my sister Rosalind, what is her age?"
        named = _mentions(text[: found.start()], set())
        asked = {*named[-1].names} - _SPEAKER if named else asked
    return asked or None


def births(text: str, said_at: str, asked: set[str]) -> list[Birth]:
    """When somebody was born, by each sentence that tells it or tells an age. said_at: local ISO.
    asked: the words for that one, as `whose_age` gives them.

    >>> births("My aunt Rosa was born on 3 May 1961.", "2026-01-05T10:00:00", {"rosa"})
    [Birth(first=datetime.date(1961, 5, 3), last=datetime.date(1961, 5, 3), of_age=False)]
    """
    said = datetime.fromisoformat(said_at).date()
    found = []
    for before, sentence in pairwise(["", *sentences(_BORN_SHORT.sub("(born", plain(text)))]):
        if len(sentence) > _LONGEST_TOLD or is_question(sentence):
            continue
        if tells_of_death(f"{before[-_LONGEST_TOLD:]} {sentence}", asked):
            continue
        for start, end, birth in _told(sentence, said, said_at):
            if birth.of_age and _NOT_SO.search(sentence[:start]):
                continue
            if _is_of(before[-_LONGEST_TOLD:], sentence, start, end, asked - _SPEAKER):
                found.append(birth)
    return found


def tells_of_death(text: str, asked: set[str]) -> bool:
    """Whether a text that names the one who is asked about tells of a death. Never the speaker's.

    >>> tells_of_death("Grandpa was born in 1930 and died in 2001.", {"grandpa"})
    True
    """
    if asked <= _SPEAKER or not _DEAD.search(text):
        return False
    named = words(text.lower())
    return all(same_word(word, named) for word in asked)


def _told(sentence: str, said: date, said_at: str) -> Iterator[tuple[int, int, Birth]]:
    """The births that a sentence tells, each with the characters that tell it."""
    with suppress(KeyError, ValueError, OverflowError):  # "ſix"; "aged 120", said in the year 100
        for found in (*_BORN.finditer(sentence), *_BIRTHDAY.finditer(sentence)):
            rest = found["rest"]
            year = _YEAR.search(rest)
            days = [days for days in told_days(f"on{rest}", said_at) if days[0] <= said]
            if found.re is _BIRTHDAY and not (days and year and int(year[0]) < said.year):
                continue  # this year's, or one that is celebrated
            if days:
                yield *found.span(), Birth(*days[0])
            elif year and int(year[0]) <= said.year:
                yield *found.span(), Birth(date(int(year[0]), 1, 1), date(int(year[0]), 12, 31))
        for found in _TURNS.finditer(sentence):
            n = number(found["n"] or found["nth"])
            days = told_days(sentence[found.start() if found["nth"] else 0 :], said_at)
            if n > _OLDEST or not (days or found["turns"]):
                continue
            if days:
                first, last = days[0]
            elif found["past"]:
                first, last = earlier(said, 3, "month"), said
            else:
                first, last = said, earlier(said, -1, "year")
            yield *found.span(), Birth(earlier(first, n, "year"), earlier(last, n, "year"), True)
        for found in _IS.finditer(sentence):
            n = number(next(filter(None, found.group("n", "bare", "aged", "beside"))))
            unit = (found["unit"] or "year").lower()
            if n <= _OLDEST:
                first = earlier(said, n + 1, unit) + timedelta(days=1)
                yield *found.span(), Birth(first, earlier(said, n, unit), True)


class _Mention(NamedTuple):
    """Somebody's names where a text names them. head: those after the last possessive."""

    start: int
    end: int
    names: tuple[str, ...]
    head: tuple[str, ...]


def _mentions(text: str, asked: set[str]) -> list[_Mention]:
    """Whom a text names, in order. The speaker's names are "i" or "my". asked: more names."""
    found: list[_Mention] = []
    for match in _MENTION.finditer(text):
        name = match[0].lower()
        if match["word"] and not (
            (same_word(name, asked) and name[:-1] not in asked)
            or (match[0][0].isupper() and name not in _NO_NAMES)
        ):
            continue
        names = tuple(words(name))
        if found and _POSSESSIVE.fullmatch(text, found[-1].end, match.start()):
            found[-1] = _Mention(found[-1].start, match.end(), found[-1].names + names, names)
        elif found and _APART.fullmatch(text, found[-1].end, match.start()):
            *_, said, head = found[-1]
            found[-1] = _Mention(found[-1].start, match.end(), said + names, head + names)
        else:
            found.append(_Mention(*match.span(), names, names))
    return found


def _is_of(before: str, sentence: str, start: int, end: int, asked: set[str]) -> bool:
    """Whether the characters [start, end) of a sentence tell of the one who is asked about.

    before: the sentence before it. asked: the words for that one; none for the speaker. It is
    whoever is named last before these characters, or right after ("our 12-year-old son").
    """
    lead, told, rest = f"{before} {sentence[:start]}", sentence[start:end].lower(), sentence[end:]
    named, after = _mentions(lead, asked), _mentions(rest, asked)
    if asked:
        named = [each for each in named if not _SPEAKER.issuperset(each.names)]
    adjective = _ADJECTIVE.search(told)
    if adjective and after and not rest[: after[0].start].strip():
        return bool(asked) and _is_named(after[0], asked)
    if told.endswith("old") and not _ENDED.match(rest):
        return False  # "my 12-year-old car"
    if len(named) > 1 and _PRONOUN.search(lead, named[-1].end):
        return False  # "Mia loves Tom. She is 7."
    if not named:  # "born in 1994 and already bad knees"
        return not (asked or after or sentence[:start].strip() or told.endswith("old"))
    gap = lead[named[-1].end :]
    owned = _POSSESSIVE.fullmatch(gap)
    if (adjective and (owned or "my" in named[-1].names)) or (owned and told.startswith("is")):
        return False  # "my 12-year-old and I", "my shoe size is 42 and Mia's is 37"
    if len(gap) > _FAR or (told[0] in "(," and gap.strip()):
        return False
    if not asked:
        return _SPEAKER.issuperset(named[-1].names) and bool(_TO_SPEAKER.fullmatch(gap))
    return _is_named(named[-1], asked) and bool(_TO_OTHER.fullmatch(gap))


def _is_named(mention: _Mention, asked: set[str]) -> bool:
    """Whether a mention has all the words asked for, and one of them after the last possessive.

    "My daughter" is no daughter of Tom.
    """
    owners = {*mention.names} - {*mention.head} - _SPEAKER
    if owners.isdisjoint(asked) and owners and all(re.fullmatch(KIN, word) for word in asked):
        return False
    known = all(same_word(word, {*mention.names}) for word in asked)
    return known and any(same_word(word, {*mention.head}) for word in asked)


def age_text(birth: Birth, today: date) -> str | None:
    """How old somebody is, as a number of years, or of months or weeks for a child.

    "6 or 7" if the birthday is not known; None if more is unknown.

    >>> age_text(Birth(date(2019, 1, 1), date(2019, 12, 31)), date(2026, 3, 1))
    '6 or 7'
    """
    first, last = _years(birth.last, today), _years(birth.first, today)
    if first < 0 or last > first + 1:
        return None
    if last < _IN_MONTHS:
        days = (today - birth.first).days, (today - birth.last).days
        unit, n = ("week", 7) if days[0] < _IN_WEEKS else ("month", 30.44)
        if days[0] - days[1] > n:
            return None
        return counted(int(days[0] // n), unit)
    return f"{first}" if first == last else f"{first} or {last}"


def _years(birth: date, today: date) -> int:
    return today.year - birth.year - ((today.month, today.day) < (birth.month, birth.day))

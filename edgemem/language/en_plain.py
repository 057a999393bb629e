"""English: the plain form of what is typed in haste, such as "wat am i doin weds".

Chats on a phone drop letters, apostrophes and capitals. Only what no careful writer writes is
written out: closed lists of spellings. A weekday's short form may be a word of its own ("we sat in
the sun", "they wed in May"); the words beside it decide. The plain form is for reading. What is
stored and shown stays as it was typed.

Knows spellings; nothing of dates, questions or memories.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from edgemem.language.en_calendar import DAYS, MONTHS
from edgemem.language.other import is_other_language

__all__ = ["plain", "plain_places"]

_SPELLINGS = {
    written: word
    for word, spellings in {
        "what": "wat wot wht waht",
        "what's": "whats wats wots whts",
        "when": "whn",
        "when's": "whens wens",
        "where": "wher whr",
        "where's": "wheres weres",
        "who's": "whos",
        "how's": "hows",
        "which": "wich whch",
        "with": "wiv",
        "you": "u",
        "your": "ur",
        "about": "abt",
        "before": "b4",
        "because": "coz cuz becuz",
        "please": "plz pls",
        "thanks": "thx",
        "people": "ppl",
        "someone": "sum1 some1",
        "anyone": "any1 ne1",
        "everyone": "every1",
        "something": "summat sumthin somethin sumthing",
        "anything": "owt anythin",
        "nothing": "nowt nothin nuthin",
        "everything": "everythin",
        "should": "shud",
        "would": "wud",
        "today": "2day",
        "tonight": "2nite 2night tonite",
        "tomorrow": "2moro 2morro 2morrow 2moz tomoz tmoro tmorrow tmrw tmw tmz tomorow tommorow "
        "tommorrow tomorrrow tomorro tomrrow tommorw tomorwo tomorrw",
        "yesterday": "yday yest ystrday yesturday yesteday yesterdy yesterady",
        "night": "nite",
        "nights": "nites",
        "morning": "mornin",
        "evening": "evenin",
        "afternoon": "arvo",
        "next": "nxt",
        "week": "wk",
        "weeks": "wks",
        "weekend": "wkend wknd wkd weeknd",
        "birthday": "bday bdy birfday",
        "happened": "happend happned",
        "christmas": "xmas crimbo",
        "phone": "fone",
        "appointment": "appt apptmt",
        "monday": "mondy monady mnday",
        "tuesday": "tusday tuesdy tuesdsay teusday tueday tuseday",
        "wednesday": "weds wensday wendsday wensdy wendesday wednsday wedensday wedneday wednesdy",
        "thursday": "thursdy thrusday thurday thusday thrsday thurdsay",
        "friday": "fridy firday fridya",
        "saturday": "satday saterdy saterday saturdy satruday staurday saturaday",
        "sunday": "sundy sudnay sundya",
        "january": "janurary janaury januray",
        "february": "febuary feburary februrary febraury",
        "august": "augest",
        "september": "septmber setpember sepember",
        "october": "ocotber octobor",
        "november": "novemeber novmber novembr",
        "december": "decemeber decmber decembr",
    }.items()
    for written in spellings.split()
}  # fmt: skip
_VERBS = (
    "ask bake be book bring build buy call change check clean come cook cut dance do drink drive "
    "dye eat feel fill finish fix get give go happen have help hope keep leave listen live look "
    "lose make meet mess miss move need open order paint pay phone pick plan play post put "
    "read ride ring run save say see sell send shop show sing sit sleep sort spend start stay stop "
    "study swim take talk teach tell text think train travel try turn use visit wait wake walk "
    "want wash watch wear win work worry write"
).split()
_DOUBLED = "get put run cut swim win stop sit shop plan".split()  # the last letter, before "-ing"
_GOING = {
    f"{stem}in": f"{stem}ing"
    for verb in _VERBS
    for stem in (
        verb + verb[-1] if verb in _DOUBLED
        else verb.removesuffix("e") if verb not in ("be", "see", "dye")
        else verb,
    )
}  # fmt: skip
_GOING["dyin"] = "dyeing"
_SHORT = {
    "mon": "monday", "tue": "tuesday", "tues": "tuesday", "wed": "wednesday", "thu": "thursday",
    "thur": "thursday", "thurs": "thursday", "fri": "friday", "sat": "saturday", "sun": "sunday",
}  # fmt: skip
_VAGUE = frozenset("mon tue wed thu sat sun".split())  # may be words of their own, or names
_VERBAL = frozenset(("sat", "wed"))
_KNOWN = frozenset((*_SPELLINGS, *_GOING, *_SHORT, "wen", "were", "dis"))
_LONG = frozenset(day.lower() + s for day in DAYS for s in ("", "s"))
_MONTHS = frozenset(map(str.lower, MONTHS))

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_LISTED = re.compile(r" ?[,&+/–-] ?| ")
_JOINS = frozenset("and n or to till til until".split())
_WHOM = frozenset(
    "i he she we they you who it that everyone everybody someone somebody nobody all both just and "
    "then also then never always".split()
)
_OF = frozenset(
    "a an the my your his her our their its some no much more hot warm strong full bright low of "
    "under".split()
)
_NO_DAY_AFTER = _OF | frozenset("be been being are was were am get getting newly with".split())
_NO_LIST = _OF | (_WHOM - {"and"})
_NO_MON = frozenset("hey yeah yea yes ya no oh ok mate".split())  # "hey mon"
_SUN_AFTER = frozenset(("for", "from", "to", "each", "every"))
_MOST = 12  # words of a clause that are read
_ON = frozenset("on by since until till til for from to next last this coming every each".split())
_ARTICLES = frozenset(("a", "an", "the"))  # "a takin" lives in the Himalayas
_STEPS = frozenset(("this", "next", "last", "that"))
_PARTS = frozenset("morning afternoon evening night lunchtime".split())
_ENDS = r"\s*(?:\Z|[.,!?;:)…\n]|[-–—] )"
_AN_HOUR = (
    r"\d\d?(?:[:.]\d\d)?(?:(?= ?[ap]\.?m\b| ?- ?\d| (?:ti?ll?|to|until|and|n|or|at|with|in|for|if"
    rf"|but|sharp|o['’]?clock|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\w*\b)|(?={_ENDS}))"
)
_AROUND = "(?:at|from|around|about|after|before|by)"
_TIMED = re.compile(
    rf",? (?:the )?(?:\d\d?(?:st|nd|rd|th)\b|(?:{_AROUND} )?{_AN_HOUR}"
    rf"|{_AROUND} (?:half|quarter|noon|midday|lunch)\b)",
    re.I,
)
_GOES_ON = re.compile(
    rf"{_ENDS}| (?:and|n|or|but|so|cos|coz|because|if|when|then|instead|too|again|now|not|i|im"
    r"|i['’]m|we|she|he|they|you)\b",
    re.I,
)
_AND_MORE = re.compile(rf"{_GOES_ON.pattern}| (?:at|in|with|wiv|for|to|from|till?|until)\b", re.I)
# Beside these a day is what follows: what one does, where one is, what one has.
_DOES = frozenset(
    "dentist doctor doctors gp vet vets hospital clinic physio optician opticians haircut hair "
    "hairdresser hairdressers nails cinema film movie movies theatre gig concert party wedding bbq "
    "barbecue dinner lunch brunch breakfast drinks pub meal takeaway gym yoga pilates swim "
    "swimming run running football footy rugby cricket tennis hockey golf netball basketball match "
    "game training practice rehearsal choir lesson course exam test interview meeting appointment "
    "jab scan checkup delivery viewing flight ferry shift work working works school college uni "
    "nursery church market shopping sleepover playdate zoo museum beach quiz bingo mot holiday off "
    "free busy closed open shut doing going coming playing training meeting seeing leaving".split()
)
_IS_AT = frozenset("in out home back away round over around on here there up town".split())
_CALLS = frozenset("call ring text see meet visit phone".split())
_HAS = frozenset("got have going off free need see meet call ring text visit book".split())
_OPENS = frozenset("do does did am are is will can shall what when who anything plans".split())
_THIS = frozenset("weekend week month morning afternoon evening year".split())
_WHEN = frozenset("is did do does are was we i u you my the has have can shall am".split())
_WHERE = frozenset("did do does is am are was can".split())


def plain(text: str) -> str:
    """The text with unmistakable chat spellings written out; text of another language as it is.

    >>> plain("wat am i doin weds, n wens my dentist")
    "what am i doing wednesday, n when's my dentist"
    """
    return plain_places(text)[0]


def plain_places(text: str) -> tuple[str, tuple[int, ...]]:
    """The plain form, and the index in `text` of each of its characters; none if both are the same.

    A word that is written out has the index of its first character at its start, and that of its
    last one at its end.
    """
    read, places = text, tuple[int, ...]()
    if _KNOWN.isdisjoint(_WORD.findall(text.lower())):
        return read, places
    spans, said = _words_of(text)
    for written_out in (_spellings, _weekdays):  # a day's neighbours are read as plain words
        found = [*written_out(read, spans, said)]
        if not found:
            continue
        if not places and is_other_language(text):
            break
        read, places = _replaced(read, found, places or range(len(text)))
        spans, said = _words_of(read)
    return read, places


def _replaced(
    text: str, found: Sequence[tuple[int, int, str]], at: Sequence[int]
) -> tuple[str, tuple[int, ...]]:
    """The text with these words in the places of others, and the index of each character.

    at: the index of each character of `text` in the text that was typed.
    """
    out: list[str] = []
    places: list[int] = []
    end = 0
    for start, stop, word in found:
        first, last = at[start], at[stop - 1]
        out += text[end:start], word
        places += at[end:start]
        places += (min(first + n, last) for n in range(len(word) - 1))
        places.append(last)
        end = stop
    return "".join((*out, text[end:])), (*places, *at[end:])


def _spellings(
    text: str, spans: Sequence[tuple[int, int]], said: Sequence[str]
) -> Iterator[tuple[int, int, str]]:
    """The chat spellings of a text: where they are, and what they are written out as."""
    for i, word in enumerate(said):
        if word in _KNOWN and _alone(text, *spans[i]):
            spelled = _spelled(text, spans, said, i)
            written = spelled and _as_typed(spelled, text, *spans[i])
            if written:
                yield *spans[i], written


def _weekdays(
    text: str, spans: Sequence[tuple[int, int]], said: Sequence[str]
) -> Iterator[tuple[int, int, str]]:
    """The short forms of weekdays in a text whose other words are plain."""
    days = [i for i, word in enumerate(said) if word in _SHORT and _alone(text, *spans[i])]
    if days:
        sure = {i for i in days if said[i] not in _VAGUE or _is_day(text, spans, said, i)}
        listed = {*_in_lists(text, spans, said, sure)}
        for i in days:
            if (i in sure or i in listed) and (
                written := _as_typed(_SHORT[said[i]], text, *spans[i])
            ):
                yield *spans[i], written


def _words_of(text: str) -> tuple[list[tuple[int, int]], list[str]]:
    """The places of the words of a text, and the words in lower case."""
    spans = [found.span() for found in _WORD.finditer(text)]
    return spans, [text[start:end].lower() for start, end in spans]


def _alone(text: str, start: int, end: int) -> bool:
    """Whether a word is no part of a compound, an address or an abbreviation."""
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    return not (
        before[-1:] in tuple("@/#&'’-_=$£€\\")
        or (before[-1:] in tuple(".:") and before[:1].isalnum())
        or after[:1] in tuple("@/&-_=\\")
        or (after[:1] in tuple(".:") and after[1:].isalnum())
    )


def _as_typed(word: str, text: str, start: int, end: int) -> str | None:
    """The word with the capitals of what it replaces; None for what is an abbreviation or a name in
    a text with small letters."""
    typed = text[start:end]
    if typed.islower():
        return word
    if typed.isupper() and end - start > 1:
        return word.upper() if text.isupper() else None
    first = not text[:start].strip() or text[:start].rstrip()[-1:] in ".!?…\n"
    if word in _LONG or word in _MONTHS or first:
        return word[:1].upper() + word[1:]
    return None


def _spelled(
    text: str, spans: Sequence[tuple[int, int]], said: Sequence[str], i: int
) -> str | None:
    word = said[i]
    after = said[i + 1] if _next_to(text, spans, i) else ""
    if word == "wen":
        return "when" if after in _WHEN and _before(text, spans, said, i) not in _OF else None
    if word == "were":
        return "where" if after in _WHERE and _begins(text, spans, i) else None
    if word == "dis":
        return "this" if _SPELLINGS.get(after, after) in _THIS else None
    before = _before(text, spans, said, i)
    if word in _SPELLINGS:
        return None if word in ("wat", "cuz") and before in _OF else _SPELLINGS[word]
    return None if before in _ARTICLES else _GOING.get(word)


def _next_to(text: str, spans: Sequence[tuple[int, int]], i: int) -> bool:
    """Whether only a space is between a word and the next one."""
    return i + 1 < len(spans) and text[spans[i][1] : spans[i + 1][0]].isspace()


def _begins(text: str, spans: Sequence[tuple[int, int]], i: int) -> bool:
    """Whether a word begins its clause."""
    between = text[spans[i - 1][1] : spans[i][0]] if i else ""
    return not between.isspace() or "\n" in between


def _in_lists(
    text: str, spans: Sequence[tuple[int, int]], said: Sequence[str], sure: Collection[int]
) -> Iterator[int]:
    """The short forms that stand in a list with other weekdays: "mon wed n fri". sure: those that
    are days wherever they stand."""
    days = [i for i, word in enumerate(said) if word in _SHORT or word in _LONG]
    run: list[int] = []
    for i in [*days, -1]:
        if run and not _joined(text, spans, said, run[-1], i):
            surely = any(of in sure or said[of] in _LONG for of in run)
            if len(run) > 2 or (len(run) > 1 and (surely or _is_pair(text, spans, run))):
                yield from (of for of in run if _may_be_listed(text, spans, said, of, run[-1]))
            run = []
        run.append(i)


def _joined(
    text: str, spans: Sequence[tuple[int, int]], said: Sequence[str], one: int, other: int
) -> bool:
    """Whether nothing but a comma or a conjunction is between two words."""
    if other == one + 1:
        return _LISTED.fullmatch(text, spans[one][1], spans[other][0]) is not None
    within = other == one + 2 and _next_to(text, spans, one) and _next_to(text, spans, one + 1)
    return within and said[one + 1] in _JOINS


def _is_pair(text: str, spans: Sequence[tuple[int, int]], run: Sequence[int]) -> bool:
    """Whether more than a space joins the first two of a list."""
    return not text[spans[run[0]][1] : spans[run[1]][0]].isspace()


def _may_be_listed(
    text: str, spans: Sequence[tuple[int, int]], said: Sequence[str], i: int, last: int
) -> bool:
    """Whether a short form in a list may be a day: not that of "came on thursday, sat on a bin"."""
    if said[i] not in (*_VERBAL, "sun"):
        return True
    end = spans[i][1]
    goes = i != last or _AND_MORE.match(text, end) or _TIMED.match(text, end)
    return bool(goes) and _before(text, spans, said, i) not in _NO_LIST


def _before(text: str, spans: Sequence[tuple[int, int]], said: Sequence[str], i: int) -> str:
    """The word before another in its clause; "" if there is none."""
    return "" if _begins(text, spans, i) else said[i - 1]


def _is_day(text: str, spans: Sequence[tuple[int, int]], said: Sequence[str], i: int) -> bool:
    """Whether a short form that may be another word is a day by the words beside it."""
    word, (start, end) = said[i], spans[i]
    before = _before(text, spans, said, i)
    two = _before(text, spans, said, i - 1) if before else ""
    after = said[i + 1] if _next_to(text, spans, i) else ""
    if before in _WHOM:
        return False
    if after in _PARTS:
        return word != "sun" or before != "the"
    timed, ends = _TIMED.match(text, end) is not None, _GOES_ON.match(text, end) is not None
    more = ends or _AND_MORE.match(text, end) is not None
    if before in _ON:
        close = word == "sun" or before in _STEPS
        return timed or ((ends if close else more) and (word != "sun" or before not in _SUN_AFTER))
    if before in _NO_DAY_AFTER:
        return False
    if text[start].isupper() and text[start + 1 : end].islower() and before:
        return word != "thu" and not text[end : end + 2].strip()[:1].isupper()
    of_somebody = two in _NO_DAY_AFTER or (before and text[spans[i - 1][0]].isupper())
    if timed:
        return not (word in _VERBAL and of_somebody)
    if before in _DOES:
        return more and two not in _NO_DAY_AFTER
    if before in _IS_AT and not (word == "sun" and before == "in"):
        return ends
    if not (ends and before):
        return False
    if word not in ("sat", "sun"):
        return before not in _NO_MON
    return not of_somebody and _tells_already(text, spans, said, i, word)


def _tells_already(
    text: str, spans: Sequence[tuple[int, int]], said: Sequence[str], i: int, word: str
) -> bool:
    """Whether what comes before "sat" or "sun" in its clause needs no verb and no thing more."""
    first = i
    while first > max(0, i - _MOST) and not _begins(text, spans, first):
        first -= 1
    head = said[first:i]
    if head[0] in _CALLS:
        return True
    return word == "sat" and (
        head[0] in _OPENS or any(w in _HAS or (w.endswith("ing") and len(w) > 4) for w in head)
    )

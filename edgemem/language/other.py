"""Languages other than English: whether a query is in one, how its words are compared, its dates.

Nothing here knows the inflections and compounds of other languages, and Han, kana and Thai put no
space between words. So words are compared by their character n-grams (`grams`), which inflected
and compound words share.

Of dates, German and Spanish names are read, and numbers with the day first. "3.12." and "14/12" are
days beside the right words; alone they are a price, a version, a share. A number either of which
may be the month has two readings. The rest of a text stays in its language.
"""

from __future__ import annotations

import re
import unicodedata
from contextlib import suppress
from datetime import date
from functools import lru_cache, partial
from itertools import chain, pairwise

from edgemem.language.en import STOP_WORDS, words
from edgemem.language.en_calendar import A_MONTH, DAYS, MONTHS, SPELLED_NTH, day_text, spelled_nth

__all__ = [
    "APOSTROPHES",
    "DIGRAPHS",
    "GRAMS_A_WORD",
    "KIN_ABROAD",
    "NAMED_ABROAD",
    "as_words",
    "grams",
    "is_other_language",
    "is_other_script",
    "is_unspaced",
    "joins_words",
    "name_forms",
    "spelled_days",
    "undisguised",
]

GRAMS_A_WORD = 3
"""About how many grams correspond to one English word."""

NAMED_ABROAD = (
    r"(?:(?<!das )(?<!was )(?<!wie )hei(?:ß|ss)(?:t|e|en)|hie(?:ß|ss)(?:en)?|namens|mein name ist|"
    r"(?:se|me|te) llam(?:an?|o|as|aba)|mi nombre es|[sm]['’]appelle|(?:si|mi) chiam[ao]|"
    r"mon nom est|il mio nome è)"
)
"""A regular expression of what stands before a name in German, Spanish, French and Italian. It is
for text in any case."""


def _after(whose: str, kin: str) -> str:
    return rf"(?:{whose})\s(?:{'|'.join(kin.split())})"


KIN_ABROAD = "|".join(
    (
        # A noun has a capital in German, and stands here after a verb or at a clause's end ("Heute
        # hat mein Bruder Geburtstag"). Before its verb, at the sentence's start, it is a name.
        r"(?<![^.!?\n]\s)(?<!\w)"
        + _after(
            "[Mm]eine?|[Uu]nsere?|[Ii]hre?|[Ss]eine?",
            """Chefin Chef Bruder Schwester Mutter Mama Vater Papa Frau Mann Sohn Tochter Freundin
            Freund Kollegin Kollege Nachbarin Nachbar Onkel Tante Oma Opa Cousine Cousin Neffe
            Nichte Enkelin Enkel Schwager Schwägerin Ärztin Arzt Lehrerin Lehrer""",
        )
        + r"(?=\s\w+(?:\s\w+)?\s[a-zäöü])",
        _after(
            "[Mm]is?|[Tt]us?|[Ss]us?|[Nn]uestr[oa]s?",
            """jef[ea] herman[oa] madre padre mamá papá muj?er marido espos[oa] hij[oa] novi[oa]
            amig[oa] compañer[oa] vecin[oa] tí[oa] abuel[oa] prim[oa] sobrin[oa] niet[oa] cuñad[oa]
            suegr[oa] médic[oa] profesora?""",
        ),
        _after(
            "[Mm]on|[Mm]a|[Nn]otre",
            """frère sœur soeur mère père mari femme fils fille cheffe chef patronne patron
            collègue amie ami voisine voisin oncle tante cousine cousin""",
        ),
        _after(
            "[Mm]i[oa]|[Nn]ostr[oa]",
            """fratello sorella madre padre marito moglie figli[oa] capo collega amic[oa] vicin[oa]
            zi[oa] nonn[oa] cugin[oa]""",
        ),
    )
)
"""A regular expression of words for people by their relation to the speaker in these languages
("mi jefa"), where a capitalised word after them is a name."""

_GRAM = 4  # characters
_UNSPACED = re.compile(  # Thai, Lao, Burmese, Khmer, kana and Han; Hangul, whose words are short
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]+"
)
_PREFIXED = re.compile(r"[\u0590-\u08ff]")  # Hebrew and Arabic, whose "and", "to", "the" are joined
_LETTER = re.compile(r"[^\W\d_]")
_LATIN = re.compile(r"[A-Za-z\u00aa-\u024f\u1e00-\u1eff]")
_NAME_LENGTHS = 2, 3, 4  # characters of names in scripts without spaces

# Common words of questions in German, Dutch, Swedish with Danish and Norwegian, Spanish,
# Portuguese, French, Italian, Polish and Turkish. Words that are also an English word, name or
# place ("los", "von", "dove") are left out.
_COMMON_WORDS = frozenset(
    """und nicht ist sind wie wer wo wann warum welche welcher welches welchen welchem woher wohin
    womit wofür wogegen wovor woraus wem wen wessen wurde wird werden hatte haben der das dem
    ein eine einen einem einer ich wir ihr sie mich mein meine meinem meiner auf aus bei vom zum zur
    für über sich nach
    het een niet zijn wat waar wanneer waarom welk welke mijn ik heeft naar voor ook hij zij jij wij
    heb hebt wordt gaat doet moet eet onze jouw
    och är inte vad vem var när varför hur vilken vilket jag mitt på av som och ikke hvad hvem hvor
    hvorfor hvordan jeg hva
    qué cuál cuáles quién quiénes cómo cuándo dónde adónde cuánto cuánta cuántos cuántas que una
    unos por para es está fue desde hasta
    os um uma não são onde quando porque quem qual quanto meu minha foi ele ela em
    où qui quel quelle quels quelles quand pourquoi combien une dans avec je elle ses était
    gli della dello dei perché quale quanti quante è sono mio mia nel
    nie kto gdzie kiedy dlaczego jaki jaka jakie który która się mój moja jestem czy
    bir nerede nasıl neden hangi benim mı değil için""".split()
)
_HASTY = frozenset(("wat", "wen"))
"""What and when, as English is typed in haste: they alone make no other language."""
_WAS_HAT = re.compile(r"\bwas (?:hat|habe|hast|macht)\b", re.I)  # "was" and "hat" are English, too
_ENGLISH_WORDS = STOP_WORDS - set("a am an as do has he i in me no on so to was will".split())
"""English stop words, without those that other languages have, too."""

APOSTROPHES = str.maketrans("’‘ʼ", "'''")
"""For `str.translate`: a phone's apostrophes become a keyboard's."""

DIGRAPHS = str.maketrans(
    {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "æ": "ae", "ø": "oe", "å": "aa"}
    | {"Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "Æ": "Ae", "Ø": "Oe", "Å": "Aa"}
)
"""For `str.translate`: letters as they are typed where a keyboard lacks them ("Mueller")."""

# Letters that look like Latin ones (Unicode's confusables.txt has them all; these suffice to write
# any word). What NFKD maps by itself (full-width, mathematical, accented letters) is not here.
_LOOKS_LIKE = APOSTROPHES | str.maketrans(
    "АВЕЅІЈКМНОРСТУХԚԜаесіјкморԛѕтухԁһԝьвнΑΒΕΖΗΙΚΜΝΟΡΤΥΧαεικνορτυχօոսհցɑɡıɩʏƅℓłŁøØđĐ",
    "ABESIJKMHOPCTYXQWaecijkmopqstyxdhwbbhABEZHIKMNOPTYXaeikvoptuxonuhgagiiybllLoOdD",
)
_ODD = re.compile(r"[^\t\n\r -~]+")


@lru_cache(16)
def undisguised(text: str) -> tuple[str, tuple[int, ...]]:
    """A text as a reader sees its letters, and the index in `text` of each resulting character.

    Invisible characters and accents are dropped, letters that look like Latin ones become Latin,
    and apostrophes become straight. The result is for comparing, not for showing. For printable
    ASCII it is `text` itself, without indices.
    """
    if _ODD.search(text) is None:
        return text, ()
    out: list[str] = []
    at: list[int] = []
    end = 0
    for run in (*_ODD.finditer(text), None):
        start = len(text) if run is None else run.start()
        out.append(text[end:start])
        at += range(end, start)
        end = start if run is None else run.end()
        for place in range(start, end):
            plain = [
                c
                for c in unicodedata.normalize("NFKD", text[place])
                if unicodedata.category(c) not in ("Cf", "Mn", "Cc") and c not in _BLANK
            ]
            out += plain
            at += [place] * len(plain)
    return "".join(out).translate(_LOOKS_LIKE), tuple(at)


_BLANK = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")  # letters without a shape


def is_unspaced(text: str) -> bool:
    """Whether a text has letters of a script that puts no space between words, or Hangul."""
    return _UNSPACED.search(text) is not None


def as_words(text: str, pattern: str) -> str:
    """The pattern of a text, made to match only where words begin and end.

    Scripts without spaces have no such bounds, and a Hebrew or Arabic word has none before it.
    """
    before = "" if joins_words(text) else r"(?<![^\W_])"
    after = "" if is_unspaced(text[-1:]) else r"(?![^\W_])"
    return f"{before}(?:{pattern}){after}"


def joins_words(text: str) -> bool:
    """Whether letters of another word may stand before a text's first letter."""
    return is_unspaced(text[:1]) or _PREFIXED.match(text) is not None


def is_other_script(text: str) -> bool:
    """Whether most letters of a text are not Latin."""
    letters = _LETTER.findall(text)
    return 2 * sum(map(bool, map(_LATIN.match, letters))) < len(letters)


def is_other_language(text: str) -> bool:
    """Whether a query is in another language.

    It is if it has more of other languages' common words than of English ones, or another script. A
    query of key words alone counts as English.
    """
    said = words(text)
    foreign = [word for word in said if word in _COMMON_WORDS]
    other = 0 if _HASTY.issuperset(foreign) else len(foreign)
    english = sum(word in _ENGLISH_WORDS for word in said)
    return other > english or is_other_script(text) or bool(_WAS_HAT.search(text))


def grams(word: str) -> list[str]:
    """The pieces by which a word is compared: "#word#", and each four characters in a row of it.

    In scripts without spaces: each character and each two in a row.
    """
    if _UNSPACED.search(word):
        return [*word, *map("".join, pairwise(word))]
    whole = f"#{word}#"
    starts = range(len(whole) - _GRAM + 1) if len(whole) > _GRAM else ()
    return [whole, *(whole[i : i + _GRAM] for i in starts)]


def name_forms(text: str) -> list[str]:
    """The words of a text that may name somebody, as they are and without a genitive's s.

    In scripts without spaces: any two to four characters in a row.
    """
    said = words(text)
    runs = _UNSPACED.findall(text)
    inside = (run[i : i + n] for run in runs for n in _NAME_LENGTHS for i in range(len(run)))
    return list(dict.fromkeys(chain(said, (w[:-1] for w in said if w.endswith("s")), inside)))


# -- dates ------------------------------------------------------------------------------------


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


_IN_NUMBERS = re.compile(
    r"(?<![\w./-])(?:(?P<year>\d{4})([-/.])(?P<month>\d\d?)\2(?P<nth>\d\d?)"
    r"|(?P<one>\d\d?)(?P<mark>[-/.])(?P<other>\d\d?)(?P=mark)(?P<of>\d{4}))(?![\w/-]|\.\d)"
)
_IN_WORDS = re.compile(
    rf"\b(?P<month>(?:{A_MONTH}) )?(?:the )?(?P<nth>{SPELLED_NTH})\b"
    rf"(?P<of>(?: of)?(?= (?:{A_MONTH})\b))?",
    re.I,
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

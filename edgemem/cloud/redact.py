"""Replaces private parts of texts by placeholders, and restores them.

Recognised by their form: e-mail addresses, phone numbers, payment cards (Luhn), IBANs (ISO 13616,
mod 97), postal addresses, numbers of passports, taxes and bank accounts, dates of birth, keys and
passwords, mostly in the forms of Europe and North America. The caller gives the names
(cloud/names.py). In doubt a text is redacted: that can be undone in the answer, and sending cannot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import log2

from edgemem.cloud.names import Names
from edgemem.language import STOP_WORDS, undisguised

__all__ = ["KINDS", "Redacted", "Span", "find", "redact"]

KINDS = ("SECRET", "EMAIL", "IBAN", "CARD", "IDENTITY", "ADDRESS", "PHONE", "PERSON")
"""The kinds of private parts. Parts that overlap become one, of the kind that comes first here."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A private part of a text: the characters from start to before end. kind: one of KINDS."""

    start: int
    end: int
    kind: str


_PLACEHOLDER = re.compile(rf"\[\s?({'|'.join(KINDS)})[\s_-]?(\d{{1,4}})\s?\]", re.I)
_BARE = re.compile(rf"\b({'|'.join(KINDS)})_(\d{{1,4}})\b")


@dataclass(frozen=True, slots=True)
class Redacted:
    """Texts that may be sent. values: the text behind each placeholder, which is not sent."""

    texts: tuple[str, ...]
    values: Mapping[str, str]

    def restore(self, text: str) -> str:
        """Returns a text with its placeholders replaced by their values.

        A placeholder without brackets or in another case is recognised. An unknown one stays.
        """

        def value(found: re.Match[str]) -> str:
            return self.values.get(f"[{found[1].upper()}_{int(found[2])}]", found[0])

        return _BARE.sub(value, _PLACEHOLDER.sub(value, text))


def redact(texts: Sequence[str], names: Iterable[str] = ()) -> Redacted:
    """Replaces everything private in the texts of one call.

    names: of people, whole ("Ana Lima") or in part. A first or last name that only one of them has
    gets that person's placeholder, and is restored as the whole name. Case matters only for names
    that are also words ("Rose"). Parts disguised by invisible characters or look-alike letters are
    replaced too.
    """
    known = Names(names)
    given: dict[tuple[str, str], str] = {}
    values: dict[str, str] = {}
    used = {  # placeholders already in the texts, in any form that `restore` would replace
        f"[{m[1].upper()}_{int(m[2])}]"
        for text in texts
        for form in (_PLACEHOLDER, _BARE)
        for m in form.finditer(text)
    }
    out: list[str] = []
    for text in texts:
        parts: list[str] = []
        at = 0
        for span in _merged(text, _private(text, known)):
            value = text[span.start : span.end]
            whole = known.whole(value) if span.kind == "PERSON" else value
            key = (span.kind, " ".join(whole.casefold().split()))
            if key not in given:
                given[key] = _next(span.kind, {*used, *values})
                values[given[key]] = whole
            parts += [text[at : span.start], given[key]]
            at = span.end
        out.append("".join([*parts, text[at:]]))
    return Redacted(tuple(out), values)


def _private(text: str, known: Names) -> Iterator[Span]:
    """The private parts of a text as it is written and, if it is disguised, of its plain form."""
    yield from _seen(text, known)
    plain, places = undisguised(text)
    if plain != text:
        for span in _seen(plain, known):
            yield Span(places[span.start], places[span.end - 1] + 1, span.kind)


def _seen(text: str, known: Names) -> list[Span]:
    return [*find(text), *(Span(a, b, "PERSON") for a, b in known.find(text))]


def _next(kind: str, taken: set[str]) -> str:
    number = 1
    while f"[{kind}_{number}]" in taken:
        number += 1
    return f"[{kind}_{number}]"


def _merged(text: str, spans: Iterable[Span]) -> list[Span]:
    """Returns the spans with overlapping ones merged into one, of the first of their kinds."""
    out: list[Span] = []
    for span in sorted(spans):
        if out and span.start < out[-1].end:
            last = out.pop()
            kind = min(last.kind, span.kind, key=KINDS.index)
            span = Span(last.start, max(last.end, span.end), kind)
        out.append(span)
    return [s for s in out if text[s.start : s.end].strip()]


def find(text: str) -> list[Span]:
    """Returns the parts of a text that are private by their form, in order. They may overlap."""
    found = [
        (kind, match.span(match.lastindex or 0))  # of the form's group, if it has one
        for kind, forms in _FORMS
        for form in forms
        for match in form.finditer(text)
    ]
    found += [(kind, span) for kind, finder in _FINDERS for span in finder(text)]
    return sorted(Span(a, b, kind) for kind, (a, b) in found if a < b)


def luhn_is_valid(digits: str) -> bool:
    """Whether a number passes the Luhn check of payment cards."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def iban_is_valid(iban: str) -> bool:
    """Whether an IBAN has 15 to 34 characters and the remainder 1 modulo 97 (ISO 13616)."""
    turned = (iban[4:] + iban[:4]).upper()
    return 15 <= len(iban) <= 34 and int("".join(str(int(c, 36)) for c in turned)) % 97 == 1


Found = Iterator[tuple[int, int]]


# -- e-mail -------------------------------------------------------------------------------------

_AT = r"(?:@|\s?[\[({<]\s?(?:at|arroba)\s?[\])}>]\s?|\s(?:at|arroba)\s)"
_DOT = r"(?:\.|\s?[\[({<]\s?(?:dot|punkt|punto)\s?[\])}>]\s?|\s(?:dot|punkt|punto)\s)"
# The lookbehind tries each run of such characters once, from its start: a pasted file may be one
# long run.
_LOCAL = r"[\w.!#$%&'*+/=?^`{|}~-]"
_EMAIL = re.compile(
    rf"(?<!{_LOCAL}){_LOCAL}+@(?:(?:[\w-]+\.)+(?:xn--[a-z0-9-]{{2,59}}|[^\W\d_]{{2,24}})(?![^\W_]|-)|\[[\d.]+\])"
)
# Addresses that are spelled out. Where "@" is the word "at", a "dot" must be spelled out too.
_SPOKEN = re.compile(
    rf"(?<![\w.+-])[\w+-]+(?:{_DOT}[\w+-]+){{0,4}}{_AT}"
    rf"[\w-]+(?:{_DOT}[\w-]+){{0,4}}{_DOT}[a-z]{{2,12}}\b",
    re.I,
)


def _spoken(text: str) -> Found:
    for found in _SPOKEN.finditer(text):
        said = found.group()
        # "meet at example.com" names a site, not an e-mail address.
        spelt = re.search(r"\b(?:dot|punkt|punto)\b", said, re.I) or not re.search(
            r"\sat\s", said, re.I
        )
        if "@" not in said and spelt:
            yield found.span()


# -- numbers ------------------------------------------------------------------------------------

_SPACE = " \\-\u2009\u00a0\u2010\u2011\u2013"  # between the groups of a number, in a class
_RUN = re.compile(
    rf"(?<![\w.])(?!(?:\d-){{19}}\d)\d(?:[{_SPACE}]?\d){{12,18}}(?!\w|[.-]\d)"
    r"|(?<![\w.])\d{4}(?:\.\d{4}){3}(?!\w|\.\d)"
)
_IBAN_DIGITS = 9  # every country's IBAN has as many; a flight number with words after it does not
_IBAN = re.compile(
    r"(?:(?<=IBAN)|(?<=iban)|(?<![A-Za-z0-9]))"
    rf"[A-Za-z]{{2}}\d{{2}}(?:[{_SPACE}.]?[A-Za-z0-9]){{11,30}}(?![A-Za-z0-9])"
)


def _cards(text: str) -> Found:
    for found in _RUN.finditer(text):
        digits = re.sub(r"\D", "", found.group())
        if digits[0] in "23456" and luhn_is_valid(digits):
            yield found.span()


def _ibans(text: str) -> Found:
    for found in _IBAN.finditer(text):
        # The match may include words that follow ("DE89 3704 … 00 and more"): cut them one by one.
        start, end = found.span()
        while end - start >= 15:
            iban = re.sub(rf"[{_SPACE}.]", "", text[start:end])
            if sum(map(str.isdigit, iban)) >= _IBAN_DIGITS and iban_is_valid(iban):
                yield start, end
                break
            end = start + len(re.sub(rf"[{_SPACE}.]?[A-Za-z0-9]+$", "", text[start:end]))


_IDENTITY = re.compile(
    r"(?<![\w-])(?:"
    r"[A-Z]{2}(?:[ -]?\d\d){3}[ -]?[A-D]"  # British national insurance: QQ 12 34 56 C
    r"|(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}"  # social security of the United States
    r"|[A-Z]{6}\d\d[A-EHLMPRST]\d\d[A-Z]\d{3}[A-Z]"  # Italy: RSSMRA85T10A562S
    r"|\d{4}[ -]\d{4}[ -]\d\d[ -]\d{10}"  # a Spanish account: 2100 0418 45 0200051332
    r")(?![\w-])",
    re.I,
)
# After one of these words, any other number of that length: X1234567L, 123 456 789, C01X00T47.
_IDENTIFIED = re.compile(
    r"\b(?:passports?|passeport|pasaporte|passaporto|paspoort|(?:reise)?pass(?:nummer|[ -]?nr)?|"
    r"(?:personal)?ausweis(?:[ -]?nr|nummer)?|(?:identity|id) card|dni|(?-i:NIE|CIF)|nif|ssn|"
    r"social security|nino|national insurance|carte d['’]identité|carta d['’]identità)\b"
    r"[^\d\n]{0,20}?(?<![^\W_])(?=[A-Z]{0,6}-?\d)"  # at once false for most words
    r"([A-Z]{0,3}-?\d(?: ?\d){5,9}-?[A-Z]?|\d\d(?:\.\d{3}){2}[ -]?[A-Z]|"
    r"(?=(?:[A-Z]{0,6}\d){4})[A-Z\d]{7,12})(?![^\W_])",
    re.I,
)
# Numbers of persons that are written in groups: 120387-1234, 65 170839 J 003, 28/12345678/40.
_PERSON = re.compile(
    r"\b(?:pesel|cpr|cpf|personnummer|f[øo]dselsnummer|aadhaa?r|burgerservicenummer|"
    r"s[ée]curit[ée] sociale|seguridad social|n[úu]mero de afiliaci[óo]n|nss|tarjeta sanitaria|"
    r"(?:(?:sozial|renten|kranken)(?:versicherungs?|versicherten)|versicherten|sv|ahv)"
    r"[ -]?(?:nr|nummer))\b[^\d\n]{0,20}?(?<![^\W_])(?=[A-Z]{0,10}\d)"
    r"(\d\d ?\d{6} ?[A-Z] ?\d{3}|\d(?:[ ./-]?\d){8,14}|[A-Z]{1,10}\d{6,10})(?!\w)",
    re.I,
)
_SPANISH = re.compile(
    r"(?<![\w.-])(?:([XYZ])-?\d{7}|\d{8}|\d\d(?:\.\d{3}){2})-?([A-Z])(?![\w-])", re.I
)
_CHECKS = "TRWAGMYFPDXBNJZSQVHLCKE"  # of a DNI or NIE: the letter at its remainder modulo 23


def _spanish(text: str) -> Found:
    for found in _SPANISH.finditer(text):
        digits = re.sub(r"\D", "", found.group())
        first = "XYZ".index(found[1].upper()) if found[1] else ""
        if _CHECKS[int(f"{first}{digits}") % 23] == found[2].upper():
            yield found.span()


_SORT_CODE = re.compile(r"\bsort[ -]?codes?\b[^\d\n]{0,20}(\d\d[ -]?\d\d[ -]?\d\d)(?!\d)", re.I)
# Of an account at a bank or with the taxes: GB 123 4567 89, 123/AB456, 133/8150/8159.
_ACCOUNT = re.compile(
    r"\b(?:account|acct?|a/c|acc|utr|vat|tva|paye|bsn|tin|ein|routing|"
    r"(?:umsatz)?steuer(?:nummer|-?nr|-?id(?:entifikationsnummer|-?nr)?)|st\.?-?nr|idnr|"
    r"steuerliche identifikationsnummer|ust-?id|konto(?:nummer|-?nr)|blz|bankleitzahl|"
    r"n[úu]mero de cuenta|cuenta (?:bancaria|corriente)|conto corrente|num[ée]ro de compte|"
    r"tax (?:id|no|number|ref|reference))\b[^\d\n]{0,20}?(?<![^\W_])"
    r"((?-i:[A-Z]{2} ?)?\d(?: ?\d){5,19}|\d{3}/[A-Z]{1,2}\d{1,6}|\d{2,3}/\d{3,4}/\d{4,5})"
    r"(?![^\W_])(?![.,/:-]\d)",
    re.I,
)
_DATE = re.compile(
    r"(?:19|20)\d\d[-./](?:0?[1-9]|1[0-2])[-./](?:[0-2]?\d|3[01])(?!\d)"
    r"|(?:[0-2]?\d|3[01])[-./](?:[0-2]?\d|3[01])[-./](?:19|20)?\d\d(?!\d)"
)
_DAY = (
    rf"(?:{_DATE.pattern}"
    r"|\d{1,2}(?:st|nd|rd|th|er|\.)?(?: of| de)? [^\W\d_]{3,10},?(?: del?)? (?:19|20)\d\d"
    r"|[a-z]{3,9} \d{1,2}(?:st|nd|rd|th)?,? (?:19|20)\d\d)"
)
_BIRTH = (
    r"\b(?:born|dob|d\.o\.b\.?|date of birth|birth ?da(?:y|te)|geb(?:oren)?|geburts(?:datum|tag)|"
    r"née?|date de naissance|nac(?:id[oa]|[ií]|i[óo])|(?:fecha|f\.?) de nacimiento|cumpleaños|"
    r"nat[oa]|data di nascita|nascid[oa]|data de nascimento|geboortedatum)\b\.?"
    r"(?: (?:in|en|à|a) [^\W\d_]{2,20})?"
    r"(?:[ :]| on| is| was| am| ist| der| den| le| el| es| est| il| è| em| op){0,4}"
)
_BORN = re.compile(rf"{_BIRTH} ?({_DAY})(?!\w)", re.I)

_EXT = r"(?:\s?(?:x|ext\.?|extension|#)\s?\d{1,6})?"
_SEP = rf"[{_SPACE}./]"
_INTERNATIONAL = re.compile(
    rf"(?:(?<![^\W_])\+\s?|(?<![\w.-])00{_SEP}?)[1-9](?:{_SEP}{{0,2}}\(?\d\)?){{6,14}}{_EXT}(?![^\W_])"
)
_NATIONAL = re.compile(
    r"(?<![\w.,:/+-])(?:"
    rf"1?{_SEP}?\(\d{{2,5}}\){_SEP}{{0,2}}\d{{2,5}}(?:{_SEP}?\d{{2,5}}){{1,3}}"  # (555) 123-4567
    rf"|(?:1{_SEP})?[2-9]\d{{2}}{_SEP}[2-9]\d{{2}}{_SEP}\d{{4}}"  # 555-123-4567
    rf"|0\d{{1,4}}(?:{_SEP}| [-–] (?!\d{{4}}(?! ?\d)))"  # 020 7946 0958, 030/123456, 030 12345-0
    rf"\d{{2,8}}(?:{_SEP}?\d{{2,5}}){{0,4}}(?:-\d)?"
    r"|0[1-9]\d{8,9}"  # 07700900123
    r"|[679]\d\d(?: \d\d){3}(?! \d)"  # 612 34 56 78
    rf"){_EXT}(?![\w%])(?![.,:/-]\d)"
)
# After one of these words, any other row of digits is a phone number too.
_CALL = re.compile(
    r"\b(?:phone|telephone|tel|cell(?:phone)?|mobile|handy|fax|call|ring|text|sms|whatsapp|wa\.me|signal|"
    r"dial|number(?:'s| is| was)?|reach (?:me|him|her|us|them)|(?:handy|telefon|mobil|ruf)nummer|"
    r"telefon|tel[ée]fono|tfno|tlf|m[óo]vil|ll[áa]ma(?:me|nos|lo|la|le|r)?|bizum|ruf(?:e|en|t)?|"
    r"anrufen|t[ée]l[ée]phone|cellulare|(?:nummer|n[úu]mero|num[ée]ro) (?:ist|lautet|es|est|è))\b"
    r"[^\d\n+(]{0,30}"
    rf"(\(?\d(?:{_SEP}?\(?\d\)?){{6,14}}{_EXT})(?!\w)(?![.,]\d)",
    re.I,
)


def _phones(text: str) -> Found:
    for found in _NATIONAL.finditer(text):
        digits = re.sub(r"\D", "", re.split(r"[x#e]", found.group())[0])
        if 7 <= len(digits) <= 15 and not _DATE.fullmatch(found.group().strip()):
            yield found.span()
    for found in _CALL.finditer(text):
        if not _DATE.fullmatch(found.group(1)):
            yield found.span(1)


# -- postal addresses ---------------------------------------------------------------------------

_CAP = r"(?:[A-ZÀ-ÖØ-Þ][^\W\d]*(?:['’.-][^\W\d]+){0,4}|\d{1,3}(?:st|nd|rd|th))\b"
_TYPE = (
    r"(?:street|str|st|road|rd|avenue|ave|av|lane|ln|drive|dr|boulevard|blvd|court|ct|place|pl|"
    r"square|sq|terrace|ter|way|close|crescent|cres|circle|cir|parkway|pkwy|highway|hwy|grove|"
    r"gardens|gdns|mews|row|hill|park|walk|quay|alley|trail|trl|plaza|loop|brow|rise|vale|view|"
    r"green|gate|wharf|parade|villas|cottages|croft|wynd|brae|broadway|esplanade|chase|meadows?)"
)
_UNIT = r"(?i:(?:apt|apartment|flat|unit|suite|ste|floor|room|no)\.?\s?#?\s?\w{1,5}|#\s?\w{1,5})"
_ZIP = (
    r"(?:\d{5}(?:-\d{4})?|\d{3} \d\d|\d\d-\d{3}|\d{4}-\d{3}|"
    r"[A-Z]{1,2}\d[A-Z\d]?\s?\d[A-Z]{2}|[A-Z]\d[A-Z]\s?\d[A-Z]\d|"
    r"\d{4}\s?[A-Z]{2}|\d{4})"
)
_TOWN = rf"{_CAP}(?: {_CAP}){{0,2}}"
_TAIL = (
    rf"(?:,?\s+(?:N|S|E|W|NE|NW|SE|SW)\b\.?)?(?:,?\s+{_UNIT})?"
    rf"(?:\s*[,\n]\s*{_TOWN})?(?:\s*,?\s*[A-Z]{{2}}\b)?(?:\s*,?\s*{_ZIP}\b)?"
    rf"(?:,?\s+(?<=[\d,] ){_TOWN}(?=[.,;!?\n]|$))?"
)
_NUMBER = (
    r"\d{1,5}(?:\s?[A-Za-z](?![A-Za-z]))?(?:[-/](?:\d{1,5}[A-Za-z]?|[A-Z]\b))?"
    r"(?:,? (?:m\. ?\d{1,4}|\d{1,2} ?[ºª°](?: ?(?:[A-Z]|d(?:er|ch)a|izq(?:da)?|izda)\b\.?)?))?"
)
_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_STREETS = (
    # 12 Baker Street, 1600 Pennsylvania Ave NW, Washington, DC 20500
    rf"(?:{_UNIT},?\s+)?\b{_NUMBER},?\s+(?:(?:N|S|E|W|North|South|East|West)\.?\s+)?"
    rf"(?:{_CAP}\s+){{1,4}}(?i:{_TYPE})\b\.?{_TAIL}",
    # Hauptstraße 12, 10115 Berlin; Keizersgracht 123
    rf"(?<!\w)(?<!\w-)(?:[A-ZÀ-ÖØ-Þ][\w-]*(?:straße|strasse|str\.|gasse|weg|allee|platz|ufer|damm|ring|straat|"
    rf"laan|gracht|plein|kade|dijk|gatan|gata|gaten|vegen|veien|vej|väg|vägen|gade|katu|tie)|"
    rf"(?:Am|An der|Auf der|Im|Zum|Zur|Unter den|Alte[rn]?|Neue[rn]?) {_CAP}(?: {_CAP})?)"
    rf"\s+{_NUMBER}(?:\s*,?\s*{_ZIP}\s+{_TOWN})?",
    # Breite Straße 80, Köln; Poza Lizentziatuaren kalea 3
    rf"\b(?!(?:D(?:ie|er|iese[nr]?)|(?:Ein|Jed|Mein|Unser)e[nr]?)\b){_CAP}\s+"
    rf"(?:(?:Stra(?:ß|ss)e|Str\.|Allee|Gasse)|(?:{_CAP}\s+)?kalea,?)\s+{_NUMBER}"
    rf"(?!\s?(?:km|m|[kK]ilometer|[mM]eter|[mM]al|[bB]äume)\b)(?:\s*,?\s*(?:{_ZIP}\s+)?{_TOWN})?",
    # 12 rue de la Paix, 75002 Paris
    rf"\b{_NUMBER},?\s+(?:bis\s+|ter\s+)?(?i:rue|avenue|boulevard|place|quai|allée|chemin|impasse|"
    rf"cours|route)\s+(?:(?:de|du|des|la|le|les|l['’]|d['’])\s?){{0,3}}{_CAP}(?: {_CAP}){{0,3}}"
    rf"(?:\s*,?\s*{_ZIP}\s+{_TOWN})?",
    # Via Roma 10, 00184 Roma; calle Mayor 5; Rua Augusta 100; ul. Długa 3
    rf"\b(?:Via|Viale|Piazza|Corso|Largo|[Cc]alle|[Cc]/|[Aa]venida|[Aa]vda?\.?|[Pp]aseo|[Pp]laza|Rua|"
    rf"Praça|Travessa|[Uu]l\.|[Uu]lica|Rambla|Carrer|[Aa]lameda|Alda\.?|[Cc]arretera|[Cc]tra\.?|"
    rf"[Pp]ol[íi]gono)\s?"
    rf"(?:(?:de|del|della|dei|da|das|do|dos|la|las|los|el)\s+){{0,2}}"
    rf"{_CAP}"
    rf"(?:\s+(?:de|del|da)?\s?{_CAP}){{0,3}},?\s+(?:n[.º°]\s?|parcela\s|nave\s)?{_NUMBER}"
    rf"(?!\s?(?:km|m|metros|minutos|horas|veces|años|personas|euros|€)\b)"
    rf"(?:\s*,?\s*(?:{_ZIP}\s+)?{_TOWN})?",
    r"\b[Pp]\.?\s?[Oo]\.?\s?[Bb]ox\s+\d{1,7}(?:,?\s+[A-Z][\w .-]{1,30}?\s\w{2,4}\s?\d\w{2,4})?",
    # Any street, number, code and town: Žižkova 12, 130 00 Praha 3; Karl Johans gate 5, 0154 Oslo
    rf"\b(?!{_MONTH}){_CAP}(?: [\w.]{{1,20}}){{0,3}} {_NUMBER},? (?:[A-Z]{{1,2}}-)?"
    rf"(?!(?:19|20)\d\d\b)(?:{_ZIP}) {_TOWN}(?: \d\b)?",
    r"\b(?:ул|улица|пр|просп|проспект|пер|наб|вул)\b\.?\s+[А-ЯЁІЇЄ][\w-]{1,30}"
    r"(?:\s[А-ЯЁІЇЄ][\w-]{1,30})?,?\s+(?:д\.?\s?)?\d{1,4}\w?(?:,?\s+(?:кв|корп|стр)\.?\s?\d{1,4}){0,2}",
    r"\b[А-ЯЁІЇЄ]\w{1,30}\s(?:улица|проспект|переулок|бульвар|шоссе|набережная|вулиця),?\s+\d{1,4}\b",
    # 東京都渋谷区神南1-2-3, 北京市朝阳区建国路88号
    r"[\u4e00-\u9fff]{1,8}[都道府県县市區区][\u4e00-\u9fff]{1,20}"
    r"(?:\d{1,5}(?:[-－]\d{1,5}){1,3}|\d{1,5}(?:号|號|番地|室))",
    # A town with its code, and the codes of Britain, Canada and the Netherlands by themselves.
    rf"\b{_TOWN},?\s+[A-Z]{{2}},?\s+\d{{5}}(?:-\d{{4}})?\b",
    r"\b[A-Z]{1,2}\d[A-Z\d]? \d[ABD-HJLNP-UW-Z]{2}\b|\b[A-Z]\d[A-Z] \d[A-Z]\d\b",
)
# Each form searches alone: their overlapping matches are merged, and cover more of an address.
# Spaces are bounded, since two unbounded runs beside each other would take quadratic time.
_ADDRESSES = tuple(
    re.compile(form.replace(r"\s+", r"\s{1,9}").replace(r"\s*", r"\s{0,9}")) for form in _STREETS
)
_LIVES = re.compile(  # a street in lower case, after words that announce an address
    r"\b(?:address(?: is|:)?|live at|lives at|lived at|living at|moved to|stay at|staying at|"
    r"ship to|deliver to|send it to)\s+"
    rf"({_NUMBER}\s+(?:[a-zà-ÿ'’]+\s+){{1,3}}{_TYPE}\b(?:,?\s+{_UNIT})?)",
    re.I,
)
_LIVES_ABROAD = re.compile(  # vivo en calle ercilla 12; wohne in der schillerstraße 7a
    r"\b(?:(?:viv(?:o|e|es|imos|en) en|direcci[óo]n(?: es|:)?)(?: la| el)?\s"
    r"((?:calle|c/|avenida|avda\.?|plaza|paseo|alameda)\s?(?:[a-zà-ÿ]+\s){1,4}"
    rf"{_NUMBER})|(?:wohn(?:e|t|en|st)|adresse(?: ist|:)?)(?: in| am| im)?(?: der)?\s"
    rf"([a-zà-ÿ-]{{2,30}}(?:straße|strasse|str\.|gasse|weg|allee|platz)\s{_NUMBER}))",
    re.I,
)

# -- secrets ------------------------------------------------------------------------------------

_BLOCK = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?"
    r"(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)"
)
_KNOWN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[A-Za-z0-9_-]{16,}|[rsp]k_(?:live|test)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}|AIza[A-Za-z0-9_-]{30,}"
    r"|ya29\.[A-Za-z0-9_-]{16,}|npm_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}"
    r"|SG\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}|dop_v1_[a-f0-9]{20,}|key-[a-f0-9]{24,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?|AGE-SECRET-KEY-[A-Z0-9]{20,}"
    r"|\d{8,10}:[A-Za-z0-9_-]{35}|hvs\.[A-Za-z0-9_-]{20,}|ATATT[A-Za-z0-9_=-]{20,}"
    r"|[A-Za-z0-9_-]{23,28}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,45}|\w{3}8Q~[\w~.-]{31,34}"
    r"|hooks\.slack\.com/services/[\w/]+|discord(?:app)?\.com/api/webhooks/[\w/-]+"
    r"|(?:AccountKey|SharedAccessKey|sig)=[A-Za-z0-9+/%_-]{20,}={0,2})"
)
_BEARER = re.compile(r"\b(?:bearer|basic)\s+([A-Za-z0-9._~+/=-]{12,})", re.I)
_IN_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://([^\s/:@]*:[^\s/@]+)@", re.I)
_LABEL = (
    r"pass\s?words?|pass\s?phrase|pass\s?code|passwd|pwd|pw|pin(?:\s?code)?|login|credentials|secret|"
    r"token|api[ _-]?key|access[ _-]?key|private[ _-]?key|secret[ _-]?key|client[ _-]?secret|"
    r"auth[ _-]?(?:key|token|code)|(?:security|access|door|gate|alarm|unlock|recovery|backup|"
    r"verification|entry|safe)[ _-]?code|cvv2?|cvc|"
    r"(?:wi-?fi|wlan|network)[ _-]?(?:key|schlüssel|code)|"
    r"(?:(?:haus)?tür|tor|garagen|alarm|zugangs|sicherheits|spind|tresor)[ -]?code|"
    r"geheim(?:zahl|nummer)|puk|"
    r"c[óo]digo (?:de (?:la |mi |una )?|del )(?:puerta|alarma|portal|garaje|taquilla|caja fuerte|"
    r"acceso|seguridad|entrada)|"
    r"code (?:de (?:la )?|d['’]|du )(?:porte|entrée|accès|alarme|portail)|"
    r"codice (?:del(?:la )?|d['’])(?:porta|portone|allarme|accesso)|"
    r"passwort|kennwort|contrase[ñn]a|clave|mot de passe|senha|wachtwoord|hasło|lösenord|"
    r"adgangskode|passord|salasana|пароль"
)
# "my password is hunter2", "PIN: 1234", "API_KEY=…", "the wifi password used to be 'a b c'"
_ASSIGNED = re.compile(
    rf"(?<![^\W_])(?P<label>{_LABEL})(?:[\"'\])]|"
    r"(?P<of>\s{1,9}+(?:for|of|to|on|at|für|vom|von|zum|der|des|del|de|para|du|di)\s{1,9}+"
    r"[^\n:=.,;?!]{1,40}?)|\s?\([^()\n]{1,40}\))?"
    r"(?<!\s)(?!\B\w)\s{0,50}+"
    r"(?P<link>:=|=>|[:=：]|\b(?:ist|lautet|est|es|[èé])\b|\bis still\b|"
    r"\bis now\b|\bis\b|\bwas\b|['’]s\b|\bused to be\b|\bchanged to\b|"
    r"\b(?:set|reset) to\b|\bare\b|->|–|-(?=\s))\s{0,9}"
    r"(?:(?P<colon>[:=])\s{0,9}|(?:–|-(?=\s))\s{0,9})?(?:called\s{1,9})?"
    r"(?P<value>\"[^\"\n]{2,80}\"|'[^'\n]{2,80}'|“[^”\n]{2,80}”|`[^`\n]{2,80}`|"
    r"(?:[^\s,;]|[,;](?!\s|\w{1,30}=)){2,200})",
    re.I,
)
# Without a link: "PIN 4471", "Password" and on the next line "hunter2"; joined in other scripts.
_BESIDE = re.compile(
    rf"(?<![^\W_])(?!login|credentials|secret|token)(?:{_LABEL})[ \t]{{0,3}}[ \t\n][ \t]{{0,3}}"
    r"(?=[^\s\d]{0,60}\d)([^\s,;]{4,64})(?<![.!?)])"
    r"|(?:密码|密碼|パスワード|暗証番号|비밀번호|รหัสผ่าน)\s?(?:[:：=]|是|为|は|는|은)?\s?([!-~]{4,64})",
    re.I,
)
# Twelve to 24 words after "seed phrase" and the like.
_SEED = re.compile(
    r"\b(?:seed|recovery|mnemonic|backup|wallet)\s(?:phrase|words|seed)\b[^\n]{0,30}?[\s:=]"
    r"((?:[a-z]{3,8}(?:,? |\n)){11,23}[a-z]{3,8})\b",
    re.I,
)
# A password of several words, up to a mark or the line's end.
_PHRASE = re.compile(r"(?:[^\W\d_]{2,30}[ -]){2,9}\w{2,30}(?=\s{0,9}(?:[.,;!?)]|$))", re.M)
_NO_VALUE = STOP_WORDS.union(
    """almost already always another bad based better case changed correct different done easy
    enough even everything exactly expired fine forgotten going good great hard important
    incorrect invalid kept known like lost missing much needed never new nice nothing ok okay
    old one public really required right safe saved secure set short simple something still
    stored strong stupid unknown used valid weak working wrong
    abgelaufen alt anders dasselbe der die ein eine falsch geheim gleich immer kurz lang neu nicht
    noch richtig schwach sehr sicher vergessen weg wieder zu
    correcta demasiado el incorrecta la muy no una""".split()
)
_TOKENISH = re.compile(r"(?<![\w-])[A-Za-z0-9_-]{20,}(?![\w-])")
_BASE64 = re.compile(r"(?<![\w/+.-])[A-Za-z0-9+/]{32,}={0,2}(?![\w/+-])")  # not of a URL's path
_HEX = re.compile(r"(?<![^\W_])(?:0x)?[0-9a-fA-F]{32,}(?![\w-])")
_MIN_BITS = 3.2  # entropy per character; words written together have less


def _secrets(text: str) -> Found:
    for found in chain(_TOKENISH.finditer(text), _BASE64.finditer(text)):
        if _is_random(found.group()):
            yield found.span()
    for found in _ASSIGNED.finditer(text):
        if span := _assigned(found):
            yield span


def _assigned(found: re.Match[str]) -> tuple[int, int] | None:
    start, end = found.span("value")
    value, label = found["value"], found["label"].lower()
    if value[0] in "\"'“`" and value[-1] in "\"'”`" and len(value) > 3:
        return start + 1, end - 1
    said = found["colon"] is None and found["link"] not in (":", "=", ":=", "=>", "->")
    several = label.startswith("pass") and (not said or "phrase" in label)
    if several and (phrase := _PHRASE.match(found.string, start)):
        parts = set(re.split("[ -]", phrase[0].lower()))
        if STOP_WORDS.isdisjoint(parts) and len(parts - _NO_VALUE) > 2:
            return phrase.span()
    while value and value[-1] in ".!?)]}\"',;":  # they more likely end the sentence than the secret
        value, end = value[:-1], end - 1
    if len(value) < 2 or value.lower() in _NO_VALUE:
        return None
    plain = value.isalpha()
    if plain and said and not label.startswith(("pass", "pwd", "pw")):
        return None  # "the secret is patience", "the token is expired"
    # "La clave del problema: paciencia" is no password either.
    doubtful = said if label in ("pin", "login", "pw") else label == "clave" and found["of"]
    if doubtful and not re.search(r"\d", value):
        return None
    return start, end


def _is_random(text: str) -> bool:
    """Whether a text mixes letters and digits as no word does."""
    if not (re.search(r"\d", text) and re.search(r"[A-Za-z]", text)):
        return False
    if len(re.findall(r"[a-z](?=[A-Z\d])|\d(?=[A-Za-z])|[A-Z](?=\d)", text)) < 4:
        return False
    counts = [text.count(c) / len(text) for c in set(text)]
    return -sum(p * log2(p) for p in counts) >= _MIN_BITS


# What is private wherever it matches, and what needs a second look.
_FORMS = (
    ("SECRET", (_BLOCK, _KNOWN, _HEX, _BEARER, _IN_URL, _SEED, _BESIDE)),
    ("EMAIL", (_EMAIL,)),
    ("IDENTITY", (_IDENTITY, _IDENTIFIED, _PERSON, _SORT_CODE, _ACCOUNT, _BORN)),
    ("ADDRESS", (*_ADDRESSES, _LIVES, _LIVES_ABROAD)),
    ("PHONE", (_INTERNATIONAL,)),
)
_FINDERS: tuple[tuple[str, Callable[[str], Found]], ...] = (
    ("SECRET", _secrets),
    ("EMAIL", _spoken),
    ("IBAN", _ibans),
    ("CARD", _cards),
    ("IDENTITY", _spanish),
    ("PHONE", _phones),
)

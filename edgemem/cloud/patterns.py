"""Where a text holds something private that its form gives away: addresses, numbers, secrets.

Knows the forms of e-mail addresses, phone numbers, payment cards (Luhn), IBANs (ISO 13616, mod 97),
postal addresses, keys and passwords, mostly of Europe and North America. Knows no names of people
(`people.py`), no placeholders, no store. In doubt it takes a text for private: what is redacted is
put back into the answer, what is sent is gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log2

__all__ = ["KINDS", "Span", "find", "iban_is_valid", "luhn_is_valid"]

KINDS = ("SECRET", "EMAIL", "IBAN", "CARD", "ADDRESS", "PHONE", "PERSON")
"""What is told apart; where two overlap, the earlier kind names both."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Characters start to end of a text, and what they are (of KINDS)."""

    start: int
    end: int
    kind: str


def find(text: str) -> list[Span]:
    """All that is private by its form in a text, in order; spans may overlap."""
    return sorted(Span(a, b, kind) for kind, finder in _FINDERS for a, b in finder(text) if a < b)


def luhn_is_valid(digits: str) -> bool:
    """Whether a number passes the Luhn check of payment cards."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def iban_is_valid(iban: str) -> bool:
    """Whether 15 to 34 letters and digits have the remainder 1 modulo 97 (ISO 13616)."""
    turned = (iban[4:] + iban[:4]).upper()
    return 15 <= len(iban) <= 34 and int("".join(str(int(c, 36)) for c in turned)) % 97 == 1


Found = Iterator[tuple[int, int]]


# -- e-mail --------------------------------------------------------------------------------------

_AT = r"(?:@|\s?[\[({<]\s?at\s?[\])}>]\s?|\sat\s)"
_DOT = r"(?:\.|\s?[\[({<]\s?dot\s?[\])}>]\s?|\sdot\s)"
# Each run of such characters is tried once, from its start: a pasted file may be one long run.
_LOCAL = r"[\w.!#$%&'*+/=?^`{|}~-]"
_EMAIL = re.compile(
    rf"(?<!{_LOCAL}){_LOCAL}+@(?:(?:[\w-]+\.)+[^\W\d_]{{2,24}}(?![\w-])|\[[\d.]+\])"
)
# Written out to fool machines; "dot" must be said too where the "@" is the word "at".
_SPOKEN = re.compile(
    rf"(?<![\w.+-])[\w+-]+(?:{_DOT}[\w+-]+){{0,4}}{_AT}"
    rf"[\w-]+(?:{_DOT}[\w-]+){{0,4}}{_DOT}[a-z]{{2,12}}\b",
    re.I,
)


def _emails(text: str) -> Found:
    for found in _EMAIL.finditer(text):
        yield found.span()
    for found in _SPOKEN.finditer(text):
        said = found.group()
        # "meet at example.com" is an address of a site, not of a person.
        if "@" not in said and not (re.search(r"\sat\s", said, re.I) and not _has_dot_word(said)):
            yield found.span()


def _has_dot_word(text: str) -> bool:
    return re.search(r"\bdot\b", text, re.I) is not None


# -- numbers -------------------------------------------------------------------------------------

_RUN = re.compile(r"(?<![\w.])(?:\d[ -]?){12,18}\d(?!\w)(?![.,-]?\d)")
_IBAN_DIGITS = 9  # any country's have as many; a flight's number and the words after it do not
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]){11,30}(?![A-Za-z0-9])")


def _cards(text: str) -> Found:
    for found in _RUN.finditer(text):
        digits = re.sub(r"\D", "", found.group())
        if 13 <= len(digits) <= 19 and digits[0] in "23456" and luhn_is_valid(digits):
            yield found.span()


def _ibans(text: str) -> Found:
    for found in _IBAN.finditer(text):
        # In "DE89 3704 … 00 and more" words follow; take them off one by one.
        start, end = found.span()
        while end - start >= 15:
            iban = re.sub(r"[ -]", "", text[start:end])
            if sum(map(str.isdigit, iban)) >= _IBAN_DIGITS and iban_is_valid(iban):
                yield start, end
                break
            cut = max(text.rfind(" ", start, end), text.rfind("-", start, end))
            end = cut if cut > start else start


_EXT = r"(?:\s?(?:x|ext\.?|extension|#)\s?\d{1,6})?"
_SEP = r"[ .\-/\u2009\u00a0\u2010\u2011\u2013]"
_INTERNATIONAL = re.compile(
    rf"(?<![\w.-])(?:\+\s?|00{_SEP}?)[1-9](?:{_SEP}{{0,2}}\(?\d\)?){{6,14}}{_EXT}(?!\w)"
)
_NATIONAL = re.compile(
    r"(?<![\w.,:/+-])(?:"
    rf"1?{_SEP}?\(\d{{2,5}}\){_SEP}{{0,2}}\d{{2,5}}(?:{_SEP}?\d{{2,5}}){{1,3}}"  # (555) 123-4567
    rf"|(?:1{_SEP})?[2-9]\d{{2}}{_SEP}[2-9]\d{{2}}{_SEP}\d{{4}}"  # 555-123-4567
    rf"|0\d{{1,4}}{_SEP}\d{{2,8}}(?:{_SEP}?\d{{2,5}}){{0,4}}"  # 020 7946 0958, 030/123456
    r"|0[1-9]\d{8,9}"  # 07700900123
    rf"){_EXT}(?![\w%])(?![.,:/-]\d)"
)
# After such a word, other rows of digits are numbers to call, too.
_CALL = re.compile(
    r"\b(?:phone|telephone|tel|cell(?:phone)?|mobile|handy|fax|call|ring|text|sms|whatsapp|signal|"
    r"dial|number(?:'s| is| was)?|reach (?:me|him|her|us|them))\b[^\d\n+(]{0,30}"
    rf"(\(?\d(?:{_SEP}?\(?\d\)?){{6,14}}{_EXT})(?!\w)(?![.,]\d)",
    re.I,
)
_DATE = re.compile(
    r"(?:19|20)\d\d[-./](?:0?[1-9]|1[0-2])[-./](?:[0-2]?\d|3[01])(?!\d)"
    r"|(?:[0-2]?\d|3[01])[-./](?:[0-2]?\d|3[01])[-./](?:19|20)?\d\d(?!\d)"
)


def _phones(text: str) -> Found:
    for found in _INTERNATIONAL.finditer(text):
        yield found.span()
    for found in _NATIONAL.finditer(text):
        digits = re.sub(r"\D", "", re.split(r"[x#e]", found.group())[0])
        if 7 <= len(digits) <= 15 and not _DATE.fullmatch(found.group().strip()):
            yield found.span()
    for found in _CALL.finditer(text):
        if not _DATE.fullmatch(found.group(1)):
            yield found.span(1)


# -- postal addresses ----------------------------------------------------------------------------

_CAP = r"(?:[A-ZÀ-ÖØ-Þ][^\W\d]*(?:['’.-][^\W\d]+)*|\d{1,3}(?:st|nd|rd|th))\b"
_TYPE = (
    r"(?:street|str|st|road|rd|avenue|ave|av|lane|ln|drive|dr|boulevard|blvd|court|ct|place|pl|"
    r"square|sq|terrace|ter|way|close|crescent|cres|circle|cir|parkway|pkwy|highway|hwy|grove|"
    r"gardens|gdns|mews|row|hill|park|walk|quay|alley|trail|trl|plaza|loop)"
)
_UNIT = r"(?i:(?:apt|apartment|flat|unit|suite|ste|floor|room|no)\.?\s?#?\s?\w{1,5}|#\s?\w{1,5})"
_ZIP = (
    r"(?:\d{5}(?:-\d{4})?|[A-Z]{1,2}\d[A-Z\d]?\s?\d[A-Z]{2}|[A-Z]\d[A-Z]\s?\d[A-Z]\d|"
    r"\d{4}\s?[A-Z]{2}|\d{4})"
)
_TOWN = rf"{_CAP}(?:[ -]{_CAP}){{0,2}}"
_TAIL = (
    rf"(?:,?\s+(?:N|S|E|W|NE|NW|SE|SW)\b\.?)?(?:,?\s+{_UNIT})?"
    rf"(?:\s*[,\n]\s*{_TOWN})?(?:\s*,?\s*[A-Z]{{2}}\b)?(?:\s*,?\s*{_ZIP}\b)?"
    rf"(?:,?\s+(?<=[\d,] ){_TOWN}(?=[.,;!?\n]|$))?"
)
_NUMBER = r"\d{1,5}(?:\s?[A-Za-z](?![A-Za-z]))?(?:[-/]\d{1,5}[A-Za-z]?)?"
_STREETS = (
    # 12 Baker Street, 1600 Pennsylvania Ave NW, Washington, DC 20500
    rf"(?:{_UNIT},?\s+)?\b{_NUMBER},?\s+(?:(?:N|S|E|W|North|South|East|West)\.?\s+)?"
    rf"(?:{_CAP}\s+){{1,4}}(?i:{_TYPE})\b\.?{_TAIL}",
    # Hauptstraße 12, 10115 Berlin; Keizersgracht 123
    rf"\b(?:[A-ZÀ-ÖØ-Þ][\w-]*(?:straße|strasse|str\.|gasse|weg|allee|platz|ufer|damm|ring|straat|"
    rf"laan|gracht|plein|kade|dijk|gatan|gata|gaten|vegen|veien|vej|väg|vägen|gade|katu|tie)|"
    rf"(?:Am|An der|Auf der|Im|Zum|Zur|Unter den|Alte[rn]?|Neue[rn]?) {_CAP}(?:[ -]{_CAP})?)"
    rf"\s+{_NUMBER}(?:\s*,?\s*{_ZIP}\s+{_TOWN})?",
    # 12 rue de la Paix, 75002 Paris
    rf"\b{_NUMBER},?\s+(?:bis\s+|ter\s+)?(?i:rue|avenue|boulevard|place|quai|allée|chemin|impasse|"
    rf"cours|route)\s+(?:(?:de|du|des|la|le|les|l['’]|d['’])\s?){{0,3}}{_CAP}(?:[ -]{_CAP}){{0,3}}"
    rf"(?:\s*,?\s*{_ZIP}\s+{_TOWN})?",
    # Via Roma 10, 00184 Roma; Calle Mayor 5; Rua Augusta 100; ul. Długa 3
    rf"\b(?:Via|Viale|Piazza|Corso|Largo|Calle|C/|Avenida|Avda\.?|Paseo|Plaza|Rua|Praça|Travessa|"
    rf"[Uu]l\.|[Uu]lica|Rambla|Carrer)\s?"
    rf"(?:(?:de|del|della|dei|da|do|dos|la|las|los|el)\s+){{0,2}}"
    rf"{_CAP}"
    rf"(?:\s+(?:de|del|da)?\s?{_CAP}){{0,3}},?\s+(?:n[.º°]\s?)?{_NUMBER}"
    rf"(?:\s*,?\s*{_ZIP}\s+{_TOWN})?",
    r"\b[Pp]\.?\s?[Oo]\.?\s?[Bb]ox\s+\d{1,7}(?:,?\s+[A-Z][\w .-]{1,30}?\s\w{2,4}\s?\d\w{2,4})?",
    # A town with its code, and the codes of Britain, Canada and the Netherlands by themselves.
    rf"\b{_TOWN},?\s+[A-Z]{{2}},?\s+\d{{5}}(?:-\d{{4}})?\b",
    r"\b[A-Z]{1,2}\d[A-Z\d]? \d[ABD-HJLNP-UW-Z]{2}\b|\b[A-Z]\d[A-Z] \d[A-Z]\d\b",
)
_ADDRESSES = tuple(map(re.compile, _STREETS))  # each by itself: together they find more of one
_LIVES = re.compile(  # in small letters, where the words before tell
    r"\b(?:address(?: is|:)?|live at|lives at|lived at|living at|moved to|stay at|staying at|"
    r"ship to|deliver to|send it to)\s+"
    rf"({_NUMBER}\s+(?:[a-zà-ÿ'’]+\s+){{1,3}}{_TYPE}\b(?:,?\s+{_UNIT})?)",
    re.I,
)


def _addresses(text: str) -> Found:
    for form in _ADDRESSES:
        for found in form.finditer(text):
            yield found.span()
    for found in _LIVES.finditer(text):
        yield found.span(1)


# -- secrets -------------------------------------------------------------------------------------

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
    r"|\d{8,10}:[A-Za-z0-9_-]{35})"
)
_BEARER = re.compile(r"\b(?:bearer|basic)\s+([A-Za-z0-9._~+/=-]{12,})", re.I)
_IN_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://([^\s/:@]+:[^\s/@]+)@", re.I)
_LABEL = (
    r"pass\s?words?|pass\s?phrase|pass\s?code|passwd|pwd|pw|pin(?:\s?code)?|login|credentials|secret|"
    r"token|api[ _-]?key|access[ _-]?key|private[ _-]?key|secret[ _-]?key|client[ _-]?secret|"
    r"auth[ _-]?(?:key|token|code)|(?:security|access|door|gate|alarm|unlock|recovery|backup|"
    r"verification|entry|safe)[ _-]?code|cvv2?|cvc|(?:wi-?fi|wlan|network)[ _-]?key"
)
# "my password is hunter2", "PIN: 1234", "API_KEY=…", "the wifi password used to be 'a b c'"
_ASSIGNED = re.compile(
    rf"(?<![^\W_])(?P<label>{_LABEL})(?:[\"'\])]|\s+(?:for|of|to|on|at)\s+[^\n:=.,;?!]{{1,40}}?)?"
    r"\s*(?P<link>:=|=>|[:=]|\bis still\b|\bis now\b|\bis\b|\bwas\b|['’]s\b|\bused to be\b|"
    r"\bchanged to\b|\b(?:set|reset) to\b|\bare\b|->|–|-(?=\s))\s*(?:called\s+)?"
    r"(?P<value>\"[^\"\n]{2,80}\"|'[^'\n]{2,80}'|“[^”\n]{2,80}”|`[^`\n]{2,80}`|[^\s,;]{2,200})",
    re.I,
)
_NO_VALUE = frozenset(
    """a about all almost already also always an and another any at bad based because been being
    better both but case changed correct different done easy enough even everything exactly
    expired fine for forgotten from going good great hard here his her how i important in
    incorrect invalid it its just kept known like lost missing more much my needed never new
    nice no not nothing now of ok okay old on one only our out over public really required
    right safe same saved secure set short simple so something still stored strong stupid such
    that the their there this to too unknown used valid very weak what when where which who why
    with working wrong your yours""".split()
)
_TOKENISH = re.compile(r"(?<![\w/.+=-])(?:[A-Za-z0-9_-]{20,}|[A-Za-z0-9+/]{32,}={0,2})(?![\w/+=-])")
_HEX = re.compile(r"(?<![\w-])(?:0x)?[0-9a-fA-F]{32,}(?![\w-])")
_MIN_BITS = 3.2  # entropy per character, above that of words written together


def _secrets(text: str) -> Found:
    for pattern in (_BLOCK, _KNOWN, _HEX):
        for found in pattern.finditer(text):
            yield found.span()
    for pattern in (_BEARER, _IN_URL):
        for found in pattern.finditer(text):
            yield found.span(1)
    for found in _TOKENISH.finditer(text):
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
    while value and value[-1] in ".!?)]}\"'":  # the sentence's, more likely than the secret's
        value, end = value[:-1], end - 1
    if len(value) < 2 or value.lower() in _NO_VALUE:
        return None
    said = found["link"] not in (":", "=", ":=", "=>", "->")
    plain = value.isalpha()
    if plain and said and not label.startswith(("pass", "pwd", "pw")):
        return None  # "the secret is patience", "the token is expired"
    if label in ("pin", "login", "pw") and said and not re.search(r"\d", value):
        return None
    return start, end


def _is_random(text: str) -> bool:
    """Whether letters and digits are mixed as no word mixes them."""
    if not (re.search(r"\d", text) and re.search(r"[A-Za-z]", text)):
        return False
    if len(re.findall(r"[a-z](?=[A-Z\d])|\d(?=[A-Za-z])|[A-Z](?=\d)", text)) < 4:
        return False
    counts = [text.count(c) / len(text) for c in set(text)]
    return -sum(p * log2(p) for p in counts) >= _MIN_BITS


_FINDERS: tuple[tuple[str, Callable[[str], Found]], ...] = (
    ("SECRET", _secrets),
    ("EMAIL", _emails),
    ("IBAN", _ibans),
    ("CARD", _cards),
    ("ADDRESS", _addresses),
    ("PHONE", _phones),
)

"""English: which item of a list a question asks for."""

from __future__ import annotations

import re

from edgemem.language.en import NUMBER_WORDS
from edgemem.language.en_calendar import A_MONTH, MONTHS
from edgemem.language.en_dates import SPELLED_NTH, spelled_nth

__all__ = ["LAST", "place_asked"]

LAST = -1

_WORDS = NUMBER_WORDS[:20]
_NUMBER = rf"(?P<number>\d{{1,2}}|{'|'.join(_WORDS)})\b(?![-.:%/]\d| ?(?:%|[ap]\.?m\b))"
_NTH = rf"\b(?:(?P<digits>\d{{1,2}})(?:st|nd|rd|th)|(?P<spelled>{SPELLED_NTH}))\b"
_NO_NTH = rf"(?! (?:(?:of )?(?:{A_MONTH})|of|time|floor|birthday|anniversary|i|we|you|when)\b)"
_NO_LAST = (
    "(?! (?:i|we|you|time|night|week|month|year|spring|summer|autumn|fall|winter|chat|conversation|"
    rf"session|{'|'.join(MONTHS)})\b)"
)
_NO_ITEM = (
    rf"(?!(?:{A_MONTH}|in|of|for|at|to|by|the|my|about|page|age|bus|size|room|gate|flight)\b)"
)
_ENDS = r"(?! (?!(?:in|of|on|from|again)\b)\w)"
# An ordinal may count anything; such a question also names a list, or who made it.
_COUNTING = (rf"{_NTH}{_NO_NTH}", rf"\b(?P<last>last|final)\b{_NO_LAST}")
_FORMS = tuple(
    (re.compile(form, re.I), form in _COUNTING)
    for form in (
        rf"\b(?:number|no\.|nr\.?|item|#) ?{_NUMBER}",
        *_COUNTING,
        rf"\b{_NO_ITEM}[a-z]{{3,}} (?!one\b){_NUMBER}{_ENDS}",  # "step 7"
    )
)
_SAID = (
    "gave|give|named|offer(?:ed)?|suggest(?:ed)?|wrote|told|propos(?:ed?)|recommend(?:ed)?|"
    "mention(?:ed)?|said|say|put|made|picked|had"
)
_OF_A_LIST = re.compile(
    rf"\b(?:your|list(?:ed)?|item|you (?:\w+ )?(?:{_SAID})|"
    rf"of the (?:\d+|{'|'.join(_WORDS[1:])}))\b",
    re.I,
)
_AMOUNT = re.compile(r"\bhow (?:many|much|old|long|far|often)\b", re.I)


def place_asked(question: str) -> int | None:
    """The place of the item that a question asks for, from 1, or LAST; None if it asks for none.

    >>> place_asked("What was the 7th job on the list you gave me?")
    7
    """
    for form, counting in () if _AMOUNT.search(question) else _FORMS:
        found = form.search(question)
        if found is None or (counting and not _OF_A_LIST.search(question)):
            continue
        named = found.groupdict()
        if named.get("last"):
            return LAST
        if named.get("spelled"):
            return spelled_nth(named["spelled"])
        number = named.get("digits") or named["number"]
        return (int(number) or None) if number.isdigit() else 1 + _WORDS.index(number.lower())
    return None

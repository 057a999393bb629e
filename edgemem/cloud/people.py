"""The names of people in a store, from what its memories say.

Knows how English speaks of people ("my sister Ina", "Tomas said", "Dr. Weiss") and of places ("in
Oslo"); no SQL. A word with a capital letter is taken for a name when some memory introduces it so,
or when more of them speak of it as of a person than as of a place. Learns what was written since it
last looked, and keeps counts, so that a call need not read the whole store.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from edgemem.store import Store
from edgemem.store.receipts import named_texts
from edgemem.text import KIN

__all__ = ["People", "introduced"]

_NAME = r"[^\W\d_a-zà-öø-ÿ][^\W\d_]*(?:['’\-][^\W\d_]+)*"
_FULL = rf"{_NAME}(?:\s(?:(?:de|da|del|la|van|von|der|den|bin|al|el)\s){{0,2}}{_NAME}){{0,2}}"


def _any(words: str) -> str:
    return "(?:" + "|".join(words.split()) + ")"


_TITLE = (
    _any(
        """Mr Mrs Ms Miss Mx Dr Prof Professor Sir Madam Aunt Auntie Uncle Grandma Grandpa Herr
        Frau Se[ñn]ora? Monsieur Madame Coach Father Sister Brother Captain Judge Doctor Nurse"""
    )
    + r"\.?"
)
_SAID_OF = _any(
    """said says told tells asked asks thinks thought wants wanted likes liked loves loved hates
    hated called calls came comes went goes lives lived works worked got gets gave gives made
    makes knows knew helped helps bought buys sent sends wrote writes met meets visited visits
    married moved moves plays played studies studied teaches taught cooked cooks brought brings
    invited invites left leaves joined feels felt believes prefers enjoys enjoyed broke turned
    turns has had can could will would does did is was just never always really also still
    finally who"""
)
_SAID_TO = _any(
    """with ask asked told tell meet met meeting saw seeing call called calling miss missed thank
    thanked love help helped married marry hug invite invited hi hey hello dear thanks Hi Hey
    Hello Dear Thanks for from by like than about to and"""
)
_WHOSE = "(?:my|his|her|our|their|your|the|a)"
# Each introduces a name beyond doubt; the name is what is in brackets.
_SURE = (
    re.compile(rf"\b{_TITLE}\s({_FULL})"),
    re.compile(rf"\b{KIN}s?(?:,|\s+is|\s+was|['’]s\s+name\s+is|\s+named|\s+called)?\s+({_FULL})"),
    re.compile(rf"\b{KIN} (?:from|at|of|in) [\w' ]{{1,30}}, ({_FULL})"),
    re.compile(rf"\b({_FULL}),?\s+(?:(?:is|was|who is|and)\s+)?{_WHOSE}\s+{KIN}\b"),
    re.compile(
        r"\b(?:(?:named|called)(?: (?:him|her|it|them))?|name is|name['’]s|names are|I am|"
        rf"I['’]m|this is|nicknamed|introduced (?:me )?to)\s+({_FULL})"
    ),
)
_AND = re.compile(rf"\b({_FULL})\s*(?:,|and|&|or)\s+(?:and\s+)?({_FULL})")
_MAYBE = (
    re.compile(rf"\b({_FULL})\s+{_SAID_OF}\b"),
    re.compile(rf"\b({_FULL})['’]s\s+[a-z]"),
    re.compile(rf"\b{_SAID_TO}\s*,?\s+({_FULL})\b"),
    re.compile(
        rf"\b(?:how|when|because|if|that|while|why|before|after|until|where|since)\s+({_FULL})\s+[a-z]"
    ),
)
_MOVES = _any(
    """moved move moving went go going drove drive flew fly flight flights train trains trip travel
    travelled traveled back came from road"""
)
_PLACE = re.compile(
    r"\b(?:in|at|near|into|across|around|through|towards?|outside|inside|visit|visited|visiting|"
    rf"{_MOVES} (?:back )?(?:to|from)|live in|based in|city of|town of|capital of)\s+({_NAME})\b"
)
_THE = re.compile(rf"\b(?:the|The|a|an|A|An|this|that|these|those)\s+({_NAME})\b")
_SHORTENED = re.compile(r"['’](?:ll|re|ve|d|m)$")
_SMALL = re.compile(r"(?<![^\W_])[^\W\d_A-ZÀ-ÖØ-Þ]{3,}(?![^\W_])")
_NAMES_TOO = frozenset({"Will"})  # where a name is introduced; not the months, for dates tell more
_NO_NAMES = frozenset(
    """I I'm I've I'd I'll A An The This That These Those There Then Here He She It We You They My
    Your His Her Its Our Their Me Him Us Them Who What When Where Why How Which And But Or So
    If As At By For From In Into Of On To With About After Before Since Until While Because
    Although Though However Also Just Only Not No Yes Yeah Yep Nope Ok Okay Oh Ah Wow Hey Hi
    Hello Thanks Thank Please Sorry Well Now Today Tomorrow Yesterday Tonight Last Next Every
    Each Some Any Many Most Much More All Both Few Several One Two Three Four Five Six Seven
    Eight Nine Ten Eleven Twelve Thirteen Fourteen Fifteen Sixteen Seventeen Eighteen Nineteen
    Twenty Nobody Somebody Everybody Anybody Someone Everyone Nothing Something Everything
    First Second Third Once Do Does Did Don't Doesn't Didn't Is Are Was Were Am Be Been Being
    Have Has Had Can Could Will Would Shall Should May Might Must Let Let's It's That's What's
    There's Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March
    April May June July August September October November December Christmas Easter Halloween
    Thanksgiving Ramadan Hanukkah Diwali English German French Spanish Italian Dutch Portuguese
    Polish Russian Chinese Japanese Korean Arabic Hindi Turkish Greek Swedish Norwegian Danish
    Finnish American British European African Asian Mom Mum Mama Dad Papa Grandma Grandpa
    Granny Nana God Lord Internet Google User Assistant TV DVD USA UK EU AI Good Great Nice
    Really Maybe Perhaps Still Even Never Always Sometimes Usually Finally Actually Went Got
    Met Saw Had Made Took Bought Started Working Going Getting Looking Having Being Feeling
    Trying Like Love Miss New Old My""".split()
)


def introduced(text: str) -> tuple[set[str], Counter[str]]:
    """The names that a text introduces, and points for (above 0) or against others in it."""
    sure: set[str] = set()
    for form in _SURE:
        for found in form.finditer(text):
            sure |= _names(found[1], _NAMES_TOO)
    points: Counter[str] = Counter()
    for form in _MAYBE:
        for found in form.finditer(text):
            points.update(_names(found[1]))
    for form, weight in ((_PLACE, 2), (_THE, 2)):
        for found in form.finditer(text):
            points.subtract({name: weight for name in _names(found[1])})
    for found in _AND.finditer(text):  # "Ina and Tomas": one of them is known, so is the other
        pair = [_names(found[1]), _names(found[2])]
        for one, other in (pair, pair[::-1]):
            if one & sure:
                sure |= other
    return sure, points


def _names(run: str, allowed: frozenset[str] = frozenset()) -> set[str]:
    """The name in a run of words with capitals, without those that start a sentence or a title.

    allowed: words that are taken for names here.
    """
    words = [word.removesuffix("'s").removesuffix("’s") for word in run.split()]
    while words and words[0] not in allowed and _is_no_name(words[0]):
        words.pop(0)
    while words and words[-1] not in allowed and _is_no_name(words[-1]):
        words.pop()
    name = " ".join(words)
    if len(name) < 2 or any(word in _NO_NAMES - allowed for word in words):
        return set()
    if name.isupper() and len(name) <= 4:  # an abbreviation
        return set()
    return {name}


def _is_no_name(word: str) -> bool:
    return (
        word in _NO_NAMES
        or word.removesuffix("s") in _NO_NAMES
        or word.casefold() == word
        or _SHORTENED.search(word) is not None
        or re.fullmatch(_TITLE, word) is not None
    )


class People:
    """The people that a store names, learned as it grows. Other than the store, it forgets
    nothing: the name of an erased memory is still redacted until the program ends."""

    def __init__(self, always: Iterable[str] = ()) -> None:
        self._sure: set[str] = set(always)
        self._points: Counter[str] = Counter()
        self._small: Counter[str] = Counter()
        self._generation = 0

    def learn(self, store: Store) -> None:
        """Read what was written since the last time."""
        if store.generation() < self._generation:  # another file in its place
            self._generation = 0
        self._generation, texts = named_texts(store, self._generation)
        for said in texts:
            if said.speaker is not None:
                self._sure.add(said.speaker)
            self.read(said.text)

    def read(self, text: str) -> None:
        """Learn from one text."""
        sure, points = introduced(text)
        self._sure |= sure
        self._points.update(points)
        self._small.update(_SMALL.findall(text))

    def names(self) -> set[str]:
        """All names known by now. What is mostly written small is a word, unless it was introduced
        as a name."""
        maybe = {
            name
            for name, points in self._points.items()
            if points > 0 and self._small[name.casefold()] < max(3, points)
        }
        return self._sure | maybe

"""Names of people: those that a store's memories introduce, and where they stand in a text.

A name counts as one if a memory introduces it as a person's ("my sister Ina", "Tomas said"; in
German, Spanish, French and Italian only beyond doubt), if somebody of that name speaks in the
store, or if the settings name it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from edgemem.language import (
    DIGRAPHS,
    KIN,
    KIN_ABROAD,
    NAMED_ABROAD,
    STOP_WORDS,
    as_words,
    joins_words,
    undisguised,
)
from edgemem.pipeline.chat_exports import ROLES
from edgemem.store import Store
from edgemem.store.receipts import named_texts
from edgemem.store.relations import entity_names

__all__ = ["Names", "People", "introduced"]

# -- the names a call is redacted by ---------------------------------------------------------------

# Names that are also words: only a capital makes them names.
_WORDS = frozenset(
    """april august autumn bill carol chance chase dale dawn dean drew earl eve faith frank gene
    glen grace grant guy hope iris ivy jack jade jasmine jay joy june lance lily mark may mason
    melody miles misty noel olive pat peg penny ray rich rob rose ruby rusty sage sandy sky son
    skip stew sue summer ted tom van victor violet wade will winter al art buck buddy cliff tan tin
    clay dot gay gale ginger hazel heath holly honey hunter jean jewel major max mercy nick
    norm opal page pearl pierce prince rock rod rowan sally sean star sterling storm tiffany
    trip wren in so mai my no an do thu long hung anh li don cat man sang""".split()
)

# A capitalised word after a known first name counts as the last name.
_SURNAME = re.compile(
    r"(?: (?:de|da|del|la|van|von|der|den|bin|al|el))* (?!(?:I|On|In|At|And|But|The|Monday|Tuesday|"
    r"Wednesday|Thursday|Friday|Saturday|Sunday)\b)[^\W\d_a-zà-öø-ÿ][^\W\d_]+(?:['’-][^\W\d_]+)*"
)


# The ending by which a Russian or Ukrainian name shows its case: "Анна", "Анну", "Анной".
_ENDING = re.compile(r"(?<=[а-яёіїє]{3})[аеёиоуыьэюяйіїє]{1,2}[мйх]?$")
_ENDINGS = r"(?:(?<=[а-яёіїє]{3})[а-яёіїє]{1,3})?"
_NONE = "(?!)"  # matches nothing


class Names:
    """Finds names of people, and the whole name that a part stands for."""

    def __init__(self, names: Iterable[str]) -> None:
        self._whole = _wholes(names)
        longest_first = sorted(self._whole, key=lambda part: (-len(part), part))
        apart = "|".join(_pattern(part) for part in longest_first if not joins_words(part))
        joined = (as_words(part, _pattern(part)) for part in longest_first if joins_words(part))
        words = rf"(?<![^\W_])(?:{apart or _NONE})(?=((?<=\w{{3}})s)?(?![^\W_]))"
        self._pattern = re.compile("|".join([words, *joined]), re.I)

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Where a text names somebody: [start, end)."""
        for match in self._pattern.finditer(text):
            said, end, genitive = match.group(), match.end(), match[1] is not None  # "Inas Hund"
            doubts = said.casefold() in _WORDS, genitive, genitive and f"{said}s" in _NO_NAMES
            if sum(doubts) > said[0].isupper():  # a capital outweighs one: "Rose", not "Roses"
                continue
            surname = _SURNAME.match(text, end) if said[0].isupper() else None
            if surname and surname[0].split()[-1][0].isupper():
                end = surname.end()
            yield match.start(), end

    def whole(self, said: str) -> str:
        """The whole name that a name in a text stands for, as it was given."""
        known = (cut for form in _forms(said) for cut in (form, _stem(form)) if cut in self._whole)
        return self._whole.get(next(known, ""), said)


def _wholes(names: Iterable[str]) -> dict[str, str]:
    """From each form of a name, or of a part of one, to the whole name that it stands for."""
    wholes = {" ".join(name.split()) for name in names}
    owners: dict[str, set[str]] = {}
    for whole in wholes:
        if len(whole) < 2 or not any(c.isalpha() for c in whole):
            continue
        for part in {whole, *whole.split()}:
            if len(part) > 1 and part[0].isalpha():
                for form in _forms(part):
                    owners.setdefault(form, set()).add(whole)
    stands_for: dict[str, str] = {}
    for part, of in owners.items():
        same = sorted(whole for whole in of if part in _forms(whole))
        longer = of.difference(same)
        # A part of several longer names stands for none of them.
        stands_for[part] = longer.pop() if len(longer) == 1 else (*same, part.title())[0]
    for part in list(stands_for):
        stands_for.setdefault(_stem(part), stands_for[part])
    return stands_for


def _stem(name: str) -> str:
    return _ENDING.sub("", name)


def _pattern(name: str) -> str:
    """The pattern of a name in lower case, in any case of a Slavic language."""
    return r"\s+".join(re.escape(_stem(part)) + _ENDINGS for part in name.split())


def _forms(name: str) -> list[str]:
    """A name as people write it, in lower case: with accents, ß and apostrophe, then without."""
    lower = name.lower()
    forms = lower, name.casefold(), lower.translate(DIGRAPHS), undisguised(name)[0].lower()
    own, *plain = (" ".join(form.split()) for form in forms)
    return [own, *(form for form in plain if len(form) > 1 and form not in STOP_WORDS)]


# -- the names a store knows -----------------------------------------------------------------------

_NAME = r"[^\W\d_a-zà-öø-ÿ][^\W\d_]*(?:['’\-][^\W\d_]+){0,4}"
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
    turns has had could will would does did is was just never always really also still
    finally who"""
)
_SAID_TO = _any(
    """with ask asked told tell meet met meeting saw seeing call called calling miss missed thank
    thanked love help helped married marry hug invite invited hi hey hello dear thanks Hi Hey
    Hello Dear Thanks for from by like than about to and"""
)
_WHOSE = "(?:my|his|her|our|their|your|the|a)"
# Forms that introduce a name beyond doubt. The group is the name.
_SURE = (
    re.compile(rf"\b{_TITLE}\s({_FULL})"),
    re.compile(rf"\b{KIN}s?(?:,|\s+is|\s+was|['’]s\s+name\s+is|\s+named|\s+called)?\s+({_FULL})"),
    re.compile(rf"\b{KIN} (?:from|at|of|in) [\w' ]{{1,30}}, ({_FULL})"),
    re.compile(rf"\b({_FULL}),?\s+(?:(?:is|was|who is|and)\s+)?{_WHOSE}\s+{KIN}\b"),
    re.compile(
        r"\b(?:(?:named|called)(?: (?:him|her|it|them))?|name is|name['’]s|names are|I am|"
        rf"I['’]m|this is|nicknamed|introduced (?:me )?to)\s+({_FULL})"
    ),
    re.compile(rf"\b(?i:{NAMED_ABROAD})\s+({_FULL})"),
    re.compile(rf"(?:{KIN_ABROAD}),?\s({_FULL})"),
)
_AND = re.compile(rf"\b({_FULL})\s*(?:,|and|&|or)\s+(?:and\s+)?({_FULL})")
_MAYBE = (
    re.compile(rf"\b({_FULL})\s+{_SAID_OF}\b"),
    re.compile(rf"\b({_FULL})\s+can(?:not|['’]t)? [a-z]"),  # not of a receipt: "Watering can"
    re.compile(rf"\b({_FULL})['’]s\s+[a-z]"),
    re.compile(rf"\b{_SAID_TO}(?:\s{{0,9}},)?\s{{1,9}}({_FULL})\b"),
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
_NAMES_TOO = frozenset({"Will"})  # names in _SURE's forms; not the months, which are mostly dates
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
    April June July August September October November December Christmas Easter Halloween
    Thanksgiving Ramadan Hanukkah Diwali English German French Spanish Italian Dutch Portuguese
    Polish Russian Chinese Japanese Korean Arabic Hindi Turkish Greek Swedish Norwegian Danish
    Finnish American British European African Asian Mom Mum Mama Dad Papa Grandma Grandpa
    Granny Nana God Lord Internet Google User Assistant TV DVD USA UK EU AI Good Great Nice
    Really Maybe Perhaps Still Even Never Always Sometimes Usually Finally Actually Went Got
    Met Saw Made Took Bought Started Working Going Getting Looking Having Feeling Trying Like
    Love Miss New Old Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag Du Sie""".split()
)


def introduced(text: str) -> tuple[set[str], Counter[str]]:
    """Returns the names that a text surely introduces, and points for or against other names."""
    sure = set(_names(_SURE, text, _NAMES_TOO))
    points = Counter(_names(_MAYBE, text))
    for name in _names((_PLACE, _THE), text):
        points[name] -= 2
    for found in _AND.finditer(text):  # "Ina and Tomas": if one is a name, so is the other
        pair = {name for run in found.groups() if (name := _name(run))}
        if pair & sure:
            sure |= pair
    return sure, points


def _names(
    forms: Iterable[re.Pattern[str]], text: str, allowed: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yields the name in each match of the forms. allowed: as for `_name`."""
    runs = (found[1] for form in forms for found in form.finditer(text))
    return filter(None, (_name(run, allowed) for run in runs))


def _name(run: str, allowed: frozenset[str] = frozenset()) -> str:
    """Returns the name in a run of words, without other words and titles at its ends; "" if none.

    allowed: words of _NO_NAMES that count as names here.
    """
    words = [word.removesuffix("'s").removesuffix("’s") for word in run.split()]
    while words and words[0] not in allowed and _is_no_name(words[0]):
        words.pop(0)
    while words and words[-1] not in allowed and _is_no_name(words[-1]):
        words.pop()
    name = " ".join(words)
    if len(name) < 2 or any(word in _NO_NAMES - allowed for word in words):
        return ""
    return "" if name.isupper() and len(name) <= 4 else name  # not an abbreviation such as "NATO"


def _is_no_name(word: str) -> bool:
    return (
        word in _NO_NAMES
        or word.removesuffix("s") in _NO_NAMES
        or word.casefold() == word
        or _SHORTENED.search(word) is not None
        or re.fullmatch(_TITLE, word) is not None
    )


class People:
    """The names of people in a store, learned as the store grows, and `always`.

    Names are never forgotten: those of erased memories are redacted until the program ends.
    """

    def __init__(self, always: Iterable[str] = ()) -> None:
        self._sure: set[str] = set(always)
        self._points: Counter[str] = Counter()
        self._small: Counter[str] = Counter()
        self._generation = 0

    def learn(self, store: Store) -> None:
        """Learns names from the memories that were written since the last call."""
        if store.generation() < self._generation:  # the store's file was replaced
            self._generation = 0
        before = self._generation
        self._generation, texts = named_texts(store, before)
        for text, speaker in texts:
            if speaker is not None and speaker.casefold() not in ROLES:  # older imports store them
                self._sure.add(speaker)
            self.read(text)
        if self._generation == before:
            return
        # All names and aliases of people in the graph, but for such as "Ana's sister".
        known = entity_names(store, ("person",))
        self._sure |= {name for name in known if not re.search(r"['’]s? ", name)} - {"User"}

    def read(self, text: str) -> None:
        """Learns names from one text."""
        sure, points = introduced(text)
        self._sure |= sure
        self._points.update(points)
        self._small.update(_SMALL.findall(text))

    def names(self) -> set[str]:
        """Returns all known names. A candidate that is mostly written in lower case is left out."""
        maybe = {
            name
            for name, points in self._points.items()
            if points > 0 and self._small[name.casefold()] < max(3, points)
        }
        return self._sure | maybe

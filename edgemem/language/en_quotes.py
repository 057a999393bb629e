"""English: what a message quotes, who said what it tells, and what it takes back.

Words in quotation marks are somebody else's, or nobody's. A title or a name in such marks is the
speaker's own word for a thing.

Knows texts; no fact, no message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from edgemem.language.en import (
    CAPITAL,
    NUMBER_WORDS,
    is_negated,
    is_of_speaker,
    sentence_starts,
    words,
)
from edgemem.language.en_calendar import DAYS, MONTHS

__all__ = [
    "asserts",
    "corrected",
    "quotations",
    "taken_back",
    "uncut",
    "unquoted",
    "values_denied",
    "without_source",
]

_LEAST = 5
"""Words of a quotation that does not say I or we. A shorter one is a title or a name."""

# A straight mark opens after a space or a mark and closes before one: 27" and 5'10" open nothing.
_QUOTATION = re.compile(
    r"(?<![\w\"])\"(?=[^\s\"])(?P<straight>[^\"]+)\"(?!\w)"
    r"|[“„](?P<curly>[^“”„\"]+)[”“\"]|«(?P<pointed>[^«»]+)»|»(?P<turned>[^«»]+)«"
)

_THEN = r"(?: (?:on|in|at|this|last|yesterday|today|tonight|just now)\b(?: [\w'’:]+){0,7})?"  # when
_SOURCE = re.compile(
    r"(?:[,;]|(?=,? (?:and|as) ))(?: and| as)? (?:"
    r"(?:(?!(?:and|since) )[\w'’.]+ ){0,6}?(?:(?:has|have|had) )?"
    r"(?:(?:just|already|now|also|since) )?(?:"
    r"(?:confirm(?:s|ed)?|diagnosed|showed|shown|shows|proved|proves) (?:it|so|this|that)"
    r"|(?:said|says|thinks)(?: (?:so|it|as much))?"
    r"|(?:told|tells) (?:us|me|him|her|them|[A-Z]\w+)(?: so)?)"
    r"|it (?:was|has been|is) (?:confirmed|diagnosed)(?: by (?:[\w'’.]+ ){0,3}?[\w'’.]+?)?)"
    rf"{_THEN}\.?\Z"
)


def quotations(text: str) -> list[tuple[int, int]]:
    """The [start, end) characters of each quotation, with its marks, in order; no titles or names.

    >>> text = 'He said: "I am in Rome until May." I read "Dune".'
    >>> [text[a:b] for a, b in quotations(text)]
    ['"I am in Rome until May."']
    """
    found = []
    for match in _QUOTATION.finditer(text):
        inside = match[0][1:-1]
        if len(words(inside)) >= _LEAST or is_of_speaker(inside):
            found.append(match.span())
    return found


def unquoted(text: str, *, own: bool = False) -> str:
    """A text with an ellipsis for the words of each quotation. own: only for those in which
    somebody says I or we; a title or a password stays."""
    for start, end in reversed(quotations(text)):
        said = text[start + 1 : end - 1]
        if not own or (is_of_speaker(said) and len(words(said)) >= _LEAST):
            text = f"{text[: start + 1]}…{text[end - 1 :]}"
    return text


def without_source(fact: str) -> str:
    """A fact without a last clause that only tells who says it, and when.

    >>> without_source("Anna is diabetic, the doctor in London confirmed it on 20 November 2026.")
    'Anna is diabetic.'
    """
    found = _SOURCE.search(fact)
    return f"{fact[: found.start()]}." if found else fact


def uncut(text: str) -> list[str]:
    """The sentences of a text, with those of a quotation in one."""
    inside = quotations(text)
    starts = [s for s in sentence_starts(text) if not any(a < s < b for a, b in inside)]
    return [part for a, b in pairwise([0, *starts, len(text)]) if (part := text[a:b].strip())]


_LEAD = (
    r"(?:(?:oh|ah|ugh|uh|oops|hmm+|well|wait|no|nope|sorry|ok|okay|hang on|hold on)\b[\s,.!…-]*)*+"
)
_RETRACTION = re.compile(
    rf"{_LEAD}(?:(?:scratch|strike|forget|ignore|disregard) (?:that|it)\b(?! (?:I|i|we)\b)"
    r"|(?:that|this)(?:['’]?s| is) (?:all )?(?:wrong|not true|untrue|incorrect)\b"
    r"|(?:that|it)(?:['’]?s| was) (?:just )?a (?:joke|lie)\b|not true\b|just kidding\b"
    r"|i (?:misread|misspoke|mistyped|take (?:that|it) back|got (?:that|it) wrong"
    r"|mixed (?:that|it|them) up)\b|correction[,:]|never ?mind(?: that)?(?=\W*\Z|[,.;:!…-]))"
    r"|(?:(?:oh|ah|ugh|uh|oops|hmm+|well)\b[\s,.!…-]*)*+(?:no[,.!]? wait|wait[,.!]? no)\b",
    re.I,
)
_INSTEAD = re.compile(
    rf"{_LEAD}(?:actually|i mean|i meant|(?<=no, )|(?<=no\. )|(?<=sorry, )"
    r"|(?<=wait, )|(?<=wait no )|(?<=wait ))[,\s]*"
    r"(?:(?:it|that|he|she)(?:['’]?s| is| was)\s+|make (?:that|it)\s+|(?:on|at|in)\s+|the\s+)"
    r"{0,3}(?P<rest>\S.*)",
    re.I | re.S,
)
_ACTUALLY = re.compile(rf"{_LEAD}actually\b[,\s]*(?P<clause>[^,;:.!?]*)", re.I)
_PRONOUNS = frozenset(
    "i i'm i've i'd i'll he he's she she's it it's its we we're you you're they they're that that's"
    " this there there's my his her our their the yes no".split()
)
_VALUES = (
    re.compile(
        rf"(?<!\w)[£$€]?\d+(?:[.,:]\d+)*(?:[a-z]{{2}}\b)?(?! of (?:them|us|my)\b)"
        rf"|\b(?:{'|'.join(NUMBER_WORDS)})\b(?! of (?:them|us|my)\b)",
        re.I,
    ),
    re.compile(rf"\b(?:{'|'.join((*DAYS, *MONTHS))})\b", re.I),
    re.compile(rf"\b{CAPITAL}[\w-]+"),
)
"""Numbers, days, names."""


def taken_back(said: Sequence[str]) -> list[int]:
    """The indices of the sentences that take back the one before them.

    A word for it does ("scratch that", "no wait"). After "actually", "no" or "I mean" a value that
    ends the clause must follow, of a kind that the sentence before has: a number, a day, a name.
    After "actually" a word alone ("Actually vegan.") or a clause that ends in "not" will do, too.

    >>> taken_back(["I sold the car.", "Scratch that, I kept it.", "Actually it runs well."])
    [1]
    """
    return [
        i
        for i in range(1, len(said))
        if _RETRACTION.match(said[i]) or _new_value(*said[i - 1 : i + 1]) or _denied(said[i])
    ]


def corrected(said: Sequence[str]) -> list[str]:
    """The sentences, with each number or day that the next one puts right in its place.

    >>> corrected(["It has 61 pages now.", "Actually 64, I forgot one."])
    ['It has 64 pages now.', 'I forgot one.']
    """
    found: list[str] = []
    for sentence in said:
        new = _new_value(found[-1], sentence) if found else None
        olds = list(new[0].finditer(found[-1])) if new is not None else []
        if new is None or len(olds) != 1 or new[0] is _VALUES[-1] or new[2][:1].isspace():
            found.append(sentence)
            continue
        old = olds[0]
        found[-1] = f"{found[-1][: old.start()]}{new[1]}{found[-1][old.end() :]}"
        if words(new[2]):
            more = new[2].lstrip(" ,;:.!?-–—")
            found.append(more[:1].upper() + more[1:])
    return found


_NOT = re.compile(
    r"\b(?:not|instead of|rather than)\s+(?:(?:on|at|in|the|for|to|by|about)\s+){0,2}", re.I
)
_ENDS = re.compile(r"(?!['’])\W*(?:\Z|[.,;:!?)])")


def values_denied(text: str) -> set[str]:
    """The numbers, days and names, in lower case, that a text denies and gives another for.

    >>> values_denied("It was 240 pots that I ordered, not 200."), values_denied("I'm not 30 yet.")
    ({'200'}, set())
    """
    found = set()
    for no in _NOT.finditer(text):
        for kind in _VALUES:
            if (value := kind.match(text, no.end())) is None:
                continue
            said = [each[0].lower().lstrip("£$€") for each in kind.finditer(text)]
            named = kind is not _VALUES[-1] or _ENDS.match(text, value.end())
            not_so = value[0].lower().lstrip("£$€")
            if named and len({*said}) > 1 and said.count(not_so) == 1:
                found.add(not_so)
            break
    return found - {"one"}  # "not one word"


def asserts(text: str, values: Iterable[str]) -> bool:
    """Whether a text has one of these values, and does not deny it.

    >>> asserts("User ordered 200 pots.", {"200"}), asserts("240 pots, not 200", {"200"})
    (True, False)
    """
    left = {*values} - values_denied(text)
    return any(re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text.lower()) for value in left)


def _new_value(before: str, sentence: str) -> tuple[re.Pattern[str], str, str] | None:
    """The value that a sentence puts in the place of another one of the sentence before: its kind,
    itself and what follows it; None if there is none."""
    found = _INSTEAD.match(sentence)
    rest = found["rest"] if found is not None else ""
    for kind in _VALUES:
        if new := kind.match(rest):
            other = any(old[0] != new[0] for old in kind.finditer(before))
            # "Actually at 10 I have a meeting" puts nothing right.
            ends = rest[new.end() :].lstrip()[:1] in ("", *".,;:!?…")
            return (kind, new[0], rest[new.end() :]) if other and ends else None
    return None


def _denied(sentence: str) -> bool:
    """Whether a sentence says "actually" before a word alone, or a clause that ends in a "not"."""
    found = _ACTUALLY.match(sentence)
    said = words(found["clause"]) if found is not None else []
    alone = len(said) == 1 and said[0] not in _PRONOUNS
    return alone or is_negated(" ".join(said[-1:]))

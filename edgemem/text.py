"""Sentences, words and stop words. Knows no model, no store.

The word lists are English. Text of other languages passes through whole: it is split at its own
sentence marks, and no word of it is taken for a stop word.
"""

from __future__ import annotations

import re
from collections.abc import Collection

__all__ = [
    "KIN",
    "NEGATION",
    "STOP_WORDS",
    "THOUGHT_TAGS",
    "content_words",
    "is_negated",
    "is_question",
    "same_stem",
    "same_word",
    "sentence_starts",
    "sentences",
    "without_thoughts",
    "words",
]

# Between these a model writes what it thinks before it answers.
THOUGHT_TAGS = "<think>", "</think>"
_THOUGHT = re.compile(r"<think>.*?(?:</think>\s*|\Z)|</think>\s*", re.DOTALL)

# A sentence ends at . ! ? before a space, at CJK marks anywhere, and at a line's end; but not
# after an abbreviation or an initial ("Dr. Ito", "J. Smith"). Here and below, what a match may
# begin with comes first and any look behind after it: so the search skips what cannot match.
_END = re.compile(
    r"[.!?…。！？\n](?:(?<=\n)\n*|(?<=[。！？])|(?<!\bDr\.)(?<!\bMr\.)(?<!\bMs\.)(?<!\bSt\.)"
    r"(?<!\bMrs\.)(?<!\bvs\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\b[A-Z]\.)[\"')\]]*\s+)"
)
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
NEGATION = re.compile(
    r"(?=[ncw])(?:\b(?:not|no|never|none|neither|nor|cannot|without)|n['’]t)\b", re.I
)
_ENDING = re.compile(r"(?:ing|es|ed|s)$")
_POSSESSIVE = ("'s", "’s")

# A regular expression: how English names somebody by what they are to another person.
KIN = (
    r"(?:(?:step|grand|great-?grand|god|half[- ]|ex-?|"
    r"(?:best|old|little|big|older|younger|elder|twin|former|new|dear|good|close|late)\s){0,4}(?:"
    + "|".join(
        """mother father mom mum mama dad papa parent brother bro sister sis son daughter child
        kid baby boy girl twin wife husband spouse partner fianc[ée]e? boyfriend girlfriend
        friend mate buddy pal bestie cousin aunt auntie uncle niece nephew grandma grandpa
        granny nana grandmother grandfather grandson granddaughter in-law neighbou?r colleague
        co-?worker teammate boss manager supervisor mentor teacher professor tutor coach
        trainer doctor dentist nurse therapist lawyer landlord landlady roommate flatmate
        housemate classmate student client customer assistant babysitter nanny hairdresser
        plumber accountant pastor priest guest date crush""".split()
    )
    + r")(?:-in-law)?)"
)

STOP_WORDS = frozenset(
    """a about above after again all also am an and any are as at be because been before being below
    between both but by can could did do does doing down during each few for from further had has
    have having he her here hers him his how i if in into is it its just me more most my myself no
    nor not now of off on once only or other our ours out over own same she should so some such
    than that the their theirs them then there these they this those through to too under until up
    us very was we were what when where which while who whom why will with would you your yours
    i'm i've i'd i'll it's that's he's she's we're we've they're you're you've don't didn't doesn't
    isn't wasn't aren't can't won't let's what's""".split()
)


def sentences(text: str) -> list[str]:
    """The sentences of a text, stripped, without empty ones."""
    ends = list(_END.finditer(text))
    starts = [0, *(end.end() for end in ends)]
    marks = [*(end.start() + 1 for end in ends), len(text)]  # without what closes after the mark
    return [part for a, b in zip(starts, marks, strict=True) if (part := text[a:b].strip())]


def sentence_starts(text: str) -> list[int]:
    """The characters at which the sentences of a text begin, but for the first one."""
    return [match.end() for match in _END.finditer(text)]


def words(text: str) -> list[str]:
    """Lower-case words and numbers in order, possessive endings dropped."""
    return [w[:-2] if w.endswith(_POSSESSIVE) else w for w in _WORD.findall(text.lower())]


def content_words(text: str) -> list[str]:
    """Words that are not stop words."""
    return [w for w in words(text) if w not in STOP_WORDS]


def same_word(word: str, others: Collection[str]) -> bool:
    """Whether `word` or another form of it (play, plays, playing) is among `others`.

    Forms are told by their common beginning: all but the last three letters, at least three. That
    takes Bergen for Berlin, so it serves to see whether a word was said at all; see `same_stem`.
    """
    if word in others:
        return True
    if len(word) < 4 or not word.isalpha():
        return False
    start = word[: max(3, len(word) - 3)]
    return any(o.startswith(start) and o.isalpha() and abs(len(o) - len(word)) < 4 for o in others)


def same_stem(word: str, others: Collection[str]) -> bool:
    """Whether `word` with another English ending (-s, -es, -ed, -ing, -e, -y) is among `others`."""
    return word in others or (word.isalpha() and _stem(word) in map(_stem, others))


def _stem(word: str) -> str:
    """play for plays and playing, run for running, marri for marry and married: no word to show."""
    if len(word) < 4 or not word.isalpha():
        return word
    stem = _ENDING.sub("", word)
    stem = (stem if len(stem) > 2 else word).removesuffix("e")
    stem = stem[:-1] + "i" if stem.endswith("y") else stem
    return stem[:-1] if len(stem) > 3 and stem[-1] == stem[-2] else stem


def is_negated(text: str) -> bool:
    """Whether a text says "not" in some English way."""
    return NEGATION.search(text) is not None


def is_question(text: str) -> bool:
    """Whether every sentence of a text asks."""
    if "?" not in text and "？" not in text:
        return False
    parts = sentences(text)
    return bool(parts) and all(p.rstrip("\"')”’").endswith(("?", "？")) for p in parts)


def without_thoughts(text: str) -> str:
    """What a model says aloud: its text without `<think>…</think>`, finished or not.

    The space after a thought goes with it. What is left of a text that grows only grows, but for
    the beginning of a tag at its end (`streams.held_back`).
    """
    while (rest := _THOUGHT.sub("", text)) != text:
        text = rest
    return text

"""Sentences, words and stop words. Knows no model, no store.

The word lists are English. Text of other languages passes through whole: it is split at its own
sentence marks, and no word of it is taken for a stop word.
"""

from __future__ import annotations

import re
from collections.abc import Collection

__all__ = ["STOP_WORDS", "content_words", "is_question", "same_word", "sentences", "words"]

# A sentence ends at . ! ? before a space, at CJK marks anywhere, and at a line's end; but not
# after an abbreviation or an initial ("Dr. Ito", "J. Smith").
_END = re.compile(
    r"(?<=[.!?…])(?<!\bDr\.)(?<!\bMr\.)(?<!\bMs\.)(?<!\bSt\.)(?<!\bMrs\.)(?<!\bvs\.)(?<!\be\.g\.)"
    r"(?<!\bi\.e\.)(?<!\b[A-Z]\.)[\"')\]]*\s+|(?<=[。！？])|\n+"
)
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_POSSESSIVE = re.compile(r"['’]s$")

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
    return [part for raw in _END.split(text) if (part := raw.strip())]


def words(text: str) -> list[str]:
    """Lower-case words and numbers in order, possessive endings dropped."""
    return [_POSSESSIVE.sub("", w) for w in _WORD.findall(text.lower())]


def content_words(text: str) -> list[str]:
    """Words that are not stop words."""
    return [w for w in words(text) if w not in STOP_WORDS]


def same_word(word: str, others: Collection[str]) -> bool:
    """Whether `word` or another form of it (play, plays, playing) is among `others`.

    Forms are told by their common beginning: all but the last three letters, at least three.
    """
    if word in others:
        return True
    if len(word) < 4 or not word.isalpha():
        return False
    start = word[: max(3, len(word) - 3)]
    return any(o.startswith(start) and o.isalpha() and abs(len(o) - len(word)) < 4 for o in others)


def is_question(text: str) -> bool:
    """Whether every sentence of a text asks."""
    parts = sentences(text)
    return bool(parts) and all(p.rstrip("\"')”’").endswith(("?", "？")) for p in parts)

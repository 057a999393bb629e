"""Whether stage 1's facts say what was said: an invention is never stored.

Knows facts, sentences and what was read; no model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from edgemem import language
from edgemem.results import Message
from edgemem.stages.reading import Reading, label, line, pieces

__all__ = ["as_shown", "grounded", "is_quoted", "lenders"]

MIN_QUOTED = 0.75
_SHOWN = 0.4  # an expert may say things in its own words, not make them up
_OWN = 0.2  # nor repeat what was said before


def as_shown(fact: str, reading: Reading) -> str | None:
    """The fact without a relation that nothing shown tells: "Ana's sister Lena" is only "Lena", if
    she is called that; None if it names or gives somebody whom nothing shown speaks of."""
    shown = _words([*reading.before, reading.message], reading.names)
    named = {word for name in reading.names for word in language.words(name)}
    return language.with_known_people(fact, shown | named)


def grounded(fact: str, reading: Reading) -> tuple[str, str] | None:
    """An expert's fact, told of whom it is about, and its sentence; None if it is made up.

    Some of its words must be the message's; others may be of what was said before. What one says
    of oneself is about the speaker, even if the expert told it of another. What is about another,
    and more of it in their own words before, is no news.
    """
    message, speaker = reading.message, label(reading.message)
    named = {word for name in reading.names for word in language.words(name)}
    new = [w for w in language.content_words(fact) if w not in named]

    def held(messages: Iterable[Message]) -> int:
        said = _words(messages)
        return sum(language.same_word(w, said) for w in new)

    shown = [*reading.before, message]
    own = held([message])
    if not new or own < _OWN * len(new) or held(shown) < _SHOWN * len(new):
        return None
    if {w for w in new if w.isdigit()} - _words(shown):
        return None
    sentence = max(
        pieces(message.content) or [message.content],
        key=lambda s: sum(language.same_word(w, set(language.words(s))) for w in new),
    )
    others = reading.names - {speaker}
    other = next((o for o in others if re.match(rf"{re.escape(o)}\b", fact)), None)
    if other is None or re.search(rf"\b{re.escape(speaker)}\b", fact):
        return fact, sentence
    if held(m for m in reading.before if label(m) == other) > own:
        return None
    for said in (sentence, message.content):
        if language.is_of_speaker(said) and not (
            language.is_of_listener(said) or re.search(rf"\b{re.escape(other)}\b", said)
        ):
            return speaker + fact[len(other) :], sentence
    return fact, sentence


def lenders(fact: str, reading: Reading) -> tuple[int, ...]:
    """The places of the messages before that have words of a fact which its own message has not."""
    own = {w for part in (*reading.names, line(reading.message)) for w in language.words(part)}
    lent = [w for w in language.content_words(fact) if not language.same_word(w, own)]
    return tuple(
        place
        for place, message in zip(reading.places, reading.before, strict=True)
        if any(language.same_word(w, _words([message])) for w in lent)
    )


def is_quoted(fact: str, speaker: str, sentence: str) -> bool:
    """Whether a fact says what its sentence says, of a speaker who is named."""
    if language.is_unresolved(fact):
        return False
    said = set(language.words(sentence))
    new = [w for w in language.content_words(fact) if w not in language.words(speaker)]
    if not all(language.same_word(w, said) for w in language.owned_by(speaker, fact)):
        return False  # whose what: "Kim's wife sold the car" is not "I sold the car"
    held = sum(language.same_word(w, said) for w in new)
    return (
        bool(new) and held >= MIN_QUOTED * len(new) and language.denies_alike(fact, new, sentence)
    )


def _words(messages: Iterable[Message], names: Collection[str] = ()) -> set[str]:
    """The words of messages, as `line` shows them."""
    return {word for message in messages for word in language.words(line(message, names))}

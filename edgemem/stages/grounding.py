"""Whether stage 1's facts say what was said: an invention is never stored.

Knows facts, sentences and what was read; no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from edgemem.results import Message
from edgemem.stages.reading import FIRST_PERSON, SECOND_PERSON, Reading, label, line, pieces
from edgemem.text import KIN, NEGATION, content_words, is_negated, same_word, words

__all__ = ["as_shown", "grounded", "is_quoted", "lenders"]

MIN_QUOTED = 0.75
_SHOWN = 0.4  # an expert may say things in its own words, not make them up
_OWN = 0.2  # nor repeat what was said before
_UNRESOLVED = re.compile(r"\b(?:i|me|my|mine|you|your|yours|this|i['’](?:m|ve|d|ll))\b", re.I)
_CLAUSE_END = re.compile(r"[,;:.!?]|\bbut\b", re.I)
_THEIRS = rf"{KIN}s?|dogs?|cats?|pupp(?:y|ies)|kittens?|horses?|rabbits?|children"
_NAMED = re.compile(rf"\b\w+['’]s (?P<what>{_THEIRS}) (?=[A-Z]\w)")
_OWNED = re.compile(rf"\b(?:\w+['’]s|[Tt]heir|[Hh]is|[Hh]er) (?P<what>{_THEIRS})\b")
_NAME = re.compile(r"(?<=[\w,;:'’] )[A-Z]\w+")
_SAME_KIN = tuple(
    frozenset(group.split())
    for group in (
        "mother mum mom mama", "father dad papa baba", "child kid son daughter boy girl baby twin",
        "grandmother grandma nana granny", "grandfather grandpa", "husband wife spouse partner",
        "friend mate buddy pal", "dog puppy", "cat kitten",
    )
)  # fmt: skip


def as_shown(fact: str, reading: Reading) -> str | None:
    """The fact without a relation that nothing shown tells: "Ana's sister Lena" is only "Lena", if
    she is called that; None if it names or gives somebody whom nothing shown speaks of."""
    shown = {w for m in (*reading.before, reading.message) for w in words(line(m, reading.names))}
    shown |= {word for name in reading.names for word in words(name)}

    def known(word: str) -> bool:
        group = next((g for g in _SAME_KIN if same_word(word, g)), frozenset())
        return same_word(word, shown) or any(same_word(w, shown) for w in group)

    def related(found: re.Match[str]) -> bool:
        return all(map(known, content_words(found["what"])))

    fact = _NAMED.sub(lambda found: found[0] if related(found) else "", fact)
    fact = fact[:1].upper() + fact[1:]
    named = all(known(word) for name in _NAME.findall(fact) for word in content_words(name))
    return fact if named and all(map(related, _OWNED.finditer(fact))) else None


def grounded(fact: str, reading: Reading) -> tuple[str, str] | None:
    """An expert's fact, told of whom it is about, and its sentence; None if it is made up.

    Some of its words must be the message's; others may be of what was said before. What one says
    of oneself is about the speaker, even if the expert told it of another. What is about another,
    and more of it in their own words before, is no news.
    """
    message, speaker = reading.message, label(reading.message)
    named = {word for name in reading.names for word in words(name)}
    new = [w for w in content_words(fact) if w not in named]

    def held(messages: Iterable[Message]) -> int:
        said = {w for m in messages for w in words(line(m))}
        return sum(same_word(w, said) for w in new)

    shown = [*reading.before, message]
    own = held([message])
    if not new or own < _OWN * len(new) or held(shown) < _SHOWN * len(new):
        return None
    if {w for w in new if w.isdigit()} - {w for m in shown for w in words(line(m))}:
        return None
    sentence = max(
        pieces(message.content) or [message.content],
        key=lambda s: sum(same_word(w, set(words(s))) for w in new),
    )
    others = reading.names - {speaker}
    other = next((o for o in others if re.match(rf"{re.escape(o)}\b", fact)), None)
    if other is None or re.search(rf"\b{re.escape(speaker)}\b", fact):
        return fact, sentence
    if held(m for m in reading.before if label(m) == other) > own:
        return None
    for said in (sentence, message.content):
        if FIRST_PERSON.search(said) and not (
            SECOND_PERSON.search(said) or re.search(rf"\b{re.escape(other)}\b", said)
        ):
            return speaker + fact[len(other) :], sentence
    return fact, sentence


def lenders(fact: str, reading: Reading) -> tuple[int, ...]:
    """The places of the messages before that have words of a fact which its own message has not."""
    own = {w for part in (*reading.names, line(reading.message)) for w in words(part)}
    lent = [w for w in content_words(fact) if not same_word(w, own)]
    return tuple(
        place
        for place, message in zip(reading.places, reading.before, strict=True)
        if any(same_word(w, set(words(line(message)))) for w in lent)
    )


def is_quoted(fact: str, speaker: str, sentence: str) -> bool:
    """Whether a fact says what its sentence says, of a speaker who is named."""
    if _UNRESOLVED.search(fact):
        return False
    said = set(words(sentence))
    new = [w for w in content_words(fact) if w not in words(speaker)]
    owned = re.findall(rf"\b{speaker}['’]s (\w+)", fact)
    if not all(same_word(w.lower(), said) for w in owned):
        return False  # whose what: "Kim's wife sold the car" is not "I sold the car"
    held = sum(same_word(w, said) for w in new)
    return bool(new) and held >= MIN_QUOTED * len(new) and _is_as_negated(fact, new, sentence)


def _is_as_negated(fact: str, content: Sequence[str], sentence: str) -> bool:
    """Whether a fact denies what its sentence denies: "I can't eat nuts" is not "Kim can eat nuts".

    What a fact denies is the word after its "not"; its sentence must deny that too. A fact about
    the rest of a sentence may leave out the word after the sentence's "not".
    """
    denied = _denied(sentence)
    if is_negated(fact):
        said = [word for clause in denied for word in clause]
        return is_negated(sentence) and all(same_word(c[0], said) for c in _denied(fact))
    return not any(same_word(clause[0], content) for clause in denied)


def _denied(text: str) -> list[list[str]]:
    """The content words after each "not" of a text, up to its clause's end, if there are any."""
    clauses = (_CLAUSE_END.split(rest, 1)[0] for rest in NEGATION.split(text)[1:])
    return [denied for clause in clauses if (denied := content_words(clause))]

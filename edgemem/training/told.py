"""Invented people and what they tell of themselves and theirs, in their words and as facts.

Knows phrases; knows no dialogue and no stage.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from edgemem.stages.dates import absolute
from edgemem.training.phrases import (
    Phrases,
    Topic,
    Voice,
    fill,
    first_person,
    second_person,
    slots,
)

__all__ = [
    "Person",
    "Subject",
    "Told",
    "all_facts",
    "as_sentence",
    "fact_of",
    "tell",
]

_PRONOUNS = {
    "she": ("her", "her", "she"),
    "he": ("his", "him", "he"),
    "they": ("their", "them", "they"),
}


@dataclass(frozen=True)
class Person:
    """Who talks. pronoun: she, he, they. informal: how carelessly they write, 0 to 1."""

    name: str
    pronoun: str
    informal: float
    assistant: bool = False


@dataclass(frozen=True)
class Subject:
    """Whom a fact is about: a person, or somebody of theirs ("sister", "Lena")."""

    owner: Person
    relation: str = ""
    name: str = ""
    pronoun: str = ""

    def third(self) -> Voice:
        """As others speak of them: "Ana", "Ana's sister Lena"."""
        return self._voice(f"{self.owner.name}'s", self.owner.name)

    def own(self, *, asked: bool = False) -> Voice:
        """As the owner speaks of them: "I", "my sister Lena"; asked: as the other asks, "you"."""
        if not self.relation:
            return second_person() if asked else first_person()
        return self._voice("your" if asked else "my", "")

    def _voice(self, whose: str, alone: str) -> Voice:
        my, me, they = _PRONOUNS[self.pronoun or self.owner.pronoun]
        subject = f"{whose} {self.relation} {self.name}".strip() if self.relation else alone
        return Voice(subject, f"{subject}'s", my, me, they, 2)


@dataclass(frozen=True)
class Told:
    """One thing that was told. values: of the slots, dates as the fact has them. at: ISO time.

    state: "holds", or what it says of an earlier one: "ended", "changed" (key is now key2).
    detail: the line of the topic that was told with it. fact: as the annotator of this
    conversation put it. sentence: as it was said, in a turn of its own or with others.
    """

    topic: Topic
    subject: Subject
    values: dict[str, str]
    at: str
    state: str = "holds"
    detail: tuple[str, ...] | None = None
    fact: str = ""
    sentence: str = ""
    turn: str = ""
    self_contained: bool = True

    @property
    def value(self) -> str:
        """What it sets: the value that holds afterwards."""
        return self.values[self.topic.key + "2" * (self.state == "changed")]


def say(rng: random.Random, part: str, values: dict[str, str], voice: Voice) -> str:
    """One alternative of a part, filled in."""
    return fill(rng.choice(part.split(" | ")), values, voice)


# -- values ----------------------------------------------------------------------------------


def when_said(rng: random.Random, day: datetime) -> str:
    """A past date as people say it."""
    count = rng.choice(("two", "three", "four", "a couple of", "a few"))
    recent = (
        "yesterday", "last night", "last week", "last weekend", "last month", "last year",
        f"last {rng.choice('Monday Tuesday Wednesday Thursday Friday Saturday Sunday'.split())}",
        f"{count} days ago", f"{count} weeks ago", f"{count} months ago", f"{count} years ago",
        "this morning", "today", "a week ago", "a month ago", "this week",
    )  # fmt: skip
    past = day - timedelta(days=rng.randrange(3, 900))
    explicit = (
        f"on {past.day} {past:%B} {past.year}", f"in {past:%B} {past.year}", f"in {past.year}"
    )  # fmt: skip
    return rng.choice(recent if rng.random() < 0.8 else explicit)


def soon_said(rng: random.Random, day: datetime) -> str:
    """A coming date as people say it."""
    count = rng.choice(("two", "three", "four", "a few", "a couple of"))
    near = (
        "tomorrow", "next week", "next weekend", "next month", "next year", "this weekend",
        f"next {rng.choice('Monday Tuesday Wednesday Thursday Friday Saturday Sunday'.split())}",
        f"in {count} days", f"in {count} weeks", f"in {count} months",
    )  # fmt: skip
    coming = day + timedelta(days=rng.randrange(3, 300))
    explicit = (f"on {coming.day} {coming:%B} {coming.year}", f"in {coming:%B} {coming.year}")
    return rng.choice(near if rng.random() < 0.75 else explicit)


def written_out(phrase: str, at: str) -> str:
    """A relative date as the prompt has it: "on 7 May 2023"."""
    return absolute(f"so {phrase}", at)[0].removeprefix("so ")


def draw(
    rng: random.Random, book: Phrases, names: set[str], known: dict[str, str]
) -> dict[str, str]:
    """Values for the named slots, beside those known already. Dates are drawn elsewhere."""
    values = dict(known)
    for name in sorted(names - set(known) - {"when", "soon"}):
        plain = name.rstrip("2")
        taken = {values.get(plain), values.get(plain + "2")}
        values[name] = rng.choice([v for v in book.lists[plain] if v not in taken])
    return values


def every_slot(parts: Sequence[str]) -> set[str]:
    """The slots of some parts."""
    return {slot for part in parts for slot in slots(part)}


# -- telling ---------------------------------------------------------------------------------


def tell(
    rng: random.Random,
    book: Phrases,
    topic: Topic,
    subject: Subject,
    at: str,
    *,
    before: Told | None = None,
    state: str = "holds",
    like: Told | None = None,
    detailed: float = 0.5,
) -> Told:
    """Something new about a subject, or (before, state) an end or a change of what was told.

    like: what has the same value. detailed: how often a detail is told with it, 0 to 1.
    """
    day = datetime.fromisoformat(at)
    said: dict[str, str] = {}
    if state == "holds":
        said_by = [line for (line,) in topic.of("s") if not subject.relation or "{S" in line]
        line = rng.choice(said_by or [line for (line,) in topic.of("s")])
        fact = rng.choice(topic.of("f"))[0]
    else:
        assert before is not None
        line, fact = (
            rng.choice(p.split(" | "))
            for p in rng.choice(topic.of("-" if state == "ended" else "!"))
        )
    used = slots(line) | slots(fact) | {topic.key}
    detail = None
    if state == "holds" and topic.of("+") and rng.random() < detailed:
        detail = rng.choice(topic.of("+"))
        used |= every_slot(detail)
    known = {topic.key: like.value} if like else {}
    if before is not None:
        known = {k: v for k, v in before.values.items() if k not in ("when", "soon")}
        if before.state == "changed":
            known[topic.key] = before.value
            known.pop(topic.key + "2", None)
    details = every_slot([part for line in topic.of("+") for part in line])
    values = draw(rng, book, used | details | every_slot(all_facts(topic)), known)
    for slot, phrase in (("when", when_said), ("soon", soon_said)):
        dated = slot in slots(line) and (slot == "soon" or rng.random() < 0.75)
        said[slot] = phrase(rng, day) if dated else ""
        if detail and slot in slots(detail[0]):
            said[slot] = said[slot] or phrase(rng, day)
        values[slot] = written_out(said[slot], at) if said[slot] else ""
    spoken = fill(line, {**values, **said}, subject.own())
    sentences = [as_sentence(spoken)]
    if detail:
        voice = subject.own()
        if subject.relation and rng.random() < 0.7:
            voice = replace(voice, subject=voice.they, possessive=voice.my)
        sentences.append(as_sentence(say(rng, detail[0], {**values, **said}, voice)))
        fact = rng.choice(detail[2].split(" | "))
    noted = fill(fact, values, subject.third())
    return Told(topic, subject, values, at, state, detail, as_sentence(noted), " ".join(sentences))


def all_facts(topic: Topic) -> list[str]:
    """The ways to note what a topic tells."""
    return [part for (part,) in topic.of("f")]


def fact_of(part: str, told: Told) -> str:
    """One of a topic's facts, filled in for what was told."""
    return as_sentence(fill(part, told.values, told.subject.third()))


def as_sentence(text: str, end: str = ".") -> str:
    text = text.strip()
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".!?" else text + end

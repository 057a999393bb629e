"""The phrases of invented conversations, how one is filled in, and what people tell with them.

They are files in `corpus/talk/`. lists.txt and people.txt have lines of `name: value, value`, and
talk.txt of `name phrase | phrase`. In topics_*.txt a topic begins with `= name kind key [family]`
and has lines of `code phrase | phrase`; ` => ` separates a phrase's parts:

    s say; f the same as a third-person fact; q question => answer; w "when did ...?"; y a question
    to be answered by yes; b question about the value before the present one; l question whose
    answer is all values => one of them; c "how many ...?"; i inference => answer;
    + detail said => fact => the topic's fact with it => question? answer; - ended: said => fact;
    ! changed to key2: said => fact; r what a listener says; p photo

A code (or a name in talk.txt) that begins with "v" is for validation, all others for training, so
that validation has no phrase that training saw. Of a list of eight values or more, every fourth
is validation's; shorter lists are shared.

In a phrase, {S}, {S's}, {O} (as an object), {my}, {me} and {they} stand for the person meant.
[am|are|is] has the verb's forms for I, you and she, [sing|sings] one for I and you and one for she.
{when} is a past date and {soon} a coming one. {a role} is a value with its article. Any other
{name} is a value of the list of that name, and {name2} another one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Literal, cast

from edgemem.language import absolute

Kind = Literal["one", "many", "event", "plan"]
Split = Literal["train", "valid"]

_SLOT = re.compile(r"\{([^{}]+)\}")
_FORM = re.compile(r"\[([^\[\]|]+)\|([^\[\]|]+)(?:\|([^\[\]|]+))?\]")
_VOICE = frozenset(("S", "S's", "O", "my", "me", "they"))
_HELD_OUT_FROM, _HELD_OUT_EVERY = 8, 4
_TALK = Path(__file__).with_name("talk")


@dataclass(frozen=True, slots=True)
class Voice:
    """A person as a phrase names them. form: 0 for "I", 1 for "you", 2 for anybody else."""

    subject: str
    possessive: str
    my: str
    me: str
    they: str
    form: Literal[0, 1, 2]


FIRST_PERSON = Voice("I", "my", "my", "me", "I", 0)
SECOND_PERSON = Voice("you", "your", "your", "you", "you", 1)


@dataclass(frozen=True)
class Topic:
    """Something people talk about. lines: for each code its alternatives, each a tuple of parts.

    kind: "one" value at a time, "many" side by side, an "event" or a "plan", both with a date.
    key: the slot whose value distinguishes two things told. Topics of one family answer the same
    questions.
    """

    name: str
    kind: Kind
    key: str
    family: str
    lines: Mapping[str, Sequence[tuple[str, ...]]]

    def of(self, code: str) -> Sequence[tuple[str, ...]]:
        """The alternatives of a code; none if the topic lacks it."""
        return self.lines.get(code, ())


@dataclass(frozen=True)
class Phrases:
    """All that one split may say. lists: values; talk: what is said around facts, by name.

    proper: words that keep their capital within a sentence.
    """

    lists: Mapping[str, Sequence[str]]
    talk: Mapping[str, Sequence[str]]
    topics: Sequence[Topic]
    proper: frozenset[str]


@cache
def phrases(split: Split) -> Phrases:
    """The phrases and values of one split."""
    lists, talk, people = _read("lists.txt"), _read("talk.txt"), _read("people.txt")
    values: dict[str, Sequence[str]] = {}
    for line in (*lists, *people):
        name, _, rest = line.partition(": ")
        every = [v.strip() for v in rest.split(", ")]
        values[name] = _share(every, split)
    said: dict[str, Sequence[str]] = {}
    for line in talk:
        name, rest = line.split(" ", 1)
        if name.startswith("v") == (split == "valid"):
            said[name.removeprefix("v")] = rest.split(" | ")
    proper = {v.split()[0] for every in values.values() for v in every if v[0].isupper()}
    return Phrases(values, said, _topics(split), frozenset(proper | {"I"}))


def slots(phrase: str) -> set[str]:
    """The names of a phrase's slots, except those for the person."""
    return {_named(s) for s in _SLOT.findall(phrase)} - _VOICE


def fill(phrase: str, values: Mapping[str, str], voice: Voice | None = None) -> str:
    """A phrase with its slots filled in. Raises KeyError on a slot that has no value."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if voice is not None and name in _VOICE:
            return {
                "S": voice.subject,
                "S's": voice.possessive,
                "O": voice.me if voice.form == 0 else voice.subject,
                "my": voice.my,
                "me": voice.me,
                "they": voice.they,
            }[name]
        text = values[_named(name)]
        article = "an" if text[:1].lower() in "aeiou" else "a"
        return f"{article} {text}" if name.startswith("a ") else text

    if voice is not None:
        if voice.form == 2 and voice.they != "they":
            phrase = _named_once(phrase)
        phrase = _FORM.sub(lambda m: _form(m, voice.form), phrase)
    while "{" in phrase:  # a value may have slots itself
        phrase = _SLOT.sub(value, phrase)
    phrase = re.sub(r" (?=[,.!?:])", "", " ".join(phrase.split()))
    # A comma at the end was followed by a date that is left out, or ("by the way,") by a sentence.
    return phrase if voice is None else phrase.rstrip(",")


def _named_once(phrase: str) -> str:
    """The phrase with a pronoun for each {S} but the first: "Ana sang until she was tired"."""
    head, person, tail = phrase.partition("{S")
    if not person:
        return phrase
    for named, pronoun in (("{S}", "{they}"), ("{S's}", "{my}")):
        tail = tail.replace(named, pronoun)
    return head + person + tail


def _named(slot: str) -> str:
    return slot.removeprefix("a ")


def _form(match: re.Match[str], form: int) -> str:
    first, second, third = match.groups()
    return (first, second, third)[form] if third is not None else (first, first, second)[form]


def _share(values: list[str], split: Split) -> list[str]:
    if len(values) < _HELD_OUT_FROM:
        return values
    held_out = split == "valid"
    return [v for i, v in enumerate(values) if (i % _HELD_OUT_EVERY == 0) == held_out]


def _read(name: str) -> list[str]:
    text = (_TALK / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _topics(split: Split) -> list[Topic]:
    found: list[Topic] = []
    names = sorted(file.name for file in _TALK.glob("topics_*.txt"))
    lines: dict[str, list[tuple[str, ...]]] = {}
    for file in names:
        for line in _read(file):
            code, rest = line.split(" ", 1)
            if code == "=":
                name, kind, key, *family = rest.split()
                lines = {}
                found.append(Topic(name, cast(Kind, kind), key, (family or [name])[0], lines))
            elif code.startswith("v") == (split == "valid"):
                code = code.removeprefix("v")
                whole = code in "+-!"  # one alternative a line, whose parts have alternatives
                for text in [rest] if whole else rest.split(" | "):
                    lines.setdefault(code, []).append(tuple(text.split(" => ")))
    return found


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
        """The subject as others call them: "Ana", "Ana's sister Lena"."""
        return self._voice(f"{self.owner.name}'s", self.owner.name)

    def own(self) -> Voice:
        """The subject as the owner calls them: "I", "my sister Lena"."""
        return self._voice("my", "") if self.relation else FIRST_PERSON

    def _voice(self, whose: str, alone: str) -> Voice:
        my, me, they = _PRONOUNS[self.pronoun or self.owner.pronoun]
        subject = f"{whose} {self.relation} {self.name}".strip() if self.relation else alone
        return Voice(subject, f"{subject}'s", my, me, they, 2)


@dataclass(frozen=True)
class Told:
    """One thing that was told. values: of the slots, with dates as the fact has them. at: ISO time.

    state: "holds", or what became of something told earlier: "ended", or "changed" from key's value
    to key2's. detail: the topic's "+" line that was told with it. fact: as an annotator puts it.
    sentence: as it was said. turn: the whole turn that has the sentence. self_contained: False if
    it was said in a few words, which only the question explains.
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
        """The key's value that holds afterwards."""
        return self.values[self.topic.key + "2" * (self.state == "changed")]


def _when_said(rng: random.Random, day: datetime) -> str:
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


def _soon_said(rng: random.Random, day: datetime) -> str:
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


def _draw(
    rng: random.Random, book: Phrases, names: set[str], known: dict[str, str]
) -> dict[str, str]:
    """Values for the named slots, beside those known already. Dates are drawn elsewhere."""
    values = dict(known)
    for name in sorted(names - set(known) - {"when", "soon"}):
        plain = name.rstrip("2")
        taken = {values.get(plain), values.get(plain + "2")}
        values[name] = rng.choice([v for v in book.lists[plain] if v not in taken])
    return values


def _every_slot(parts: Sequence[str]) -> set[str]:
    """The slots of all parts."""
    return {slot for part in parts for slot in slots(part)}


def tell(
    rng: random.Random, book: Phrases, topic: Topic, subject: Subject, at: str, *,
    before: Told | None = None, state: str = "holds", like: Told | None = None,
    detailed: float = 0.5,
) -> Told:  # fmt: skip
    """Something new about a subject; with before and state, an end or a change of what was told.

    like: something told, whose value is taken. detailed: how often a detail is added, 0 to 1.
    """
    day = datetime.fromisoformat(at)
    said: dict[str, str] = {}
    if state == "holds":
        said_by = [line for (line,) in topic.of("s") if not subject.relation or "{S" in line]
        line = rng.choice(said_by)
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
        used |= _every_slot(detail)
    known = {topic.key: like.value} if like else {}
    if before is not None:
        known = {k: v for k, v in before.values.items() if k not in ("when", "soon")}
        if before.state == "changed":
            known[topic.key] = before.value
            known.pop(topic.key + "2", None)
    details = _every_slot([part for line in topic.of("+") for part in line])
    values = _draw(rng, book, used | details | _every_slot(all_facts(topic)), known)
    for slot, phrase in (("when", _when_said), ("soon", _soon_said)):
        dated = slot in slots(line) and (slot == "soon" or rng.random() < 0.75)
        said[slot] = phrase(rng, day) if dated else ""
        if detail and slot in slots(detail[0]):
            said[slot] = said[slot] or phrase(rng, day)
        # Written out, as a prompt has dates: "on 7 May 2023".
        values[slot] = absolute(f"so {said[slot]}", at)[0].removeprefix("so ") if said[slot] else ""
    spoken = fill(line, {**values, **said}, subject.own())
    sentences = [as_sentence(spoken)]
    if detail:
        voice = subject.own()
        if subject.relation and rng.random() < 0.7:
            voice = replace(voice, subject=voice.they, possessive=voice.my)
        part = rng.choice(detail[0].split(" | "))
        sentences.append(as_sentence(fill(part, {**values, **said}, voice)))
        fact = rng.choice(detail[2].split(" | "))
    noted = fill(fact, values, subject.third())
    return Told(topic, subject, values, at, state, detail, as_sentence(noted), " ".join(sentences))


def all_facts(topic: Topic) -> list[str]:
    """The phrases by which a topic is noted as a fact."""
    return [part for (part,) in topic.of("f")]


def fact_of(part: str, told: Told) -> str:
    """One of a topic's facts, filled in for what was told."""
    return as_sentence(fill(part, told.values, told.subject.third()))


def as_sentence(text: str) -> str:
    text = text.strip()
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".!?" else f"{text}."
